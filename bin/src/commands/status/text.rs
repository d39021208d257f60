//! The status for people: a table, a screen that is redrawn, or one line.

use okdb_shm::Role;

use super::{
    Shown,
    view::{Slot, Trouble, View},
};

/// Everything, line by line.
pub(super) fn whole(shown: &Shown) -> Vec<String> {
    let view = &shown.view;
    let mode = if view.is_cluster() {
        "cluster"
    } else {
        "single process"
    };
    let mut lines = vec![
        format!(
            "{mode}, pid {}, up {}, root {}",
            view.server,
            span(view.uptime_ms),
            view.root.display()
        ),
        format!(
            "{} requests/s, {} writes/s, p50 {}, p99 {}",
            shown.per_second(shown.between.requests),
            shown.per_second(shown.between.operations),
            latency(shown.latency_us(50)),
            latency(shown.latency_us(99)),
        ),
        format!(
            "{:>4} {:<14} {:>8} {:>8} {:>8} {:>10} {:>7} {:>6} {:>6} {:>9} {:>5}  {}",
            "slot",
            "state",
            "pid",
            "restarts",
            "up",
            "requests",
            "errors",
            "conns",
            "active",
            "commits",
            "MiB",
            "last exit"
        ),
    ];
    lines.extend(view.slots.iter().map(slot));
    let others = others(view);
    if !others.is_empty() {
        lines.push(format!("also in this root: {}", others.join(", ")));
    }
    lines.extend(view.envs.iter().map(|env| {
        format!(
            "env {}: clock {}, {}, {} MiB on disk, {} MiB reclaimable",
            env.name,
            env.clock,
            env.durability,
            env.bytes >> 20,
            env.reclaimable >> 20
        )
    }));
    lines.extend(view.troubles().iter().map(|trouble| format!("⚠ {trouble}")));
    lines
}

fn slot(slot: &Slot) -> String {
    let figure = |of: fn(&okdb_shm::ScoreRow) -> u64| slot.figures.as_ref().map_or(0, of);
    let state = match slot.backoff_ms {
        Some(ms) => format!("{} {ms} ms", slot.state),
        None => slot.state.to_owned(),
    };
    let line = format!(
        "{:>4} {state:<14} {:>8} {:>8} {:>8} {:>10} {:>7} {:>6} {:>6} {:>9} {:>5}  {}",
        slot.number,
        slot.worker
            .map_or_else(|| "-".into(), |worker| worker.pid.to_string()),
        slot.restarts,
        span(slot.uptime_ms),
        figure(|row| row.requests),
        figure(|row| row.errors),
        figure(|row| row.connections),
        figure(|row| row.in_flight),
        figure(|row| row.commits),
        figure(|row| row.rss_bytes >> 20),
        slot.last_exit.as_deref().unwrap_or("-"),
    );
    line.trim_end().to_owned()
}

/// Processes that are not the server's.
fn others(view: &View) -> Vec<String> {
    view.processes
        .iter()
        .filter(|process| matches!(process.role, Role::Library | Role::Command))
        .map(|process| {
            let stopped = if process.is_stopped { ", stopped" } else { "" };
            format!(
                "{} (pid {}{stopped})",
                process.role.name(),
                process.identity.pid
            )
        })
        .collect()
}

/// One line, that changes when something other than a counter does.
pub(super) fn line(shown: &Shown) -> String {
    let view = &shown.view;
    let slots = view.slots.iter().map(|slot| {
        let pid = slot
            .worker
            .map_or_else(|| "-".into(), |worker| worker.pid.to_string());
        let trouble = match slot.trouble {
            Some(Trouble::Stopped) => ", stopped",
            Some(Trouble::Silent(_)) => ", silent",
            None => "",
        };
        format!(" {}:{}({pid}{trouble})", slot.number, slot.state)
    });
    let locks = view
        .locks
        .iter()
        .map(|lock| format!(" {}:locked(by {})", lock.env, lock.pid));
    let rest: String = slots.chain(locks).collect();
    format!("pid {}{rest}", view.server)
}

/// Lines in the place of what a terminal shows: written over it, so that nothing flickers.
pub(super) fn screen(lines: &[String]) -> String {
    const HOME: &str = "\x1b[H";
    const CLEAR_LINE: &str = "\x1b[K";
    const CLEAR_BELOW: &str = "\x1b[J";
    let lines: String = lines
        .iter()
        .flat_map(|line| [line.as_str(), CLEAR_LINE, "\r\n"])
        .collect();
    format!("{HOME}{lines}{CLEAR_BELOW}")
}

/// A time span for people.
fn span(ms: Option<u64>) -> String {
    let Some(ms) = ms else { return "-".into() };
    match ms / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

fn latency(us: Option<u64>) -> String {
    match us {
        None => "-".into(),
        Some(us @ 0..1_000) => format!("{us} µs"),
        Some(us) => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_latencies_are_short() {
        assert_eq!(span(None), "-");
        assert_eq!(span(Some(61_000)), "61 s");
        assert_eq!(span(Some(3_600_000)), "60 min");
        assert_eq!(span(Some(86_400_000)), "24 h");
        assert_eq!(span(Some(864_000_000)), "10 d");
        assert_eq!(latency(Some(85)), "85 µs");
        assert_eq!(latency(Some(1_250)), "1.2 ms");
    }

    #[test]
    fn a_screen_takes_away_what_was_there() {
        let screen = screen(&["a".into(), "b".into()]);
        assert_eq!(screen, "\u{1b}[Ha\u{1b}[K\r\nb\u{1b}[K\r\n\u{1b}[J");
    }
}
