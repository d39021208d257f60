//! Flags of descriptors: what crosses an exec, and what may block.

#![allow(
    unsafe_code,
    reason = "descriptors that only a number tells of have no owner to borrow from"
)]

use std::io;
use std::os::fd::{AsFd, RawFd};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::libc;

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

/// The descriptors above the standard ones that would cross an exec.
pub(crate) fn inheritable() -> io::Result<Vec<RawFd>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name();
        let Some(number) = number.to_str().and_then(|number| number.parse().ok()) else {
            continue;
        };
        if number > libc::STDERR_FILENO
            && flags_of(number).is_some_and(|flags| flags & libc::FD_CLOEXEC == 0)
        {
            found.push(number);
        }
    }
    Ok(found)
}

/// Lets a descriptor cross an exec, if it is open.
pub(crate) fn make_inheritable(number: RawFd) {
    let Some(flags) = flags_of(number) else {
        return;
    };
    // SAFETY: fcntl with integers only; it opens and closes nothing.
    unsafe { libc::fcntl(number, libc::F_SETFD, flags & !libc::FD_CLOEXEC) };
}

fn flags_of(number: RawFd) -> Option<libc::c_int> {
    // SAFETY: fcntl with integers only; a number that is not open is answered with EBADF.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    (flags >= 0).then_some(flags)
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
