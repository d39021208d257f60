//! Flags of descriptors: what crosses an exec, and what may block.

use std::io;
use std::os::fd::AsFd;

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};

/// Sets or clears close-on-exec.
///
/// # Errors
/// What `fcntl` reports.
pub fn set_cloexec(fd: impl AsFd, on: bool) -> io::Result<()> {
    let mut flags = FdFlag::from_bits_retain(fcntl(fd.as_fd(), FcntlArg::F_GETFD)?);
    flags.set(FdFlag::FD_CLOEXEC, on);
    fcntl(fd.as_fd(), FcntlArg::F_SETFD(flags))?;
    Ok(())
}

/// Sets or clears non-blocking mode. The flag belongs to the open file description: every duplicate,
/// in this process and in others, sees the change.
///
/// # Errors
/// What `fcntl` reports.
pub fn set_nonblocking(fd: impl AsFd, on: bool) -> io::Result<()> {
    let mut flags = OFlag::from_bits_retain(fcntl(fd.as_fd(), FcntlArg::F_GETFL)?);
    flags.set(OFlag::O_NONBLOCK, on);
    fcntl(fd.as_fd(), FcntlArg::F_SETFL(flags))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn flags_are_set_and_cleared() {
        let (a, _b) = UnixStream::pair().unwrap();
        for on in [true, false, true] {
            set_cloexec(&a, on).unwrap();
            let flags = fcntl(a.as_fd(), FcntlArg::F_GETFD).unwrap();
            assert_eq!(
                FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC),
                on
            );
            set_nonblocking(&a, on).unwrap();
            let flags = fcntl(a.as_fd(), FcntlArg::F_GETFL).unwrap();
            assert_eq!(
                OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK),
                on
            );
        }
    }
}
