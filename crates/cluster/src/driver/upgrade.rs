//! An upgrade in place: the check, the hand-over, and going on afterwards.
//!
//! The check is a child that runs the new program and ends. Only when it succeeds, and only at a moment at which nothing
//! else is under way, does the primary become that program. Until then, and if that fails, nothing has changed.

use std::io;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use okdb_sys::Identity;
use okdb_sys::host::monotonic_ms;
use okdb_sys::signals::{Blocked, Signals};

use super::Observer;
use super::process::{Process, Reading};
use super::roster::Roster;
use super::supervision::Supervision;
use crate::handover::{CHECK_PASSED, Handover, Parcel, ResumeError, VERSION};
use crate::listen::Listeners;
use crate::machine::{Action, Machine, WorkerExit, WorkerId};
use crate::spawner::Spawner;
use crate::status::unix_ms;

/// How long the end waits for a check that was killed.
const REAP_TIMEOUT: Duration = Duration::from_millis(500);

/// How long the check may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);

/// The check, while it runs.
#[derive(Debug)]
pub(super) struct Check {
    process: Process,
    give_up_at_ms: u64,
}

impl Check {
    /// What it says, to be waited for.
    pub(super) fn stderr(&self) -> Option<BorrowedFd<'_>> {
        self.process.stderr.as_ref().map(AsFd::as_fd)
    }
}

/// What a run goes on with.
pub(super) struct Resumed {
    pub(super) machine: Machine,
    /// What the machine wants done first.
    pub(super) first: Vec<Action>,
    pub(super) listeners: Listeners,
    pub(super) roster: Roster,
}

impl Resumed {
    pub(super) fn new(state: &[u8]) -> Result<Self, ResumeError> {
        let handover = Handover::<Machine>::from_bytes(state)?;
        let slots = u16::try_from(handover.machine.views().count()).ok();
        let slots = slots
            .and_then(NonZeroU16::new)
            .ok_or_else(|| ResumeError::Malformed("it has no slots".into()))?;
        let understood = handover.protocol == okdb_ipc::wire::PROTOCOL;
        Ok(Self {
            machine: handover.machine,
            first: Vec::new(),
            listeners: Listeners::resume(handover.bound, slots)?,
            roster: Roster::resume(handover.processes, handover.exits, understood)?,
        })
    }
}

impl<S: Spawner, O: Observer> Supervision<'_, S, O> {
    /// Starts the check.
    pub(super) fn begin_upgrade(&mut self) {
        if let Some(reason) = self.unsettled() {
            tracing::error!(reason, "upgrade refused: nothing has changed");
            return;
        }
        match self.observer.preflight() {
            Ok(child) => {
                tracing::info!(
                    pid = child.identity.pid,
                    "checking whether the new program can go on"
                );
                let nobody = WorkerId {
                    slot: 0,
                    incarnation: 0,
                };
                self.check = Some(Check {
                    process: Process::new(nobody, child, None, unix_ms()),
                    give_up_at_ms: monotonic_ms().saturating_add(
                        u64::try_from(CHECK_TIMEOUT.as_millis()).unwrap_or(u64::MAX),
                    ),
                });
            }
            Err(error) => {
                tracing::error!(%error, "upgrade refused: the check cannot be started; nothing has changed");
            }
        }
    }

    fn unsettled(&self) -> Option<&'static str> {
        if self.check.is_some() {
            Some("another one has begun")
        } else if self.machine.is_stopping() {
            Some("the server is stopping")
        } else if !self.machine.is_settled() {
            Some("a worker is being started or replaced; try again when all are ready")
        } else {
            None
        }
    }

    /// Keeps what the check says.
    pub(super) fn listen_to_check(&mut self) {
        if let Some(check) = &mut self.check {
            check.process.read_stderr(Reading::Some, &self.copier);
        }
    }

    /// Goes on when the check has ended; ends it when it takes too long.
    pub(super) fn finish_check(&mut self) {
        let Some(check) = &mut self.check else {
            return;
        };
        let Some(exit) = check.process.try_wait() else {
            if monotonic_ms() >= check.give_up_at_ms {
                tracing::error!("the check of the new program takes too long; killing it");
                check.process.signal(okdb_sys::Signal::Kill);
                check.give_up_at_ms = u64::MAX;
            }
            return;
        };
        let Some(mut check) = self.check.take() else {
            return;
        };
        check.process.read_stderr(Reading::All, &self.copier);
        if self.machine.is_stopping() {
            return;
        }
        if exit != WorkerExit::Code(i32::from(CHECK_PASSED)) {
            let said = check.process.tail.lines();
            let said = said.last().map_or("it said nothing", String::as_str);
            tracing::error!(%exit, said, "upgrade refused: the new program cannot go on; nothing has changed");
        } else if let Some(reason) = self.unsettled() {
            tracing::error!(reason, "upgrade refused: nothing has changed");
        } else {
            self.upgrade();
        }
    }

    /// The server stops: there is nothing left to check.
    pub(super) fn abandon_check(&mut self) {
        if let Some(check) = &self.check {
            check.process.signal(okdb_sys::Signal::Kill);
        }
    }

    /// The run is over: an abandoned check is not left behind.
    pub(super) fn reap_check(&mut self) {
        self.abandon_check();
        if let Some(check) = self.check.take() {
            // It was killed, so it is only a matter of the scheduler.
            if let Err(error) = check.process.identity.wait_end(REAP_TIMEOUT) {
                tracing::debug!(%error, "the check has ended already");
            }
            check.process.try_wait();
        }
    }

    /// Becomes the new program. Comes back only if that fails.
    fn upgrade(&mut self) {
        // What is read but not passed on would be lost.
        for process in self.roster.iter_mut() {
            process.read_stderr(Reading::Some, &self.copier);
        }
        // Said before the flush: what waits to be written ends with this program.
        tracing::info!("handing over to the new program");
        self.copier.flush(super::OUTPUT_TIMEOUT);
        let (processes, exits) = self.roster.hand_over();
        let handover = Handover {
            version: VERSION,
            protocol: okdb_ipc::wire::PROTOCOL,
            machine: &self.machine,
            bound: self.listeners.hand_over(),
            processes,
            exits,
        };
        let descriptors = self
            .listeners
            .descriptors()
            .chain(self.roster.iter().flat_map(Process::descriptors));
        let parcel = Parcel {
            state: handover.to_bytes(),
            descriptors: descriptors.collect(),
        };
        let waiting = self.signals.as_mut().map(make_wait).transpose();
        let reason = match &waiting {
            Ok(_) => self.observer.hand_over(&parcel),
            Err(error) => error.to_string(),
        };
        tracing::error!(reason, "the upgrade failed: nothing has changed");
    }
}

/// Lets signals wait for whoever hears them next, this program or the one after it. Those that have arrived and were not
/// acted upon are only known here: they are sent once more.
fn make_wait(signals: &mut Signals) -> io::Result<Blocked> {
    let blocked = Blocked::all()?;
    let me = Identity::current()?;
    for signal in signals.drain() {
        me.signal(signal)?;
    }
    Ok(blocked)
}
