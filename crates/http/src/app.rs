//! What all handlers of one worker share.

use std::{
    cell::{Cell, OnceCell},
    rc::Rc,
    sync::Arc,
};

use bytes::Bytes;
use hyper::header::HeaderValue;
use okdb_store::Store;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    accept::Reserve, host::Host, limits::HttpLimits, pool::Pool, problem::Problem, router::Router,
    watch::Connections,
};

/// What a server serves, and how.
pub struct Serving {
    /// The store; open.
    pub store: Store,
    /// The process around it.
    pub host: Rc<dyn Host>,
    /// Bounds.
    pub limits: HttpLimits,
    /// Whether a write to an unknown type creates it; as the store was opened.
    pub auto_types: bool,
    /// Whether each request leaves a line in the log (target `okdb::access`).
    pub access_log: bool,
}

/// One worker's HTTP side. Belongs to its event loop.
pub(crate) struct App {
    pub(crate) store: Store,
    pub(crate) host: Rc<dyn Host>,
    pub(crate) limits: HttpLimits,
    pub(crate) auto_types: bool,
    pub(crate) access_log: bool,
    pub(crate) router: Router,
    pub(crate) pool: Pool,
    /// One permit an import or export.
    transfers: Arc<Semaphore>,
    /// Bytes of request bodies that are held in memory.
    held_bytes: Cell<usize>,
    pub(crate) connections: Rc<Connections>,
    pub(crate) reserve: Reserve,
    pub(crate) worker_header: HeaderValue,
    /// The `OpenAPI` document, once asked for.
    pub(crate) openapi: OnceCell<Bytes>,
    /// The documentation page, once asked for.
    pub(crate) docs: OnceCell<Bytes>,
}

impl App {
    /// Prepares to serve.
    pub(crate) fn new(serving: Serving) -> Self {
        let Serving {
            store,
            host,
            limits,
            auto_types,
            access_log,
        } = serving;
        Self {
            store,
            auto_types,
            access_log,
            router: Router::new(),
            pool: Pool::new(limits.heavy_running, limits.heavy_waiting),
            transfers: Arc::new(Semaphore::new(limits.transfers.min(Semaphore::MAX_PERMITS))),
            held_bytes: Cell::new(0),
            connections: Rc::new(Connections::new()),
            reserve: Reserve::new(),
            worker_header: HeaderValue::from(host.worker()),
            openapi: OnceCell::new(),
            docs: OnceCell::new(),
            host,
            limits,
        }
    }

    /// Admits an import or export, or refuses it when too many are under way.
    pub(crate) fn admit_transfer(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.transfers)
            .try_acquire_owned()
            .map_err(|_| Problem::overloaded())
    }

    /// Takes room for bytes of a body, or refuses when all bodies together hold too many.
    pub(crate) fn hold(&self, bytes: usize) -> Result<(), Problem> {
        let held = self.held_bytes.get().saturating_add(bytes);
        if held > self.limits.held_bytes {
            return Err(Problem::overloaded());
        }
        self.held_bytes.set(held);
        Ok(())
    }

    /// Gives room back.
    pub(crate) fn release(&self, bytes: usize) {
        self.held_bytes
            .set(self.held_bytes.get().saturating_sub(bytes));
    }
}
