//! What `okdb doctor` says of hosts and servers that are well, and of those that are not; and that it disturbs neither.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use okdb_sys::{Identity, Signal};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    server::{Server, get, okdb, prepare, ready, until},
    status::status,
};

/// The report, after it has been seen to fit the exit code.
fn report(command: &mut Command) -> Value {
    let output = command
        .args(["doctor", "--json"])
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let code = output.status.code();
    assert_eq!(code, Some(i32::from(report["ok"] != true)), "{report:#}");
    report
}

fn doctor(folder: &TempDir) -> Value {
    report(&mut okdb(folder))
}

/// The verdicts and details of one check.
fn found<'r>(report: &'r Value, check: &str) -> Vec<(&'r str, &'r str)> {
    let text = |value: &'r Value| value.as_str().unwrap_or_default();
    report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["check"] == check)
        .map(|row| (text(&row["verdict"]), text(&row["detail"])))
        .collect()
}

/// Asserts that a check came to a verdict, with these words.
fn says(report: &Value, check: &str, verdict: &str, words: &str) {
    let found = found(report, check);
    assert!(
        found
            .iter()
            .any(|(is, detail)| *is == verdict && detail.contains(words)),
        "{check} is not {verdict} with {words:?}: {found:?}"
    );
}

fn serving(folder: &TempDir, workers: &str) -> (Server, std::net::SocketAddr) {
    let mut command = okdb(folder);
    command.args(["--workers", workers, "--listen", "127.0.0.1:0"]);
    let (server, mut log) = Server::piped(&mut command);
    let (_, address) = ready(&mut log);
    (server, address)
}

/// Every file under a folder with what would show that it was touched.
fn files(folder: &Path) -> BTreeMap<PathBuf, (u64, u32, i64)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let about = entry.metadata().unwrap();
            if about.is_dir() {
                folders.push(entry.path());
            }
            // Whoever reads has a place in the table of readers, which is a file in memory.
            let is_readers = entry.file_name() == "lock.mdb";
            let changed = if is_readers { 0 } else { about.mtime_nsec() };
            found.insert(entry.path(), (about.ino(), about.mode(), changed));
        }
    }
    found
}

#[test]
fn a_running_server_is_well_wherever_it_listens_and_is_not_disturbed() {
    for workers in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let (mut server, address) = serving(&folder, workers);
        // Somebody else may have the address that the settings name.
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = format!(r#"{{"http.listen": ["{}"]}}"#, other.local_addr().unwrap());
        fs::write(folder.path().join(".kdbconfig"), settings).unwrap();
        let trials = folder.path().join("trials");
        fs::create_dir(&trials).unwrap();
        let before = files(&folder.path().join("root"));
        for _ in 0..5 {
            let report = report(okdb(&folder).env("TMPDIR", &trials));
            says(&report, "server", "ok", &server.pid().to_string());
            says(&report, "listen address", "ok", &address.to_string());
            says(
                &report,
                "slots",
                "ok",
                &format!("{workers} of {workers} ready"),
            );
            says(&report, "lock recovery", "ok", "went on");
            says(&report, "reader table", "ok", "in use at a time");
            let supervised = if workers == "1" {
                "0 supervised"
            } else {
                "2 supervised"
            };
            says(&report, "processes", "ok", supervised);
        }
        assert_eq!(get(address, "/readyz"), "200");
        assert_eq!(
            before,
            files(&folder.path().join("root")),
            "a file was touched"
        );
        assert!(files(&trials).is_empty(), "a trial was left behind");
        server.stop();
    }
}

#[test]
fn an_address_in_use_is_named_with_its_holder() {
    let folder = tempfile::tempdir().unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = format!(r#"{{"http.listen": ["{}"]}}"#, other.local_addr().unwrap());
    fs::write(folder.path().join(".kdbconfig"), settings).unwrap();
    let report = doctor(&folder);
    says(
        &report,
        "listen address",
        "error",
        &std::process::id().to_string(),
    );
}

#[test]
fn a_stopped_worker_is_an_error_until_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, _) = serving(&folder, "2");
    let pid = status(&folder)["workers"][1]["pid"].as_u64().unwrap();
    let worker = Identity::of(u32::try_from(pid).unwrap()).unwrap();
    worker.signal(Signal::Stop).unwrap();
    until("it is stopped", || worker.state() == Some('T'));
    says(
        &doctor(&folder),
        "slots",
        "error",
        &format!("worker {pid} is stopped"),
    );
    worker.signal(Signal::Cont).unwrap();
    until("all is well", || doctor(&folder)["ok"] == true);
    server.stop();
}

#[test]
fn a_slot_that_was_given_up_is_an_error_until_a_reload() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, address) = serving(&folder, "2");
    until("the slot is given up", || {
        let now = status(&folder);
        if let Some(pid) = now["workers"][0]["pid"].as_u64()
            && let Ok(worker) = Identity::of(u32::try_from(pid).unwrap())
        {
            // It may have ended by then.
            let _ = worker.signal(Signal::Kill);
        }
        now["workers"][0]["state"] == "dead"
    });
    says(&doctor(&folder), "slots", "error", "slot 0 was given up");
    assert_eq!(get(address, "/healthz"), "200");
    server.signal(Signal::Hup);
    until("all is well", || doctor(&folder)["ok"] == true);
    server.stop();
}

#[test]
fn a_slot_that_was_scaled_away_is_no_trouble() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, _) = serving(&folder, "2");
    server.signal(Signal::Ttou);
    until("it is told", || {
        let report = doctor(&folder);
        let slots = found(&report, "slots");
        slots == [("ok", "1 of 1 ready, 1 scaled away")]
    });
    server.stop();
}

#[test]
fn a_root_of_a_later_version_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    serving(&folder, "1").0.stop();
    says(&doctor(&folder), "store", "ok", "opens");
    let format = folder.path().join("root/format");
    let text = fs::read_to_string(&format).unwrap();
    fs::write(&format, text.replace(|c: char| c.is_ascii_digit(), "9")).unwrap();
    assert_eq!(doctor(&folder)["ok"], false);
    assert_eq!(found(&doctor(&folder), "store")[0].0, "error");
}

#[test]
fn few_descriptors_are_told() {
    let folder = tempfile::tempdir().unwrap();
    for (limit, verdict) in [(128, "error"), (1024, "warning")] {
        let mut shell = Command::new("/bin/sh");
        prepare(&mut shell, &folder);
        let program = env!("CARGO_BIN_EXE_okdb");
        shell.args([
            "-c",
            &format!("ulimit -n {limit}; exec {program} \"$@\""),
            "okdb",
        ]);
        says(
            &report(&mut shell),
            "open files",
            verdict,
            &limit.to_string(),
        );
    }
}

#[test]
fn each_check_has_a_line_and_what_is_wrong_has_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let output = okdb(&folder)
        .arg("doctor")
        .env("OKDB_FORCE_SHM_FALLBACK", "1")
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for check in [
        "version",
        "server",
        "file system",
        "disk space",
        "shared memory",
        "root",
        "clock",
        "cluster",
        "lock recovery",
        "listen address",
        "reuseport",
        "loopback UDP",
        "open files",
        "cores",
        "swap",
        "cgroup memory",
        "systemd",
    ] {
        let lines = text
            .lines()
            .filter(|line| line.contains(&format!(" {check}: ")));
        assert!(lines.count() > 0, "{check} is missing: {text}");
    }
    assert!(
        text.contains("⚠ cluster: unavailable (OKDB_FORCE_SHM_FALLBACK"),
        "{text}"
    );
    assert!(text.contains("— running single-process"), "{text}");
    assert!(
        !folder.path().join("root").exists(),
        "looking makes nothing"
    );
}
