//! Reloads: the new worker is ready before the old one drains, one slot at a time, and a bad one changes nothing.

use super::{GRACE_MS, World};
use crate::machine::{Action, Limits, SlotState, WorkerId};

fn drained(world: &World, worker: WorkerId) -> bool {
    world.saw(Action::Drain {
        worker,
        grace_ms: Limits::default().drain_timeout_ms,
    }) == 1
}

#[test]
fn each_worker_drains_when_its_successor_serves_one_slot_at_a_time() {
    let mut world = World::serving(2);
    let old = world.workers.clone();
    world.reload();
    assert_eq!(world.spawns.len(), 3, "only the first slot has its turn");
    assert_ne!(world.workers[0], old[0]);
    assert_eq!(world.state(0), SlotState::Ready, "the old worker serves");
    assert!(!drained(&world, old[0]));
    world.ready(0);
    assert!(drained(&world, old[0]));
    assert!(!drained(&world, old[1]));
    assert_eq!(
        world.spawns.len(),
        4,
        "the next slot does not wait for the drain"
    );
    world.ready(1);
    assert!(drained(&world, old[1]));
    assert_eq!(world.saw(Action::ReportReloaded { failed: None }), 1);
    assert_eq!(
        world.machine.view(0).map(|view| view.leaving.len()),
        Some(1)
    );
    world.leaves(old[0]);
    world.leaves(old[1]);
    assert!(
        !world
            .log
            .iter()
            .any(|action| matches!(action, Action::ReportDeath { .. }))
    );
    assert_eq!(world.machine.view(0).map(|view| view.restarts), Some(0));
    assert_eq!(world.state(0), SlotState::Ready);
}

#[test]
fn a_new_worker_that_dies_leaves_the_old_ones_where_they_are() {
    let mut world = World::serving(2);
    let old = world.workers.clone();
    world.reload();
    world.dies(0);
    assert_eq!(world.saw(Action::ReportReloaded { failed: Some(0) }), 1);
    assert!(!drained(&world, old[0]) && !drained(&world, old[1]));
    assert_eq!(world.state(0), SlotState::Ready);
    assert_eq!(
        world.machine.view(0).and_then(|view| view.worker),
        Some(old[0])
    );
    assert_eq!(world.spawns.len(), 3);
}

#[test]
fn a_new_worker_that_never_gets_ready_is_killed_and_ends_the_reload() {
    let mut world = World::serving(1);
    let old = world.workers[0];
    world.reload();
    let new = world.workers[0];
    world.workers[0] = old;
    world.pass(Limits::default().start_deadline_ms);
    world.workers[0] = new;
    world.dies(0);
    assert_eq!(world.saw(Action::ReportReloaded { failed: Some(0) }), 1);
    assert_eq!(
        world.machine.view(0).and_then(|view| view.worker),
        Some(old)
    );
}

#[test]
fn when_the_old_worker_dies_first_the_new_one_fills_the_slot() {
    let mut world = World::serving(1);
    let old = world.workers[0];
    world.reload();
    let new = world.workers[0];
    world.workers[0] = old;
    world.dies(0);
    world.workers[0] = new;
    assert_eq!(world.state(0), SlotState::Starting);
    world.ready(0);
    assert_eq!(world.saw(Action::ReportReloaded { failed: None }), 1);
    assert_eq!(world.spawns.len(), 2, "no further worker was needed");
}

#[test]
fn a_second_request_during_a_reload_replaces_all_once_more() {
    let mut world = World::serving(2);
    world.reload();
    world.ready(0);
    world.reload();
    let first = world.spawns[2].1;
    world.ready(1);
    assert_eq!(world.saw(Action::ReportReloaded { failed: None }), 0);
    // The first slot's worker of the first round still drains: at most two processes a slot.
    assert_eq!(world.spawns.len(), 4);
    let started = world.spawns[0].1;
    world.leaves(started);
    assert_eq!(world.spawns.len(), 5);
    world.ready(0);
    assert!(drained(&world, first));
}

#[test]
fn a_worker_that_does_not_finish_is_killed_at_the_drain_timeout() {
    let mut world = World::serving(1);
    let old = world.workers[0];
    world.reload();
    world.ready(0);
    world.pass(Limits::default().drain_timeout_ms);
    let kill = Action::Signal {
        worker: old,
        kill: crate::machine::Kill::Kill,
    };
    assert_eq!(world.saw(kill), 1);
    assert_eq!(world.state(0), SlotState::Ready);
}

#[test]
fn slots_that_were_given_up_start_anew() {
    let mut world = World::serving(2);
    for _ in 0..5 {
        world.dies(1);
        world.pass(2_000);
    }
    assert_eq!(world.state(1), SlotState::Dead);
    world.reload();
    assert_eq!(world.state(1), SlotState::Starting);
    world.ready(0);
    world.ready(1);
    assert_eq!(world.state(1), SlotState::Ready);
    assert_eq!(world.saw(Action::ReportReloaded { failed: None }), 1);
}

#[test]
fn a_slot_in_backoff_does_not_hold_the_others_up() {
    let mut world = World::serving(2);
    world.dies(0);
    world.reload();
    world.ready(1);
    assert_eq!(world.saw(Action::ReportReloaded { failed: None }), 1);
}

#[test]
fn a_stop_ends_a_reload_and_takes_every_process_along() {
    let mut world = World::serving(1);
    let old = world.workers[0];
    world.reload();
    let new = world.workers[0];
    world.stop();
    for worker in [old, new] {
        assert_eq!(
            world.saw(Action::Drain {
                worker,
                grace_ms: GRACE_MS
            }),
            1
        );
    }
    world.leaves(new);
    assert_eq!(world.finished(), None);
    world.leaves(old);
    assert_eq!(world.finished(), Some(crate::exit::ExitCode::Clean));
}

#[test]
fn a_stop_shortens_the_time_of_those_that_drain_already() {
    let mut world = World::serving(1);
    let old = world.workers[0];
    world.reload();
    world.ready(0);
    world.stop();
    assert_eq!(
        world.saw(Action::Drain {
            worker: old,
            grace_ms: GRACE_MS
        }),
        1
    );
}

#[test]
fn an_old_worker_that_somebody_kills_is_mended_like_any_other() {
    let mut world = World::serving(1);
    let old = world.workers[0];
    world.reload();
    world.ready(0);
    world.feed(crate::machine::Event::Exited {
        worker: old,
        exit: super::KILLED,
    });
    assert!(world.log.iter().any(|action| matches!(
        action,
        Action::ReportDeath { worker, .. } if *worker == old
    )));
    assert_eq!(
        world.state(0),
        SlotState::Ready,
        "and costs the slot nothing"
    );
}
