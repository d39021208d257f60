//! One slot: its states as one enum with data, and the steps between them.
//!
//! A slot has one worker that serves it. During a reload it has a second one, the successor, until that one is ready;
//! and those that are finishing what they began, which leave by a deadline.

use serde::{Deserialize, Serialize};

use super::law::Deaths;
use super::worker::{Course, Worker};
use super::{Action, Limits, WorkerId};

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
    /// Scaled away: nobody fills it until a worker is added.
    Decommissioned,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// The slot, from 0.
    pub slot: u16,
    /// The worker that fills it, while there is one.
    pub worker: Option<WorkerId>,
    /// That worker's pid.
    pub pid: Option<u32>,
    /// Its state.
    pub state: SlotState,
    /// How many workers were started in it because another one had died.
    pub restarts: u64,
    /// In state `backoff`: how long the whole wait is. Milliseconds.
    pub backoff_ms: Option<u64>,
    /// Pids of former workers that still finish what they have.
    pub leaving: Vec<u32>,
    /// Whether its connections are answered by the other slots' workers.
    pub orphaned: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Phase {
    /// A spawn was ordered and has not been answered.
    Spawning(WorkerId),
    /// A process exists.
    Live(Worker),
    /// None exists until then.
    Backoff { until_ms: u64, delay_ms: u64 },
    /// None exists, and none will: the server stops.
    Stopped,
    /// None exists until a worker is added.
    Decommissioned,
    /// None exists: the guard gave the slot up.
    Dead,
}

/// The worker that shall take the slot over once it is ready.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Successor {
    Spawning(WorkerId),
    Live(Worker),
}

/// What became of a successor that is gone, or took over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The event was about none of this slot's workers.
    NotMine,
    /// It was, and there is nothing more to tell.
    Taken,
    /// The successor has ended before it was ready.
    SuccessorFailed,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Slot {
    pub(super) number: u16,
    pub(super) phase: Phase,
    pub(super) successor: Option<Successor>,
    pub(super) leaving: Vec<Worker>,
    /// The incarnation that was ordered last.
    incarnation: u64,
    restarts: u64,
    deaths: Deaths,
    /// Whether the others have been told to answer its connections.
    pub(super) orphaned: bool,
}

impl Slot {
    pub(super) fn new(number: u16) -> Self {
        Self {
            number,
            phase: Phase::Decommissioned,
            successor: None,
            leaving: Vec::new(),
            incarnation: 0,
            restarts: 0,
            deaths: Deaths::default(),
            orphaned: false,
        }
    }

    fn changed(&self, out: &mut Vec<Action>) {
        out.push(Action::SlotChanged { slot: self.number });
    }

    fn next_worker(&mut self) -> WorkerId {
        self.incarnation = self.incarnation.saturating_add(1);
        WorkerId {
            slot: self.number,
            incarnation: self.incarnation,
        }
    }

    /// Orders a worker. The caller has made sure that none fills the slot.
    pub(super) fn spawn(&mut self, out: &mut Vec<Action>) {
        debug_assert!(
            !self.is_occupied(),
            "a slot is filled by one worker at most"
        );
        let worker = self.next_worker();
        self.phase = Phase::Spawning(worker);
        out.push(Action::Spawn { worker });
        self.changed(out);
    }

    /// Starts it anew, as if nothing had ever died in it.
    pub(super) fn revive(&mut self, out: &mut Vec<Action>) {
        self.deaths = Deaths::default();
        self.spawn(out);
    }

    /// Orders the worker that shall take over.
    pub(super) fn succeed(&mut self, out: &mut Vec<Action>) {
        debug_assert!(self.successor.is_none(), "one successor at a time");
        let worker = self.next_worker();
        self.successor = Some(Successor::Spawning(worker));
        out.push(Action::Spawn { worker });
    }

    /// Whether nobody fills it, and nobody will without an order.
    pub(super) fn is_out(&self) -> bool {
        matches!(self.phase, Phase::Decommissioned)
    }

    pub(super) fn is_dead(&self) -> bool {
        matches!(self.phase, Phase::Dead)
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(&self.phase, Phase::Live(live) if live.is_serving())
    }

    /// Whether a process fills it, or may come to without a further order.
    fn is_occupied(&self) -> bool {
        matches!(self.phase, Phase::Spawning(_) | Phase::Live(_))
    }

    /// Whether any process of it exists, or may come to without a further order.
    pub(super) fn has_processes(&self) -> bool {
        self.is_occupied() || self.successor.is_some() || !self.leaving.is_empty()
    }

    /// Whether its worker answers what arrives for it.
    pub(super) fn is_responsive(&self, now_ms: u64) -> bool {
        matches!(&self.phase, Phase::Live(live) if live.is_responsive(now_ms))
    }

    fn workers(&self) -> impl Iterator<Item = &Worker> {
        let live = match &self.phase {
            Phase::Live(live) => Some(live),
            _ => None,
        };
        let successor = match &self.successor {
            Some(Successor::Live(live)) => Some(live),
            _ => None,
        };
        live.into_iter().chain(successor).chain(&self.leaving)
    }

    fn workers_mut(&mut self) -> impl Iterator<Item = &mut Worker> {
        let live = match &mut self.phase {
            Phase::Live(live) => Some(live),
            _ => None,
        };
        let successor = match &mut self.successor {
            Some(Successor::Live(live)) => Some(live),
            _ => None,
        };
        live.into_iter().chain(successor).chain(&mut self.leaving)
    }

    pub(super) fn worker_mut(&mut self, id: WorkerId) -> Option<&mut Worker> {
        self.workers_mut().find(|worker| worker.id == id)
    }

    pub(super) fn forgive(&mut self, gap_ms: u64) {
        for worker in self.workers_mut() {
            worker.forgive(gap_ms);
        }
    }

    pub(super) fn deadline_ms(&self, limits: &Limits) -> Option<u64> {
        let respawn = match &self.phase {
            Phase::Backoff { until_ms, .. } => Some(*until_ms),
            Phase::Live(live) if live.is_serving() && !self.orphaned => Some(live.suspect_at_ms()),
            _ => None,
        };
        self.workers()
            .filter_map(|worker| worker.deadline_ms(limits))
            .chain(respawn)
            .min()
    }

    /// An ordered process exists.
    pub(super) fn spawned(
        &mut self,
        mut worker: Worker,
        stop_in_ms: Option<u64>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let id = worker.id;
        // The stop may have come between the order and its answer.
        if let Some(grace_ms) = stop_in_ms {
            worker.leave(grace_ms, now_ms, out);
        }
        if matches!(self.phase, Phase::Spawning(expected) if expected == id) {
            self.phase = Phase::Live(worker);
        } else if matches!(self.successor, Some(Successor::Spawning(expected)) if expected == id) {
            self.successor = Some(Successor::Live(worker));
        } else {
            return;
        }
        self.changed(out);
    }

    /// An ordered process could not be made.
    pub(super) fn spawn_failed(
        &mut self,
        id: WorkerId,
        starved: bool,
        stopping: bool,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Step {
        let exit = WorkerExit::NotStarted;
        if matches!(self.phase, Phase::Spawning(expected) if expected == id) {
            self.bury(id, exit, starved, stopping, now_ms, out);
            Step::Taken
        } else if matches!(self.successor, Some(Successor::Spawning(expected)) if expected == id) {
            self.successor = None;
            out.push(Action::ReportDeath {
                worker: id,
                pid: None,
                exit,
            });
            self.changed(out);
            Step::SuccessorFailed
        } else {
            Step::NotMine
        }
    }

    /// A worker serves. A successor takes over; who served until now finishes within `drain_timeout_ms`.
    pub(super) fn ready(
        &mut self,
        id: WorkerId,
        drain_timeout_ms: u64,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if let Some(Successor::Live(successor)) = &mut self.successor
            && successor.id == id
        {
            if successor.ready(now_ms)
                && let Some(Successor::Live(successor)) = self.successor.take()
                && let Phase::Live(mut old) =
                    std::mem::replace(&mut self.phase, Phase::Live(successor))
            {
                old.leave(drain_timeout_ms, now_ms, out);
                self.leaving.push(old);
                self.changed(out);
            }
            return;
        }
        if let Phase::Live(live) = &mut self.phase
            && live.id == id
            && live.ready(now_ms)
        {
            self.changed(out);
        }
    }

    /// A process was reaped.
    pub(super) fn exited(
        &mut self,
        id: WorkerId,
        exit: WorkerExit,
        stopping: bool,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Step {
        if let Some(place) = self.leaving.iter().position(|worker| worker.id == id) {
            let worker = self.leaving.swap_remove(place);
            // One that did not end by itself, whoever killed it, may have left something behind.
            if !worker.asked() || exit != WorkerExit::Code(0) {
                out.push(Action::ReportDeath {
                    worker: id,
                    pid: Some(worker.pid),
                    exit,
                });
            }
            self.changed(out);
            return Step::Taken;
        }
        if let Some(Successor::Live(successor)) = &self.successor
            && successor.id == id
        {
            out.push(Action::ReportDeath {
                worker: id,
                pid: Some(successor.pid),
                exit,
            });
            self.successor = None;
            self.changed(out);
            return Step::SuccessorFailed;
        }
        if matches!(&self.phase, Phase::Live(live) if live.id == id) {
            self.bury(id, exit, false, stopping, now_ms, out);
            return Step::Taken;
        }
        Step::NotMine
    }

    /// Who filled the slot is gone. `starved`: for lack of something that the whole host is short of, which says nothing
    /// about the slot. `stopping`: the server stops, so nothing follows.
    fn bury(
        &mut self,
        worker: WorkerId,
        exit: WorkerExit,
        starved: bool,
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
        let asked = live.is_some_and(|live| matches!(live.course, Course::Draining { .. }));
        let death = Action::ReportDeath { worker, pid, exit };
        if stopping {
            self.phase = Phase::Stopped;
            if !asked {
                out.push(death);
            }
            self.changed(out);
            return;
        }
        out.push(death);
        let uptime_ms = ready_at_ms.map_or(0, |at_ms| now_ms.saturating_sub(at_ms));
        let verdict = if starved {
            Some(self.deaths.delay(0))
        } else {
            self.deaths.note(now_ms, uptime_ms)
        };
        match (self.successor.take(), verdict) {
            // The one that should have taken over is on its way: it fills the slot at once.
            (Some(Successor::Spawning(id)), _) => self.phase = Phase::Spawning(id),
            (Some(Successor::Live(successor)), _) => self.phase = Phase::Live(successor),
            (None, Some(delay_ms)) => {
                self.phase = Phase::Backoff {
                    until_ms: now_ms.saturating_add(delay_ms),
                    delay_ms,
                };
            }
            (None, None) => {
                self.phase = Phase::Dead;
                out.push(Action::ReportDead { slot: self.number });
            }
        }
        self.changed(out);
    }

    /// The server stops: no further worker, and all present ones are asked to leave within `grace_ms`.
    pub(super) fn stop(&mut self, grace_ms: u64, now_ms: u64, out: &mut Vec<Action>) {
        for worker in self.workers_mut() {
            worker.leave(grace_ms, now_ms, out);
        }
        if let Phase::Backoff { .. } = self.phase {
            self.phase = Phase::Stopped;
            self.changed(out);
        }
    }

    /// Nobody shall fill the slot any more; who does finishes within `drain_timeout_ms`. False when a process is just
    /// being made for it: the order has to be repeated when that is settled.
    pub(super) fn decommission(
        &mut self,
        drain_timeout_ms: u64,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> bool {
        if matches!(self.phase, Phase::Spawning(_))
            || matches!(self.successor, Some(Successor::Spawning(_)))
        {
            return false;
        }
        if let Phase::Live(live) = std::mem::replace(&mut self.phase, Phase::Decommissioned) {
            self.leaving.push(live);
        }
        if let Some(Successor::Live(successor)) = self.successor.take() {
            self.leaving.push(successor);
        }
        for worker in &mut self.leaving {
            worker.leave(drain_timeout_ms, now_ms, out);
        }
        self.changed(out);
        true
    }

    pub(super) fn kill_all(&mut self, out: &mut Vec<Action>) {
        for worker in self.workers_mut() {
            worker.kill(out);
        }
    }

    pub(super) fn tick(
        &mut self,
        limits: &Limits,
        stopping: bool,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        for worker in self.workers_mut() {
            worker.tick(limits, now_ms, out);
        }
        if let Phase::Backoff { until_ms, .. } = self.phase
            && !stopping
            && now_ms >= until_ms
        {
            self.restarts = self.restarts.saturating_add(1);
            self.spawn(out);
        }
    }

    pub(super) fn view(&self) -> SlotView {
        let (worker, state, backoff_ms) = match &self.phase {
            Phase::Spawning(_) => (None, SlotState::Starting, None),
            Phase::Live(live) => {
                let state = match (live.course, live.ready_at_ms) {
                    (Course::Serving, None) => SlotState::Starting,
                    (Course::Serving, Some(_)) => SlotState::Ready,
                    (
                        Course::Draining { .. }
                        | Course::Deserting { .. }
                        | Course::Hung { .. }
                        | Course::Killed { .. },
                        _,
                    ) => SlotState::Draining,
                };
                (Some(live), state, None)
            }
            Phase::Backoff { delay_ms, .. } => (None, SlotState::Backoff, Some(*delay_ms)),
            Phase::Stopped => (None, SlotState::Draining, None),
            Phase::Decommissioned => (None, SlotState::Decommissioned, None),
            Phase::Dead => (None, SlotState::Dead, None),
        };
        SlotView {
            slot: self.number,
            worker: worker.map(|worker| worker.id),
            pid: worker.map(|worker| worker.pid),
            state,
            restarts: self.restarts,
            backoff_ms,
            leaving: self.leaving.iter().map(|worker| worker.pid).collect(),
            orphaned: self.orphaned,
        }
    }
}
