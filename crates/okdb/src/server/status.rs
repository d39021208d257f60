//! What the cluster looks like: one structure, told by the primary and completed with live figures by whoever is asked.

use std::{collections::BTreeSet, path::PathBuf};

use okdb_cluster::status::{SlotStatus, unix_ms};
use okdb_shm::{ScoreRow, Segment};
use okdb_store::Store;
use okdb_sys::Identity;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What the primary (or the standalone process) knows and nobody else can see.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterSnapshot {
    /// `cluster` or `single`.
    pub mode: String,
    /// Pid of the primary.
    pub pid: u32,
    /// Version of the program.
    pub version: String,
    /// When it came up, in ms of the monotonic clock.
    pub started_ms: u64,
    /// The root.
    pub root: PathBuf,
    /// Where it listens.
    pub listen: Vec<String>,
    /// Those that anything has been told of.
    pub slots: Vec<SlotStatus>,
}

impl ClusterSnapshot {
    /// The body of `/api/cluster/status`, with the live figures of the segment.
    #[must_use]
    pub fn to_json(&self, store: &Store) -> Value {
        let segment = store.segment();
        let now_ms = okdb_sys::host::monotonic_ms();
        let rows: Vec<ScoreRow> = segment.rows().collect();
        let live = segment.slots().map(|(slot, _)| slot);
        let slots: BTreeSet<u16> = self
            .slots
            .iter()
            .map(|told| told.slot)
            .chain(live)
            .collect();
        let workers: Vec<Value> = slots
            .into_iter()
            .map(|slot| self.worker(slot, segment, now_ms))
            .collect();
        json!({
            "mode": self.mode,
            "primary": {
                "pid": self.pid,
                "version": self.version,
                "uptimeMs": now_ms.saturating_sub(self.started_ms),
                "root": self.root,
                "listen": self.listen,
            },
            "workers": workers,
            "sharedMemory": shared_memory(segment),
            "bus": bus(segment, &rows),
            "processes": processes(&rows),
        })
    }

    /// One slot: what the segment tells, which is up to date, and what only the primary knows, which comes a little later.
    fn worker(&self, slot: u16, segment: &Segment, now_ms: u64) -> Value {
        let told = self.slots.iter().find(|told| told.slot == slot);
        let live = segment.slot(slot);
        let figures = segment.slot_figures(slot);
        let figure = |read: fn(&ScoreRow) -> u64| figures.as_ref().map_or(0, read);
        let pid = match live {
            Some(live) => live.worker.map(|worker| worker.pid),
            None => told.and_then(|told| told.pid),
        };
        let state = match live {
            Some(live) => json!(live.state.name()),
            None => told.map_or_else(|| json!("starting"), |told| json!(told.state)),
        };
        let restarts = match live {
            Some(live) => live.restarts,
            None => told.map_or(0, |told| told.restarts),
        };
        // By the monotonic clock where there is a supervisor: the other one may be set.
        let uptime_ms = match live {
            Some(live) => live.started_ms.map(|at_ms| now_ms.saturating_sub(at_ms)),
            None => told
                .and_then(|told| told.started_at)
                .map(|at| unix_ms().saturating_sub(at)),
        };
        let heartbeat = figures.as_ref().filter(|_| pid.is_some());
        json!({
            "slot": slot,
            "slotKey": format!("slot-{slot}"),
            "pid": pid,
            "state": state,
            "restarts": restarts,
            "uptimeMs": uptime_ms.filter(|_| pid.is_some()),
            "lastExit": told.and_then(|told| told.last_exit.as_ref()),
            "lastStderr": told.map_or(&[][..], |told| &told.last_stderr),
            "backoffMs": told.and_then(|told| told.backoff_ms),
            "leaving": told.map_or(&[][..], |told| &told.leaving),
            "orphaned": told.is_some_and(|told| told.orphaned),
            "heartbeatAgeMs": heartbeat.map(|row| now_ms.saturating_sub(row.heartbeat_ms)),
            "loopLagUs": heartbeat.map(|row| row.loop_lag_us),
            "connections": figure(|row| row.connections),
            "inflight": figure(|row| row.in_flight),
            "requests": figure(|row| row.requests),
            "errors": figure(|row| row.errors),
            "commits": figure(|row| row.commits),
            "operations": figure(|row| row.operations),
            "syncs": figure(|row| row.syncs),
            "rssBytes": figure(|row| row.rss_bytes),
        })
    }
}

/// What the bus has done, over all processes that ever were on it since the segment was made.
fn bus(segment: &Segment, rows: &[ScoreRow]) -> Value {
    let total = |read: fn(&ScoreRow) -> u64| rows.iter().map(read).sum::<u64>();
    json!({
        "peers": segment.peers().count(),
        "pokesSent": total(|row| row.pokes_sent),
        "pokesSkipped": total(|row| row.pokes_skipped),
        "pokesReceived": total(|row| row.pokes_received),
        "dropped": total(|row| row.bus_dropped),
    })
}

/// Where the segment is and whether it is shared.
#[must_use]
pub fn shared_memory(segment: &Segment) -> Value {
    json!({
        "shared": segment.is_shared(),
        "path": segment.path(),
        "bytes": okdb_shm::SEGMENT_BYTES,
        "hlc": segment.hlc().last().to_string(),
    })
}

/// Every living process of the root: who is stopped, and who has held a write lock since when.
fn processes(rows: &[ScoreRow]) -> Vec<Value> {
    let now_ms = okdb_sys::host::monotonic_ms();
    let living = rows.iter().filter_map(|row| {
        let owner = row.owner.filter(Identity::is_alive)?;
        Some((row, owner))
    });
    living
        .map(|(row, owner)| {
            let locks = row.write_locks.iter().map(|held| {
                json!({
                    "env": held.env,
                    "heldMs": now_ms.saturating_sub(held.since_ms),
                })
            });
            json!({
                "pid": owner.pid,
                "role": row.role.name(),
                "slot": row.slot,
                "stopped": owner.state() == Some('T'),
                "uptimeMs": now_ms.saturating_sub(row.started_ms),
                "commits": row.commits,
                "writeLocks": locks.collect::<Vec<_>>(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

    use okdb_cluster::{machine::SlotState, status::LastExit};
    use okdb_shm::{Role, SlotRow};
    use okdb_store::Options;
    use okdb_sys::host::monotonic_ms;

    use super::*;

    fn told() -> SlotStatus {
        SlotStatus {
            slot: 0,
            pid: Some(1),
            start_time: Some(1),
            state: SlotState::Starting,
            restarts: 0,
            started_at: Some(unix_ms()),
            last_exit: Some(LastExit {
                at: 7,
                code: None,
                signal: Some(9),
                reason: "signal SIGKILL".into(),
            }),
            last_stderr: vec!["its last line".into()],
            backoff_ms: None,
            leaving: vec![41],
            orphaned: true,
        }
    }

    #[test]
    fn live_figures_complete_what_the_primary_told() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            role: okdb_store::Role::Server,
            segment_in_root: true,
            ..Options::default()
        };
        let store = Store::open(&folder.path().join("root"), options).unwrap();
        let segment = store.segment();
        let me = Identity::current().unwrap();
        let row = segment.claim_row(Role::Worker, Some(0), me).unwrap();
        row.record_request(10, false);
        row.set_connections(3);
        let _held = row.hold_write_lock(0, monotonic_ms().saturating_sub(5_000));
        let mut slots = segment.slot_writer(me).unwrap();
        let ready = SlotRow {
            state: okdb_shm::SlotState::Ready,
            worker: Some(me),
            restarts: 4,
            backoff_until_ms: None,
            started_ms: Some(monotonic_ms().saturating_sub(2_000)),
            last_exit: None,
        };
        slots.publish(0, &ready).unwrap();
        let gone = SlotRow {
            state: okdb_shm::SlotState::Decommissioned,
            worker: None,
            ..ready
        };
        slots.publish(1, &gone).unwrap();
        let snapshot = ClusterSnapshot {
            mode: "cluster".into(),
            pid: 1,
            version: "1".into(),
            started_ms: 0,
            root: "/".into(),
            listen: Vec::new(),
            slots: vec![told()],
        };

        let status = snapshot.to_json(&store);
        let worker = &status["workers"][0];
        // What the segment knows is newer than what the primary has told.
        assert_eq!(worker["state"], "ready");
        assert_eq!(worker["pid"], me.pid);
        assert_eq!(worker["restarts"], 4);
        assert_eq!(worker["requests"], 1);
        assert_eq!(worker["connections"], 3);
        assert!(worker["uptimeMs"].as_u64() >= Some(2_000));
        assert_eq!(worker["lastExit"]["signal"], 9);
        assert_eq!(worker["lastStderr"][0], "its last line");
        assert_eq!(worker["leaving"][0], 41);
        assert_eq!(worker["orphaned"], true);
        assert!(worker["heartbeatAgeMs"].is_u64());
        // A slot that the primary has not told of yet, and nobody fills.
        let gone = &status["workers"][1];
        assert_eq!(gone["state"], "decommissioned");
        assert_eq!(gone["slotKey"], "slot-1");
        assert!(gone["pid"].is_null() && gone["uptimeMs"].is_null());
        let process = &status["processes"][0];
        assert_eq!(process["stopped"], false);
        assert!(process["writeLocks"][0]["heldMs"].as_u64() >= Some(5_000));
        assert_eq!(status["bus"]["dropped"], 0);
    }
}
