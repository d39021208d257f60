//! The root's background work on a thread of this process.

use std::{io, time::Duration};

use okdb_store::{StopFlag, Store};

use crate::thread::Thread;

/// The chores of the root: index builds, superseded log entries, and the like. Dropping this waits for their end.
pub(crate) struct Chores {
    store: Store,
    stop: StopFlag,
    thread: Option<Thread>,
}

impl Chores {
    pub(crate) fn start(store: &Store) -> io::Result<Self> {
        let mut chores = Self {
            store: store.clone(),
            stop: StopFlag::new(),
            thread: None,
        };
        chores.go_on()?;
        Ok(chores)
    }

    /// Tells it to stop, and whether it has done so within `time`.
    pub(crate) fn halt(&mut self, time: Duration) -> bool {
        self.stop.stop();
        self.store.wake_chores();
        self.thread
            .as_ref()
            .is_none_or(|thread| thread.ends_within(time))
    }

    /// Goes on after a halt, once the halted thread has ended. Does not wait for that.
    pub(crate) fn go_on(&mut self) -> io::Result<()> {
        let halted = self.thread.take();
        self.stop = StopFlag::new();
        let (store, stop) = (self.store.clone(), self.stop.clone());
        let thread = Thread::start("chores", move || {
            drop(halted);
            store.run_chores(&stop);
        });
        self.thread = Some(thread?);
        Ok(())
    }
}

impl Drop for Chores {
    fn drop(&mut self) {
        self.halt(Duration::ZERO);
    }
}
