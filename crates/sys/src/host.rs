//! What the host gives this process: time, cores, limits, memory, file systems, random bytes.

#![allow(
    unsafe_code,
    reason = "getrandom has no safe wrapper in our dependencies"
)]

use std::fs;
use std::io;
use std::num::NonZero;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::{statfs::statfs, statvfs::statvfs};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};

/// Time since boot that neither a clock step nor a suspend moves, the same for every process of the
/// host. Heartbeats use it: a laptop that wakes up must not find all its workers overdue.
///
/// # Errors
/// What `clock_gettime` reports.
pub fn monotonic() -> io::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_MONOTONIC)?.into())
}

/// [`monotonic`] in whole milliseconds; 0 if the clock cannot be read, which Linux does not let happen.
#[must_use]
pub fn monotonic_ms() -> u64 {
    monotonic().map_or(0, |time| {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    })
}

/// The cores this process may use: its CPU affinity and its cgroup's quota (v1 and v2, rounded down)
/// count; at least 1.
#[must_use]
pub fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Raises the soft limit of open descriptors to the hard one; returns both as they are then.
///
/// # Errors
/// What `getrlimit` and `setrlimit` report.
pub fn raise_nofile() -> io::Result<(u64, u64)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?)
}

/// Resident memory of this process in bytes, shared pages included.
///
/// # Errors
/// When `/proc/self/statm` cannot be read or understood.
pub fn rss_bytes() -> io::Result<u64> {
    let pages: u64 = fs::read_to_string("/proc/self/statm")?
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/statm"))?;
    let page = sysconf(SysconfVar::PAGE_SIZE)?
        .and_then(|size| u64::try_from(size).ok())
        .unwrap_or(4096);
    Ok(pages.saturating_mul(page))
}

/// Bytes that this user may still write to the file system of `path`.
///
/// # Errors
/// What `statvfs` reports.
pub fn disk_free(path: &Path) -> io::Result<u64> {
    let stat = statvfs(path)?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

/// A file system, as far as it matters to a memory-mapped store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsType {
    magic: u64,
}

/// Magic number (linux/magic.h and the file systems' own sources), name, whether another host may
/// change the files under a mapping.
const FS_TYPES: [(u64, &str, bool); 19] = [
    (0xef53, "ext", false),
    (0x5846_5342, "xfs", false),
    (0x9123_683e, "btrfs", false),
    (0xf2f5_2010, "f2fs", false),
    (0x2fc1_2fc1, "zfs", false),
    (0xca45_1a4e, "bcachefs", false),
    (0x0102_1994, "tmpfs", false),
    (0x794c_7630, "overlay", false),
    (0x6969, "nfs", true),
    (0xff53_4d42, "cifs", true),
    (0xfe53_4d42, "smb2", true),
    (0x517b, "smb", true),
    (0x6573_5546, "fuse", true),
    (0x0102_1997, "9p", true),
    (0x00c3_6400, "ceph", true),
    (0x0bd0_0bd0, "lustre", true),
    (0x0116_1970, "gfs2", true),
    (0x7461_636f, "ocfs2", true),
    (0x5346_414f, "afs", true),
];

impl FsType {
    /// Its name; `unknown` for one that this table does not hold.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().map_or("unknown", |row| row.1)
    }

    /// Whether it is, or may be, shared with other hosts. FUSE counts: what lies behind it is unknown.
    #[must_use]
    pub fn is_network(self) -> bool {
        self.row().is_some_and(|row| row.2)
    }

    /// The kernel's number for it.
    #[must_use]
    pub fn magic(self) -> u64 {
        self.magic
    }

    fn row(self) -> Option<&'static (u64, &'static str, bool)> {
        FS_TYPES.iter().find(|row| row.0 == self.magic)
    }
}

/// The file system that holds `path`.
///
/// # Errors
/// What `statfs` reports.
pub fn fs_type(path: &Path) -> io::Result<FsType> {
    // Some platforms declare the field signed and 32 bits wide; only the low 32 bits carry the number.
    #[allow(
        clippy::cast_sign_loss,
        clippy::unnecessary_cast,
        reason = "a bit pattern, masked"
    )]
    let magic = statfs(path)?.filesystem_type().0 as u64 & 0xffff_ffff;
    Ok(FsType { magic })
}

/// Random bytes fit for secrets.
///
/// # Errors
/// What `getrandom` reports.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        // SAFETY: pointer and length describe one live, writable slice; the kernel fills at most that.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(got) => filled = filled.saturating_add(got),
            Err(_) if Errno::last() == Errno::EINTR => {}
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    use super::*;

    #[test]
    fn the_host_answers() {
        assert!(monotonic_ms() > 0);
        assert!(monotonic().unwrap() <= monotonic().unwrap());
        assert!(available_cores() >= 1);
        assert!(rss_bytes().unwrap() > 100_000);
        assert!(disk_free(Path::new("/tmp")).unwrap() > 0);
        let (soft, hard) = raise_nofile().unwrap();
        assert_eq!(soft, hard);
    }

    #[test]
    fn file_systems_have_names() {
        let proc = fs_type(Path::new("/proc")).unwrap();
        assert_eq!(proc.name(), "unknown");
        assert!(!proc.is_network());
        let nfs = FsType { magic: 0x6969 };
        assert!(nfs.is_network());
        for row in &FS_TYPES {
            assert_eq!(FS_TYPES.iter().filter(|r| r.0 == row.0).count(), 1);
            assert_eq!(FS_TYPES.iter().filter(|r| r.1 == row.1).count(), 1);
        }
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random_bytes::<16>().unwrap(), random_bytes::<16>().unwrap());
        assert_eq!(random_bytes::<0>().unwrap(), []);
    }
}
