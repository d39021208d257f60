//! The work of a primary that is not supervision, on threads of its own, and how it is halted for an upgrade.

use std::{
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use okdb_bus::Bus;
use okdb_store::{StopFlag, Store};
use tokio::sync::oneshot;

use super::{ServerError, worker::runtime};
use crate::{db::start_chores, process::Presence};

/// How often the next poke is let through, should one have been lost.
const BUS_REARM: Duration = Duration::from_secs(60);
/// How often a halt looks whether a thread has ended.
const HALT_STEP: Duration = Duration::from_millis(2);

/// A thread that ends when it is told to.
trait Ending {
    /// Whether it has ended within the time.
    fn ends_within(&self, time: Duration) -> bool;
}

impl Ending for JoinHandle<()> {
    fn ends_within(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        while !self.is_finished() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(HALT_STEP);
        }
        true
    }
}

/// The chores of the root: index builds, superseded log entries, and the like.
pub(crate) struct Chores {
    store: Store,
    stop: StopFlag,
    thread: Option<JoinHandle<()>>,
}

impl Chores {
    pub(crate) fn start(store: &Store) -> Result<Self, ServerError> {
        let stop = StopFlag::new();
        Ok(Self {
            store: store.clone(),
            thread: Some(start_chores(store, &stop)?),
            stop,
        })
    }

    fn tell_to_stop(&self) {
        self.stop.stop();
        self.store.wake_chores();
    }

    /// Tells it to stop, and whether it has done so within `time`.
    pub(crate) fn halt(&mut self, time: Duration) -> bool {
        self.tell_to_stop();
        self.thread
            .as_ref()
            .is_none_or(|thread| thread.ends_within(time))
    }

    /// Goes on after a halt.
    pub(crate) fn go_on(&mut self) -> Result<(), ServerError> {
        self.join();
        *self = Self::start(&self.store)?;
        Ok(())
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the background thread ended with a panic");
        }
    }
}

impl Drop for Chores {
    fn drop(&mut self) {
        self.tell_to_stop();
        self.join();
    }
}

/// A thread that wakes the chores when the bus says that something changed somewhere.
pub(crate) struct BusFollower {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl BusFollower {
    /// Follows the bus; without one there is nothing to follow.
    pub(crate) fn start(store: &Store, presence: &Presence) -> Result<Self, ServerError> {
        let (stop, stopped) = oneshot::channel();
        let follow = |bus: Arc<Bus>| {
            let store = store.clone();
            std::thread::Builder::new()
                .name("bus".into())
                .spawn(move || follow(&store, &bus, stopped))
        };
        let thread = presence.bus.as_ref().map(Arc::clone).map(follow);
        let thread = thread
            .transpose()
            .map_err(ServerError::system("cannot start the bus thread"))?;
        Ok(Self {
            stop: Some(stop),
            thread,
        })
    }
}

impl Drop for BusFollower {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the bus thread ended with a panic");
        }
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
    thread: Option<JoinHandle<()>>,
}

impl Mender {
    pub(crate) fn start(store: &Store) -> Result<Self, ServerError> {
        let (work, deaths) = mpsc::channel();
        let mended = store.clone();
        let thread = std::thread::Builder::new()
            .name("mender".into())
            .spawn(move || {
                while deaths.recv().is_ok() {
                    // Deaths that came in meanwhile are mended by the same pass.
                    while deaths.try_recv().is_ok() {}
                    mend(&mended);
                }
            })
            .map_err(ServerError::system("cannot start the mending thread"))?;
        Ok(Self {
            store: store.clone(),
            work: Some(work),
            thread: Some(thread),
        })
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

    /// Goes on after a halt.
    pub(crate) fn go_on(&mut self) -> Result<(), ServerError> {
        self.join();
        *self = Self::start(&self.store)?;
        Ok(())
    }

    fn join(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the mending thread ended with a panic");
        }
    }
}

impl Drop for Mender {
    fn drop(&mut self) {
        self.join();
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
