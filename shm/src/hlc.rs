//! The hybrid logical clock: 48 bits of wall-clock milliseconds, 16 bits of counter, one word for all
//! processes of the root.
//!
//! A stamp is never given twice and never goes back, whatever the wall clock does: while it stands still
//! or steps back, the counter counts on, and its overflow carries into the milliseconds.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::word::Word;

/// Bits of the counter.
const COUNTER_BITS: u32 = 16;

/// The highest stamp that [`Hlc::observe`] takes over (a time in the year 6429). A stored stamp beyond it
/// is damage, and following it would leave no room to count on.
pub const OBSERVED_MAX: u64 = 1 << 63;

/// The latest wall-clock time that a stamp follows, in milliseconds since 1970.
const WALL_MS_MAX: u64 = OBSERVED_MAX >> COUNTER_BITS;

/// The milliseconds since 1970 of a stamp.
#[must_use]
pub fn stamp_ms(stamp: u64) -> u64 {
    stamp >> COUNTER_BITS
}

/// The root's clock for timestamps.
#[derive(Clone, Copy)]
pub struct Hlc<'a> {
    pub(crate) word: &'a AtomicU64,
}

impl Hlc<'_> {
    /// A new stamp: above every stamp that any process got from this clock or made it observe, and not
    /// below `wall_ms`, milliseconds since 1970.
    #[must_use]
    pub fn now(&self, wall_ms: u64) -> u64 {
        advance(self.word, wall_ms)
    }

    /// Makes every later stamp exceed `stamp` (up to [`OBSERVED_MAX`]), as when the clock is seeded from
    /// what the store holds.
    pub fn observe(&self, stamp: u64) {
        observe(self.word, stamp);
    }

    /// The latest stamp given or observed; 0 at first.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }
}

/// Relaxed orderings would keep stamps unique; these also make whoever sees a stamp see what its giver saw.
pub(crate) fn advance<W: Word>(word: &W, wall_ms: u64) -> u64 {
    let wall = wall_ms.min(WALL_MS_MAX) << COUNTER_BITS;
    let mut last = word.load(Ordering::Acquire);
    loop {
        // No overflow: both terms start at 2^63 at most, and nobody counts 2^63 stamps.
        let next = wall.max(last.saturating_add(1));
        match word.compare_exchange(last, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return next,
            Err(newer) => last = newer,
        }
    }
}

pub(crate) fn observe<W: Word>(word: &W, stamp: u64) {
    word.fetch_max(stamp.min(OBSERVED_MAX), Ordering::AcqRel);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stamps_rise_whatever_the_wall_clock_says(
            steps in proptest::collection::vec((any::<u64>(), any::<bool>()), 1..200),
        ) {
            let word = AtomicU64::new(0);
            let hlc = Hlc { word: &word };
            let mut highest = 0;
            for (value, observed) in steps {
                if observed {
                    hlc.observe(value);
                    highest = highest.max(value.min(OBSERVED_MAX));
                    prop_assert_eq!(hlc.last(), highest);
                } else {
                    let stamp = hlc.now(value);
                    prop_assert!(stamp > highest);
                    prop_assert!(stamp_ms(stamp) >= value.min(WALL_MS_MAX));
                    highest = stamp;
                }
            }
        }
    }

    #[test]
    fn the_counter_carries_into_the_milliseconds() {
        let word = AtomicU64::new(0);
        let hlc = Hlc { word: &word };
        let first = hlc.now(1000);
        assert_eq!((stamp_ms(first), first & 0xffff), (1000, 0));
        let mut last = first;
        for _ in 0..70_000 {
            let stamp = hlc.now(1000);
            assert_eq!(stamp, last + 1);
            last = stamp;
        }
        assert_eq!(stamp_ms(last), 1001);
        assert_eq!(hlc.now(500), last + 1, "a step back changes nothing");
        assert_eq!(stamp_ms(hlc.now(2000)), 2000);
    }
}
