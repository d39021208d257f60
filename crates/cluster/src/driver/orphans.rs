//! Listeners of slots whose own worker does not answer: every other worker accepts from them meanwhile.
//!
//! A listener stays in the kernel's choice from the day it is made, so that closing it never resets what waits in it.
//! In return somebody has to accept from it at any time. All others do, not one of them: nobody has to be chosen, and
//! chosen again when the chosen one dies or is stopped in its turn.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use okdb_ipc::ToWorker;

use super::process::{Process, Talk};
use super::roster::Roster;
use crate::listen::Listeners;
use crate::machine::WorkerId;

/// Which slots are shared out, and who has their listeners.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    slots: BTreeMap<u16, BTreeSet<WorkerId>>,
}

impl Orphans {
    /// Of a primary that goes on with what another one had begun. Who has what is not known: everybody is given everything
    /// once more, which changes nothing for who has it.
    pub(super) fn of(slots: impl IntoIterator<Item = u16>) -> Self {
        Self {
            slots: slots
                .into_iter()
                .map(|slot| (slot, BTreeSet::new()))
                .collect(),
        }
    }

    /// Every other worker accepts for `slot` from now on.
    pub(super) fn share(&mut self, slot: u16, roster: &mut Roster, listeners: &Listeners) {
        tracing::info!(slot, "the other workers answer for this slot");
        self.slots.entry(slot).or_default();
        self.catch_up(roster, listeners);
    }

    /// The slot's own worker answers again.
    pub(super) fn reclaim(&mut self, slot: u16, roster: &mut Roster) {
        tracing::debug!(slot, "the slot answers for itself");
        self.slots.remove(&slot);
        for process in roster.iter_mut().filter(|process| takes(slot, process)) {
            process.send(&ToWorker::Release { slot });
        }
    }

    /// Gives each worker the listeners that it should have and has not got: it has just become ready, the slot's listeners
    /// have just been made, or there was no descriptor left when it was tried before.
    pub(super) fn catch_up(&mut self, roster: &mut Roster, listeners: &Listeners) {
        for (slot, given) in &mut self.slots {
            for process in roster.iter_mut().filter(|process| takes(*slot, process)) {
                if !given.contains(&process.worker) && give(*slot, process, listeners) {
                    given.insert(process.worker);
                }
            }
        }
    }
}

/// Whether a worker is one to accept for `slot`: one of another slot, that serves.
fn takes(slot: u16, process: &Process) -> bool {
    process.talk == Talk::Ready && process.worker.slot != slot
}

/// Tells whether it was given.
fn give(slot: u16, process: &mut Process, listeners: &Listeners) -> bool {
    let copies: std::io::Result<Vec<_>> = listeners
        .only_of_slot(slot)
        .map(|listener| listener.as_fd().try_clone_to_owned())
        .collect();
    match copies {
        // There are none, or not yet.
        Ok(copies) if copies.is_empty() => false,
        Ok(copies) => {
            process.send_with(&ToWorker::Adopt { slot }, copies);
            true
        }
        Err(error) => {
            tracing::warn!(slot, %error, "cannot hand listeners to another worker yet; connections wait");
            false
        }
    }
}
