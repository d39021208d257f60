//! What a process of a root shows to the others: its scoreboard row, its pokes, and who listens to its commits.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use okdb_bus::{Bus, secret};
use okdb_shm::{Role, RowGuard};
use okdb_store::{Commit, Hooks, Store};
use okdb_sys::{Identity, host::monotonic_ms};
use tokio::sync::broadcast;

/// Commits that a slow listener may be behind before it is told to look again.
const COMMITS_KEPT: usize = 256;

/// The store's hooks of this process. The row and the bus come after the store, which they need.
pub(crate) struct Telemetry {
    row: OnceLock<Arc<RowGuard>>,
    bus: OnceLock<Arc<Bus>>,
    commits: broadcast::Sender<Commit>,
}

impl Telemetry {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            row: OnceLock::new(),
            bus: OnceLock::new(),
            commits: broadcast::Sender::new(COMMITS_KEPT),
        })
    }

    pub(crate) fn commits(&self) -> broadcast::Receiver<Commit> {
        self.commits.subscribe()
    }

    /// Takes a scoreboard row and a place on the bus. Without a row or a socket the process works as well; it is only less
    /// visible, and others notice its commits on their ticks.
    pub(crate) fn join(&self, store: &Store, role: Role, slot: Option<u16>) -> Presence {
        let segment = store.segment();
        let me = match Identity::current() {
            Ok(me) => me,
            Err(error) => {
                tracing::warn!(%error, "/proc cannot be read: this process is missing in the status and on the bus");
                return Presence::default();
            }
        };
        let row = match segment.claim_row(role, slot, me) {
            Ok(row) => Some(Arc::new(row)),
            Err(error) => {
                tracing::warn!(%error, "no scoreboard row: this process is missing in the status");
                None
            }
        };
        let bus = match Bus::open(Arc::clone(segment), me, secret::from_env(store.secret())) {
            Ok(bus) => Some(Arc::new(bus)),
            Err(error) => {
                tracing::warn!(%error, "no bus: changes travel on ticks only");
                None
            }
        };
        if let Some(row) = &row {
            row.set_bus_port(bus.as_ref().map_or(0, |bus| bus.port()));
            let _ = self.row.set(Arc::clone(row));
        }
        if let Some(bus) = &bus {
            let _ = self.bus.set(Arc::clone(bus));
        }
        Presence { row, bus }
    }
}

/// What a process has of its own in the segment.
#[derive(Clone, Default)]
pub(crate) struct Presence {
    pub(crate) row: Option<Arc<RowGuard>>,
    pub(crate) bus: Option<Arc<Bus>>,
}

impl Presence {
    /// A process's sign of life, and what others want to know of it now and then: `lag` is how late the sign came.
    pub(crate) fn beat(&self, lag: Duration) {
        if let Some(row) = &self.row {
            row.heartbeat(
                monotonic_ms(),
                u64::try_from(lag.as_micros()).unwrap_or(u64::MAX),
            );
            if let Ok(bytes) = okdb_sys::host::rss_bytes() {
                row.set_rss_bytes(bytes);
            }
        }
        if let (Some(row), Some(bus)) = (&self.row, &self.bus) {
            bus.report(row);
        }
    }
}

impl Hooks for Telemetry {
    fn committed(&self, commit: &Commit) {
        if let Some(row) = self.row.get() {
            row.record_commit(u64::from(commit.operations), commit.synced);
        }
        if let Some(bus) = self.bus.get() {
            bus.poke(commit.env_index, commit.clock);
        }
        // Nobody listening is the usual case.
        let _ = self.commits.send(commit.clone());
    }

    fn holding_write_lock(&self, env_index: u16, batch: &mut dyn FnMut()) {
        let _held = self
            .row
            .get()
            .map(|row| row.hold_write_lock(env_index, monotonic_ms()));
        batch();
    }
}
