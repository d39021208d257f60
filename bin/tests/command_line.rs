//! The command line as a newcomer meets it: help, mistakes, settings. Servers are the black-box tests' subject.
//!
//! (A package with an integration test is also what makes `cargo test --workspace` build the real binary.)

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::process::{Command, Output};

fn okdb(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_okdb"))
        .args(arguments)
        .current_dir(folder.path())
        .env_remove("OKDB_ROOT")
        .env_remove("OKDB_HTTP_WORKERS")
        .env_remove("OKDB_LOG")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_command_has_help_with_examples() {
    for command in [
        "serve", "import", "export", "backup", "verify", "doctor", "status", "config",
    ] {
        let output = okdb(&[command, "--help"]);
        assert!(output.status.success(), "{command}");
        assert!(
            text(&output.stdout).contains("Example"),
            "{command}: {}",
            text(&output.stdout)
        );
    }
    for arguments in [&["--help"][..], &["serve", "--help"]] {
        let help = text(&okdb(arguments).stdout);
        assert!(help.contains("Exit codes: 0 clean"), "{help}");
        assert!(help.contains("Signals of a server"), "{help}");
    }
}

#[test]
fn mistakes_exit_with_2_and_say_what_to_do() {
    for (arguments, expected) in [
        (&["--no-such-option"][..], "--no-such-option"),
        (&["--listen", "nonsense"], "nonsense"),
        (&["--durability", "sometimes"], "strict, balanced or fast"),
        (&["--map-size", "lots"], "storage.mapSize"),
        (&["--shutdown-grace", "0"], "supervision.shutdownGrace"),
        (&["--drain-timeout", "soon"], "supervision.drainTimeout"),
        (&["serve", "--log-file", "/no/such/folder/log"], "log.file"),
        (&["--log-format", "xml"], "text"),
        (&["--config", "missing.json"], "missing.json"),
        (&["--listen", "0.0.0.0:0"], "--insecure-no-auth"),
        (&["verify", "--root", "nowhere"], "nowhere"),
        (&["import"], "TYPE"),
    ] {
        let output = okdb(arguments);
        let complaint = text(&output.stderr);
        assert!(complaint.contains(expected), "{arguments:?}: {complaint}");
        let code = output.status.code();
        // A root that is not there is the world's fault rather than the command line's.
        let expected = if arguments[0] == "verify" { 1 } else { 2 };
        assert_eq!(code, Some(expected), "{arguments:?}: {complaint}");
    }
}

#[test]
fn a_configuration_file_is_read_and_its_mistakes_are_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("okdb.json");
    let path = file.to_str().unwrap();
    std::fs::write(
        &file,
        r#"{"http": {"workers": 3}, "storage.durability": "balanced"}"#,
    )
    .unwrap();
    let output = okdb(&["config", "--json", "--config", path]);
    let settings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let value = |key: &str| {
        let rows = settings["settings"].as_array().unwrap();
        rows.iter().find(|row| row["key"] == key).unwrap().clone()
    };
    assert_eq!(value("http.workers")["value"], "3");
    assert_eq!(value("storage.durability")["source"], "configuration file");
    assert_eq!(value("log.format")["source"], "default");

    std::fs::write(
        &file,
        r#"{"http": {"wrkers": 3}, "storage.durabilty": "balanced"}"#,
    )
    .unwrap();
    let output = okdb(&["config", "--config", path]);
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    for nearest in ["http.workers", "storage.durability"] {
        assert!(complaint.contains(nearest), "{complaint}");
    }
}

#[test]
fn the_doctor_passes_on_a_healthy_host_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("none-yet");
    let output = okdb(&["doctor", "--json", "--root", root.to_str().unwrap()]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() > 8, "{report}");
    let gate = checks
        .iter()
        .find(|check| check["check"] == "cluster")
        .unwrap();
    assert_eq!(gate["verdict"], "ok", "{report}");
    assert!(!root.exists());
}
