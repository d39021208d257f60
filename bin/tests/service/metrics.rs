//! The alert rules, the dashboard and the manual name only what a server really shows.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
};

use super::server::{PATIENCE, Server, okdb, ready};

fn file(name: &str) -> String {
    let repository: PathBuf = [env!("CARGO_MANIFEST_DIR"), ".."].iter().collect();
    fs::read_to_string(repository.join(Path::new(name))).unwrap()
}

/// Words that begin like a metric.
fn named(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("okdb_"))
        .collect()
}

/// The families that a server shows, with their types.
fn shown() -> BTreeMap<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = okdb(&folder);
    command.args(["--workers", "2", "--listen", "127.0.0.1:0"]);
    let (mut server, mut log) = Server::piped(&mut command);
    let (_, address) = ready(&mut log);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: okdb\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    server.stop();
    answer
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect()
}

#[test]
fn what_is_watched_is_shown() {
    let shown = shown();
    assert!(shown.len() > 20, "{shown:?}");
    for source in [
        "ops/prometheus/okdb.rules.yml",
        "ops/prometheus/okdb.rules.test.yml",
        "ops/grafana/okdb.json",
        "docs/operations.md",
    ] {
        let text = file(source);
        let named = named(&text);
        assert!(!named.is_empty(), "{source} names none");
        for name in named {
            let of_histogram = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|part| name.strip_suffix(part))
                .is_some_and(|family| shown.get(family).is_some_and(|kind| kind == "histogram"));
            assert!(
                of_histogram || shown.contains_key(name),
                "{source} names {name}, which no server shows"
            );
        }
    }
}

#[test]
fn each_alert_has_a_section_in_the_manual_and_the_other_way_round() {
    let rules = file("ops/prometheus/okdb.rules.yml");
    let manual = file("docs/operations.md");
    let alerts: Vec<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    let sections: Vec<&str> = manual
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .collect();
    assert!(!alerts.is_empty());
    assert_eq!(alerts, sections, "in the same order");
}

/// All sources of the program.
fn sources() -> String {
    let repository: PathBuf = [env!("CARGO_MANIFEST_DIR"), ".."].iter().collect();
    let mut folders = vec![repository.join("crates"), repository.join("bin/src")];
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                text.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    text
}

#[test]
fn the_lines_that_the_manual_explains_are_written_somewhere() {
    let manual = file("docs/operations.md");
    let sources = sources();
    let (_, section) = manual
        .split_once("## What does a line in the log mean?")
        .unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut explained = 0;
    for row in rows {
        let (lines, _) = row.split_once(" | ").unwrap();
        for line in lines.split('`').step_by(2).filter(|line| !line.is_empty()) {
            assert!(sources.contains(line), "nothing writes {line:?}");
            explained += 1;
        }
    }
    assert!(explained > 20, "{explained}");
}

#[test]
fn the_dashboard_is_json_and_its_panels_have_places_and_questions_of_their_own() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&file("ops/grafana/okdb.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut seen = BTreeSet::new();
    for panel in panels {
        let place = &panel["gridPos"];
        assert!(
            seen.insert(format!("{}/{}", place["x"], place["y"])),
            "{panel}"
        );
        assert!(seen.insert(format!("id {}", panel["id"])), "{panel}");
        if panel["type"] != "row" {
            assert!(!panel["targets"].as_array().unwrap().is_empty(), "{panel}");
        }
    }
}
