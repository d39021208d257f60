//! Tests of [`super`].

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use super::*;
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
    assert_eq!((row.index, row.slot, row.owner), (5, Some(5), Some(me())));
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
fn a_worker_whose_predecessor_lives_takes_a_spare_row() {
    let segment = private();
    let old = claim(&segment, Some(0));
    let new = claim(&segment, Some(0));
    assert_eq!((old.index(), new.index()), (0, SLOT_COUNT_MAX));
    assert_eq!(new.snapshot().unwrap().slot, Some(0));
    let error = segment.claim_row(Role::Worker, Some(256), me()).err();
    assert_eq!(error, Some(ClaimError::Slot(256)));
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
    assert_eq!(heir.index(), 1);
    assert_eq!(segment.sweep(), 0, "the living keep theirs");
}

#[test]
fn living_processes_fill_the_table() {
    let segment = private();
    let spare = PROCESS_COUNT_MAX - SLOT_COUNT_MAX;
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
}
