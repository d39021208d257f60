//! Collecting the children that this process forked: by pid, one at a time, so that children which
//! other code (or pid 1's inheritance) brought in are never taken from under their owner.

#![allow(
    unsafe_code,
    reason = "waitpid, without losing what an exit status says"
)]

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::libc;

use crate::signals::Signal;

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal {
        /// The signal's number; see [`Signal::from_number`].
        number: i32,
        /// Whether a core was dumped.
        core: bool,
    },
}

impl Exit {
    /// Whether it exited with code 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Code(0))
    }

    fn from_status(status: ExitStatus) -> Option<Self> {
        if let Some(code) = status.code() {
            return Some(Self::Code(code));
        }
        status.signal().map(|number| Self::Signal {
            number,
            core: status.core_dumped(),
        })
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal { number, core } => {
                match Signal::from_number(number) {
                    Some(signal) => write!(f, "signal {signal}")?,
                    None => write!(f, "signal {number}")?,
                }
                if core {
                    f.write_str(" (core dumped)")?;
                }
                Ok(())
            }
        }
    }
}

/// How child `pid` ended, or `None` while it runs. An ended child is collected by this and its pid may
/// be reused from then on.
///
/// # Errors
/// `ECHILD` when `pid` is no child of this process (any more).
pub fn try_wait(pid: u32) -> io::Result<Option<Exit>> {
    wait_with(pid, libc::WNOHANG)
}

/// Waits for child `pid` to end, however long that takes.
///
/// # Errors
/// As for [`try_wait`].
pub fn wait(pid: u32) -> io::Result<Exit> {
    loop {
        if let Some(exit) = wait_with(pid, 0)? {
            return Ok(exit);
        }
    }
}

fn wait_with(pid: u32, flags: libc::c_int) -> io::Result<Option<Exit>> {
    // 0 and negative values would mean "any child of a group".
    let pid = libc::pid_t::try_from(pid)
        .ok()
        .filter(|&pid| pid > 0)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a pid"))?;
    loop {
        let mut status = 0;
        // SAFETY: the status pointer is valid for the call, and waitpid writes nothing else.
        let result = unsafe { libc::waitpid(pid, &raw mut status, flags) };
        if result == 0 {
            return Ok(None);
        }
        if result > 0 {
            return Ok(Exit::from_status(ExitStatus::from_raw(status)));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    #![allow(clippy::zombie_processes, reason = "waiting is what is under test")]
    use super::*;
    use crate::process::Identity;
    use std::process::Command;

    #[test]
    fn codes_and_signals_are_told_apart() {
        let child = Command::new("/bin/sh")
            .args(["-c", "exit 7"])
            .spawn()
            .unwrap();
        assert_eq!(wait(child.id()).unwrap(), Exit::Code(7));
        assert!(try_wait(child.id()).is_err(), "collected once");

        let child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        assert_eq!(try_wait(child.id()).unwrap(), None);
        Identity::of(child.id())
            .unwrap()
            .signal(Signal::Kill)
            .unwrap();
        let exit = wait(child.id()).unwrap();
        assert_eq!(
            exit,
            Exit::Signal {
                number: 9,
                core: false
            }
        );
        assert_eq!(exit.to_string(), "signal SIGKILL");
        assert!(!exit.is_success());
    }

    #[test]
    fn groups_and_strangers_are_refused() {
        assert_eq!(try_wait(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(
            try_wait(u32::MAX).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert_eq!(try_wait(1).unwrap_err().raw_os_error(), Some(libc::ECHILD));
    }
}
