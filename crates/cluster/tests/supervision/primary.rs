//! A whole primary in a process of its own, for stories about signals and its death.

use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroU16;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use okdb_cluster::address::Address;
use okdb_cluster::driver::{Driver, Fresh, Observer, Options, SIGNALS};
use okdb_cluster::listen::Listeners;
use okdb_cluster::machine::WorkerExit;
use okdb_cluster::status::SlotStatus;
use okdb_sys::signals::Signals;
use okdb_sys::{Identity, Signal};

use crate::harness::{self, Script, ScriptSpawner};
use crate::worker;

pub(crate) const ROLE: &str = "primary";
const WORKER_ROLE: &str = "OKDB_CLUSTER_TEST_WORKERS";
const WORKERS: u16 = 3;

/// Tells on standard output what happens.
struct Teller;

impl Observer for Teller {
    fn config(&mut self, _slot: u16) -> String {
        String::new()
    }

    fn snapshot(&mut self, _slots: &[SlotStatus]) -> String {
        String::new()
    }

    fn status_line(&mut self, _slots: &[SlotStatus]) -> String {
        String::new()
    }

    fn on_reload(&mut self) -> Result<Fresh, String> {
        Err("scripted to fail".into())
    }

    fn on_reopen_logs(&mut self) {
        tell("reopening logs");
    }

    fn on_ready(&mut self) {
        tell("ready");
    }

    fn on_slot_changed(&mut self, slot: &SlotStatus) {
        if let Some(pid) = slot.pid {
            tell(&format!("worker {pid}"));
        }
    }

    fn on_worker_death(&mut self, slot: u16, _pid: u32, _exit: WorkerExit) {
        tell(&format!("death {slot}"));
    }

    fn on_stop(&mut self) {
        tell("stopping");
    }
}

fn tell(line: &str) {
    // The test's end of the pipe may be closed by now.
    let _ = writeln!(std::io::stdout(), "okdb-test: {line}");
}

#[allow(clippy::exit, reason = "the exit code is what the stories look at")]
pub(crate) fn run() {
    let signals = Signals::install(&SIGNALS).expect("signals");
    tell("handling signals");
    let role = match std::env::var(WORKER_ROLE).as_deref() {
        Ok(worker::STUBBORN) => worker::STUBBORN,
        Ok(worker::STUCK) => worker::STUCK,
        _ => worker::GOOD,
    };
    let wish: Address = "127.0.0.1:0".parse().expect("an address");
    let slots = NonZeroU16::new(WORKERS).expect("slots");
    let listeners = Listeners::bind(&[wish], slots).expect("bind");
    // Stubborn workers shall meet their end by a second signal, not by this.
    let options = Options {
        shutdown_grace_ms: 600_000,
        ..Options::default()
    };
    let driver = Driver::new(listeners, Some(signals), options);
    let mut spawner = ScriptSpawner(vec![Script::Role(role); usize::from(WORKERS)]);
    let code = driver.run(&mut spawner, &mut Teller);
    std::process::exit(i32::from(code.number()));
}

/// A primary process, seen from outside. It leads a process group of its own.
pub(crate) struct Primary {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    /// Every worker it has told of.
    pub(crate) workers: Vec<Identity>,
}

impl Primary {
    pub(crate) fn start(worker_role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["process_main", "--exact", "--nocapture"])
            .env(harness::ROLE, ROLE)
            .env(WORKER_ROLE, worker_role)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("spawn");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Self {
            child,
            lines,
            workers: Vec::new(),
        }
    }

    /// Reads on until the line `wanted`.
    pub(crate) fn wait(&mut self, wanted: &str) {
        while let Some(line) = self.next_line() {
            if line == wanted {
                return;
            }
        }
        panic!("the primary ended before it told {wanted:?}");
    }

    pub(crate) fn next_line(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).expect("read") == 0 {
                return None;
            }
            // The test harness writes lines of its own, and may leave one open.
            let Some((_, told)) = line.trim_end().split_once("okdb-test: ") else {
                continue;
            };
            if let Some(pid) = told.strip_prefix("worker ")
                && let Ok(identity) = Identity::of(pid.parse().expect("a pid"))
                && !self.workers.contains(&identity)
            {
                self.workers.push(identity);
            }
            return Some(told.to_owned());
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let process = Identity::of(self.child.id()).expect("a process");
        process.signal(signal).expect("signal");
    }

    pub(crate) fn signal_group(&self, signal: &str) {
        let group = format!("-{}", self.child.id());
        let status = Command::new("kill")
            .args(["-s", signal, "--", &group])
            .status()
            .expect("kill");
        assert!(status.success());
    }

    /// Waits for its end, and for that of every worker.
    pub(crate) fn wait_end(mut self) -> ExitStatus {
        while self.next_line().is_some() {}
        let status = self.child.wait().expect("wait");
        for worker in &self.workers {
            assert!(
                worker.wait_end(harness::PATIENCE).expect("wait"),
                "{worker:?} lives on"
            );
        }
        status
    }
}
