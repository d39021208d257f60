//! How a worker is launched: the seam between the driver and real processes, and the real launcher.
//!
//! What a worker has to know: `SIGTERM`, `SIGINT` and [`okdb_ipc::ToWorker::Drain`] are one and the same
//! request, to finish and leave. It gets several of them for one stop (a Ctrl-C reaches the whole process
//! group, and then the primary asks, too), so none but the first may mean anything: the deadline is the
//! primary's to keep.

use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use okdb_sys::Signal;
use okdb_sys::spawn::{Child, Spawn, take_inherited_fd};

use crate::machine::WorkerId;

/// The number under which a worker finds its supervision socket.
pub const IPC_FD: RawFd = 3;
/// The number of a worker's first listener; the others follow.
pub const FIRST_LISTENER_FD: RawFd = 4;

/// What a new worker gets.
#[derive(Debug)]
pub struct Launch<'fd> {
    /// Which worker it is.
    pub worker: WorkerId,
    /// Its end of the supervision socket.
    pub ipc: BorrowedFd<'fd>,
    /// Its listeners, in the order of [`crate::listen::Listeners::addresses`].
    pub listeners: Vec<BorrowedFd<'fd>>,
}

/// Makes processes. Called on the thread that runs the driver, which is the main one.
pub trait Spawner {
    /// Starts a process for `launch`. It must be a child of this process, and its standard error should
    /// be a pipe whose non-blocking end is in the answer.
    ///
    /// # Errors
    /// Why no process could be made; it counts as a death of the slot.
    fn spawn(&mut self, launch: &Launch<'_>) -> io::Result<Child>;
}

/// The real one: this program again, by fork and exec, with hidden arguments.
///
/// The child runs the very file that this process runs, whatever has its name by now. It gets `SIGTERM`
/// when the thread that spawned it ends.
pub struct ExecSpawner<A> {
    name: OsString,
    arguments: A,
}

impl<A: FnMut(&Launch<'_>) -> Vec<OsString>> ExecSpawner<A> {
    /// `name` is what the child sees as its own name; `arguments` makes its command line. The number of
    /// listeners has to be told there, for [`Inherited::take`].
    pub fn new(name: impl Into<OsString>, arguments: A) -> Self {
        Self {
            name: name.into(),
            arguments,
        }
    }
}

impl<A: FnMut(&Launch<'_>) -> Vec<OsString>> Spawner for ExecSpawner<A> {
    fn spawn(&mut self, launch: &Launch<'_>) -> io::Result<Child> {
        let arguments = (self.arguments)(launch);
        pass(Spawn::current_exe(&self.name).args(arguments), launch).start()
    }
}

/// Adds to `spawn` what every worker gets: its descriptors, the death signal, a pipe for standard error.
#[must_use]
pub fn pass<'fd>(spawn: Spawn<'fd>, launch: &Launch<'fd>) -> Spawn<'fd> {
    let spawn = spawn
        .death_signal(Signal::Term)
        .pipe_stderr()
        .pass_fd(launch.ipc, IPC_FD);
    (FIRST_LISTENER_FD..)
        .zip(&launch.listeners)
        .fold(spawn, |spawn, (target, listener)| {
            spawn.pass_fd(*listener, target)
        })
}

/// What a worker finds when it starts.
#[derive(Debug)]
pub struct Inherited {
    /// Its end of the supervision socket.
    pub ipc: OwnedFd,
    /// Its listeners, in the order of the addresses; non-blocking.
    pub listeners: Vec<OwnedFd>,
}

impl Inherited {
    /// Takes the descriptors over; in the worker, once, before anything else opens one.
    ///
    /// # Errors
    /// When one of them was not passed: the process was not started by a primary.
    pub fn take(listeners: u16) -> io::Result<Self> {
        let numbers = (FIRST_LISTENER_FD..).take(usize::from(listeners));
        Ok(Self {
            ipc: take_inherited_fd(IPC_FD)?,
            listeners: numbers.map(take_inherited_fd).collect::<io::Result<_>>()?,
        })
    }
}
