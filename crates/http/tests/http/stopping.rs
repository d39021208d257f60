//! A stop: what was accepted is answered, and nothing half-sent holds it up.

use std::{io::Read as _, sync::atomic::Ordering};

use crate::server::{Server, Setup};

/// A server that lingers long enough for a test to get its word in.
fn patient() -> Server {
    let mut setup = Setup::default();
    setup.limits.linger_ms = 1_000;
    Server::with(setup)
}

#[test]
fn open_connections_are_answered_once_more_and_told_to_close() {
    let mut server = patient();
    let mut kept = server.client();
    kept.get("/healthz").expect(200);
    server.begin_stop();
    loop {
        let answer = kept.get("/readyz");
        if answer.status == 503 {
            assert_eq!(answer.header("connection"), Some("close"));
            assert_eq!(answer.text(), "not ready: this worker is going away\n");
            break;
        }
        answer.expect(200);
    }
    server.join();
}

#[test]
fn a_request_under_way_is_finished() {
    let mut server = patient();
    let mut client = server.client();
    client
        .post("/api/default/types", "{\"name\":\"t\"}")
        .expect(201);
    client
        .raw(b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: t\r\ncontent-length: 11\r\n\r\n{\"val")
        .unwrap();
    while server.counts.started.load(Ordering::SeqCst) < 2 {
        std::thread::yield_now();
    }
    server.begin_stop();
    client.raw(b"ue\":1}").unwrap();
    client.read().unwrap().expect(201);
    server.join();
}

#[test]
fn what_never_comes_is_not_waited_for() {
    let mut setup = Setup::default();
    setup.limits.linger_ms = 100;
    let mut server = Server::with(setup);
    let mut half = server.client();
    half.raw(b"GET /heal").unwrap();
    let mut silent = server.client();
    silent.open();
    let mut idle = server.client();
    idle.get("/healthz").expect(200);
    let mut upload = server.client();
    upload.raw(b"PRI * HTT").unwrap();
    server.join();
    let mut rest = Vec::new();
    let _ = half.open().read_to_end(&mut rest);
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"));
}

#[test]
fn connections_in_the_queue_are_served_before_the_listener_closes() {
    for _ in 0..5 {
        let mut server = patient();
        let mut clients: Vec<_> = (0..30).map(|_| server.client()).collect();
        for client in &mut clients {
            client
                .raw(b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n")
                .unwrap();
        }
        server.begin_stop();
        for client in &mut clients {
            client.read().unwrap().expect(200);
        }
        server.join();
    }
}

#[test]
fn an_http2_peer_is_told_to_leave_and_holds_nothing_up() {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let mut server = patient();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(server.address)
            .await
            .unwrap();
        let handshake =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (send, connection) = handshake.await.unwrap();
        let connection = tokio::spawn(connection);
        assert_eq!(
            crate::protocol::ask(send.clone(), "GET", "/healthz", Vec::new())
                .await
                .0,
            200
        );
        server.begin_stop();
        // The sender is kept: it is the server that ends the connection, and in order.
        connection.await.unwrap().unwrap();
        drop(send);
    });
    server.join();
}
