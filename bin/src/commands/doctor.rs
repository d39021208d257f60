//! `okdb doctor`: what would keep this host, or this root, from serving well. One line a check; it changes nothing that a
//! server uses.

use std::{
    net::{Ipv4Addr, TcpListener, UdpSocket},
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::ArgMatches;
use okdb::{
    server::prove,
    store::{FORMAT_VERSION, Options, Role, Store, server_pid},
};
use okdb_cluster::{
    address::Address,
    exit::ExitCode,
    holder,
    listen::{ListenError, Listeners},
};
use okdb_sys::host;
use serde_json::json;

use crate::{
    output::{Failure, print},
    settings::Given,
};

/// Free space under which the next writes may fail soon.
const DISK_FREE_MIN: u64 = 64 << 20;
const DISK_FREE_LOW: u64 = 1 << 30;
/// Descriptors under which ten thousand connections do not fit.
const NOFILE_LOW: u64 = 4096;
/// How far the HLC may be ahead of the wall clock before somebody should look at the clocks.
const SKEW_MAX_MS: u64 = 60_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    Odd,
    Bad,
}

impl Verdict {
    fn sign(self) -> &'static str {
        match self {
            Self::Good => "✓",
            Self::Odd => "⚠",
            Self::Bad => "✗",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Odd => "warning",
            Self::Bad => "error",
        }
    }
}

struct Check {
    name: &'static str,
    verdict: Verdict,
    detail: String,
}

#[derive(Default)]
struct Report(Vec<Check>);

impl Report {
    fn add(&mut self, name: &'static str, verdict: Verdict, detail: impl Into<String>) {
        self.0.push(Check {
            name,
            verdict,
            detail: detail.into(),
        });
    }
}

pub(crate) fn run(matches: &ArgMatches, given: &Given) -> Result<ExitCode, Failure> {
    let root = super::root(given);
    let mut report = Report::default();
    report.add(
        "version",
        Verdict::Good,
        format!(
            "okdb {}, storage format {FORMAT_VERSION}",
            env!("CARGO_PKG_VERSION")
        ),
    );
    folder(&mut report, &root);
    let server = server_pid(&root);
    match server {
        Some(pid) => report.add("server", Verdict::Good, format!("served by pid {pid}")),
        None => report.add("server", Verdict::Good, "not running"),
    }
    cluster(&mut report, &root, server);
    listen_addresses(&mut report, given, server);
    network(&mut report);
    limits(&mut report);
    memory(&mut report);

    let bad = report.0.iter().any(|check| check.verdict == Verdict::Bad);
    if matches.get_flag("json") {
        let checks: Vec<_> = report
            .0
            .iter()
            .map(|check| json!({ "check": check.name, "verdict": check.verdict.name(), "detail": check.detail }))
            .collect();
        print(&json!({ "ok": !bad, "root": root, "checks": checks }).to_string())?;
    } else {
        for check in &report.0 {
            print(&format!(
                "{} {}: {}",
                check.verdict.sign(),
                check.name,
                check.detail
            ))?;
        }
    }
    Ok(if bad {
        ExitCode::RuntimeFailure
    } else {
        ExitCode::Clean
    })
}

/// The folder, or where it would be made.
fn folder(report: &mut Report, root: &Path) {
    let existing = root
        .ancestors()
        .find(|path| path.exists())
        .filter(|path| !path.as_os_str().is_empty());
    let existing = existing.unwrap_or(Path::new("."));
    match host::fs_type(existing) {
        Ok(fs) if fs.is_network() => report.add(
            "file system",
            Verdict::Bad,
            format!(
                "{} cannot carry shared memory maps: move the root to a local disk",
                fs.name()
            ),
        ),
        Ok(fs) if fs.name() == "tmpfs" => report.add(
            "file system",
            Verdict::Odd,
            "tmpfs: everything is gone after a reboot",
        ),
        Ok(fs) => report.add("file system", Verdict::Good, fs.name()),
        Err(error) => report.add(
            "file system",
            Verdict::Bad,
            format!("{}: {error}", existing.display()),
        ),
    }
    match host::disk_free(existing) {
        Ok(free) if free < DISK_FREE_MIN => report.add(
            "disk space",
            Verdict::Bad,
            format!("{} MiB free: make room before writes fail", free >> 20),
        ),
        Ok(free) if free < DISK_FREE_LOW => report.add(
            "disk space",
            Verdict::Odd,
            format!("{} MiB free", free >> 20),
        ),
        Ok(free) => report.add(
            "disk space",
            Verdict::Good,
            format!("{} GiB free", free >> 30),
        ),
        Err(error) => report.add("disk space", Verdict::Bad, error.to_string()),
    }
    if !root.exists() {
        report.add(
            "root",
            Verdict::Good,
            format!("{} does not exist yet; a server makes it", root.display()),
        );
    }
}

/// Shared memory, and what the store says when it is looked at.
fn cluster(report: &mut Report, root: &Path, server: Option<u32>) {
    if root.join("format").exists() {
        match Store::open(
            root,
            Options {
                role: Role::Tool,
                ..Options::default()
            },
        ) {
            Ok(store) => {
                report.add(
                    "store",
                    Verdict::Good,
                    format!(
                        "{} opens, map size {} GiB",
                        root.display(),
                        store.map_bytes() >> 30
                    ),
                );
                shared_memory(report, &store, server);
                clocks(report, &store);
                processes(report, &store);
            }
            Err(error) => report.add("store", Verdict::Bad, error.to_string()),
        }
        return;
    }
    // No root yet: prove it with one that is thrown away.
    let scratch = std::env::temp_dir().join(format!("okdb-doctor-{}", std::process::id()));
    match Store::open(&scratch, Options::default()) {
        Ok(store) => {
            shared_memory(report, &store, None);
            drop(store);
        }
        Err(error) => report.add("store", Verdict::Bad, error.to_string()),
    }
    if let Err(error) = std::fs::remove_dir_all(&scratch)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        report.add(
            "scratch",
            Verdict::Odd,
            format!("{} stays behind: {error}", scratch.display()),
        );
    }
}

fn shared_memory(report: &mut Report, store: &Store, server: Option<u32>) {
    if super::forced_single() {
        let detail = "unavailable (OKDB_FORCE_SHM_FALLBACK is set) — running single-process";
        report.add("cluster", Verdict::Odd, detail);
        return;
    }
    match prove(store) {
        Ok(()) => {
            let workers = store
                .segment()
                .slots()
                .filter(|(_, slot)| slot.worker.is_some())
                .count();
            let detail = match server {
                Some(_) if workers > 0 => format!("ready ({workers} workers)"),
                Some(_) => "ready (one process serves)".to_owned(),
                None => "ready".to_owned(),
            };
            report.add("cluster", Verdict::Good, detail);
        }
        Err(error) => report.add(
            "cluster",
            Verdict::Odd,
            format!("unavailable ({error}) — running single-process"),
        ),
    }
}

fn clocks(report: &mut Report, store: &Store) {
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
    let hlc = okdb_shm::stamp_ms(store.segment().hlc().last());
    if hlc > wall + SKEW_MAX_MS {
        report.add("clock", Verdict::Odd, format!("the store has seen a time {} s ahead of this host's clock: stamps stay there until it is reached", (hlc - wall) / 1000));
    } else {
        report.add(
            "clock",
            Verdict::Good,
            "the wall clock is not behind the store's",
        );
    }
    let names = match store.env_names() {
        Ok(names) => names,
        Err(error) => return report.add("environment", Verdict::Bad, error.to_string()),
    };
    for name in names {
        let env = match store.env(&name) {
            Ok(env) => env,
            Err(error) => {
                report.add("environment", Verdict::Bad, format!("{name}: {error}"));
                continue;
            }
        };
        // The published clock first: read the other way round, a write in between would look like a fault.
        let row = store.segment().env(usize::from(env.index()));
        let published = row.map_or(0, |row| row.clock());
        match env.info() {
            Ok(info) if published > info.clock => report.add(
                "environment",
                Verdict::Bad,
                format!(
                    "{name}: clock {published} was published, the store has {}",
                    info.clock
                ),
            ),
            Ok(info) => report.add(
                "environment",
                Verdict::Good,
                format!("{name}: clock {}, {}", info.clock, info.durability),
            ),
            Err(error) => report.add("environment", Verdict::Bad, format!("{name}: {error}")),
        }
    }
}

fn processes(report: &mut Report, store: &Store) {
    let living = store
        .segment()
        .rows()
        .filter_map(|row| row.owner)
        .filter(okdb_sys::Identity::is_alive)
        .count();
    let supervised = store
        .segment()
        .slots()
        .filter(|(_, slot)| slot.worker.is_some_and(|worker| worker.is_alive()))
        .count();
    report.add(
        "processes",
        Verdict::Good,
        format!("{living} ({supervised} supervised)"),
    );
}

fn listen_addresses(report: &mut Report, given: &Given, server: Option<u32>) {
    let values = given
        .get("http.listen")
        .map_or_else(|| vec!["127.0.0.1:8484".to_owned()], |(values, _)| values);
    for value in values {
        match value.parse::<Address>() {
            Err(error) => report.add("listen address", Verdict::Bad, error.to_string()),
            Ok(address) => match (&address, server) {
                // Ours, presumably; binding a Unix socket to find out would disturb it.
                (Address::Unix(_), _) => report.add(
                    "listen address",
                    Verdict::Good,
                    format!("{address}: not tried"),
                ),
                (Address::Tcp(tcp), Some(pid))
                    if holder::of_tcp(*tcp).is_some_and(|holder| holder.pid == pid) =>
                {
                    report.add(
                        "listen address",
                        Verdict::Good,
                        format!("{address} is this root's server"),
                    );
                }
                (Address::Tcp(_), _) => {
                    match Listeners::bind(std::slice::from_ref(&address), std::num::NonZeroU16::MIN)
                    {
                        Ok(_) => report.add(
                            "listen address",
                            Verdict::Good,
                            format!("{address} is free"),
                        ),
                        Err(error @ ListenError::AddressInUse { .. }) => report.add(
                            "listen address",
                            Verdict::Bad,
                            format!("{error}: choose another with --listen"),
                        ),
                        Err(error) => report.add("listen address", Verdict::Bad, error.to_string()),
                    }
                }
            },
        }
    }
}

fn network(report: &mut Report) {
    match Listeners::bind(
        &[Address::Tcp((Ipv4Addr::LOCALHOST, 0).into())],
        std::num::NonZeroU16::MIN.saturating_add(1),
    ) {
        Ok(_) => report.add("reuseport", Verdict::Good, "two listeners share an address"),
        Err(error) => report.add(
            "reuseport",
            Verdict::Bad,
            format!("{error}: run with --no-cluster"),
        ),
    }
    match udp_round_trip() {
        Ok(()) => report.add("loopback UDP", Verdict::Good, "a datagram arrives"),
        Err(error) => report.add(
            "loopback UDP",
            Verdict::Odd,
            format!("{error}: changes travel on ticks, up to 250 ms late"),
        ),
    }
    if TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).is_err() {
        report.add(
            "loopback TCP",
            Verdict::Bad,
            "the loopback interface is down",
        );
    }
}

fn udp_round_trip() -> std::io::Result<()> {
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    receiver.set_read_timeout(Some(Duration::from_secs(1)))?;
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.send_to(b"okdb", receiver.local_addr()?)?;
    let mut buffer = [0; 8];
    receiver.recv(&mut buffer).map(drop)
}

fn limits(report: &mut Report) {
    match host::raise_nofile() {
        Ok((_, hard)) if hard < NOFILE_LOW => report.add(
            "open files",
            Verdict::Odd,
            format!("at most {hard}: raise LimitNOFILE or ulimit -n"),
        ),
        Ok((_, hard)) => report.add("open files", Verdict::Good, format!("at most {hard}")),
        Err(error) => report.add("open files", Verdict::Odd, error.to_string()),
    }
    report.add(
        "cores",
        Verdict::Good,
        format!("{} may be used", host::available_cores()),
    );
}

fn memory(report: &mut Report) {
    match std::fs::read_to_string("/proc/swaps") {
        Ok(swaps) if swaps.lines().count() > 1 => report.add(
            "swap",
            Verdict::Odd,
            "on: a worker that is swapped out answers late",
        ),
        Ok(_) => report.add("swap", Verdict::Good, "off"),
        Err(error) => report.add("swap", Verdict::Odd, error.to_string()),
    }
    match std::fs::read_to_string("/sys/fs/cgroup/memory.max") {
        Ok(limit) if limit.trim() != "max" => report.add(
            "cgroup memory",
            Verdict::Good,
            format!(
                "limit {} bytes; the page cache of the store counts towards it",
                limit.trim()
            ),
        ),
        Ok(_) | Err(_) => report.add("cgroup memory", Verdict::Good, "no limit found"),
    }
}
