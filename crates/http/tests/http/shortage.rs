//! Out of descriptors: the server neither spins nor goes deaf, and recovers by itself.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
};

use crate::{
    client::Client,
    server::{Server, Setup},
};

/// Tells a copy of this program that it is to be the server.
const ROLE: &str = "OKDB_HTTP_TEST_SERVER";
/// Descriptors that the server may have.
const DESCRIPTORS: usize = 96;
const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n";
/// More connections than that.
const CROWD: usize = 150;

/// A server in a process of its own, with few descriptors.
struct Poor {
    process: Child,
    address: SocketAddr,
}

impl Poor {
    fn start(test: &str) -> Self {
        let script = format!("ulimit -n {DESCRIPTORS} && exec \"$0\" --exact \"$1\" --nocapture");
        let mut process = Command::new("sh")
            .args(["-c", &script])
            .arg(std::env::current_exe().unwrap())
            .arg(test)
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        // The harness says something of its own first.
        let address = lines
            .find_map(|line| Some(line.unwrap().split_once("address=")?.1.parse().unwrap()))
            .unwrap();
        // It is told the outcome, too, and must not fail for want of a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, address }
    }

    /// Is the server, if this process is to be that: until the other end of its input is closed.
    fn serve_if_asked(limits: impl FnOnce(&mut Setup)) -> bool {
        if std::env::var_os(ROLE).is_none() {
            return false;
        }
        let mut setup = Setup::default();
        limits(&mut setup);
        let server = Server::with(setup);
        println!("\naddress={}", server.address);
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        true
    }

    /// Processor time that it has used, in hundredths of a second.
    fn ticks(&self) -> u64 {
        let path = format!("/proc/{}/stat", self.process.id());
        let stat = std::fs::read_to_string(path).unwrap();
        let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split(' ').collect();
        fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap()
    }

    fn client(&self) -> Client {
        Client::new(self.address)
    }

    fn end(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

/// Whether the server has closed a connection; a reset is a failure.
fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; 1024]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return false;
            }
        }
    }
}

#[test]
fn idle_connections_make_room_for_new_ones() {
    if Poor::serve_if_asked(|_| {}) {
        return;
    }
    let server = Poor::start("shortage::idle_connections_make_room_for_new_ones");
    let mut crowd: Vec<_> = (0..CROWD)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            let mut answer = [0; 15];
            stream.write_all(HEALTH).unwrap();
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200 OK");
            stream
        })
        .collect();
    // Those that had to go were told so, in order; the latest is still served.
    let closed = crowd.iter().filter(|stream| is_closed(stream)).count();
    assert!(closed >= CROWD - DESCRIPTORS, "{closed}");
    let latest = crowd.last_mut().unwrap();
    latest.set_nonblocking(false).unwrap();
    latest.write_all(HEALTH).unwrap();
    latest.read_exact(&mut [0; 15]).unwrap();
    drop(crowd);
    server.end();
}

#[test]
fn clients_are_turned_away_while_nobody_makes_room_and_served_after() {
    if Poor::serve_if_asked(|setup| setup.limits.header_timeout_ms = 600_000) {
        return;
    }
    let server =
        Poor::start("shortage::clients_are_turned_away_while_nobody_makes_room_and_served_after");
    let mut crowd: Vec<_> = (0..CROWD)
        .map(|_| {
            let mut client = server.client();
            client.raw(b"GET /heal").unwrap();
            client
        })
        .collect();
    let ticks = server.ticks();
    let mut late = server.client();
    late.raw(HEALTH).unwrap();
    let refused = late.read().unwrap();
    assert_eq!(refused.status, 503);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.header("connection"), Some("close"));
    // It waited two seconds for a descriptor, and did not spend them asking.
    assert!(server.ticks() - ticks < 50, "the server spins");
    // Those that were accepted in time are none the worse for it.
    let first = crowd.first_mut().unwrap();
    first.raw(b"thz HTTP/1.1\r\nhost: t\r\n\r\n").unwrap();
    first.read().unwrap().expect(200);
    drop(crowd);
    // Once the server has noticed that they are gone, all is as before.
    while server.client().get("/healthz").status != 200 {}
    for _ in 0..DESCRIPTORS {
        server.client().get("/healthz").expect(200);
    }
    server.end();
}
