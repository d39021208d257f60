//! Tests of [`super`].

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use super::row::{LOCK_SINCE_MASK, held};
use super::*;
use crate::layout::{BATCH_BUCKETS, LATENCY_BUCKETS, WRITE_LOCKS_MAX};
use crate::segment::tests::{dead, private};
use proptest::prelude::*;

fn me() -> process::Identity {
    process::Identity::current().unwrap()
}

fn claim(segment: &Arc<Segment>, slot: Option<u16>) -> RowGuard {
    segment.claim_row(Role::Worker, slot, me()).unwrap()
}

#[test]
fn roles_and_states_survive_their_words() {
    for role in Role::ALL {
        assert_eq!(Role::from_word(role.to_word()), Some(role));
    }
    assert_eq!(Role::from_word(0), None);
    for state in [RowState::Starting, RowState::Ready, RowState::Draining] {
        assert_eq!(RowState::from_word(state.to_word()), state);
    }
}

#[test]
fn the_counters_of_a_slot_go_on_through_its_workers() {
    let segment = private();
    let first = claim(&segment, Some(5));
    first.record_request(100, false);
    first.record_request(3_000_000, true);
    first.record_bytes(10, 20);
    first.record_commit(64, true);
    first.record_commit(2, false);
    first.set_rss_bytes(1);
    drop(first);

    let second = claim(&segment, Some(5));
    second.record_request(1, false);
    second.set_state(RowState::Ready);
    second.heartbeat(77, 5);
    second.set_bus_port(4000);
    let row = second.snapshot().unwrap();
    assert_eq!((row.index, row.slot, row.owner), (10, Some(5), Some(me())));
    assert_eq!((row.requests, row.errors), (3, 1));
    assert_eq!((row.bytes_in, row.bytes_out), (10, 20));
    assert_eq!((row.commits, row.operations, row.syncs), (2, 66, 1));
    assert_eq!(row.latency_total_us, 3_000_101);
    assert_eq!(row.latency.iter().sum::<u64>(), 3);
    assert_eq!((row.rss_bytes, row.bus_port), (0, 4000));
    assert_eq!((row.heartbeat_ms, row.loop_lag_us), (77, 5));
    assert_eq!(row.state, RowState::Ready);
}

#[test]
fn a_worker_and_its_successor_have_a_row_each_and_a_third_takes_a_spare_one() {
    let segment = private();
    let old = claim(&segment, Some(3));
    let new = claim(&segment, Some(3));
    let third = claim(&segment, Some(3));
    let spare = SLOT_COUNT_MAX * SLOT_ROWS;
    assert_eq!((old.index(), new.index(), third.index()), (6, 7, spare));
    assert_eq!(third.snapshot().unwrap().slot, Some(3));
    let error = segment.claim_row(Role::Worker, Some(256), me()).err();
    assert_eq!(error, Some(ClaimError::Slot(256)));
}

#[test]
fn a_slots_figures_are_those_of_all_its_workers() {
    let segment = private();
    assert_eq!(segment.slot_figures(2), None);
    let old = claim(&segment, Some(2));
    old.record_request(100, true);
    old.record_commit(3, false);
    old.set_connections(4);
    let new = claim(&segment, Some(2));
    new.record_request(1, false);
    new.record_commit(1, true);
    new.record_bus(1, 2, 3, 4);
    new.set_connections(5);
    new.set_state(RowState::Ready);
    let figures = segment.slot_figures(2).unwrap();
    assert_eq!((figures.requests, figures.errors), (2, 1));
    assert_eq!((figures.commits, figures.operations), (2, 4));
    assert_eq!(&figures.batches[..3], [1, 0, 1]);
    assert_eq!((figures.connections, figures.bus_dropped), (9, 4));
    // The old one leaves: its counters stay, its gauges go.
    drop(old);
    let figures = segment.slot_figures(2).unwrap();
    assert_eq!((figures.requests, figures.connections), (2, 5));
    assert_eq!(
        (figures.owner, figures.state),
        (Some(me()), RowState::Ready)
    );
    drop(new);
    assert_eq!(segment.slot_figures(2).unwrap().requests, 2);
    assert_eq!(segment.slot_figures(u16::MAX), None);
}

#[test]
fn the_gauges_of_a_killed_worker_are_nobodys() {
    let segment = private();
    let old = claim(&segment, Some(2));
    old.set_connections(4);
    // Killed later than the old one was started, and not swept yet.
    let killed = segment.claim_row(Role::Worker, Some(2), dead()).unwrap();
    killed.record_request(1, false);
    killed.set_connections(100);
    killed.set_rss_bytes(100);
    std::mem::forget(killed.hold_write_lock(0, 5));
    std::mem::forget(killed);
    let figures = segment.slot_figures(2).unwrap();
    assert_eq!(figures.owner, Some(me()), "the latest that lives");
    assert_eq!((figures.requests, figures.connections), (1, 4));
    assert_eq!((figures.rss_bytes, figures.write_locks.len()), (0, 0));
    drop(old);
    let figures = segment.slot_figures(2).unwrap();
    assert_eq!((figures.requests, figures.connections), (1, 0));
}

#[test]
fn a_program_forgets_what_the_one_before_it_had_claimed() {
    let segment = private();
    let row = claim(&segment, None);
    row.record_request(1, false);
    row.set_connections(1);
    std::mem::forget(row);
    std::mem::forget(segment.register_peer(5, me()).unwrap());
    std::mem::forget(segment.slot_writer(me()).unwrap());
    let other = segment.claim_row(Role::Worker, Some(0), dead()).unwrap();
    segment.forget_predecessor(me());
    assert_eq!(
        segment.rows().filter(|row| row.owner == Some(me())).count(),
        0
    );
    assert_eq!(segment.rows().map(|row| row.connections).sum::<u64>(), 0);
    assert_eq!(segment.rows().map(|row| row.requests).sum::<u64>(), 1);
    assert_eq!(segment.peers().count(), 0);
    assert!(segment.slot_writer(me()).is_ok());
    assert!(
        other.snapshot().unwrap().owner.is_some(),
        "others keep theirs"
    );
}

#[test]
fn a_dead_owners_row_is_taken_over_or_swept_with_its_gauges() {
    let segment = private();
    let gone = segment.claim_row(Role::Worker, Some(1), dead()).unwrap();
    std::mem::forget(InFlight::new(&gone));
    std::mem::forget(gone.hold_write_lock(0, 5));
    std::mem::forget(gone);
    let seen = segment.rows().next().unwrap();
    assert_eq!((seen.in_flight, seen.write_locks.len()), (1, 1));

    assert_eq!(segment.sweep(), 1);
    let seen = segment.rows().next().unwrap();
    assert_eq!(seen.owner, None);
    assert_eq!((seen.in_flight, seen.write_locks.len()), (0, 0));

    std::mem::forget(segment.claim_row(Role::Worker, Some(1), dead()).unwrap());
    let heir = claim(&segment, Some(1));
    assert_eq!(heir.index(), 2);
    assert_eq!(segment.sweep(), 0, "the living keep theirs");
}

#[test]
fn living_processes_fill_the_table() {
    let segment = private();
    let spare = PROCESS_COUNT_MAX - SLOT_COUNT_MAX * SLOT_ROWS;
    let all: Vec<_> = (0..spare).map(|_| claim(&segment, None)).collect();
    let error = segment.claim_row(Role::Library, None, me()).err();
    assert_eq!(error, Some(ClaimError::Full));
    assert_eq!(segment.rows().count(), spare);
    drop(all);
    assert!(segment.rows().all(|row| row.owner.is_none()));
}

#[test]
fn requests_in_flight_are_counted_until_their_guard_goes() {
    let row = Arc::new(claim(&private(), None));
    let in_flight = || row.snapshot().unwrap().in_flight;
    let first = InFlight::new(Arc::clone(&row));
    let second = InFlight::new(&*row);
    assert_eq!(in_flight(), 2);
    first.row().record_request(1, false);
    drop(first);
    assert_eq!(in_flight(), 1);
    drop(second);
    assert_eq!(in_flight(), 0);
}

#[test]
fn write_locks_show_their_environment_and_age() {
    let row = claim(&private(), None);
    let locks = || row.snapshot().unwrap().write_locks;
    let held: Vec<_> = (0..10).map(|env| row.hold_write_lock(env, 1_000)).collect();
    let shown = locks();
    assert_eq!(shown.len(), WRITE_LOCKS_MAX);
    assert_eq!(
        shown[1],
        HeldWriteLock {
            env: 1,
            since_ms: 1_000
        }
    );
    drop(held);
    assert_eq!(locks(), []);
    let _last = row.hold_write_lock(u16::MAX, u64::MAX);
    assert_eq!(locks()[0].since_ms, LOCK_SINCE_MASK);
}

#[test]
fn buckets_end_at_powers_of_two() {
    for (us, bucket) in [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 2),
        (4, 2),
        (5, 3),
        (1024, 10),
        (1025, 11),
    ] {
        assert_eq!(latency_bucket(us), bucket, "{us} µs");
    }
    assert_eq!(latency_bucket(u64::MAX), LATENCY_BUCKETS - 1);
    assert_eq!(latency_bucket_max_us(LATENCY_BUCKETS - 1), None);
    assert_eq!(latency_bucket_max_us(usize::MAX - 1), None);
    for (operations, bucket) in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (20_000, 15)] {
        assert_eq!(batch_bucket(operations), bucket, "{operations}");
    }
    assert_eq!(batch_bucket_max(BATCH_BUCKETS - 2), Some(16_384));
    assert_eq!(batch_bucket_max(BATCH_BUCKETS - 1), None);
}

proptest! {
    #[test]
    fn a_latency_lies_between_the_bounds_of_its_bucket(us: u64) {
        let bucket = latency_bucket(us);
        prop_assert!(bucket < LATENCY_BUCKETS);
        prop_assert!(latency_bucket_max_us(bucket).is_none_or(|max| us <= max));
        if let Some(below) = bucket.checked_sub(1) {
            prop_assert!(latency_bucket_max_us(below).is_some_and(|max| us > max));
        }
    }

    #[test]
    fn any_lock_word_can_be_read(word: u64) {
        let _ = held(word);
    }

    /// Whatever workers come, leave, die and are swept: no count is ever lost.
    #[test]
    fn the_counters_of_a_slot_never_fall(
        steps in proptest::collection::vec((0u8..4, any::<bool>(), 0usize..4), 0..40),
    ) {
        let segment = private();
        let mut workers = Vec::new();
        let mut counted = 0;
        for (step, dies, at) in steps {
            match step {
                // A third worker of a slot counts in a spare row.
                0 if workers.len() < 2 => {
                    let identity = if dies { dead() } else { me() };
                    let row = segment.claim_row(Role::Worker, Some(7), identity).unwrap();
                    prop_assert!(rows_of(7).contains(&row.index()));
                    if dies {
                        row.record_request(1, true);
                        counted += 1;
                        std::mem::forget(row);
                    } else {
                        workers.push(row);
                    }
                }
                1 if at < workers.len() => drop(workers.swap_remove(at)),
                2 => drop(segment.sweep()),
                _ => {
                    for row in &workers {
                        row.record_request(1, false);
                        counted += 1;
                    }
                }
            }
            let of_slot = segment.slot_figures(7).map_or(0, |figures| figures.requests);
            prop_assert_eq!(of_slot, counted);
            prop_assert_eq!(segment.rows().map(|row| row.requests).sum::<u64>(), counted);
        }
    }
}
