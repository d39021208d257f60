//! The ready line is a promise: at that instant each slot serves.

use std::collections::BTreeSet;

use okdb_tests::server::{Launch, Place};

#[test]
fn at_the_ready_line_each_slot_serves_at_once() {
    let place = Place::new();
    let server = Launch::plain(&place.root())
        .args(&["--workers", "3"])
        .start();
    let mut client = server.fresh();
    let mut answered = BTreeSet::new();
    for _ in 0..200 {
        answered.insert(client.get("/healthz").expect(200).worker());
    }
    assert_eq!(answered, BTreeSet::from([0, 1, 2]));
    client.get("/readyz").expect(200);
}

#[test]
fn at_the_ready_line_the_status_knows_every_slot() {
    let place = Place::new();
    for _ in 0..5 {
        let server = Launch::at(&place.root()).start();
        for _ in 0..4 {
            let status = server.fresh().get("/api/cluster/status").expect(200).json();
            let workers = status["workers"].as_array().expect("a list of workers");
            let told: Vec<_> = workers.iter().map(|worker| &worker["state"]).collect();
            assert_eq!(told, ["ready", "ready"], "{status}");
            assert_eq!(status["primary"]["pid"], server.pid());
        }
    }
}

#[test]
fn a_restart_finds_the_data_and_serves_it_from_each_worker() {
    let place = Place::new();
    let mut server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/city", "{}").expect(200);
    client
        .put(
            "/api/default/types/city/lodz",
            r#"{"value":{"name":"Łódź"}}"#,
        )
        .expect(201);
    server.stop();

    let server = Launch::at(&place.root()).start();
    for mut client in server.client_per_worker(2) {
        let answer = client.get("/api/default/types/city/lodz").expect(200);
        assert!(answer.text().contains(r#"{"name":"Łódź"}"#), "{answer:?}");
    }
}

#[test]
fn several_addresses_and_a_unix_socket_are_served_alike() {
    let place = Place::new();
    let socket = place.path("socket");
    let mut server = Launch::at(&place.root())
        .listen("127.0.0.1:0")
        .listen("127.0.0.1:0")
        .listen(format!("unix:{}", socket.display()))
        .start();
    assert_eq!(server.addresses().len(), 3, "{:?}", server.addresses());
    for address in server.addresses() {
        for _ in 0..10 {
            okdb_tests::http::Client::fresh(address)
                .get("/healthz")
                .expect(200);
        }
    }
    server.stop();
    assert!(!socket.exists(), "a clean stop leaves its socket behind");
}

#[test]
fn a_unix_socket_left_by_a_crash_does_not_block_the_next_start() {
    let place = Place::new();
    let socket = place.path("socket");
    let listen = format!("unix:{}", socket.display());
    let mut server = Launch::at(&place.root()).listen(listen.clone()).start();
    server.kill_all();
    assert!(socket.exists(), "a killed server cannot tidy up");
    let server = Launch::at(&place.root()).listen(listen).start();
    server.fresh().get("/healthz").expect(200);
}
