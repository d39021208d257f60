//! The end of a server has a deadline, too: what it waits for may be in the hands of a process that is stopped.
//!
//! Background work and the closing of the store may need the store's write lock. A library process or a command that is
//! stopped while it holds the lock would keep a server that has been told to stop for as long as it likes.

use std::{
    sync::{
        Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use okdb_cluster::exit::ExitCode;

/// What the end is given at least: nobody waits for a lock that is free.
const TIME_MIN: Duration = Duration::from_millis(500);

/// Ends the process when its end takes too long, once that has begun. Drop it when all is over.
pub(crate) struct Ending {
    /// How a process ends that cannot wait. Without it, the end takes as long as it takes.
    give_up: Option<fn(ExitCode) -> !>,
    begun: Mutex<Option<mpsc::Sender<()>>>,
}

impl Ending {
    pub(crate) fn new(give_up: Option<fn(ExitCode) -> !>) -> Self {
        Self {
            give_up,
            begun: Mutex::default(),
        }
    }

    /// From now on the end has until `by`, and then the process ends with `code`, whatever is left undone.
    pub(crate) fn begin(&self, by: Instant, code: ExitCode) {
        let Some(give_up) = self.give_up else {
            return;
        };
        let (over, news) = mpsc::channel();
        let time = by.saturating_duration_since(Instant::now()).max(TIME_MIN);
        let started = std::thread::Builder::new()
            .name("last-resort".into())
            .spawn(move || {
                if news.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                    tracing::error!(
                        "the end takes too long: does a stopped process hold a write lock? leaving without a clean end; nothing acknowledged is lost"
                    );
                    give_up(code);
                }
            });
        match started {
            Ok(_) => {
                let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
                *begun = Some(over);
            }
            Err(error) => tracing::warn!(%error, "the end has no deadline"),
        }
    }
}
