//! The primary: supervises workers on the main thread; all other work is on other threads.

use std::{
    cell::RefCell,
    ffi::OsString,
    io,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use okdb_cluster::{
    address::Address,
    driver::{Driver, Fresh, Observer},
    exit::ExitCode,
    handover::Parcel,
    listen::Listeners,
    machine::{SlotState, WorkerExit},
    spawner::{ExecSpawner, Launch},
    status::{SlotStatus, unix_ms},
};
use okdb_shm::{SlotRow, SlotWriter};
use okdb_store::Store;
use okdb_sys::{host::monotonic_ms, reap::Exit, signals::unblock_all, spawn::Child};

use super::{
    Means, NO_CHORES, ServerConfig, ServerError, WORKER_COMMAND, announce,
    background::{BusFollower, Mender},
    ending::Ending,
    lock_watch::LockWatch,
    status::ClusterSnapshot,
    upgrade::{Successor, Takeover},
};
use crate::{chores::Chores, process::Telemetry};

/// How long an upgrade waits for each background thread to come to a rest. Nobody is supervised meanwhile.
const HALT_TIMEOUT: Duration = Duration::from_secs(1);

/// With what a primary begins.
pub(crate) enum Beginning {
    /// With listeners.
    Start(Listeners),
    /// With what the program that this process ran before has handed over.
    Resume(Takeover),
}

pub(crate) fn run(
    config: &ServerConfig,
    store: &Store,
    telemetry: &Arc<Telemetry>,
    beginning: Beginning,
    means: Means,
    ending: &Ending,
) -> Result<ExitCode, ServerError> {
    let started_ms = monotonic_ms();
    let presence = telemetry.join(store, okdb_shm::Role::Primary, None);
    let _bus = BusFollower::start(store, &presence)?;
    let resumed = matches!(beginning, Beginning::Resume(_));
    let options = config.supervision();
    let driver = match beginning {
        Beginning::Start(listeners) => Driver::new(listeners, means.signals, options),
        Beginning::Resume(takeover) => {
            let driver = Driver::resume(&takeover.state, means.signals, options)
                .map_err(|error| ServerError::Config(error.to_string()))?;
            // What was changed by hand since then stays; what the configuration says anew counts.
            if takeover.workers == config.workers.get() {
                driver
            } else {
                driver.workers(config.workers.get())
            }
        }
    };
    let output = (config.program.worker_output)()
        .map_err(ServerError::system("cannot open where worker output goes"))?;
    let mut driver = driver.notify(means.notifier).output(output);
    if let Some(orders) = means.orders {
        driver = driver.obey(orders);
    }
    let urls: Vec<String> = driver.listeners().addresses().map(Address::url).collect();
    let listeners = urls.len();
    let log_arguments = Rc::new(RefCell::new(config.worker_log_arguments.clone()));
    let mut observer = Supervisor {
        snapshot: ClusterSnapshot {
            mode: "cluster".into(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            started_ms,
            root: store.root().to_owned(),
            listen: urls,
            slots: Vec::new(),
        },
        config: config.clone(),
        store: store.clone(),
        log_arguments: Rc::clone(&log_arguments),
        successor: Successor::of_this_process().map_err(ServerError::system(
            "cannot tell which program this process runs",
        ))?,
        chores: means.chores,
        mender: Mender::start(store)?,
        slots: slot_writer(store),
        rates: Rates::default(),
        stopping_since: None,
    };
    let me = std::process::id();
    let mut spawner = ExecSpawner::new("okdb", move |launch: &Launch<'_>| {
        let mut arguments: Vec<OsString> = vec![
            WORKER_COMMAND.into(),
            launch.worker.slot.to_string().into(),
            listeners.to_string().into(),
            me.to_string().into(),
        ];
        arguments.extend(log_arguments.borrow().iter().map(OsString::from));
        arguments
    });
    let _lock_watch = LockWatch::start(store.clone(), presence.clone())?;
    if resumed {
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            "upgraded in place; replacing the workers"
        );
    }
    drop(means.blocked);
    if resumed {
        // What arrived while the program was replaced has waited until now.
        unblock_all().map_err(ServerError::system("cannot hear signals"))?;
    }
    let code = driver.run(&mut spawner, &mut observer);
    let grace = Duration::from_millis(observer.config.shutdown_grace_ms);
    let began = observer.stopping_since.unwrap_or_else(Instant::now);
    ending.begin(began + grace, code);
    drop(observer);
    drop(presence);
    Ok(code)
}

struct Supervisor {
    config: ServerConfig,
    snapshot: ClusterSnapshot,
    store: Store,
    log_arguments: Rc<RefCell<Vec<String>>>,
    successor: Successor,
    chores: Chores,
    mender: Mender,
    slots: Option<SlotWriter>,
    rates: Rates,
    stopping_since: Option<Instant>,
}

/// What the counters were when the status line was made last.
#[derive(Default)]
struct Rates {
    at: Option<Instant>,
    operations: u64,
}

impl Rates {
    /// Operations per second since the last call.
    fn writes_per_second(&mut self, operations: u64) -> u64 {
        let now = Instant::now();
        let passed = self.at.map(|at| now.duration_since(at));
        let done = operations.saturating_sub(self.operations);
        (self.at, self.operations) = (Some(now), operations);
        let millis = passed.map_or(0, |passed| passed.as_millis());
        u64::try_from(u128::from(done) * 1_000 / millis.max(1)).unwrap_or(u64::MAX)
            * u64::from(millis > 0)
    }
}

impl Supervisor {
    /// Starts what was brought to rest anew.
    fn go_on(&mut self) -> Result<(), ServerError> {
        self.chores
            .go_on()
            .map_err(ServerError::system(NO_CHORES))?;
        self.mender.go_on()
    }

    /// Brings everything to rest and becomes the successor; comes back with the reason if that fails.
    fn try_hand_over(&mut self, parcel: &Parcel<'_>) -> String {
        if !(self.chores.halt(HALT_TIMEOUT) && self.mender.halt(HALT_TIMEOUT)) {
            return "background work does not come to a rest; try again".into();
        }
        self.successor
            .become_it(parcel, &self.store, self.config.workers)
            .to_string()
    }
}

impl Observer for Supervisor {
    fn config(&mut self, _slot: u16) -> String {
        // Plain data with text keys: it always serialises; a worker that got nothing would say so.
        serde_json::to_string(&self.config.for_worker(self.snapshot.clone())).unwrap_or_default()
    }

    fn snapshot(&mut self, slots: &[SlotStatus]) -> String {
        self.snapshot.slots = slots.to_vec();
        (self.config.program.changed)(&self.snapshot);
        serde_json::to_string(&self.snapshot).unwrap_or_default()
    }

    fn status_line(&mut self, slots: &[SlotStatus]) -> String {
        let ready = slots
            .iter()
            .filter(|slot| slot.state == SlotState::Ready)
            .count();
        let wanted = slots
            .iter()
            .filter(|slot| slot.state != SlotState::Decommissioned)
            .count();
        let operations = self.store.segment().rows().map(|row| row.operations).sum();
        let writes = self.rates.writes_per_second(operations);
        format!("{ready} of {wanted} workers ready, {writes} writes/s")
    }

    fn on_ready(&mut self) {
        announce(
            &self.config,
            &self.snapshot,
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

    fn on_reload(&mut self) -> Result<Fresh, String> {
        let fresh = (self.config.program.read_again)()?;
        let workers = (fresh.workers != self.config.workers).then_some(fresh.workers.get());
        self.config.renew(fresh);
        self.log_arguments
            .replace(self.config.worker_log_arguments.clone());
        Ok(Fresh {
            options: self.config.supervision(),
            workers,
        })
    }

    fn preflight(&mut self) -> io::Result<Child> {
        self.successor.check()
    }

    fn hand_over(&mut self, parcel: &Parcel<'_>) -> String {
        let reason = self.try_hand_over(parcel);
        // Either of them is as it was, or starts anew.
        if let Err(error) = self.go_on() {
            tracing::error!(%error, "background work does not go on; restart the server soon");
        }
        reason
    }

    fn on_reopen_logs(&mut self) {
        (self.config.program.reopen_logs)();
    }

    fn on_stop(&mut self) {
        self.stopping_since = Some(Instant::now());
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
        SlotState::Decommissioned => okdb_shm::SlotState::Decommissioned,
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
