//! One worker process as the primary holds it: identity, supervision socket, standard error.

use std::fs::File;
use std::io::{self, Read};

use okdb_ipc::{Peer, SendError, ToPrimary, ToWorker};
use okdb_sys::spawn::Child;
use okdb_sys::{Identity, Signal, reap};

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

#[derive(Debug)]
pub(super) struct Process {
    pub(super) worker: WorkerId,
    pub(super) identity: Identity,
    /// Our end of its supervision socket, until it has closed its own.
    pub(super) peer: Option<Peer>,
    /// Whether it has said Hello and got its configuration. Snapshots come after that.
    pub(super) greeted: bool,
    /// Our end of its standard error, until it has ended.
    pub(super) stderr: Option<File>,
    pub(super) tail: Tail,
    /// Unix milliseconds.
    pub(super) started_at: u64,
}

impl Process {
    pub(super) fn new(worker: WorkerId, child: Child, peer: Peer, started_at: u64) -> Self {
        Self {
            worker,
            identity: child.identity,
            peer: Some(peer),
            greeted: false,
            stderr: child.stderr.map(File::from),
            tail: Tail::default(),
            started_at,
        }
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
        let sent = self.peer.as_mut().map(|peer| peer.send(message));
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
