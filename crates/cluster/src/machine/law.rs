//! The two laws of respawning: how long to wait after a death, and when to give a slot up.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The delay after the first death. Milliseconds.
pub const BACKOFF_FIRST_MS: u64 = 250;
/// The longest delay. Milliseconds.
pub const BACKOFF_MAX_MS: u64 = 4_000;
/// A worker that was ready this long starts the delays anew when it dies. Milliseconds.
pub const FORGIVING_UPTIME_MS: u64 = 10_000;
/// The width of the sliding window of the crash-loop guard. Milliseconds.
pub const DEATH_WINDOW_MS: u64 = 10_000;
/// This many deaths within the window give the slot up.
pub const DEATHS_IN_WINDOW_MAX: usize = 5;

/// The delay before a respawn, after `failures` earlier deaths in a row: `min(4000, 250 · 2^failures)` milliseconds.
#[must_use]
pub const fn backoff_ms(failures: u32) -> u64 {
    // The power is bounded before it is taken: no count of failures can wrap it.
    const DOUBLINGS_MAX: u32 = (BACKOFF_MAX_MS / BACKOFF_FIRST_MS).ilog2();
    let doublings = if failures < DOUBLINGS_MAX {
        failures
    } else {
        DOUBLINGS_MAX
    };
    let delay = BACKOFF_FIRST_MS << doublings;
    if delay < BACKOFF_MAX_MS {
        delay
    } else {
        BACKOFF_MAX_MS
    }
}

/// Deaths of one slot: what the laws need to remember.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Deaths {
    /// Deaths in a row without a long enough uptime between them.
    failures: u32,
    /// The times of the latest deaths, oldest first; never more than the guard looks at.
    recent_ms: VecDeque<u64>,
}

impl Deaths {
    /// Takes note of a death after `uptime_ms` of being ready. `None` gives the slot up; else the delay.
    pub(super) fn note(&mut self, now_ms: u64, uptime_ms: u64) -> Option<u64> {
        self.recent_ms.push_back(now_ms);
        if self.recent_ms.len() > DEATHS_IN_WINDOW_MAX {
            self.recent_ms.pop_front();
        }
        let in_window = self
            .recent_ms
            .iter()
            .filter(|at_ms| now_ms.saturating_sub(**at_ms) < DEATH_WINDOW_MS)
            .count();
        (in_window < DEATHS_IN_WINDOW_MAX).then(|| self.delay(uptime_ms))
    }

    /// The delay after something that is no reason to give the slot up.
    pub(super) fn delay(&mut self, uptime_ms: u64) -> u64 {
        if uptime_ms >= FORGIVING_UPTIME_MS {
            self.failures = 0;
        }
        let delay_ms = backoff_ms(self.failures);
        self.failures = self.failures.saturating_add(1);
        delay_ms
    }
}

#[cfg(test)]
mod tests {
    use super::{BACKOFF_FIRST_MS, BACKOFF_MAX_MS, Deaths, backoff_ms};
    use proptest::prelude::*;

    #[test]
    fn delays_double_to_the_cap() {
        let delays: Vec<u64> = (0..7).map(backoff_ms).collect();
        assert_eq!(delays, [250, 500, 1_000, 2_000, 4_000, 4_000, 4_000]);
        assert_eq!(backoff_ms(70), BACKOFF_MAX_MS);
        assert_eq!(backoff_ms(u32::MAX), BACKOFF_MAX_MS);
    }

    #[test]
    fn the_window_slides() {
        let mut deaths = Deaths::default();
        for at_ms in [0, 2_000, 4_000, 6_000] {
            assert!(deaths.note(at_ms, 0).is_some());
        }
        // The first death is exactly ten seconds old, so it is out.
        assert!(deaths.note(10_000, 0).is_some());
        assert!(deaths.note(11_999, 0).is_none());
    }

    #[test]
    fn a_long_uptime_starts_the_delays_anew() {
        let mut deaths = Deaths::default();
        assert_eq!(deaths.note(0, 0), Some(250));
        assert_eq!(deaths.note(10_000, 9_999), Some(500));
        assert_eq!(deaths.note(30_000, 10_000), Some(250));
    }

    proptest! {
        #[test]
        fn the_law_holds_in_wide_arithmetic(failures in any::<u32>()) {
            let exact = 250_u128.saturating_mul(1_u128.checked_shl(failures).unwrap_or(u128::MAX)).min(4_000);
            prop_assert_eq!(u128::from(backoff_ms(failures)), exact);
            prop_assert!(backoff_ms(failures) >= BACKOFF_FIRST_MS);
        }
    }
}
