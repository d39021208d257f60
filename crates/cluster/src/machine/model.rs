//! Random histories, legal and absurd, against what must always hold.

use std::collections::HashMap;
use std::num::NonZeroU16;

use proptest::prelude::*;

use super::{
    Action, BACKOFF_FIRST_MS, BACKOFF_MAX_MS, Event, Kill, Limits, Machine, SlotState, WorkerExit,
    WorkerId, backoff_ms,
};
use crate::exit::ExitCode;

#[derive(Clone, Debug)]
enum Step {
    /// Time passes.
    Wait(u64),
    /// The pending spawn of this slot is answered.
    Answer {
        slot: u16,
        works: bool,
    },
    /// The slot's worker says or does something.
    Ready(u16),
    Heartbeat(u16, u64),
    FoundStopped(u16),
    Exit(u16, WorkerExit),
    Stop(u64),
    /// An event that no driver would send.
    Absurd(Event),
}

fn exits() -> impl Strategy<Value = WorkerExit> {
    prop_oneof![
        any::<i32>().prop_map(WorkerExit::Code),
        (1..64_i32, any::<bool>()).prop_map(|(signal, core)| WorkerExit::Signal { signal, core }),
    ]
}

fn absurd() -> impl Strategy<Value = Event> {
    let worker =
        (0..6_u16, 0..4_u64).prop_map(|(slot, incarnation)| WorkerId { slot, incarnation });
    prop_oneof![
        worker
            .clone()
            .prop_map(|worker| Event::Spawned { worker, pid: 1 }),
        worker
            .clone()
            .prop_map(|worker| Event::SpawnFailed { worker }),
        worker.clone().prop_map(|worker| Event::Ready { worker }),
        worker
            .clone()
            .prop_map(|worker| Event::FoundStopped { worker }),
        (worker, exits()).prop_map(|(worker, exit)| Event::Exited { worker, exit }),
        Just(Event::Tick),
    ]
}

fn steps(with_absurd: bool) -> impl Strategy<Value = Vec<Step>> {
    let slot = || 0..4_u16;
    let step = prop_oneof![
        8 => (0..3_000_u64).prop_map(Step::Wait),
        1 => (0..100_000_u64).prop_map(Step::Wait),
        8 => (slot(), prop::bool::weighted(0.9)).prop_map(|(slot, works)| Step::Answer { slot, works }),
        6 => slot().prop_map(Step::Ready),
        4 => (slot(), any::<u64>()).prop_map(|(slot, at_ms)| Step::Heartbeat(slot, at_ms)),
        1 => slot().prop_map(Step::FoundStopped),
        8 => (slot(), exits()).prop_map(|(slot, exit)| Step::Exit(slot, exit)),
        u32::from(!with_absurd) => (0..4_000_u64).prop_map(Step::Stop),
        u32::from(with_absurd) * 8 => absurd().prop_map(Step::Absurd),
    ];
    prop::collection::vec(step, 0..200)
}

#[derive(Default)]
struct SlotModel {
    pending: Option<WorkerId>,
    live: Option<WorkerId>,
    died_at_ms: Option<u64>,
    killed: bool,
}

/// The processes as an honest driver would see them, and the laws checked at each action.
struct Checker {
    machine: Machine,
    now_ms: u64,
    slots: HashMap<u16, SlotModel>,
    stopping: bool,
    ready_reports: usize,
    finished: Option<ExitCode>,
}

impl Checker {
    fn new(slots: u16) -> Self {
        let (machine, first) = Machine::start(
            NonZeroU16::new(slots).unwrap_or(NonZeroU16::MIN),
            Limits::default(),
            0,
        );
        let mut checker = Self {
            machine,
            now_ms: 0,
            slots: (0..slots)
                .map(|slot| (slot, SlotModel::default()))
                .collect(),
            stopping: false,
            ready_reports: 0,
            finished: None,
        };
        checker.check(&first);
        checker
    }

    fn feed(&mut self, event: Event) {
        let actions = self.machine.handle(event, self.now_ms);
        if self.finished.is_some() {
            assert!(actions.is_empty(), "nothing follows the end");
        }
        self.check(&actions);
    }

    fn check(&mut self, actions: &[Action]) {
        for action in actions {
            assert!(self.finished.is_none(), "nothing follows the end");
            match *action {
                Action::Spawn { worker } => {
                    assert!(!self.stopping, "no spawn once stopping");
                    let now_ms = self.now_ms;
                    let slot = self.slots.get_mut(&worker.slot).expect("a known slot");
                    assert!(
                        slot.pending.is_none() && slot.live.is_none(),
                        "two workers in a slot"
                    );
                    if let Some(died_at_ms) = slot.died_at_ms {
                        assert!(
                            now_ms - died_at_ms >= BACKOFF_FIRST_MS,
                            "respawned before the first delay"
                        );
                    }
                    slot.pending = Some(worker);
                    slot.killed = false;
                }
                Action::Drain { worker, .. } => {
                    assert!(self.stopping);
                    assert_eq!(self.slots[&worker.slot].live, Some(worker));
                }
                Action::Signal { worker, kill } => {
                    let slot = self.slots.get_mut(&worker.slot).expect("a known slot");
                    assert_eq!(
                        slot.live,
                        Some(worker),
                        "a signal for a worker that is not there"
                    );
                    assert!(!slot.killed, "a signal after SIGKILL");
                    slot.killed = kill == Kill::Kill;
                }
                Action::ReportReady => {
                    self.ready_reports += 1;
                    assert_eq!(self.ready_reports, 1);
                    let states: Vec<SlotState> =
                        self.machine.views().map(|view| view.state).collect();
                    assert!(states.contains(&SlotState::Ready));
                    assert!(
                        states
                            .iter()
                            .all(|state| matches!(state, SlotState::Ready | SlotState::Dead))
                    );
                }
                Action::ReportStopping => {
                    assert!(!self.stopping);
                    self.stopping = true;
                }
                Action::Finished { code } => {
                    let living = self
                        .slots
                        .values()
                        .filter(|slot| slot.live.is_some())
                        .count();
                    if code != ExitCode::RuntimeFailure {
                        assert_eq!(living, 0, "ended over living workers");
                    }
                    assert_eq!(code == ExitCode::AllSlotsDead, !self.stopping);
                    self.finished = Some(code);
                }
                Action::ReportDeath { .. }
                | Action::ReportDead { .. }
                | Action::SlotChanged { .. } => {}
            }
        }
        for view in self.machine.views() {
            if let Some(delay_ms) = view.backoff_ms {
                assert!((BACKOFF_FIRST_MS..=BACKOFF_MAX_MS).contains(&delay_ms));
                assert!((0..5).any(|failures| backoff_ms(failures) == delay_ms));
            }
            assert_eq!(view.backoff_ms.is_some(), view.state == SlotState::Backoff);
        }
        assert!(self.machine.next_wake_ms(self.now_ms) >= self.now_ms);
    }

    fn live(&self, slot: u16) -> Option<WorkerId> {
        self.slots.get(&slot)?.live
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Wait(ms) => {
                let until_ms = self.now_ms + ms;
                while self.now_ms < until_ms && self.finished.is_none() {
                    let wake_ms = self.machine.next_wake_ms(self.now_ms);
                    self.now_ms = wake_ms.max(self.now_ms + 1).min(until_ms);
                    self.feed(Event::Tick);
                }
            }
            Step::Answer { slot, works } => {
                let Some(worker) = self
                    .slots
                    .get_mut(&slot)
                    .and_then(|slot| slot.pending.take())
                else {
                    return;
                };
                let model = self.slots.get_mut(&slot).expect("a known slot");
                if works {
                    model.live = Some(worker);
                    self.feed(Event::Spawned {
                        worker,
                        pid: u32::from(slot) + 1,
                    });
                } else {
                    model.died_at_ms = Some(self.now_ms);
                    self.feed(Event::SpawnFailed { worker });
                }
            }
            Step::Ready(slot) => self.of_live(slot, |worker| Event::Ready { worker }),
            Step::Heartbeat(slot, at_ms) => {
                self.of_live(slot, |worker| Event::Heartbeat { worker, at_ms });
            }
            Step::FoundStopped(slot) => self.of_live(slot, |worker| Event::FoundStopped { worker }),
            Step::Exit(slot, exit) => {
                let Some(worker) = self.live(slot) else {
                    return;
                };
                let model = self.slots.get_mut(&slot).expect("a known slot");
                model.live = None;
                model.died_at_ms = Some(self.now_ms);
                self.feed(Event::Exited { worker, exit });
            }
            Step::Stop(grace_ms) => self.feed(Event::StopRequested {
                grace_ms,
                code: ExitCode::Clean,
            }),
            Step::Absurd(event) => self.feed(event),
        }
    }

    fn of_live(&mut self, slot: u16, event: impl Fn(WorkerId) -> Event) {
        if let Some(worker) = self.live(slot) {
            self.feed(event(worker));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn honest_histories_keep_the_laws(slots in 1..5_u16, history in steps(false)) {
        let mut checker = Checker::new(slots);
        for step in history {
            checker.step(&step);
        }
    }

    #[test]
    fn a_stop_always_ends(slots in 1..5_u16, history in steps(false), grace_ms in 0..10_000_u64) {
        let mut checker = Checker::new(slots);
        for step in history {
            checker.step(&step);
        }
        checker.step(&Step::Stop(grace_ms));
        checker.step(&Step::Wait(grace_ms + super::REAP_GRACE_MS));
        prop_assert!(checker.finished.is_some());
    }

    #[test]
    fn absurd_histories_never_panic(slots in 1..5_u16, history in steps(true), times in prop::collection::vec(any::<u64>(), 1..20)) {
        let (mut machine, _) = Machine::start(NonZeroU16::new(slots).unwrap_or(NonZeroU16::MIN), Limits::default(), 0);
        let mut pending: HashMap<u16, WorkerId> = HashMap::new();
        for (index, step) in history.into_iter().enumerate() {
            let now_ms = times[index % times.len()];
            let event = match step {
                Step::Absurd(event) => event,
                Step::Stop(grace_ms) => Event::StopRequested { grace_ms, code: ExitCode::Clean },
                Step::Exit(slot, exit) => {
                    Event::Exited { worker: pending.get(&slot).copied().unwrap_or(WorkerId { slot, incarnation: 1 }), exit }
                }
                Step::Answer { slot, .. } => {
                    Event::Spawned { worker: pending.get(&slot).copied().unwrap_or(WorkerId { slot, incarnation: 1 }), pid: 1 }
                }
                _ => Event::Tick,
            };
            for action in machine.handle(event, now_ms) {
                if let Action::Spawn { worker } = action {
                    pending.insert(worker.slot, worker);
                }
            }
            prop_assert!(machine.next_wake_ms(now_ms) >= now_ms);
        }
    }
}
