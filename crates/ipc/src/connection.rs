//! The worker's end of its supervision socket, for its event loop.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use okdb_sys::passing::{self, DESCRIPTORS_MAX, Packet};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use crate::message::{Incoming, ToPrimary, ToWorker};
use crate::socket::{Buffer, SendError, Sent, try_send};
use crate::wire::{Decoder, Side, WireError, encode, greeting};

/// Why nothing was received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The primary does not speak this worker's protocol.
    #[error("the primary does not speak the supervision protocol: {0}")]
    Wire(#[from] WireError),
    /// The socket failed.
    #[error("the supervision socket failed: {0}")]
    Io(#[from] io::Error),
}

/// The primary, as a worker talks to it.
#[derive(Debug)]
pub struct Connection {
    /// A packet socket, for which there is no type: a datagram one makes the same calls.
    socket: UnixDatagram,
    decoder: Decoder<ToWorker>,
    /// Packets of messages that were accepted, but that the socket has not taken.
    queue: VecDeque<Vec<u8>>,
    buffer: Buffer,
}

impl Connection {
    /// Takes over the inherited socket. Must be called within a runtime that drives I/O.
    ///
    /// # Errors
    /// What the system reports as it is registered.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = std::os::unix::net::UnixDatagram::from(socket);
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: UnixDatagram::from_std(socket)?,
            decoder: Decoder::new(Side::Primary),
            queue: VecDeque::from([greeting(Side::Worker)]),
            buffer: Buffer::new(),
        })
    }

    /// Sends a message, waiting until the socket has taken it. If this is given up half-way, the rest of
    /// the message goes out before the next one.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send(&mut self, message: &ToPrimary) -> Result<(), SendError> {
        self.queue.extend(encode(message)?);
        while let Some(packet) = self.queue.front() {
            self.socket.send(packet).await.map_err(SendError::from_io)?;
            self.queue.pop_front();
        }
        Ok(())
    }

    /// Sends a message unless the socket is full, and tells whether it did: for heartbeats, which a
    /// stopped primary must not turn into a waiting worker, and which are worthless when late.
    ///
    /// # Errors
    /// See [`SendError`].
    pub fn try_send(&mut self, message: &ToPrimary) -> Result<bool, SendError> {
        if !self.flush()? {
            return Ok(false);
        }
        self.queue.extend(encode(message)?);
        // Nothing was waiting, so that a message of which no packet was taken can be taken back whole.
        let whole = self.queue.len();
        if !self.flush()? && self.queue.len() == whole {
            self.queue.clear();
            return Ok(false);
        }
        Ok(true)
    }

    /// The next message, with the descriptors that it brings; `None` when the primary is gone. May be given up
    /// at any point and called again: nothing is lost.
    ///
    /// Listeners to adopt for which this process has no descriptors left are closed again, all of a slot's, and the
    /// message is left out: the other workers have them as well, and who has as many connections as it may have is of no
    /// help anyhow.
    ///
    /// # Errors
    /// See [`ReceiveError`]: after any, the connection is of no more use.
    pub async fn next(&mut self) -> Result<Option<Incoming>, ReceiveError> {
        loop {
            self.socket.readable().await?;
            let Self { socket, buffer, .. } = self;
            let received = socket.try_io(Interest::READABLE, || {
                passing::receive(&*socket, buffer.space())
            });
            let packet = match received {
                Ok(packet) => packet,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => continue,
                    io::ErrorKind::ConnectionReset => return Ok(None),
                    _ => return Err(error.into()),
                },
            };
            // An empty packet looks like the end; no side sends one.
            if packet.length == 0 {
                return Ok(None);
            }
            if let Some(incoming) = self.take_in(packet)? {
                return Ok(Some(incoming));
            }
        }
    }

    /// Checks a packet; what it brings is closed when it may not bring it.
    fn take_in(&mut self, packet: Packet) -> Result<Option<Incoming>, WireError> {
        let Packet {
            length,
            descriptors,
            truncated,
            missing,
        } = packet;
        if truncated || descriptors.len() > DESCRIPTORS_MAX {
            return Err(WireError::Malformed);
        }
        let message = self.decoder.push(self.buffer.packet(length))?;
        // Whole in one packet, so that none can be with another piece of it.
        if let Some(ToWorker::Adopt { slot }) = &message {
            if missing {
                tracing::warn!(
                    slot,
                    "too many open files: not answering for this slot in place of its worker"
                );
                return Ok(None);
            }
        } else if missing || !descriptors.is_empty() {
            return Err(WireError::Malformed);
        }
        Ok(message.map(|message| Incoming {
            message,
            descriptors,
        }))
    }

    /// Sends what the socket takes; tells whether that was everything.
    fn flush(&mut self) -> Result<bool, SendError> {
        while let Some(packet) = self.queue.front() {
            // Not through the runtime, which believes a socket full until it has seen otherwise.
            if try_send(&self.socket, packet, &[])? != Sent::Taken {
                return Ok(false);
            }
            self.queue.pop_front();
        }
        Ok(true)
    }
}
