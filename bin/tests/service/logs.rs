//! Where log lines go, and that nobody has to read them for the server to serve.

use std::{fs, io::BufRead};

use okdb_sys::Signal;

use super::server::{Server, address, get, okdb, ready, rest, text, until};

/// More lines than a pipe holds.
const REQUESTS: usize = 1_000;

/// A path whose line in the log is long.
fn long_path(number: usize) -> String {
    format!("/api/nowhere/{number}/{}", "x".repeat(500))
}

#[test]
fn a_reader_that_stops_reading_holds_nobody_up() {
    for workers in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = okdb(&folder);
        command.args([
            "--workers",
            workers,
            "--listen",
            "127.0.0.1:0",
            "--access-log",
        ]);
        let (mut server, mut log) = Server::piped(&mut command);
        let (_, address) = ready(&mut log);
        for number in 0..REQUESTS {
            assert_eq!(get(address, &long_path(number)), "404");
        }
        // Neither does it hold up the end.
        server.stop();
        drop(log);
    }
}

#[test]
fn a_primary_that_is_stopped_and_reads_no_workers_lines_holds_no_worker_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = okdb(&folder);
    command.args(["--workers", "2", "--listen", "127.0.0.1:0", "--access-log"]);
    let (mut server, mut log) = Server::piped(&mut command);
    let (_, address) = ready(&mut log);
    server.signal(Signal::Stop);
    until("the primary is stopped", || server.state() == Some('T'));
    for number in 0..REQUESTS {
        assert_eq!(get(address, &long_path(number)), "404");
    }
    server.signal(Signal::Cont);
    drop(log);
    server.stop();
}

#[test]
fn a_reader_that_goes_away_holds_nobody_up() {
    for workers in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = okdb(&folder);
        command.args([
            "--workers",
            workers,
            "--listen",
            "127.0.0.1:0",
            "--access-log",
        ]);
        let (mut server, mut log) = Server::piped(&mut command);
        let (_, address) = ready(&mut log);
        drop(log);
        for number in 0..100 {
            assert_eq!(get(address, &long_path(number)), "404");
        }
        server.signal(Signal::Hup);
        until("it answers", || get(address, "/readyz") == "200");
        server.stop();
    }
}

#[test]
fn a_log_file_is_rotated_by_renaming_and_a_signal() {
    for workers in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("okdb.log");
        let mut command = okdb(&folder);
        command
            .args([
                "--workers",
                workers,
                "--listen",
                "127.0.0.1:0",
                "--access-log",
            ])
            .args(["--log-file", "okdb.log"]);
        let (mut server, mut log) = Server::piped(&mut command);
        // The ready line is still said where it always was, and stands in the file, too.
        let (lines, address) = ready(&mut log);
        assert_eq!(lines.len(), 1, "{lines:?}");
        until("the file tells", || text(&path).contains("okdb ready on"));
        assert_eq!(get(address, "/api/before"), "404");
        until("the line is in the file", || {
            text(&path).contains("/api/before")
        });
        let old = folder.path().join("okdb.log.1");
        fs::rename(&path, &old).unwrap();
        server.signal(Signal::Usr1);
        until("there is a new file", || path.exists());
        assert_eq!(get(address, "/api/after"), "404");
        until("the line is in the new file", || {
            text(&path).contains("/api/after")
        });
        server.stop();
        assert!(!text(&path).contains("/api/before"));
        assert!(!text(&old).contains("/api/after"));
        assert_eq!(rest(&mut log), "", "nothing else goes to standard error");
    }
}

#[test]
fn a_reload_brings_new_log_settings_into_force() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.json");
    fs::write(&file, r#"{"log": {"level": "warn", "format": "text"}}"#).unwrap();
    let mut command = okdb(&folder);
    command
        .args(["--workers", "2", "--listen", "127.0.0.1:0", "--access-log"])
        .args(["--config", "settings.json"]);
    let (mut server, mut log) = Server::piped(&mut command);
    let (lines, address) = ready(&mut log);
    assert!(lines.iter().all(|line| !line.contains("INFO")), "{lines:?}");
    let path = folder.path().join("new.log");
    fs::write(
        &file,
        r#"{"log": {"level": "info", "format": "json", "file": "new.log"}}"#,
    )
    .unwrap();
    server.signal(Signal::Hup);
    until("the reload is told in the new file", || {
        text(&path).contains("reloaded")
    });
    assert_eq!(get(address, "/api/somewhere"), "404");
    until("a request is told, too", || {
        text(&path).contains("/api/somewhere")
    });

    // A mistake changes nothing.
    fs::write(&file, r#"{"log": {"file": "/nowhere/at/all"}}"#).unwrap();
    server.signal(Signal::Hup);
    until("the mistake is told", || {
        text(&path).contains("/nowhere/at/all")
    });
    assert_eq!(get(address, "/readyz"), "200");
    server.stop();
    for line in text(&path).lines() {
        assert!(line.starts_with('{') && line.ends_with('}'), "{line}");
    }
}

#[test]
fn json_lines_of_every_process_are_json() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = okdb(&folder);
    command
        .args(["--workers", "2", "--listen", "127.0.0.1:0", "--access-log"])
        .args(["--log-format", "json"]);
    let (mut server, mut log) = Server::piped(&mut command);
    let mut lines = Vec::new();
    let address = loop {
        let mut line = String::new();
        assert!(log.read_line(&mut line).unwrap() > 0);
        lines.push(line.clone());
        if let Some(address) = address(&line) {
            break address;
        }
    };
    assert_eq!(get(address, "/healthz"), "200");
    server.stop();
    lines.extend(rest(&mut log).lines().map(str::to_owned));
    let mut slots = 0;
    for line in &lines {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(
            event["level"].is_string() && event["message"].is_string(),
            "{line}"
        );
        slots += usize::from(event["slot"].is_number());
    }
    assert!(slots > 0, "{lines:#?}");
}

#[test]
fn a_log_file_that_cannot_be_opened_is_a_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = okdb(&folder);
    command.args(["--log-file", "/nowhere/at/all", "--listen", "127.0.0.1:0"]);
    let (mut server, mut log) = Server::piped(&mut command);
    assert_eq!(server.wait().code(), Some(2));
    let text = rest(&mut log);
    assert!(
        text.contains("log.file") && text.contains("/nowhere/at/all"),
        "{text}"
    );
}
