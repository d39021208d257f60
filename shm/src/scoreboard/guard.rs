//! A process's own row, as its owner writes it.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::row::{
    LOCK_SINCE_BITS, LOCK_SINCE_MASK, RowState, ScoreRow, batch_bucket, latency_bucket, snapshot,
};
use crate::layout::{ScoreWords, WRITE_LOCKS_MAX};
use crate::owner;
use crate::segment::Segment;

pub(super) fn reset_gauges(row: &ScoreWords) {
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

/// A process's own row. It is freed on drop; its counters stay for its successor to go on with.
pub struct RowGuard {
    pub(super) segment: Arc<Segment>,
    pub(super) index: usize,
    pub(super) me: u64,
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

    /// The event loop's sign of life, at `now_ms` of `okdb_sys::host::monotonic_ms`, and how late it came.
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
const _: () = assert!(WRITE_LOCKS_MAX > 0);
