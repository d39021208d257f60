//! The root: whether it opens, whether its memory is really shared, its clocks, its readers, and how its server is.

use std::{
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use okdb::{
    OpenError,
    server::prove,
    store::{Options, Role, Store},
};

use super::{Report, Verdict};
use crate::commands::{forced_single, status::view::View};

/// How far the HLC may be ahead of the wall clock before somebody should look at the clocks.
const SKEW_MAX_MS: u64 = 60_000;
/// A wall clock before this moment was never set: 2025-01-01, in seconds since 1970.
const WALL_MIN_S: u64 = 1_735_689_600;

/// Places in an environment's reader table, of 1,024, that leave room for what else may come.
const READERS_HIGH: u64 = 800;

const READERS: &str = "reader table";

pub(super) fn check(report: &mut Report, root: &Path, server: Option<u32>) {
    if !root.join("format").exists() {
        if !root.exists() {
            report.good(
                "root",
                format!("{} does not exist yet; a server makes it", root.display()),
            );
        }
        wall_clock(report, None);
        return without_root(report);
    }
    let options = Options {
        role: Role::Tool,
        ..Options::default()
    };
    match Store::open(root, options) {
        Ok(store) => {
            report.good(
                "store",
                format!(
                    "{} opens, map size {} GiB",
                    root.display(),
                    store.map_bytes() >> 30
                ),
            );
            shared_memory(report, &store, server);
            wall_clock(report, Some(&store));
            environments(report, &store);
            if let Some(server) = server {
                served(report, &store, server);
            }
            processes(report, &store);
        }
        Err(OpenError::Io { path, source })
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            report.bad(
                "store",
                format!("{}: {source}", path.display()),
                "run this command as the user that the root belongs to",
            );
        }
        Err(error) => report.told("store", Verdict::Bad, error.to_string()),
    }
}

/// A folder of this process's own for a trial.
pub(super) fn scratch(what: &str) -> PathBuf {
    std::env::temp_dir().join(format!("okdb-doctor-{what}-{}", std::process::id()))
}

pub(super) fn throw_away(report: &mut Report, folder: &Path) {
    if let Err(error) = std::fs::remove_dir_all(folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        report.odd(
            "scratch",
            format!("{} stays behind: {error}", folder.display()),
            "remove it",
        );
    }
}

/// No root yet: shared memory is proved with one that is thrown away.
fn without_root(report: &mut Report) {
    let folder = scratch("root");
    match Store::open(&folder, Options::default()) {
        Ok(store) => shared_memory(report, &store, None),
        Err(error) => report.told("store", Verdict::Bad, error.to_string()),
    }
    throw_away(report, &folder);
}

fn shared_memory(report: &mut Report, store: &Store, server: Option<u32>) {
    if forced_single() {
        let detail = "unavailable (OKDB_FORCE_SHM_FALLBACK is set) — running single-process";
        report.told("cluster", Verdict::Odd, detail);
        return;
    }
    match prove(store) {
        Ok(()) => {
            let slots = store.segment().slots();
            let workers = slots.filter(|(_, slot)| slot.worker.is_some()).count();
            let detail = match server {
                Some(_) if workers > 0 => format!("ready ({workers} workers)"),
                Some(_) => "ready (one process serves)".to_owned(),
                None => "ready".to_owned(),
            };
            report.good("cluster", detail);
        }
        Err(error) => report.told(
            "cluster",
            Verdict::Odd,
            format!("unavailable ({error}) — running single-process"),
        ),
    }
}

fn wall_clock(report: &mut Report, store: Option<&Store>) {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    let wall_ms = wall.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
    let hlc_ms = store.map_or(0, |store| okdb_shm::stamp_ms(store.segment().hlc().last()));
    judge_clock(report, wall_ms, hlc_ms);
}

fn judge_clock(report: &mut Report, wall_ms: u64, hlc_ms: u64) {
    const NAME: &str = "clock";
    if wall_ms / 1000 < WALL_MIN_S {
        report.bad(
            NAME,
            "this host's clock was never set",
            "set it, and keep it with NTP, before anything is written",
        );
    } else if hlc_ms > wall_ms + SKEW_MAX_MS {
        report.odd(
            NAME,
            format!(
                "the store has seen a time {} s ahead of this host's clock; stamps stay there until it is reached",
                (hlc_ms - wall_ms) / 1000
            ),
            "check NTP on this host",
        );
    } else {
        report.good(NAME, "the wall clock is not behind the store's");
    }
}

fn environments(report: &mut Report, store: &Store) {
    const NAME: &str = "environment";
    let names = match store.env_names() {
        Ok(names) => names,
        Err(error) => return report.told(NAME, Verdict::Bad, error.to_string()),
    };
    let (mut full, mut readers) = (false, 0);
    for name in names {
        let env = match store.env(&name) {
            Ok(env) => env,
            Err(error) => {
                report.told(NAME, Verdict::Bad, format!("{name}: {error}"));
                continue;
            }
        };
        // A read takes a place in the table.
        if let Err(error) = env.snapshot() {
            full = true;
            report.bad(
                READERS,
                format!("{name}: nobody can begin to read: {error}"),
                "end processes that use this root, or restart the server",
            );
        }
        // The published clock first: read the other way round, a write in between would look like a fault.
        let row = store.segment().env(usize::from(env.index()));
        let published = row.map_or(0, |row| row.clock());
        match env.info() {
            Ok(info) if published > info.clock => report.bad(
                NAME,
                format!(
                    "{name}: clock {published} was published, the store has {}",
                    info.clock
                ),
                "run okdb verify",
            ),
            Ok(info) => {
                readers = readers.max(info.readers);
                report.good(
                    NAME,
                    format!("{name}: clock {}, {}", info.clock, info.durability),
                );
            }
            Err(error) => report.told(NAME, Verdict::Bad, format!("{name}: {error}")),
        }
    }
    if !full {
        judge_readers(report, readers, store.segment().stale_readers());
    }
}

fn judge_readers(report: &mut Report, readers: u64, stale: u64) {
    let told = format!(
        "{readers} places have been in use at a time, {stale} of dead processes were cleared"
    );
    if readers > READERS_HIGH {
        report.odd(
            READERS,
            told,
            "look for a process with very many threads that read: okdb status names all",
        );
    } else {
        report.good(READERS, told);
    }
}

/// How the running server is.
fn served(report: &mut Report, store: &Store, server: u32) {
    let view = match View::of(store, server) {
        Ok(view) => view,
        Err(failure) => return report.told("slots", Verdict::Bad, failure.message),
    };
    for trouble in view.troubles() {
        report.told("slots", Verdict::Bad, trouble);
    }
    if view.troubles().is_empty() {
        let in_state = |state: &str| view.slots.iter().filter(|slot| slot.state == state).count();
        let away = in_state("decommissioned");
        let wanted = view.slots.len() - away;
        let away = match away {
            0 => String::new(),
            away => format!(", {away} scaled away"),
        };
        report.good(
            "slots",
            format!("{} of {wanted} ready{away}", in_state("ready")),
        );
    }
}

fn processes(report: &mut Report, store: &Store) {
    let rows = store.segment().rows().filter_map(|row| row.owner);
    let living = rows.filter(okdb_sys::Identity::is_alive).count();
    let supervised = store
        .segment()
        .slots()
        .filter(|(_, slot)| slot.worker.is_some_and(|worker| worker.is_alive()))
        .count();
    report.good("processes", format!("{living} ({supervised} supervised)"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_judged_by_what_they_do_to_stamps() {
        let verdict = |wall_ms, hlc_ms| {
            let mut report = Report::default();
            judge_clock(&mut report, wall_ms, hlc_ms);
            report.0.first().map(|check| check.verdict)
        };
        let now = (WALL_MIN_S + 1) * 1000;
        assert_eq!(verdict(now, 0), Some(Verdict::Good));
        assert_eq!(verdict(now, now + SKEW_MAX_MS), Some(Verdict::Good));
        assert_eq!(verdict(now, now + SKEW_MAX_MS + 1), Some(Verdict::Odd));
        assert_eq!(verdict(0, 0), Some(Verdict::Bad));
    }

    #[test]
    fn many_readers_are_told_before_there_are_too_many() {
        let verdict = |readers| {
            let mut report = Report::default();
            judge_readers(&mut report, readers, 3);
            report.0.first().map(|check| check.verdict)
        };
        assert_eq!(verdict(READERS_HIGH), Some(Verdict::Good));
        assert_eq!(verdict(READERS_HIGH + 1), Some(Verdict::Odd));
    }
}
