//! The supervisor as a pure state machine: (state, event, now) in, actions out.
//!
//! It owns which slot is in which state, when a worker is respawned, given up or killed, when the cluster is ready and
//! when it has ended. It touches no process, descriptor or clock: [`crate::driver`] feeds it events with a monotonic
//! time in milliseconds and carries out what it returns, in order. Any order of events is legal; one that speaks of a
//! worker that is no longer the slot's own is ignored.

mod law;
mod reload;
mod slot;
mod terms;
mod worker;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use crate::exit::ExitCode;
use reload::Reload;
use slot::{Slot, Step};
use worker::{Course, Worker};

pub use law::{
    BACKOFF_FIRST_MS, BACKOFF_MAX_MS, DEATH_WINDOW_MS, DEATHS_IN_WINDOW_MAX, FORGIVING_UPTIME_MS,
    backoff_ms,
};
pub use slot::{SlotState, SlotView, WorkerExit};
pub use terms::{Action, Event, Kill, Refusal, WorkerId};

/// The longest the driver may sleep: the machine wants a [`Event::Tick`] at least this often.
pub const TICK_MS: u64 = 1_000;

/// A gap between two events longer than this means that the primary itself was stopped or starved. That time is not
/// held against the workers: nobody was there to hear them.
pub const STALL_MS: u64 = 3 * TICK_MS;

/// How long after `SIGABRT` a hung worker gets to write its core before `SIGKILL`.
pub const ABORT_GRACE_MS: u64 = 2_000;

/// How long the primary waits for workers that got `SIGKILL` during a stop to be reaped before it ends without them.
pub const REAP_GRACE_MS: u64 = 500;

/// A worker whose event loop has been silent this long does not answer what waits in its slot's queue: the others do,
/// until it speaks again. It beats once a second.
pub const SUSPECT_MS: u64 = 2_500;

/// Slots that a machine holds at most: as many as the segment has rows for, with room for other processes.
pub const SLOT_COUNT_MAX: u16 = 224;

/// The limits that an operator may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// A worker that has not reported Ready this long after its spawn is killed; that is a death. Milliseconds.
    pub start_deadline_ms: u64,
    /// A ready worker whose event loop has been silent this long is hung. Milliseconds.
    pub worker_timeout_ms: u64,
    /// How long a worker that is replaced or scaled away may take to finish what it has. Milliseconds.
    pub drain_timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start_deadline_ms: 30_000,
            worker_timeout_ms: 30_000,
            drain_timeout_ms: 30_000,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    kill_at_ms: u64,
    /// Set when everything left has been sent `SIGKILL`.
    give_up_at_ms: Option<u64>,
    code: ExitCode,
}

/// The state of all slots. What of it outlives an upgrade in place is serialised.
#[derive(Debug, Serialize, Deserialize)]
pub struct Machine {
    limits: Limits,
    slots: Vec<Slot>,
    now_ms: u64,
    /// Rises with every reload; workers of an earlier one are out of date.
    generation: u64,
    #[serde(skip)]
    reload: Option<Reload>,
    #[serde(skip)]
    stop: Option<Stop>,
    ready_reported: bool,
    #[serde(skip)]
    finished: bool,
}

impl Machine {
    /// A machine of `slots` slots, and its first actions: one spawn for each.
    #[must_use]
    pub fn start(slots: NonZeroU16, limits: Limits, now_ms: u64) -> (Self, Vec<Action>) {
        let mut machine = Self {
            limits,
            slots: (0..slots.get().min(SLOT_COUNT_MAX))
                .map(Slot::new)
                .collect(),
            now_ms,
            generation: 0,
            reload: None,
            stop: None,
            ready_reported: false,
            finished: false,
        };
        let mut out = Vec::new();
        for slot in &mut machine.slots {
            slot.spawn(&mut out);
        }
        (machine, out)
    }

    /// Takes one event at `now_ms` (monotonic; a time before an earlier one counts as that one) and says what to do.
    pub fn handle(&mut self, event: Event, now_ms: u64) -> Vec<Action> {
        let mut out = Vec::new();
        if self.finished {
            return out;
        }
        self.advance(now_ms);
        match event {
            Event::Spawned { worker, pid } => self.on_spawned(worker, pid, &mut out),
            Event::SpawnFailed { worker, starved } => {
                self.on_spawn_failed(worker, starved, &mut out);
            }
            Event::Ready { worker } => self.on_ready(worker, &mut out),
            Event::Leaving { worker } => self.on_leaving(worker, &mut out),
            Event::Heartbeat { worker, at_ms } => self.on_heartbeat(worker, at_ms),
            Event::FoundStopped { worker } => self.on_found_stopped(worker, &mut out),
            Event::Exited { worker, exit } => self.on_exited(worker, exit, &mut out),
            Event::StopRequested { grace_ms, code } => self.on_stop(grace_ms, code, &mut out),
            Event::ReloadRequested { limits } => self.on_reload(limits, &mut out),
            Event::AddWorker => self.on_add(&mut out),
            Event::RemoveWorker => self.on_remove(&mut out),
            Event::Tick => self.on_tick(&mut out),
        }
        self.go_on_reloading(&mut out);
        self.conclude(&mut out);
        out
    }

    /// When the next [`Event::Tick`] is due: at the next deadline, and at most [`TICK_MS`] from now.
    #[must_use]
    pub fn next_wake_ms(&self, now_ms: u64) -> u64 {
        let now_ms = now_ms.max(self.now_ms);
        let stop = self
            .stop
            .map(|stop| stop.give_up_at_ms.unwrap_or(stop.kill_at_ms));
        let slots = self
            .slots
            .iter()
            .filter_map(|slot| slot.deadline_ms(&self.limits));
        slots
            .chain(stop)
            .fold(now_ms.saturating_add(TICK_MS), u64::min)
            .max(now_ms)
    }

    /// Whether a stop was requested. From then on no worker is spawned.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stop.is_some()
    }

    /// Whether every slot has a worker that serves, and nothing is under way: the only moment at which the primary
    /// itself may be replaced.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.stop.is_none()
            && self.reload.is_none()
            && self.ready_reported
            && self.slots.iter().all(|slot| {
                slot.successor.is_none() && (slot.is_ready() || slot.is_out() || slot.is_dead())
            })
    }

    /// Whether the cluster has been ready.
    #[must_use]
    pub fn has_been_ready(&self) -> bool {
        self.ready_reported
    }

    /// Whether any worker answers: what a watchdog wants to know.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.slots
            .iter()
            .any(|slot| slot.is_responsive(self.now_ms))
    }

    /// What an operator is told of a slot; `None` if there is no such slot.
    #[must_use]
    pub fn view(&self, slot: u16) -> Option<SlotView> {
        self.slots.get(usize::from(slot)).map(Slot::view)
    }

    /// [`Machine::view`] of every slot, in order.
    pub fn views(&self) -> impl Iterator<Item = SlotView> + '_ {
        self.slots.iter().map(Slot::view)
    }

    /// How many slots shall have a worker.
    #[must_use]
    pub fn wanted(&self) -> u16 {
        let wanted = self.slots.iter().filter(|slot| !slot.is_out()).count();
        u16::try_from(wanted).unwrap_or(u16::MAX)
    }

    /// Moves the time on, and forgives workers a silence that was the primary's own.
    fn advance(&mut self, now_ms: u64) {
        let now_ms = now_ms.max(self.now_ms);
        let gap_ms = now_ms - self.now_ms;
        if gap_ms > STALL_MS {
            for slot in &mut self.slots {
                slot.forgive(gap_ms);
            }
        }
        self.now_ms = now_ms;
    }

    fn slot_mut(&mut self, number: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(number))
    }

    fn on_spawned(&mut self, worker: WorkerId, pid: u32, out: &mut Vec<Action>) {
        let now_ms = self.now_ms;
        let stop_in_ms = self.stop.map(|stop| stop.kill_at_ms.saturating_sub(now_ms));
        let live = Worker::new(worker, pid, self.generation, now_ms);
        if let Some(slot) = self.slot_mut(worker.slot) {
            slot.spawned(live, stop_in_ms, now_ms, out);
        }
    }

    fn on_spawn_failed(&mut self, worker: WorkerId, starved: bool, out: &mut Vec<Action>) {
        let (stopping, now_ms) = (self.stop.is_some(), self.now_ms);
        let step = self
            .slot_mut(worker.slot)
            .map(|slot| slot.spawn_failed(worker, starved, stopping, now_ms, out));
        self.note_step(worker.slot, step);
    }

    fn on_ready(&mut self, worker: WorkerId, out: &mut Vec<Action>) {
        let (drain_timeout_ms, now_ms) = (self.limits.drain_timeout_ms, self.now_ms);
        if let Some(slot) = self.slot_mut(worker.slot) {
            slot.ready(worker, drain_timeout_ms, now_ms, out);
        }
    }

    fn on_leaving(&mut self, worker: WorkerId, out: &mut Vec<Action>) {
        let (drain_timeout_ms, now_ms) = (self.limits.drain_timeout_ms, self.now_ms);
        if let Some(live) = self
            .slot_mut(worker.slot)
            .and_then(|slot| slot.worker_mut(worker))
        {
            live.desert(drain_timeout_ms, now_ms, out);
        }
    }

    fn on_heartbeat(&mut self, worker: WorkerId, at_ms: u64) {
        let at_ms = at_ms.min(self.now_ms);
        if let Some(live) = self
            .slot_mut(worker.slot)
            .and_then(|slot| slot.worker_mut(worker))
        {
            live.heard(at_ms);
        }
    }

    fn on_found_stopped(&mut self, worker: WorkerId, out: &mut Vec<Action>) {
        if let Some(live) = self
            .slot_mut(worker.slot)
            .and_then(|slot| slot.worker_mut(worker))
            && matches!(live.course, Course::Hung { .. })
        {
            live.kill(out);
        }
    }

    fn on_exited(&mut self, worker: WorkerId, exit: WorkerExit, out: &mut Vec<Action>) {
        let (stopping, now_ms) = (self.stop.is_some(), self.now_ms);
        let step = self
            .slot_mut(worker.slot)
            .map(|slot| slot.exited(worker, exit, stopping, now_ms, out));
        self.note_step(worker.slot, step);
    }

    fn note_step(&mut self, slot: u16, step: Option<Step>) {
        if step == Some(Step::SuccessorFailed)
            && let Some(reload) = &mut self.reload
        {
            reload.failed(slot);
        }
    }

    fn on_stop(&mut self, grace_ms: u64, code: ExitCode, out: &mut Vec<Action>) {
        let now_ms = self.now_ms;
        if let Some(stop) = &mut self.stop {
            stop.kill_at_ms = now_ms;
            if stop.code == ExitCode::Clean {
                stop.code = code;
            }
        } else {
            self.stop = Some(Stop {
                kill_at_ms: now_ms.saturating_add(grace_ms),
                give_up_at_ms: None,
                code,
            });
            self.reload = None;
            out.push(Action::ReportStopping);
            for slot in &mut self.slots {
                slot.stop(grace_ms, now_ms, out);
            }
        }
        self.enforce_stop(out);
    }

    fn on_add(&mut self, out: &mut Vec<Action>) {
        if self.stop.is_some() {
            out.push(Action::Refuse {
                refusal: Refusal::Stopping,
            });
            return;
        }
        // One that still drains is as good as empty: its successor overlaps with it as in a reload.
        let place = self
            .slots
            .iter()
            .position(Slot::is_out)
            .or_else(|| self.slots.iter().position(Slot::is_dead));
        let place = match (place, u16::try_from(self.slots.len())) {
            (Some(place), _) => place,
            (None, Ok(number)) if number < SLOT_COUNT_MAX => {
                self.slots.push(Slot::new(number));
                usize::from(number)
            }
            _ => {
                out.push(Action::Refuse {
                    refusal: Refusal::TooMany,
                });
                return;
            }
        };
        if let Some(slot) = self.slots.get_mut(place) {
            out.push(Action::ReportAdded { slot: slot.number });
            slot.revive(out);
        }
    }

    fn on_remove(&mut self, out: &mut Vec<Action>) {
        let (drain_timeout_ms, now_ms) = (self.limits.drain_timeout_ms, self.now_ms);
        let stopping = self.stop.is_some();
        let filled = || {
            self.slots
                .iter()
                .enumerate()
                .filter(|(_, slot)| !slot.is_out() && !slot.is_dead())
        };
        // Who serves is worth more than who does not; of equals the highest goes.
        let place = filled()
            .rev()
            .find(|(_, slot)| !slot.is_ready())
            .or_else(|| filled().next_back())
            .map(|(place, _)| place);
        let others = filled().count() > 1;
        let slot = place.and_then(|place| self.slots.get_mut(place));
        let refusal = match slot {
            _ if stopping => Refusal::Stopping,
            Some(slot) if others => {
                if slot.decommission(drain_timeout_ms, now_ms, out) {
                    out.push(Action::ReportRemoved { slot: slot.number });
                    return;
                }
                Refusal::Busy
            }
            _ => Refusal::LastWorker,
        };
        out.push(Action::Refuse { refusal });
    }

    fn on_tick(&mut self, out: &mut Vec<Action>) {
        let now_ms = self.now_ms;
        let stopping = self.stop.is_some();
        for slot in &mut self.slots {
            slot.tick(&self.limits, stopping, now_ms, out);
        }
        self.enforce_stop(out);
    }

    /// Kills what is left when the grace is over.
    fn enforce_stop(&mut self, out: &mut Vec<Action>) {
        let now_ms = self.now_ms;
        let Some(stop) = &mut self.stop else { return };
        if now_ms < stop.kill_at_ms {
            return;
        }
        stop.give_up_at_ms
            .get_or_insert(now_ms.saturating_add(REAP_GRACE_MS));
        for slot in &mut self.slots {
            slot.kill_all(out);
        }
    }

    /// Says what has become true of the cluster as a whole.
    fn conclude(&mut self, out: &mut Vec<Action>) {
        if let Some(stop) = self.stop {
            let gone = self.slots.iter().all(|slot| !slot.has_processes());
            let given_up = stop.give_up_at_ms.is_some_and(|at_ms| self.now_ms >= at_ms);
            if gone {
                self.finish(stop.code, out);
            } else if given_up {
                self.finish(ExitCode::RuntimeFailure, out);
            }
            return;
        }
        let wanted = self.slots.iter().filter(|slot| !slot.is_out());
        let (mut all, mut ready, mut dead) = (0_usize, 0_usize, 0_usize);
        for slot in wanted {
            all += 1;
            ready += usize::from(slot.is_ready());
            dead += usize::from(slot.is_dead());
        }
        if dead == all {
            if self.slots.iter().any(Slot::has_processes) {
                out.push(Action::StopAllDead);
            } else {
                self.finish(ExitCode::AllSlotsDead, out);
            }
            return;
        }
        if !self.ready_reported && ready > 0 && ready + dead == all {
            self.ready_reported = true;
            out.push(Action::ReportReady);
        }
        if self.ready_reported {
            self.share_out(out);
        }
    }

    /// Lets the others answer for slots that do not answer themselves. Not before the cluster is ready: until then the
    /// queues wait for their own workers, which are on their way.
    fn share_out(&mut self, out: &mut Vec<Action>) {
        let now_ms = self.now_ms;
        for slot in &mut self.slots {
            let orphaned = !slot.is_responsive(now_ms);
            if orphaned != slot.orphaned {
                slot.orphaned = orphaned;
                let slot = slot.number;
                out.push(if orphaned {
                    Action::Orphan { slot }
                } else {
                    Action::Reclaim { slot }
                });
            }
        }
    }

    fn finish(&mut self, code: ExitCode, out: &mut Vec<Action>) {
        self.finished = true;
        out.push(Action::Finished { code });
    }
}
