//! Starting children: fork and exec at once, so that neither a thread, a lock nor a memory map of the
//! parent lives on in them, and nothing but the named descriptors crosses.
//!
//! **Start children from the main thread only.** The death signal fires when the *thread* that forked
//! ends, not the process: a child of a pool's thread dies whenever the pool shrinks.

#![allow(
    unsafe_code,
    reason = "work between fork and exec, and adopting inherited descriptors"
)]

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;

use crate::fd::set_nonblocking;
use crate::process::Identity;
use crate::signals::{Blocked, Signal};

/// The lowest number that an inherited descriptor can have: standard input, output and error are below.
pub const INHERITED_FD_MIN: RawFd = 3;

/// What a service manager tells its one direct child. A grandchild that saw it would notify, ping or
/// take sockets in its parent's name.
const MANAGER_VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_"];

/// A child to be started. Descriptors that are passed stay open in the parent, which goes on owning
/// them.
#[derive(Debug)]
pub struct Spawn<'fd> {
    command: Command,
    passed: Vec<(BorrowedFd<'fd>, RawFd)>,
    death_signal: Option<Signal>,
}

/// A started child. It is neither killed nor waited for on drop: see [`crate::reap`].
#[derive(Debug)]
pub struct Child {
    /// Who it is.
    pub identity: Identity,
    /// Our end of its standard error, non-blocking, if [`Spawn::pipe_stderr`] asked for it.
    pub stderr: Option<OwnedFd>,
}

impl<'fd> Spawn<'fd> {
    /// A child that runs `program`, looked up in `PATH` if it has no slash. Standard input is empty;
    /// output and error are the parent's.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_managers(name)) {
            command.env_remove(name);
        }
        Self {
            command,
            passed: Vec::new(),
            death_signal: None,
        }
    }

    /// A child that runs the very file which this process runs, even if its name has been removed or
    /// given to a newer one since. `name` is what the child sees as its own (`argv[0]`); its short name
    /// in process lists is up to [`set_short_name`].
    #[must_use]
    pub fn current_exe(name: impl AsRef<OsStr>) -> Self {
        let mut spawn = Self::new(Path::new("/proc/self/exe"));
        spawn.command.arg0(name);
        spawn
    }

    /// Appends one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Appends arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable of the child.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Takes an environment variable from the child.
    #[must_use]
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Gives the child a duplicate of `fd` under the number `target`, at least [`INHERITED_FD_MIN`].
    #[must_use]
    pub fn pass_fd(mut self, fd: BorrowedFd<'fd>, target: RawFd) -> Self {
        self.passed.push((fd, target));
        self
    }

    /// The child gets `signal` when the thread that starts it ends, and does not come to life at all if
    /// this process ended before that was arranged.
    #[must_use]
    pub fn death_signal(mut self, signal: Signal) -> Self {
        self.death_signal = Some(signal);
        self
    }

    /// The child's standard error goes into a pipe; [`Child::stderr`] is our end.
    #[must_use]
    pub fn pipe_stderr(mut self) -> Self {
        self.command.stderr(Stdio::piped());
        self
    }

    /// The child's standard output goes nowhere.
    #[must_use]
    pub fn discard_stdout(mut self) -> Self {
        self.command.stdout(Stdio::null());
        self
    }

    /// Starts the child: no handler and no blocked signal of ours reaches it, and a signal sent to its
    /// pid from its first moment on is neither lost nor handled by a copy of our handlers.
    ///
    /// # Errors
    /// `InvalidInput` for a target that is too low or given twice; what fork, exec and the descriptor
    /// calls report, exec's errors included.
    pub fn start(mut self) -> io::Result<Child> {
        let reserved = self.reserve_targets()?;
        let passed: Vec<(RawFd, RawFd)> = self
            .passed
            .iter()
            .map(|(fd, target)| (fd.as_raw_fd(), *target))
            .collect();
        let above = passed
            .iter()
            .map(|p| p.1)
            .max()
            .unwrap_or(0)
            .saturating_add(1);
        // Scratch space for the child, allocated here because it must not allocate.
        let mut moved = vec![-1; passed.len()];
        let death_signal = self.death_signal.map(Signal::number);
        let parent = libc::pid_t::try_from(std::process::id()).map_err(io::Error::other)?;
        let prepare = move || {
            arrange_death(death_signal, parent)?;
            seal_descriptors()?;
            place_descriptors(&passed, &mut moved, above)?;
            default_signals()
        };
        // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are
        // allowed: it makes prctl, getppid, close_range, fcntl, dup2, sigaction and pthread_sigmask calls and touches
        // memory that was allocated above. An error it returns is plain data.
        unsafe { self.command.pre_exec(prepare) };

        // All signals wait while we fork. In the child they stay blocked until `default_signals`, else
        // a copy of our handlers would swallow what is meant for it.
        let deaf = Blocked::all()?;
        let started = self.command.spawn();
        drop(deaf);
        drop(reserved);

        let mut child = started?;
        let stderr = child.stderr.take().map(OwnedFd::from);
        // Even a child that is dead by now keeps its pid and start time until it is reaped.
        let known = stderr
            .as_ref()
            .map_or(Ok(()), |stderr| set_nonblocking(stderr, true))
            .and_then(|()| Identity::of(child.id()));
        match known {
            Ok(identity) => Ok(Child { identity, stderr }),
            Err(error) => {
                // Nobody could ever signal or reap it. It may have ended by itself meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Occupies the target numbers in this process, as far as they are free, until the child has been
    /// started. Otherwise the pipe through which the child reports a failed exec could get one of
    /// them, and putting a descriptor there would cut the report.
    fn reserve_targets(&self) -> io::Result<Vec<OwnedFd>> {
        let mut seen = BTreeSet::new();
        let mut reserved = Vec::with_capacity(self.passed.len());
        for (fd, target) in &self.passed {
            if *target < INHERITED_FD_MIN || !seen.insert(*target) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("descriptor number {target} is too low or given twice"),
                ));
            }
            reserved.push(duplicate_from(fd.as_fd(), *target)?);
        }
        Ok(reserved)
    }
}

fn is_managers(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    MANAGER_VARIABLES.iter().any(|own| {
        if own.ends_with('_') {
            name.starts_with(own.as_bytes())
        } else {
            name == own.as_bytes()
        }
    })
}

/// A close-on-exec duplicate with the lowest free number from `min` on.
fn duplicate_from(fd: BorrowedFd<'_>, min: RawFd) -> io::Result<OwnedFd> {
    let raw = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(min))?;
    // SAFETY: the call has just made this descriptor, and nobody else knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Runs in the child, between fork and exec.
fn arrange_death(signal: Option<i32>, parent: libc::pid_t) -> io::Result<()> {
    let Some(signal) = signal else {
        return Ok(());
    };
    // SAFETY: this option of prctl takes one integer and touches no memory of ours.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: getppid takes nothing and cannot fail.
    let current = unsafe { libc::getppid() };
    if current != parent {
        // It died before the kernel knew that we care.
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

/// Runs before an exec, in a child also between fork and exec: whatever this process itself inherited by accident, or
/// a C library opened carelessly, stops here. Kernels before 5.11 cannot do it; there, only what is
/// opened properly stays behind.
pub(crate) fn seal_descriptors() -> io::Result<()> {
    // SAFETY: close_range with integers only; with this flag it closes nothing before the exec.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            INHERITED_FD_MIN,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if result == 0 {
        return Ok(());
    }
    match Errno::last() {
        Errno::ENOSYS | Errno::EINVAL | Errno::EPERM => Ok(()),
        errno => Err(errno.into()),
    }
}

/// Runs in the child, between fork and exec. Two steps, because a target may be the number of a source
/// that is yet to be moved.
fn place_descriptors(
    passed: &[(RawFd, RawFd)],
    moved: &mut [RawFd],
    above: RawFd,
) -> io::Result<()> {
    for ((source, _), slot) in passed.iter().zip(moved.iter_mut()) {
        // SAFETY: fcntl with integers only; the sources are borrowed from the parent for the call.
        *slot = unsafe { libc::fcntl(*source, libc::F_DUPFD_CLOEXEC, above) };
        if *slot < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    for ((_, target), source) in passed.iter().zip(moved.iter()) {
        // SAFETY: dup2 with integers only. What it closes at the target is the child's copy.
        let result = unsafe { libc::dup2(*source, *target) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Runs in the child, between fork and exec: handlers go back to the default (exec would do that later,
/// but signals are unblocked before), what is ignored stays ignored, nothing stays blocked.
fn default_signals() -> io::Result<()> {
    for number in 1..=libc::SIGRTMAX() {
        // SAFETY: sigaction is a C structure for which all zeros is a value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: a null new action only reads; the old one goes into a live local.
        let result = unsafe { libc::sigaction(number, std::ptr::null(), &raw mut action) };
        // Numbers that libc keeps to itself answer EINVAL.
        if result != 0
            || action.sa_sigaction == libc::SIG_IGN
            || action.sa_sigaction == libc::SIG_DFL
        {
            continue;
        }
        // SAFETY: the default action involves no code of ours.
        let result = unsafe { libc::signal(number, libc::SIG_DFL) };
        if result == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: sigset_t is a C structure for which all zeros is a value, on Linux the empty set.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is a live local.
    unsafe { libc::sigemptyset(&raw mut none) };
    // SAFETY: the set is a live local, and a null old set asks for nothing back.
    let result =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result));
    }
    Ok(())
}

/// Takes over descriptor `number` that the parent passed to this process: once, and only if it really
/// came through the exec. It is close-on-exec from then on.
///
/// # Errors
/// `InvalidInput` when the number is a standard one; `NotFound` when nothing is open there;
/// `AlreadyExists` when it was taken before, or belongs to this process (it is close-on-exec, as
/// everything is that okdb and Rust's library open).
pub fn take_inherited_fd(number: RawFd) -> io::Result<OwnedFd> {
    static TAKEN: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());
    if number < INHERITED_FD_MIN {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("descriptor {number} is a standard one"),
        ));
    }
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let not_ours = || {
        io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("descriptor {number} was not inherited, or was taken before"),
        )
    };
    if taken.contains(&number) {
        return Err(not_ours());
    }
    // SAFETY: fcntl with integers only; a number that is not open is answered with EBADF.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 {
        return Err(match Errno::last() {
            Errno::EBADF => io::Error::new(
                io::ErrorKind::NotFound,
                format!("descriptor {number} is not open"),
            ),
            errno => errno.into(),
        });
    }
    if FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC) {
        return Err(not_ours());
    }
    taken.insert(number);
    // SAFETY: the descriptor is open, came through the exec (nothing in this process opens one without
    // close-on-exec), and the set above lets nobody else take it: we are its only owner.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    crate::fd::set_cloexec(&fd, true)?;
    Ok(fd)
}

/// Sets the short name that process lists show for the calling thread, and for the process when called
/// from its main thread; the kernel keeps the first 15 bytes.
///
/// # Errors
/// `InvalidInput` for a name with a NUL byte.
pub fn set_short_name(name: impl Into<OsString>) -> io::Result<()> {
    let name = std::ffi::CString::new(name.into().into_encoded_bytes())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    Ok(nix::sys::prctl::set_name(&name)?)
}

#[cfg(test)]
#[path = "spawn/tests.rs"]
mod tests;
