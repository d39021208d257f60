//! The scoreboard: one row per process, written by its owner alone, read by everybody.
//!
//! The worker of slot *k* takes row 2*k* or 2*k* + 1, whichever no living process has: during a reload a worker overlaps
//! with its successor. So the counters of a slot, over both rows, go on through all its incarnations. All other
//! processes, and a worker whose two predecessors still live, take a spare row behind the slots' rows.
//! Counters are never reset by anyone, so that totals over all rows never fall; gauges start anew with each
//! owner.

mod guard;
mod row;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use okdb_sys::{host, process};

use crate::layout::{PROCESS_COUNT_MAX, SLOT_COUNT_MAX, SLOT_ROWS};
use crate::owner::{self, ClaimError};
use crate::segment::Segment;

use guard::reset_gauges;
pub use guard::{InFlight, RowGuard, WriteLock};
use row::snapshot;
pub use row::{
    HeldWriteLock, Role, RowState, ScoreRow, batch_bucket, batch_bucket_max, latency_bucket,
    latency_bucket_max_us,
};

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

#[cfg(test)]
#[path = "scoreboard/tests.rs"]
mod tests;
