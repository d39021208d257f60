//! Graceful ends: whatever the moment, code 0, nothing left behind.
//!
//! Supervisors have brought workers back to life during a shutdown, lost a
//! signal that came while they were starting, and left orphans.

use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::thread;
use std::time::Duration;

use okdb_tests::process::{Process, Signal, signal_pid};
use okdb_tests::server::{GRACE_SECONDS, Launch, Place, Server};
use okdb_tests::torture::rounds;
use okdb_tests::wait::{SOON, promised, wait_for, wait_until};

fn port_is_free(server: &Server) {
    TcpListener::bind(server.tcp()).expect("the port is free after the stop");
}

#[test]
fn term_and_int_end_it_cleanly_and_the_next_start_works_at_once() {
    let place = Place::new();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut server = Launch::at(&place.root()).start();
        server.signal(signal);
        server.expect_clean_exit();
        port_is_free(&server);
    }
    Launch::at(&place.root()).start().stop();
}

#[test]
fn ctrl_c_reaches_the_whole_group_and_no_worker_comes_back() {
    let place = Place::new();
    for _ in 0..rounds(5, 50) {
        let mut server = Launch::at(&place.root()).start();
        server.signal_all(Signal::SIGINT);
        server.expect_clean_exit();
        port_is_free(&server);
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let place = Place::new();
    for _ in 0..rounds(5, 50) {
        let mut server = Launch::at(&place.root())
            .args(&["--shutdown-grace", "60"])
            .start();
        // Something that a graceful stop would wait for.
        let mut half = server.client();
        half.send_raw(
            b"PUT /api/default/types/t HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{",
        )
        .expect("the server reads");
        server.signal(Signal::SIGTERM);
        thread::sleep(Duration::from_millis(20));
        server.signal(Signal::SIGTERM);
        server.wait_exit(promised(GRACE_SECONDS));
        server.wait_gone(promised(GRACE_SECONDS));
    }
    Launch::at(&place.root()).start().stop();
}

#[test]
fn a_stop_while_a_respawn_is_pending_starts_nothing_more() {
    let place = Place::new();
    for _ in 0..rounds(2, 50) {
        let mut server = Launch::at(&place.root()).start();
        let _ = server.wait_all_ready();
        // Three deaths: the fourth worker would come after a second or two.
        let mut last = 0;
        for _ in 0..3 {
            let worker = wait_for("a new worker in slot 1", SOON, || {
                worker_of(&server, 1).filter(|worker| worker.pid != last)
            });
            last = worker.pid;
            worker.signal(Signal::SIGKILL);
            wait_until("the worker's end", SOON, || !worker.lives());
        }
        let before = server.workers();
        server.signal(Signal::SIGTERM);
        let mut late = Vec::new();
        wait_until("the end of the primary", promised(GRACE_SECONDS), || {
            late.extend(
                server
                    .workers()
                    .into_iter()
                    .filter(|worker| before.iter().all(|known| known.pid != worker.pid)),
            );
            server.try_exit().is_some()
        });
        assert!(late.is_empty(), "started after the stop: {late:?}");
        server.expect_clean_exit();
    }
}

/// The running worker of a slot, by the status that another worker answers.
fn worker_of(server: &Server, slot: usize) -> Option<Process> {
    let slots = server.slots();
    let found = slots.iter().find(|found| found.slot == slot)?;
    Process::find(found.pid?)
}

#[test]
fn a_stop_at_any_moment_of_the_start_is_not_lost() {
    let place = Place::new();
    let steps = rounds(16, 200);
    for step in 0..steps {
        let offset = Duration::from_micros(400_000 * step as u64 / steps as u64);
        let mut server = Launch::at(&place.root()).spawn();
        thread::sleep(offset);
        server.signal(Signal::SIGTERM);
        let status = server.wait_exit(promised(GRACE_SECONDS));
        // Before the handler is there, the signal's own default ends it.
        let ended = status.code() == Some(0)
            || (status.signal() == Some(Signal::SIGTERM as i32) && !server.is_ready());
        assert!(ended, "after {offset:?}: {status}\n{}", server.log());
        server.wait_gone(promised(GRACE_SECONDS));
    }
    Launch::at(&place.root()).start().stop();
}

#[test]
fn a_worker_told_to_end_at_any_moment_of_its_start_is_replaced() {
    let place = Place::new();
    for step in 0..rounds(3, 40) {
        // A new server each time: two deaths a round would soon be a crash loop.
        let server = Launch::at(&place.root()).start();
        let slots = server.wait_all_ready();
        let old = slots[1].pid.expect("a ready slot has a worker");
        signal_pid(old, Signal::SIGKILL);
        let newborn = wait_for("a new worker in slot 1", SOON, || {
            server
                .workers()
                .into_iter()
                .find(|worker| slots.iter().all(|slot| slot.pid != Some(worker.pid)))
        });
        thread::sleep(Duration::from_millis(step as u64 * 7 % 60));
        newborn.signal(Signal::SIGTERM);
        wait_until("the newborn's end", SOON, || !newborn.lives());
        let slots = server.wait_all_ready();
        assert_ne!(slots[1].pid, Some(newborn.pid));
    }
}
