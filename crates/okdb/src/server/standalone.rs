//! One process that serves and does the background work.

use std::{
    cell::{Cell, RefCell},
    future::pending,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use okdb_cluster::{
    driver::{Order, Orders},
    exit::ExitCode,
    listen::Listeners,
    status::unix_ms,
    systemd::Notifier,
};
use okdb_http::Serving;
use okdb_shm::RowState;
use okdb_store::Store;
use okdb_sys::{Signal, host::monotonic_ms, signals::Signals};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, Interval, MissedTickBehavior},
};

use super::{
    Means, ServerConfig, ServerError, announce,
    arrivals::Arrivals,
    background::BusFollower,
    ending::Ending,
    host::ProcessHost,
    status::ClusterSnapshot,
    worker::{listeners as http_listeners, runtime},
};
use crate::{
    chores::Chores,
    process::{Presence, Telemetry},
};

/// How often the event loop stamps its row. Milliseconds.
const HEARTBEAT_MS: u64 = 1_000;
/// How long before the end of the grace what is left is closed.
const LEAVE_EARLY: Duration = Duration::from_millis(200);

pub(crate) fn run(
    config: &ServerConfig,
    store: &Store,
    telemetry: &Arc<Telemetry>,
    listeners: &Listeners,
    means: Means,
    ending: &Ending,
) -> Result<ExitCode, ServerError> {
    let runtime = runtime().map_err(ServerError::system("cannot make an event loop"))?;
    let result = runtime.block_on(serve(config, store, telemetry, listeners, means, ending));
    runtime.shutdown_background();
    result
}

async fn serve(
    config: &ServerConfig,
    store: &Store,
    telemetry: &Arc<Telemetry>,
    listeners: &Listeners,
    means: Means,
    ending: &Ending,
) -> Result<ExitCode, ServerError> {
    let started_ms = monotonic_ms();
    let presence = telemetry.join(store, okdb_shm::Role::Standalone, Some(0));
    let _bus = BusFollower::start(store, &presence)?;
    let signals = means
        .signals
        .map(Arrivals::new)
        .transpose()
        .map_err(ServerError::system("cannot hear signals"))?;
    let orders = means
        .orders
        .map(Arrivals::new)
        .transpose()
        .map_err(ServerError::system("cannot hear orders"))?;
    let urls: Vec<String> = listeners
        .addresses()
        .map(okdb_cluster::address::Address::url)
        .collect();
    let host = Rc::new(ProcessHost {
        slot: 0,
        store: store.clone(),
        row: presence.row.clone(),
        started_ms,
        in_flight: RefCell::default(),
        connections: Cell::default(),
        snapshot: RefCell::new(snapshot(store, started_ms, &urls)),
        unready: RefCell::new(None),
    });
    let serving = Serving {
        store: store.clone(),
        host: Rc::clone(&host) as Rc<dyn okdb_http::Host>,
        limits: config.http_limits(),
        auto_types: config.auto_types,
        access_log: config.access_log,
    };
    // Duplicates: the originals keep the files of Unix sockets until the end.
    let descriptors = listeners
        .of_slot(0)
        .map(|fd| fd.try_clone_to_owned())
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(ServerError::system("cannot share a listener"))?;
    let http = http_listeners(descriptors)?;
    if let Some(row) = &presence.row {
        row.set_state(RowState::Ready);
    }
    announce(
        config,
        &host.snapshot.borrow(),
        &format!("(single process, root {})", store.root().display()),
    );
    means.notifier.ready(READY_STATUS);
    drop(means.blocked);

    let (_nobody, intake) = mpsc::unbounded_channel();
    let (stopping, stop) = oneshot::channel();
    let mut told = Told {
        config: config.clone(),
        signals,
        orders,
        notifier: means.notifier,
        presence: presence.clone(),
        _chores: means.chores,
    };
    let code = Cell::new(ExitCode::Clean);
    let control = async {
        code.set(told.until_stop().await);
        tracing::info!("stopping");
        told.notifier.stopping();
        host.unready.replace(Some("draining"));
        let grace = Duration::from_millis(told.config.shutdown_grace_ms);
        ending.begin(std::time::Instant::now() + grace, code.get());
        let grace = grace.saturating_sub(LEAVE_EARLY);
        // The other end is gone only with this very future.
        let _ = stopping.send(grace);
        let reason = tokio::select! {
            () = tokio::time::sleep(grace) => "the stop took too long; closing what is left",
            _ = told.until_stop() => "told to stop again; closing what is left",
        };
        tracing::warn!("{reason}");
    };
    let stop = async { stop.await.unwrap_or_default() };
    tokio::select! {
        result = okdb_http::serve(http, intake, serving, stop) => {
            result.map_err(ServerError::system("cannot serve"))?;
        }
        () = control => {}
    }
    Ok(code.get())
}

/// What a service manager reads while all is well.
const READY_STATUS: &str = "single process, ready";

/// What tells a single process what to do.
struct Told {
    config: ServerConfig,
    signals: Option<Arrivals<Signals>>,
    orders: Option<Arrivals<Orders>>,
    notifier: Notifier,
    presence: Presence,
    /// Held for their end: they stop after everything else.
    _chores: Chores,
}

impl Told {
    /// Stamps the row, tells the service manager that all is well, and does what is asked until that is the end.
    async fn until_stop(&mut self) -> ExitCode {
        let mut heartbeat = tokio::time::interval(Duration::from_millis(HEARTBEAT_MS));
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ping = self.notifier.watchdog_interval();
        let mut ping = ping.map(tokio::time::interval);
        loop {
            let orders = tokio::select! {
                due = heartbeat.tick() => {
                    self.presence.beat(Instant::now().saturating_duration_since(due));
                    self.notifier.retry();
                    continue;
                }
                () = tick(&mut ping) => {
                    self.notifier.ping();
                    continue;
                }
                arrived = Arrivals::next_of(&mut self.signals) => arrived.map(|signals| {
                    signals.into_iter().filter_map(|signal| self.heed(signal)).collect()
                }),
                arrived = Arrivals::next_of(&mut self.orders) => arrived,
            };
            let orders = match orders {
                Ok(orders) => orders,
                Err(error) => {
                    tracing::error!(%error, "can no longer be told what to do");
                    return ExitCode::RuntimeFailure;
                }
            };
            for order in orders {
                match order {
                    Order::Stop(code) => return code,
                    Order::Reload => self.reload(),
                    Order::AddWorker | Order::RemoveWorker => {
                        tracing::warn!("refused: a single process has no workers to add or remove");
                    }
                }
            }
        }
    }

    /// The order that a signal stands for.
    fn heed(&self, signal: Signal) -> Option<Order> {
        match signal {
            Signal::Term | Signal::Int => Some(Order::Stop(ExitCode::Clean)),
            Signal::Hup => Some(Order::Reload),
            Signal::Ttin => Some(Order::AddWorker),
            Signal::Ttou => Some(Order::RemoveWorker),
            Signal::Usr1 => {
                (self.config.program.reopen_logs)();
                None
            }
            Signal::Usr2 => {
                tracing::warn!("refused: a single process cannot be upgraded in place; restart it");
                None
            }
            _ => None,
        }
    }

    fn reload(&mut self) {
        let began = okdb_sys::host::monotonic().unwrap_or_default();
        self.notifier.reloading(began);
        match (self.config.program.read_again)() {
            Ok(fresh) => {
                self.config.renew(fresh);
                tracing::info!(
                    "reloaded; limits of requests and connections change with a restart"
                );
                self.notifier.ready(READY_STATUS);
            }
            Err(reason) => {
                tracing::error!(reason, "reload refused: nothing has changed");
                self.notifier.ready("reload refused, see the log");
            }
        }
    }
}

async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => pending().await,
    }
}

fn snapshot(store: &Store, started_ms: u64, urls: &[String]) -> ClusterSnapshot {
    let me = okdb_sys::Identity::current().ok();
    ClusterSnapshot {
        mode: "single".into(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").into(),
        started_ms,
        root: store.root().to_owned(),
        listen: urls.to_vec(),
        slots: vec![okdb_cluster::status::SlotStatus {
            slot: 0,
            pid: Some(std::process::id()),
            start_time: me.map(|me| me.start_time),
            state: okdb_cluster::machine::SlotState::Ready,
            restarts: 0,
            started_at: Some(unix_ms()),
            last_exit: None,
            last_stderr: Vec::new(),
            backoff_ms: None,
            leaving: Vec::new(),
            orphaned: false,
        }],
    }
}
