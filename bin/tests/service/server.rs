//! One real server in a folder of its own, and the little that is needed to talk to it.

use std::{
    fs::File,
    io::{BufRead, BufReader, ErrorKind, PipeReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::OwnedFd,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use okdb_sys::{Identity, Signal};
use tempfile::TempDir;

/// How long anything may take that is expected to happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How often a condition is looked at.
const STEP: Duration = Duration::from_millis(10);

/// A command that runs `okdb` in `folder`, with a root there and nothing inherited that could change its ways.
pub(super) fn okdb(folder: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_okdb"));
    prepare(&mut command, folder);
    command
}

/// Makes `command` such a one.
pub(super) fn prepare(command: &mut Command, folder: &TempDir) {
    command
        .current_dir(folder.path())
        .env("OKDB_ROOT", folder.path().join("root"))
        .env_remove("OKDB_HTTP_WORKERS")
        .env_remove("OKDB_LOG")
        .env_remove("JOURNAL_STREAM")
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .env_remove("WATCHDOG_PID")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
}

/// A running server; killed on drop.
pub(super) struct Server {
    child: Child,
    identity: Identity,
}

impl Server {
    pub(super) fn spawn(command: &mut Command) -> Self {
        let child = command.spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        Self { child, identity }
    }

    /// One whose standard error is a pipe.
    pub(super) fn piped(command: &mut Command) -> (Self, BufReader<PipeReader>) {
        let (reader, writer) = std::io::pipe().unwrap();
        command.stderr(Stdio::from(OwnedFd::from(writer)));
        let server = Self::spawn(command);
        // Ours would keep the pipe open for good.
        command.stderr(Stdio::null());
        (server, BufReader::new(reader))
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The kernel's letter for what it does.
    pub(super) fn state(&self) -> Option<char> {
        self.identity.state()
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.identity.signal(signal).unwrap();
    }

    /// Waits for its end.
    pub(super) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("the server ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    pub(super) fn stop(&mut self) {
        self.signal(Signal::Term);
        assert_eq!(self.wait().code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until something holds.
pub(super) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "this never happens: {what}");
        std::thread::sleep(STEP);
    }
}

/// The address in the ready line.
pub(super) fn address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("okdb ready on http://")?;
    rest.split([' ', '"']).next()?.parse().ok()
}

/// Reads lines until the ready one; returns all of them and the address.
pub(super) fn ready(log: &mut impl BufRead) -> (Vec<String>, SocketAddr) {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        let length = log.read_line(&mut line).unwrap();
        assert!(length > 0, "it ended before it was ready: {lines:#?}");
        lines.push(line.clone());
        if let Some(address) = address(&line) {
            return (lines, address);
        }
    }
}

/// Reads what is left until the end.
pub(super) fn rest(log: &mut impl Read) -> String {
    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    text
}

/// The status of an answer to one request on a connection of its own.
pub(super) fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: okdb\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{path}: {error}"),
    }
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

/// The whole text of a file, if it is there.
pub(super) fn text(path: &std::path::Path) -> String {
    let mut text = String::new();
    if let Ok(mut file) = File::open(path) {
        file.read_to_string(&mut text).unwrap();
    }
    text
}
