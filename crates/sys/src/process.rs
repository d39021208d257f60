//! Who a process is, whether it lives, and how to signal it without ever hitting a stranger.
//!
//! A pid alone names nobody: it is reused. A process is named here by its pid *and* the kernel's record
//! of its start, and a signal goes through a pidfd that was checked against both.

#![allow(
    unsafe_code,
    reason = "pidfd calls have no safe wrapper in our dependencies"
)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::signals::Signal;

/// How often a wait for a process's end looks again on kernels without pidfds.
const WAIT_FALLBACK_STEP: Duration = Duration::from_millis(5);

/// One incarnation of one process: never equal to that of another process of the same boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// Process id, as seen from this process's pid namespace.
    pub pid: u32,
    /// Start time in kernel clock ticks (hundredths of a second) since boot.
    pub start_time: u64,
}

impl Identity {
    /// This process.
    ///
    /// # Errors
    /// When `/proc` is missing, or shows another pid namespace than this process lives in: pids read
    /// there would name strangers.
    pub fn current() -> io::Result<Self> {
        let stat = Stat::read("/proc/self/stat")?;
        if stat.pid != std::process::id() {
            return Err(io::Error::other(
                "/proc belongs to another pid namespace; mount this namespace's own",
            ));
        }
        Ok(Self {
            pid: stat.pid,
            start_time: stat.start_time,
        })
    }

    /// The process that has `pid` now.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(Self {
            pid,
            start_time: start_time(pid)?,
        })
    }

    /// Whether this very process still runs. A zombie is dead, unless threads of it go on. When `/proc`
    /// cannot be read for another reason than "no such process", the answer is yes: a living process
    /// taken for dead would lose what it holds.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        match Stat::of(self.pid) {
            Ok(stat) => stat.start_time == self.start_time && stat.is_running(),
            Err(error) => !is_no_such_process(&error),
        }
    }

    /// The kernel's state letter (`R` running, `S` sleeping, `T` stopped, `Z` zombie, ...), or `None`
    /// when this process is gone.
    #[must_use]
    pub fn state(&self) -> Option<char> {
        let stat = Stat::of(self.pid).ok()?;
        (stat.start_time == self.start_time).then_some(stat.state)
    }

    /// Sends `signal` to this very process.
    ///
    /// # Errors
    /// `NotFound` when it is gone (its pid may belong to another process by now, which is left alone);
    /// `PermissionDenied` when it belongs to another user.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let Some(pidfd) = self.open()? else {
            // A kernel without pidfds: the check and the signal are two steps, as they always were.
            self.must_match()?;
            let pid = i32::try_from(self.pid).map_err(|_| gone())?;
            // SAFETY: kill takes two integers and touches no memory of ours.
            let result = unsafe { libc::kill(pid, signal.number()) };
            return errno_result(result.into());
        };
        // SAFETY: the descriptor is open for the length of the call; a null siginfo asks the kernel to
        // fill in what kill(2) would, and no flags are defined.
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                pidfd.as_raw_fd(),
                signal.number(),
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        errno_result(result)
    }

    /// Waits until this process has ended (a zombie has) or `timeout` has passed; tells whether it ended.
    ///
    /// # Errors
    /// What `pidfd_open` or `poll` report.
    pub fn wait_end(&self, timeout: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + timeout;
        let pidfd = match self.open() {
            Ok(pidfd) => pidfd,
            Err(error) if is_no_such_process(&error) => return Ok(true),
            Err(error) => return Err(error),
        };
        loop {
            if !self.is_alive() {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let Some(pidfd) = &pidfd else {
                std::thread::sleep(left.min(WAIT_FALLBACK_STEP));
                continue;
            };
            // Rounded up, so that the last wait does not spin through a fraction of a millisecond.
            let millis = i32::try_from(left.as_millis().saturating_add(1)).unwrap_or(i32::MAX);
            let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
            match poll(
                &mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)],
                timeout,
            ) {
                Ok(ready) if ready > 0 => return Ok(true),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// A descriptor that becomes readable when this very process has ended (a pidfd, see `pidfd_open(2)`), for a
    /// `poll(2)` loop; `None` where the kernel (or its system call filter) has none.
    ///
    /// # Errors
    /// `NotFound` when the process is gone already; else what the system reports.
    pub fn end_descriptor(&self) -> io::Result<Option<OwnedFd>> {
        self.open()
    }

    /// A pidfd of this very process; `None` where the kernel (or its system call filter) has none.
    fn open(&self) -> io::Result<Option<OwnedFd>> {
        let pid = i32::try_from(self.pid).map_err(|_| gone())?;
        // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
        let result = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if result < 0 {
            let errno = Errno::last();
            // A seccomp filter that does not know the call answers EPERM; the kernel itself never does.
            return match errno {
                Errno::ENOSYS | Errno::EPERM => Ok(None),
                Errno::ESRCH => Err(gone()),
                _ => Err(errno.into()),
            };
        }
        let raw = RawFd::try_from(result).map_err(io::Error::other)?;
        // SAFETY: the kernel has just handed this descriptor to us, and nobody else knows its number.
        let pidfd = unsafe { OwnedFd::from_raw_fd(raw) };
        // Only now is the start time proof: the pidfd pins whoever had the pid when it was opened.
        self.must_match()?;
        Ok(Some(pidfd))
    }

    fn must_match(&self) -> io::Result<()> {
        match Stat::of(self.pid) {
            Ok(stat) if stat.start_time == self.start_time => Ok(()),
            Ok(_) => Err(gone()),
            Err(error) if is_no_such_process(&error) => Err(gone()),
            Err(error) => Err(error),
        }
    }
}

/// When process `pid` started, in clock ticks since boot (field 22 of `/proc/PID/stat`).
///
/// # Errors
/// `NotFound` when there is no such process; `InvalidData` when the kernel's line is not understood.
pub fn start_time(pid: u32) -> io::Result<u64> {
    Stat::of(pid).map(|stat| stat.start_time)
}

/// The identity of this boot of the kernel, as a UUID in text.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// The identity of this boot of the kernel, as 16 bytes.
///
/// # Errors
/// When `/proc` cannot be read or does not hold a UUID.
pub fn boot_id_bytes() -> io::Result<[u8; 16]> {
    parse_uuid(&boot_id()?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "boot_id is not a UUID"))
}

/// The namespaces that give pids and start times their meaning. Two processes can judge each other's
/// [`Identity`] only when these are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces {
    /// Inode of the pid namespace.
    pub pid: u64,
    /// Inode of the time namespace; 0 on kernels that have none.
    pub time: u64,
}

impl Namespaces {
    /// Those of this process.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn current() -> io::Result<Self> {
        let time = match fs::metadata("/proc/self/ns/time") {
            Ok(meta) => meta.ino(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        Ok(Self {
            pid: fs::metadata("/proc/self/ns/pid")?.ino(),
            time,
        })
    }
}

/// Asks the kernel to send `signal` to this process when the *thread* that forked it ends.
///
/// Set in an already running process it leaves a gap: a parent that died before is not noticed. Check
/// the parent's pid afterwards.
///
/// # Errors
/// What `prctl` reports.
pub fn set_parent_death_signal(signal: Signal) -> io::Result<()> {
    // SAFETY: this option of prctl takes one integer and touches no memory of ours.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal.number()) };
    errno_result(result.into())
}

/// The pid of this process's parent; 0 when the parent lives in another pid namespace.
#[must_use]
pub fn parent_pid() -> u32 {
    std::os::unix::process::parent_id()
}

/// The fields of `/proc/PID/stat` that identity and life depend on.
struct Stat {
    pid: u32,
    state: char,
    threads: u64,
    start_time: u64,
}

impl Stat {
    fn of(pid: u32) -> io::Result<Self> {
        Self::read(&format!("/proc/{pid}/stat"))
    }

    fn read(path: &str) -> io::Result<Self> {
        // Bytes, not text: the command's name is whatever its owner made it.
        Self::parse(&fs::read(path)?).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{path} is not understood"),
            )
        })
    }

    fn parse(line: &[u8]) -> Option<Self> {
        // The name stands in parentheses and may itself hold spaces and parentheses: only the last
        // closing one ends it.
        let name_start = line.iter().position(|&b| b == b'(')?;
        let name_end = line.iter().rposition(|&b| b == b')')?;
        let pid = std::str::from_utf8(line.get(..name_start)?)
            .ok()?
            .trim()
            .parse()
            .ok()?;
        let mut fields = std::str::from_utf8(line.get(name_end.checked_add(1)?..)?)
            .ok()?
            .split_ascii_whitespace();
        // Fields are counted from 1 in the manual; the state is the third.
        let state = fields.next()?.chars().next()?;
        let threads = fields.nth(16)?.parse().ok()?; // 20th
        let start_time = fields.nth(1)?.parse().ok()?; // 22nd
        Some(Self {
            pid,
            state,
            threads,
            start_time,
        })
    }

    fn is_running(&self) -> bool {
        // A leader that ended before its other threads shows as a zombie while the process goes on.
        !matches!(self.state, 'Z' | 'X' | 'x') || self.threads > 1
    }
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let mut digits = text.chars().filter(|&c| c != '-');
    let mut bytes = [0; 16];
    for byte in &mut bytes {
        let high = digits.next()?.to_digit(16)?;
        let low = digits.next()?.to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    digits.next().is_none().then_some(bytes)
}

/// A process that vanishes while its file is being read answers ESRCH instead of ENOENT.
fn is_no_such_process(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the process is gone")
}

fn errno_result(result: libc::c_long) -> io::Result<()> {
    if result >= 0 {
        return Ok(());
    }
    match Errno::last() {
        Errno::ESRCH => Err(gone()),
        errno => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_knows_itself() {
        let me = Identity::current().unwrap();
        assert_eq!(me, Identity::of(std::process::id()).unwrap());
        assert!(me.is_alive());
        assert!(me.state().is_some());
        assert_eq!(
            Namespaces::current().unwrap(),
            Namespaces::current().unwrap()
        );
    }

    #[test]
    fn names_with_parentheses_and_spaces_do_not_shift_the_fields() {
        let line = b"42 (a) R 1 (b\xff) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 3 0 987 20 21";
        let stat = Stat::parse(line).unwrap();
        assert_eq!(
            (stat.pid, stat.state, stat.threads, stat.start_time),
            (42, 'S', 3, 987)
        );
        for broken in [&b""[..], b"42", b"42 (x)", b"42 (x) S 1", b")(", b"x (y) S"] {
            assert!(Stat::parse(broken).is_none());
        }
    }

    #[test]
    fn another_start_time_is_another_process() {
        let me = Identity::current().unwrap();
        let stranger = Identity {
            start_time: me.start_time + 1,
            ..me
        };
        assert!(!stranger.is_alive());
        assert_eq!(stranger.state(), None);
        // Were this delivered, the test process would die of it.
        let error = stranger.signal(Signal::Kill).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(stranger.wait_end(Duration::from_secs(60)).unwrap());
    }

    #[test]
    fn a_signal_stops_and_ends_a_child() {
        let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        assert!(!identity.wait_end(Duration::ZERO).unwrap());
        identity.signal(Signal::Kill).unwrap();
        assert!(identity.wait_end(Duration::from_secs(60)).unwrap());
        assert!(!identity.is_alive(), "a zombie is not alive");
        child.wait().unwrap();
        let error = identity.signal(Signal::Kill).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_end_of_a_child_can_be_polled_for() {
        let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        let Some(end) = identity.end_descriptor().unwrap() else {
            child.kill().unwrap();
            child.wait().unwrap();
            return;
        };
        let ready = |timeout| {
            let mut fds = [PollFd::new(end.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, timeout).unwrap() > 0
        };
        assert!(!ready(PollTimeout::ZERO));
        identity.signal(Signal::Kill).unwrap();
        assert!(ready(PollTimeout::NONE), "before it is waited for");
        child.wait().unwrap();
        assert!(ready(PollTimeout::ZERO), "and after");
        let error = identity.end_descriptor().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_boot_has_an_identity() {
        assert_eq!(boot_id().unwrap().len(), 36);
        assert_ne!(boot_id_bytes().unwrap(), [0; 16]);
        assert_eq!(parse_uuid("00"), None);
        assert_eq!(parse_uuid("zz000000-0000-0000-0000-000000000000"), None);
        assert_eq!(
            parse_uuid("01020304-0506-0708-090a-0b0c0d0e0f10").unwrap()[15],
            16
        );
    }
}
