//! `NOTIFY_SOCKET` and the watchdog: one datagram for each thing that the manager should know.
//!
//! Nothing here waits. A manager whose queue is full gets what changes its view of the service (ready, reloading,
//! stopping) with a later call, in order; pings and status texts are dropped, because the next one says more.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What is kept for a manager that takes nothing; then the oldest goes.
const WAITING_MAX: usize = 8;

/// The longest status text. Bytes.
const STATUS_BYTES_MAX: usize = 512;

/// How many pings there are in one watchdog period: two may come late or get lost.
const PINGS_A_PERIOD: u32 = 3;

/// What a manager is told. Dropping it says nothing: only [`Notifier::ready`] means ready.
#[derive(Debug, Default)]
pub struct Notifier {
    line: Option<Line>,
    watchdog: Option<Duration>,
}

#[derive(Debug)]
struct Line {
    socket: UnixDatagram,
    manager: SocketAddr,
    waiting: Mutex<VecDeque<String>>,
    complained: AtomicBool,
}

/// What became of a datagram.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Done,
    /// The manager's queue is full, or it is being restarted.
    Later,
    Never,
}

impl Notifier {
    /// One that has nobody to tell.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The one that the environment names: `take` looks a variable up, `own_pid` is this process.
    ///
    /// An address that cannot be used is named in the log and counts as none; so does a watchdog that is meant for
    /// another process.
    pub fn from_env(take: impl Fn(&str) -> Option<OsString>, own_pid: u32) -> Self {
        let Some(name) = take("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self::none();
        };
        match Line::new(&name) {
            Ok(line) => Self {
                line: Some(line),
                watchdog: watchdog(take, own_pid),
            },
            Err(error) => {
                tracing::warn!(address = ?name, %error, "NOTIFY_SOCKET cannot be used: the service manager is told nothing");
                Self::none()
            }
        }
    }

    /// Whether there is a manager.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.line.is_some()
    }

    /// From this moment on the service does what it is there for; also the end of a reload, whatever became of it.
    pub fn ready(&self, status: &str) {
        self.state(format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// A reload began at `began`, a time of [`okdb_sys::host::monotonic`]. [`Notifier::ready`] ends it.
    pub fn reloading(&self, began: Duration) {
        self.state(format!(
            "RELOADING=1\nMONOTONIC_USEC={}\nSTATUS=reloading",
            began.as_micros()
        ));
    }

    /// The stop has begun.
    pub fn stopping(&self) {
        self.state("STOPPING=1\nSTATUS=stopping".to_owned());
    }

    /// The phase that the service is in (start, reload or stop) may take so much longer from now on.
    pub fn extend_timeout(&self, by: Duration) {
        self.state(format!("EXTEND_TIMEOUT_USEC={}", by.as_micros()));
    }

    /// One line about how the service is. Control characters become spaces; what is too long is cut.
    pub fn status(&self, text: &str) {
        self.passing(&format!("STATUS={}", one_line(text)));
    }

    /// How often the manager wants to be pinged: a third of what it waits for. `None`: it does not.
    #[must_use]
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.map(|period| period / PINGS_A_PERIOD)
    }

    /// All is well.
    pub fn ping(&self) {
        self.passing("WATCHDOG=1");
    }

    /// Tries again what a full queue has held back; every other call does so as well.
    pub fn retry(&self) {
        if let Some(line) = &self.line {
            line.catch_up(None);
        }
    }

    fn state(&self, message: String) {
        if let Some(line) = &self.line {
            line.catch_up(Some(message));
        }
    }

    /// Something that has no worth later.
    fn passing(&self, message: &str) {
        if let Some(line) = &self.line
            && line.catch_up(None)
        {
            line.send(message);
        }
    }
}

impl Line {
    fn new(name: &OsStr) -> io::Result<Self> {
        let manager = match name.as_bytes().split_first() {
            Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
            Some((b'/', _)) => SocketAddr::from_pathname(name)?,
            _ => {
                let text = "it is neither an absolute path nor an abstract name";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            manager,
            waiting: Mutex::default(),
            complained: AtomicBool::new(false),
        })
    }

    /// Sends what waits and then `last`, as far as the manager takes it; tells whether it took everything.
    fn catch_up(&self, last: Option<String>) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.extend(last);
        while waiting.len() > WAITING_MAX {
            waiting.pop_front();
        }
        while let Some(message) = waiting.front() {
            if self.send(message) == Sent::Later {
                return false;
            }
            waiting.pop_front();
        }
        true
    }

    fn send(&self, message: &str) -> Sent {
        // Each time by its address: a manager that was restarted has made its socket anew.
        let result = self.socket.send_to_addr(message.as_bytes(), &self.manager);
        let Err(error) = result else {
            return Sent::Done;
        };
        if !self.complained.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "the service manager does not take what it is told");
        }
        match error.kind() {
            io::ErrorKind::WouldBlock
            | io::ErrorKind::Interrupted
            | io::ErrorKind::OutOfMemory
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::NotFound => Sent::Later,
            _ if error.raw_os_error() == Some(nix::libc::ENOBUFS) => Sent::Later,
            _ => Sent::Never,
        }
    }
}

/// The watchdog's period, if it is there and meant for this process.
fn watchdog(take: impl Fn(&str) -> Option<OsString>, own_pid: u32) -> Option<Duration> {
    let number = |name: &str| -> Option<Result<u64, OsString>> {
        let value = take(name)?;
        Some(
            value
                .to_str()
                .and_then(|text| text.parse().ok())
                .ok_or(value),
        )
    };
    let micros = match number("WATCHDOG_USEC")? {
        Ok(0) => return None,
        Ok(micros) => micros,
        Err(value) => {
            tracing::warn!(
                ?value,
                "WATCHDOG_USEC is not a number: the service manager is not pinged"
            );
            return None;
        }
    };
    match number("WATCHDOG_PID") {
        Some(Ok(pid)) if pid != u64::from(own_pid) => None,
        Some(Err(_)) => None,
        Some(Ok(_)) | None => Some(Duration::from_micros(micros)),
    }
}

/// A text that cannot pass for another assignment.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(STATUS_BYTES_MAX));
    for character in text.chars() {
        if line.len() + character.len_utf8() > STATUS_BYTES_MAX {
            break;
        }
        line.push(if character.is_control() {
            ' '
        } else {
            character
        });
    }
    line
}

#[cfg(test)]
mod tests;
