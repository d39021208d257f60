//! Models of the segment's algorithms, checked over all interleavings and all reorderings that the memory
//! model allows. The functions under test are the ones that run on the mapped memory.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64};
use loom::thread;

use crate::word::Word;
use crate::{hlc, owner, peers, slots};

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }

    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_max(value, order)
    }

    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.compare_exchange(current, new, success, failure)
    }

    fn fence(order: Ordering) {
        loom::sync::atomic::fence(order);
    }
}

/// Two processes with wall clocks that disagree.
#[test]
fn stamps_are_unique_and_rise_in_each_process() {
    loom::model(|| {
        let word = Arc::new(AtomicU64::new(0));
        let other = {
            let word = Arc::clone(&word);
            thread::spawn(move || [hlc::advance(&*word, 5), hlc::advance(&*word, 3)])
        };
        let mut all = [hlc::advance(&*word, 4), hlc::advance(&*word, 4)].to_vec();
        assert!(all[0] < all[1]);
        let theirs = other.join().unwrap();
        assert!(theirs[0] < theirs[1]);
        all.extend(theirs);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4);
        assert_eq!(word.load(Ordering::Relaxed), all[3]);
    });
}

/// One process seeds the clock while another counts: a stamp given after the seed is above it.
#[test]
fn no_stamp_is_below_what_was_observed() {
    loom::model(|| {
        const SEED: u64 = 1 << 40;
        let word = Arc::new(AtomicU64::new(0));
        let seeding = {
            let word = Arc::clone(&word);
            thread::spawn(move || {
                hlc::observe(&*word, SEED);
                hlc::advance(&*word, 0)
            })
        };
        let ours = hlc::advance(&*word, 1);
        let seeded = seeding.join().unwrap();
        assert!(seeded > SEED);
        assert_ne!(ours, seeded);
        assert!(hlc::advance(&*word, 0) > SEED.max(ours).max(seeded));
    });
}

/// A dead owner's row and three processes that want it.
#[test]
fn a_dead_owners_row_goes_to_exactly_one() {
    const DEAD: u64 = 9;
    loom::model(|| {
        let row = Arc::new(AtomicU64::new(DEAD));
        let threads: Vec<_> = [1, 2]
            .into_iter()
            .map(|me| {
                let row = Arc::clone(&row);
                thread::spawn(move || owner::claim(&*row, me, |word| word != DEAD).is_ok())
            })
            .collect();
        let ours = owner::claim(&*row, 3, |word| word != DEAD).is_ok();
        let winners = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .filter(|&won| won)
            .count();
        assert_eq!(winners + usize::from(ours), 1);
        assert_ne!(row.load(Ordering::Relaxed), DEAD);
    });
}

/// An owner leaves while others want its row: never two at a time, and each sees what the last one wrote.
#[test]
fn ownership_is_exclusive_and_hands_over_what_was_written() {
    loom::model(|| {
        let row = Arc::new(AtomicU64::new(0));
        let inside = Arc::new(AtomicBool::new(false));
        let counter = Arc::new(AtomicU64::new(0));
        let work = |row: &AtomicU64, inside: &AtomicBool, counter: &AtomicU64, me| {
            if owner::claim(row, me, |_| true).is_err() {
                return 0;
            }
            assert!(!inside.swap(true, Ordering::Relaxed), "two owners");
            // Not one step: it would lose a count if the last owner's were not seen.
            let count = counter.load(Ordering::Relaxed);
            counter.store(count + 1, Ordering::Relaxed);
            inside.store(false, Ordering::Relaxed);
            owner::release(row, me);
            1
        };
        let other = {
            let (row, inside, counter) =
                (Arc::clone(&row), Arc::clone(&inside), Arc::clone(&counter));
            thread::spawn(move || work(&row, &inside, &counter, 1))
        };
        let done = work(&row, &inside, &counter, 2) + other.join().unwrap();
        assert!(done >= 1);
        assert_eq!(counter.load(Ordering::Relaxed), done);
    });
}

/// A change is published and poked while the peer looks because of an earlier poke: either the look sees
/// the change, or a datagram is on its way.
#[test]
fn no_change_is_left_without_a_look_or_a_datagram() {
    loom::model(|| {
        let clock = Arc::new(AtomicU64::new(0));
        let pending = Arc::new(AtomicU64::new(1));
        let datagrams = Arc::new(AtomicU64::new(0));
        let poker = {
            let (clock, pending, datagrams) = (
                Arc::clone(&clock),
                Arc::clone(&pending),
                Arc::clone(&datagrams),
            );
            thread::spawn(move || {
                clock.fetch_max(1, Ordering::AcqRel);
                if peers::mark(&*pending) {
                    datagrams.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        peers::rearm(&*pending);
        let seen = clock.load(Ordering::Acquire);
        poker.join().unwrap();
        assert!(seen == 1 || datagrams.load(Ordering::Relaxed) == 1);
    });
}

/// A reader never takes halves of two writes for one row.
#[test]
fn a_slot_row_is_read_whole() {
    loom::model(|| {
        let sequence = Arc::new(AtomicU64::new(0));
        let fields = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let writer = {
            let (sequence, fields) = (Arc::clone(&sequence), Arc::clone(&fields));
            thread::spawn(move || slots::write_guarded(&*sequence, &fields, [1, 1]))
        };
        if let Ok([first, second]) = slots::try_read_guarded(&*sequence, &fields) {
            assert_eq!(first, second);
        }
        writer.join().unwrap();
        let after = slots::try_read_guarded(&*sequence, &fields);
        assert_eq!(after, Ok([1, 1]));
    });
}
