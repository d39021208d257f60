//! Idle connections give back what they hold, and nobody can tell.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use crate::server::{Server, Setup};

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n";

/// A server whose patience with a body that stops coming outlasts the time after which idle connections are parked.
fn server() -> Server {
    let mut setup = Setup::default();
    setup.limits.body_timeout_ms = 1_800;
    Server::with(setup)
}

/// Waits until what was idle has been parked: a sweep or two have seen to it when this wait ends.
fn wait_until_parked(server: &Server) {
    let mut half = server.client();
    half.raw(b"POST /api/envs HTTP/1.1\r\nhost: t\r\ncontent-length: 9\r\n\r\n{")
        .unwrap();
    half.read().unwrap().refused(408, "REQUEST_TIMEOUT");
}

#[test]
fn a_parked_connection_answers_as_ever() {
    let server = server();
    let mut clients: Vec<_> = (0..4).map(|_| server.client()).collect();
    for client in &mut clients {
        client.get("/healthz").expect(200);
    }
    for _ in 0..2 {
        wait_until_parked(&server);
        let [whole, pieces, several, leaving] = clients.as_mut_slice() else {
            panic!("there are four");
        };
        whole.get("/healthz").expect(200);
        for byte in HEALTH.as_bytes() {
            pieces.raw(&[*byte]).unwrap();
        }
        pieces.read().unwrap().expect(200);
        several.raw(HEALTH.repeat(3).as_bytes()).unwrap();
        for _ in 0..3 {
            several.read().unwrap().expect(200);
        }
        leaving.close();
    }
    // What looks like HTTP/2 begins with the connection, and nowhere else.
    let mut client = clients.remove(0);
    wait_until_parked(&server);
    client
        .raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let rest = client.rest();
    assert!(
        rest.is_empty() || rest.starts_with(b"HTTP/1.1 4"),
        "{}",
        String::from_utf8_lossy(&rest)
    );
}

#[test]
fn a_head_that_came_with_the_request_before_it_is_not_lost() {
    let server = server();
    let mut client = server.client();
    let (begin, rest) = HEALTH.split_at(9);
    client.raw(format!("{HEALTH}{begin}").as_bytes()).unwrap();
    client.read().unwrap().expect(200);
    wait_until_parked(&server);
    client.raw(rest.as_bytes()).unwrap();
    client.read().unwrap().expect(200);
}

#[test]
fn a_body_that_is_not_wanted_is_never_taken_for_a_request() {
    let server = server();
    let length = 3 * HEALTH.len() + 10;
    // Refused at once; the rest of the body follows when the connection has been idle for long.
    let mut streams = ["", "connection: close\r\n"].map(|header| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let head = format!("PUT /nowhere HTTP/1.1\r\nhost: t\r\n{header}content-length: {length}");
        stream
            .write_all(format!("{head}\r\n\r\n{HEALTH}").as_bytes())
            .unwrap();
        stream
    });
    wait_until_parked(&server);
    for stream in &mut streams {
        // The server may have given up on it.
        let _ = stream.write_all(HEALTH.repeat(2).as_bytes());
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers);
        let answers = String::from_utf8_lossy(&answers);
        assert!(answers.starts_with("HTTP/1.1 404 "), "{answers}");
        assert_eq!(answers.matches("HTTP/1.1").count(), 1, "{answers}");
    }
}
