//! Owns a started `okdb`: its process group, its log, its end.
//!
//! Each server is the leader of a process group of its own, so that its orphans
//! can be found and killed even after it was killed itself.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::http::{Address, Client};
use crate::process::{self, Process, Signal};
use crate::wait::{SOON, promised, wait_for, wait_until};
use crate::{binary, janitor};

/// How long a start may take on a busy machine; the promise is 150 ms.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long a graceful stop may take: its grace.
pub const GRACE_SECONDS: u64 = 3;

/// How long workers may outlive their primary.
pub const ORPHAN_SECONDS: u64 = 4;

/// How long the last words of an ended process may take through the pipe.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How much of a log is shown when a story fails.
const LOG_LINES_SHOWN: usize = 60;

/// A temporary place with a root in it; gone when dropped.
pub struct Place(TempDir);

impl Place {
    /// A new, empty place.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Self {
        Self(
            tempfile::Builder::new()
                .prefix("okdb-test-")
                .tempdir()
                .expect("the temporary folder can be written"),
        )
    }

    /// The root in it; it may not exist yet.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.path("root")
    }

    /// Another path in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl Drop for Place {
    /// A root that nobody closed keeps its segment until the next start, and this one will not have one.
    fn drop(&mut self) {
        let Ok(folders) = std::fs::read_dir(self.0.path()) else {
            return;
        };
        for folder in folders.flatten() {
            let named = std::fs::read_to_string(folder.path().join("run/segment"));
            let name = named.ok().and_then(|text| {
                let mut words = text
                    .split_whitespace()
                    .skip_while(|word| *word != "dev-shm");
                words.nth(1).map(str::to_owned)
            });
            if let Some(name) = name.filter(|name| name.starts_with("okdb-") && !name.contains('/'))
            {
                // Gone already after a clean stop.
                let _ = std::fs::remove_file(Path::new("/dev/shm").join(name));
            }
        }
    }
}

/// Takes from a command's environment whatever would change what okdb does.
pub fn clean_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let foreign = ["OKDB_", "LISTEN_", "WATCHDOG_", "NOTIFY_"]
            .iter()
            .any(|prefix| text.starts_with(prefix));
        if foreign {
            command.env_remove(&name);
        }
    }
}

/// What to start, and how.
pub struct Launch {
    command: Command,
    listen: bool,
}

impl Launch {
    /// A server on this root, on a free port, with two workers.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self::plain(root).arg("--workers").arg("2")
    }

    /// The same without saying how many workers.
    #[must_use]
    pub fn plain(root: &Path) -> Self {
        Self::command(Command::new(binary::okdb()), root)
    }

    /// Two workers of a copy of the command, which may be replaced by another.
    #[must_use]
    pub fn of(program: &Path, root: &Path) -> Self {
        Self::program(program, root).arg("--workers").arg("2")
    }

    /// The same without saying how many workers.
    #[must_use]
    pub fn program(program: &Path, root: &Path) -> Self {
        Self::command(Command::new(program), root)
    }

    /// Two workers, started by a program that runs the rest of its arguments, in
    /// a namespace of their own for example.
    #[must_use]
    pub fn through(wrapper: &[&str], root: &Path) -> Self {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).arg(binary::okdb());
        Self::command(command, root).arg("--workers").arg("2")
    }

    fn command(mut command: Command, root: &Path) -> Self {
        clean_environment(&mut command);
        // A `.kdbconfig` is looked for in the working directory.
        command.current_dir(root.parent().expect("a root has a parent"));
        command.arg("--root").arg(root);
        Self {
            command,
            listen: false,
        }
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Several more arguments.
    #[must_use]
    pub fn args(mut self, arguments: &[&str]) -> Self {
        self.command.args(arguments);
        self
    }

    /// An environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// The address to listen on, instead of a free port.
    #[must_use]
    pub fn listen(mut self, address: impl Into<OsString>) -> Self {
        self.command.arg("--listen").arg(address.into());
        self.listen = true;
        self
    }

    /// Starts it and does not wait.
    #[must_use]
    pub fn spawn(mut self) -> Server {
        if !self.listen {
            self.command.args(["--listen", "127.0.0.1:0"]);
        }
        let mut child = self
            .command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", binary::okdb().display()));
        let pid = i32::try_from(child.id()).expect("a pid is an i32");
        janitor::watch(pid);
        let log = Log::follow(child.stderr.take().expect("standard error was asked for"));
        Server {
            child,
            pid,
            log,
            addresses: Vec::new(),
            ended: None,
        }
    }

    /// Starts it and waits until it is ready.
    #[must_use]
    #[track_caller]
    pub fn start(self) -> Server {
        let mut server = self.spawn();
        server.wait_ready();
        server
    }

    /// Starts it and waits until it has refused; its exit code and its words.
    #[must_use]
    #[track_caller]
    pub fn refused(self) -> (i32, String) {
        let mut server = self.spawn();
        let status = server.wait_exit(SOON);
        let code = status
            .code()
            .unwrap_or_else(|| panic!("{status} instead of an exit code\n{}", server.log()));
        (code, server.log())
    }
}

/// The lines that a server, its workers included, wrote to standard error.
struct Log {
    lines: Mutex<Vec<String>>,
    /// Whether the last writer has closed its end.
    complete: AtomicBool,
}

impl Log {
    fn follow(stderr: ChildStderr) -> Arc<Self> {
        let log = Arc::new(Self {
            lines: Mutex::new(Vec::new()),
            complete: AtomicBool::new(false),
        });
        let shared = Arc::clone(&log);
        // Ends by itself when the last process of the group has closed the pipe.
        thread::Builder::new()
            .name("log-reader".to_owned())
            .spawn(move || {
                for line in BufReader::new(stderr).split(b'\n') {
                    let Ok(line) = line else { break };
                    shared.push(String::from_utf8_lossy(&line).into_owned());
                }
                shared.complete.store(true, Ordering::Release);
            })
            .expect("a thread starts");
        log
    }

    fn push(&self, line: String) {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line);
    }

    /// What a process wrote before it ended may still be in the pipe; but an
    /// orphan may hold the pipe open, so not for long.
    fn wait_for_the_end(&self) {
        let begin = Instant::now();
        while !self.complete.load(Ordering::Acquire) && begin.elapsed() < LAST_WORDS {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn with<T>(&self, look: impl FnOnce(&[String]) -> T) -> T {
        look(&self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One slot as `GET /api/cluster/status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its number.
    pub slot: usize,
    /// The worker's process, if it has one.
    pub pid: Option<i32>,
    /// `starting`, `ready`, `backoff`, `draining`, `decommissioned` or `dead`.
    pub state: String,
    /// How often it was started again.
    pub restarts: u64,
}

/// A started server.
pub struct Server {
    child: Child,
    pid: i32,
    log: Arc<Log>,
    addresses: Vec<Address>,
    ended: Option<ExitStatus>,
}

impl Server {
    /// The pid of the primary, which is its process group too.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Everything it has written so far; once it has ended, everything.
    #[must_use]
    pub fn log(&self) -> String {
        if self.ended.is_some() {
            self.log.wait_for_the_end();
        }
        self.log.with(|lines| lines.join("\n"))
    }

    /// Waits for the ready line, and takes the addresses from it.
    #[track_caller]
    pub fn wait_ready(&mut self) {
        let log = Arc::clone(&self.log);
        let line = wait_for("the ready line", START_LIMIT, || {
            let line = log.with(|lines| {
                lines
                    .iter()
                    .find(|line| line.contains("okdb ready on "))
                    .cloned()
            });
            if line.is_none()
                && let Some(status) = self.try_exit()
            {
                panic!("it ended before it was ready: {status}\n{}", self.log());
            }
            line
        });
        self.addresses = parse_ready(&line);
        assert!(!self.addresses.is_empty(), "no address in {line:?}");
    }

    /// Whether the ready line has appeared.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.log
            .with(|lines| lines.iter().any(|line| line.contains("okdb ready on ")))
    }

    /// Where it listens, in the order of its ready line.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The first TCP address it listens on.
    #[must_use]
    #[track_caller]
    pub fn tcp(&self) -> SocketAddr {
        self.addresses
            .iter()
            .find_map(|address| match address {
                Address::Tcp(address) => Some(*address),
                Address::Unix(_) => None,
            })
            .expect("it listens on TCP")
    }

    /// A client that keeps one connection.
    #[must_use]
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::new(self.addresses.first().expect("it is ready"))
    }

    /// A client with a connection for each request.
    #[must_use]
    #[track_caller]
    pub fn fresh(&self) -> Client {
        Client::fresh(self.addresses.first().expect("it is ready"))
    }

    /// One client with a kept connection to each of the workers `0..count`.
    #[must_use]
    #[track_caller]
    pub fn client_per_worker(&self, count: usize) -> Vec<Client> {
        let mut found: Vec<Option<Client>> = (0..count).map(|_| None).collect();
        wait_until("a connection to each worker", SOON, || {
            let mut client = self.client();
            if let Ok(answer) = client.call("GET", "/healthz", &[], None) {
                let slot = answer.worker();
                if let Some(place) = found.get_mut(slot) {
                    place.get_or_insert(client);
                }
            }
            found.iter().all(Option::is_some)
        });
        found.into_iter().flatten().collect()
    }

    /// `GET /api/cluster/status`, from any worker that answers.
    #[must_use]
    #[track_caller]
    pub fn status(&self) -> Value {
        wait_for("an answer to /api/cluster/status", SOON, || {
            let mut client = self.fresh().within(Duration::from_secs(5));
            let answer = client.call("GET", "/api/cluster/status", &[], None).ok()?;
            (answer.status == 200).then(|| answer.json())
        })
    }

    /// The slots as the status shows them, once the worker that is asked knows any.
    #[must_use]
    #[track_caller]
    pub fn slots(&self) -> Vec<Slot> {
        wait_for("slots in the status", SOON, || {
            let workers = self.status()["workers"].as_array()?.clone();
            (!workers.is_empty()).then(|| workers.iter().map(parse_slot).collect())
        })
    }

    /// Waits until every slot has a ready worker that runs; the slots.
    #[must_use]
    #[track_caller]
    pub fn wait_all_ready(&self) -> Vec<Slot> {
        wait_for("every slot ready", SOON, || {
            let slots = self.slots();
            let ready = slots
                .iter()
                .all(|slot| slot.state == "ready" && slot.pid.and_then(Process::find).is_some());
            ready.then_some(slots)
        })
    }

    /// The primary and its workers, and whatever else is left of its group.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        process::members(self.pid)
    }

    /// The worker processes: the members of the group but the primary.
    #[must_use]
    pub fn workers(&self) -> Vec<Process> {
        let mut workers = self.processes();
        workers.retain(|process| process.pid != self.pid);
        workers
    }

    /// Sends a signal to the primary.
    pub fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            process::signal_pid(self.pid, signal);
        }
    }

    /// Sends a signal to the primary and all workers in one instant.
    pub fn signal_all(&self, signal: Signal) {
        process::signal_group(self.pid, signal);
    }

    /// SIGKILL to everything in one instant, as a power cut would; all gone after it.
    #[track_caller]
    pub fn kill_all(&mut self) {
        self.signal_all(Signal::SIGKILL);
        self.wait_exit(SOON);
        self.wait_gone(SOON);
    }

    /// SIGKILL to the primary alone; the workers are left to notice.
    #[track_caller]
    pub fn kill_primary(&mut self) {
        self.signal(Signal::SIGKILL);
        self.wait_exit(SOON);
    }

    /// The exit status, if the primary has ended.
    pub fn try_exit(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("the child is ours");
        }
        self.ended
    }

    /// Waits for the primary's end.
    #[track_caller]
    pub fn wait_exit(&mut self, limit: Duration) -> ExitStatus {
        wait_for("the primary's end", limit, || self.try_exit())
    }

    /// Waits until nothing of the group runs.
    #[track_caller]
    pub fn wait_gone(&self, limit: Duration) {
        wait_until("the end of every worker", limit, || {
            self.processes().is_empty()
        });
    }

    /// TERM, and what is promised of it: exit code 0 within the grace, no orphan.
    #[track_caller]
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        self.expect_clean_exit();
    }

    /// Waits for the end that a stop signal asked for: code 0, no orphan.
    #[track_caller]
    pub fn expect_clean_exit(&mut self) {
        let status = self.wait_exit(promised(GRACE_SECONDS));
        assert_eq!(
            (status.code(), status.signal()),
            (Some(0), None),
            "a stop that was asked for is no failure\n{}",
            self.log()
        );
        let orphans = self.processes();
        assert!(orphans.is_empty(), "left behind: {orphans:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for process in self.processes() {
            process.signal(Signal::SIGKILL);
        }
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        janitor::forget(self.pid);
        if thread::panicking() {
            self.log.wait_for_the_end();
            self.log.with(|lines| {
                let from = lines.len().saturating_sub(LOG_LINES_SHOWN);
                eprintln!("--- log of okdb {} ---", self.pid);
                for line in &lines[from..] {
                    eprintln!("{line}");
                }
            });
        }
    }
}

fn parse_ready(line: &str) -> Vec<Address> {
    let Some((_, listed)) = line.split_once("okdb ready on ") else {
        return Vec::new();
    };
    listed
        .split([' ', ',', '"'])
        .filter_map(|word| {
            if let Some(path) = word.strip_prefix("unix:") {
                return Some(Address::Unix(PathBuf::from(path)));
            }
            let address = word.strip_prefix("http://")?;
            Some(Address::Tcp(address.trim_end_matches('/').parse().ok()?))
        })
        .collect()
}

fn parse_slot(worker: &Value) -> Slot {
    let number = |name: &str| worker[name].as_u64();
    Slot {
        slot: number("slot")
            .and_then(|slot| usize::try_from(slot).ok())
            .unwrap_or_else(|| panic!("a worker without a slot: {worker}")),
        pid: number("pid")
            .and_then(|pid| i32::try_from(pid).ok())
            .filter(|pid| *pid > 0),
        state: worker["state"].as_str().unwrap_or_default().to_owned(),
        restarts: number("restarts").unwrap_or_default(),
    }
}
