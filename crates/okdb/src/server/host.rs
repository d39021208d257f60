//! The process around an HTTP server, as that server sees it.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::Duration,
};

use okdb_http::{Finished, Host};
use okdb_shm::{InFlight, RowGuard};
use okdb_store::Store;
use okdb_sys::host::monotonic_ms;

use super::{metrics, status::ClusterSnapshot};

/// A worker or a standalone process.
pub(crate) struct ProcessHost {
    pub(crate) slot: u32,
    pub(crate) store: Store,
    pub(crate) row: Option<Arc<RowGuard>>,
    /// When the server as a whole came up, in ms of the monotonic clock.
    pub(crate) started_ms: u64,
    /// One for each request that is being answered.
    pub(crate) in_flight: RefCell<Vec<InFlight<Arc<RowGuard>>>>,
    /// Open connections.
    pub(crate) connections: Cell<u64>,
    /// What the primary said last.
    pub(crate) snapshot: RefCell<ClusterSnapshot>,
    /// Why it is not ready.
    pub(crate) unready: RefCell<Option<&'static str>>,
}

impl Host for ProcessHost {
    fn worker(&self) -> u32 {
        self.slot
    }

    fn ready(&self) -> Result<(), String> {
        match *self.unready.borrow() {
            Some(reason) => Err(reason.to_owned()),
            None => Ok(()),
        }
    }

    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    fn uptime(&self) -> Duration {
        Duration::from_millis(monotonic_ms().saturating_sub(self.started_ms))
    }

    fn cluster_status(&self) -> String {
        self.snapshot.borrow().to_json(&self.store).to_string()
    }

    fn metrics(&self) -> String {
        metrics::render(&self.store, &self.snapshot.borrow())
    }

    fn connection_opened(&self) {
        self.set_connections(self.connections.get() + 1);
    }

    fn connection_closed(&self) {
        self.set_connections(self.connections.get().saturating_sub(1));
    }

    fn request_started(&self) {
        if let Some(row) = &self.row {
            self.in_flight
                .borrow_mut()
                .push(InFlight::new(Arc::clone(row)));
        }
    }

    fn request_finished(&self, finished: &Finished) {
        if let Some(row) = &self.row {
            let elapsed_us = u64::try_from(finished.elapsed.as_micros()).unwrap_or(u64::MAX);
            self.in_flight.borrow_mut().pop();
            row.record_request(elapsed_us, finished.failed);
            row.record_bytes(finished.bytes_in, finished.bytes);
        }
    }
}

impl ProcessHost {
    fn set_connections(&self, open: u64) {
        self.connections.set(open);
        if let Some(row) = &self.row {
            row.set_connections(open);
        }
    }
}
