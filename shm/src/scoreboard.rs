//! The scoreboard: one row per process, written by its owner alone, read by everybody.
//!
//! The worker of slot *k* takes row 2*k* or 2*k* + 1, whichever no living process has: during a reload a worker overlaps
//! with its successor. So the counters of a slot, over both rows, go on through all its incarnations. All other
//! processes, and a worker whose two predecessors still live, take a spare row behind the slots' rows.
//! Counters are never reset by anyone, so that totals over all rows never fall; gauges start anew with each
//! owner.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use okdb_sys::{host, process};

use crate::layout::{
    BATCH_BUCKETS, LATENCY_BUCKETS, PROCESS_COUNT_MAX, SLOT_COUNT_MAX, SLOT_ROWS, ScoreWords,
    WRITE_LOCKS_MAX,
};
use crate::owner::{self, ClaimError};
use crate::segment::Segment;

/// A held write lock is one word: the environment's index + 1 above, the time it was taken below.
const LOCK_SINCE_BITS: u32 = 47;

const LOCK_SINCE_MASK: u64 = (1 << LOCK_SINCE_BITS) - 1;

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
    const ALL: [Self; 5] = [
        Self::Primary,
        Self::Worker,
        Self::Standalone,
        Self::Library,
        Self::Command,
    ];

    const fn to_word(self) -> u64 {
        match self {
            Self::Primary => 1,
            Self::Worker => 2,
            Self::Standalone => 3,
            Self::Library => 4,
            Self::Command => 5,
        }
    }

    fn from_word(word: u64) -> Option<Self> {
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
    const fn to_word(self) -> u64 {
        match self {
            Self::Starting => 1,
            Self::Ready => 2,
            Self::Draining => 3,
        }
    }

    /// Anything unknown reads as not yet ready, the cautious answer.
    const fn from_word(word: u64) -> Self {
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

/// The bucket that counts a latency: bucket 0 up to 1 µs, bucket *i* up to 2^*i* µs, the last one
/// everything above.
#[must_use]
pub const fn latency_bucket(latency_us: u64) -> usize {
    let above = latency_us.saturating_sub(1);
    let bucket = (u64::BITS - above.leading_zeros()) as usize;
    if bucket < LATENCY_BUCKETS {
        bucket
    } else {
        LATENCY_BUCKETS - 1
    }
}

/// The highest latency in µs that `bucket` counts; `None` for the last one, which has no upper bound, and
/// for those that do not exist.
#[must_use]
pub const fn latency_bucket_max_us(bucket: usize) -> Option<u64> {
    if bucket + 1 < LATENCY_BUCKETS {
        Some(1 << bucket)
    } else {
        None
    }
}

/// The bucket that counts a commit of so many operations: bucket 0 up to one, bucket *i* up to 2^*i*, the last one
/// everything above.
#[must_use]
pub const fn batch_bucket(operations: u64) -> usize {
    let above = operations.saturating_sub(1);
    let bucket = (u64::BITS - above.leading_zeros()) as usize;
    if bucket < BATCH_BUCKETS {
        bucket
    } else {
        BATCH_BUCKETS - 1
    }
}

/// The most operations that `bucket` counts; `None` for the last one, which has no upper bound, and for those
/// that do not exist.
#[must_use]
pub const fn batch_bucket_max(bucket: usize) -> Option<u64> {
    if bucket + 1 < BATCH_BUCKETS {
        Some(1 << bucket)
    } else {
        None
    }
}

/// A write lock that a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldWriteLock {
    /// Index of the environment.
    pub env: u16,
    /// When it was taken, in [`host::monotonic_ms`].
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
    /// When it claimed the row, in [`host::monotonic_ms`].
    pub started_ms: u64,
    /// When its event loop last gave a sign of life, in [`host::monotonic_ms`].
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
    fn is_live(&self) -> bool {
        self.owner.is_some_and(|owner| owner.is_alive())
    }

    /// Takes out what a dead owner can no longer have.
    fn clear_gauges(&mut self) {
        self.rss_bytes = 0;
        self.connections = 0;
        self.in_flight = 0;
        self.loop_lag_us = 0;
        self.bus_port = 0;
        self.write_locks.clear();
    }

    /// Adds the counters and gauges of another row.
    fn add(&mut self, other: &Self) {
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

impl Segment {
    /// Takes a row for `identity`: that of `slot` if it fills one and nobody alive has it, else a spare
    /// one. A dead process's row is taken over, and its counters go on.
    ///
    /// # Errors
    /// [`ClaimError::Full`] when living processes hold all rows that would do, [`ClaimError::Slot`] for a
    /// slot beyond [`SLOT_COUNT_MAX`].
    pub fn claim_row(
        self: &Arc<Self>,
        role: Role,
        slot: Option<u16>,
        identity: process::Identity,
    ) -> Result<RowGuard, ClaimError> {
        let me = owner::pack(identity)?;
        let rows = &self.tables().scoreboard;
        let own = match slot {
            Some(slot) if usize::from(slot) >= SLOT_COUNT_MAX => {
                return Err(ClaimError::Slot(slot));
            }
            Some(slot) => rows_of(slot),
            None => 0..0,
        };
        let (index, row) = own
            .chain(SLOT_COUNT_MAX * SLOT_ROWS..PROCESS_COUNT_MAX)
            .filter_map(|index| Some((index, rows.get(index)?)))
            .find(|(_, row)| owner::claim(&row.owner, me, owner::lives).is_ok())
            .ok_or(ClaimError::Full)?;

        row.state
            .store(RowState::Starting.to_word(), Ordering::Relaxed);
        row.slot.store(
            slot.map_or(0, |slot| u64::from(slot) + 1),
            Ordering::Relaxed,
        );
        reset_gauges(row);
        let now = host::monotonic_ms();
        row.started_ms.store(now, Ordering::Relaxed);
        row.heartbeat_ms.store(now, Ordering::Relaxed);
        // Last, since a row without a role is one that was never used.
        row.role.store(role.to_word(), Ordering::Release);
        Ok(RowGuard {
            segment: Arc::clone(self),
            index,
            me,
        })
    }

    /// Every row that was ever used, counters of past owners included.
    pub fn rows(&self) -> impl Iterator<Item = ScoreRow> + '_ {
        let rows = self.tables().scoreboard.iter().enumerate();
        rows.filter_map(|(index, row)| snapshot(index, row))
    }

    /// What a slot's workers have done and do, in one row: counters of all its incarnations, gauges of those that live,
    /// and all else of the latest of them. `None` for a slot that no worker ever filled. Asks the kernel about the owners.
    #[must_use]
    pub fn slot_figures(&self, slot: u16) -> Option<ScoreRow> {
        let rows = self.tables().scoreboard.get(rows_of(slot))?.iter();
        let mut rows: Vec<(bool, ScoreRow)> = rows_of(slot)
            .zip(rows)
            .filter_map(|(index, row)| snapshot(index, row))
            .map(|mut row| {
                let live = row.is_live();
                if !live {
                    row.clear_gauges();
                }
                (live, row)
            })
            .collect();
        // The latest of those that live, else the latest.
        rows.sort_by_key(|(live, row)| (*live, row.started_ms));
        let (_, mut figures) = rows.pop()?;
        for (_, row) in &rows {
            figures.add(row);
        }
        Some(figures)
    }

    /// Frees everything that `identity`, which is this process, seems to own. For a program that has taken another one's
    /// place in its process: pid and start time are the same, so nobody else would ever take its rows for a dead one's.
    /// Call it before claiming anything.
    pub fn forget_predecessor(&self, identity: process::Identity) {
        let Ok(me) = owner::pack(identity) else {
            return;
        };
        let tables = self.tables();
        for row in &tables.scoreboard {
            if row.owner.load(Ordering::Acquire) == me {
                reset_gauges(row);
                owner::release(&row.owner, me);
            }
        }
        for row in &tables.peers {
            if row.owner.load(Ordering::Acquire) == me {
                row.port.store(0, Ordering::Relaxed);
                owner::release(&row.owner, me);
            }
        }
        owner::release(&tables.header.slot_writer.word, me);
    }

    /// Counts reader slots of dead processes that were cleared.
    pub fn note_stale_readers(&self, cleared: u64) {
        let counter = &self.tables().header.stale_readers.word;
        counter.fetch_add(cleared, Ordering::Relaxed);
    }

    /// How many reader slots of dead processes were cleared since the segment was made.
    #[must_use]
    pub fn stale_readers(&self) -> u64 {
        let counter = &self.tables().header.stale_readers.word;
        counter.load(Ordering::Relaxed)
    }

    /// Frees the scoreboard and peer rows of dead processes, so that their gauges stop counting and nobody
    /// pokes them any more; returns how many it freed. Asks the kernel about every owner: for the
    /// supervisor after a death and for slow ticks.
    pub fn sweep(&self) -> usize {
        let Ok(me) = process::Identity::current().map_err(drop) else {
            return 0;
        };
        let Ok(me) = owner::pack(me) else {
            return 0;
        };
        let mut freed = 0;
        for row in &self.tables().scoreboard {
            freed += usize::from(sweep_row(&row.owner, me, || reset_gauges(row)));
        }
        for row in &self.tables().peers {
            freed += usize::from(sweep_row(&row.owner, me, || {
                row.port.store(0, Ordering::Relaxed);
            }));
        }
        freed
    }
}

/// Takes the row of a dead process over, only to clean and free it.
fn sweep_row(owner: &AtomicU64, me: u64, clean: impl FnOnce()) -> bool {
    if owner.load(Ordering::Acquire) == 0 || owner::claim(owner, me, owner::lives).is_err() {
        return false;
    }
    clean();
    owner::release(owner, me);
    true
}

/// The rows of a slot's workers.
fn rows_of(slot: u16) -> Range<usize> {
    let first = usize::from(slot) * SLOT_ROWS;
    first..first + SLOT_ROWS
}

fn reset_gauges(row: &ScoreWords) {
    for gauge in [
        &row.connections,
        &row.in_flight,
        &row.loop_lag_us,
        &row.rss_bytes,
        &row.bus_port,
    ] {
        gauge.store(0, Ordering::Relaxed);
    }
    for lock in &row.write_locks {
        lock.store(0, Ordering::Relaxed);
    }
}

fn snapshot(index: usize, row: &ScoreWords) -> Option<ScoreRow> {
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

fn held(word: u64) -> Option<HeldWriteLock> {
    let env = (word >> LOCK_SINCE_BITS).checked_sub(1)?;
    Some(HeldWriteLock {
        env: u16::try_from(env).ok()?,
        since_ms: word & LOCK_SINCE_MASK,
    })
}

/// A process's own row. It is freed on drop; its counters stay for its successor to go on with.
pub struct RowGuard {
    segment: Arc<Segment>,
    index: usize,
    me: u64,
}

impl RowGuard {
    /// Position in the table.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// What the row says now.
    #[must_use]
    pub fn snapshot(&self) -> Option<ScoreRow> {
        snapshot(self.index, self.words()?)
    }

    /// Counts an answered request; `error` when the server is to blame.
    pub fn record_request(&self, latency_us: u64, error: bool) {
        let Some(row) = self.words() else { return };
        row.requests.fetch_add(1, Ordering::Relaxed);
        row.latency_total_us
            .fetch_add(latency_us, Ordering::Relaxed);
        if let Some(bucket) = row.latency.get(latency_bucket(latency_us)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        if error {
            row.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts bytes of bodies, received and sent.
    pub fn record_bytes(&self, received: u64, sent: u64) {
        let Some(row) = self.words() else { return };
        row.bytes_in.fetch_add(received, Ordering::Relaxed);
        row.bytes_out.fetch_add(sent, Ordering::Relaxed);
    }

    /// Counts one commit of `operations` operations; `synced` when it was flushed to disk.
    pub fn record_commit(&self, operations: u64, synced: bool) {
        let Some(row) = self.words() else { return };
        row.commits.fetch_add(1, Ordering::Relaxed);
        row.operations.fetch_add(operations, Ordering::Relaxed);
        if let Some(bucket) = row.batches.get(batch_bucket(operations)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        if synced {
            row.syncs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts what the process's bus has done since this was called last.
    pub fn record_bus(&self, sent: u64, skipped: u64, received: u64, dropped: u64) {
        let Some(row) = self.words() else { return };
        row.pokes_sent.fetch_add(sent, Ordering::Relaxed);
        row.pokes_skipped.fetch_add(skipped, Ordering::Relaxed);
        row.pokes_received.fetch_add(received, Ordering::Relaxed);
        row.bus_dropped.fetch_add(dropped, Ordering::Relaxed);
    }

    /// Notes how many connections are open.
    pub fn set_connections(&self, open: u64) {
        let Some(row) = self.words() else { return };
        row.connections.store(open, Ordering::Relaxed);
    }

    /// The event loop's sign of life, at `now_ms` of [`host::monotonic_ms`], and how late it came.
    pub fn heartbeat(&self, now_ms: u64, lag_us: u64) {
        let Some(row) = self.words() else { return };
        row.heartbeat_ms.store(now_ms, Ordering::Relaxed);
        row.loop_lag_us.store(lag_us, Ordering::Relaxed);
    }

    /// Notes the process's resident memory.
    pub fn set_rss_bytes(&self, bytes: u64) {
        let Some(row) = self.words() else { return };
        row.rss_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Notes the port of the process's bus socket.
    pub fn set_bus_port(&self, port: u16) {
        let Some(row) = self.words() else { return };
        row.bus_port.store(port.into(), Ordering::Relaxed);
    }

    /// Says how far the process is in its life.
    pub fn set_state(&self, state: RowState) {
        let Some(row) = self.words() else { return };
        row.state.store(state.to_word(), Ordering::Release);
    }

    /// Shows that the process holds the write lock of `env` since `now_ms`, until the guard is dropped.
    /// Beyond [`WRITE_LOCKS_MAX`] at a time it shows nothing.
    pub fn hold_write_lock(&self, env: u16, now_ms: u64) -> WriteLock<'_> {
        let word = (u64::from(env) + 1) << LOCK_SINCE_BITS | (now_ms & LOCK_SINCE_MASK);
        let cell = self.words().and_then(|row| {
            row.write_locks.iter().find(|cell| {
                cell.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            })
        });
        WriteLock { cell }
    }

    fn words(&self) -> Option<&ScoreWords> {
        self.segment.tables().scoreboard.get(self.index)
    }
}

impl Drop for RowGuard {
    fn drop(&mut self) {
        if let Some(row) = self.words() {
            reset_gauges(row);
            owner::release(&row.owner, self.me);
        }
    }
}

/// Shows a held write lock in the row until it is dropped.
#[must_use]
pub struct WriteLock<'a> {
    cell: Option<&'a AtomicU64>,
}

impl Drop for WriteLock<'_> {
    fn drop(&mut self) {
        if let Some(cell) = self.cell {
            cell.store(0, Ordering::Relaxed);
        }
    }
}

/// Counts one request as being answered until it is dropped, however its handler ends. `R` is whatever
/// handle on the row the handler keeps: a reference, an `Arc`, an `Rc`.
#[must_use]
pub struct InFlight<R: Deref<Target = RowGuard>> {
    row: R,
}

impl<R: Deref<Target = RowGuard>> InFlight<R> {
    /// Counts from now on.
    pub fn new(row: R) -> Self {
        if let Some(words) = row.words() {
            words.in_flight.fetch_add(1, Ordering::Relaxed);
        }
        Self { row }
    }

    /// The row.
    pub fn row(&self) -> &RowGuard {
        &self.row
    }
}

impl<R: Deref<Target = RowGuard>> Drop for InFlight<R> {
    fn drop(&mut self) {
        if let Some(words) = self.row.words() {
            words.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

// The number of cells is part of what the documentation of `hold_write_lock` promises.
const _: () = assert!(WRITE_LOCKS_MAX > 0 && LATENCY_BUCKETS <= u64::BITS as usize);

#[cfg(test)]
#[path = "scoreboard/tests.rs"]
mod tests;
