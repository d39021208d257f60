//! Clients that hold on: none of them keeps a stop beyond its grace, and what
//! was asked before the stop is answered.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use okdb_tests::data;
use okdb_tests::http::Client;
use okdb_tests::process::Signal;
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::wait::{SOON, wait_until};

/// More than the buffers between server and client can swallow.
const LARGE_BYTES: usize = 12 * 1024 * 1024;

fn prepared(place: &Place) -> Server {
    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    let large = format!(r#"{{"value":"{}"}}"#, "x".repeat(LARGE_BYTES));
    client.put("/api/default/types/t/large", &large).expect(201);
    server
}

fn connected(server: &Server) -> Client {
    let mut client = server.client();
    client.connect().expect("the server accepts");
    client
}

#[test]
fn held_connections_do_not_hold_the_stop() {
    let place = Place::new();
    let mut server = prepared(&place);
    let send = |client: &mut Client, bytes: &[u8]| {
        client.send_raw(bytes).expect("the server reads");
    };

    let mut held = Vec::new();
    for _ in 0..4 {
        let silent = connected(&server);
        let mut half_line = connected(&server);
        send(&mut half_line, b"GET /api/defau");
        let mut half_head = connected(&server);
        send(&mut half_head, b"GET /healthz HTTP/1.1\r\nhost: x\r\n");
        let mut half_body = connected(&server);
        send(
            &mut half_body,
            b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"va",
        );
        let mut idle = connected(&server);
        idle.get("/healthz").expect(200);
        let mut unread = connected(&server);
        send(
            &mut unread,
            b"GET /api/default/types/t/large HTTP/1.1\r\nhost: x\r\n\r\n",
        );
        let mut unread_export = connected(&server);
        send(
            &mut unread_export,
            b"GET /api/default/export/t HTTP/1.1\r\nhost: x\r\n\r\n",
        );
        held.extend([
            silent,
            half_line,
            half_head,
            half_body,
            idle,
            unread,
            unread_export,
        ]);
    }
    let mut trickle = connected(&server);
    send(
        &mut trickle,
        b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n",
    );
    let (stop, stopped) = mpsc::channel::<()>();
    let trickling = thread::spawn(move || {
        // One byte now and then, so that no idle limit ever ends it.
        while stopped.recv_timeout(Duration::from_millis(50)).is_err()
            && trickle.send_raw(b" ").is_ok()
        {}
    });

    server.stop();
    drop(stop);
    trickling.join().expect("the trickling client ends");
    drop(held);

    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client
        .get("/api/default/types/t/k")
        .expect_error(404, "NOT_FOUND");
}

#[test]
fn a_write_in_flight_is_answered_and_durable() {
    let place = Place::new();
    let mut server = prepared(&place);
    let lines = data::lines((0..20_000).map(|number| (format!("k{number}"), number.to_string())));
    let mut client = connected(&server);
    let head = format!(
        "POST /api/default/import/t HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\ncontent-length: {}\r\n\r\n",
        lines.len()
    );
    client.send_raw(head.as_bytes()).expect("the server reads");
    client.send_raw(lines.as_bytes()).expect("the server reads");
    // It has begun, and is not done: a first chunk is there.
    let mut watch = server.client();
    wait_until("the first chunk", SOON, || {
        watch.get("/api/default/types/t/k0").status == 200
    });
    server.signal(Signal::SIGTERM);
    let answer = client.receive(false).expect("it was asked before the stop");
    let answer = answer.expect(200).json();
    assert_eq!(answer["imported"], 20_000, "{answer}");
    drop(watch);
    server.expect_clean_exit();

    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    let counted = client.post("/api/default/types/t/count", "{}").expect(200);
    assert_eq!(counted.json()["count"], 20_001);
    client.get("/api/default/types/t/k19999").expect(200);
}

#[test]
fn a_kept_connection_is_told_to_close_before_it_is_closed() {
    let place = Place::new();
    let mut server = prepared(&place);
    let mut clients = server.client_per_worker(2);
    // A request that is still running keeps the drain open.
    let mut slow = connected(&server);
    slow.send_raw(
        b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: x\r\ncontent-length: 11\r\n\r\n{\"value\"",
    )
    .expect("the server reads");
    server.signal(Signal::SIGTERM);
    for client in &mut clients {
        // The first answers may be from before the worker has heard of the stop.
        wait_until("an answer that says close", SOON, || {
            let answer = client.call("GET", "/api/default/types/t/large", &[], None);
            let answer = answer.expect("closed without a word");
            assert!(matches!(answer.status, 200 | 503), "{}", answer.status);
            answer.header("connection") == Some("close")
        });
    }
    slow.send_raw(b":1}").expect("the server reads");
    slow.receive(false).expect("an answer").expect(201);
    server.expect_clean_exit();
}
