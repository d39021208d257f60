//! `okdb status`: the cluster that serves a root, read from its segment.

use clap::ArgMatches;
use okdb::store::{Options, Role, Store, server_pid};
use okdb_cluster::exit::ExitCode;
use okdb_shm::ScoreRow;
use okdb_sys::host::monotonic_ms;
use serde_json::json;

use crate::{
    output::{Failure, print},
    settings::Given,
};

pub(crate) fn run(matches: &ArgMatches, given: &Given) -> Result<ExitCode, Failure> {
    let json = matches.get_flag("json");
    let root = super::root(given);
    // Nothing is opened for a root that nobody serves: looking must not make anything.
    let Some(pid) = server_pid(&root) else {
        let text = if json {
            json!({ "running": false, "root": root }).to_string()
        } else {
            format!("no server serves {}", root.display())
        };
        print(&text)?;
        return Ok(ExitCode::RuntimeFailure);
    };
    let store = Store::open(
        &root,
        Options {
            role: Role::Tool,
            ..Options::default()
        },
    )?;
    let now_ms = monotonic_ms();
    let rows: Vec<ScoreRow> = store.segment().rows().collect();
    let slots: Vec<_> = store.segment().slots().collect();
    let row_of = |slot: u16| rows.iter().find(|row| row.slot == Some(slot));
    let uptime = |since: Option<u64>| since.map(|since| now_ms.saturating_sub(since));
    let started = rows
        .iter()
        .find(|row| row.owner.is_some_and(|owner| owner.pid == pid))
        .map(|row| row.started_ms);
    if json {
        let workers: Vec<_> = slots
            .iter()
            .map(|(slot, state)| {
                let row = row_of(*slot);
                json!({
                    "slot": slot,
                    "state": state.state.name(),
                    "pid": state.worker.map(|worker| worker.pid),
                    "restarts": state.restarts,
                    "uptimeMs": uptime(state.started_ms),
                    "lastExit": state.last_exit.map(|exit| exit.to_string()),
                    "requests": row.map_or(0, |row| row.requests),
                    "errors": row.map_or(0, |row| row.errors),
                    "inflight": row.map_or(0, |row| row.in_flight),
                    "commits": row.map_or(0, |row| row.commits),
                    "operations": row.map_or(0, |row| row.operations),
                    "syncs": row.map_or(0, |row| row.syncs),
                    "rssBytes": row.map_or(0, |row| row.rss_bytes),
                })
            })
            .collect();
        let envs = store.envs()?;
        print(&json!({ "running": true, "root": store.root(), "primary": { "pid": pid, "uptimeMs": uptime(started) }, "workers": workers, "envs": envs }).to_string())?;
        return Ok(ExitCode::Clean);
    }
    let mode = if slots.is_empty() {
        "single process"
    } else {
        "cluster"
    };
    print(&format!(
        "{mode}, pid {pid}, up {}, root {}",
        span(uptime(started)),
        store.root().display()
    ))?;
    if !slots.is_empty() {
        print(&format!(
            "{:>4} {:<10} {:>8} {:>9} {:>9} {:>10} {:>7} {:>9} {:>6}",
            "slot", "state", "pid", "restarts", "up", "requests", "errors", "commits", "MiB"
        ))?;
    }
    for (slot, state) in &slots {
        let row = row_of(*slot);
        print(&format!(
            "{slot:>4} {:<10} {:>8} {:>9} {:>9} {:>10} {:>7} {:>9} {:>6}",
            state.state.name(),
            state
                .worker
                .map_or_else(|| "-".into(), |worker| worker.pid.to_string()),
            state.restarts,
            span(uptime(state.started_ms).filter(|_| state.worker.is_some())),
            row.map_or(0, |row| row.requests),
            row.map_or(0, |row| row.errors),
            row.map_or(0, |row| row.commits),
            row.map_or(0, |row| row.rss_bytes >> 20),
        ))?;
    }
    for env in store.envs()? {
        print(&format!(
            "env {}: clock {}, {}, {} MiB on disk, {} MiB reclaimable",
            env.name,
            env.clock,
            env.durability,
            env.bytes >> 20,
            env.reclaimable >> 20
        ))?;
    }
    Ok(ExitCode::Clean)
}

/// A time span for people.
fn span(ms: Option<u64>) -> String {
    let Some(ms) = ms else { return "-".into() };
    match ms / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}
