//! What a root's segment shows at one moment, as the status and the doctor look at it: slots, processes, and what is wrong
//! with them. Nothing is asked of the server, so that one which does not answer is shown as well.

use std::path::{Path, PathBuf};

use okdb::store::{EnvInfo, Options, Role, Store, server_pid};
use okdb_cluster::machine::SUSPECT_MS;
use okdb_shm::{ScoreRow, SlotRow, SlotState};
use okdb_sys::{Identity, host::monotonic_ms};

use crate::output::Failure;

/// How long a write lock may be held before it is worth a line. A commit takes milliseconds. Milliseconds.
const LOCK_MS_MAX: u64 = 1_000;

/// The root at one moment.
pub(crate) struct View {
    pub(crate) root: PathBuf,
    /// Of the primary, or of the process that serves alone.
    pub(crate) server: u32,
    /// In the monotonic clock.
    pub(crate) now_ms: u64,
    pub(crate) uptime_ms: Option<u64>,
    pub(crate) slots: Vec<Slot>,
    /// Processes of the root, the server's among them.
    pub(crate) processes: Vec<Process>,
    pub(crate) locks: Vec<Lock>,
    pub(crate) envs: Vec<EnvInfo>,
    /// Everything that was counted since the segment was made, whoever did it.
    pub(crate) totals: Totals,
    pub(crate) stale_readers: u64,
}

/// A slot, or the process that serves without any.
pub(crate) struct Slot {
    pub(crate) number: u16,
    pub(crate) state: &'static str,
    pub(crate) worker: Option<Identity>,
    pub(crate) restarts: u64,
    pub(crate) uptime_ms: Option<u64>,
    pub(crate) backoff_ms: Option<u64>,
    pub(crate) last_exit: Option<String>,
    pub(crate) figures: Option<ScoreRow>,
    pub(crate) trouble: Option<Trouble>,
    /// Given up by the crash-loop guard.
    pub(crate) is_dead: bool,
}

/// What is wrong with a worker that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// By a signal or a debugger.
    Stopped,
    /// Its event loop has given no sign for so long. Milliseconds.
    Silent(u64),
}

/// A process of the root.
pub(crate) struct Process {
    pub(crate) identity: Identity,
    pub(crate) role: okdb_shm::Role,
    pub(crate) slot: Option<u16>,
    pub(crate) uptime_ms: u64,
    pub(crate) is_stopped: bool,
}

/// A write lock that is held for longer than a commit takes.
pub(crate) struct Lock {
    pub(crate) env: String,
    pub(crate) held_ms: u64,
    pub(crate) pid: u32,
    pub(crate) role: okdb_shm::Role,
    pub(crate) slot: Option<u16>,
    pub(crate) is_stopped: bool,
}

/// Counters of all processes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) operations: u64,
    pub(crate) latency: [u64; okdb_shm::LATENCY_BUCKETS],
}

impl View {
    /// Looks at a root; `None` if nobody serves it. The root is not kept open.
    pub(crate) fn take(root: &Path) -> Result<Option<Self>, Failure> {
        // Nothing is opened for a root that nobody serves: looking must not make anything.
        let Some(server) = server_pid(root) else {
            return Ok(None);
        };
        let options = Options {
            role: Role::Tool,
            ..Options::default()
        };
        let store = Store::open(root, options)?;
        Self::of(&store, server).map(Some)
    }

    /// The same of a root that is open.
    pub(crate) fn of(store: &Store, server: u32) -> Result<Self, Failure> {
        let segment = store.segment();
        let now_ms = monotonic_ms();
        let rows: Vec<ScoreRow> = segment.rows().collect();
        let mut slots: Vec<Slot> = segment
            .slots()
            .map(|(number, row)| {
                Slot::supervised(number, &row, segment.slot_figures(number), now_ms)
            })
            .collect();
        if slots.is_empty() {
            slots.extend(rows.iter().filter_map(|row| Slot::alone(row, now_ms)));
        }
        let started_ms = rows
            .iter()
            .filter(|row| row.owner.is_some_and(|owner| owner.pid == server))
            .map(|row| row.started_ms)
            .min();
        Ok(Self {
            root: store.root().to_owned(),
            server,
            now_ms,
            uptime_ms: started_ms.map(|since| now_ms.saturating_sub(since)),
            processes: processes(&rows, now_ms),
            locks: locks(store, &rows, now_ms)?,
            totals: Totals::of(&rows),
            envs: store.envs()?,
            stale_readers: segment.stale_readers(),
            slots,
        })
    }

    /// Whether there are workers, or one process that does everything.
    pub(crate) fn is_cluster(&self) -> bool {
        self.processes
            .iter()
            .any(|process| process.role == okdb_shm::Role::Primary)
    }

    /// Everything that somebody should look after, one line each.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let slots = self.slots.iter().filter_map(Slot::complaint);
        slots
            .chain(self.locks.iter().map(Lock::complaint))
            .collect()
    }
}

impl Slot {
    fn supervised(number: u16, row: &SlotRow, figures: Option<ScoreRow>, now_ms: u64) -> Self {
        let since = |ms: u64| now_ms.saturating_sub(ms);
        Self {
            number,
            state: row.state.name(),
            worker: row.worker,
            restarts: row.restarts,
            uptime_ms: row.started_ms.filter(|_| row.worker.is_some()).map(since),
            backoff_ms: row
                .backoff_until_ms
                .map(|until| until.saturating_sub(now_ms)),
            last_exit: row.last_exit.map(|exit| exit.to_string()),
            trouble: row
                .worker
                .filter(|_| row.state == SlotState::Ready)
                .and_then(|worker| trouble(worker, figures.as_ref(), now_ms)),
            figures,
            is_dead: row.state == SlotState::Dead,
        }
    }

    fn alone(row: &ScoreRow, now_ms: u64) -> Option<Self> {
        let worker = row.owner.filter(Identity::is_alive)?;
        (row.role == okdb_shm::Role::Standalone).then(|| Self {
            number: 0,
            state: row.state.name(),
            worker: Some(worker),
            restarts: 0,
            uptime_ms: Some(now_ms.saturating_sub(row.started_ms)),
            backoff_ms: None,
            last_exit: None,
            trouble: trouble(worker, Some(row), now_ms),
            figures: Some(row.clone()),
            is_dead: false,
        })
    }

    /// What to say of it if something is wrong.
    fn complaint(&self) -> Option<String> {
        let number = self.number;
        if self.is_dead {
            let exit = self.last_exit.as_deref().unwrap_or("unknown");
            return Some(format!(
                "slot {number} was given up after too many deaths, the last one by {exit}: see the log, then reload (SIGHUP)"
            ));
        }
        let pid = self.worker?.pid;
        match self.trouble? {
            Trouble::Stopped => Some(format!(
                "slot {number}: worker {pid} is stopped; the others answer for it: continue it (SIGCONT), or end it"
            )),
            Trouble::Silent(ms) => Some(format!(
                "slot {number}: worker {pid} has been silent for {}; the others answer for it until it is replaced",
                seconds(ms)
            )),
        }
    }
}

/// What is wrong with a worker that should serve.
fn trouble(worker: Identity, figures: Option<&ScoreRow>, now_ms: u64) -> Option<Trouble> {
    if is_stopped(worker) {
        return Some(Trouble::Stopped);
    }
    let figures = figures.filter(|row| row.owner == Some(worker))?;
    let silent_ms = now_ms.saturating_sub(figures.heartbeat_ms);
    (figures.heartbeat_ms > 0 && silent_ms > SUSPECT_MS).then_some(Trouble::Silent(silent_ms))
}

/// By a signal, or by a debugger.
fn is_stopped(process: Identity) -> bool {
    matches!(process.state(), Some('T' | 't'))
}

impl Lock {
    fn complaint(&self) -> String {
        let slot = self
            .slot
            .map_or_else(String::new, |slot| format!(" of slot {slot}"));
        let (is, remedy) = if self.is_stopped {
            (", which is stopped,", ": continue it (SIGCONT), or end it")
        } else {
            ("", "")
        };
        format!(
            "writes to environment {} wait: the {}{slot}, pid {}{is} has held its write lock for {}{remedy}",
            self.env,
            self.role.name(),
            self.pid,
            seconds(self.held_ms)
        )
    }
}

fn processes(rows: &[ScoreRow], now_ms: u64) -> Vec<Process> {
    rows.iter()
        .filter_map(|row| {
            let identity = row.owner.filter(Identity::is_alive)?;
            Some(Process {
                identity,
                role: row.role,
                slot: row.slot,
                uptime_ms: now_ms.saturating_sub(row.started_ms),
                is_stopped: is_stopped(identity),
            })
        })
        .collect()
}

fn locks(store: &Store, rows: &[ScoreRow], now_ms: u64) -> Result<Vec<Lock>, Failure> {
    let mut locks = Vec::new();
    for row in rows {
        let Some(owner) = row.owner.filter(Identity::is_alive) else {
            continue;
        };
        for held in &row.write_locks {
            let held_ms = now_ms.saturating_sub(held.since_ms);
            if held_ms < LOCK_MS_MAX {
                continue;
            }
            locks.push(Lock {
                env: env_name(store, held.env)?,
                held_ms,
                pid: owner.pid,
                role: row.role,
                slot: row.slot,
                is_stopped: is_stopped(owner),
            });
        }
    }
    Ok(locks)
}

/// The name of an environment by its place in the segment.
fn env_name(store: &Store, index: u16) -> Result<String, Failure> {
    for name in store.env_names()? {
        if store.env(&name)?.index() == index {
            return Ok(name);
        }
    }
    Ok(format!("number {index}"))
}

impl Totals {
    fn of(rows: &[ScoreRow]) -> Self {
        let mut totals = Self::default();
        for row in rows {
            totals.requests += row.requests;
            totals.operations += row.operations;
            for (sum, count) in totals.latency.iter_mut().zip(row.latency) {
                *sum += count;
            }
        }
        totals
    }

    /// What came since `earlier`. Counters of a new segment begin again.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut grown = *self;
        if self.requests < earlier.requests || self.operations < earlier.operations {
            return grown;
        }
        grown.requests -= earlier.requests;
        grown.operations -= earlier.operations;
        for (count, before) in grown.latency.iter_mut().zip(earlier.latency) {
            *count = count.saturating_sub(before);
        }
        grown
    }

    /// The latency that `percent` of the requests did not exceed, in µs, interpolated within its bucket; `None` without
    /// requests.
    pub(crate) fn percentile_us(&self, percent: u64) -> Option<u64> {
        let count: u64 = self.latency.iter().sum();
        // The rank, rounded up: of one request every percentile is that one.
        let rank = (count * percent).div_ceil(100);
        if rank == 0 {
            return None;
        }
        let mut below = 0;
        for (bucket, here) in self.latency.iter().enumerate() {
            if below + here >= rank {
                let low = bucket
                    .checked_sub(1)
                    .and_then(okdb_shm::latency_bucket_max_us);
                let low = low.unwrap_or(0);
                // The last bucket is open: its lower bound is all that is known.
                let high = okdb_shm::latency_bucket_max_us(bucket).unwrap_or(low);
                return Some(low + (high - low) * (rank - below) / here);
            }
            below += here;
        }
        None
    }
}

/// A short time for people.
pub(crate) fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

    use super::*;

    fn totals(latencies_us: &[u64]) -> Totals {
        let mut totals = Totals::default();
        for latency in latencies_us {
            totals.requests += 1;
            totals.latency[okdb_shm::latency_bucket(*latency)] += 1;
        }
        totals
    }

    #[test]
    fn percentiles_lie_in_the_bucket_of_their_rank() {
        assert_eq!(totals(&[]).percentile_us(50), None);
        let one = totals(&[100]);
        for percent in [1, 50, 99, 100] {
            let value = one.percentile_us(percent).unwrap();
            assert!((64..=128).contains(&value), "{value}");
        }
        let mut latencies = vec![10; 98];
        latencies.extend([5_000, 5_000]);
        let many = totals(&latencies);
        assert!(many.percentile_us(50).unwrap() <= 16);
        assert!(many.percentile_us(98).unwrap() <= 16);
        assert!((4_096..=8_192).contains(&many.percentile_us(99).unwrap()));
        // Beyond the last bound there is no upper one.
        assert!(totals(&[u64::MAX]).percentile_us(50).is_some());
    }

    #[test]
    fn what_came_in_between_is_the_difference_unless_counting_began_again() {
        let before = totals(&[10, 10]);
        let after = totals(&[10, 10, 5_000]);
        let between = after.since(&before);
        assert_eq!(between.requests, 1);
        assert!(between.percentile_us(50).unwrap() > 4_096);
        assert_eq!(before.since(&after).requests, 2);
    }
}
