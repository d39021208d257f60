//! Tests of [`super`] over a real root.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(
    clippy::float_cmp,
    reason = "counts and sums that a double holds exactly"
)]

use std::collections::BTreeMap;

use okdb_shm::{Role, SlotRow};
use okdb_store::Options;
use okdb_sys::Identity;

use super::*;

/// Family, samples by name and labels: what a scraper would understand.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let mut family = String::new();
    let mut finished = Vec::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            finished.push(std::mem::take(&mut family));
            family = rest.split(' ').next().unwrap().to_owned();
            assert!(!finished.contains(&family), "{family} comes twice");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, family);
            assert!(["gauge", "counter", "histogram"].contains(&kind), "{kind}");
            continue;
        }
        let (sample, number) = line.rsplit_once(' ').unwrap();
        assert!(sample.starts_with(&family), "{sample} in {family}");
        let earlier = samples.insert(sample.to_owned(), number.parse().unwrap());
        assert!(earlier.is_none(), "{sample} twice");
    }
    samples
}

fn store(folder: &tempfile::TempDir) -> Store {
    let options = Options {
        role: okdb_store::Role::Server,
        segment_in_root: true,
        ..Options::default()
    };
    Store::open(&folder.path().join("root"), options).unwrap()
}

fn snapshot() -> ClusterSnapshot {
    ClusterSnapshot {
        mode: "cluster".into(),
        pid: 1,
        version: "1.2.3-\"odd\\\n".into(),
        started_ms: 0,
        root: "/".into(),
        listen: Vec::new(),
        slots: Vec::new(),
    }
}

#[test]
fn names_are_unique_sane_and_documented() {
    let page = include_str!("../../../../../docs/metrics.md");
    for (place, metric) in METRICS.iter().enumerate() {
        assert!(
            METRICS[..place]
                .iter()
                .all(|other| other.name != metric.name)
        );
        assert_eq!(
            metric.kind == "counter",
            metric.name.ends_with("_total"),
            "{}",
            metric.name
        );
        let row = format!("| `{}` | {} |", metric.name, metric.kind);
        assert!(page.contains(&row), "docs/metrics.md lacks the row {row}");
    }
}

#[test]
fn a_scraper_understands_it_and_odd_text_is_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let text = render(&store, &snapshot());
    assert!(
        text.contains(r#"okdb_build_info{version="1.2.3-\"odd\\\n"} 1"#),
        "{text}"
    );
    let samples = parse(&text.replace(r#"\"odd\\\n"#, ""));
    assert_eq!(samples["okdb_up"], 1.0);
    assert_eq!(
        samples[r#"okdb_map_size_bytes{env="default"}"#],
        137_438_953_472.0
    );
    assert!(samples[r#"okdb_map_used_bytes{env="default"}"#] > 0.0);
    assert_eq!(samples[r#"okdb_workers{state="ready"}"#], 0.0);
}

#[test]
fn totals_are_the_cluster_s_and_outlive_who_counted() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder);
    let segment = store.segment();
    let me = Identity::current().unwrap();
    let mut slots = segment.slot_writer(me).unwrap();
    let ready = SlotRow {
        state: SlotState::Ready,
        worker: Some(me),
        restarts: 2,
        backoff_until_ms: None,
        started_ms: None,
        last_exit: None,
    };
    let row = segment.claim_row(Role::Worker, Some(1), me).unwrap();
    slots.publish(1, &ready).unwrap();
    row.record_request(3, false);
    row.record_request(1_500_000, true);
    row.record_bytes(10, 20);
    row.record_commit(5, true);
    row.set_connections(7);
    let lock = row.hold_write_lock(0, monotonic_ms());
    let first = parse(&render(&store, &snapshot()).replace(r#"\"odd\\\n"#, ""));
    assert_eq!(first[r#"okdb_requests_total{slot="1"}"#], 2.0);
    assert_eq!(first[r#"okdb_request_errors_total{slot="1"}"#], 1.0);
    assert_eq!(
        first[r#"okdb_request_duration_seconds_bucket{le="0.000004"}"#],
        1.0
    );
    assert_eq!(
        first[r#"okdb_request_duration_seconds_bucket{le="+Inf"}"#],
        2.0
    );
    assert_eq!(first["okdb_request_duration_seconds_sum"], 1.500_003);
    assert_eq!(first["okdb_request_duration_seconds_count"], 2.0);
    assert_eq!(first[r#"okdb_commit_operations_bucket{le="8"}"#], 1.0);
    assert_eq!(first["okdb_commit_operations_sum"], 5.0);
    assert_eq!(first["okdb_connections_open"], 7.0);
    assert_eq!(first[r#"okdb_worker_restarts_total{slot="1"}"#], 2.0);
    assert_eq!(first[r#"okdb_workers{state="ready"}"#], 1.0);
    assert_eq!(first[r#"okdb_processes{role="worker"}"#], 1.0);
    let held = format!(
        r#"okdb_write_lock_held_seconds{{pid="{}",role="worker",env="default"}}"#,
        me.pid
    );
    assert!(first.contains_key(&held), "{first:?}");

    drop(lock);
    drop(row);
    let next = segment.claim_row(Role::Worker, Some(1), me).unwrap();
    next.record_request(1, false);
    let second = parse(&render(&store, &snapshot()).replace(r#"\"odd\\\n"#, ""));
    for (sample, before) in &first {
        let family = sample.split(['{', ' ']).next().unwrap();
        if family.ends_with("_total") || family.ends_with("_bucket") || family.ends_with("_count") {
            assert!(second[sample] >= *before, "{sample} fell");
        }
    }
    assert_eq!(second[r#"okdb_requests_total{slot="1"}"#], 3.0);
    assert_eq!(second["okdb_connections_open"], 0.0);
}
