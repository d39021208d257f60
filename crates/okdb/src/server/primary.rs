//! The primary: supervises workers on the main thread, and mends what a dead one left behind on another.

use std::{
    ffi::OsString,
    sync::{Arc, mpsc},
};

use okdb_cluster::{
    driver::{Driver, Observer, Options},
    exit::ExitCode,
    listen::Listeners,
    machine::{Limits, SlotState, WorkerExit},
    spawner::{ExecSpawner, Launch},
    status::SlotStatus,
};
use okdb_shm::{SlotRow, SlotWriter};
use okdb_store::Store;
use okdb_sys::{host::monotonic_ms, reap::Exit, signals::Signals};

use super::{
    ServerConfig, ServerError, WORKER_COMMAND, announce, follow_bus,
    lock_watch::LockWatch,
    status::{ClusterSnapshot, unix_ms},
};
use crate::process::Telemetry;

pub(crate) fn run(
    config: &ServerConfig,
    store: &Store,
    telemetry: &Arc<Telemetry>,
    listeners: Listeners,
    signals: Signals,
) -> Result<ExitCode, ServerError> {
    let started_ms = monotonic_ms();
    let presence = telemetry.join(store, okdb_shm::Role::Primary, None);
    follow_bus(store, &presence)?;
    let urls: Vec<String> = listeners
        .addresses()
        .map(okdb_cluster::address::Address::url)
        .collect();
    let addresses = listeners.addresses().len();
    let mut observer = Supervisor {
        config: config.clone(),
        snapshot: ClusterSnapshot {
            mode: "cluster".into(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            started_ms,
            root: store.root().to_owned(),
            listen: urls,
            slot_count: config.workers.get(),
            slots: Vec::new(),
        },
        mender: Mender::start(store.clone())?,
        slots: slot_writer(store),
    };
    let _lock_watch = LockWatch::start(store.clone())?;
    let me = std::process::id();
    let log_arguments = config.worker_log_arguments.clone();
    let mut spawner = ExecSpawner::new("okdb", move |launch: &Launch<'_>| {
        let mut arguments: Vec<OsString> = vec![
            WORKER_COMMAND.into(),
            launch.worker.slot.to_string().into(),
            addresses.to_string().into(),
            me.to_string().into(),
        ];
        arguments.extend(log_arguments.iter().map(OsString::from));
        arguments
    });
    let options = Options {
        limits: Limits {
            worker_timeout_ms: config.worker_timeout_ms,
            ..Limits::default()
        },
        shutdown_grace_ms: config.shutdown_grace_ms,
    };
    let driver = Driver::new(listeners, signals, options)
        .map_err(ServerError::system("cannot prepare to supervise"))?;
    let code = driver.run(&mut spawner, &mut observer);
    observer.mender.finish();
    drop(presence);
    Ok(code)
}

struct Supervisor {
    config: ServerConfig,
    snapshot: ClusterSnapshot,
    mender: Mender,
    slots: Option<SlotWriter>,
}

impl Observer for Supervisor {
    fn config(&mut self, _slot: u16) -> String {
        // Plain data with text keys: it always serialises; a worker that got nothing would say so.
        serde_json::to_string(&self.config.for_worker(self.snapshot.clone())).unwrap_or_default()
    }

    fn snapshot(&mut self, slots: &[SlotStatus]) -> String {
        self.snapshot.slots = slots.to_vec();
        serde_json::to_string(&self.snapshot).unwrap_or_default()
    }

    fn on_ready(&mut self) {
        announce(
            &self.config,
            &self.snapshot.listen,
            &format!(
                "({} workers, root {})",
                self.config.workers,
                self.snapshot.root.display()
            ),
        );
    }

    fn on_slot_changed(&mut self, slot: &SlotStatus) {
        tracing::debug!(slot = slot.slot, state = ?slot.state, pid = slot.pid, "slot changed");
        if let Some(slots) = &mut self.slots
            && let Err(error) = slots.publish(slot.slot, &slot_row(slot))
        {
            tracing::warn!(slot = slot.slot, %error, "a slot's state is missing in the segment");
        }
    }

    fn on_worker_death(&mut self, _slot: u16, _pid: u32, _exit: WorkerExit) {
        self.mender.mend();
    }

    fn on_stop(&mut self) {
        // Supervision has said so already, with the reason.
    }
}

/// The right to tell of slots in the segment. Without it only `okdb status` knows less.
fn slot_writer(store: &Store) -> Option<SlotWriter> {
    let me = okdb_sys::Identity::current().ok()?;
    match store.segment().slot_writer(me) {
        Ok(writer) => Some(writer),
        Err(error) => {
            tracing::warn!(%error, "the segment will not tell of slots");
            None
        }
    }
}

fn slot_row(slot: &SlotStatus) -> SlotRow {
    let now_ms = monotonic_ms();
    let state = match slot.state {
        SlotState::Starting => okdb_shm::SlotState::Starting,
        SlotState::Ready => okdb_shm::SlotState::Ready,
        SlotState::Backoff => okdb_shm::SlotState::Backoff,
        SlotState::Draining => okdb_shm::SlotState::Draining,
        SlotState::Dead => okdb_shm::SlotState::Dead,
    };
    let worker = slot.pid.zip(slot.start_time);
    let age_ms = |at: u64| unix_ms().saturating_sub(at);
    SlotRow {
        state,
        worker: worker.map(|(pid, start_time)| okdb_sys::Identity { pid, start_time }),
        restarts: slot.restarts,
        backoff_until_ms: slot.backoff_ms.map(|wait| now_ms + wait),
        started_ms: slot.started_at.map(|at| now_ms.saturating_sub(age_ms(at))),
        last_exit: slot
            .last_exit
            .as_ref()
            .and_then(|exit| match (exit.code, exit.signal) {
                (Some(code), _) => Some(Exit::Code(code)),
                (None, Some(number)) => Some(Exit::Signal {
                    number,
                    core: false,
                }),
                (None, None) => None,
            }),
    }
}

/// A thread that mends what dead workers leave: reader slots, half-told commits, rows of the segment. It may have to wait
/// for the write lock, which supervision must never do.
struct Mender {
    work: Option<mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Mender {
    fn start(store: Store) -> Result<Self, ServerError> {
        let (work, deaths) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("mender".into())
            .spawn(move || {
                while deaths.recv().is_ok() {
                    // Deaths that came in meanwhile are mended by the same pass.
                    while deaths.try_recv().is_ok() {}
                    mend(&store);
                }
            })
            .map_err(ServerError::system("cannot start the mending thread"))?;
        Ok(Self {
            work: Some(work),
            thread: Some(thread),
        })
    }

    fn mend(&self) {
        if let Some(work) = &self.work {
            // Only a panic in the thread closes the other end, and that was logged.
            let _ = work.send(());
        }
    }

    fn finish(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the mending thread ended with a panic");
        }
    }
}

fn mend(store: &Store) {
    let freed = store.segment().sweep();
    match store
        .clear_stale_readers()
        .and_then(|readers| store.repair().map(|()| readers))
    {
        Ok(readers) => tracing::debug!(readers, rows = freed, "mended after a worker's death"),
        Err(error) => tracing::error!(%error, "cannot mend after a worker's death"),
    }
}
