//! The driver: one `poll(2)` loop that feeds the state machine and carries out what it says.
//!
//! Runs on the primary's main thread and nowhere else: the death signal of a worker is bound to the
//! thread that spawned it. It owns the worker processes, their supervision sockets, their standard error
//! and the listeners. It never waits for anything but events: every read and write is non-blocking, and
//! what the embedder does in [`Observer`] must be as quick.

mod commands;
mod control;
mod orphans;
mod process;
mod roster;
mod supervision;
mod upgrade;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use okdb_sys::Signal;
use okdb_sys::signals::Signals;
use okdb_sys::spawn::Child;

use crate::exit::ExitCode;
use crate::handover::{Parcel, ResumeError};
use crate::listen::Listeners;
use crate::machine::{Limits, WorkerExit};
use crate::output::Copier;
use crate::spawner::Spawner;
use crate::status::SlotStatus;
use crate::systemd::Notifier;
use supervision::Supervision;
use upgrade::Resumed;

pub use control::{Control, Order, Orders, control};
pub(crate) use process::Talk;

/// The signals that a primary takes over. The embedder installs them before it does anything else, so
/// that a stop which comes during the start is not lost.
pub const SIGNALS: [Signal; 8] = [
    Signal::Term,
    Signal::Int,
    Signal::Chld,
    Signal::Hup,
    Signal::Usr1,
    Signal::Usr2,
    Signal::Ttin,
    Signal::Ttou,
];

/// Snapshots go out at most this often. Milliseconds.
pub const SNAPSHOT_INTERVAL_MS: u64 = 100;

/// How much of the workers' last lines goes into a snapshot. Bytes.
pub const SNAPSHOT_STDERR_BYTES_MAX: usize = 256 * 1_024;

/// How long the end waits for worker output to be written.
const OUTPUT_TIMEOUT: Duration = Duration::from_millis(500);

/// What an operator may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Deadlines of workers.
    pub limits: Limits,
    /// How long workers get to finish at a stop. Milliseconds.
    pub shutdown_grace_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            shutdown_grace_ms: 3_000,
        }
    }
}

/// What a reload brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fresh {
    /// The options from now on.
    pub options: Options,
    /// How many workers there shall be, where that is not what it was.
    pub workers: Option<u16>,
}

/// What the embedder does about it.
///
/// Called on the driver's thread. While a call runs, nobody is supervised: what may take longer than a
/// few milliseconds, or wait for a lock that a worker can hold, goes to another thread.
pub trait Observer {
    /// The configuration for a worker that has just said Hello, as JSON.
    fn config(&mut self, slot: u16) -> String;

    /// What every worker is told of the cluster, as JSON. Asked for when a slot has changed, at most every
    /// [`SNAPSHOT_INTERVAL_MS`]. It must fit into an IPC message; the slots' last lines are cut to
    /// [`SNAPSHOT_STDERR_BYTES_MAX`] beforehand.
    fn snapshot(&mut self, slots: &[SlotStatus]) -> String;

    /// One line about the cluster for a service manager's status, asked for now and then.
    fn status_line(&mut self, slots: &[SlotStatus]) -> String;

    /// Every slot is ready or given up, and at least one is ready. Comes once.
    fn on_ready(&mut self);

    /// A slot has changed: its worker, its state, its counters.
    fn on_slot_changed(&mut self, slot: &SlotStatus);

    /// A worker process has ended that nobody had asked to, or that had to be killed. It has been reaped.
    /// The place to mend what it may have left behind; on another thread.
    fn on_worker_death(&mut self, slot: u16, pid: u32, exit: WorkerExit);

    /// A reload was asked for: reads the configuration again. From then on [`Observer::config`] gives the new one.
    ///
    /// # Errors
    /// Why the configuration is no good. Nothing is reloaded then.
    fn on_reload(&mut self) -> Result<Fresh, String>;

    /// An upgrade in place was asked for: starts a child that checks whether the program which now has this one's name
    /// can go on from [`crate::handover::VERSION`] with this root and configuration. It ends with
    /// [`crate::handover::CHECK_PASSED`] if so; what it writes to standard error says why not.
    ///
    /// # Errors
    /// Why there is no such child.
    fn preflight(&mut self) -> io::Result<Child> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The check has succeeded: becomes that program. Comes back only if that failed, in words, and with everything as it
    /// was before the call. Signals are blocked meanwhile.
    fn hand_over(&mut self, parcel: &Parcel<'_>) -> String {
        let _ = parcel;
        io::Error::from(io::ErrorKind::Unsupported).to_string()
    }

    /// The log files, if there are any, have been renamed and shall be opened anew.
    fn on_reopen_logs(&mut self);

    /// The stop has begun. Comes once.
    fn on_stop(&mut self);
}

/// Where the output of workers goes.
pub type Output = Box<dyn Write + Send>;

/// Where a run begins.
enum Plan {
    /// With nothing but listeners.
    Start(Listeners),
    /// With what another program had begun.
    Resume(Resumed),
}

/// A primary that is about to run.
pub struct Driver {
    plan: Plan,
    signals: Option<Signals>,
    options: Options,
    notifier: Notifier,
    output: Option<Output>,
    orders: Option<Orders>,
    /// How many workers there shall be, where that is not what the plan says.
    workers: Option<u16>,
}

impl Driver {
    /// Prepares to supervise one worker for each slot of `listeners`. `signals`, if they are given, has [`SIGNALS`]
    /// installed; without them the server is told what to do by [`Driver::obey`] only.
    #[must_use]
    pub fn new(listeners: Listeners, signals: Option<Signals>, options: Options) -> Self {
        Self::with(Plan::Start(listeners), signals, options)
    }

    fn with(plan: Plan, signals: Option<Signals>, options: Options) -> Self {
        Self {
            plan,
            signals,
            options,
            notifier: Notifier::none(),
            output: None,
            orders: None,
            workers: None,
        }
    }

    /// Tells a service manager what happens.
    #[must_use]
    pub fn notify(mut self, notifier: Notifier) -> Self {
        self.notifier = notifier;
        self
    }

    /// Adds or removes workers as soon as it runs, until there are so many.
    #[must_use]
    pub fn workers(mut self, count: u16) -> Self {
        self.workers = Some(count);
        self
    }

    /// Passes the output of workers to `output` instead of standard error.
    #[must_use]
    pub fn output(mut self, output: Output) -> Self {
        self.output = Some(output);
        self
    }

    /// Prepares to go on as the primary that handed `state` over from the program that this process ran before. Its
    /// workers are replaced one at a time as soon as it runs.
    ///
    /// # Errors
    /// [`ResumeError`]: the state is not understood, or not complete. The workers end by themselves then.
    pub fn resume(
        state: &[u8],
        signals: Option<Signals>,
        options: Options,
    ) -> Result<Self, ResumeError> {
        let resumed = Resumed::new(state)?;
        Ok(Self::with(Plan::Resume(resumed), signals, options))
    }

    /// The addresses that it listens on.
    #[must_use]
    pub fn listeners(&self) -> &Listeners {
        match &self.plan {
            Plan::Start(listeners) => listeners,
            Plan::Resume(resumed) => &resumed.listeners,
        }
    }

    /// Does what it is told by the other end of `orders`, too.
    #[must_use]
    pub fn obey(mut self, orders: Orders) -> Self {
        self.orders = Some(orders);
        self
    }

    /// Spawns the workers and supervises them until all is over; returns what to exit with. By then no worker is left
    /// (but one that even `SIGKILL` did not end), every listener is closed and the
    /// files of Unix sockets are removed.
    ///
    /// Call it on the main thread, or on one that lives until the process ends. Workers end when the calling thread
    /// does.
    pub fn run<S: Spawner, O: Observer>(mut self, spawner: &mut S, observer: &mut O) -> ExitCode {
        let output = self.output.take().map_or_else(standard_error, Ok);
        let copier = match output.and_then(Copier::start) {
            Ok(copier) => copier,
            Err(error) => {
                tracing::error!(%error, "cannot start the thread that passes worker output on");
                return ExitCode::RuntimeFailure;
            }
        };
        let mut supervision = Supervision::new(self, copier, spawner, observer);
        let code = supervision.run();
        supervision.into_copier().flush(OUTPUT_TIMEOUT);
        code
    }
}

/// Standard error, for [`Driver::output`]: where worker output goes if nothing else is said.
///
/// # Errors
/// When there is no descriptor left.
pub fn standard_error() -> io::Result<Output> {
    let stderr = io::stderr().as_fd().try_clone_to_owned()?;
    Ok(Box::new(File::from(stderr)))
}
