//! One process that serves and does the background work.

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use okdb_cluster::{exit::ExitCode, listen::Listeners};
use okdb_http::Serving;
use okdb_shm::RowState;
use okdb_store::Store;
use okdb_sys::{Signal, host::monotonic_ms, signals::Signals};
use tokio::time::{Instant, MissedTickBehavior};

use super::{
    ServerConfig, ServerError, announce, follow_bus,
    host::ProcessHost,
    status::{ClusterSnapshot, unix_ms},
    worker::{SignalStream, listeners as http_listeners, runtime},
};
use crate::process::Telemetry;

/// How often the event loop stamps its row. Milliseconds.
const HEARTBEAT_MS: u64 = 1_000;
/// How long before the end of the grace what is left is closed.
const LEAVE_EARLY: Duration = Duration::from_millis(200);

pub(crate) fn run(
    config: &ServerConfig,
    store: &Store,
    telemetry: &Arc<Telemetry>,
    listeners: &Listeners,
    signals: Signals,
) -> Result<ExitCode, ServerError> {
    let runtime = runtime().map_err(ServerError::system("cannot make an event loop"))?;
    let result = runtime.block_on(serve(config, store, telemetry, listeners, signals));
    runtime.shutdown_background();
    result
}

async fn serve(
    config: &ServerConfig,
    store: &Store,
    telemetry: &Arc<Telemetry>,
    listeners: &Listeners,
    signals: Signals,
) -> Result<ExitCode, ServerError> {
    let started_ms = monotonic_ms();
    let presence = telemetry.join(store, okdb_shm::Role::Standalone, Some(0));
    follow_bus(store, &presence)?;
    let mut signals =
        SignalStream::new(signals).map_err(ServerError::system("cannot hear signals"))?;
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
        &urls,
        &format!("(single process, root {})", store.root().display()),
    );

    let stopping = tokio::sync::Notify::new();
    let control = async {
        until_stop(&mut signals, presence.row.as_deref()).await;
        tracing::info!("stopping");
        host.unready.replace(Some("draining"));
        stopping.notify_one();
        let grace = Duration::from_millis(config.shutdown_grace_ms).saturating_sub(LEAVE_EARLY);
        tokio::select! {
            () = tokio::time::sleep(grace) => "the stop took too long; closing what is left",
            () = until_stop(&mut signals, None) => "told to stop again; closing what is left",
        }
    };
    tokio::select! {
        result = okdb_http::serve(http, serving, stopping.notified()) => {
            result.map_err(ServerError::system("cannot serve"))?;
        }
        reason = control => tracing::warn!("{reason}"),
    }
    Ok(ExitCode::Clean)
}

/// Stamps the row, and hears signals until one of them means the end.
async fn until_stop(signals: &mut SignalStream, row: Option<&okdb_shm::RowGuard>) {
    let mut heartbeat = tokio::time::interval(Duration::from_millis(HEARTBEAT_MS));
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            due = heartbeat.tick() => {
                let lag = Instant::now().saturating_duration_since(due);
                if let Some(row) = row {
                    row.heartbeat(monotonic_ms(), u64::try_from(lag.as_micros()).unwrap_or(u64::MAX));
                    if let Ok(bytes) = okdb_sys::host::rss_bytes() {
                        row.set_rss_bytes(bytes);
                    }
                }
            }
            arrived = signals.next() => match arrived {
                Ok(arrived) => {
                    for signal in arrived {
                        match signal {
                            Signal::Term | Signal::Int => return,
                            Signal::Ttin | Signal::Ttou => {
                                tracing::warn!(%signal, "refused: a single process has no workers to add or remove");
                            }
                            Signal::Chld => {}
                            other => tracing::info!(signal = %other, "ignored: there is nothing to do for it"),
                        }
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "signals are no longer heard");
                    return;
                }
            },
        }
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
        slot_count: 1,
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
        }],
    }
}
