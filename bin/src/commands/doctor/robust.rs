//! Lock recovery: a writer that is killed while it holds the write lock must not stop the next one. Proved with a real
//! child, in a root that is thrown away.
//!
//! The child writes without end. It is stopped, and if it is seen to hold the lock then, it is killed like that; otherwise
//! it goes on and is stopped again.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::mpsc,
    time::{Duration, Instant},
};

use okdb::{
    Db,
    store::{Action, Durability, Guard, Operation, Options, Store, Write},
};
use okdb_sys::{
    Identity, Signal, reap,
    spawn::{Child, Spawn},
};
use serde_json::json;

use super::Report;

/// The hidden command of the child.
pub(crate) const COMMAND: &str = "__lock";

const NAME: &str = "lock recovery";
/// How long the child may take to be caught with the lock.
const CATCH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the next writer may take.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the child's state is looked at.
const STEP: Duration = Duration::from_millis(1);
const TYPE: &str = "trial";

pub(super) fn check(report: &mut Report) {
    let folder = super::root::scratch("lock");
    match prove(&folder) {
        Ok(took) => report.good(
            NAME,
            format!(
                "a writer went on {} ms after another was killed with the lock",
                took.as_millis()
            ),
        ),
        Err(error) => report.bad(
            NAME,
            error,
            "the kernel or the C library lacks robust locks: run on another host",
        ),
    }
    super::root::throw_away(report, &folder);
}

fn prove(folder: &Path) -> Result<Duration, String> {
    let options = Options {
        auto_types: true,
        durability: Some(Durability::Fast),
        segment_in_root: true,
        ..Options::default()
    };
    let store = Store::open(folder, options).map_err(|error| error.to_string())?;
    let child = Spawn::current_exe("okdb")
        .arg(COMMAND)
        .arg(folder)
        .death_signal(Signal::Kill)
        .discard_stdout()
        .start()
        .map_err(|error| format!("cannot start a child: {error}"))?;
    let caught = catch(&store, &child);
    // If it has ended by itself there is nothing to kill.
    let _ = child.identity.signal(Signal::Kill);
    reap::wait(child.identity.pid).map_err(|error| error.to_string())?;
    caught?;
    let began = Instant::now();
    write(&store)?;
    Ok(began.elapsed())
}

/// Leaves the child stopped with the lock in its hand.
fn catch(store: &Store, child: &Child) -> Result<(), String> {
    let deadline = Instant::now() + CATCH_TIMEOUT;
    let told = |error: std::io::Error| format!("the child cannot be stopped: {error}");
    while Instant::now() < deadline {
        if holds_lock(store, child.identity) {
            child.identity.signal(Signal::Stop).map_err(told)?;
            while child.identity.state().is_some_and(|state| state != 'T') {
                std::thread::sleep(STEP);
            }
            if holds_lock(store, child.identity) {
                return Ok(());
            }
            child.identity.signal(Signal::Cont).map_err(told)?;
        }
        std::thread::sleep(STEP);
    }
    Err("the child was never seen with the lock".into())
}

fn holds_lock(store: &Store, process: Identity) -> bool {
    store
        .segment()
        .rows()
        .any(|row| row.owner == Some(process) && !row.write_locks.is_empty())
}

/// Writes one record, with a limit: a lock that does not recover would be waited for without end.
fn write(store: &Store) -> Result<(), String> {
    let env = store.env("default").map_err(|error| error.to_string())?;
    let pending = env.submit(Write::One(Operation {
        type_name: TYPE.into(),
        key: "after".into(),
        guard: Guard::default(),
        ttl: None,
        action: Action::Put("1".into()),
    }));
    let (done, result) = mpsc::channel();
    std::thread::Builder::new()
        .name("trial-write".into())
        .spawn(move || {
            // Whoever gave up waiting does not listen.
            let _ = done.send(pending.wait());
        })
        .map_err(|error| error.to_string())?;
    match result.recv_timeout(RECOVERY_TIMEOUT) {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("the next write failed: {error}")),
        Err(_) => Err(format!(
            "the lock of a killed writer was still held after {} s",
            RECOVERY_TIMEOUT.as_secs()
        )),
    }
}

/// The child: writes until it is killed.
pub(crate) fn hold_lock(arguments: &[String]) -> ExitCode {
    let [folder] = arguments else {
        return ExitCode::FAILURE;
    };
    let write = || -> Result<(), Box<dyn std::error::Error>> {
        let db = Db::builder()
            .auto_types(true)
            .background(false)
            .open(PathBuf::from(folder))?;
        let records = db.records(TYPE)?;
        loop {
            records.put("again", &json!({ "and": "again" }))?;
        }
    };
    if let Err(error) = write() {
        crate::output::complain(&format!("okdb doctor: the trial writer failed: {error}"));
    }
    ExitCode::FAILURE
}
