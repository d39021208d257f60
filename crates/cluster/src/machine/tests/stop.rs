//! Stopping: what is asked, what is killed, what is never started again.

use std::num::NonZeroU16;

use super::{GRACE_MS, World};
use crate::exit::ExitCode;
use crate::machine::{
    Action, Event, Kill, Limits, Machine, REAP_GRACE_MS, SlotState, WorkerExit, WorkerId,
};

#[test]
fn a_stop_drains_and_ends_cleanly_when_the_last_has_left() {
    let mut world = World::new(2);
    world.ready(0);
    world.ready(1);
    world.stop();
    assert_eq!(world.saw(Action::ReportStopping), 1);
    assert_eq!(
        world.saw(Action::Drain {
            worker: world.workers[0],
            grace_ms: GRACE_MS
        }),
        1
    );
    assert_eq!(world.state(0), SlotState::Draining);
    world.feed(Event::Exited {
        worker: world.workers[0],
        exit: WorkerExit::Code(0),
    });
    assert_eq!(world.finished(), None);
    world.feed(Event::Exited {
        worker: world.workers[1],
        exit: WorkerExit::Code(0),
    });
    assert_eq!(world.finished(), Some(ExitCode::Clean));
    assert!(
        !world
            .log
            .iter()
            .any(|action| matches!(action, Action::ReportDeath { .. }))
    );
}

#[test]
fn what_is_left_at_the_end_of_the_grace_is_killed() {
    let mut world = World::new(2);
    world.ready(0);
    world.ready(1);
    world.stop();
    world.dies(0);
    world.pass(GRACE_MS - 1);
    assert_eq!(
        world.saw(Action::Signal {
            worker: world.workers[1],
            kill: Kill::Kill
        }),
        0
    );
    world.pass(1);
    assert_eq!(
        world.saw(Action::Signal {
            worker: world.workers[1],
            kill: Kill::Kill
        }),
        1
    );
    world.dies(1);
    assert_eq!(world.finished(), Some(ExitCode::Clean));
}

#[test]
fn a_worker_that_even_sigkill_cannot_end_does_not_hold_the_primary() {
    let mut world = World::new(1);
    world.ready(0);
    world.stop();
    world.pass(GRACE_MS + REAP_GRACE_MS - 1);
    assert_eq!(world.finished(), None);
    world.pass(1);
    assert_eq!(world.finished(), Some(ExitCode::RuntimeFailure));
}

#[test]
fn a_second_stop_kills_at_once() {
    let mut world = World::new(2);
    world.ready(0);
    world.stop();
    world.stop();
    for slot in 0..2 {
        assert_eq!(
            world.saw(Action::Signal {
                worker: world.workers[slot],
                kill: Kill::Kill
            }),
            1
        );
    }
    world.dies(0);
    world.dies(1);
    assert_eq!(world.finished(), Some(ExitCode::Clean));
    assert_eq!(world.saw(Action::ReportStopping), 1);
}

#[test]
fn a_pending_backoff_is_cancelled_by_a_stop() {
    let mut world = World::new(1);
    world.ready(0);
    world.dies(0);
    let spawns = world.spawns.len();
    world.stop();
    assert_eq!(world.finished(), Some(ExitCode::Clean));
    world.pass(10_000);
    assert_eq!(world.spawns.len(), spawns);
}

#[test]
fn workers_that_died_before_the_stop_was_seen_are_not_revived() {
    let mut world = World::new(3);
    for slot in 0..3 {
        world.ready(slot);
    }
    let spawns = world.spawns.len();
    // Ctrl-C reaches the whole process group: the workers may be gone before the primary reads its own signal.
    world.dies(0);
    world.dies(1);
    world.stop();
    world.dies(2);
    assert_eq!(world.finished(), Some(ExitCode::Clean));
    world.pass(10_000);
    assert_eq!(world.spawns.len(), spawns);
}

#[test]
fn a_stop_for_a_failure_keeps_its_code() {
    let mut world = World::new(1);
    world.stop();
    world.feed(Event::StopRequested {
        grace_ms: 0,
        code: ExitCode::RuntimeFailure,
    });
    world.dies(0);
    assert_eq!(world.finished(), Some(ExitCode::RuntimeFailure));
}

#[test]
fn a_spawn_that_was_under_way_when_the_stop_came_is_drained_when_it_appears() {
    let (mut machine, _) = Machine::start(NonZeroU16::MIN, Limits::default(), 0);
    let worker = WorkerId {
        slot: 0,
        incarnation: 1,
    };
    let actions = machine.handle(
        Event::StopRequested {
            grace_ms: 3_000,
            code: ExitCode::Clean,
        },
        0,
    );
    assert!(
        !actions
            .iter()
            .any(|action| matches!(action, Action::Finished { .. }))
    );
    let actions = machine.handle(Event::Spawned { worker, pid: 7 }, 1_000);
    assert!(actions.contains(&Action::Drain {
        worker,
        grace_ms: 2_000
    }));
    let actions = machine.handle(
        Event::Exited {
            worker,
            exit: WorkerExit::Code(0),
        },
        1_001,
    );
    assert!(actions.contains(&Action::Finished {
        code: ExitCode::Clean
    }));
}
