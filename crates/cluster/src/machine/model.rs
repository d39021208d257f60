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
    /// Somebody else has told it to leave.
    Leaving(u16),
    Exit(u16, WorkerExit),
    /// Something that an operator asks for.
    Reload,
    Add,
    Remove,
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
        worker.clone().prop_map(|worker| Event::SpawnFailed {
            worker,
            starved: false
        }),
        worker.clone().prop_map(|worker| Event::Ready { worker }),
        worker
            .clone()
            .prop_map(|worker| Event::FoundStopped { worker }),
        Just(Event::AddWorker),
        Just(Event::RemoveWorker),
        Just(Event::ReloadRequested {
            limits: Limits::default()
        }),
        (worker, exits()).prop_map(|(worker, exit)| Event::Exited { worker, exit }),
        Just(Event::Tick),
    ]
}

fn steps(with_absurd: bool) -> impl Strategy<Value = Vec<Step>> {
    let slot = || 0..4_u16;
    let last = if with_absurd {
        absurd().prop_map(Step::Absurd).boxed()
    } else {
        (0..4_000_u64).prop_map(Step::Stop).boxed()
    };
    let step = prop_oneof![
        8 => (0..3_000_u64).prop_map(Step::Wait),
        1 => (0..100_000_u64).prop_map(Step::Wait),
        8 => (slot(), prop::bool::weighted(0.9)).prop_map(|(slot, works)| Step::Answer { slot, works }),
        6 => slot().prop_map(Step::Ready),
        4 => (slot(), any::<u64>()).prop_map(|(slot, at_ms)| Step::Heartbeat(slot, at_ms)),
        1 => slot().prop_map(Step::FoundStopped),
        1 => slot().prop_map(Step::Leaving),
        8 => (slot(), exits()).prop_map(|(slot, exit)| Step::Exit(slot, exit)),
        2 => Just(Step::Reload),
        1 => Just(Step::Add),
        1 => Just(Step::Remove),
        if with_absurd { 8 } else { 1 } => last,
    ];
    prop::collection::vec(step, 0..200)
}

/// A process as an honest driver would see it.
#[derive(Clone, Copy, Debug)]
struct ProcessModel {
    worker: WorkerId,
    ready: bool,
    leaving: bool,
    killed: bool,
}

#[derive(Default)]
struct SlotModel {
    pending: Vec<WorkerId>,
    live: Vec<ProcessModel>,
    /// Since when nobody fills the slot because of a death.
    died_at_ms: Option<u64>,
    orphaned: bool,
}

/// The processes as an honest driver would see them, and the laws checked at each action.
struct Checker {
    machine: Machine,
    now_ms: u64,
    slots: HashMap<u16, SlotModel>,
    stopping: bool,
    reloading: bool,
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
            slots: HashMap::new(),
            stopping: false,
            reloading: false,
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
        if actions.contains(&Action::StopAllDead) {
            assert!(!self.stopping, "a stop that was ordered twice");
            self.feed(Event::StopRequested {
                grace_ms: 3_000,
                code: ExitCode::AllSlotsDead,
            });
        }
    }

    fn check(&mut self, actions: &[Action]) {
        for action in actions {
            assert!(self.finished.is_none(), "nothing follows the end");
            match *action {
                Action::Spawn { worker } => {
                    assert!(!self.stopping, "no spawn once stopping");
                    let now_ms = self.now_ms;
                    let slot = self.slots.entry(worker.slot).or_default();
                    assert!(slot.pending.is_empty(), "two orders at a time");
                    let filling = slot.live.iter().filter(|process| !process.leaving).count();
                    assert!(
                        filling == 0 || self.reloading,
                        "a second worker without a reload"
                    );
                    assert!(filling <= 1, "three workers in a slot");
                    // A new worker beside one that serves is no respawn.
                    if let Some(died_at_ms) = slot.died_at_ms.take()
                        && filling == 0
                    {
                        assert!(
                            now_ms - died_at_ms >= BACKOFF_FIRST_MS,
                            "respawned before the first delay"
                        );
                    }
                    slot.pending.push(worker);
                }
                Action::Drain { worker, .. } => {
                    let process = self.process(worker).expect("a living worker");
                    assert!(!process.killed);
                    process.leaving = true;
                }
                Action::Signal { worker, kill } => {
                    let process = self.process(worker).expect("a living worker");
                    assert!(!process.killed, "a signal after SIGKILL");
                    process.killed = kill == Kill::Kill;
                }
                Action::Orphan { slot } => {
                    let model = self.slots.entry(slot).or_default();
                    assert!(!model.orphaned && !self.stopping && self.ready_reports == 1);
                    model.orphaned = true;
                }
                Action::Reclaim { slot } => {
                    let model = self.slots.entry(slot).or_default();
                    assert!(model.orphaned, "reclaimed what was not shared out");
                    assert!(
                        model
                            .live
                            .iter()
                            .any(|process| process.ready && !process.leaving),
                        "reclaimed for nobody"
                    );
                    model.orphaned = false;
                }
                Action::ReportReloaded { .. } => {
                    assert!(self.reloading && !self.stopping);
                    self.reloading = false;
                }
                Action::ReportAdded { slot } => {
                    // An order, not a respawn.
                    self.slots.entry(slot).or_default().died_at_ms = None;
                }
                Action::ReportRemoved { slot } => {
                    // One that hangs or was killed is beyond being asked.
                    for process in &mut self.slots.entry(slot).or_default().live {
                        process.leaving = true;
                    }
                }
                Action::ReportReady => {
                    self.ready_reports += 1;
                    assert_eq!(self.ready_reports, 1);
                    let states: Vec<SlotState> =
                        self.machine.views().map(|view| view.state).collect();
                    assert!(states.contains(&SlotState::Ready));
                    assert!(states.iter().all(|state| matches!(
                        state,
                        SlotState::Ready | SlotState::Dead | SlotState::Decommissioned
                    )));
                }
                Action::ReportStopping => {
                    assert!(!self.stopping);
                    self.stopping = true;
                }
                Action::Finished { code } => {
                    let living: usize = self.slots.values().map(|slot| slot.live.len()).sum();
                    if code == ExitCode::Clean {
                        assert_eq!(living, 0, "ended over living workers");
                    }
                    assert!(self.stopping || code == ExitCode::AllSlotsDead);
                    self.finished = Some(code);
                }
                Action::ReportDeath { .. }
                | Action::ReportDead { .. }
                | Action::Refuse { .. }
                | Action::StopAllDead
                | Action::SlotChanged { .. } => {}
            }
        }
        self.check_views();
    }

    /// What holds after every event.
    fn check_views(&self) {
        for view in self.machine.views() {
            if let Some(delay_ms) = view.backoff_ms {
                assert!((BACKOFF_FIRST_MS..=BACKOFF_MAX_MS).contains(&delay_ms));
                assert!((0..5).any(|failures| backoff_ms(failures) == delay_ms));
            }
            assert_eq!(view.backoff_ms.is_some(), view.state == SlotState::Backoff);
        }
        assert!(self.machine.wanted() > 0, "never without a worker");
        assert!(self.machine.next_wake_ms(self.now_ms) >= self.now_ms);
    }

    fn process(&mut self, worker: WorkerId) -> Option<&mut ProcessModel> {
        let live = &mut self.slots.get_mut(&worker.slot)?.live;
        live.iter_mut().find(|process| process.worker == worker)
    }

    /// The process of a slot that the next step is about: the one that was started last.
    fn live(&self, slot: u16) -> Option<WorkerId> {
        Some(self.slots.get(&slot)?.live.last()?.worker)
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
                let Some(model) = self.slots.get_mut(&slot) else {
                    return;
                };
                let Some(worker) = model.pending.pop() else {
                    return;
                };
                if works {
                    model.live.push(ProcessModel {
                        worker,
                        ready: false,
                        leaving: false,
                        killed: false,
                    });
                    self.feed(Event::Spawned {
                        worker,
                        pid: u32::from(slot) + 1,
                    });
                } else {
                    if model.live.iter().all(|process| process.leaving) {
                        model.died_at_ms = Some(self.now_ms);
                    }
                    self.feed(Event::SpawnFailed {
                        worker,
                        starved: false,
                    });
                }
            }
            Step::Ready(slot) => {
                if let Some(worker) = self.live(slot) {
                    if let Some(process) = self.process(worker) {
                        process.ready = true;
                    }
                    self.feed(Event::Ready { worker });
                }
            }
            Step::Heartbeat(slot, at_ms) => {
                self.of_live(slot, |worker| Event::Heartbeat { worker, at_ms });
            }
            Step::FoundStopped(slot) => self.of_live(slot, |worker| Event::FoundStopped { worker }),
            Step::Leaving(slot) => self.of_live(slot, |worker| Event::Leaving { worker }),
            Step::Exit(slot, exit) => {
                let Some(worker) = self.live(slot) else {
                    return;
                };
                let model = self.slots.get_mut(&slot).expect("a known slot");
                let left = model.live.pop();
                let filled = model.live.iter().any(|process| !process.leaving);
                if left.is_some_and(|left| !left.leaving) && !filled {
                    model.died_at_ms = Some(self.now_ms);
                }
                self.feed(Event::Exited { worker, exit });
            }
            Step::Reload => {
                // What was given up starts anew, without a delay.
                for view in self.machine.views() {
                    if view.state == SlotState::Dead {
                        self.slots.entry(view.slot).or_default().died_at_ms = None;
                    }
                }
                self.reloading |= !self.stopping;
                self.feed(Event::ReloadRequested {
                    limits: Limits::default(),
                });
            }
            Step::Add => self.feed(Event::AddWorker),
            Step::Remove => self.feed(Event::RemoveWorker),
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
