//! This process's end of the bus: one UDP socket on the loopback address, registered among the peers.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use okdb_shm::{ClaimError, PeerGuard, RowGuard, Segment};
use okdb_sys::process;

use crate::frame::{FRAME_BYTES, Frame, FrameError, Key, SECRET_BYTES};

/// A byte more than a frame, so that a longer datagram is noticed.
const BUFFER_BYTES: usize = FRAME_BYTES + 1;

/// Why this process has no bus.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The socket failed.
    #[error("cannot open a UDP socket on the loopback address: {0}")]
    Socket(#[from] io::Error),
    /// No room among the peers.
    #[error("cannot join the bus: {0}")]
    Peer(#[from] ClaimError),
}

/// Somebody changed something. What is told about it is a hint for logs: while one poke is on its way, the
/// pokes for all other changes are suppressed. So look at *everything* that you follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poke {
    /// Index of an environment that changed.
    pub env: u16,
    /// Its published clock at that moment.
    pub clock: u64,
}

/// What the bus of this process has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams not sent, because the peer has not looked since an earlier one.
    pub suppressed: u64,
    /// Datagrams that the system did not take.
    pub failed: u64,
    /// Valid datagrams received.
    pub received: u64,
    /// Dropped for a wrong length.
    pub dropped_length: u64,
    /// Dropped for an unknown version or kind.
    pub dropped_version: u64,
    /// Dropped because they are another root's.
    pub dropped_root: u64,
    /// Dropped because they do not prove to know the secret.
    pub dropped_mac: u64,
}

impl Counters {
    /// Datagrams received and dropped, for whatever reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped_length + self.dropped_version + self.dropped_root + self.dropped_mac
    }
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    suppressed: AtomicU64,
    failed: AtomicU64,
    received: AtomicU64,
    dropped_length: AtomicU64,
    dropped_version: AtomicU64,
    dropped_root: AtomicU64,
    dropped_mac: AtomicU64,
}

/// This process on the bus, until it is dropped. Any thread may poke; one thread or task receives.
#[derive(Debug)]
pub struct Bus {
    segment: Arc<Segment>,
    peer: PeerGuard,
    socket: UdpSocket,
    port: u16,
    key: Key,
    counts: Counts,
    /// What [`Bus::report`] has told already.
    reported: Mutex<Counters>,
}

impl Bus {
    /// Joins the bus of the segment's root as `identity`, which is this process. Look at what you follow
    /// once after this: earlier changes were not poked here.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        segment: Arc<Segment>,
        identity: process::Identity,
        secret: [u8; SECRET_BYTES],
    ) -> Result<Self, OpenError> {
        // Nobody but this host can reach the loopback address.
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let port = socket.local_addr()?.port();
        let key = Key::new(segment.identity().root, secret);
        let peer = segment.register_peer(port, identity)?;
        Ok(Self {
            segment,
            peer,
            socket,
            port,
            key,
            counts: Counts::default(),
            reported: Mutex::default(),
        })
    }

    /// The port of its socket.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Pokes every other process, after `clock` of `env` was published: at most one datagram to each, none
    /// to those that have not looked since their last one. Never waits, never fails: who is not reached
    /// finds out on its own tick.
    pub fn poke(&self, env: u16, clock: u64) {
        let mut frame = None;
        let poked = self.segment.poke_peers(&self.peer, |port| {
            // Made when the first peer needs it: under load, most pokes are suppressed.
            let frame = frame.get_or_insert_with(|| Frame { env, clock }.encode(&self.key));
            self.socket
                .send_to(&*frame, (Ipv4Addr::LOCALHOST, port))
                .is_ok()
        });
        add(&self.counts.sent, poked.sent);
        add(&self.counts.suppressed, poked.suppressed);
        add(&self.counts.failed, poked.failed);
    }

    /// Lets the next poke come even if the last one was lost. Call it at each tick, *before* looking.
    /// (Receiving does it by itself.)
    pub fn rearm(&self) {
        self.peer.rearm();
    }

    /// Waits for a poke, for `timeout` at most: the tick of a thread. Whatever it returns, look then.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn wait(&self, timeout: Duration) -> io::Result<Option<Poke>> {
        let deadline = Instant::now().checked_add(timeout);
        let mut buffer = [0; BUFFER_BYTES];
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(length) => {
                    if let Some(poke) = self.accept(&buffer, length) {
                        return Ok(Some(poke));
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => self.wait_readable(deadline)?,
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
            // Looked at after each datagram, too: noise must not keep the tick away.
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.rearm();
                return Ok(None);
            }
        }
    }

    /// Reception for an event loop. Must be called within a runtime that drives I/O.
    ///
    /// # Errors
    /// What the system reports as the socket is duplicated and registered.
    pub fn listen(self: &Arc<Self>) -> io::Result<Listener> {
        let socket = tokio::net::UdpSocket::from_std(self.socket.try_clone()?)?;
        Ok(Listener {
            bus: Arc::clone(self),
            socket,
        })
    }

    /// What it has done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counters {
            sent: read(&self.counts.sent),
            suppressed: read(&self.counts.suppressed),
            failed: read(&self.counts.failed),
            received: read(&self.counts.received),
            dropped_length: read(&self.counts.dropped_length),
            dropped_version: read(&self.counts.dropped_version),
            dropped_root: read(&self.counts.dropped_root),
            dropped_mac: read(&self.counts.dropped_mac),
        }
    }

    /// Adds what it has done since the last call to this process's row of the scoreboard. Cheap; call it on a tick.
    pub fn report(&self, row: &RowGuard) {
        let mut before = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.counters();
        row.record_bus(
            now.sent.saturating_sub(before.sent),
            now.suppressed.saturating_sub(before.suppressed),
            now.received.saturating_sub(before.received),
            now.dropped().saturating_sub(before.dropped()),
        );
        *before = now;
    }

    /// Until the deadline at most; returns early at will.
    fn wait_readable(&self, deadline: Option<Instant>) -> io::Result<()> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Rounded up, so that the last wait does not spin through a fraction of a millisecond.
        let timeout = left.map_or(PollTimeout::NONE, |left| {
            i32::try_from(left.as_millis().saturating_add(1))
                .ok()
                .and_then(|millis| PollTimeout::try_from(millis).ok())
                .unwrap_or(PollTimeout::MAX)
        });
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Checks and counts a datagram. For a valid one the flag is cleared here, before anybody looks.
    fn accept(&self, buffer: &[u8; BUFFER_BYTES], length: usize) -> Option<Poke> {
        let bytes = buffer.get(..length).unwrap_or_default();
        let (count, poke) = match Frame::decode(bytes, &self.key) {
            Ok(Frame { env, clock }) => {
                self.peer.rearm();
                (&self.counts.received, Some(Poke { env, clock }))
            }
            Err(FrameError::Length) => (&self.counts.dropped_length, None),
            Err(FrameError::Version(_) | FrameError::Kind(_)) => {
                (&self.counts.dropped_version, None)
            }
            Err(FrameError::Root) => (&self.counts.dropped_root, None),
            Err(FrameError::Mac) => (&self.counts.dropped_mac, None),
        };
        count.fetch_add(1, Ordering::Relaxed);
        poke
    }
}

fn add(count: &AtomicU64, more: usize) {
    count.fetch_add(u64::try_from(more).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Reception of pokes in an event loop.
#[derive(Debug)]
pub struct Listener {
    bus: Arc<Bus>,
    socket: tokio::net::UdpSocket,
}

impl Listener {
    /// The next poke. May be given up at any point; beside it, keep a tick that calls [`Bus::rearm`].
    ///
    /// # Errors
    /// When the socket fails.
    pub async fn next(&self) -> io::Result<Poke> {
        let mut buffer = [0; BUFFER_BYTES];
        loop {
            let length = self.socket.recv(&mut buffer).await?;
            if let Some(poke) = self.bus.accept(&buffer, length) {
                return Ok(poke);
            }
        }
    }

    /// The bus that it listens to.
    #[must_use]
    pub fn bus(&self) -> &Arc<Bus> {
        &self.bus
    }
}

#[cfg(test)]
#[path = "bus/tests.rs"]
mod tests;
