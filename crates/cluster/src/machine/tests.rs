//! Stories about single incidents, in virtual time.

mod orphans;
mod reload;
mod scale;
mod stop;

use std::num::NonZeroU16;

use super::{
    ABORT_GRACE_MS, Action, Event, Kill, Limits, Machine, SlotState, TICK_MS, WorkerExit, WorkerId,
};
use crate::exit::ExitCode;

const KILLED: WorkerExit = WorkerExit::Signal {
    signal: 9,
    core: false,
};
const GRACE_MS: u64 = 3_000;

/// A machine whose spawns succeed at once, and what it did.
struct World {
    machine: Machine,
    now_ms: u64,
    /// The latest worker of each slot.
    workers: Vec<WorkerId>,
    spawns: Vec<(u64, WorkerId)>,
    log: Vec<Action>,
}

impl World {
    fn new(slots: u16) -> Self {
        let now_ms = 1_000_000;
        let (machine, first) = Machine::start(
            NonZeroU16::new(slots).expect("slots"),
            Limits::default(),
            now_ms,
        );
        let mut world = Self {
            machine,
            now_ms,
            workers: Vec::new(),
            spawns: Vec::new(),
            log: Vec::new(),
        };
        world.workers = (0..slots)
            .map(|slot| WorkerId {
                slot,
                incarnation: 0,
            })
            .collect();
        world.carry_out(first);
        world
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            self.log.push(action);
            if let Action::Spawn { worker } = action {
                let place = usize::from(worker.slot);
                self.workers
                    .resize(self.workers.len().max(place + 1), worker);
                self.workers[place] = worker;
                self.spawns.push((self.now_ms, worker));
                let pid = 1_000 + u32::try_from(self.spawns.len()).expect("few spawns");
                self.feed(Event::Spawned { worker, pid });
            }
        }
    }

    fn feed(&mut self, event: Event) {
        let actions = self.machine.handle(event, self.now_ms);
        self.carry_out(actions);
    }

    fn ready(&mut self, slot: u16) {
        self.feed(Event::Ready {
            worker: self.workers[usize::from(slot)],
        });
    }

    fn dies(&mut self, slot: u16) {
        self.feed(Event::Exited {
            worker: self.workers[usize::from(slot)],
            exit: KILLED,
        });
    }

    /// A world in which every worker of `slots` is ready.
    fn serving(slots: u16) -> Self {
        let mut world = Self::new(slots);
        for slot in 0..slots {
            world.ready(slot);
        }
        world.log.clear();
        world
    }

    fn reload(&mut self) {
        self.feed(Event::ReloadRequested {
            limits: Limits::default(),
        });
    }

    fn leaves(&mut self, worker: WorkerId) {
        self.feed(Event::Exited {
            worker,
            exit: WorkerExit::Code(0),
        });
    }

    fn stop(&mut self) {
        self.feed(Event::StopRequested {
            grace_ms: GRACE_MS,
            code: ExitCode::Clean,
        });
    }

    /// Lets time pass as the driver would, with the event loops of all ready workers turning.
    fn pass(&mut self, ms: u64) {
        self.pass_while(ms, |_| true);
    }

    fn pass_while(&mut self, ms: u64, beats: impl Fn(u16) -> bool) {
        let until_ms = self.now_ms + ms;
        while self.now_ms < until_ms {
            let wake_ms = self.machine.next_wake_ms(self.now_ms);
            self.now_ms = wake_ms.max(self.now_ms + 1).min(until_ms);
            for worker in self.workers.clone() {
                if beats(worker.slot) {
                    let at_ms = self.now_ms;
                    self.feed(Event::Heartbeat { worker, at_ms });
                }
            }
            self.feed(Event::Tick);
        }
    }

    fn state(&self, slot: u16) -> SlotState {
        self.machine.view(slot).expect("slot").state
    }

    fn saw(&self, action: Action) -> usize {
        self.log.iter().filter(|seen| **seen == action).count()
    }

    fn finished(&self) -> Option<ExitCode> {
        self.log.iter().find_map(|action| match action {
            Action::Finished { code } => Some(*code),
            _ => None,
        })
    }
}

#[test]
fn ready_is_reported_once_when_all_are_ready() {
    let mut world = World::new(3);
    world.ready(0);
    world.ready(1);
    assert_eq!(world.saw(Action::ReportReady), 0);
    world.ready(2);
    assert_eq!(world.saw(Action::ReportReady), 1);
    world.dies(1);
    world.pass(500);
    world.ready(1);
    world.ready(1);
    assert_eq!(world.saw(Action::ReportReady), 1);
}

#[test]
fn ready_needs_all_at_the_same_instant() {
    let mut world = World::new(2);
    world.ready(0);
    world.dies(0);
    world.ready(1);
    assert_eq!(world.saw(Action::ReportReady), 0);
    world.pass(250);
    world.ready(0);
    assert_eq!(world.saw(Action::ReportReady), 1);
}

#[test]
fn delays_double_and_the_guard_gives_the_slot_up() {
    let mut world = World::new(2);
    world.ready(0);
    for _ in 0..5 {
        world.dies(1);
        world.pass(
            4_000.min(
                world
                    .machine
                    .view(1)
                    .and_then(|view| view.backoff_ms)
                    .unwrap_or(0),
            ),
        );
    }
    let times: Vec<u64> = world
        .spawns
        .iter()
        .filter(|(_, worker)| worker.slot == 1)
        .map(|(at_ms, _)| at_ms - 1_000_000)
        .collect();
    assert_eq!(times, [0, 250, 750, 1_750, 3_750]);
    assert_eq!(world.state(1), SlotState::Dead);
    assert_eq!(world.saw(Action::ReportDead { slot: 1 }), 1);
    // The cluster is ready without it, and the slot stays dead.
    assert_eq!(world.saw(Action::ReportReady), 1);
    world.pass(60_000);
    assert_eq!(world.state(1), SlotState::Dead);
    assert_eq!(world.state(0), SlotState::Ready);
    assert_eq!(world.finished(), None);
}

#[test]
fn four_deaths_then_a_pause_then_four_more_leave_the_slot_alive() {
    let mut world = World::new(1);
    for round in 0..2 {
        for _ in 0..4 {
            world.dies(0);
            world.pass(
                world
                    .machine
                    .view(0)
                    .and_then(|view| view.backoff_ms)
                    .expect("in backoff"),
            );
            world.ready(0);
        }
        assert_eq!(world.state(0), SlotState::Ready, "round {round}");
        world.pass(15_000);
    }
}

#[test]
fn deaths_spread_over_slots_give_nobody_up() {
    let mut world = World::new(3);
    for slot in [0, 1, 2, 0, 1, 2] {
        world.pass(600);
        world.dies(slot);
    }
    world.pass(1_000);
    for slot in 0..3 {
        assert_eq!(world.state(slot), SlotState::Starting);
    }
}

#[test]
fn all_slots_dead_ends_with_its_own_code() {
    let mut world = World::new(2);
    for _ in 0..5 {
        world.dies(0);
        world.dies(1);
        world.pass(2_000);
    }
    assert_eq!(world.finished(), Some(ExitCode::AllSlotsDead));
    assert_eq!(world.saw(Action::ReportReady), 0);
}

#[test]
fn seventy_deaths_never_leave_the_law() {
    let mut world = World::new(1);
    for _ in 0..70 {
        world.ready(0);
        world.pass(2_600);
        world.dies(0);
        let delay_ms = world
            .machine
            .view(0)
            .and_then(|view| view.backoff_ms)
            .expect("in backoff");
        assert!((250..=4_000).contains(&delay_ms));
        world.pass(delay_ms);
        assert_eq!(world.state(0), SlotState::Starting);
    }
    assert_eq!(world.machine.view(0).map(|view| view.restarts), Some(70));
    world.ready(0);
    world.pass(60_000);
    world.dies(0);
    assert_eq!(
        world.machine.view(0).and_then(|view| view.backoff_ms),
        Some(250)
    );
}

#[test]
fn a_spawn_that_fails_counts_as_a_death() {
    let (mut machine, first) = Machine::start(NonZeroU16::MIN, Limits::default(), 0);
    let mut now_ms = 0;
    let mut spawns = first;
    let mut dead = false;
    for _ in 0..5 {
        let Some(Action::Spawn { worker }) = spawns
            .iter()
            .find(|action| matches!(action, Action::Spawn { .. }))
        else {
            panic!("a spawn was due");
        };
        let actions = machine.handle(
            Event::SpawnFailed {
                worker: *worker,
                starved: false,
            },
            now_ms,
        );
        dead = actions.contains(&Action::Finished {
            code: ExitCode::AllSlotsDead,
        });
        now_ms = machine.next_wake_ms(now_ms);
        spawns = machine.handle(Event::Tick, now_ms);
        while spawns.is_empty() && !dead {
            now_ms = machine.next_wake_ms(now_ms);
            spawns = machine.handle(Event::Tick, now_ms);
        }
    }
    assert!(dead);
}

#[test]
fn a_slot_is_not_given_up_for_what_the_whole_host_lacks() {
    let (mut machine, first) = Machine::start(NonZeroU16::MIN, Limits::default(), 0);
    let (mut now_ms, mut spawns) = (0, first);
    for _ in 0..20 {
        let Some(Action::Spawn { worker }) = spawns
            .iter()
            .find(|action| matches!(action, Action::Spawn { .. }))
            .copied()
        else {
            panic!("a spawn was due");
        };
        let starved = true;
        spawns = machine.handle(Event::SpawnFailed { worker, starved }, now_ms);
        assert!(
            machine
                .view(0)
                .is_some_and(|view| view.state == SlotState::Backoff)
        );
        while !spawns
            .iter()
            .any(|action| matches!(action, Action::Spawn { .. }))
        {
            now_ms = machine.next_wake_ms(now_ms);
            spawns = machine.handle(Event::Tick, now_ms);
        }
    }
    // It tries again at the longest delay.
    assert!(now_ms < 20 * 4_000);
}

#[test]
fn a_worker_that_never_gets_ready_is_killed_at_the_deadline() {
    let mut world = World::new(1);
    world.pass(29_999);
    assert_eq!(
        world.saw(Action::Signal {
            worker: world.workers[0],
            kill: Kill::Kill
        }),
        0
    );
    world.pass(1);
    assert_eq!(
        world.saw(Action::Signal {
            worker: world.workers[0],
            kill: Kill::Kill
        }),
        1
    );
    world.dies(0);
    assert_eq!(world.state(0), SlotState::Backoff);
}

#[test]
fn a_silent_worker_is_aborted_then_killed() {
    let mut world = World::new(2);
    world.ready(0);
    world.ready(1);
    let hung = world.workers[1];
    world.pass_while(29_999, |slot| slot == 0);
    assert_eq!(world.state(1), SlotState::Ready);
    world.pass_while(1, |slot| slot == 0);
    assert_eq!(
        world.saw(Action::Signal {
            worker: hung,
            kill: Kill::Abort
        }),
        1
    );
    world.pass_while(ABORT_GRACE_MS - 1, |slot| slot == 0);
    assert_eq!(
        world.saw(Action::Signal {
            worker: hung,
            kill: Kill::Kill
        }),
        0
    );
    world.pass_while(1, |slot| slot == 0);
    assert_eq!(
        world.saw(Action::Signal {
            worker: hung,
            kill: Kill::Kill
        }),
        1
    );
    world.dies(1);
    assert_eq!(world.state(1), SlotState::Backoff);
    assert_eq!(world.state(0), SlotState::Ready);
}

#[test]
fn a_heartbeat_counts_from_when_it_was_made_not_from_when_it_was_read() {
    let mut world = World::new(1);
    world.ready(0);
    let (worker, at_ms) = (world.workers[0], world.now_ms + 1_000);
    world.pass_while(29_000, |_| false);
    world.feed(Event::Heartbeat { worker, at_ms });
    world.pass_while(1_999, |_| false);
    assert_eq!(world.state(0), SlotState::Ready);
    world.pass_while(1, |_| false);
    let abort = Action::Signal {
        worker,
        kill: Kill::Abort,
    };
    assert_eq!(world.saw(abort), 1);
}

#[test]
fn a_stopped_worker_is_killed_without_the_wait_for_a_core() {
    let mut world = World::new(1);
    world.ready(0);
    world.pass_while(30_000, |_| false);
    world.feed(Event::FoundStopped {
        worker: world.workers[0],
    });
    assert_eq!(
        world.saw(Action::Signal {
            worker: world.workers[0],
            kill: Kill::Kill
        }),
        1
    );
}

#[test]
fn a_stopped_worker_that_is_not_hung_is_left_alone() {
    let mut world = World::new(1);
    world.ready(0);
    world.feed(Event::FoundStopped {
        worker: world.workers[0],
    });
    assert_eq!(
        world.saw(Action::Signal {
            worker: world.workers[0],
            kill: Kill::Kill
        }),
        0
    );
}

#[test]
fn a_primary_that_was_stopped_itself_does_not_blame_its_workers() {
    let mut world = World::new(2);
    world.ready(0);
    world.pass_while(20_000, |_| false);
    world.now_ms += 3_600_000;
    world.feed(Event::Tick);
    assert_eq!(world.state(0), SlotState::Ready);
    assert_eq!(world.state(1), SlotState::Starting);
    // The silence before the stall still counts.
    world.pass_while(10_000, |_| false);
    assert_eq!(
        world.saw(Action::Signal {
            worker: world.workers[0],
            kill: Kill::Abort
        }),
        1
    );
    assert_eq!(
        world.saw(Action::Signal {
            worker: world.workers[1],
            kill: Kill::Kill
        }),
        1
    );
}

#[test]
fn late_news_of_a_replaced_worker_is_ignored() {
    let mut world = World::new(1);
    world.ready(0);
    let old = world.workers[0];
    world.dies(0);
    world.pass(250);
    world.feed(Event::Exited {
        worker: old,
        exit: KILLED,
    });
    world.feed(Event::Ready { worker: old });
    assert_eq!(world.state(0), SlotState::Starting);
    assert_eq!(world.spawns.len(), 2);
}

#[test]
fn the_wake_up_is_never_in_the_past_nor_later_than_a_tick() {
    let mut world = World::new(1);
    world.ready(0);
    world.dies(0);
    assert_eq!(world.machine.next_wake_ms(world.now_ms), world.now_ms + 250);
    world.pass(250);
    assert_eq!(
        world.machine.next_wake_ms(world.now_ms),
        world.now_ms + TICK_MS
    );
    assert_eq!(world.machine.next_wake_ms(u64::MAX), u64::MAX);
}
