//! Signals, as values that a `poll(2)` loop can wait for.
//!
//! Handlers only note the signal and write one byte to a socket pair, so nothing of ours runs in
//! a handler. Signals of one kind that arrive before they are drained count once, as in the kernel.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// The signals that okdb sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the signal of its name, see signal(7)")]
pub enum Signal {
    Hup,
    Int,
    Abrt,
    Kill,
    Usr1,
    Usr2,
    Term,
    Chld,
    Cont,
    Stop,
    Ttin,
    Ttou,
}

impl Signal {
    /// Every one, for tables and look-ups.
    pub const ALL: [Self; 12] = [
        Self::Hup,
        Self::Int,
        Self::Abrt,
        Self::Kill,
        Self::Usr1,
        Self::Usr2,
        Self::Term,
        Self::Chld,
        Self::Cont,
        Self::Stop,
        Self::Ttin,
        Self::Ttou,
    ];

    /// The platform's number.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::Hup => libc::SIGHUP,
            Self::Int => libc::SIGINT,
            Self::Abrt => libc::SIGABRT,
            Self::Kill => libc::SIGKILL,
            Self::Usr1 => libc::SIGUSR1,
            Self::Usr2 => libc::SIGUSR2,
            Self::Term => libc::SIGTERM,
            Self::Chld => libc::SIGCHLD,
            Self::Cont => libc::SIGCONT,
            Self::Stop => libc::SIGSTOP,
            Self::Ttin => libc::SIGTTIN,
            Self::Ttou => libc::SIGTTOU,
        }
    }

    /// The one with this number, if it is among them.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.number() == number)
    }

    /// Its usual name, such as `SIGTERM`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hup => "SIGHUP",
            Self::Int => "SIGINT",
            Self::Abrt => "SIGABRT",
            Self::Kill => "SIGKILL",
            Self::Usr1 => "SIGUSR1",
            Self::Usr2 => "SIGUSR2",
            Self::Term => "SIGTERM",
            Self::Chld => "SIGCHLD",
            Self::Cont => "SIGCONT",
            Self::Stop => "SIGSTOP",
            Self::Ttin => "SIGTTIN",
            Self::Ttou => "SIGTTOU",
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The signals that this process has taken over, for as long as it runs: dropping this does not bring
/// the default action back, since a signal that arrives in between must not kill.
#[derive(Debug)]
pub struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

impl Signals {
    /// Takes over the signals of `wanted`. From here on they end nothing by themselves.
    ///
    /// # Errors
    /// When the socket pair cannot be made or a handler cannot be installed; `InvalidInput` for
    /// `SIGKILL` and `SIGSTOP`, which nobody can handle.
    pub fn install(wanted: &[Signal]) -> io::Result<Self> {
        if let Some(signal) = wanted
            .iter()
            .find(|s| matches!(s, Signal::Kill | Signal::Stop))
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{signal} cannot be handled"),
            ));
        }
        let (read, write) = UnixStream::pair()?;
        let numbers = wanted.iter().map(|s| s.number());
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, numbers)?;
        Ok(Self { delivery })
    }

    /// What has arrived since the last call, each kind once, in no particular order. Never blocks.
    pub fn drain(&mut self) -> Vec<Signal> {
        self.delivery
            .pending()
            .filter_map(Signal::from_number)
            .collect()
    }
}

impl AsFd for Signals {
    /// Readable when [`Signals::drain`] has something to tell.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }
}

/// Every signal waits for the thread that made this, until it is dropped: then those are let through that were before.
///
/// A thread that is started meanwhile is deaf for good, and so are those that it starts: signals for the process are left
/// to the other threads. So a program whose main thread alone shall hear them holds this while it starts its threads.
/// (What a thread brings on itself, such as a fault or an abort, ends the process all the same.)
#[derive(Debug)]
#[must_use]
pub struct Blocked {
    before: SigSet,
    /// Masks belong to threads: it must be dropped where it was made.
    thread: PhantomData<*const ()>,
}

impl Blocked {
    /// Blocks all signals that can be blocked.
    ///
    /// # Errors
    /// What `pthread_sigmask` reports.
    pub fn all() -> io::Result<Self> {
        let mut before = SigSet::empty();
        pthread_sigmask(
            SigmaskHow::SIG_SETMASK,
            Some(&SigSet::all()),
            Some(&mut before),
        )?;
        Ok(Self {
            before,
            thread: PhantomData,
        })
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // It only fails for an unknown way of changing the mask.
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None);
    }
}

/// Lets every signal through to the calling thread. For a program that began with all of them blocked (see
/// [`crate::exec::Exec::run`]), once it has taken over those that it wants.
///
/// # Errors
/// What `pthread_sigmask` reports.
pub fn unblock_all() -> io::Result<()> {
    Ok(pthread_sigmask(
        SigmaskHow::SIG_SETMASK,
        Some(&SigSet::empty()),
        None,
    )?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    use super::*;
    use crate::process::Identity;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    #[test]
    fn numbers_and_names_are_distinct_and_round_trip() {
        for signal in Signal::ALL {
            assert_eq!(Signal::from_number(signal.number()), Some(signal));
            assert_eq!(
                Signal::ALL
                    .iter()
                    .filter(|s| s.name() == signal.name())
                    .count(),
                1
            );
        }
        assert_eq!(Signal::from_number(0), None);
    }

    #[test]
    fn a_signal_wakes_a_poll_and_is_drained_once() {
        let mut signals = Signals::install(&[Signal::Usr1, Signal::Usr2]).unwrap();
        assert_eq!(signals.drain(), []);
        Identity::current().unwrap().signal(Signal::Usr2).unwrap();
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        while poll(&mut fds, PollTimeout::NONE) == Err(nix::errno::Errno::EINTR) {}
        assert_eq!(signals.drain(), [Signal::Usr2]);
        assert_eq!(signals.drain(), []);
    }

    #[test]
    fn threads_that_are_started_under_the_guard_are_deaf_and_no_others() {
        let mask = || {
            let mut mask = SigSet::empty();
            pthread_sigmask(SigmaskHow::SIG_SETMASK, None, Some(&mut mask)).unwrap();
            mask
        };
        let before = mask();
        let deaf = Blocked::all().unwrap();
        let of_thread = std::thread::spawn(mask).join().unwrap();
        assert!(of_thread.contains(nix::sys::signal::SIGTERM));
        drop(deaf);
        assert_eq!(mask(), before);
        assert_eq!(std::thread::spawn(mask).join().unwrap(), before);
    }

    #[test]
    fn what_cannot_be_handled_is_refused() {
        for signal in [Signal::Kill, Signal::Stop] {
            let error = Signals::install(&[signal]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
