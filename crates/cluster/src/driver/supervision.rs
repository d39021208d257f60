//! One run of the driver: the state machine, the processes, and the steps of the loop.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use okdb_ipc::{ToPrimary, ToWorker};
use okdb_sys::Signal;
use okdb_sys::host::monotonic_ms;
use okdb_sys::signals::Signals;

use super::process::{Process, Reading};
use super::stop::StopReceiver;
use super::{Driver, Observer, SNAPSHOT_INTERVAL_MS, SNAPSHOT_STDERR_BYTES_MAX};
use crate::exit::ExitCode;
use crate::listen::Listeners;
use crate::machine::{Action, Event, Kill, Machine, TICK_MS, WorkerExit, WorkerId};
use crate::output::Copier;
use crate::spawner::{Launch, Spawner};
use crate::status::{LastExit, SlotStatus, bound_stderr};

/// How long to pause when even `poll` fails, which only a starved system makes it do.
const POLL_FAILURE_PAUSE: Duration = Duration::from_millis(50);

/// What is remembered of a slot beyond the machine's state.
#[derive(Debug, Default)]
struct Record {
    process: Option<Process>,
    last_exit: Option<LastExit>,
    /// The last lines of the worker that `last_exit` is about.
    last_stderr: Vec<String>,
}

/// When to tell the workers what has become of the cluster.
#[derive(Debug, Default)]
struct Snapshot {
    due: bool,
    sent_at_ms: Option<u64>,
}

impl Snapshot {
    /// When the next one may go out, if one is due.
    fn at_ms(&self, now_ms: u64) -> Option<u64> {
        let earliest_ms = self
            .sent_at_ms
            .map_or(now_ms, |at_ms| at_ms.saturating_add(SNAPSHOT_INTERVAL_MS));
        self.due.then_some(earliest_ms)
    }
}

/// What a descriptor in the poll set stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Signals,
    Stop,
    Ipc(u16),
    Stderr(u16),
}

pub(super) struct Supervision<'a, S, O> {
    machine: Machine,
    /// What [`Machine::start`] ordered, until the run begins.
    first: Vec<Action>,
    listeners: Listeners,
    signals: Signals,
    shutdown_grace_ms: u64,
    stop: StopReceiver,
    slots: Vec<Record>,
    copier: Copier,
    snapshot: Snapshot,
    reaped_at_ms: u64,
    finished: Option<ExitCode>,
    spawner: &'a mut S,
    observer: &'a mut O,
}

impl<'a, S: Spawner, O: Observer> Supervision<'a, S, O> {
    pub(super) fn new(
        driver: Driver,
        copier: Copier,
        spawner: &'a mut S,
        observer: &'a mut O,
    ) -> Self {
        let now_ms = monotonic_ms();
        let slots = driver.listeners.slots();
        let (machine, first) = Machine::start(slots, driver.options.limits, now_ms);
        Self {
            machine,
            first,
            listeners: driver.listeners,
            signals: driver.signals,
            shutdown_grace_ms: driver.options.shutdown_grace_ms,
            stop: driver.stop,
            slots: (0..slots.get()).map(|_| Record::default()).collect(),
            copier,
            snapshot: Snapshot::default(),
            reaped_at_ms: now_ms,
            finished: None,
            spawner,
            observer,
        }
    }

    pub(super) fn run(&mut self) -> ExitCode {
        if let Some(code) = self.stopped_before_start() {
            self.observer.on_stop();
            return code;
        }
        let first = std::mem::take(&mut self.first);
        let mut answers = VecDeque::new();
        self.carry_out(first, &mut answers);
        self.feed_all(answers);
        loop {
            if let Some(code) = self.finished {
                return code;
            }
            self.turn();
        }
    }

    /// A stop that came while the server was still being prepared: no worker is made only to be ended.
    fn stopped_before_start(&mut self) -> Option<ExitCode> {
        let signalled = self.signals.drain().into_iter().any(is_stop);
        self.stop.take().or(signalled.then_some(ExitCode::Clean))
    }

    /// Ends the run: listeners are closed and the files of Unix sockets removed.
    pub(super) fn into_copier(self) -> Copier {
        self.copier
    }

    /// One turn of the loop: wait, then take in everything that has happened. Signals come first, so
    /// that a worker which died of the same Ctrl-C is not replaced; messages come before the tick, so
    /// that no heartbeat which has arrived is missed.
    fn turn(&mut self) {
        let ready = self.wait();
        let mut children_changed = false;
        if ready.iter().any(|(source, _)| *source == Source::Signals) {
            children_changed = self.take_signals();
        }
        if ready.iter().any(|(source, _)| *source == Source::Stop)
            && let Some(code) = self.stop.take()
        {
            self.request_stop(code);
        }
        for (source, events) in ready {
            match source {
                Source::Ipc(slot) => self.serve_ipc(slot, events),
                Source::Stderr(slot) => self.read_stderr(slot),
                Source::Signals | Source::Stop => {}
            }
        }
        let now_ms = monotonic_ms();
        // SIGCHLD is only a hint: the clock makes us look, too.
        if children_changed || now_ms.saturating_sub(self.reaped_at_ms) >= TICK_MS {
            self.reaped_at_ms = now_ms;
            self.reap();
        }
        self.feed(Event::Tick);
        self.send_snapshot();
    }

    /// Waits for the next event or deadline, and tells which descriptors want something.
    fn wait(&self) -> Vec<(Source, PollFlags)> {
        let mut sources = vec![Source::Signals, Source::Stop];
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.stop.as_fd(), PollFlags::POLLIN),
        ];
        for (slot, record) in (0..).zip(&self.slots) {
            let Some(process) = &record.process else {
                continue;
            };
            if let Some(peer) = &process.peer {
                let mut events = PollFlags::POLLIN;
                events.set(PollFlags::POLLOUT, peer.wants_write());
                sources.push(Source::Ipc(slot));
                fds.push(PollFd::new(peer.as_fd(), events));
            }
            if let Some(stderr) = &process.stderr {
                sources.push(Source::Stderr(slot));
                fds.push(PollFd::new(stderr.as_fd(), PollFlags::POLLIN));
            }
        }
        let now_ms = monotonic_ms();
        let wake_ms = self.machine.next_wake_ms(now_ms);
        let wake_ms = self
            .snapshot
            .at_ms(now_ms)
            .map_or(wake_ms, |at_ms| at_ms.min(wake_ms));
        let timeout_ms = u16::try_from(wake_ms.saturating_sub(now_ms)).unwrap_or(u16::MAX);
        match poll(&mut fds, PollTimeout::from(timeout_ms)) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Vec::new(),
            Err(error) => {
                // Everything is non-blocking: after a pause, look at each as if it had asked.
                tracing::error!(%error, "poll failed");
                std::thread::sleep(POLL_FAILURE_PAUSE);
                return sources
                    .into_iter()
                    .map(|source| (source, PollFlags::all()))
                    .collect();
            }
        }
        let events = fds
            .iter()
            .map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
        sources
            .into_iter()
            .zip(events)
            .filter(|(_, events)| !events.is_empty())
            .collect()
    }

    /// Acts on the signals that have come; tells whether a child may have ended.
    fn take_signals(&mut self) -> bool {
        let signals = self.signals.drain();
        for signal in &signals {
            match signal {
                signal if is_stop(*signal) => tracing::info!(%signal, "stopping"),
                Signal::Hup | Signal::Usr1 | Signal::Usr2 | Signal::Ttin | Signal::Ttou => {
                    tracing::warn!(%signal, "this signal has no effect");
                }
                _ => {}
            }
        }
        // TERM and INT together are one request: whoever sends both means one stop.
        if signals.iter().copied().any(is_stop) {
            self.request_stop(ExitCode::Clean);
        }
        signals.contains(&Signal::Chld)
    }

    fn request_stop(&mut self, code: ExitCode) {
        self.feed(Event::StopRequested {
            grace_ms: self.shutdown_grace_ms,
            code,
        });
    }

    fn process_mut(&mut self, slot: u16) -> Option<&mut Process> {
        self.slots.get_mut(usize::from(slot))?.process.as_mut()
    }

    fn serve_ipc(&mut self, slot: u16, events: PollFlags) {
        let Some(process) = self.process_mut(slot) else {
            return;
        };
        let worker = process.worker;
        if events.contains(PollFlags::POLLOUT) {
            process.flush();
        }
        if (events - PollFlags::POLLOUT).is_empty() {
            return;
        }
        for message in process.receive() {
            self.take_message(worker, &message);
        }
    }

    fn take_message(&mut self, worker: WorkerId, message: &ToPrimary) {
        match *message {
            ToPrimary::Hello { pid, slot } => {
                let known = self
                    .process_mut(worker.slot)
                    .map(|process| process.identity.pid);
                if slot != worker.slot || Some(pid) != known {
                    tracing::error!(
                        slot = worker.slot,
                        pid = known,
                        said_slot = slot,
                        said_pid = pid,
                        "a worker takes itself for another one"
                    );
                }
                let config = self.observer.config(worker.slot);
                if let Some(process) = self.process_mut(worker.slot) {
                    process.send(&ToWorker::Config(config));
                    process.greeted = true;
                    self.snapshot.due = true;
                }
            }
            ToPrimary::Ready => self.feed(Event::Ready { worker }),
            ToPrimary::Heartbeat { at_ms } => self.feed(Event::Heartbeat { worker, at_ms }),
            ToPrimary::Bye => tracing::debug!(slot = worker.slot, "worker leaves"),
        }
    }

    fn read_stderr(&mut self, slot: u16) {
        let Some(process) = self
            .slots
            .get_mut(usize::from(slot))
            .and_then(|record| record.process.as_mut())
        else {
            return;
        };
        process.read_stderr(Reading::Some, &self.copier);
    }

    /// Collects every worker that has ended.
    fn reap(&mut self) {
        for slot in 0..self.slots.len() {
            let Some(record) = self.slots.get_mut(slot) else {
                continue;
            };
            let Some(exit) = record.process.as_ref().and_then(Process::try_wait) else {
                continue;
            };
            let Some(mut process) = record.process.take() else {
                continue;
            };
            // Its last words are in the pipe, complete.
            process.read_stderr(Reading::All, &self.copier);
            record.last_stderr = process.tail.lines();
            record.last_exit = Some(LastExit::new(exit, unix_ms(), None));
            self.feed(Event::Exited {
                worker: process.worker,
                exit,
            });
        }
    }

    fn feed(&mut self, event: Event) {
        self.feed_all(VecDeque::from([event]));
    }

    fn feed_all(&mut self, mut events: VecDeque<Event>) {
        while let Some(event) = events.pop_front() {
            let actions = self.machine.handle(event, monotonic_ms());
            self.carry_out(actions, &mut events);
        }
    }

    /// Does what the machine says; what it has to be told in answer goes to `answers`.
    fn carry_out(&mut self, actions: Vec<Action>, answers: &mut VecDeque<Event>) {
        for action in actions {
            match action {
                Action::Spawn { worker } => answers.push_back(self.spawn(worker)),
                Action::Drain { worker, grace_ms } => self.drain(worker, grace_ms),
                Action::Signal { worker, kill } => answers.extend(self.signal(worker, kill)),
                Action::ReportDeath { worker, pid, exit } => self.report_death(worker, pid, exit),
                Action::ReportDead { slot } => {
                    tracing::error!(slot, "slot given up: its worker died too often");
                    // Its listener would go on to get a share of all connections, for nobody.
                    self.listeners.close_slot(slot);
                }
                Action::ReportReady => self.observer.on_ready(),
                Action::ReportStopping => {
                    // Once the workers have closed theirs, too, clients are refused at once instead of
                    // being queued for nobody.
                    self.listeners.close();
                    self.observer.on_stop();
                }
                Action::SlotChanged { slot } => self.slot_changed(slot),
                Action::Finished { code } => self.finished = Some(code),
            }
        }
    }

    fn spawn(&mut self, worker: WorkerId) -> Event {
        match self.try_spawn(worker) {
            Ok(process) => {
                let pid = process.identity.pid;
                tracing::info!(slot = worker.slot, pid, "worker started");
                if let Some(record) = self.slots.get_mut(usize::from(worker.slot)) {
                    record.process = Some(process);
                }
                Event::Spawned { worker, pid }
            }
            Err(error) => {
                if let Some(record) = self.slots.get_mut(usize::from(worker.slot)) {
                    let reason = error.to_string();
                    record.last_exit = Some(LastExit::new(
                        WorkerExit::NotStarted,
                        unix_ms(),
                        Some(&reason),
                    ));
                    record.last_stderr.clear();
                }
                Event::SpawnFailed { worker }
            }
        }
    }

    fn try_spawn(&mut self, worker: WorkerId) -> io::Result<Process> {
        let (peer, theirs) = okdb_ipc::pair()?;
        let launch = Launch {
            worker,
            ipc: theirs.as_fd(),
            listeners: self.listeners.of_slot(worker.slot).collect(),
        };
        let child = self.spawner.spawn(&launch)?;
        Ok(Process::new(worker, child, peer, unix_ms()))
    }

    fn drain(&mut self, worker: WorkerId, grace_ms: u64) {
        let deadline_ms = monotonic_ms().saturating_add(grace_ms);
        if let Some(process) = self.process_mut(worker.slot) {
            process.send(&ToWorker::Drain { deadline_ms });
            // A worker that does not read its socket yet, or no more, is reached by the signal.
            process.signal(Signal::Term);
        }
    }

    fn signal(&mut self, worker: WorkerId, kill: Kill) -> Option<Event> {
        let stopping = self.machine.is_stopping();
        let process = self.process_mut(worker.slot)?;
        let pid = process.identity.pid;
        match kill {
            Kill::Kill => {
                let why = if stopping {
                    "it has not left in time"
                } else {
                    "it was not ready in time, or hangs"
                };
                tracing::error!(slot = worker.slot, pid, why, "killing worker");
                process.signal(Signal::Kill);
                None
            }
            Kill::Abort => {
                let why = "its event loop is silent";
                tracing::error!(slot = worker.slot, pid, why, "aborting worker");
                process.signal(Signal::Abrt);
                process
                    .is_stopped()
                    .then_some(Event::FoundStopped { worker })
            }
        }
    }

    fn report_death(&mut self, worker: WorkerId, pid: Option<u32>, exit: WorkerExit) {
        let reason = self
            .slots
            .get(usize::from(worker.slot))
            .and_then(|record| record.last_exit.as_ref())
            .map_or_else(|| exit.to_string(), |exit| exit.reason.clone());
        tracing::warn!(slot = worker.slot, pid, reason, "worker died");
        if let Some(pid) = pid {
            self.observer.on_worker_death(worker.slot, pid, exit);
        }
    }

    fn slot_changed(&mut self, slot: u16) {
        self.snapshot.due = true;
        if let Some(status) = self.status(slot) {
            self.observer.on_slot_changed(&status);
        }
    }

    fn status(&self, slot: u16) -> Option<SlotStatus> {
        let view = self.machine.view(slot)?;
        let record = self.slots.get(usize::from(slot))?;
        Some(SlotStatus {
            slot,
            pid: view.pid,
            start_time: record
                .process
                .as_ref()
                .map(|process| process.identity.start_time),
            state: view.state,
            restarts: view.restarts,
            started_at: record.process.as_ref().map(|process| process.started_at),
            last_exit: record.last_exit.clone(),
            last_stderr: record.last_stderr.clone(),
            backoff_ms: view.backoff_ms,
        })
    }

    fn send_snapshot(&mut self) {
        let now_ms = monotonic_ms();
        if self
            .snapshot
            .at_ms(now_ms)
            .is_none_or(|at_ms| now_ms < at_ms)
        {
            return;
        }
        self.snapshot = Snapshot {
            due: false,
            sent_at_ms: Some(now_ms),
        };
        let mut statuses: Vec<SlotStatus> = self
            .machine
            .views()
            .filter_map(|view| self.status(view.slot))
            .collect();
        bound_stderr(&mut statuses, SNAPSHOT_STDERR_BYTES_MAX);
        let snapshot = ToWorker::Snapshot(self.observer.snapshot(&statuses));
        let processes = self
            .slots
            .iter_mut()
            .filter_map(|record| record.process.as_mut());
        for process in processes.filter(|process| process.greeted) {
            process.send(&snapshot);
        }
    }
}

fn is_stop(signal: Signal) -> bool {
    matches!(signal, Signal::Term | Signal::Int)
}

/// The wall clock, for display only: nothing is decided by it.
fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
