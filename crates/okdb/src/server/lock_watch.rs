//! Watching the write locks: a worker that is stopped while it holds one would stop every writer of the root with it.
//!
//! Each process shows in its scoreboard row since when it holds a lock. A worker in state T that has held one for two
//! seconds is killed; LMDB's lock is robust, so the next writer goes on at once, and supervision sees an ordinary death.
//! A stopped process of another kind is none of the primary's business to kill: it is named in the log, once.

use std::{
    collections::HashSet,
    sync::mpsc::{self, RecvTimeoutError},
    time::Duration,
};

use okdb_shm::{Role, ScoreRow};
use okdb_store::Store;
use okdb_sys::{Identity, Signal, host::monotonic_ms};

use super::ServerError;
use crate::{process::Presence, thread::Thread};

/// How long a stopped process may hold a write lock. Milliseconds.
const HELD_MS_MAX: u64 = 2_000;
/// How often to look. A look reads the segment; `/proc` only for locks that are held for long.
const TICK: Duration = Duration::from_millis(250);

/// A running watch; it ends when it is dropped.
pub(crate) struct LockWatch {
    stop: Option<mpsc::Sender<()>>,
    _thread: Thread,
}

impl LockWatch {
    /// Watches, and shows the process's own signs of life: it is one that keeps no other rhythm.
    pub(crate) fn start(store: Store, presence: Presence) -> Result<Self, ServerError> {
        let (stop, stopped) = mpsc::channel();
        let thread = Thread::start("lock-watch", move || {
            let mut named = HashSet::new();
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                presence.beat(Duration::ZERO);
                look(&store, &mut named);
            }
        });
        Ok(Self {
            stop: Some(stop),
            _thread: thread.map_err(ServerError::system("cannot start the lock watch"))?,
        })
    }
}

impl Drop for LockWatch {
    fn drop(&mut self) {
        self.stop = None;
    }
}

fn look(store: &Store, named: &mut HashSet<u32>) {
    let now_ms = monotonic_ms();
    for row in store.segment().rows() {
        let Some(owner) = holds_too_long(&row, now_ms) else {
            continue;
        };
        if owner.state() != Some('T') {
            named.remove(&owner.pid);
            continue;
        }
        if row.role == Role::Worker {
            tracing::warn!(
                pid = owner.pid,
                "killing a worker that was stopped while it held the write lock"
            );
            // One that is gone meanwhile has let the lock go.
            if let Err(error) = owner.signal(Signal::Kill)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::error!(pid = owner.pid, %error, "cannot kill it");
            }
        } else if named.insert(owner.pid) {
            tracing::error!(
                pid = owner.pid,
                role = row.role.name(),
                "writes wait: this process is stopped and holds the write lock; continue it or end it"
            );
        }
    }
}

fn holds_too_long(row: &ScoreRow, now_ms: u64) -> Option<Identity> {
    let held = row
        .write_locks
        .iter()
        .map(|held| now_ms.saturating_sub(held.since_ms))
        .max()?;
    row.owner.filter(|_| held >= HELD_MS_MAX)
}
