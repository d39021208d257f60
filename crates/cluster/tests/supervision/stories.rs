//! The incidents.

use std::io::Read;
use std::net::TcpStream;

use okdb_cluster::driver::{Control, Options};
use okdb_cluster::exit::ExitCode;
use okdb_cluster::machine::{Limits, SlotState, WorkerExit};
use okdb_sys::Signal;

use crate::harness::{Cluster, News, PATIENCE, Script};
use crate::primary::Primary;
use crate::worker;

const GOOD: Script = Script::Role(worker::GOOD);
const STUBBORN: Script = Script::Role(worker::STUBBORN);
const MUTE: Script = Script::Role(worker::MUTE);
const KILLED: WorkerExit = WorkerExit::Signal {
    signal: 9,
    core: false,
};

pub(crate) fn ask(client: &mut TcpStream) -> u32 {
    let mut answer = String::new();
    client.set_read_timeout(Some(PATIENCE)).expect("timeout");
    client.read_to_string(&mut answer).expect("an answer");
    answer.trim().parse().expect("a pid")
}

#[test]
fn a_killed_worker_is_replaced_and_its_neighbour_notices_nothing() {
    let mut cluster = Cluster::start(&[GOOD, GOOD]);
    cluster.wait_ready();
    let (neighbour, killed) = (cluster.pid(0), cluster.pid(1));
    cluster.signal(1, Signal::Kill);
    assert_eq!(cluster.wait_death(1), KILLED);
    let waiting = cluster.wait_state(1, SlotState::Backoff);
    assert_eq!(waiting.backoff_ms, Some(250));
    assert_eq!(waiting.pid, None);
    let ready = cluster.wait_state(1, SlotState::Ready);
    assert_eq!(ready.restarts, 1);
    assert_ne!(ready.pid, Some(killed));
    assert!(ready.start_time.is_some() && ready.started_at.is_some());
    let exit = ready.last_exit.expect("an exit");
    assert_eq!(
        (exit.signal, exit.reason.as_str()),
        (Some(9), "signal SIGKILL")
    );
    assert_eq!(cluster.pid(0), neighbour);
    cluster.stop();
    assert_eq!(cluster.wait_finished(), ExitCode::Clean);
    let ready = cluster
        .heard
        .iter()
        .filter(|news| **news == News::Ready)
        .count();
    assert_eq!(ready, 1, "ready is told once");
}

#[test]
fn connections_queued_for_a_dead_worker_are_answered_by_its_successor() {
    let mut cluster = Cluster::start(&[GOOD]);
    cluster.wait_ready();
    assert_eq!(
        ask(&mut TcpStream::connect(cluster.addr).expect("connect")),
        cluster.pid(0)
    );
    cluster.signal(0, Signal::Kill);
    cluster.wait_state(0, SlotState::Backoff);
    let mut clients: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(cluster.addr).expect("connect"))
        .collect();
    cluster.wait_state(0, SlotState::Ready);
    for client in &mut clients {
        assert_eq!(ask(client), cluster.pid(0));
    }
}

#[test]
fn a_crash_loop_ends_with_a_dead_slot_and_the_others_take_all_connections() {
    let mut cluster = Cluster::start(&[GOOD, Script::Sh("echo no >&2; exit 7")]);
    let dead = cluster.wait_state(1, SlotState::Dead);
    assert_eq!(dead.restarts, 4);
    assert_eq!(dead.last_exit.and_then(|exit| exit.code), Some(7));
    assert_eq!(dead.last_stderr, ["no"]);
    let deaths = cluster
        .heard
        .iter()
        .filter(|news| matches!(news, News::Death { slot: 1, .. }))
        .count();
    assert_eq!(deaths, 5);
    cluster.wait_ready();
    for _ in 0..20 {
        assert_eq!(
            ask(&mut TcpStream::connect(cluster.addr).expect("connect")),
            cluster.pid(0)
        );
    }
    cluster.stop();
    assert_eq!(cluster.wait_finished(), ExitCode::Clean);
}

#[test]
fn when_all_slots_are_dead_the_server_ends_with_its_own_code() {
    let script =
        "i=0; while [ $i -lt 30 ]; do i=$((i+1)); echo line $i >&2; done; printf end >&2; exit 1";
    let mut cluster = Cluster::start(&[Script::Sh(script), Script::Unspawnable]);
    assert_eq!(cluster.wait_finished(), ExitCode::AllSlotsDead);
    assert!(!cluster.heard.contains(&News::Ready));
    let mut lines: Vec<String> = (12..=30).map(|number| format!("line {number}")).collect();
    lines.push("end".into());
    assert_eq!(cluster.slots[&0].last_stderr, lines);
    let failed = cluster.slots[&1].last_exit.clone().expect("an exit");
    assert_eq!(failed.reason, "could not be started: scripted to fail");
}

#[test]
fn a_worker_that_ignores_the_stop_is_killed_at_the_end_of_the_grace() {
    let options = Options {
        shutdown_grace_ms: 200,
        ..Options::default()
    };
    let mut cluster = Cluster::start_with(&[GOOD, STUBBORN], options);
    cluster.wait_ready();
    cluster.stop();
    assert_eq!(cluster.wait_finished(), ExitCode::Clean);
    assert_eq!(
        cluster.slots[&1]
            .last_exit
            .clone()
            .and_then(|exit| exit.signal),
        Some(9)
    );
    assert_eq!(
        cluster.slots[&0]
            .last_exit
            .clone()
            .and_then(|exit| exit.code),
        Some(0)
    );
    // The one that left when asked is no death; the one that had to be killed is to be mended after.
    let dead: Vec<u16> = cluster
        .heard
        .iter()
        .filter_map(|news| match news {
            News::Death { slot, .. } => Some(*slot),
            _ => None,
        })
        .collect();
    assert_eq!(dead, [1]);
}

#[test]
fn a_stop_during_a_backoff_ends_at_once_and_starts_nobody() {
    let mut cluster = Cluster::start(&[Script::Sh("exit 1")]);
    cluster.wait_state(0, SlotState::Backoff);
    cluster.stop();
    assert_eq!(cluster.wait_finished(), ExitCode::Clean);
    let stopping = cluster
        .heard
        .iter()
        .position(|news| *news == News::Stopping)
        .expect("told");
    let started =
        |news: &News| matches!(news, News::Changed(status) if status.state == SlotState::Starting);
    assert!(!cluster.heard[stopping..].iter().any(started));
}

#[test]
fn a_stop_before_the_start_starts_nobody() {
    let stop = |handle: &Control| handle.stop(ExitCode::RuntimeFailure);
    let mut cluster = Cluster::prepare(&[GOOD, GOOD], Options::default(), stop);
    assert_eq!(cluster.wait_finished(), ExitCode::RuntimeFailure);
    let expected = [News::Stopping, News::Finished(ExitCode::RuntimeFailure)];
    assert_eq!(cluster.heard, expected);
}

#[test]
fn a_stop_during_the_start_leaves_nobody_behind() {
    let mut cluster = Cluster::start(&[Script::Sh("exec sleep 1000"), GOOD]);
    cluster.wait_state(0, SlotState::Starting);
    cluster.stop();
    assert_eq!(cluster.wait_finished(), ExitCode::Clean);
    assert_eq!(
        cluster.slots[&0]
            .last_exit
            .clone()
            .and_then(|exit| exit.signal),
        Some(15)
    );
}

#[test]
fn a_hung_worker_is_aborted() {
    let limits = Limits {
        worker_timeout_ms: 300,
        ..Limits::default()
    };
    let mut cluster = Cluster::start_with(
        &[GOOD, MUTE],
        Options {
            limits,
            ..Options::default()
        },
    );
    let exit = cluster.wait_death(1);
    assert!(
        matches!(exit, WorkerExit::Signal { signal: 6, .. }),
        "{exit:?}"
    );
    assert!(
        !cluster
            .heard
            .iter()
            .any(|news| matches!(news, News::Death { slot: 0, .. }))
    );
}

#[test]
fn a_hung_worker_that_is_stopped_is_killed() {
    let limits = Limits {
        worker_timeout_ms: 1_000,
        ..Limits::default()
    };
    let mut cluster = Cluster::start_with(
        &[GOOD],
        Options {
            limits,
            ..Options::default()
        },
    );
    cluster.wait_ready();
    cluster.signal(0, Signal::Stop);
    assert_eq!(cluster.wait_death(0), KILLED);
}

#[test]
fn a_worker_that_never_gets_ready_is_killed_and_counted() {
    let limits = Limits {
        start_deadline_ms: 200,
        ..Limits::default()
    };
    let scripts = [Script::Sh("exec sleep 1000")];
    let mut cluster = Cluster::start_with(
        &scripts,
        Options {
            limits,
            ..Options::default()
        },
    );
    assert_eq!(cluster.wait_death(0), KILLED);
    assert_eq!(
        cluster.wait_state(0, SlotState::Backoff).backoff_ms,
        Some(250)
    );
}

#[test]
fn workers_get_their_configuration_and_every_change_of_the_cluster() {
    let mut cluster = Cluster::start(&[Script::Role(worker::LISTENER), GOOD]);
    cluster.wait_ready();
    cluster.signal(1, Signal::Kill);
    assert_eq!(cluster.wait_death(0), WorkerExit::Code(worker::HEARD));
    let heard = cluster.wait_state(0, SlotState::Backoff).last_stderr;
    assert_eq!(
        heard.first().map(String::as_str),
        Some("config-of-0"),
        "{heard:?}"
    );
    assert_eq!(heard.last().map(String::as_str), Some("Ready,Backoff"));
}

#[test]
fn a_worker_s_stuck_descendant_does_not_keep_the_slot() {
    // The background process holds the pipe of standard error open.
    let mut cluster = Cluster::start(&[Script::Sh("sleep 2 & echo gone >&2; exit 3")]);
    let waiting = cluster.wait_state(0, SlotState::Backoff);
    assert_eq!(waiting.last_stderr, ["gone"]);
}

#[test]
fn term_stops_a_primary_and_its_workers() {
    let mut primary = Primary::start(worker::GOOD);
    primary.wait("ready");
    assert_eq!(primary.workers.len(), 3);
    primary.signal(Signal::Term);
    assert_eq!(primary.wait_end().code(), Some(0));
}

#[test]
fn term_is_not_lost_before_the_first_worker_is_there() {
    let mut primary = Primary::start(worker::GOOD);
    primary.wait("handling signals");
    primary.signal(Signal::Term);
    assert_eq!(primary.wait_end().code(), Some(0));
}

#[test]
fn ctrl_c_reaches_the_whole_group_and_revives_nobody() {
    let mut primary = Primary::start(worker::GOOD);
    primary.wait("ready");
    primary.signal_group("INT");
    primary.wait("stopping");
    let before = primary.workers.clone();
    while let Some(line) = primary.next_line() {
        assert!(!line.starts_with("ready"));
    }
    assert_eq!(
        primary.workers, before,
        "a worker was started after the stop"
    );
    assert_eq!(primary.wait_end().code(), Some(0));
}

#[test]
fn a_second_term_ends_what_a_first_one_could_not() {
    let mut primary = Primary::start(worker::STUBBORN);
    primary.wait("ready");
    primary.signal(Signal::Term);
    primary.wait("stopping");
    primary.signal(Signal::Term);
    assert_eq!(primary.wait_end().code(), Some(0));
}

#[test]
fn no_other_signal_ends_anything() {
    let mut primary = Primary::start(worker::GOOD);
    primary.wait("ready");
    for signal in [
        Signal::Hup,
        Signal::Usr1,
        Signal::Usr2,
        Signal::Ttin,
        Signal::Ttou,
    ] {
        primary.signal(signal);
    }
    primary.signal(Signal::Int);
    primary.wait("stopping");
    assert_eq!(primary.wait_end().code(), Some(0));
}

#[test]
fn a_killed_primary_takes_its_workers_with_it() {
    for role in [worker::GOOD, worker::STUBBORN, worker::STUCK] {
        let mut primary = Primary::start(role);
        primary.wait("ready");
        primary.signal(Signal::Kill);
        assert_eq!(primary.wait_end().code(), None, "{role}");
    }
}
