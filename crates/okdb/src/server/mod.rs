//! Running a server: one standalone process, or a primary with its workers.
//!
//! [`run`] is what the `okdb` command does after it has read its configuration. It decides between the two forms (the hard
//! gate included), and returns the exit code. [`worker::run`] is the other side: what a worker process does.

mod arrivals;
mod background;
mod config;
mod ending;
mod gate;
mod host;
mod lock_watch;
mod metrics;
mod primary;
mod standalone;
pub mod status;
pub mod upgrade;
pub mod worker;

use std::{num::NonZeroU16, os::fd::OwnedFd, sync::Arc};

pub(crate) use arrivals::Arrivals;
pub use config::{Program, Ready, ServerConfig, WorkerConfig};
pub use gate::{GATE_COMMAND, answer_gate, prove};
use okdb_cluster::{
    driver::Orders,
    exit::ExitCode,
    listen::{ListenError, Listeners},
    systemd::Notifier,
};
pub use okdb_http::{LineRefused, import_line};
use okdb_store::{OpenError, Options, Role, Store};
use okdb_sys::signals::{Blocked, Signals};
pub use upgrade::Takeover;
pub use worker::WORKER_COMMAND;

use ending::Ending;
use primary::Beginning;
use status::ClusterSnapshot;

use crate::{chores::Chores, process::Telemetry};

/// Why a server did not come up, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The root could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The listeners could not be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The configuration makes no sense together.
    #[error("{0}")]
    Config(String),
    /// It came to an end that nobody asked for, or before it was ready.
    #[error("the server has ended: {}", .0.meaning())]
    Ended(ExitCode),
    /// Anything that the system refused.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

impl ServerError {
    /// The exit code that belongs to it.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Open(OpenError::Locked { .. }) => ExitCode::RootLocked,
            Self::Listen(ListenError::AddressInUse { .. }) => ExitCode::AddressInUse,
            Self::Open(
                OpenError::Option(_)
                | OpenError::NotARoot { .. }
                | OpenError::NetworkFs { .. }
                | OpenError::FormatTooNew { .. },
            )
            | Self::Listen(_)
            | Self::Config(_) => ExitCode::Usage,
            Self::Ended(code) => *code,
            Self::Open(_) | Self::System { .. } => ExitCode::RuntimeFailure,
        }
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// What a server process finds when it comes up, beside its configuration.
pub struct Birth {
    /// The signals, installed before anything else was done. Without them the server is told what to do by other means.
    pub signals: Option<Signals>,
    /// Keeps them waiting until all threads have been started that shall not hear them.
    pub blocked: Option<Blocked>,
    /// What other threads want done.
    pub orders: Option<Orders>,
    /// Whom to tell what happens.
    pub notifier: Notifier,
    /// Sockets that a service manager made; they listen already.
    pub sockets: Vec<OwnedFd>,
    /// What the program that this process ran before has handed over.
    pub takeover: Option<Takeover>,
}

impl Default for Birth {
    /// Of a process that nobody manages and nothing can tell what to do.
    fn default() -> Self {
        Self {
            signals: None,
            blocked: None,
            orders: None,
            notifier: Notifier::none(),
            sockets: Vec::new(),
            takeover: None,
        }
    }
}

/// Serves until it is told to stop. Call it on the main thread.
///
/// # Errors
/// [`ServerError`] when the server could not come up.
pub fn run(config: &ServerConfig, birth: Birth) -> Result<ExitCode, ServerError> {
    let mut config = config.clone();
    if let Some(takeover) = &birth.takeover {
        takeover
            .settle(&mut config)
            .map_err(ServerError::system("cannot go on as the upgraded server"))?;
    }
    let lock = birth.takeover.as_ref().map(|taken| Arc::clone(&taken.lock));
    let (store, telemetry) = open(&config, lock)?;
    serve(&config, &store, &telemetry, birth)
}

/// Opens the root as its server.
pub(crate) fn open(
    config: &ServerConfig,
    lock: Option<Arc<OwnedFd>>,
) -> Result<(Store, Arc<Telemetry>), ServerError> {
    config.check()?;
    let telemetry = Telemetry::new();
    let options = Options {
        role: Role::Server,
        durability: config.durability,
        map_size: config.map_size,
        segment_in_root: config.segment_in_root,
        private_segment: config.force_private_segment,
        auto_types: config.auto_types,
        limits: config.store_limits(),
        hooks: telemetry.clone(),
        server_lock: lock,
        ..Options::default()
    };
    Ok((Store::open(&config.root, options)?, telemetry))
}

/// Serves an opened root until it is told to stop; the store refuses writes from then on. Workers end when the calling
/// thread does.
pub(crate) fn serve(
    config: &ServerConfig,
    store: &Store,
    telemetry: &Arc<Telemetry>,
    birth: Birth,
) -> Result<ExitCode, ServerError> {
    // Until the store is closed, too.
    let ending = Ending::new(config.program.give_up);
    let served = match birth.takeover {
        Some(takeover) => {
            forget_predecessor(store)?;
            let means = Means {
                signals: birth.signals,
                blocked: birth.blocked,
                orders: birth.orders,
                notifier: birth.notifier,
                chores: Chores::start(store).map_err(ServerError::system(NO_CHORES))?,
            };
            let beginning = Beginning::Resume(takeover);
            primary::run(config, store, telemetry, beginning, means, &ending)
        }
        None => start(config, store, telemetry, birth, &ending),
    };
    store.close();
    served
}

/// A server that begins with nothing.
fn start(
    config: &ServerConfig,
    store: &Store,
    telemetry: &Arc<Telemetry>,
    birth: Birth,
    ending: &Ending,
) -> Result<ExitCode, ServerError> {
    let mut workers = config.workers;
    if config.force_private_segment {
        single_instead(workers, "OKDB_FORCE_SHM_FALLBACK is set");
        workers = NonZeroU16::MIN;
    } else if workers > NonZeroU16::MIN
        && let Err(error) = prove(store)
    {
        single_instead(workers, &error.to_string());
        workers = NonZeroU16::MIN;
    }
    // Every listener, before any background work: a taken address must not cost a half-started server.
    let mut listeners = Listeners::bind(&config.listen, workers)?;
    listeners.add_given(birth.sockets)?;
    config.check_addresses(listeners.addresses())?;
    let means = Means {
        signals: birth.signals,
        blocked: birth.blocked,
        orders: birth.orders,
        notifier: birth.notifier,
        chores: Chores::start(store).map_err(ServerError::system(NO_CHORES))?,
    };
    if workers == NonZeroU16::MIN {
        standalone::run(config, store, telemetry, &listeners, means, ending)
    } else {
        let beginning = Beginning::Start(listeners);
        primary::run(config, store, telemetry, beginning, means, ending)
    }
}

/// Why there is no background work.
const NO_CHORES: &str = "cannot start the thread for background work";

/// What a server works with beside its configuration and its store.
struct Means {
    signals: Option<Signals>,
    blocked: Option<Blocked>,
    orders: Option<Orders>,
    notifier: Notifier,
    chores: Chores,
}

/// The rows that the program which this process ran before had claimed: they seem to be ours, and are nobody's.
fn forget_predecessor(store: &Store) -> Result<(), ServerError> {
    let me = okdb_sys::Identity::current().map_err(ServerError::system("cannot read /proc"))?;
    store.segment().forget_predecessor(me);
    Ok(())
}

fn single_instead(asked: NonZeroU16, reason: &str) {
    tracing::warn!(
        asked,
        reason,
        "cluster: unavailable, running single-process"
    );
}

/// The one line that says: from now on every worker serves.
fn announce(config: &ServerConfig, snapshot: &ClusterSnapshot, details: &str) {
    (config.program.ready)(&Ready {
        line: &format!("okdb ready on {} {details}", snapshot.listen.join(" ")),
        snapshot,
    });
}
