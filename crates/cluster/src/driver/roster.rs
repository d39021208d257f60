//! The processes of all slots, and what is remembered of those that have ended.

use super::process::Process;
use crate::handover::{HandedExit, HandedProcess};
use crate::machine::{SlotView, WorkerExit, WorkerId};
use crate::status::{LastExit, SlotStatus, unix_ms};

/// What is remembered of a slot beyond the machine's state.
#[derive(Debug, Default)]
struct Record {
    /// The worker that fills it, its successor during a reload, and those that are leaving.
    processes: Vec<Process>,
    last_exit: Option<LastExit>,
    /// The last lines of the worker that `last_exit` is about.
    last_stderr: Vec<String>,
}

/// All slots, by number.
#[derive(Debug, Default)]
pub(super) struct Roster {
    records: Vec<Record>,
}

impl Roster {
    fn record_mut(&mut self, slot: u16) -> Option<&mut Record> {
        let place = usize::from(slot);
        if place >= self.records.len() {
            self.records.resize_with(place + 1, Record::default);
        }
        self.records.get_mut(place)
    }

    pub(super) fn insert(&mut self, process: Process) {
        if let Some(record) = self.record_mut(process.worker.slot) {
            record.processes.push(process);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Process> {
        self.records.iter().flat_map(|record| &record.processes)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        self.records
            .iter_mut()
            .flat_map(|record| &mut record.processes)
    }

    pub(super) fn get_mut(&mut self, worker: WorkerId) -> Option<&mut Process> {
        self.records
            .get_mut(usize::from(worker.slot))?
            .processes
            .iter_mut()
            .find(|process| process.worker == worker)
    }

    /// Takes out the processes that have ended, with how they did.
    pub(super) fn take_ended(&mut self) -> Vec<(Process, WorkerExit)> {
        let mut ended = Vec::new();
        for record in &mut self.records {
            let mut place = 0;
            while let Some(process) = record.processes.get(place) {
                match process.try_wait() {
                    Some(exit) => ended.push((record.processes.swap_remove(place), exit)),
                    None => place += 1,
                }
            }
        }
        ended
    }

    /// Remembers how a worker ended. `failure` says why one could not be started.
    pub(super) fn remember(
        &mut self,
        slot: u16,
        exit: WorkerExit,
        failure: Option<&str>,
        last_stderr: Vec<String>,
    ) {
        if let Some(record) = self.record_mut(slot) {
            record.last_exit = Some(LastExit::new(exit, unix_ms(), failure));
            record.last_stderr = last_stderr;
        }
    }

    /// What the next program needs to go on.
    pub(super) fn hand_over(&self) -> (Vec<HandedProcess>, Vec<HandedExit>) {
        let processes = self.iter().map(Process::hand_over).collect();
        let exits = (0..).zip(&self.records).filter_map(|(slot, record)| {
            Some(HandedExit {
                slot,
                last_exit: record.last_exit.clone()?,
                last_stderr: record.last_stderr.clone(),
            })
        });
        (processes, exits.collect())
    }

    /// Goes on with what was handed over; `understood`: whether the workers speak our messages.
    pub(super) fn resume(
        processes: Vec<HandedProcess>,
        exits: Vec<HandedExit>,
        understood: bool,
    ) -> std::io::Result<Self> {
        let mut roster = Self::default();
        for handed in processes {
            roster.insert(Process::resume(handed, understood)?);
        }
        for exit in exits {
            if let Some(record) = roster.record_mut(exit.slot) {
                record.last_exit = Some(exit.last_exit);
                record.last_stderr = exit.last_stderr;
            }
        }
        Ok(roster)
    }

    /// How the last worker of a slot ended, in words.
    pub(super) fn last_reason(&self, slot: u16) -> Option<&str> {
        let record = self.records.get(usize::from(slot))?;
        record.last_exit.as_ref().map(|exit| exit.reason.as_str())
    }

    /// What is told of a slot that looks like `view`.
    pub(super) fn status(&self, view: SlotView) -> SlotStatus {
        let record = self.records.get(usize::from(view.slot));
        let process = record.zip(view.worker).and_then(|(record, worker)| {
            record
                .processes
                .iter()
                .find(|process| process.worker == worker)
        });
        SlotStatus {
            slot: view.slot,
            pid: view.pid,
            start_time: process.map(|process| process.identity.start_time),
            state: view.state,
            restarts: view.restarts,
            started_at: process.map(|process| process.started_at),
            last_exit: record.and_then(|record| record.last_exit.clone()),
            last_stderr: record
                .map(|record| record.last_stderr.clone())
                .unwrap_or_default(),
            backoff_ms: view.backoff_ms,
            leaving: view.leaving,
            orphaned: view.orphaned,
        }
    }
}
