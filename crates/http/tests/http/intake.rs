//! Listeners that come and go while a server serves.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use okdb_http::{Intake, Listener};

use crate::server::Server;

const PATIENCE: Duration = Duration::from_secs(60);

/// Another slot's listener, of which the test keeps a duplicate, as a primary does.
fn orphan() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn adopt(server: &Server, slot: u16, listener: &TcpListener) {
    let listeners = vec![Listener::Tcp(listener.try_clone().unwrap())];
    server
        .intake
        .send(Intake::Adopt { slot, listeners })
        .unwrap();
}

fn ask(client: &mut TcpStream) -> String {
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

fn answered(address: SocketAddr) {
    let answer = ask(&mut TcpStream::connect(address).unwrap());
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn what_waits_at_an_adopted_listener_is_answered() {
    let server = Server::start();
    let (listener, address) = orphan();
    let mut early = TcpStream::connect(address).unwrap();
    adopt(&server, 3, &listener);
    assert!(ask(&mut early).starts_with("HTTP/1.1 200 "));
    // A second time has no effect.
    adopt(&server, 3, &listener);
    answered(address);
}

#[test]
fn what_was_accepted_is_served_after_the_release_and_the_rest_is_left_to_others() {
    let server = Server::start();
    let (listener, address) = orphan();
    adopt(&server, 3, &listener);
    answered(address);
    let mut kept = TcpStream::connect(address).unwrap();
    kept.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    kept.write_all(request).unwrap();
    let mut byte = [0; 1];
    kept.read_exact(&mut byte).unwrap();
    server.intake.send(Intake::Release { slot: 3 }).unwrap();
    // Adopting another slot is carried out after the release, so once it answers the first one is let go of.
    let (other, other_address) = orphan();
    adopt(&server, 4, &other);
    answered(other_address);
    // The connection lives on, and says so twice.
    let answers = ask(&mut kept);
    assert_eq!(answers.matches("200 OK").count(), 2, "{answers}");
    // A new one waits for whoever accepts now: here, the test.
    let late = TcpStream::connect(address).unwrap();
    let (_, from) = listener.accept().unwrap();
    assert_eq!(from, late.local_addr().unwrap());
}

#[test]
fn releasing_what_was_never_adopted_does_nothing() {
    let server = Server::start();
    server.intake.send(Intake::Release { slot: 9 }).unwrap();
    let (listener, address) = orphan();
    adopt(&server, 9, &listener);
    answered(address);
}

#[test]
fn several_servers_accept_from_one_listener() {
    let (first, second) = (Server::start(), Server::start());
    let (listener, address) = orphan();
    adopt(&first, 1, &listener);
    adopt(&second, 1, &listener);
    for _ in 0..50 {
        answered(address);
    }
    drop(first);
    for _ in 0..10 {
        answered(address);
    }
}
