//! The primary dies with SIGKILL: its workers must not live on, and nothing of
//! it may block the next start.

use std::time::Instant;

use okdb_tests::data::Random;
use okdb_tests::process::Signal;
use okdb_tests::server::{Launch, ORPHAN_SECONDS, Place};
use okdb_tests::torture::rounds;
use okdb_tests::wait::{SOON, promised, wait_for};

#[test]
fn workers_end_within_four_seconds_whatever_they_are_doing() {
    let place = Place::new();
    let mut server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    let large = format!(r#"{{"value":"{}"}}"#, "x".repeat(12 * 1024 * 1024));
    client.put("/api/default/types/t/large", &large).expect(201);
    let mut held = server.client_per_worker(2);
    held[0]
        .send_raw(b"GET /api/default/types/t/large HTTP/1.1\r\nhost: x\r\n\r\n")
        .expect("the server reads");
    held[1]
        .send_raw(b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n")
        .expect("the server reads");

    server.kill_primary();
    let begin = Instant::now();
    server.wait_gone(promised(ORPHAN_SECONDS));
    println!("workers gone after {:?}", begin.elapsed());
}

#[test]
fn what_was_in_flight_is_finished() {
    let place = Place::new();
    let mut server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    client
        .send_raw(b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: x\r\ncontent-length: 11\r\n\r\n{\"value\"")
        .expect("the server reads");
    server.kill_primary();
    client.send_raw(b":1}").expect("the worker reads");
    client.receive(false).expect("an answer").expect(201);
    server.wait_gone(promised(ORPHAN_SECONDS));

    let server = Launch::at(&place.root()).start();
    server.client().get("/api/default/types/t/k").expect(200);
}

#[test]
fn the_next_start_does_not_wait_to_be_asked_twice() {
    let place = Place::new();
    for round in 0..rounds(3, 50) {
        let mut server = Launch::at(&place.root()).start();
        let mut client = server.client();
        client.put("/api/default/types/t", "{}").expect(200);
        let path = format!("/api/default/types/t/round-{round}");
        client.put(&path, r#"{"value":1}"#).expect(201);
        let port = server.tcp().port();
        server.kill_primary();
        // At once, on the same root and the same port, orphans or not.
        let mut next = Launch::at(&place.root())
            .listen(format!("127.0.0.1:{port}"))
            .start();
        let orphans = server.processes();
        assert!(
            orphans.is_empty(),
            "orphans beside the new server: {orphans:?}"
        );
        next.client().get(&path).expect(200);
        next.stop();
    }
}

#[test]
fn a_stopped_orphan_is_removed_by_the_next_start() {
    let place = Place::new();
    let mut server = Launch::at(&place.root()).start();
    let worker = server.workers()[0];
    worker.signal(Signal::SIGSTOP);
    server.kill_primary();
    let mut next = Launch::at(&place.root()).start();
    assert!(!worker.lives(), "a stopped orphan still maps the files");
    next.stop();
}

#[test]
fn a_worker_born_while_the_primary_dies_does_not_survive() {
    let place = Place::new();
    let mut random = Random::new("newborn", 4);
    for _ in 0..rounds(4, 50) {
        let mut server = Launch::at(&place.root()).start();
        let before = server.workers();
        before[0].signal(Signal::SIGKILL);
        let _newborn = wait_for("a respawned worker", SOON, || {
            server
                .workers()
                .into_iter()
                .find(|worker| before.iter().all(|old| old.pid != worker.pid))
        });
        std::thread::sleep(std::time::Duration::from_micros(random.below(50_000)));
        server.kill_primary();
        server.wait_gone(promised(ORPHAN_SECONDS));
    }
    Launch::at(&place.root()).start().stop();
}
