//! Whole packets into and out of a socket, without ever waiting.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use okdb_sys::passing;

use crate::wire::{PACKET_BYTES_MAX, WireError};

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The message cannot be sent to anybody. The connection is as it was.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The other side has closed the connection, or has died.
    #[error("the other side is gone")]
    Closed,
    /// The other side has not taken anything for so long that the queue is full. What it was not told
    /// must not be left out, so the connection is of no more use.
    #[error("the other side does not read what it is told")]
    Backlog,
    /// The socket failed.
    #[error("the supervision socket failed: {0}")]
    Io(#[source] io::Error),
}

impl SendError {
    pub(crate) fn from_io(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::NotConnected => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The socket has it.
    Taken,
    /// The socket is full; it becomes writable when it no longer is.
    Full,
    /// The system is short of something else, and nothing tells when it no longer is: of memory, or of the number of
    /// descriptors that one user may have on their way.
    Short,
}

/// Sends one packet, with duplicates of `descriptors`.
pub(crate) fn try_send(
    socket: impl AsFd,
    packet: &[u8],
    descriptors: &[OwnedFd],
) -> Result<Sent, SendError> {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    loop {
        let sent = if descriptors.is_empty() {
            send(socket.as_fd().as_raw_fd(), packet, flags).map_err(io::Error::from)
        } else {
            passing::send(socket.as_fd(), packet, descriptors)
        };
        let Err(error) = sent else {
            return Ok(Sent::Taken);
        };
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EINTR) => {}
            Some(Errno::EAGAIN) => return Ok(Sent::Full),
            Some(Errno::ENOBUFS | Errno::ENOMEM | Errno::ETOOMANYREFS) => return Ok(Sent::Short),
            _ => return Err(SendError::from_io(error)),
        }
    }
}

/// What a socket has to give.
#[derive(Debug)]
pub(crate) enum Received {
    /// A packet of this length lies in the buffer.
    Packet(usize),
    /// Nothing yet.
    Empty,
    /// Nothing any more.
    Closed,
}

/// Room for one packet: a byte more than the largest one has, so that a larger one is noticed.
#[derive(Debug)]
pub(crate) struct Buffer(Box<[u8]>);

impl Buffer {
    pub(crate) fn new() -> Self {
        Self(vec![0; PACKET_BYTES_MAX + 1].into_boxed_slice())
    }

    /// Where a packet goes.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// The packet of `length` bytes that was received last.
    pub(crate) fn packet(&self, length: usize) -> &[u8] {
        self.0.get(..length).unwrap_or_default()
    }
}

/// Receives one packet into `buffer`. (Descriptors that somebody attaches to it are closed by the kernel.)
pub(crate) fn try_receive(socket: impl AsFd, buffer: &mut Buffer) -> io::Result<Received> {
    loop {
        match recv(
            socket.as_fd().as_raw_fd(),
            buffer.space(),
            MsgFlags::MSG_DONTWAIT,
        ) {
            // An empty packet looks like the end; no side sends one. ECONNRESET is an end, too, with packets
            // in the other side's queue that it never read.
            Ok(0) | Err(Errno::ECONNRESET) => return Ok(Received::Closed),
            Ok(length) => return Ok(Received::Packet(length)),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Ok(Received::Empty),
            Err(errno) => return Err(errno.into()),
        }
    }
}
