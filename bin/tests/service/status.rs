//! What `okdb status` shows while things happen to a server.

use std::{
    io::{BufRead, BufReader, Write},
    os::fd::OwnedFd,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use okdb_sys::{Identity, Signal};
use serde_json::Value;
use tempfile::TempDir;

use super::server::{Server, get, okdb, ready, until};

/// A ready server with so many workers.
fn server(folder: &TempDir, workers: &str) -> (Server, std::net::SocketAddr) {
    let mut command = okdb(folder);
    command.args([
        "--workers",
        workers,
        "--listen",
        "127.0.0.1:0",
        "--auto-types",
    ]);
    let (server, mut log) = Server::piped(&mut command);
    let (_, address) = ready(&mut log);
    (server, address)
}

/// The status as JSON.
pub(super) fn status(folder: &TempDir) -> Value {
    let output = okdb(folder)
        .args(["status", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn worker(status: &Value, slot: usize) -> Option<Identity> {
    let pid = status["workers"][slot]["pid"].as_u64()?;
    Identity::of(u32::try_from(pid).ok()?).ok()
}

/// A status command that goes on; killed on drop.
struct Watching {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Watching {
    fn start(folder: &TempDir, arguments: &[&str]) -> Self {
        let mut child = okdb(folder)
            .args(["status", "--watch"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_cluster_shows_its_workers_requests_and_last_exits() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, address) = server(&folder, "2");
    for _ in 0..20 {
        assert_eq!(get(address, "/healthz"), "200");
    }
    let before = status(&folder);
    assert_eq!(before["running"], true);
    assert_eq!(before["mode"], "cluster");
    assert_eq!(before["primary"]["pid"], server.pid());
    assert_eq!(before["workers"].as_array().unwrap().len(), 2);
    let requests = |status: &Value| -> u64 {
        let workers = status["workers"].as_array().unwrap();
        workers
            .iter()
            .filter_map(|worker| worker["requests"].as_u64())
            .sum()
    };
    assert_eq!(requests(&before), 20);
    assert!(before["latencyUs"]["p50"].as_u64() <= before["latencyUs"]["p99"].as_u64());
    assert!(before["latencyUs"]["p50"].is_u64());

    worker(&before, 1).unwrap().signal(Signal::Kill).unwrap();
    until("another worker fills the slot", || {
        let now = status(&folder);
        now["workers"][1]["restarts"] == 1 && now["workers"][1]["state"] == "ready"
    });
    let after = status(&folder);
    assert_eq!(after["workers"][1]["lastExit"], "signal SIGKILL");
    assert_eq!(requests(&after), 20, "counters outlive the worker");
    server.stop();
    assert_eq!(status(&folder)["running"], false);
}

#[test]
fn a_single_process_shows_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, address) = server(&folder, "1");
    assert_eq!(get(address, "/healthz"), "200");
    let status = status(&folder);
    assert_eq!(status["mode"], "single");
    let workers = status["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 1);
    assert_eq!(workers[0]["pid"], server.pid());
    assert_eq!(workers[0]["state"], "ready");
    assert_eq!(workers[0]["requests"], 1);
    server.stop();
}

#[test]
fn a_stopped_worker_is_named_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, _) = server(&folder, "2");
    let worker = worker(&status(&folder), 0).unwrap();
    worker.signal(Signal::Stop).unwrap();
    until("it is shown as stopped", || {
        let troubles = status(&folder)["troubles"].to_string();
        troubles.contains(&format!("worker {} is stopped", worker.pid))
            && troubles.contains("SIGCONT")
    });
    worker.signal(Signal::Cont).unwrap();
    until("it is well again", || {
        status(&folder)["troubles"]
            .as_array()
            .is_some_and(Vec::is_empty)
    });
    server.stop();
}

/// A library process that is stopped while it holds the write lock, and what the status tells of the lock.
fn stopped_with_the_lock(folder: &TempDir) -> (Server, Value) {
    // It takes the lock again and again until it is stopped while it has it.
    let (reader, mut writer) = std::io::pipe().unwrap();
    std::thread::spawn(move || {
        let mut number = 0_u64;
        // Ends with the reader.
        while writeln!(writer, r#"{{"key":"{number}","value":{{"n":{number}}}}}"#).is_ok() {
            number = (number + 1) % 1_000;
        }
    });
    let mut command = okdb(folder);
    command
        .args(["import", "things", "-"])
        .stdin(Stdio::from(OwnedFd::from(reader)))
        .stderr(Stdio::null());
    let import = Server::spawn(&mut command);
    drop(command);
    let shows = || {
        let processes = status(folder)["processes"].clone();
        let processes = processes.as_array().unwrap();
        processes
            .iter()
            .any(|process| process["pid"] == import.pid())
    };
    until("it works", shows);
    let mut seen = Value::Null;
    until("it is stopped while it holds the lock", || {
        import.signal(Signal::Stop);
        until("it is stopped", || import.state() == Some('T'));
        // A lock is worth a line once it has been held for a second; a lock that is held now is then.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(1_100) {
            seen = status(folder)["writeLocks"].clone();
        }
        let held = seen.as_array().is_some_and(|locks| !locks.is_empty());
        if !held {
            import.signal(Signal::Cont);
        }
        held
    });
    (import, seen)
}

#[test]
fn a_stopped_process_that_holds_the_write_lock_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, _) = server(&folder, "2");
    let (import, seen) = stopped_with_the_lock(&folder);
    assert_eq!(seen[0]["pid"], import.pid(), "{seen}");
    assert_eq!(seen[0]["role"], "library");
    assert_eq!(seen[0]["env"], "default");
    assert_eq!(seen[0]["stopped"], true);
    let text = okdb(&folder)
        .arg("status")
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let named = format!("pid {}, which is stopped,", import.pid());
    assert!(text.contains(&named), "{text}");
    drop(import);
    until("nobody holds it", || {
        let locks = status(&folder)["writeLocks"].clone();
        locks.as_array().is_some_and(Vec::is_empty)
    });
    server.stop();
}

#[test]
fn a_lock_that_nobody_gives_back_holds_no_stop() {
    for workers in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let (mut server, address) = server(&folder, workers);
        let (import, _) = stopped_with_the_lock(&folder);
        // A write that waits for the lock, for ever.
        let mut client = std::net::TcpStream::connect(address).unwrap();
        let put = "PUT /api/default/types/things/x HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{\"value\":1}";
        client.write_all(put.as_bytes()).unwrap();
        server.signal(Signal::Term);
        let status = server.wait();
        assert_eq!(status.code(), Some(0), "{workers} workers: {status}");
        assert_eq!(import.state(), Some('T'), "it still holds the lock");
    }
}

#[test]
fn watching_tells_each_change_and_outlives_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, _) = server(&folder, "2");
    let mut watching = Watching::start(&folder, &[]);
    let first = watching.line();
    assert!(
        first.contains(" 0:ready(") && first.contains(" 1:ready("),
        "{first}"
    );
    worker(&status(&folder), 1)
        .unwrap()
        .signal(Signal::Kill)
        .unwrap();
    let second = watching.line();
    assert_ne!(first, second);
    server.stop();
    until("it says that nobody serves", || {
        watching.line().contains("no server serves")
    });
}

#[test]
fn watching_as_json_gives_an_object_a_look() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, _) = server(&folder, "1");
    let mut watching = Watching::start(&folder, &["--json"]);
    for _ in 0..2 {
        let object: Value = serde_json::from_str(&watching.line()).unwrap();
        assert_eq!(object["running"], true);
    }
    drop(watching);
    server.stop();
}

#[test]
fn watching_ends_when_nobody_reads() {
    let folder = tempfile::tempdir().unwrap();
    let mut watching = Watching::start(&folder, &["--json"]);
    watching.line();
    let Watching { child, lines } = &mut watching;
    *lines = BufReader::new(
        okdb(&folder)
            .arg("--version")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
            .stdout
            .unwrap(),
    );
    until("it ends", || child.try_wait().unwrap().is_some());
}
