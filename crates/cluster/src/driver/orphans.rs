//! Listeners of slots whose own worker does not answer: every other worker accepts from them meanwhile.
//!
//! A listener stays in the kernel's choice from the day it is made, so that closing it never resets what waits in it.
//! In return somebody has to accept from it at any time. All others do, not one of them: nobody has to be chosen, and
//! chosen again when the chosen one dies or is stopped in its turn.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use okdb_ipc::ToWorker;

use super::process::{Process, Talk};
use super::roster::Roster;
use crate::listen::Listeners;
use crate::machine::WorkerId;

/// Which slots are shared out.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    slots: BTreeSet<u16>,
}

impl Orphans {
    /// Of a primary that goes on with what another one had begun.
    pub(super) fn of(slots: impl IntoIterator<Item = u16>) -> Self {
        Self {
            slots: slots.into_iter().collect(),
        }
    }

    /// Every other worker accepts for `slot` from now on.
    pub(super) fn share(&mut self, slot: u16, roster: &mut Roster, listeners: &Listeners) {
        tracing::info!(slot, "the other workers answer for this slot");
        self.slots.insert(slot);
        for process in roster.iter_mut() {
            give(slot, process, listeners);
        }
    }

    /// The slot's own worker answers again.
    pub(super) fn reclaim(&mut self, slot: u16, roster: &mut Roster) {
        tracing::debug!(slot, "the slot answers for itself");
        self.slots.remove(&slot);
        for process in roster.iter_mut().filter(|process| takes(slot, process)) {
            process.send(&ToWorker::Release { slot });
        }
    }

    /// A worker has become ready: it helps with what is shared out already.
    pub(super) fn join(&self, worker: WorkerId, roster: &mut Roster, listeners: &Listeners) {
        if let Some(process) = roster.get_mut(worker) {
            for slot in &self.slots {
                give(*slot, process, listeners);
            }
        }
    }
}

/// Whether a worker is one to accept for `slot`: one of another slot, that serves.
fn takes(slot: u16, process: &Process) -> bool {
    process.talk == Talk::Ready && process.worker.slot != slot
}

fn give(slot: u16, process: &mut Process, listeners: &Listeners) {
    if !takes(slot, process) {
        return;
    }
    let copies: std::io::Result<Vec<_>> = listeners
        .only_of_slot(slot)
        .map(|listener| listener.as_fd().try_clone_to_owned())
        .collect();
    match copies {
        // Where all listeners are shared there is nothing to take over.
        Ok(copies) if copies.is_empty() => {}
        Ok(copies) => process.send_with(&ToWorker::Adopt { slot }, copies),
        Err(error) => {
            tracing::error!(slot, %error, "cannot hand listeners to another worker; connections wait for their own");
        }
    }
}
