//! The work of a primary that is not supervision, on threads of its own, and how it is halted for an upgrade.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use okdb_bus::Bus;
use okdb_store::Store;
use tokio::sync::oneshot;

use super::{ServerError, worker::runtime};
use crate::{process::Presence, thread::Thread};

/// How often the next poke is let through, should one have been lost.
const BUS_REARM: Duration = Duration::from_secs(60);
/// A thread that wakes the chores when the bus says that something changed somewhere.
pub(crate) struct BusFollower {
    stop: Option<oneshot::Sender<()>>,
    _thread: Option<Thread>,
}

impl BusFollower {
    /// Follows the bus; without one there is nothing to follow.
    pub(crate) fn start(store: &Store, presence: &Presence) -> Result<Self, ServerError> {
        let (stop, stopped) = oneshot::channel();
        let follow = |bus: Arc<Bus>| {
            let store = store.clone();
            Thread::start("bus", move || follow(&store, &bus, stopped))
        };
        let thread = presence.bus.as_ref().map(Arc::clone).map(follow);
        let thread = thread
            .transpose()
            .map_err(ServerError::system("cannot start the bus thread"))?;
        Ok(Self {
            stop: Some(stop),
            _thread: thread,
        })
    }
}

impl Drop for BusFollower {
    fn drop(&mut self) {
        self.stop = None;
    }
}

/// Until the other end of `stopped` is gone.
fn follow(store: &Store, bus: &Arc<Bus>, stopped: oneshot::Receiver<()>) {
    let listen = async {
        let listener = bus.listen()?;
        let mut rearm = tokio::time::interval(BUS_REARM);
        loop {
            tokio::select! {
                poke = listener.next() => {
                    poke?;
                    store.wake_chores();
                }
                _ = rearm.tick() => bus.rearm(),
            }
        }
    };
    let followed = runtime().and_then(|runtime| {
        runtime.block_on(async {
            tokio::select! {
                failed = listen => failed,
                _ = stopped => Ok(()),
            }
        })
    });
    if let Err(error) = followed {
        tracing::error!(%error, "the bus failed; changes are noticed on ticks only");
    }
}

/// A thread that mends what dead workers leave: reader slots, half-told commits, rows of the segment. It may have to wait
/// for the write lock, which supervision must never do.
pub(crate) struct Mender {
    store: Store,
    work: Option<mpsc::Sender<()>>,
    thread: Option<Thread>,
}

impl Mender {
    pub(crate) fn start(store: &Store) -> Result<Self, ServerError> {
        let mut mender = Self {
            store: store.clone(),
            work: None,
            thread: None,
        };
        mender.go_on()?;
        Ok(mender)
    }

    pub(crate) fn mend(&self) {
        if let Some(work) = &self.work {
            // Only a panic in the thread closes the other end, and that was logged.
            let _ = work.send(());
        }
    }

    /// Lets it finish, and tells whether it has done so within `time`.
    pub(crate) fn halt(&mut self, time: Duration) -> bool {
        self.work = None;
        self.thread
            .as_ref()
            .is_none_or(|thread| thread.ends_within(time))
    }

    /// Goes on after a halt, once the halted thread has ended. Does not wait for that.
    pub(crate) fn go_on(&mut self) -> Result<(), ServerError> {
        let halted = self.thread.take();
        let (work, deaths) = mpsc::channel();
        self.work = Some(work);
        let store = self.store.clone();
        let thread = Thread::start("mender", move || {
            drop(halted);
            while deaths.recv().is_ok() {
                // Deaths that came in meanwhile are mended by the same pass.
                while deaths.try_recv().is_ok() {}
                mend(&store);
            }
        });
        let thread = thread.map_err(ServerError::system("cannot start the mending thread"))?;
        self.thread = Some(thread);
        Ok(())
    }
}

impl Drop for Mender {
    fn drop(&mut self) {
        self.work = None;
    }
}

fn mend(store: &Store) {
    let freed = store.segment().sweep();
    match store
        .clear_stale_readers()
        .and_then(|readers| store.repair().map(|()| readers))
    {
        Ok(readers) => {
            store
                .segment()
                .note_stale_readers(u64::try_from(readers).unwrap_or(u64::MAX));
            tracing::debug!(readers, rows = freed, "mended after a worker's death");
        }
        Err(error) => tracing::error!(%error, "cannot mend after a worker's death"),
    }
}
