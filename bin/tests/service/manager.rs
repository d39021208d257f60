//! What a service manager sends and is sent.

use std::{
    net::TcpListener,
    os::{
        fd::OwnedFd,
        unix::{fs::MetadataExt, net::UnixDatagram},
    },
    process::{Command, Stdio},
};

use okdb_sys::Signal;
use tempfile::TempDir;

use super::server::{PATIENCE, Server, get, okdb, prepare, ready, rest, until};

fn notify_socket(folder: &TempDir) -> UnixDatagram {
    let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn heard(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

/// Passes over pings and status lines until what begins like this.
fn hear(socket: &UnixDatagram, beginning: &str) -> String {
    loop {
        let message = heard(socket);
        if message.starts_with(beginning) {
            return message;
        }
        assert!(
            message.starts_with("STATUS=") || message.starts_with("WATCHDOG="),
            "{message} before {beginning}"
        );
    }
}

fn a_life(workers: &str) {
    let folder = tempfile::tempdir().unwrap();
    let socket = notify_socket(&folder);
    let mut command = okdb(&folder);
    command
        .args(["--workers", workers, "--listen", "127.0.0.1:0"])
        .env("NOTIFY_SOCKET", folder.path().join("notify"))
        .env("WATCHDOG_USEC", "300000");
    let (mut server, mut log) = Server::piped(&mut command);
    let (_, address) = ready(&mut log);
    let status = hear(&socket, "READY=1\n");
    assert!(status.contains("STATUS="), "{status}");
    assert_eq!(get(address, "/healthz"), "200");
    hear(&socket, "WATCHDOG=1");
    for _ in 0..2 {
        server.signal(Signal::Hup);
        let reloading = hear(&socket, "RELOADING=1\n");
        assert!(reloading.contains("\nMONOTONIC_USEC="), "{reloading}");
        hear(&socket, "READY=1\n");
        assert_eq!(get(address, "/healthz"), "200");
    }
    server.signal(Signal::Term);
    hear(&socket, "STOPPING=1\n");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_manager_hears_of_the_life_of_a_cluster() {
    a_life("2");
}

#[test]
fn a_manager_hears_of_the_life_of_a_single_process() {
    a_life("1");
}

#[test]
fn a_watchdog_of_another_process_is_not_ours() {
    let folder = tempfile::tempdir().unwrap();
    let socket = notify_socket(&folder);
    let mut command = okdb(&folder);
    command
        .args(["--workers", "1", "--listen", "127.0.0.1:0"])
        .env("NOTIFY_SOCKET", folder.path().join("notify"))
        .env("WATCHDOG_USEC", "1000")
        .env("WATCHDOG_PID", "1");
    let (mut server, mut log) = Server::piped(&mut command);
    ready(&mut log);
    hear(&socket, "READY=1\n");
    // A thousand pings a second would have come by the end of a stop.
    server.stop();
    socket.set_nonblocking(true).unwrap();
    let mut buffer = [0; 4096];
    while let Ok(length) = socket.recv(&mut buffer) {
        assert!(!buffer[..length].starts_with(b"WATCHDOG"));
    }
}

/// A server to whom a listening socket is passed as a service manager does it: under number 3, with the variables set for
/// its very pid.
fn activated(folder: &TempDir, socket: OwnedFd, arguments: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    prepare(&mut command, folder);
    let program = env!("CARGO_BIN_EXE_okdb");
    command
        .arg("-c")
        .arg(format!(
            "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=http exec {program} {arguments}"
        ))
        .stdin(Stdio::from(socket));
    command
}

#[test]
fn a_passed_socket_takes_the_place_of_the_default_address() {
    for workers in ["1", "3"] {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Two connections that came before anybody served.
        let early: Vec<_> = (0..2)
            .map(|_| std::thread::spawn(move || get(address, "/healthz")))
            .collect();
        let mut command = activated(&folder, listener.into(), &format!("--workers {workers}"));
        let (mut server, mut log) = Server::piped(&mut command);
        // The shell's standard input is ours no longer.
        drop(command);
        assert_eq!(ready(&mut log).1, address);
        for early in early {
            assert_eq!(early.join().unwrap(), "200");
        }
        for _ in 0..10 {
            assert_eq!(get(address, "/healthz"), "200");
        }
        server.signal(Signal::Hup);
        until("the server answers after a reload", || {
            get(address, "/readyz") == "200"
        });
        server.stop();
        let text = rest(&mut log);
        assert!(!text.contains("only a restart"), "{text}");
    }
}

#[test]
fn a_passed_socket_that_cannot_be_served_is_a_usage_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut command = activated(&folder, socket.into(), "");
    let (mut server, mut log) = Server::piped(&mut command);
    assert_eq!(server.wait().code(), Some(2));
    let text = rest(&mut log);
    assert!(
        text.contains("\"http\"") && text.contains("ListenStream="),
        "{text}"
    );
}

#[test]
fn a_journal_gets_a_priority_with_each_line_also_from_workers() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let about = std::fs::File::from(OwnedFd::from(writer.try_clone().unwrap()))
        .metadata()
        .unwrap();
    let mut command = okdb(&folder);
    command
        .args(["--workers", "2", "--listen", "127.0.0.1:0", "--access-log"])
        .env("JOURNAL_STREAM", format!("{}:{}", about.dev(), about.ino()))
        .stderr(Stdio::from(OwnedFd::from(writer)));
    let mut server = Server::spawn(&mut command);
    drop(command);
    let mut log = std::io::BufReader::new(reader);
    let (before, address) = ready(&mut log);
    assert_eq!(get(address, "/healthz"), "200");
    server.stop();
    let after = rest(&mut log);
    let lines = before
        .iter()
        .map(|line| line.trim_end())
        .chain(after.lines());
    let mut of_workers = 0;
    for line in lines {
        if line.starts_with("okdb ready on") {
            continue;
        }
        assert!(
            line.starts_with("<6> INFO ") || line.starts_with("<4> WARN "),
            "{line}"
        );
        of_workers += usize::from(line.contains(" slot="));
    }
    assert!(of_workers > 0, "the request has left a line: {after}");
}

#[test]
fn a_stream_that_is_not_the_journal_gets_none() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = okdb(&folder);
    command
        .args(["--workers", "1", "--listen", "127.0.0.1:0"])
        .env("JOURNAL_STREAM", "1:1");
    let (mut server, mut log) = Server::piped(&mut command);
    ready(&mut log);
    server.signal(Signal::Usr1);
    server.stop();
    let text = rest(&mut log);
    assert!(text.contains("no file to open anew"), "{text}");
    assert!(!text.contains("<6>"), "{text}");
}
