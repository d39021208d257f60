//! One slot: its states as one enum with data, and the steps between them.

use super::law::Deaths;
use super::{ABORT_GRACE_MS, Action, Kill, Limits, WorkerId};
use serde::{Deserialize, Serialize};

/// The state of a slot as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlotState {
    /// A worker was started and has not reported Ready.
    Starting,
    /// A worker serves.
    Ready,
    /// The worker died; the next one waits its turn.
    Backoff,
    /// The worker is leaving, or has left because the server stops.
    Draining,
    /// Given up by the crash-loop guard.
    Dead,
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkerExit {
    /// It exited with this status.
    Code(i32),
    /// A signal ended it.
    Signal {
        /// The signal's number.
        signal: i32,
        /// Whether a core was dumped.
        core: bool,
    },
    /// It could not be started.
    NotStarted,
    /// It is gone, but other code of this process took its exit status.
    Unknown,
}

/// What is shown of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// The slot, from 0.
    pub slot: u16,
    /// The pid of its worker, while there is one.
    pub pid: Option<u32>,
    /// Its state.
    pub state: SlotState,
    /// How many workers it has had beyond the first.
    pub restarts: u64,
    /// In state `backoff`: how long the whole wait is. Milliseconds.
    pub backoff_ms: Option<u64>,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// A spawn was ordered and has not been answered.
    Spawning(WorkerId),
    /// A process exists.
    Live(Worker),
    /// None exists until then.
    Backoff { until_ms: u64, delay_ms: u64 },
    /// None exists, and none will: the server stops.
    Stopped,
    /// None exists, and none will: the guard gave the slot up.
    Dead,
}

/// Where a live worker is heading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// Starting or serving.
    Serving,
    /// Asked to leave.
    Draining,
    /// Sent `SIGABRT`.
    Hung { kill_at_ms: u64 },
    /// Sent `SIGKILL`; nothing more can be done.
    Killed,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) id: WorkerId,
    pub(super) pid: u32,
    /// When the start deadline began. Moved on by [`Slot::forgive`].
    pub(super) started_at_ms: u64,
    pub(super) ready_at_ms: Option<u64>,
    /// When its event loop last spoke. Moved on by [`Slot::forgive`].
    pub(super) heard_at_ms: u64,
    pub(super) course: Course,
}

impl Worker {
    pub(super) fn new(id: WorkerId, pid: u32, now_ms: u64) -> Self {
        Self {
            id,
            pid,
            started_at_ms: now_ms,
            ready_at_ms: None,
            heard_at_ms: now_ms,
            course: Course::Serving,
        }
    }

    pub(super) fn leave(&mut self, grace_ms: u64, out: &mut Vec<Action>) {
        if self.course == Course::Serving {
            self.course = Course::Draining;
            out.push(Action::Drain {
                worker: self.id,
                grace_ms,
            });
            out.push(Action::SlotChanged { slot: self.id.slot });
        }
    }

    pub(super) fn kill(&mut self, out: &mut Vec<Action>) {
        if self.course != Course::Killed {
            self.course = Course::Killed;
            out.push(Action::Signal {
                worker: self.id,
                kill: Kill::Kill,
            });
            out.push(Action::SlotChanged { slot: self.id.slot });
        }
    }

    /// When the machine must look at this worker again.
    fn deadline_ms(&self, limits: &Limits) -> Option<u64> {
        match (self.course, self.ready_at_ms) {
            (Course::Serving, None) => {
                Some(self.started_at_ms.saturating_add(limits.start_deadline_ms))
            }
            (Course::Serving, Some(_)) => {
                Some(self.heard_at_ms.saturating_add(limits.worker_timeout_ms))
            }
            (Course::Hung { kill_at_ms }, _) => Some(kill_at_ms),
            (Course::Draining | Course::Killed, _) => None,
        }
    }

    fn tick(&mut self, limits: &Limits, now_ms: u64, out: &mut Vec<Action>) {
        if self.deadline_ms(limits).is_none_or(|at_ms| now_ms < at_ms) {
            return;
        }
        if self.course == Course::Serving && self.ready_at_ms.is_some() {
            self.course = Course::Hung {
                kill_at_ms: now_ms.saturating_add(ABORT_GRACE_MS),
            };
            out.push(Action::Signal {
                worker: self.id,
                kill: Kill::Abort,
            });
            out.push(Action::SlotChanged { slot: self.id.slot });
        } else {
            self.kill(out);
        }
    }
}

#[derive(Debug)]
pub(super) struct Slot {
    number: u16,
    pub(super) phase: Phase,
    /// The incarnation that was ordered last.
    incarnation: u64,
    deaths: Deaths,
}

impl Slot {
    pub(super) fn new(number: u16) -> Self {
        Self {
            number,
            phase: Phase::Stopped,
            incarnation: 0,
            deaths: Deaths::default(),
        }
    }

    /// Orders the next worker. The caller has made sure that there is none.
    pub(super) fn spawn(&mut self, out: &mut Vec<Action>) {
        debug_assert!(!self.is_occupied(), "a slot has one worker at most");
        self.incarnation = self.incarnation.saturating_add(1);
        let worker = WorkerId {
            slot: self.number,
            incarnation: self.incarnation,
        };
        self.phase = Phase::Spawning(worker);
        out.push(Action::Spawn { worker });
    }

    pub(super) fn is_spawning(&self, worker: WorkerId) -> bool {
        matches!(self.phase, Phase::Spawning(expected) if expected == worker)
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(&self.phase, Phase::Live(live) if live.course == Course::Serving && live.ready_at_ms.is_some())
    }

    /// Whether a process exists, or may come to exist without a further order.
    pub(super) fn is_occupied(&self) -> bool {
        matches!(self.phase, Phase::Spawning(_) | Phase::Live(_))
    }

    pub(super) fn forgive(&mut self, gap_ms: u64) {
        if let Phase::Live(live) = &mut self.phase {
            live.started_at_ms = live.started_at_ms.saturating_add(gap_ms);
            live.heard_at_ms = live.heard_at_ms.saturating_add(gap_ms);
        }
    }

    pub(super) fn deadline_ms(&self, limits: &Limits) -> Option<u64> {
        match &self.phase {
            Phase::Live(live) => live.deadline_ms(limits),
            Phase::Backoff { until_ms, .. } => Some(*until_ms),
            Phase::Spawning(_) | Phase::Stopped | Phase::Dead => None,
        }
    }

    /// Its worker is gone. `stopping`: the server stops, so nothing follows.
    pub(super) fn bury(
        &mut self,
        worker: WorkerId,
        exit: WorkerExit,
        stopping: bool,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let live = match &self.phase {
            Phase::Live(live) => Some(live),
            _ => None,
        };
        let pid = live.map(|live| live.pid);
        let ready_at_ms = live.and_then(|live| live.ready_at_ms);
        let asked = live.is_some_and(|live| live.course == Course::Draining);
        let death = Action::ReportDeath { worker, pid, exit };
        if stopping {
            self.phase = Phase::Stopped;
            if !asked {
                out.push(death);
            }
            out.push(Action::SlotChanged { slot: self.number });
            return;
        }
        out.push(death);
        let uptime_ms = ready_at_ms.map_or(0, |at_ms| now_ms.saturating_sub(at_ms));
        if let Some(delay_ms) = self.deaths.note(now_ms, uptime_ms) {
            self.phase = Phase::Backoff {
                until_ms: now_ms.saturating_add(delay_ms),
                delay_ms,
            };
        } else {
            self.phase = Phase::Dead;
            out.push(Action::ReportDead { slot: self.number });
        }
        out.push(Action::SlotChanged { slot: self.number });
    }

    /// The server stops: no further worker, and the present one is asked to leave within `grace_ms`.
    pub(super) fn stop(&mut self, grace_ms: u64, out: &mut Vec<Action>) {
        match &mut self.phase {
            Phase::Live(live) => live.leave(grace_ms, out),
            Phase::Backoff { .. } => {
                self.phase = Phase::Stopped;
                out.push(Action::SlotChanged { slot: self.number });
            }
            Phase::Spawning(_) | Phase::Stopped | Phase::Dead => {}
        }
    }

    pub(super) fn tick(
        &mut self,
        limits: &Limits,
        stopping: bool,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        match &mut self.phase {
            Phase::Live(live) => live.tick(limits, now_ms, out),
            Phase::Backoff { until_ms, .. } if !stopping && now_ms >= *until_ms => {
                self.spawn(out);
                out.push(Action::SlotChanged { slot: self.number });
            }
            _ => {}
        }
    }

    pub(super) fn view(&self) -> SlotView {
        let (pid, state, backoff_ms) = match &self.phase {
            Phase::Spawning(_) => (None, SlotState::Starting, None),
            Phase::Live(live) => {
                let state = match (live.course, live.ready_at_ms) {
                    (Course::Serving, None) => SlotState::Starting,
                    (Course::Serving, Some(_)) => SlotState::Ready,
                    (Course::Draining | Course::Hung { .. } | Course::Killed, _) => {
                        SlotState::Draining
                    }
                };
                (Some(live.pid), state, None)
            }
            Phase::Backoff { delay_ms, .. } => (None, SlotState::Backoff, Some(*delay_ms)),
            Phase::Stopped => (None, SlotState::Draining, None),
            Phase::Dead => (None, SlotState::Dead, None),
        };
        let restarts = self.incarnation.saturating_sub(1);
        SlotView {
            slot: self.number,
            pid,
            state,
            restarts,
            backoff_ms,
        }
    }
}
