//! What a worker process does: one event loop that serves HTTP, and a heartbeat that shows it turns.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    os::fd::OwnedFd,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use okdb_cluster::{
    exit::ExitCode,
    parent::{ORPHAN_GRACE, Watch},
    spawner::Inherited,
};
use okdb_http::{Intake, Listener, Serving};
use okdb_ipc::{Connection, Incoming, ToPrimary, ToWorker};
use okdb_shm::RowState;
use okdb_store::{Options, Role, Store};
use okdb_sys::{Signal, host::monotonic_ms, signals::Signals};
use socket2::{Domain, SockRef};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Instant, MissedTickBehavior},
};

use super::{
    ServerError, WorkerConfig, arrivals::Arrivals, host::ProcessHost, status::ClusterSnapshot,
};
use crate::process::{Presence, Telemetry};

/// The hidden command of a worker: `okdb __worker SLOT LISTENERS PARENT_PID [logging options]`.
pub const WORKER_COMMAND: &str = "__worker";

/// How often the event loop says that it turns. Milliseconds.
const HEARTBEAT_MS: u64 = 1_000;
/// How long before the primary would kill it a worker closes what is left, so that it still ends by itself.
const LEAVE_EARLY: Duration = Duration::from_millis(300);
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

impl WorkerArguments {
    /// Reads what follows [`WORKER_COMMAND`], and tells what follows that.
    #[must_use]
    pub fn parse(arguments: &[String]) -> Option<(Self, &[String])> {
        let ([slot, listeners, parent], rest) = arguments.split_first_chunk()?;
        let arguments = Self {
            slot: slot.parse().ok()?,
            listeners: listeners.parse().ok()?,
            parent: parent.parse().ok()?,
        };
        Some((arguments, rest))
    }
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
    let signals = Arrivals::new(signals).map_err(ServerError::system("cannot hear signals"))?;
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
        connections: Cell::default(),
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
    let (intake, taken) = mpsc::unbounded_channel();
    let (leave_by, mut leaving) = watch::channel(None);
    let supervised = Supervised {
        connection,
        signals,
        host: &host,
        presence: &presence,
        gone: &gone,
        drain_timeout: Duration::from_millis(config.drain_timeout_ms),
        intake,
        leave_by,
    };
    let mut stopping = leaving.clone();
    let stop = async move {
        // The other end is gone only with this very future.
        let told = stopping.wait_for(Option::is_some).await;
        let deadline = told.ok().and_then(|told| *told);
        deadline.map_or(Duration::ZERO, |deadline| deadline - Instant::now())
    };
    let result = tokio::select! {
        result = okdb_http::serve(listeners, taken, serving, stop) => result,
        () = past(&mut leaving) => {
            tracing::warn!("the drain took too long; closing what is left");
            Ok(())
        }
        never = supervised.run() => match never {},
    };
    store.close();
    result.map_err(ServerError::system("cannot serve"))?;
    Ok(ExitCode::Clean)
}

/// Waits until the time to leave has come; it may be moved forward meanwhile.
async fn past(leaving: &mut watch::Receiver<Option<Instant>>) {
    loop {
        let deadline = *leaving.borrow_and_update();
        let over = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = over => return,
            changed = leaving.changed() => if changed.is_err() {
                return;
            },
        }
    }
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
            Ok(Some(Incoming {
                message: ToWorker::Config(text),
                ..
            })) => {
                return serde_json::from_str(&text).map(Some).map_err(|error| {
                    ServerError::Config(format!("the primary's configuration: {error}"))
                });
            }
            Ok(
                None
                | Some(Incoming {
                    message: ToWorker::Drain { .. },
                    ..
                }),
            ) => return Ok(None),
            // Snapshots come with the configuration, listeners only to who is ready.
            Ok(Some(_)) => {}
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

/// The supervision side of a worker's event loop.
struct Supervised<'w> {
    connection: Connection,
    signals: Arrivals<Signals>,
    host: &'w ProcessHost,
    presence: &'w Presence,
    gone: &'w Notify,
    /// How long it may drain when a signal of its own tells it to end.
    drain_timeout: Duration,
    /// Listeners that come and go.
    intake: mpsc::UnboundedSender<Intake>,
    /// By when to be gone, once that is asked for.
    leave_by: watch::Sender<Option<Instant>>,
}

/// What has just happened.
enum News {
    Beat(Instant),
    Message(Incoming),
    /// The supervision socket has ended.
    Orphaned,
    Signals(Vec<Signal>),
}

impl Supervised<'_> {
    /// Heartbeats, messages and signals, to the end of the process: a drain may be told to hurry.
    async fn run(mut self) -> Infallible {
        let mut heartbeat = tokio::time::interval(Duration::from_millis(HEARTBEAT_MS));
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut connected, mut heard, mut noticed) = (true, true, false);
        loop {
            let news = tokio::select! {
                due = heartbeat.tick() => News::Beat(due),
                message = self.connection.next(), if connected => match message {
                    Ok(Some(incoming)) => News::Message(incoming),
                    Ok(None) => News::Orphaned,
                    Err(error) => {
                        tracing::error!(%error, "supervision ended");
                        News::Orphaned
                    }
                },
                () = self.gone.notified(), if !noticed => {
                    noticed = true;
                    News::Orphaned
                }
                arrived = self.signals.next(), if heard => News::Signals(arrived.unwrap_or_else(|error| {
                    tracing::error!(%error, "signals are no longer heard");
                    heard = false;
                    vec![Signal::Term]
                })),
            };
            match news {
                News::Beat(due) => self.beat(due),
                News::Message(incoming) => self.take(incoming),
                News::Orphaned => {
                    // The watch has noticed too, and gives as much time.
                    connected = false;
                    self.leave_within(ORPHAN_GRACE);
                }
                News::Signals(signals) if signals.contains(&Signal::Term) => {
                    self.leave_within(self.drain_timeout);
                }
                News::Signals(_) => {}
            }
        }
    }

    /// Begins to leave, or to be quicker about it.
    fn leave_within(&mut self, time: Duration) {
        let deadline = Instant::now() + time.saturating_sub(LEAVE_EARLY);
        if self.host.unready.replace(Some("draining")).is_none() {
            // The others shall answer what comes from now on. A primary that is gone, or does not read, needs no telling.
            if let Err(error) = self.connection.try_send(&ToPrimary::Bye) {
                tracing::debug!(%error, "the primary was not told");
            }
        }
        self.leave_by.send_if_modified(|leave_by| {
            let sooner = leave_by.is_none_or(|earlier| deadline < earlier);
            if sooner {
                *leave_by = Some(deadline);
            }
            sooner
        });
    }

    fn take(&mut self, incoming: Incoming) {
        match incoming.message {
            ToWorker::Drain { deadline_ms } => {
                let left = deadline_ms.saturating_sub(monotonic_ms());
                self.leave_within(Duration::from_millis(left));
            }
            ToWorker::Snapshot(text) => self.note_snapshot(&text),
            ToWorker::Adopt { slot } => match listeners(incoming.descriptors) {
                Ok(listeners) => self.tell_intake(Intake::Adopt { slot, listeners }),
                Err(error) => tracing::error!(slot, %error, "cannot answer for another slot"),
            },
            ToWorker::Release { slot } => self.tell_intake(Intake::Release { slot }),
            ToWorker::Config(_) => {}
        }
    }

    fn tell_intake(&self, intake: Intake) {
        // Nobody accepts any more in a worker that leaves.
        let _ = self.intake.send(intake);
    }

    fn beat(&mut self, due: Instant) {
        let now_ms = monotonic_ms();
        let lag = Instant::now().saturating_duration_since(due);
        self.presence.beat(lag);
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
