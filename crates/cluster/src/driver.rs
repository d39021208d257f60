//! The driver: one `poll(2)` loop that feeds the state machine and carries out what it says.
//!
//! Runs on the primary's main thread and nowhere else: the death signal of a worker is bound to the
//! thread that spawned it. It owns the worker processes, their supervision sockets, their standard error
//! and the listeners. It never waits for anything but events: every read and write is non-blocking, and
//! what the embedder does in [`Observer`] must be as quick.

mod process;
mod stop;
mod supervision;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use okdb_sys::Signal;
use okdb_sys::signals::Signals;

use crate::exit::ExitCode;
use crate::listen::Listeners;
use crate::machine::{Limits, WorkerExit};
use crate::output::Copier;
use crate::spawner::Spawner;
use crate::status::SlotStatus;
use stop::StopReceiver;
use supervision::Supervision;

pub use stop::StopHandle;

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

    /// Every slot is ready or given up, and at least one is ready. Comes once.
    fn on_ready(&mut self);

    /// A slot has changed: its worker, its state, its counters.
    fn on_slot_changed(&mut self, slot: &SlotStatus);

    /// A worker process has ended that nobody had asked to, or that had to be killed. It has been reaped.
    /// The place to mend what it may have left behind; on another thread.
    fn on_worker_death(&mut self, slot: u16, pid: u32, exit: WorkerExit);

    /// The stop has begun. Comes once.
    fn on_stop(&mut self);
}

/// A primary that is about to run.
#[derive(Debug)]
pub struct Driver {
    listeners: Listeners,
    signals: Signals,
    options: Options,
    stop_handle: StopHandle,
    stop: StopReceiver,
}

impl Driver {
    /// Prepares to supervise one worker for each slot of `listeners`. `signals` has [`SIGNALS`] installed.
    ///
    /// # Errors
    /// When a socket pair cannot be made.
    pub fn new(listeners: Listeners, signals: Signals, options: Options) -> io::Result<Self> {
        let (stop_handle, stop) = stop::pair()?;
        Ok(Self {
            listeners,
            signals,
            options,
            stop_handle,
            stop,
        })
    }

    /// A handle by which other threads stop the server.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        self.stop_handle.clone()
    }

    /// Spawns the workers and supervises them until all is over; returns what to exit with. By then no worker is left
    /// (but one that even `SIGKILL` did not end), every listener is closed and the
    /// files of Unix sockets are removed.
    ///
    /// Call it on the main thread. Workers end when the calling thread does.
    pub fn run<S: Spawner, O: Observer>(self, spawner: &mut S, observer: &mut O) -> ExitCode {
        let stderr = io::stderr().as_fd().try_clone_to_owned().map(File::from);
        let copier = match stderr.and_then(Copier::start) {
            Ok(copier) => copier,
            Err(error) => {
                tracing::error!(%error, "cannot start the thread that passes worker output on");
                return ExitCode::RuntimeFailure;
            }
        };
        let mut supervision = Supervision::new(self, copier, spawner, observer);
        let code = supervision.run();
        supervision.into_copier().finish(OUTPUT_TIMEOUT);
        code
    }
}
