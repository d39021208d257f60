//! Running a server: one standalone process, or a primary with its workers.
//!
//! [`run`] is what the `okdb` command does after it has read its configuration. It decides between the two forms (the hard
//! gate included), and returns the exit code. [`worker::run`] is the other side: what a worker process does.

mod config;
mod gate;
mod host;
mod lock_watch;
mod primary;
mod standalone;
pub mod status;
pub mod worker;

use std::{num::NonZeroU16, sync::Arc};

pub use config::{ServerConfig, WorkerConfig};
pub use gate::{GATE_COMMAND, answer_gate, prove};
use okdb_cluster::{
    exit::ExitCode,
    listen::{ListenError, Listeners},
};
pub use okdb_http::{LineRefused, import_line};
use okdb_store::{OpenError, Options, Role, StopFlag, Store};
use okdb_sys::signals::Signals;
pub use worker::WORKER_COMMAND;

use crate::{db::start_chores, process::Telemetry};

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
            Self::Open(_) | Self::System { .. } => ExitCode::RuntimeFailure,
        }
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// Serves until it is told to stop. Call it on the main thread, with `signals` installed before anything else was done.
///
/// # Errors
/// [`ServerError`] when the server could not come up.
pub fn run(config: &ServerConfig, signals: Signals) -> Result<ExitCode, ServerError> {
    config.check()?;
    let telemetry = Telemetry::new();
    let forced_single = config.force_private_segment;
    let options = Options {
        role: Role::Server,
        durability: config.durability,
        map_size: config.map_size,
        segment_in_root: config.segment_in_root,
        private_segment: forced_single,
        auto_types: config.auto_types,
        limits: config.store_limits(),
        hooks: telemetry.clone(),
        ..Options::default()
    };
    let store = Store::open(&config.root, options)?;
    let mut workers = config.workers;
    if forced_single {
        single_instead(workers, "OKDB_FORCE_SHM_FALLBACK is set");
        workers = NonZeroU16::MIN;
    } else if workers > NonZeroU16::MIN
        && let Err(error) = prove(&store)
    {
        single_instead(workers, &error.to_string());
        workers = NonZeroU16::MIN;
    }
    // Every listener, before any background work: a taken address must not cost a half-started server.
    let listeners = Listeners::bind(&config.listen, workers)?;
    let stop = StopFlag::new();
    let chores = start_chores(&store, &stop)?;
    let served = if workers == NonZeroU16::MIN {
        standalone::run(config, &store, &telemetry, &listeners, signals)
    } else {
        primary::run(config, &store, &telemetry, listeners, signals)
    };
    stop.stop();
    store.wake_chores();
    if chores.join().is_err() {
        tracing::error!("the background thread ended with a panic");
    }
    store.close();
    served
}

fn single_instead(asked: NonZeroU16, reason: &str) {
    tracing::warn!(
        asked,
        reason,
        "cluster: unavailable, running single-process"
    );
}

/// The one line that says: from now on every worker serves.
fn announce(config: &ServerConfig, urls: &[String], details: &str) {
    (config.announce)(&format!("okdb ready on {} {details}", urls.join(" ")));
}

/// Wakes the background work when the bus says that something changed somewhere. Ends with the process.
fn follow_bus(store: &Store, presence: &crate::process::Presence) -> Result<(), ServerError> {
    let Some(bus) = presence.bus.as_ref().map(Arc::clone) else {
        return Ok(());
    };
    let store = store.clone();
    std::thread::Builder::new()
        .name("bus".into())
        .spawn(move || {
            loop {
                match bus.wait(BUS_WAIT) {
                    Ok(Some(_)) => store.wake_chores(),
                    Ok(None) => bus.rearm(),
                    Err(error) => {
                        tracing::error!(%error, "the bus failed; changes are noticed on ticks only");
                        return;
                    }
                }
            }
        })
        .map_err(ServerError::system("cannot start the bus thread"))?;
    Ok(())
}

/// How long the bus thread sleeps when nobody pokes.
const BUS_WAIT: std::time::Duration = std::time::Duration::from_secs(60);
