//! Threads that somebody waits for.

use std::{
    io,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How often a look at a thread that should end is taken.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A running thread. Dropping it waits for its end, so tell it to end before.
pub(crate) struct Thread {
    name: &'static str,
    handle: Option<JoinHandle<()>>,
}

impl Thread {
    /// Starts a thread under a name of at most 15 bytes, which tools show.
    pub(crate) fn start(
        name: &'static str,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let handle = std::thread::Builder::new().name(name.into()).spawn(work)?;
        Ok(Self {
            name,
            handle: Some(handle),
        })
    }

    /// Whether it ends within `time`.
    pub(crate) fn ends_within(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        while self
            .handle
            .as_ref()
            .is_some_and(|handle| !handle.is_finished())
        {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        true
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take()
            && handle.join().is_err()
        {
            tracing::error!(thread = self.name, "a thread ended with a panic");
        }
    }
}
