//! A stop: what was accepted is answered, and nothing half-sent holds it up.

use std::{
    io::Read as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    client::Client,
    server::{Server, Setup},
};

/// A server that lingers long enough for a test to get its word in.
fn patient() -> Server {
    Server::with(Setup {
        drain: Duration::from_secs(10),
        ..Setup::default()
    })
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
    let mut server = Server::start();
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
fn whatever_holds_on_is_gone_by_the_deadline_and_a_write_gets_its_answer() {
    let mut server = Server::with(Setup {
        hold_to_it: true,
        drain: Duration::from_secs(3),
        ..Setup::default()
    });
    let mut client = server.client();
    client
        .post("/api/default/types", "{\"name\":\"t\"}")
        .expect(201);
    let large = format!("\"{}\"", "x".repeat(15_000_000));
    for key in ["a", "b", "c", "d"] {
        client.store(key, &large);
    }
    let mut silent = server.client();
    silent.open();
    let send = |bytes: &str| {
        let mut client = server.client();
        client.raw(bytes.as_bytes()).unwrap();
        client
    };
    let path = "/api/default/types/t";
    let put = |key: &str, length: usize| {
        format!("PUT {path}/{key} HTTP/1.1\r\nhost: t\r\ncontent-length: {length}\r\n\r\n{{\"val")
    };
    let mut half_line = send("GET /heal");
    let mut trickling = send(&put("trickled", 1_000));
    let mut half_preface = send("PRI * HTT");
    let mut unread = send(&format!("GET {path}/a HTTP/1.1\r\nhost: t\r\n\r\n").repeat(4));
    let mut export = send("GET /api/default/export/t HTTP/1.1\r\nhost: t\r\n\r\n");
    let mut began = [0; 15];
    for client in [&mut unread, &mut export] {
        client.open().read_exact(&mut began).unwrap();
        assert_eq!(&began, b"HTTP/1.1 200 OK");
    }
    let mut write = send(&put("written", 11));
    // Six requests of the preparation, and those above but for the ones that are none.
    while server.counts.started.load(Ordering::SeqCst) < 5 + 4 {
        std::thread::yield_now();
    }
    server.begin_stop();
    trickling.raw(b"u").unwrap();
    write.raw(b"ue\":1}").unwrap();
    let written = write.read().unwrap().expect(201);
    assert_eq!(written.header("connection"), Some("close"));
    let last = client.get(&format!("{path}/written")).expect(200);
    assert_eq!(last.header("connection"), Some("close"));
    server.join();
    for client in [&mut silent, &mut half_line, &mut half_preface] {
        let rest = client.rest();
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408 "));
    }
    // What was cut off must not look complete.
    assert!(!export.rest().ends_with(b"\r\n0\r\n\r\n"));
    assert!(!trickling.rest().starts_with(b"HTTP/1.1 2"));
}

#[test]
fn clients_that_keep_asking_see_no_end_but_the_announced_one() {
    let mut server = Server::with(Setup {
        drain: Duration::from_secs(30),
        ..Setup::default()
    });
    let address = server.address;
    let stopped = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..32_u64)
        .map(|number| {
            let stopped = Arc::clone(&stopped);
            std::thread::spawn(move || {
                let mut client = Client::new(address);
                let mut told = false;
                while !told {
                    // None of these asks twice: an answer that does not come is a failure.
                    let answer = client.get("/healthz").expect(200);
                    told = answer.header("connection") == Some("close");
                    assert!(!told || stopped.load(Ordering::SeqCst));
                    std::thread::sleep(Duration::from_millis(number));
                }
            })
        })
        .collect();
    // Each has its connection by then: a new one is not promised after that.
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    while count(&server.counts.opened) < 32 || count(&server.counts.finished) < 200 {
        std::thread::yield_now();
    }
    stopped.store(true, Ordering::SeqCst);
    server.begin_stop();
    for client in clients {
        client.join().unwrap();
    }
    server.join();
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
