//! `okdb status`: the cluster that serves a root, read from its segment; once, or again and again.

mod text;
pub(crate) mod view;

use std::{
    io::{ErrorKind, IsTerminal, Write},
    path::Path,
    time::Duration,
};

use clap::ArgMatches;
use okdb_cluster::exit::ExitCode;
use serde_json::{Value, json};

use crate::{output::Failure, settings::Given};
use view::{Slot, Totals, View};

/// How long a single look lasts: rates are those of this time.
const LOOK: Duration = Duration::from_millis(250);
/// How often to look again.
const WATCH: Duration = Duration::from_secs(1);

/// What there is to show: a moment, and what happened between another one and it.
pub(crate) struct Shown {
    view: View,
    passed_ms: u64,
    between: Totals,
}

pub(crate) fn run(matches: &ArgMatches, given: &Given) -> Result<ExitCode, Failure> {
    let json = matches.get_flag("json");
    let root = super::root(given);
    if matches.get_flag("watch") {
        return watch(&root, json);
    }
    let shown = look(&root, LOOK, None)?;
    let text = match &shown {
        Some(shown) if json => to_json(shown).to_string(),
        Some(shown) => text::whole(shown).join("\n"),
        None if json => nobody_json(&root).to_string(),
        None => nobody(&root),
    };
    crate::output::print(&text)?;
    Ok(if shown.is_some() {
        ExitCode::Clean
    } else {
        ExitCode::RuntimeFailure
    })
}

/// Looks, waits, and looks again; `None` if nobody serves the root. `before` spares the first look.
fn look(root: &Path, wait: Duration, before: Option<View>) -> Result<Option<Shown>, Failure> {
    let before = match before {
        Some(before) => before,
        None => match View::take(root)? {
            Some(before) => before,
            None => return Ok(None),
        },
    };
    std::thread::sleep(wait);
    Ok(View::take(root)?.map(|view| Shown {
        passed_ms: view.now_ms.saturating_sub(before.now_ms).max(1),
        between: view.totals.since(&before.totals),
        view,
    }))
}

/// Shows the status until nobody reads it any more: redrawn on a terminal, else a line for each change, or a JSON object
/// for each look.
fn watch(root: &Path, json: bool) -> Result<ExitCode, Failure> {
    let redraw = !json && std::io::stdout().is_terminal();
    let mut before = None;
    let mut last_line = String::new();
    loop {
        // A root that is being started or stopped may refuse for a moment.
        let shown = look(root, WATCH, before.take()).unwrap_or_default();
        if shown.is_none() {
            std::thread::sleep(WATCH);
        }
        let text = if json {
            let object = shown.as_ref().map_or_else(|| nobody_json(root), to_json);
            format!("{object}\n")
        } else if redraw {
            text::screen(
                &shown
                    .as_ref()
                    .map_or_else(|| vec![nobody(root)], text::whole),
            )
        } else {
            let line = shown.as_ref().map_or_else(|| nobody(root), text::line);
            if line == last_line {
                String::new()
            } else {
                last_line.clone_from(&line);
                format!("{line}\n")
            }
        };
        let mut stdout = std::io::stdout().lock();
        match stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush())
        {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(ExitCode::Clean),
            Err(error) => return Err(Failure::runtime(error)),
        }
        before = shown.map(|shown| shown.view);
    }
}

fn nobody(root: &Path) -> String {
    format!("no server serves {}", root.display())
}

fn nobody_json(root: &Path) -> Value {
    json!({ "running": false, "root": root })
}

impl Shown {
    fn per_second(&self, count: u64) -> u64 {
        count.saturating_mul(1000) / self.passed_ms
    }

    /// Of the requests in between, or of all if there were none.
    fn latency_us(&self, percent: u64) -> Option<u64> {
        self.between
            .percentile_us(percent)
            .or_else(|| self.view.totals.percentile_us(percent))
    }
}

fn to_json(shown: &Shown) -> Value {
    let view = &shown.view;
    let processes: Vec<_> = view
        .processes
        .iter()
        .map(|process| {
            json!({
                "pid": process.identity.pid,
                "role": process.role.name(),
                "slot": process.slot,
                "uptimeMs": process.uptime_ms,
                "stopped": process.is_stopped,
            })
        })
        .collect();
    let locks: Vec<_> = view
        .locks
        .iter()
        .map(|lock| {
            json!({
                "env": lock.env,
                "pid": lock.pid,
                "role": lock.role.name(),
                "slot": lock.slot,
                "heldMs": lock.held_ms,
                "stopped": lock.is_stopped,
            })
        })
        .collect();
    json!({
        "running": true,
        "mode": if view.is_cluster() { "cluster" } else { "single" },
        "root": view.root,
        "primary": { "pid": view.server, "uptimeMs": view.uptime_ms },
        "requestsPerSecond": shown.per_second(shown.between.requests),
        "writesPerSecond": shown.per_second(shown.between.operations),
        "latencyUs": { "p50": shown.latency_us(50), "p99": shown.latency_us(99) },
        "workers": view.slots.iter().map(|slot| slot_json(slot, view.now_ms)).collect::<Vec<_>>(),
        "processes": processes,
        "writeLocks": locks,
        "staleReaders": view.stale_readers,
        "troubles": view.troubles(),
        "envs": view.envs,
    })
}

fn slot_json(slot: &Slot, now_ms: u64) -> Value {
    let figure = |of: fn(&okdb_shm::ScoreRow) -> u64| slot.figures.as_ref().map_or(0, of);
    let age = slot
        .figures
        .as_ref()
        .filter(|row| slot.worker.is_some() && row.owner == slot.worker)
        .map(|row| now_ms.saturating_sub(row.heartbeat_ms));
    json!({
        "slot": slot.number,
        "slotKey": format!("slot-{}", slot.number),
        "state": slot.state,
        "pid": slot.worker.map(|worker| worker.pid),
        "restarts": slot.restarts,
        "uptimeMs": slot.uptime_ms,
        "lastExit": slot.last_exit,
        "backoffMs": slot.backoff_ms,
        "heartbeatAgeMs": age,
        "requests": figure(|row| row.requests),
        "errors": figure(|row| row.errors),
        "inflight": figure(|row| row.in_flight),
        "connections": figure(|row| row.connections),
        "commits": figure(|row| row.commits),
        "operations": figure(|row| row.operations),
        "syncs": figure(|row| row.syncs),
        "loopLagUs": figure(|row| row.loop_lag_us),
        "rssBytes": figure(|row| row.rss_bytes),
    })
}
