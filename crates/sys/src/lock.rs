//! Locks that belong to an open file description: they end with its last descriptor, whatever kills
//! the process, and no other descriptor on the same file can drop them by being closed.
//!
//! (Classic `fcntl` locks fail at the last point: closing *any* descriptor on the file drops them all.)

#![allow(unsafe_code, reason = "building a zeroed flock structure")]

use std::fs::{File, TryLockError};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// Who may hold a lock beside its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Other shared holders.
    Shared,
    /// Nobody.
    Exclusive,
}

/// Why a lock was not taken. The descriptor comes back, so that the caller can read who holds it.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another open file description holds it.
    #[error("the lock is held by another process")]
    Held(OwnedFd),
    /// The file system or the kernel refused.
    #[error("cannot lock: {0}")]
    Io(#[source] io::Error, OwnedFd),
}

/// A whole-file `flock`, released on drop.
#[derive(Debug)]
pub struct FlockGuard {
    file: File,
}

impl FlockGuard {
    /// Takes the lock without waiting.
    ///
    /// # Errors
    /// [`LockError::Held`] when another description holds a conflicting one.
    pub fn try_lock(fd: OwnedFd, mode: Mode) -> Result<Self, LockError> {
        let file = File::from(fd);
        let result = match mode {
            Mode::Shared => file.try_lock_shared(),
            Mode::Exclusive => file.try_lock(),
        };
        match result {
            Ok(()) => Ok(Self { file }),
            Err(TryLockError::WouldBlock) => Err(LockError::Held(file.into())),
            Err(TryLockError::Error(error)) => Err(LockError::Io(error, file.into())),
        }
    }

    /// The locked file, to read and write what it says about its holder.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl AsFd for FlockGuard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for FlockGuard {
    fn drop(&mut self) {
        // Explicit, since a child between its fork and its exec still holds a duplicate. Nothing can be
        // done about a failure, and closing the descriptor follows.
        let _ = self.file.unlock();
    }
}

/// A lock on a range of bytes (an OFD lock), released on drop. The bytes need not exist.
#[derive(Debug)]
pub struct RangeGuard {
    fd: OwnedFd,
    range: Range<u64>,
    mode: Mode,
}

impl RangeGuard {
    /// Takes the lock on `range` without waiting. An exclusive lock needs a descriptor open for writing,
    /// a shared one a descriptor open for reading.
    ///
    /// # Errors
    /// [`LockError::Held`] when another description holds a conflicting one.
    pub fn try_lock(fd: OwnedFd, range: Range<u64>, mode: Mode) -> Result<Self, LockError> {
        match set_range(fd.as_fd(), &range, Some(mode)) {
            Ok(()) => Ok(Self { fd, range, mode }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(LockError::Held(fd)),
            Err(error) => Err(LockError::Io(error, fd)),
        }
    }

    /// How it is held now.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Turns an exclusive lock into a shared one, in one step: nobody can take it in between.
    ///
    /// # Errors
    /// What `fcntl` reports.
    pub fn downgrade(&mut self) -> io::Result<()> {
        set_range(self.fd.as_fd(), &self.range, Some(Mode::Shared))?;
        self.mode = Mode::Shared;
        Ok(())
    }

    /// Turns a shared lock into an exclusive one if nobody else holds it; tells whether it did. The
    /// shared lock stays if not.
    ///
    /// # Errors
    /// What `fcntl` reports, other than a conflict.
    pub fn try_upgrade(&mut self) -> io::Result<bool> {
        match set_range(self.fd.as_fd(), &self.range, Some(Mode::Exclusive)) {
            Ok(()) => {
                self.mode = Mode::Exclusive;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for RangeGuard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        // As for `FlockGuard`.
        let _ = set_range(self.fd.as_fd(), &self.range, None);
    }
}

/// `None` unlocks.
fn set_range(fd: BorrowedFd<'_>, range: &Range<u64>, mode: Option<Mode>) -> io::Result<()> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "not a range of bytes");
    let length = range.end.checked_sub(range.start).filter(|&n| n > 0);
    // SAFETY: flock is a plain C structure of integers, for which all zeros is a value. Zeroed rather
    // than spelled out because its padding differs between platforms, and OFD locks demand a pid of 0.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    let kind = match mode {
        Some(Mode::Shared) => libc::F_RDLCK,
        Some(Mode::Exclusive) => libc::F_WRLCK,
        None => libc::F_UNLCK,
    };
    lock.l_type = i16::try_from(kind).map_err(|_| invalid())?;
    lock.l_whence = i16::try_from(libc::SEEK_SET).map_err(|_| invalid())?;
    lock.l_start = i64::try_from(range.start).map_err(|_| invalid())?;
    lock.l_len = i64::try_from(length.ok_or_else(invalid)?).map_err(|_| invalid())?;
    loop {
        return match fcntl(fd, FcntlArg::F_OFD_SETLK(&lock)) {
            Ok(_) => Ok(()),
            Err(Errno::EINTR) => continue,
            // POSIX allows either for a conflict.
            Err(Errno::EACCES | Errno::EAGAIN) => Err(io::ErrorKind::WouldBlock.into()),
            Err(errno) => Err(errno.into()),
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    use super::*;

    fn open(file: &tempfile::NamedTempFile) -> OwnedFd {
        file.reopen().unwrap().into()
    }

    #[test]
    fn a_file_lock_excludes_until_it_is_dropped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let first = FlockGuard::try_lock(open(&file), Mode::Exclusive).unwrap();
        let error = FlockGuard::try_lock(open(&file), Mode::Shared).unwrap_err();
        let LockError::Held(fd) = error else {
            panic!("expected a conflict, got {error}");
        };
        drop(first);
        let _a = FlockGuard::try_lock(fd, Mode::Shared).unwrap();
        let _b = FlockGuard::try_lock(open(&file), Mode::Shared).unwrap();
        let error = FlockGuard::try_lock(open(&file), Mode::Exclusive).unwrap_err();
        assert!(matches!(error, LockError::Held(_)));
    }

    #[test]
    fn ranges_are_apart_and_convert_in_place() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut first = RangeGuard::try_lock(open(&file), 0..1, Mode::Exclusive).unwrap();
        let _beside = RangeGuard::try_lock(open(&file), 1..2, Mode::Exclusive).unwrap();
        let held = RangeGuard::try_lock(open(&file), 0..1, Mode::Shared).unwrap_err();
        assert!(matches!(held, LockError::Held(_)));

        first.downgrade().unwrap();
        assert_eq!(first.mode(), Mode::Shared);
        let second = RangeGuard::try_lock(open(&file), 0..1, Mode::Shared).unwrap();
        assert!(!first.try_upgrade().unwrap());
        assert_eq!(first.mode(), Mode::Shared);
        drop(second);
        assert!(first.try_upgrade().unwrap());
    }

    #[test]
    fn closing_another_descriptor_keeps_the_lock() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let _held = RangeGuard::try_lock(open(&file), 0..1, Mode::Exclusive).unwrap();
        drop(open(&file));
        let again = RangeGuard::try_lock(open(&file), 0..1, Mode::Shared).unwrap_err();
        assert!(matches!(again, LockError::Held(_)));
    }

    #[test]
    #[allow(
        clippy::reversed_empty_ranges,
        reason = "such a range is the case under test"
    )]
    fn an_empty_range_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for range in [5..5, 5..4, u64::MAX - 1..u64::MAX] {
            let error = RangeGuard::try_lock(open(&file), range, Mode::Shared).unwrap_err();
            assert!(matches!(error, LockError::Io(..)));
        }
    }
}
