//! Owns the questions asked after every crash: is the root whole, and did its
//! clock neither skip nor repeat?

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::command::{self, Done};
use crate::http::{Client, segment};

/// The largest page that a list answers.
const PAGE: usize = 1_000;

/// Runs `okdb verify` and ends the story if it finds anything.
#[track_caller]
pub fn verify(root: &Path) {
    let root = root.to_str().expect("a temporary path is UTF-8");
    judge(&command::okdb(["verify", "--root", root, "--json"]));
}

/// The same from inside the namespaces of a process, where the root lies.
#[track_caller]
pub fn verify_beside(pid: i32, root: &str) {
    let pid = pid.to_string();
    let wrapper = ["nsenter", "-t", &pid, "-U", "-m", "--preserve-credentials"];
    let arguments = ["verify", "--root", root, "--json"];
    judge(&command::okdb_through(&wrapper, arguments));
}

#[track_caller]
fn judge(done: &Done) {
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    let mut seen = 0;
    for line in done.stdout.lines().filter(|line| line.starts_with('{')) {
        if let Ok(report) = serde_json::from_str(line) {
            seen += count_problems(&report);
        }
    }
    if seen == 0 {
        seen = count_problems(&done.json());
    }
    assert!(seen > 0, "no `problems` in {:?}", done.stdout);
}

/// How many lists of problems there are in a report; each must be empty.
#[track_caller]
fn count_problems(report: &Value) -> usize {
    match report {
        Value::Array(items) => items.iter().map(count_problems).sum(),
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| {
                if name != "problems" {
                    return count_problems(value);
                }
                let none = value.as_array().is_some_and(Vec::is_empty) || *value == 0;
                assert!(none, "verify found {value}");
                1
            })
            .sum(),
        _ => 0,
    }
}

/// One record as a list shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its value.
    pub value: Value,
    /// Its version.
    pub version: u64,
}

/// Every record of a type, by pages.
#[must_use]
#[track_caller]
pub fn records(client: &mut Client, kind: &str) -> BTreeMap<String, Record> {
    let mut found = BTreeMap::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut path = format!("/api/default/types/{kind}?limit={PAGE}");
        if let Some(cursor) = &cursor {
            path = format!("{path}&cursor={}", segment(cursor));
        }
        let page = client.get(&path).expect(200).json();
        for item in page["items"].as_array().expect("a page has items") {
            let key = item["key"].as_str().expect("a key is a string").to_owned();
            let record = Record {
                value: item["value"].clone(),
                version: item["version"].as_u64().expect("a version is a number"),
            };
            let twice = found.insert(key, record);
            assert!(twice.is_none(), "a list showed {} twice", item["key"]);
        }
        match page["cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return found,
        }
    }
}

/// One line of the change log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its clock.
    pub clock: u64,
    /// The record's type.
    pub kind: String,
    /// The record's key.
    pub key: String,
    /// `put`, `remove`, …
    pub action: String,
}

/// The change log from `after` on, and the clock; ends the story where the
/// clocks do not rise.
#[must_use]
#[track_caller]
pub fn changes(client: &mut Client, after: u64) -> (Vec<Change>, u64) {
    let mut found: Vec<Change> = Vec::new();
    let mut last = after;
    loop {
        let path = format!("/api/default/changelog?after={last}&limit={PAGE}");
        let page = client.get(&path).expect(200).json();
        let listed = page["changes"].as_array().expect("a page has changes");
        for change in listed {
            let text = |name: &str| change[name].as_str().unwrap_or_default().to_owned();
            let clock = change["clock"].as_u64().expect("a clock is a number");
            assert!(clock > last, "clock {clock} came after {last}");
            last = clock;
            found.push(Change {
                clock,
                kind: text("type"),
                key: text("key"),
                action: text("action"),
            });
        }
        if listed.is_empty() {
            return (found, page["clock"].as_u64().expect("the log has a clock"));
        }
    }
}

/// The clock of the environment `default`, as `/api/info` tells it.
#[must_use]
#[track_caller]
pub fn clock(client: &mut Client) -> u64 {
    let info = client.get("/api/info").expect(200).json();
    info["envs"]
        .as_array()
        .and_then(|envs| envs.iter().find(|env| env["name"] == "default"))
        .and_then(|env| env["clock"].as_u64())
        .unwrap_or_else(|| panic!("no clock of `default` in {info}"))
}

/// Ends the story unless the versions given to records after `before` are
/// exactly `before + 1` to the clock now, each once, in the records and in the
/// change log alike. (True where each record was written at most once since
/// then, and none was removed.)
#[track_caller]
pub fn clock_has_no_gap(client: &mut Client, kind: &str, before: u64) -> u64 {
    let now = clock(client);
    let (changes, logged) = changes(client, before);
    assert_eq!(logged, now, "the change log and /api/info tell two clocks");
    let records = records(client, kind);
    let mut versions: Vec<u64> = records
        .values()
        .map(|record| record.version)
        .filter(|version| *version > before)
        .collect();
    versions.sort_unstable();
    let wanted: Vec<u64> = (before + 1..=now).collect();
    assert_eq!(
        versions.len(),
        wanted.len(),
        "versions after {before}, clock {now}"
    );
    assert_eq!(versions, wanted, "a version is missing or was given twice");
    assert_eq!(
        changes.len(),
        wanted.len(),
        "a change is missing in the log"
    );
    for change in changes {
        assert_eq!(
            records.get(&change.key).map(|record| record.version),
            Some(change.clock),
            "{change:?} is not what its record says"
        );
    }
    now
}
