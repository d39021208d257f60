//! The host: file systems and the room on them, descriptors, memory, and what a service manager has arranged.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use okdb_sys::host::{self, FsType};

use super::{Report, Verdict};
use crate::settings::Given;

/// Free space under which the next writes may fail soon. Bytes.
const DISK_FREE_MIN: u64 = 64 << 20;
/// Free space under which somebody should look. Bytes.
const DISK_FREE_LOW: u64 = 1 << 30;
/// Where segments are.
const SHARED_MEMORY: &str = "/dev/shm";
/// Descriptors of a process beside its connections: files, listeners, sockets between processes.
const FILES_BESIDE: u64 = 256;
/// With fewer descriptors no server gets far.
const FILES_MIN: u64 = 256;
/// A memory limit that leaves no room for the pages of a store. Bytes.
const MEMORY_LOW: u64 = 256 << 20;
/// Users from here on are people; a session manager cleans up behind them.
const FIRST_PERSON: u32 = 1000;

/// The file system of the root, or of the folder where it would be made.
pub(super) fn file_system(report: &mut Report, root: &Path) {
    let existing = existing(root);
    match host::fs_type(&existing) {
        Ok(fs) => judge_file_system(report, fs.name(), fs.is_network()),
        Err(error) => report.told(
            "file system",
            Verdict::Bad,
            format!("{}: {error}", existing.display()),
        ),
    }
    if let Some(reason) = unwritable(&existing) {
        report.bad(
            "root",
            format!("{} cannot be written to: {reason}", existing.display()),
            "run the server and this command as the user that it belongs to, on a file system that is not read-only",
        );
    }
}

fn judge_file_system(report: &mut Report, name: &str, is_network: bool) {
    const NAME: &str = "file system";
    if is_network {
        report.bad(
            NAME,
            format!("{name} cannot carry shared memory maps"),
            "move the root to a local disk",
        );
    } else if name == "tmpfs" {
        report.odd(
            NAME,
            "tmpfs; everything is gone after a reboot",
            "move the root to a disk if it is to last",
        );
    } else {
        report.good(NAME, name);
    }
}

/// The root, or the nearest folder above it that exists.
fn existing(root: &Path) -> PathBuf {
    let found = root
        .ancestors()
        .find(|path| !path.as_os_str().is_empty() && path.exists());
    found.unwrap_or(Path::new(".")).to_owned()
}

/// Why this process could not write there. Asked without writing.
fn unwritable(folder: &Path) -> Option<String> {
    use nix::unistd::{AccessFlags, access};
    let wanted = AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK;
    access(folder, wanted)
        .err()
        .map(|errno| errno.desc().to_owned())
}

/// Room for data, and for the segment.
pub(super) fn disk(report: &mut Report, root: &Path) {
    match host::disk_free(&existing(root)) {
        Ok(free) => judge_disk(report, free),
        Err(error) => report.told("disk space", Verdict::Bad, error.to_string()),
    }
    let memory = Path::new(SHARED_MEMORY);
    let fs = host::fs_type(memory).map(FsType::name);
    judge_shared_memory(report, fs.ok(), host::disk_free(memory).unwrap_or(0));
}

fn judge_disk(report: &mut Report, free: u64) {
    const NAME: &str = "disk space";
    let told = format!("{} MiB free", free >> 20);
    if free < DISK_FREE_MIN {
        report.bad(NAME, told, "make room before writes fail");
    } else if free < DISK_FREE_LOW {
        report.odd(NAME, told, "make room soon");
    } else {
        report.good(NAME, format!("{} GiB free", free >> 30));
    }
}

fn judge_shared_memory(report: &mut Report, fs: Option<&str>, free: u64) {
    const NAME: &str = "shared memory";
    let needed = u64::try_from(okdb_shm::SEGMENT_BYTES).unwrap_or(u64::MAX);
    match fs {
        None => report.odd(
            NAME,
            format!("{SHARED_MEMORY} does not exist"),
            "mount a tmpfs there, or serve with --segment-in-root",
        ),
        Some(_) if free < needed => report.bad(
            NAME,
            format!("{SHARED_MEMORY} has {} KiB free, a segment takes {}", free >> 10, needed >> 10),
            "enlarge it (mount -o remount,size=, docker --shm-size), or serve with --segment-in-root",
        ),
        Some("tmpfs") => report.good(NAME, format!("{SHARED_MEMORY} has {} MiB free", free >> 20)),
        Some(other) => report.odd(
            NAME,
            format!("{SHARED_MEMORY} is {other}; its writes may wait for a disk"),
            "mount a tmpfs there",
        ),
    }
}

pub(super) fn check(report: &mut Report, given: &Given, server: Option<u32>) {
    let process = server.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let folder = Path::new("/proc").join(process);
    open_files(report, given, &folder, server.is_none());
    report.good("cores", format!("{} may be used", host::available_cores()));
    match fs::read_to_string("/proc/swaps") {
        Ok(swaps) => judge_swap(report, &swaps),
        Err(error) => report.told("swap", Verdict::Odd, error.to_string()),
    }
    let groups = fs::read_to_string(folder.join("cgroup")).unwrap_or_default();
    judge_memory(report, memory_of(&groups, Path::new("/sys/fs/cgroup")));
    manager(report, &groups, &folder, server.is_some());
}

fn open_files(report: &mut Report, given: &Given, folder: &Path, raise: bool) {
    const NAME: &str = "open files";
    if raise && let Err(error) = host::raise_nofile() {
        return report.told(NAME, Verdict::Odd, error.to_string());
    }
    let limits = fs::read_to_string(folder.join("limits")).unwrap_or_default();
    let Some(limit) = open_files_limit(&limits) else {
        return report.told(NAME, Verdict::Odd, "the limit cannot be read");
    };
    let connections = given.number("limits.connections", 10_000).unwrap_or(10_000);
    judge_open_files(report, limit, connections);
}

/// The soft limit in `/proc/PID/limits`; a server raises it to the hard one.
fn open_files_limit(limits: &str) -> Option<u64> {
    let rest = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    match rest.split_ascii_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

fn judge_open_files(report: &mut Report, limit: u64, connections: u64) {
    const NAME: &str = "open files";
    const REMEDY: &str = "raise LimitNOFILE= or ulimit -n, or lower limits.connections";
    if limit < FILES_MIN {
        report.bad(NAME, format!("at most {limit}"), REMEDY);
    } else if limit < connections.saturating_add(FILES_BESIDE) {
        report.odd(
            NAME,
            format!("at most {limit}, but a worker may have {connections} connections"),
            REMEDY,
        );
    } else {
        report.good(NAME, format!("at most {limit}"));
    }
}

fn judge_swap(report: &mut Report, swaps: &str) {
    if swaps.lines().count() > 1 {
        report.odd(
            "swap",
            "on; a worker that is swapped out answers late",
            "turn it off, or set MemorySwapMax=0",
        );
    } else {
        report.good("swap", "off");
    }
}

/// What a control group allows, and how often it had to kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Memory {
    limit: Option<u64>,
    kills: u64,
}

/// The tightest limit from the process's control group upwards. `groups` is `/proc/PID/cgroup`, `mounted` where the
/// hierarchies are.
fn memory_of(groups: &str, mounted: &Path) -> Memory {
    let mut memory = Memory::default();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (top, limit, events) = if controllers.is_empty() {
            (mounted.to_owned(), "memory.max", "memory.events")
        } else if controllers.split(',').any(|name| name == "memory") {
            (
                mounted.join("memory"),
                "memory.limit_in_bytes",
                "memory.oom_control",
            )
        } else {
            continue;
        };
        let own = top.join(path.trim_start_matches('/'));
        for group in own.ancestors().take_while(|group| group.starts_with(&top)) {
            let said = fs::read_to_string(group.join(limit)).unwrap_or_default();
            // Version 1 says "none" as the largest number of whole pages.
            let said = said.trim().parse().ok().filter(|bytes| *bytes < 1 << 60);
            memory.limit = [memory.limit, said].into_iter().flatten().min();
        }
        let events = fs::read_to_string(own.join(events)).unwrap_or_default();
        let kills = events
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill "))
            .and_then(|count| count.trim().parse::<u64>().ok());
        memory.kills += kills.unwrap_or(0);
    }
    memory
}

fn judge_memory(report: &mut Report, memory: Memory) {
    const NAME: &str = "cgroup memory";
    const REMEDY: &str = "raise MemoryMax= or the container's limit";
    let told = match memory.limit {
        Some(limit) => format!(
            "at most {} MiB, in which the store's pages count",
            limit >> 20
        ),
        None => "no limit".to_owned(),
    };
    if memory.kills > 0 {
        report.odd(
            NAME,
            format!(
                "{told}; the kernel has killed {} processes for it",
                memory.kills
            ),
            REMEDY,
        );
    } else if memory.limit.is_some_and(|limit| limit < MEMORY_LOW) {
        report.odd(NAME, told, REMEDY);
    } else {
        report.good(NAME, told);
    }
}

/// What a service manager has arranged for the server, or would for one.
fn manager(report: &mut Report, groups: &str, folder: &Path, serves: bool) {
    const NAME: &str = "systemd";
    if !Path::new("/run/systemd/system").is_dir() {
        return report.good(NAME, "this host does not run it");
    }
    let owner = fs::metadata(folder).map_or(0, |about| about.uid());
    if serves && removes_ipc(owner, Path::new("/")) {
        return report.odd(
            NAME,
            format!("the server's user {owner} is a person's: when they log out, the session manager removes the segment in {SHARED_MEMORY}"),
            "run it as a system user, set RemoveIPC=no in logind.conf, or serve with --segment-in-root",
        );
    }
    match unit(groups) {
        Some(unit) if serves => {
            // Only readable for the same user.
            let environment = fs::read(folder.join("environ")).unwrap_or_default();
            report.good(
                NAME,
                format!("the server is {unit}{}", arranged(&environment)),
            );
        }
        _ if serves => report.good(NAME, "the server was not started by it"),
        _ => report.good(NAME, "it runs here"),
    }
}

/// The service that a process belongs to.
fn unit(groups: &str) -> Option<&str> {
    groups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .find_map(|path| {
            let mut names = path.rsplit('/');
            names.find(|name| name.strip_suffix(".service").is_some())
        })
}

/// What the variables of a process tell of it.
fn arranged(environment: &[u8]) -> String {
    let value = |name: &str| {
        environment
            .split(|byte| *byte == 0)
            .filter_map(|pair| std::str::from_utf8(pair).ok())
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    };
    let mut told = String::new();
    if value("NOTIFY_SOCKET").is_some() {
        told.push_str(", which hears of its state");
    }
    let watchdog = value("WATCHDOG_USEC").and_then(|micros| micros.parse::<u64>().ok());
    if let Some(micros) = watchdog {
        told = format!("{told}, with a watchdog of {} s", micros / 1_000_000);
    }
    if value("LISTEN_FDS").is_some() {
        told.push_str(", with a socket unit");
    }
    told
}

/// Whether the session manager removes what a user has in shared memory when they log out: so it does for people, unless
/// they linger or it is told not to.
fn removes_ipc(user: u32, top: &Path) -> bool {
    if user < FIRST_PERSON {
        return false;
    }
    let passwd = fs::read_to_string(top.join("etc/passwd")).unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then_some(name)
    });
    if name.is_some_and(|name| top.join("var/lib/systemd/linger").join(name).exists()) {
        return false;
    }
    let mut files = vec![top.join("etc/systemd/logind.conf")];
    let more = fs::read_dir(top.join("etc/systemd/logind.conf.d"));
    let mut more: Vec<PathBuf> = more
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    more.sort();
    files.extend(more);
    // The last word counts.
    let said = files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .flat_map(|text| {
            text.lines()
                .filter_map(|line| line.trim().strip_prefix("RemoveIPC=").map(str::to_owned))
                .collect::<Vec<_>>()
        })
        .last();
    !said.is_some_and(|said| matches!(said.trim(), "no" | "false" | "0" | "off"))
}

#[cfg(test)]
mod tests;
