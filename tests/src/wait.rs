//! Owns waiting: for a condition, up to a limit, never for a fixed time.
//!
//! `OKDB_TEST_PATIENCE=3` makes every limit three times as long, for a slow or
//! busy machine.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What a promise in seconds is given on top, for a machine busy with other things.
const SLACK: Duration = Duration::from_secs(3);

/// The limit for what has no promised time of its own but must happen.
pub const SOON: Duration = Duration::from_secs(20);

/// A limit, stretched by the patience that the environment asks for.
#[must_use]
pub fn patient(limit: Duration) -> Duration {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    let factor = FACTOR.get_or_init(|| {
        std::env::var("OKDB_TEST_PATIENCE")
            .ok()
            .and_then(|text| text.parse().ok())
            .filter(|factor| *factor >= 1)
            .unwrap_or(1)
    });
    limit * *factor
}

/// The limit of something that okdb promises within `seconds`.
#[must_use]
pub fn promised(seconds: u64) -> Duration {
    patient(Duration::from_secs(seconds) + SLACK)
}

/// Waits until `condition` gives something.
#[track_caller]
pub fn wait_for<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let limit = patient(limit);
    let begin = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(begin.elapsed() < limit, "waited {limit:?} in vain: {what}");
        thread::sleep(LOOK_EVERY);
    }
}

/// Waits until `condition` holds.
#[track_caller]
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, limit, || condition().then_some(()));
}

/// A flag that tells threads to stop.
#[derive(Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// Whether to stop.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Tells everybody to stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Tells everybody to stop when dropped, so that a story that fails amid a
    /// scope of threads ends instead of waiting for them for ever.
    pub fn at_end(&self) -> StopAtEnd<'_> {
        StopAtEnd(self)
    }
}

/// See [`Stop::at_end`].
pub struct StopAtEnd<'a>(&'a Stop);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}
