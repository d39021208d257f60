//! Owns what the kernel says about processes (`/proc`), and signals by pid.

use std::fs;
use std::path::PathBuf;

pub use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// One process as `/proc/PID/stat` shows it.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Its parent's number.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// `R`, `S`, `T`, `Z`, …
    pub state: char,
    /// When it started, in clock ticks since boot: with the pid, an identity.
    pub start: u64,
}

impl Process {
    /// The process with that number, if there is one that has not ended.
    #[must_use]
    pub fn find(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The command in parentheses may itself contain parentheses and spaces.
        let (_, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let found = Self {
            pid,
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        };
        (found.state != 'Z' && found.state != 'X').then_some(found)
    }

    /// Whether the two are one process, whatever it is doing now.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        (self.pid, self.start) == (other.pid, other.start)
    }

    /// Whether this very process (not another with its number) still runs.
    #[must_use]
    pub fn lives(&self) -> bool {
        Self::find(self.pid).is_some_and(|now| now.is(self))
    }

    /// Sends it a signal, if it still runs.
    pub fn signal(&self, signal: Signal) {
        if self.lives() {
            signal_pid(self.pid, signal);
        }
    }

    /// Its environment, as it was started with.
    #[must_use]
    pub fn environment(&self) -> Vec<String> {
        let bytes = fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        bytes
            .split(|byte| *byte == 0)
            .filter(|entry| !entry.is_empty())
            .map(|entry| String::from_utf8_lossy(entry).into_owned())
            .collect()
    }

    /// The files under `/dev/shm` that it maps: its shared segment.
    #[must_use]
    pub fn shared_memory(&self) -> Vec<PathBuf> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap_or_default();
        let mut found: Vec<PathBuf> = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5))
            .filter(|path| path.starts_with("/dev/shm/"))
            .map(PathBuf::from)
            .collect();
        found.dedup();
        found
    }
}

/// Every running process that satisfies `test`.
fn all(test: impl Fn(&Process) -> bool) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Process::find)
        .filter(|process| test(process))
        .collect()
}

/// How many descriptors a process has open.
#[must_use]
pub fn open_files(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Descriptors that may be missing while they are first counted: a server that has just begun, or taken over, gets the lock
/// for background work and the like a moment after it serves.
const FILES_YET_TO_COME: usize = 2;

/// Whether a server has no more descriptors open than when they were counted `before`. A leak shows all the same: it is
/// one for each of many orders or deaths.
#[must_use]
pub fn leaks_no_files(pid: i32, before: usize) -> bool {
    open_files(pid) <= before + FILES_YET_TO_COME
}

/// The running members of a process group, orphans included.
#[must_use]
pub fn members(group: i32) -> Vec<Process> {
    all(|process| process.group == group)
}

/// The running children of a process.
#[must_use]
pub fn children(parent: i32) -> Vec<Process> {
    all(|process| process.parent == parent)
}

/// Sends a signal to one process; that it has ended meanwhile is no error.
pub fn signal_pid(pid: i32, signal: Signal) {
    let _ = nix::sys::signal::kill(Pid::from_raw(pid), signal);
}

/// Sends a signal to every member of a group in one instant.
pub fn signal_group(group: i32, signal: Signal) {
    let _ = nix::sys::signal::killpg(Pid::from_raw(group), signal);
}
