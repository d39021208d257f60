//! Whose queue the others answer, and from when to when.

use super::World;
use crate::machine::{Action, Event, SUSPECT_MS};

fn news(world: &mut World) -> Vec<Action> {
    let log = std::mem::take(&mut world.log);
    let news = log
        .into_iter()
        .filter(|action| matches!(action, Action::Orphan { .. } | Action::Reclaim { .. }));
    news.collect()
}

const ORPHAN: Action = Action::Orphan { slot: 1 };
const RECLAIM: Action = Action::Reclaim { slot: 1 };

#[test]
fn a_death_shares_the_slot_out_until_its_next_worker_is_ready() {
    let mut world = World::serving(2);
    world.dies(1);
    assert_eq!(news(&mut world), [ORPHAN]);
    world.pass(250);
    assert_eq!(news(&mut world), []);
    world.ready(1);
    assert_eq!(news(&mut world), [RECLAIM]);
}

#[test]
fn nothing_is_shared_out_before_the_cluster_is_ready() {
    let mut world = World::new(2);
    world.ready(0);
    assert_eq!(news(&mut world), []);
    for _ in 0..5 {
        world.dies(1);
        world.pass(2_000);
    }
    // Given up; what waits in its queue is answered by the other one.
    assert_eq!(news(&mut world), [ORPHAN]);
}

#[test]
fn a_silent_worker_is_helped_out_until_it_speaks() {
    let mut world = World::serving(2);
    world.pass_while(SUSPECT_MS - 1, |slot| slot == 0);
    assert_eq!(news(&mut world), []);
    world.pass_while(1, |slot| slot == 0);
    assert_eq!(news(&mut world), [ORPHAN]);
    let (worker, at_ms) = (world.workers[1], world.now_ms);
    world.feed(Event::Heartbeat { worker, at_ms });
    assert_eq!(news(&mut world), [RECLAIM]);
}

#[test]
fn a_slot_that_is_scaled_away_stays_shared_out() {
    let mut world = World::serving(2);
    world.feed(Event::RemoveWorker);
    assert_eq!(news(&mut world), [ORPHAN]);
    let left = world.workers[1];
    world.leaves(left);
    world.pass(60_000);
    assert_eq!(news(&mut world), []);
    world.feed(Event::AddWorker);
    world.ready(1);
    assert_eq!(news(&mut world), [RECLAIM]);
}

#[test]
fn a_reload_shares_nothing_out() {
    let mut world = World::serving(2);
    world.reload();
    world.ready(0);
    world.ready(1);
    assert_eq!(news(&mut world), []);
}

#[test]
fn nothing_changes_hands_at_a_stop() {
    let mut world = World::serving(2);
    world.stop();
    assert_eq!(news(&mut world), []);
}

#[test]
fn a_worker_that_somebody_else_sends_away_is_helped_out_at_once() {
    let mut world = World::serving(2);
    let worker = world.workers[1];
    world.feed(Event::Leaving { worker });
    assert_eq!(news(&mut world), [ORPHAN]);
    assert_eq!(world.state(1), crate::machine::SlotState::Draining);
    world.leaves(worker);
    assert_eq!(world.state(1), crate::machine::SlotState::Backoff);
    world.pass(250);
    world.ready(1);
    assert_eq!(news(&mut world), [RECLAIM]);
    // One that was asked to leave has been counted out already.
    let asked = world.workers[1];
    world.feed(Event::RemoveWorker);
    world.feed(Event::Leaving { worker: asked });
    assert_eq!(news(&mut world), [ORPHAN]);
}
