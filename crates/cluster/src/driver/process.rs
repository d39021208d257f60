//! One worker process as the primary holds it: identity, supervision socket, standard error.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use okdb_ipc::{Peer, SendError, ToPrimary, ToWorker};
use okdb_sys::spawn::Child;
use okdb_sys::{Identity, Signal, reap};
use serde::{Deserialize, Serialize};

use crate::handover::{HandedProcess, take};
use crate::machine::{WorkerExit, WorkerId};
use crate::output::{Copier, Tail};

/// How much is read at a time. Bytes; as much as a pipe holds by default.
const READ_BYTES: usize = 64 * 1_024;
/// How much of a dead worker's output is read at most: a descendant of it may go on writing. Bytes.
const LAST_WORDS_BYTES_MAX: usize = 1_024 * 1_024;

/// How much of the output to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// One piece; there will be another turn.
    Some,
    /// All that is there, and then no more.
    All,
}

/// How far its side of the conversation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Talk {
    /// Nothing said yet.
    Silent,
    /// It has said Hello and got its configuration. Snapshots come after that.
    Greeted,
    /// It has said Ready: it can be given listeners.
    Ready,
    /// It was asked to leave: it is given nothing any more.
    Leaving,
}

#[derive(Debug)]
pub(super) struct Process {
    pub(super) worker: WorkerId,
    pub(super) identity: Identity,
    /// Our end of its supervision socket, until it has closed its own.
    pub(super) peer: Option<Peer>,
    pub(super) talk: Talk,
    /// Our end of its standard error, until it has ended.
    pub(super) stderr: Option<File>,
    pub(super) tail: Tail,
    /// Readable when it has ended, where the kernel can tell.
    pub(super) end: Option<OwnedFd>,
    /// Its supervision socket, kept open for a worker that speaks another version's messages: it is told to leave by a
    /// signal, and must not take us for dead before.
    pub(super) mute: Option<OwnedFd>,
    /// Unix milliseconds.
    pub(super) started_at: u64,
}

impl Process {
    pub(super) fn new(worker: WorkerId, child: Child, peer: Option<Peer>, started_at: u64) -> Self {
        Self {
            worker,
            identity: child.identity,
            peer,
            talk: Talk::Silent,
            stderr: child.stderr.map(File::from),
            tail: Tail::default(),
            end: child.identity.end_descriptor().ok().flatten(),
            mute: None,
            started_at,
        }
    }

    /// What the next program needs to go on with it. Output that has been read and is no whole line yet is lost.
    pub(super) fn hand_over(&self) -> HandedProcess {
        HandedProcess {
            worker: self.worker,
            pid: self.identity.pid,
            start_time: self.identity.start_time,
            started_at: self.started_at,
            talk: self.talk,
            ipc: self
                .peer
                .as_ref()
                .map(|peer| (peer.as_fd().as_raw_fd(), peer.state())),
            stderr: self.stderr.as_ref().map(AsRawFd::as_raw_fd),
            tail: self.tail.lines(),
        }
    }

    /// Goes on with what was handed over; `understood`: whether it speaks our messages.
    pub(super) fn resume(handed: HandedProcess, understood: bool) -> io::Result<Self> {
        let identity = Identity {
            pid: handed.pid,
            start_time: handed.start_time,
        };
        let (peer, mute) = match handed.ipc {
            Some((fd, state)) if understood => (Some(Peer::resume(take(fd)?, state)), None),
            Some((fd, _)) => (None, Some(take(fd)?)),
            None => (None, None),
        };
        Ok(Self {
            worker: handed.worker,
            identity,
            peer,
            talk: handed.talk,
            stderr: handed.stderr.map(take).transpose()?.map(File::from),
            tail: Tail::of(handed.tail),
            end: identity.end_descriptor().ok().flatten(),
            mute,
            started_at: handed.started_at,
        })
    }

    /// The descriptors that have to stay open for it.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let peer = self.peer.as_ref().map(AsFd::as_fd);
        peer.into_iter()
            .chain(self.mute.as_ref().map(AsFd::as_fd))
            .chain(self.stderr.as_ref().map(AsFd::as_fd))
    }

    /// How it ended, once it has.
    pub(super) fn try_wait(&self) -> Option<WorkerExit> {
        match reap::try_wait(self.identity.pid) {
            Ok(None) => None,
            Ok(Some(reap::Exit::Code(code))) => Some(WorkerExit::Code(code)),
            Ok(Some(reap::Exit::Signal { number, core })) => Some(WorkerExit::Signal {
                signal: number,
                core,
            }),
            Err(error) => {
                tracing::error!(pid = self.identity.pid, %error, "cannot learn how a worker ended");
                Some(WorkerExit::Unknown)
            }
        }
    }

    /// Sends `signal`. It is our child and not reaped, so it is there, if only as a zombie.
    pub(super) fn signal(&self, signal: Signal) {
        match self.identity.signal(signal) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(pid = self.identity.pid, %signal, %error, "cannot signal a worker");
            }
            _ => {}
        }
    }

    /// Whether a signal or a tracer has stopped it.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.identity.state(), Some('T' | 't'))
    }
}

impl Process {
    /// Reads its standard error, keeps the last lines and passes everything on.
    pub(super) fn read_stderr(&mut self, reading: Reading, copier: &Copier) {
        let bytes_max = match reading {
            Reading::Some => READ_BYTES,
            Reading::All => LAST_WORDS_BYTES_MAX,
        };
        let mut buffer = vec![0; READ_BYTES];
        let mut total = 0;
        while total < bytes_max
            && let Some(stderr) = &mut self.stderr
        {
            match stderr.read(&mut buffer) {
                Ok(0) => self.stderr = None,
                Ok(count) => {
                    total += count;
                    let piece = self.tail.push(buffer.get(..count).unwrap_or_default());
                    copier.pass_on(piece);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(pid = self.identity.pid, %error, "cannot read a worker's standard error");
                    self.stderr = None;
                }
            }
        }
        if reading == Reading::All || self.stderr.is_none() {
            copier.pass_on(self.tail.end());
        }
    }

    /// Takes in what the worker said.
    pub(super) fn receive(&mut self) -> Vec<ToPrimary> {
        let Some(peer) = &mut self.peer else {
            return Vec::new();
        };
        let (messages, open) = peer.on_readable();
        if !open {
            self.peer = None;
        }
        messages
    }

    /// Queues a message, and sends what the socket takes at once.
    pub(super) fn send(&mut self, message: &ToWorker) {
        self.send_with(message, Vec::new());
    }

    /// The same for a message that brings descriptors.
    pub(super) fn send_with(&mut self, message: &ToWorker, descriptors: Vec<OwnedFd>) {
        let sent = self
            .peer
            .as_mut()
            .map(|peer| peer.send_with(message, descriptors));
        self.check(sent);
    }

    /// The socket takes more.
    pub(super) fn flush(&mut self) {
        let sent = self.peer.as_mut().map(Peer::on_writable);
        self.check(sent);
    }

    /// Closes a socket that is of no more use. Its worker sees that, takes us for dead and leaves; if it
    /// cannot even do that, it is silent, and found out as such.
    fn check(&mut self, sent: Option<Result<(), SendError>>) {
        let pid = self.identity.pid;
        match sent {
            None | Some(Ok(())) => {}
            Some(Err(error @ SendError::Wire(_))) => {
                tracing::error!(pid, %error, "a message for a worker was left out");
            }
            Some(Err(error)) => {
                // A worker that has just died is told of by its exit.
                tracing::debug!(pid, %error, "supervision socket closed");
                self.peer = None;
            }
        }
    }
}
