//! The segment's bytes: every field's place, fixed by the compiler's own check.
//!
//! A change here is a change of `docs/segment.md` and of [`LAYOUT_VERSION`], in the same commit. All words
//! are in the host's byte order: a segment never leaves its host.

use std::mem::{align_of, offset_of, size_of};
use std::sync::atomic::AtomicU64;

/// `okdbshm` and a NUL, read as a little-endian word.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"okdbshm\0");

/// Rises with every change of this module's structures or of what their words mean.
pub(crate) const LAYOUT_VERSION: u64 = 2;

/// Environments that one root can hold at a time.
pub const ENV_COUNT_MAX: usize = 256;

/// Slots that a supervisor can hold.
pub const SLOT_COUNT_MAX: usize = 256;

/// Rows of the scoreboard that belong to each slot: a worker and the successor that it overlaps with.
pub(crate) const SLOT_ROWS: usize = 2;

/// Processes that can use a root at a time: the rows of the slots, and 128 more for the primary, library
/// processes and commands.
pub const PROCESS_COUNT_MAX: usize = SLOT_COUNT_MAX * SLOT_ROWS + 128;

/// Buckets of a latency histogram; see [`crate::latency_bucket`].
pub const LATENCY_BUCKETS: usize = 24;

/// Buckets of a histogram of batch sizes; see [`crate::batch_bucket`].
pub const BATCH_BUCKETS: usize = 16;

/// Write locks that one process can be seen to hold at a time (one per environment that it is writing).
pub const WRITE_LOCKS_MAX: usize = 8;

/// Proofs of the gate that can run at a time.
pub(crate) const GATE_CELLS: usize = 8;

/// Size of the segment's file.
pub const SEGMENT_BYTES: usize = size_of::<Tables>();

/// A word with a cache line pair to itself (the prefetcher fetches lines in pairs).
#[repr(C, align(128))]
pub(crate) struct Alone {
    pub(crate) word: AtomicU64,
    reserved: [AtomicU64; 15],
}

/// Written before the segment gets its name, never after; covered by `checksum`.
#[repr(C)]
pub(crate) struct Static {
    pub(crate) magic: AtomicU64,
    pub(crate) layout: AtomicU64,
    pub(crate) size: AtomicU64,
    pub(crate) nonce: AtomicU64,
    pub(crate) root: [AtomicU64; 2],
    pub(crate) boot: [AtomicU64; 2],
    pub(crate) created_unix_ms: AtomicU64,
    pub(crate) run_dev: AtomicU64,
    pub(crate) run_ino: AtomicU64,
    pub(crate) pid_namespace: AtomicU64,
    pub(crate) time_namespace: AtomicU64,
    pub(crate) checksum: AtomicU64,
    reserved: [AtomicU64; 2],
}

#[repr(C)]
pub(crate) struct GateCell {
    pub(crate) owner: AtomicU64,
    pub(crate) value: AtomicU64,
}

#[repr(C)]
pub(crate) struct Header {
    pub(crate) fixed: Static,
    pub(crate) hlc: Alone,
    pub(crate) slot_writer: Alone,
    /// One more than the highest peer row that was ever claimed.
    pub(crate) peers_high: Alone,
    pub(crate) gate: [GateCell; GATE_CELLS],
    /// Reader slots of dead processes that were cleared.
    pub(crate) stale_readers: Alone,
    reserved: [AtomicU64; 416],
}

#[repr(C, align(64))]
pub(crate) struct EnvWords {
    pub(crate) identity: AtomicU64,
    pub(crate) clock: AtomicU64,
    pub(crate) generation: AtomicU64,
    reserved: [AtomicU64; 5],
}

/// Three parts, each written by other threads of the owner: its event loop's slow gauges, what every
/// request touches, and what every commit touches.
#[repr(C, align(128))]
pub(crate) struct ScoreWords {
    pub(crate) owner: AtomicU64,
    pub(crate) role: AtomicU64,
    /// Slot + 1; 0 for a process that fills none.
    pub(crate) slot: AtomicU64,
    pub(crate) state: AtomicU64,
    pub(crate) started_ms: AtomicU64,
    pub(crate) heartbeat_ms: AtomicU64,
    pub(crate) loop_lag_us: AtomicU64,
    pub(crate) rss_bytes: AtomicU64,
    pub(crate) bus_port: AtomicU64,
    pub(crate) pokes_sent: AtomicU64,
    pub(crate) pokes_skipped: AtomicU64,
    pub(crate) pokes_received: AtomicU64,
    pub(crate) bus_dropped: AtomicU64,
    reserved_a: [AtomicU64; 3],

    pub(crate) requests: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) in_flight: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) latency_total_us: AtomicU64,
    pub(crate) connections: AtomicU64,
    reserved_b: [AtomicU64; 1],
    pub(crate) latency: [AtomicU64; LATENCY_BUCKETS],

    pub(crate) commits: AtomicU64,
    pub(crate) operations: AtomicU64,
    pub(crate) syncs: AtomicU64,
    reserved_c: [AtomicU64; 5],
    pub(crate) write_locks: [AtomicU64; WRITE_LOCKS_MAX],
    pub(crate) batches: [AtomicU64; BATCH_BUCKETS],
}

/// Number of words of a slot row that its sequence word guards.
pub(crate) const SLOT_FIELDS: usize = 6;

#[repr(C, align(128))]
pub(crate) struct SlotWords {
    pub(crate) sequence: AtomicU64,
    pub(crate) fields: [AtomicU64; SLOT_FIELDS],
    reserved: [AtomicU64; 9],
}

#[repr(C, align(64))]
pub(crate) struct PeerWords {
    pub(crate) owner: AtomicU64,
    pub(crate) port: AtomicU64,
    pub(crate) pending: AtomicU64,
    reserved: [AtomicU64; 5],
}

#[repr(C, align(4096))]
pub(crate) struct Tables {
    pub(crate) header: Header,
    pub(crate) envs: [EnvWords; ENV_COUNT_MAX],
    pub(crate) scoreboard: [ScoreWords; PROCESS_COUNT_MAX],
    pub(crate) slots: [SlotWords; SLOT_COUNT_MAX],
    pub(crate) peers: [PeerWords; PROCESS_COUNT_MAX],
}

/// Fails the build unless each named field lies at its documented offset, and each structure has its
/// documented size and alignment. Tests compare the same table with `docs/segment.md`.
macro_rules! documented {
    ($($kind:ty, size $size:literal, align $align:literal,
        { $($field:ident @ $offset:literal),+ $(,)? })+) => {
        $(const _: () = {
            assert!(size_of::<$kind>() == $size);
            assert!(align_of::<$kind>() == $align);
            $(assert!(offset_of!($kind, $field) == $offset);)+
        };)+

        /// Structure, size, fields with their offsets.
        #[cfg(test)]
        const DOCUMENTED: &[(&str, usize, &[(&str, usize)])] =
            &[$((stringify!($kind), $size, &[$((stringify!($field), $offset)),+])),+];
    };
}

documented! {
    Tables, size 503_808, align 4096, {
        header @ 0, envs @ 4096, scoreboard @ 20_480, slots @ 430_080, peers @ 462_848,
    }
    Header, size 4096, align 128, {
        fixed @ 0, hlc @ 128, slot_writer @ 256, peers_high @ 384, gate @ 512, stale_readers @ 640,
        reserved @ 768,
    }
    Static, size 128, align 8, {
        magic @ 0, layout @ 8, size @ 16, nonce @ 24, root @ 32, boot @ 48, created_unix_ms @ 64,
        run_dev @ 72, run_ino @ 80, pid_namespace @ 88, time_namespace @ 96, checksum @ 104, reserved @ 112,
    }
    Alone, size 128, align 128, { word @ 0, reserved @ 8 }
    GateCell, size 16, align 8, { owner @ 0, value @ 8 }
    EnvWords, size 64, align 64, { identity @ 0, clock @ 8, generation @ 16, reserved @ 24 }
    ScoreWords, size 640, align 128, {
        owner @ 0, role @ 8, slot @ 16, state @ 24, started_ms @ 32, heartbeat_ms @ 40, loop_lag_us @ 48,
        rss_bytes @ 56, bus_port @ 64, pokes_sent @ 72, pokes_skipped @ 80, pokes_received @ 88, bus_dropped @ 96,
        reserved_a @ 104,
        requests @ 128, errors @ 136, in_flight @ 144, bytes_in @ 152, bytes_out @ 160,
        latency_total_us @ 168, connections @ 176, reserved_b @ 184, latency @ 192,
        commits @ 384, operations @ 392, syncs @ 400, reserved_c @ 408, write_locks @ 448, batches @ 512,
    }
    SlotWords, size 128, align 128, { sequence @ 0, fields @ 8, reserved @ 56 }
    PeerWords, size 64, align 64, { owner @ 0, port @ 8, pending @ 16, reserved @ 24 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page has one section per structure, whose table has one row per field.
    #[test]
    fn the_page_says_what_the_compiler_says() {
        let page = include_str!("../../docs/segment.md");
        assert!(page.contains(&format!("Layout version {LAYOUT_VERSION}.")));
        for (kind, size, fields) in DOCUMENTED {
            let heading = format!("### `{kind}`, {size} bytes");
            let section = page
                .split(&heading)
                .nth(1)
                .and_then(|rest| rest.split("\n#").next());
            let section = section.unwrap_or_else(|| panic!("no section {heading}"));
            for (field, offset) in *fields {
                let row = format!("\n| {offset} | `{field}` |");
                assert!(section.contains(&row), "{kind} has no row {row}");
            }
        }
    }
}
