//! What is ordered while an upgrade replaces the program: nobody hears it at that
//! moment, and the next program does it as if nothing had been.

use std::fs;
use std::path::{Path, PathBuf};

use okdb_tests::binary;
use okdb_tests::process::Signal;
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::slow_start::SlowStart;
use okdb_tests::wait::{SOON, wait_until};

/// A server of a program that may be replaced.
fn launch(place: &Place) -> (Server, PathBuf) {
    let program = place.path("okdb");
    fs::copy(binary::okdb(), &program).expect("copied");
    let server = Launch::of(&program, &place.root())
        .arg("--auto-types")
        .start();
    (server, program)
}

/// Begins an upgrade to a program that waits to be let go.
fn begin_upgrade(place: &Place, server: &Server, program: &Path) -> SlowStart {
    let folder = place.path("slow");
    fs::create_dir(&folder).expect("a folder");
    let slow = SlowStart::in_place_of(program, &folder);
    server.signal(Signal::SIGUSR2);
    slow.wait_for_it();
    slow
}

#[test]
fn no_order_is_lost() {
    for (signal, obeyed) in [
        (Signal::SIGTTIN, "one worker more"),
        (Signal::SIGTTOU, "one worker fewer"),
        (Signal::SIGHUP, "reloading"),
        (Signal::SIGUSR2, "upgrade refused"),
    ] {
        let place = Place::new();
        let (mut server, program) = launch(&place);
        let slow = begin_upgrade(&place, &server, &program);
        assert!(!server.log().contains(obeyed), "{}", server.log());
        server.signal(signal);
        slow.let_go();
        wait_until(&format!("{signal}: {obeyed}"), SOON, || {
            server.log().contains(obeyed)
        });
        server.stop();
    }
}

#[test]
fn a_stop_lets_requests_finish() {
    let place = Place::new();
    let (mut server, program) = launch(&place);
    let mut held = server.client_per_worker(2);
    for client in &mut held {
        client
            .send_raw(b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: x\r\ncontent-length: 11\r\n\r\n{\"value\"")
            .expect("the server reads");
    }
    let slow = begin_upgrade(&place, &server, &program);
    server.signal(Signal::SIGTERM);
    slow.let_go();
    // One that leaves at once leaves its workers behind, each to its own devices.
    wait_until("a word about the stop, or the end", SOON, || {
        server.log().contains("stopping") || server.try_exit().is_some()
    });
    assert_eq!(server.try_exit(), None, "it did not wait for its workers");
    for client in &mut held {
        client.send_raw(b":1}").expect("the worker reads");
        let answer = client.receive(false).expect("it was asked before the stop");
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    }
    server.expect_clean_exit();
}
