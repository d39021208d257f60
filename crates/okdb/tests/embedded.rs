//! Servers in programs of one's own: alone in this process, and as a cluster of copies of the example `cluster`.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use okdb::{Db, Server};
use okdb_sys::{Identity, Signal};
use serde_json::{Value, json};

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a condition is looked at.
const GLANCE: Duration = Duration::from_millis(10);

/// Waits until `look` finds something.
#[track_caller]
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(GLANCE);
    }
}

/// The body of an answer with status 200; `None` if there is none, which a worker's death can bring about.
fn get(url: &str, path: &str) -> Option<Value> {
    let address = url.strip_prefix("http://")?;
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200 ").then_some(())?;
    serde_json::from_str(body).ok()
}

/// The example, stopped and collected at the end of the test, so that it takes its segment with it.
struct Program {
    child: Child,
    /// Open, so that the program can go on writing.
    _output: BufReader<ChildStdout>,
    url: String,
}

impl Program {
    fn start(root: &Path, workers: u16) -> Self {
        let mut child = Command::new(example())
            .arg(root)
            .arg(workers.to_string())
            .arg("127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let url = line
            .trim_end()
            .strip_prefix("serving on ")
            .map(str::to_owned);
        let program = Self {
            child,
            _output: output,
            url: url.unwrap_or_default(),
        };
        assert!(!program.url.is_empty(), "it says {line:?}");
        program
    }

    fn signal(&self, signal: Signal) {
        Identity::of(self.child.id())
            .and_then(|program| program.signal(signal))
            .unwrap();
    }

    /// What its threads have started.
    fn children(&self) -> Vec<Identity> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let threads = threads.into_iter().flatten().flatten();
        threads
            .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
            .flat_map(|pids| {
                let pids = pids.split_whitespace().map(str::parse);
                pids.filter_map(|pid| Identity::of(pid.ok()?).ok())
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// The workers of the slots that are in use, once as many as wanted are ready.
    fn ready(&self, wanted: usize) -> Vec<Identity> {
        wait_for("ready workers", || {
            let status = get(&self.url, "/api/cluster/status")?;
            assert_eq!(status["mode"], "cluster");
            let slots = status["workers"].as_array()?.iter();
            let used: Vec<&Value> = slots
                .filter(|slot| slot["state"] != "decommissioned")
                .collect();
            let ready = used.iter().all(|slot| slot["state"] == "ready");
            (ready && used.len() == wanted).then_some(())?;
            used.iter()
                .map(|slot| Identity::of(u32::try_from(slot["pid"].as_u64()?).ok()?).ok())
                .collect()
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        if let Ok(program) = Identity::of(self.child.id())
            && program.signal(Signal::Term).is_ok()
        {
            let _ = program.wait_end(PATIENCE);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let example = test
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples")
        .join("cluster");
    assert!(
        example.exists(),
        "the example is not built: cargo build -p okdb --examples"
    );
    example
}

#[track_caller]
fn assert_gone(workers: &[Identity]) {
    for worker in workers {
        assert!(worker.wait_end(PATIENCE).unwrap(), "{worker:?} lives on");
    }
}

#[test]
fn workers_are_copies_of_the_program_and_do_not_outlive_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let mut program = Program::start(&root, 2);
    let first = program.ready(2);

    first[0].signal(Signal::Kill).unwrap();
    let second = wait_for("another worker", || {
        let workers = program.ready(2);
        (workers[0] != first[0]).then_some(workers)
    });
    assert_eq!(second[1], first[1]);
    let written = wait_for("an answer", || {
        get(&program.url, "/api/default/types/starts/latest")
    });
    assert!(
        written
            .to_string()
            .contains(&program.child.id().to_string())
    );

    program.child.kill().unwrap();
    program.child.wait().unwrap();
    assert_gone(&second);

    // What is left does not stand in the way of the next one.
    let program = Program::start(&root, 2);
    program.ready(2);
}

#[test]
fn signals_scale_reload_and_stop_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(&folder.path().join("root"), 2);
    let two = program.ready(2);

    program.signal(Signal::Ttin);
    let three = program.ready(3);
    assert_eq!(three[..2], two);
    program.signal(Signal::Ttou);
    program.ready(2);
    assert_gone(&three[2..]);

    program.signal(Signal::Hup);
    let new = wait_for("new workers", || {
        let workers = program.ready(2);
        workers
            .iter()
            .all(|worker| !two.contains(worker))
            .then_some(workers)
    });
    assert_gone(&two);

    program.signal(Signal::Term);
    let ended = wait_for("the end", || program.child.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
    assert!(new.iter().all(|worker| !worker.is_alive()));
}

#[test]
fn a_cluster_that_is_given_up_is_an_error_for_who_waits() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(&folder.path().join("root"), 2);
    let ended = wait_for("the end", || {
        for worker in program.children() {
            // It may be gone already.
            let _ = worker.signal(Signal::Kill);
        }
        program.child.try_wait().unwrap()
    });
    assert_eq!(ended.code(), Some(1));
    let mut said = String::new();
    let stderr = program.child.stderr.take().unwrap();
    BufReader::new(stderr).read_to_string(&mut said).unwrap();
    assert!(said.contains("AllSlotsDead"), "it says {said:?}");
}

#[test]
fn one_process_serves_what_it_writes_until_it_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let start = || {
        Server::builder(&root)
            .listen("127.0.0.1:0")
            .start()
            .unwrap()
    };
    let server = start();
    assert_eq!(server.status()["mode"], "single");
    assert_eq!(server.status()["workers"][0]["pid"], std::process::id());
    let db = server.db();
    let users = db.ensure_type("users").unwrap();
    let mut commits = db.subscribe();
    users.put("ada", &json!({"born": 1815})).unwrap();
    assert!(commits.next_blocking().is_some());
    let url = server.urls()[0].clone();
    let read = get(&url, "/api/default/types/users/ada").unwrap();
    assert!(read.to_string().contains("1815"), "{read}");

    // A handle can stop it, too, and who waits hears of it.
    let handle = server.handle();
    let waiting = std::thread::spawn(move || server.wait());
    handle.begin_stop();
    waiting.join().unwrap().unwrap();
    assert_eq!(get(&url, "/healthz"), None);
    assert!(users.put("alan", &json!({})).is_err(), "the root is closed");
    assert!(users.get("ada").unwrap().is_some());

    // And the same root again, in the same process, once nobody holds it.
    drop((handle, users, commits, db));
    let server = start();
    let users = server.db().records("users").unwrap();
    assert!(users.get("ada").unwrap().is_some());
    drop(users);
    drop(server);
    Db::open(&root).unwrap();
}

#[test]
fn a_server_that_cannot_start_says_why_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let builder = || Server::builder(&root).listen("127.0.0.1:0");
    let refusal = |builder: okdb::ServerBuilder| builder.start().unwrap_err().to_string();

    // This harness's main does not begin with the call.
    assert!(refusal(builder().workers(2)).contains("serve_if_worker"));
    assert!(refusal(builder().listen("localhost:1")).contains("localhost"));
    assert!(refusal(builder().listen("0.0.0.0:0")).contains("0.0.0.0:0"));

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert!(refusal(builder().listen(&address)).contains(&address));

    let db = Db::open(&root).unwrap();
    assert!(refusal(builder()).contains("open in this process already"));
    drop(db);
    builder().start().unwrap().stop().unwrap();
}
