//! What a row of the scoreboard says, as values: roles, states, histograms, and a row's content at one moment.

use std::sync::atomic::{AtomicU64, Ordering};

use okdb_sys::process;

use crate::layout::{BATCH_BUCKETS, LATENCY_BUCKETS, ScoreWords};
use crate::owner;

/// A held write lock is one word: the environment's index + 1 above, the time it was taken below.
pub(super) const LOCK_SINCE_BITS: u32 = 47;

pub(super) const LOCK_SINCE_MASK: u64 = (1 << LOCK_SINCE_BITS) - 1;

/// What a process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Supervises and processes.
    Primary,
    /// Serves HTTP in a slot.
    Worker,
    /// Does both in one process.
    Standalone,
    /// An application that embeds the library.
    Library,
    /// A command of the command line.
    Command,
}

impl Role {
    pub(super) const ALL: [Self; 5] = [
        Self::Primary,
        Self::Worker,
        Self::Standalone,
        Self::Library,
        Self::Command,
    ];

    pub(super) const fn to_word(self) -> u64 {
        match self {
            Self::Primary => 1,
            Self::Worker => 2,
            Self::Standalone => 3,
            Self::Library => 4,
            Self::Command => 5,
        }
    }

    pub(super) fn from_word(word: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.to_word() == word)
    }

    /// Its name in status answers and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Worker => "worker",
            Self::Standalone => "standalone",
            Self::Library => "library",
            Self::Command => "command",
        }
    }
}

/// How far a process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowState {
    /// Opening what it needs.
    Starting,
    /// Doing its work.
    Ready,
    /// Finishing what it has begun, taking nothing new.
    Draining,
}

impl RowState {
    pub(super) const fn to_word(self) -> u64 {
        match self {
            Self::Starting => 1,
            Self::Ready => 2,
            Self::Draining => 3,
        }
    }

    /// Anything unknown reads as not yet ready, the cautious answer.
    pub(super) const fn from_word(word: u64) -> Self {
        match word {
            2 => Self::Ready,
            3 => Self::Draining,
            _ => Self::Starting,
        }
    }

    /// Its name in status answers and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
        }
    }
}

/// The bucket out of `buckets` for a value, when bucket *i* counts up to 2^*i* and the last one everything above.
const fn power_bucket(value: u64, buckets: usize) -> usize {
    let above = value.saturating_sub(1);
    let bucket = (u64::BITS - above.leading_zeros()) as usize;
    if bucket < buckets {
        bucket
    } else {
        buckets - 1
    }
}

/// The highest value that `bucket` of `buckets` counts; `None` for the last one.
const fn power_bucket_max(bucket: usize, buckets: usize) -> Option<u64> {
    if bucket < buckets - 1 {
        Some(1 << bucket)
    } else {
        None
    }
}

/// The bucket that counts a latency: bucket 0 up to 1 µs, bucket *i* up to 2^*i* µs, the last one
/// everything above.
#[must_use]
pub const fn latency_bucket(latency_us: u64) -> usize {
    power_bucket(latency_us, LATENCY_BUCKETS)
}

/// The highest latency in µs that `bucket` counts; `None` for the last one, which has no upper bound, and
/// for those that do not exist.
#[must_use]
pub const fn latency_bucket_max_us(bucket: usize) -> Option<u64> {
    power_bucket_max(bucket, LATENCY_BUCKETS)
}

/// The bucket that counts a commit of so many operations: bucket 0 up to one, bucket *i* up to 2^*i*, the last one
/// everything above.
#[must_use]
pub const fn batch_bucket(operations: u64) -> usize {
    power_bucket(operations, BATCH_BUCKETS)
}

/// The most operations that `bucket` counts; `None` for the last one, which has no upper bound, and for those
/// that do not exist.
#[must_use]
pub const fn batch_bucket_max(bucket: usize) -> Option<u64> {
    power_bucket_max(bucket, BATCH_BUCKETS)
}

/// A write lock that a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldWriteLock {
    /// Index of the environment.
    pub env: u16,
    /// When it was taken, in `okdb_sys::host::monotonic_ms`.
    pub since_ms: u64,
}

/// What a row said at one moment. Each number is exact, but they are read one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoreRow {
    /// Position in the table.
    pub index: usize,
    /// The process that owns the row; `None` after it has left. A process that was killed stays here
    /// until its row is claimed or swept: [`process::Identity::is_alive`] tells.
    pub owner: Option<process::Identity>,
    /// What the (last) owner is for.
    pub role: Role,
    /// The slot that the (last) owner fills.
    pub slot: Option<u16>,
    /// How far it is in its life.
    pub state: RowState,
    /// When it claimed the row, in `okdb_sys::host::monotonic_ms`.
    pub started_ms: u64,
    /// When its event loop last gave a sign of life, in `okdb_sys::host::monotonic_ms`.
    pub heartbeat_ms: u64,
    /// How late its event loop woke up last, in µs.
    pub loop_lag_us: u64,
    /// Its resident memory.
    pub rss_bytes: u64,
    /// The port of its bus socket; 0 without one.
    pub bus_port: u16,
    /// Datagrams of the bus that were sent.
    pub pokes_sent: u64,
    /// Datagrams that were not, because the peer had not looked since an earlier one.
    pub pokes_skipped: u64,
    /// Valid datagrams received.
    pub pokes_received: u64,
    /// Datagrams that failed a check.
    pub bus_dropped: u64,
    /// Open connections.
    pub connections: u64,
    /// Requests being answered.
    pub in_flight: u64,
    /// Requests answered.
    pub requests: u64,
    /// Of these, with a server error.
    pub errors: u64,
    /// Bytes of request bodies.
    pub bytes_in: u64,
    /// Bytes of response bodies.
    pub bytes_out: u64,
    /// Sum of all latencies, in µs.
    pub latency_total_us: u64,
    /// Requests by latency; see [`latency_bucket`].
    pub latency: [u64; LATENCY_BUCKETS],
    /// Commits of the store.
    pub commits: u64,
    /// Operations in these commits: divided by the commits, the mean batch.
    pub operations: u64,
    /// Commits that were synced to disk.
    pub syncs: u64,
    /// Commits by their operations; see [`batch_bucket`].
    pub batches: [u64; BATCH_BUCKETS],
    /// Write locks being held.
    pub write_locks: Vec<HeldWriteLock>,
}

impl ScoreRow {
    /// Whether its owner lives: only then do its gauges mean anything. Asks the kernel.
    pub(super) fn is_live(&self) -> bool {
        self.owner.is_some_and(|owner| owner.is_alive())
    }

    /// Takes out what a dead owner can no longer have.
    pub(super) fn clear_gauges(&mut self) {
        self.rss_bytes = 0;
        self.connections = 0;
        self.in_flight = 0;
        self.loop_lag_us = 0;
        self.bus_port = 0;
        self.write_locks.clear();
    }

    /// Adds the counters and gauges of another row.
    pub(super) fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.rss_bytes, other.rss_bytes),
            (&mut self.pokes_sent, other.pokes_sent),
            (&mut self.pokes_skipped, other.pokes_skipped),
            (&mut self.pokes_received, other.pokes_received),
            (&mut self.bus_dropped, other.bus_dropped),
            (&mut self.connections, other.connections),
            (&mut self.in_flight, other.in_flight),
            (&mut self.requests, other.requests),
            (&mut self.errors, other.errors),
            (&mut self.bytes_in, other.bytes_in),
            (&mut self.bytes_out, other.bytes_out),
            (&mut self.latency_total_us, other.latency_total_us),
            (&mut self.commits, other.commits),
            (&mut self.operations, other.operations),
            (&mut self.syncs, other.syncs),
        ] {
            *sum = sum.saturating_add(more);
        }
        let latency = self.latency.iter_mut().zip(other.latency);
        for (sum, more) in latency.chain(self.batches.iter_mut().zip(other.batches)) {
            *sum = sum.saturating_add(more);
        }
        self.write_locks.extend(&other.write_locks);
    }
}

pub(super) fn snapshot(index: usize, row: &ScoreWords) -> Option<ScoreRow> {
    let role = Role::from_word(row.role.load(Ordering::Acquire))?;
    let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
    Some(ScoreRow {
        index,
        owner: owner::unpack(read(&row.owner)),
        role,
        slot: read(&row.slot)
            .checked_sub(1)
            .and_then(|slot| u16::try_from(slot).ok()),
        state: RowState::from_word(read(&row.state)),
        started_ms: read(&row.started_ms),
        heartbeat_ms: read(&row.heartbeat_ms),
        loop_lag_us: read(&row.loop_lag_us),
        rss_bytes: read(&row.rss_bytes),
        bus_port: u16::try_from(read(&row.bus_port)).unwrap_or(0),
        pokes_sent: read(&row.pokes_sent),
        pokes_skipped: read(&row.pokes_skipped),
        pokes_received: read(&row.pokes_received),
        bus_dropped: read(&row.bus_dropped),
        connections: read(&row.connections),
        in_flight: read(&row.in_flight),
        requests: read(&row.requests),
        errors: read(&row.errors),
        bytes_in: read(&row.bytes_in),
        bytes_out: read(&row.bytes_out),
        latency_total_us: read(&row.latency_total_us),
        latency: std::array::from_fn(|bucket| row.latency.get(bucket).map_or(0, read)),
        commits: read(&row.commits),
        operations: read(&row.operations),
        syncs: read(&row.syncs),
        batches: std::array::from_fn(|bucket| row.batches.get(bucket).map_or(0, read)),
        write_locks: row.write_locks.iter().map(read).filter_map(held).collect(),
    })
}

pub(super) fn held(word: u64) -> Option<HeldWriteLock> {
    let env = (word >> LOCK_SINCE_BITS).checked_sub(1)?;
    Some(HeldWriteLock {
        env: u16::try_from(env).ok()?,
        since_ms: word & LOCK_SINCE_MASK,
    })
}

// Shifts by a bucket's number must stay within a word.
const _: () = assert!(
    LATENCY_BUCKETS > 0
        && LATENCY_BUCKETS <= u64::BITS as usize
        && BATCH_BUCKETS > 0
        && BATCH_BUCKETS <= u64::BITS as usize
);
