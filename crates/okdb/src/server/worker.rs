//! What a worker process does: one event loop that serves HTTP, and a heartbeat that shows it turns.

use std::{
    cell::RefCell,
    os::fd::{AsFd, OwnedFd},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use okdb_cluster::{
    exit::ExitCode,
    parent::{ORPHAN_GRACE, Watch},
    spawner::Inherited,
};
use okdb_http::{Listener, Serving};
use okdb_ipc::{Connection, ToPrimary, ToWorker};
use okdb_shm::{RowGuard, RowState};
use okdb_store::{Options, Role, Store};
use okdb_sys::{Signal, host::monotonic_ms, signals::Signals};
use socket2::{Domain, SockRef};
use tokio::{
    io::Interest,
    net::UnixStream,
    sync::Notify,
    time::{Instant, MissedTickBehavior},
};

use super::{ServerError, WorkerConfig, host::ProcessHost, status::ClusterSnapshot};
use crate::process::Telemetry;

/// The hidden command of a worker: `okdb __worker SLOT LISTENERS PARENT_PID [logging options]`.
pub const WORKER_COMMAND: &str = "__worker";

/// How often the event loop says that it turns. Milliseconds.
const HEARTBEAT_MS: u64 = 1_000;
/// How often a drain looks whether its time is up. Milliseconds.
const DEADLINE_TICK_MS: u64 = 50;
/// How long before the primary would kill it a worker closes what is left, so that it still ends by itself.
const LEAVE_EARLY: Duration = Duration::from_millis(300);
/// How long a worker that was told to end by a signal of its own may drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Threads for scans, imports and exports.
const POOL_THREADS_MAX: usize = 4;
/// How long an idle one of them is kept.
const POOL_KEEP: Duration = Duration::from_secs(5);

/// What a worker is told on its command line.
#[derive(Clone, Copy, Debug)]
pub struct WorkerArguments {
    /// Its slot.
    pub slot: u16,
    /// How many listeners it inherits.
    pub listeners: u16,
    /// The primary's pid.
    pub parent: u32,
}

/// Runs a worker until its primary tells it to drain, or is gone. `signals` was installed before anything else was done.
///
/// # Errors
/// [`ServerError`] when the worker could not come up.
pub fn run(arguments: WorkerArguments, signals: Signals) -> Result<ExitCode, ServerError> {
    let inherited = Inherited::take(arguments.listeners).map_err(ServerError::system(
        "a worker is started by its primary, not by hand",
    ))?;
    let watched = inherited
        .ipc
        .try_clone()
        .map_err(ServerError::system("cannot watch the primary"))?;
    let gone = Arc::new(Notify::new());
    let noticed = Arc::clone(&gone);
    Watch::start(watched, arguments.parent, move || {
        tracing::warn!("the primary is gone; finishing what is in flight");
        noticed.notify_one();
    })
    .map_err(ServerError::system("cannot watch the primary"))?;
    let runtime = runtime().map_err(ServerError::system("cannot make an event loop"))?;
    let result = runtime.block_on(serve(arguments, inherited, signals, gone));
    // A scan that still runs must not hold the end; what it read is of no more use.
    runtime.shutdown_background();
    result
}

/// The event loop of a process that serves HTTP.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(POOL_THREADS_MAX)
        .thread_keep_alive(POOL_KEEP)
        .thread_name("pool")
        .build()
}

/// The signals that a worker takes over: an interrupt from a terminal reaches the whole group, and is the primary's to act
/// upon.
pub const SIGNALS: [Signal; 7] = [
    Signal::Term,
    Signal::Int,
    Signal::Hup,
    Signal::Usr1,
    Signal::Usr2,
    Signal::Ttin,
    Signal::Ttou,
];

async fn serve(
    arguments: WorkerArguments,
    inherited: Inherited,
    signals: Signals,
    gone: Arc<Notify>,
) -> Result<ExitCode, ServerError> {
    let signals = SignalStream::new(signals).map_err(ServerError::system("cannot hear signals"))?;
    let mut connection = Connection::new(inherited.ipc)
        .map_err(ServerError::system("cannot talk to the primary"))?;
    let hello = ToPrimary::Hello {
        pid: std::process::id(),
        slot: arguments.slot,
    };
    send(&mut connection, &hello).await?;
    let Some(config) = first_config(&mut connection).await? else {
        return Ok(ExitCode::Clean);
    };
    let telemetry = Telemetry::new();
    let store = Store::open(
        &config.root,
        Options {
            role: Role::Worker,
            auto_types: config.auto_types,
            limits: config.store_limits(),
            hooks: telemetry.clone(),
            ..Options::default()
        },
    )?;
    let presence = telemetry.join(&store, okdb_shm::Role::Worker, Some(arguments.slot));
    let host = Rc::new(ProcessHost {
        slot: arguments.slot.into(),
        store: store.clone(),
        row: presence.row.clone(),
        started_ms: config.snapshot.started_ms,
        in_flight: RefCell::default(),
        snapshot: RefCell::new(config.snapshot.clone()),
        unready: RefCell::new(None),
    });
    let serving = Serving {
        store: store.clone(),
        host: Rc::clone(&host) as Rc<dyn okdb_http::Host>,
        limits: config.http_limits(),
        auto_types: config.auto_types,
        access_log: config.access_log,
    };
    let listeners = listeners(inherited.listeners)?;
    if let Some(row) = &presence.row {
        row.set_state(RowState::Ready);
    }
    send(&mut connection, &ToPrimary::Ready).await?;
    tracing::debug!(slot = arguments.slot, "ready");
    let supervised = Supervised {
        connection,
        signals,
        host: &host,
        row: presence.row.as_deref(),
        gone: &gone,
    };
    let leave_by = RefCell::new(None);
    let stop = async {
        let deadline = supervised.run().await;
        host.unready.replace(Some("draining"));
        leave_by.replace(Some(deadline));
    };
    let deadline = async {
        // Looked at on a tick, since it is only known once the stop has begun.
        let mut tick = tokio::time::interval(Duration::from_millis(DEADLINE_TICK_MS));
        loop {
            tick.tick().await;
            if leave_by
                .borrow()
                .is_some_and(|deadline| Instant::now() >= deadline)
            {
                return;
            }
        }
    };
    let result = tokio::select! {
        result = okdb_http::serve(listeners, serving, stop) => result,
        () = deadline => {
            tracing::warn!("the drain took too long; closing what is left");
            Ok(())
        }
    };
    store.close();
    result.map_err(ServerError::system("cannot serve"))?;
    Ok(ExitCode::Clean)
}

async fn send(connection: &mut Connection, message: &ToPrimary) -> Result<(), ServerError> {
    connection
        .send(message)
        .await
        .map_err(|error| ServerError::Config(format!("cannot talk to the primary: {error}")))
}

/// The configuration; `None` if the primary went away, or wants this worker to go, before it gave one.
async fn first_config(connection: &mut Connection) -> Result<Option<WorkerConfig>, ServerError> {
    loop {
        match connection.next().await {
            Ok(Some(ToWorker::Config(text))) => {
                return serde_json::from_str(&text).map(Some).map_err(|error| {
                    ServerError::Config(format!("the primary's configuration: {error}"))
                });
            }
            Ok(Some(ToWorker::Snapshot(_))) => {}
            Ok(Some(ToWorker::Drain { .. }) | None) => return Ok(None),
            Err(error) => return Err(ServerError::Config(error.to_string())),
        }
    }
}

/// Turns listening descriptors into what the HTTP side serves.
pub(crate) fn listeners(descriptors: Vec<OwnedFd>) -> Result<Vec<Listener>, ServerError> {
    let listener = |fd: OwnedFd| -> std::io::Result<Listener> {
        Ok(if SockRef::from(&fd).domain()? == Domain::UNIX {
            Listener::Unix(fd.into())
        } else {
            Listener::Tcp(fd.into())
        })
    };
    descriptors
        .into_iter()
        .map(listener)
        .collect::<std::io::Result<_>>()
        .map_err(ServerError::system(
            "an inherited descriptor is no listener",
        ))
}

/// Signals as a stream for an event loop.
pub(crate) struct SignalStream {
    signals: Signals,
    /// A duplicate of the pipe that the signals arrive in; only its readiness is used.
    pipe: UnixStream,
}

impl SignalStream {
    pub(crate) fn new(signals: Signals) -> std::io::Result<Self> {
        let pipe = std::os::unix::net::UnixStream::from(signals.as_fd().try_clone_to_owned()?);
        pipe.set_nonblocking(true)?;
        Ok(Self {
            signals,
            pipe: UnixStream::from_std(pipe)?,
        })
    }

    /// The signals that have arrived; waits for some.
    pub(crate) async fn next(&mut self) -> std::io::Result<Vec<Signal>> {
        loop {
            self.pipe.readable().await?;
            let signals = &mut self.signals;
            let arrived = self.pipe.try_io(Interest::READABLE, || {
                let arrived = signals.drain();
                if arrived.is_empty() {
                    Err(std::io::ErrorKind::WouldBlock.into())
                } else {
                    Ok(arrived)
                }
            });
            match arrived {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                arrived => return arrived,
            }
        }
    }
}

/// The supervision side of a worker's event loop.
struct Supervised<'w> {
    connection: Connection,
    signals: SignalStream,
    host: &'w ProcessHost,
    row: Option<&'w RowGuard>,
    gone: &'w Notify,
}

impl Supervised<'_> {
    /// Heartbeats and messages, until it is time to leave; returns by when.
    async fn run(mut self) -> Instant {
        let mut heartbeat = tokio::time::interval(Duration::from_millis(HEARTBEAT_MS));
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                due = heartbeat.tick() => {
                    self.beat(due);
                }
                message = self.connection.next() => match message {
                    Ok(Some(ToWorker::Drain { deadline_ms })) => {
                        let left = Duration::from_millis(deadline_ms.saturating_sub(monotonic_ms()));
                        return Instant::now() + left.saturating_sub(LEAVE_EARLY);
                    }
                    Ok(Some(ToWorker::Snapshot(text))) => self.note_snapshot(&text),
                    Ok(Some(ToWorker::Config(_))) => {}
                    // The watch has noticed too, and gives as much time.
                    Ok(None) => return Instant::now() + ORPHAN_GRACE.saturating_sub(LEAVE_EARLY),
                    Err(error) => {
                        tracing::error!(%error, "supervision ended");
                        return Instant::now() + ORPHAN_GRACE.saturating_sub(LEAVE_EARLY);
                    }
                },
                () = self.gone.notified() => {
                    return Instant::now() + ORPHAN_GRACE.saturating_sub(LEAVE_EARLY);
                }
                arrived = self.signals.next() => match arrived {
                    Ok(signals) if signals.contains(&Signal::Term) => {
                        return Instant::now() + DRAIN_TIMEOUT;
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::error!(%error, "signals are no longer heard");
                        return Instant::now() + DRAIN_TIMEOUT;
                    }
                },
            }
        }
    }

    fn beat(&mut self, due: Instant) {
        let now_ms = monotonic_ms();
        let lag = Instant::now().saturating_duration_since(due);
        if let Some(row) = self.row {
            row.heartbeat(now_ms, u64::try_from(lag.as_micros()).unwrap_or(u64::MAX));
            if let Ok(bytes) = okdb_sys::host::rss_bytes() {
                row.set_rss_bytes(bytes);
            }
        }
        // A full socket means a primary that does not read: it is stopped, and will hear the next beat.
        if let Err(error) = self
            .connection
            .try_send(&ToPrimary::Heartbeat { at_ms: now_ms })
        {
            tracing::debug!(%error, "a heartbeat was not sent");
        }
    }

    fn note_snapshot(&self, text: &str) {
        match serde_json::from_str::<ClusterSnapshot>(text) {
            Ok(snapshot) => {
                self.host.snapshot.replace(snapshot);
            }
            Err(error) => tracing::warn!(%error, "a snapshot of the cluster does not parse"),
        }
    }
}
