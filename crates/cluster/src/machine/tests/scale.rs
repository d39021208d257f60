//! One worker more, one fewer.

use super::World;
use crate::machine::{Action, Limits, Refusal, SLOT_COUNT_MAX, SlotState};

fn refused(world: &World, refusal: Refusal) -> usize {
    world.saw(Action::Refuse { refusal })
}

#[test]
fn the_highest_slot_goes_and_comes_back() {
    let mut world = World::serving(3);
    let last = world.workers[2];
    world.feed(super::Event::RemoveWorker);
    assert_eq!(world.saw(Action::ReportRemoved { slot: 2 }), 1);
    assert_eq!(
        world.saw(Action::Drain {
            worker: last,
            grace_ms: Limits::default().drain_timeout_ms
        }),
        1
    );
    assert_eq!(world.state(2), SlotState::Decommissioned);
    // It still drains; its successor overlaps with it.
    world.feed(super::Event::AddWorker);
    assert_eq!(world.saw(Action::ReportAdded { slot: 2 }), 1);
    world.ready(2);
    world.leaves(last);
    assert_eq!(world.state(2), SlotState::Ready);
    assert!(
        !world
            .log
            .iter()
            .any(|action| matches!(action, Action::ReportDeath { .. }))
    );
}

#[test]
fn a_new_slot_is_made_when_none_is_free() {
    let mut world = World::serving(1);
    world.feed(super::Event::AddWorker);
    assert_eq!(world.saw(Action::ReportAdded { slot: 1 }), 1);
    world.ready(1);
    assert_eq!(world.state(1), SlotState::Ready);
    assert_eq!(world.machine.wanted(), 2);
}

#[test]
fn the_last_worker_stays() {
    let mut world = World::serving(2);
    world.feed(super::Event::RemoveWorker);
    world.feed(super::Event::RemoveWorker);
    assert_eq!(refused(&world, Refusal::LastWorker), 1);
    assert_eq!(world.state(0), SlotState::Ready);
}

#[test]
fn a_dead_slot_counts_for_nobody() {
    let mut world = World::serving(2);
    for _ in 0..5 {
        world.dies(0);
        world.pass(2_000);
    }
    assert_eq!(world.state(0), SlotState::Dead);
    world.feed(super::Event::RemoveWorker);
    assert_eq!(refused(&world, Refusal::LastWorker), 1);
    world.feed(super::Event::AddWorker);
    assert_eq!(world.saw(Action::ReportAdded { slot: 0 }), 1);
}

#[test]
fn there_is_a_highest_number() {
    let mut world = World::serving(SLOT_COUNT_MAX);
    world.feed(super::Event::AddWorker);
    assert_eq!(refused(&world, Refusal::TooMany), 1);
}

#[test]
fn nothing_is_added_or_removed_once_stopping() {
    let mut world = World::serving(2);
    world.stop();
    world.feed(super::Event::AddWorker);
    world.feed(super::Event::RemoveWorker);
    assert_eq!(refused(&world, Refusal::Stopping), 2);
    assert_eq!(world.spawns.len(), 2);
}

#[test]
fn a_slot_in_backoff_can_be_scaled_away() {
    let mut world = World::serving(2);
    world.dies(1);
    world.feed(super::Event::RemoveWorker);
    world.pass(10_000);
    assert_eq!(world.state(1), SlotState::Decommissioned);
    assert_eq!(world.spawns.len(), 2);
}

#[test]
fn who_does_not_serve_goes_first_and_who_alone_serves_stays() {
    let mut world = World::serving(3);
    world.dies(0);
    world.feed(super::Event::RemoveWorker);
    assert_eq!(world.saw(Action::ReportRemoved { slot: 0 }), 1);
    world.dies(1);
    world.feed(super::Event::RemoveWorker);
    assert_eq!(world.saw(Action::ReportRemoved { slot: 1 }), 1);
    assert_eq!(world.state(2), SlotState::Ready);
    world.feed(super::Event::RemoveWorker);
    assert_eq!(refused(&world, Refusal::LastWorker), 1);
}

#[test]
fn all_dead_waits_for_those_that_finish_what_they_have() {
    let mut world = World::serving(2);
    let left = world.workers[1];
    world.feed(super::Event::RemoveWorker);
    for _ in 0..5 {
        world.dies(0);
        world.pass(2_000);
    }
    assert!(world.saw(Action::StopAllDead) > 0);
    assert_eq!(world.finished(), None);
    world.feed(super::Event::StopRequested {
        grace_ms: 3_000,
        code: crate::exit::ExitCode::AllSlotsDead,
    });
    world.leaves(left);
    assert_eq!(world.finished(), Some(crate::exit::ExitCode::AllSlotsDead));
}
