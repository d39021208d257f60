//! The primary's end of a worker's supervision socket, for a `poll(2)` loop that must never wait.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use okdb_sys::passing::DESCRIPTORS_MAX;
use serde::{Deserialize, Serialize};

use crate::message::{ToPrimary, ToWorker};
use crate::socket::{Buffer, Received, SendError, Sent, try_receive, try_send};
use crate::wire::{Decoder, Side, WireError, encode, greeting};

/// Messages that may wait for a worker which does not read, beside one snapshot and one message about each slot.
pub const CONTROL_QUEUE_MAX: usize = 64;

/// Packets taken in one turn: a worker that talks without end must not keep the loop from the others.
const TURN_PACKETS_MAX: usize = 64;

/// A new socket pair: the primary's end, and the worker's, to be passed to it as it is started and dropped
/// here after that. Both are close-on-exec.
///
/// # Errors
/// What `socketpair` reports.
pub fn pair() -> io::Result<(Peer, OwnedFd)> {
    // Packets, not a stream: a worker that dies in the middle of a message leaves no half of one.
    let (ours, theirs) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?;
    Ok((Peer::new(ours), theirs))
}

/// A worker, as the primary talks to it.
#[derive(Debug)]
pub struct Peer {
    socket: OwnedFd,
    decoder: Decoder<ToPrimary>,
    queue: VecDeque<Outgoing>,
    buffer: Buffer,
    /// Whether the system was short of something when it should send last. It is tried again with the next message or
    /// sign of life: being writable says nothing about it, and a loop that asks for that would spin.
    short: bool,
}

/// What another program in this process needs to go on with a peer.
#[derive(Debug, Serialize, Deserialize)]
pub struct PeerState {
    decoder: Decoder<ToPrimary>,
    /// Packets that are owed: the rest of a message that was begun, and messages that must not be left out.
    packets: Vec<Vec<u8>>,
}

/// A message on its way.
#[derive(Debug)]
struct Outgoing {
    packets: VecDeque<Vec<u8>>,
    /// What goes with the first packet.
    descriptors: Vec<OwnedFd>,
    subject: Subject,
    /// Whether part of it was sent, so that the rest must follow.
    begun: bool,
}

/// What a message is about. Of those about one thing, only the latest matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// Each matters.
    Control,
    /// The cluster.
    Snapshot,
    /// Who answers for this slot.
    Slot(u16),
}

impl Subject {
    fn of(message: &ToWorker) -> Self {
        match message {
            ToWorker::Config(_) | ToWorker::Drain { .. } => Self::Control,
            ToWorker::Snapshot(_) => Self::Snapshot,
            ToWorker::Adopt { slot } | ToWorker::Release { slot } => Self::Slot(*slot),
        }
    }
}

impl Outgoing {
    fn control(packets: VecDeque<Vec<u8>>) -> Self {
        Self {
            packets,
            descriptors: Vec::new(),
            subject: Subject::Control,
            begun: false,
        }
    }

    /// Whether it must be sent, whatever is said after it.
    fn is_owed(&self) -> bool {
        self.begun || self.subject == Subject::Control
    }
}

impl Peer {
    fn new(socket: OwnedFd) -> Self {
        let greeting = Outgoing::control(VecDeque::from([greeting(Side::Primary)]));
        Self {
            socket,
            decoder: Decoder::new(Side::Worker),
            queue: VecDeque::from([greeting]),
            buffer: Buffer::new(),
            short: false,
        }
    }

    /// Takes in what has arrived, up to a bound: the socket stays readable if there is more. The second
    /// value is false when nothing can follow: the worker is gone, or what it says is not understood.
    pub fn on_readable(&mut self) -> (Vec<ToPrimary>, bool) {
        let mut messages = Vec::new();
        for _ in 0..TURN_PACKETS_MAX {
            let length = match try_receive(&self.socket, &mut self.buffer) {
                Ok(Received::Packet(length)) => length,
                Ok(Received::Empty) => break,
                Ok(Received::Closed) => return (messages, false),
                Err(error) => {
                    tracing::warn!(%error, "a worker's supervision socket failed");
                    return (messages, false);
                }
            };
            self.short = false;
            let packet = self.buffer.packet(length);
            match self.decoder.push(packet) {
                Ok(message) => messages.extend(message),
                Err(error) => {
                    tracing::warn!(%error, "a worker does not speak the supervision protocol");
                    return (messages, false);
                }
            }
        }
        (messages, true)
    }

    /// Queues a message and sends what the socket takes. A snapshot replaces the one that still waits; anything
    /// else is sent in order, and nothing is left out.
    ///
    /// # Errors
    /// All but [`SendError::Wire`] mean that the connection is of no more use.
    pub fn send(&mut self, message: &ToWorker) -> Result<(), SendError> {
        self.send_with(message, Vec::new())
    }

    /// The same for a message that brings descriptors, [`DESCRIPTORS_MAX`] at most. They are closed here once
    /// they are on their way. Adopt and Release replace what still waits about the same slot, so that of a worker which
    /// is told of many changes while it does not read, no more than one message a slot is kept.
    ///
    /// # Errors
    /// As [`Peer::send`].
    pub fn send_with(
        &mut self,
        message: &ToWorker,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), SendError> {
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(WireError::TooLarge.into());
        }
        let outgoing = Outgoing {
            packets: encode(message)?.into(),
            descriptors,
            subject: Subject::of(message),
            begun: false,
        };
        if outgoing.subject == Subject::Control {
            let waiting = self.queue.iter().filter(|waiting| waiting.is_owed());
            if waiting.count() >= CONTROL_QUEUE_MAX {
                return Err(SendError::Backlog);
            }
        } else {
            self.queue
                .retain(|waiting| waiting.is_owed() || waiting.subject != outgoing.subject);
        }
        self.queue.push_back(outgoing);
        self.on_writable()
    }

    /// Sends what the socket takes.
    ///
    /// # Errors
    /// Any means that the connection is of no more use.
    pub fn on_writable(&mut self) -> Result<(), SendError> {
        self.short = false;
        while let Some(outgoing) = self.queue.front_mut() {
            let Some(packet) = outgoing.packets.front() else {
                self.queue.pop_front();
                continue;
            };
            match try_send(&self.socket, packet, &outgoing.descriptors)? {
                Sent::Taken => {}
                Sent::Full => break,
                Sent::Short => {
                    self.short = true;
                    break;
                }
            }
            outgoing.packets.pop_front();
            outgoing.descriptors.clear();
            outgoing.begun = true;
        }
        Ok(())
    }

    /// What the program that this process becomes needs to go on with this worker, beside the socket's descriptor.
    /// Snapshots, and which slots to answer for, are left out as far as they have not been sent: it says them anew.
    #[must_use]
    pub fn state(&self) -> PeerState {
        let owed = self.queue.iter().filter(|outgoing| outgoing.is_owed());
        PeerState {
            decoder: self.decoder.clone(),
            packets: owed
                .flat_map(|outgoing| outgoing.packets.iter().cloned())
                .collect(),
        }
    }

    /// Goes on with a worker on the socket that [`Peer::state`] was about.
    #[must_use]
    pub fn resume(socket: OwnedFd, state: PeerState) -> Self {
        let mut queue = VecDeque::new();
        if !state.packets.is_empty() {
            queue.push_back(Outgoing::control(state.packets.into()));
        }
        Self {
            socket,
            decoder: state.decoder,
            queue,
            buffer: Buffer::new(),
            short: false,
        }
    }

    /// Whether [`Self::on_writable`] has something to send once the socket is writable.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        !self.short && !self.queue.is_empty()
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
#[path = "peer/tests.rs"]
mod tests;
