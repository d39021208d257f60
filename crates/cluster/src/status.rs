//! What is told of a slot: plain data, as it goes into status answers and snapshots.

use std::time::{SystemTime, UNIX_EPOCH};

use okdb_sys::signals::Signal;
use serde::{Deserialize, Serialize};

use crate::machine::{SlotState, WorkerExit};

/// One slot, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlotStatus {
    /// The slot, from 0.
    pub slot: u16,
    /// The pid of its worker, while there is one.
    pub pid: Option<u32>,
    /// When that process started, in clock ticks since boot: with the pid its identity.
    pub start_time: Option<u64>,
    /// The slot's state.
    pub state: SlotState,
    /// How many workers were started in it because another one had died.
    pub restarts: u64,
    /// When its worker was started, in Unix milliseconds.
    pub started_at: Option<u64>,
    /// How its last worker ended.
    pub last_exit: Option<LastExit>,
    /// The last lines of standard error of the worker that `last_exit` is about, oldest first.
    pub last_stderr: Vec<String>,
    /// In state `backoff`: how long the whole wait is, in milliseconds.
    pub backoff_ms: Option<u64>,
    /// Pids of its former workers that finish what they have, after a reload or when it is scaled away.
    pub leaving: Vec<u32>,
    /// Whether the other slots' workers answer its connections.
    pub orphaned: bool,
}

/// How a worker ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastExit {
    /// When, in Unix milliseconds.
    pub at: u64,
    /// Its exit code, if it exited.
    pub code: Option<i32>,
    /// The number of the signal that ended it, if one did.
    pub signal: Option<i32>,
    /// The same in words: `exit code 1`, `signal SIGKILL`, `could not be started: …`.
    pub reason: String,
}

impl LastExit {
    /// Of a worker that ended with `exit` at `at` (Unix milliseconds). `failure` says why one could not
    /// be started.
    #[must_use]
    pub fn new(exit: WorkerExit, at: u64, failure: Option<&str>) -> Self {
        let (code, signal) = match exit {
            WorkerExit::Code(code) => (Some(code), None),
            WorkerExit::Signal { signal, .. } => (None, Some(signal)),
            WorkerExit::NotStarted | WorkerExit::Unknown => (None, None),
        };
        let reason =
            failure.map_or_else(|| exit.to_string(), |failure| format!("{exit}: {failure}"));
        Self {
            at,
            code,
            signal,
            reason,
        }
    }
}

/// The wall clock in Unix milliseconds, for display only: nothing is decided by it.
#[must_use]
pub fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Cuts the `last_stderr` of all slots down to `bytes_max` together, each slot getting an equal share and
/// keeping its newest lines. A snapshot has to fit into one IPC message.
pub fn bound_stderr(slots: &mut [SlotStatus], bytes_max: usize) {
    let speaking = slots
        .iter()
        .filter(|slot| !slot.last_stderr.is_empty())
        .count();
    let share = bytes_max / speaking.max(1);
    for slot in slots {
        let mut left = share;
        let kept = slot
            .last_stderr
            .iter()
            .rev()
            .take_while(|line| {
                let fits = line.len() <= left;
                left = left.saturating_sub(line.len());
                fits
            })
            .count();
        slot.last_stderr.drain(..slot.last_stderr.len() - kept);
    }
}

impl std::fmt::Display for WorkerExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal { signal, core } => {
                match Signal::from_number(signal) {
                    Some(known) => write!(f, "signal {known}")?,
                    None => write!(f, "signal {signal}")?,
                }
                f.write_str(if core { " (core dumped)" } else { "" })
            }
            Self::NotStarted => f.write_str("could not be started"),
            Self::Unknown => f.write_str("ended, and other code took its exit status"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LastExit, SlotStatus, bound_stderr};
    use crate::machine::{SlotState, WorkerExit};
    use proptest::prelude::*;

    fn slot(last_stderr: Vec<String>) -> SlotStatus {
        SlotStatus {
            slot: 0,
            pid: None,
            start_time: None,
            state: SlotState::Backoff,
            restarts: 0,
            started_at: None,
            last_exit: None,
            last_stderr,
            backoff_ms: Some(250),
            leaving: Vec::new(),
            orphaned: false,
        }
    }

    #[test]
    fn exits_are_told_in_words() {
        for (exit, words) in [
            (WorkerExit::Code(1), "exit code 1"),
            (
                WorkerExit::Signal {
                    signal: 9,
                    core: false,
                },
                "signal SIGKILL",
            ),
            (
                WorkerExit::Signal {
                    signal: 6,
                    core: true,
                },
                "signal SIGABRT (core dumped)",
            ),
            (
                WorkerExit::Signal {
                    signal: 11,
                    core: false,
                },
                "signal 11",
            ),
        ] {
            assert_eq!(LastExit::new(exit, 7, None).reason, words);
        }
        let failed = LastExit::new(WorkerExit::NotStarted, 7, Some("no memory"));
        assert_eq!(failed.reason, "could not be started: no memory");
    }

    #[test]
    fn the_newest_lines_are_kept() {
        let mut slots = [slot(vec!["old".into(), "new".into()]), slot(Vec::new())];
        bound_stderr(&mut slots, 5);
        assert_eq!(slots[0].last_stderr, ["new"]);
    }

    proptest! {
        #[test]
        fn the_bound_holds(lines in prop::collection::vec(prop::collection::vec(".{0,20}", 0..5), 0..5), bytes_max in 0..200_usize) {
            let mut slots: Vec<SlotStatus> = lines.iter().cloned().map(slot).collect();
            bound_stderr(&mut slots, bytes_max);
            let total: usize = slots.iter().flat_map(|slot| &slot.last_stderr).map(String::len).sum();
            prop_assert!(total <= bytes_max);
            for (slot, before) in slots.iter().zip(&lines) {
                prop_assert!(before.ends_with(&slot.last_stderr));
            }
        }
    }
}
