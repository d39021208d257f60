//! One run of the driver: the state machine, the processes, and the steps of the loop.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use okdb_ipc::{ToPrimary, ToWorker};
use okdb_sys::Signal;
use okdb_sys::host::monotonic_ms;
use okdb_sys::signals::Signals;

use super::control::Orders;
use super::orphans::Orphans;
use super::process::{Process, Reading, Talk};
use super::roster::Roster;
use super::upgrade::{Check, Resumed};
use super::{Driver, Observer, Options, Plan, SNAPSHOT_INTERVAL_MS, SNAPSHOT_STDERR_BYTES_MAX};
use crate::exit::ExitCode;
use crate::listen::Listeners;
use crate::machine::{Action, Event, Kill, Machine, TICK_MS, WorkerExit, WorkerId};
use crate::output::Copier;
use crate::spawner::{Launch, Spawner};
use crate::status::{SlotStatus, bound_stderr, unix_ms};
use crate::systemd::Notifier;

/// How long to pause when even `poll` fails, which only a starved system makes it do.
const POLL_FAILURE_PAUSE: Duration = Duration::from_millis(50);

/// How often a service manager's status line is renewed. Milliseconds.
const STATUS_INTERVAL_MS: u64 = 5_000;

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
    Orders,
    Ipc(WorkerId),
    Stderr(WorkerId),
    End,
    Check,
}

pub(super) struct Supervision<'a, S, O> {
    pub(super) machine: Machine,
    /// How many workers there shall be from the beginning of the run.
    workers: Option<u16>,
    /// Whether nobody serves yet: a stop that came before the run begins needs no workers then.
    fresh: bool,
    /// What the machine ordered before the run begins.
    first: Vec<Action>,
    pub(super) listeners: Listeners,
    pub(super) signals: Option<Signals>,
    pub(super) options: Options,
    pub(super) orders: Option<Orders>,
    pub(super) roster: Roster,
    orphans: Orphans,
    /// The child that checks whether an upgrade can be done, while there is one.
    pub(super) check: Option<Check>,
    pub(super) copier: Copier,
    pub(super) notifier: Notifier,
    /// When the service manager was last told: that all is well, and what the cluster looks like.
    pinged_at_ms: u64,
    status_at_ms: u64,
    snapshot: Snapshot,
    reaped_at_ms: u64,
    finished: Option<ExitCode>,
    spawner: &'a mut S,
    pub(super) observer: &'a mut O,
}

impl<'a, S: Spawner, O: Observer> Supervision<'a, S, O> {
    pub(super) fn new(
        driver: Driver,
        copier: Copier,
        spawner: &'a mut S,
        observer: &'a mut O,
    ) -> Self {
        let now_ms = monotonic_ms();
        let limits = driver.options.limits;
        let fresh = matches!(driver.plan, Plan::Start(_));
        let begin = match driver.plan {
            Plan::Start(listeners) => {
                let (machine, first) = Machine::start(listeners.slots(), limits, now_ms);
                Resumed {
                    machine,
                    first,
                    listeners,
                    roster: Roster::default(),
                }
            }
            Plan::Resume(mut resumed) => {
                // The workers run the program that was replaced.
                let reload = Event::ReloadRequested { limits };
                resumed.first = resumed.machine.handle(reload, now_ms);
                resumed
            }
        };
        let orphaned = begin.machine.views().filter(|view| view.orphaned);
        Self {
            orphans: Orphans::of(orphaned.map(|view| view.slot)),
            machine: begin.machine,
            workers: driver.workers,
            fresh,
            first: begin.first,
            listeners: begin.listeners,
            signals: driver.signals,
            options: driver.options,
            orders: driver.orders,
            roster: begin.roster,
            check: None,
            copier,
            notifier: driver.notifier,
            pinged_at_ms: now_ms,
            status_at_ms: now_ms,
            snapshot: Snapshot::default(),
            reaped_at_ms: now_ms,
            finished: None,
            spawner,
            observer,
        }
    }

    pub(super) fn run(&mut self) -> ExitCode {
        let early = self.take_early();
        if let Some(code) = early.stop()
            && self.fresh
        {
            self.notifier.stopping();
            self.observer.on_stop();
            return code;
        }
        let first = std::mem::take(&mut self.first);
        let mut answers = VecDeque::new();
        self.carry_out(first, &mut answers);
        self.feed_all(answers);
        if let Some(wanted) = self.workers {
            self.scale_to(wanted);
        }
        self.heed_early(early);
        loop {
            if let Some(code) = self.finished {
                self.reap_check();
                return code;
            }
            self.turn();
        }
    }

    /// Ends the run: listeners are closed and the files of Unix sockets removed.
    pub(super) fn into_copier(self) -> Copier {
        self.copier
    }

    /// One turn of the loop: wait, then take in everything that has happened. Orders come first, so
    /// that a worker which died of the same Ctrl-C is not replaced; messages come before the tick, so
    /// that no heartbeat which has arrived is missed.
    fn turn(&mut self) {
        let ready = self.wait();
        let mut children_changed = ready.iter().any(|(source, _)| *source == Source::End);
        if ready.iter().any(|(source, _)| *source == Source::Signals) {
            children_changed |= self.take_signals();
        }
        if ready.iter().any(|(source, _)| *source == Source::Orders) {
            self.take_orders();
        }
        for (source, events) in ready {
            match source {
                Source::Ipc(worker) => self.serve_ipc(worker, events),
                Source::Stderr(worker) => self.read_stderr(worker),
                Source::Check => self.listen_to_check(),
                Source::Signals | Source::Orders | Source::End => {}
            }
        }
        let now_ms = monotonic_ms();
        // The news of a child's end are only a hint: the clock makes us look, too.
        if children_changed || now_ms.saturating_sub(self.reaped_at_ms) >= TICK_MS {
            self.reaped_at_ms = now_ms;
            self.reap();
            self.finish_check();
            self.orphans.catch_up(&mut self.roster, &self.listeners);
        }
        self.feed(Event::Tick);
        self.send_snapshot();
        self.tell_manager();
    }

    /// Waits for the next event or deadline, and tells which descriptors want something.
    fn wait(&self) -> Vec<(Source, PollFlags)> {
        let mut sources = Vec::new();
        let mut fds = Vec::new();
        if let Some(orders) = &self.orders {
            sources.push(Source::Orders);
            fds.push(PollFd::new(orders.as_fd(), PollFlags::POLLIN));
        }
        if let Some(signals) = &self.signals {
            sources.push(Source::Signals);
            fds.push(PollFd::new(signals.as_fd(), PollFlags::POLLIN));
        }
        for process in self.roster.iter() {
            if let Some(peer) = &process.peer {
                let mut events = PollFlags::POLLIN;
                events.set(PollFlags::POLLOUT, peer.wants_write());
                sources.push(Source::Ipc(process.worker));
                fds.push(PollFd::new(peer.as_fd(), events));
            }
            if let Some(stderr) = &process.stderr {
                sources.push(Source::Stderr(process.worker));
                fds.push(PollFd::new(stderr.as_fd(), PollFlags::POLLIN));
            }
            // Where signals tell of children, one more descriptor a worker would be for nothing.
            if self.signals.is_none()
                && let Some(end) = &process.end
            {
                sources.push(Source::End);
                fds.push(PollFd::new(end.as_fd(), PollFlags::POLLIN));
            }
        }
        if let Some(stderr) = self.check.as_ref().and_then(Check::stderr) {
            sources.push(Source::Check);
            fds.push(PollFd::new(stderr, PollFlags::POLLIN));
        }
        let now_ms = monotonic_ms();
        let wake_ms = [self.snapshot.at_ms(now_ms), self.ping_at_ms()]
            .into_iter()
            .flatten()
            .fold(self.machine.next_wake_ms(now_ms), u64::min);
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

    fn serve_ipc(&mut self, worker: WorkerId, events: PollFlags) {
        let Some(process) = self.roster.get_mut(worker) else {
            return;
        };
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
            ToPrimary::Hello { pid, slot } => self.greet(worker, pid, slot),
            ToPrimary::Ready => {
                if let Some(process) = self.roster.get_mut(worker) {
                    process.talk = process.talk.max(Talk::Ready);
                }
                self.feed(Event::Ready { worker });
                self.orphans.catch_up(&mut self.roster, &self.listeners);
            }
            ToPrimary::Heartbeat { at_ms } => self.feed(Event::Heartbeat { worker, at_ms }),
            ToPrimary::Bye => {
                if let Some(process) = self.roster.get_mut(worker) {
                    process.talk = Talk::Leaving;
                }
                self.feed(Event::Leaving { worker });
            }
        }
    }

    fn greet(&mut self, worker: WorkerId, said_pid: u32, said_slot: u16) {
        let config = self.observer.config(worker.slot);
        let Some(process) = self.roster.get_mut(worker) else {
            return;
        };
        let pid = process.identity.pid;
        if said_slot != worker.slot || said_pid != pid {
            tracing::error!(
                slot = worker.slot,
                pid,
                said_slot,
                said_pid,
                "a worker takes itself for another one"
            );
        }
        process.send(&ToWorker::Config(config));
        process.talk = process.talk.max(Talk::Greeted);
        self.snapshot.due = true;
    }

    fn read_stderr(&mut self, worker: WorkerId) {
        if let Some(process) = self.roster.get_mut(worker) {
            process.read_stderr(Reading::Some, &self.copier);
        }
    }

    /// Collects every worker that has ended.
    fn reap(&mut self) {
        for (mut process, exit) in self.roster.take_ended() {
            let worker = process.worker;
            // Its last words are in the pipe, complete.
            process.read_stderr(Reading::All, &self.copier);
            self.roster
                .remember(worker.slot, exit, None, process.tail.lines());
            self.feed(Event::Exited { worker, exit });
        }
    }

    pub(super) fn feed(&mut self, event: Event) {
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
                }
                Action::Orphan { slot } => {
                    self.orphans.share(slot, &mut self.roster, &self.listeners);
                    self.snapshot.due = true;
                }
                Action::Reclaim { slot } => {
                    self.orphans.reclaim(slot, &mut self.roster);
                    self.snapshot.due = true;
                }
                Action::ReportReady => {
                    self.observer.on_ready();
                    let line = self.status_line();
                    self.notifier.ready(&line);
                }
                Action::ReportStopping => {
                    self.notifier.stopping();
                    self.abandon_check();
                    // Once the workers have closed theirs, too, clients are refused at once instead of
                    // being queued for nobody.
                    self.listeners.close();
                    self.observer.on_stop();
                }
                Action::ReportReloaded { failed } => self.reloaded(failed),
                Action::ReportAdded { slot } => tracing::info!(slot, "one worker more"),
                Action::ReportRemoved { slot } => tracing::info!(slot, "one worker fewer"),
                Action::Refuse { refusal } => {
                    tracing::warn!(reason = %refusal, "the number of workers stays as it is");
                }
                Action::StopAllDead => self.stop_all_dead(answers),
                Action::SlotChanged { slot } => self.slot_changed(slot),
                Action::Finished { code } => self.finished = Some(code),
            }
        }
    }

    /// Nobody serves, and nobody will: the rest gets the usual time.
    fn stop_all_dead(&self, answers: &mut VecDeque<Event>) {
        let ordered = |event: &Event| matches!(event, Event::StopRequested { .. });
        if !answers.iter().any(ordered) {
            answers.push_back(Event::StopRequested {
                grace_ms: self.options.shutdown_grace_ms,
                code: ExitCode::AllSlotsDead,
            });
        }
    }

    fn spawn(&mut self, worker: WorkerId) -> Event {
        match self.try_spawn(worker) {
            Ok(process) => {
                let pid = process.identity.pid;
                tracing::info!(slot = worker.slot, pid, "worker started");
                self.roster.insert(process);
                Event::Spawned { worker, pid }
            }
            Err(error) => {
                let reason = error.to_string();
                self.roster.remember(
                    worker.slot,
                    WorkerExit::NotStarted,
                    Some(&reason),
                    Vec::new(),
                );
                Event::SpawnFailed {
                    worker,
                    starved: is_starvation(&error),
                }
            }
        }
    }

    fn try_spawn(&mut self, worker: WorkerId) -> io::Result<Process> {
        self.listeners
            .ensure_slot(worker.slot)
            .map_err(io::Error::other)?;
        let (peer, theirs) = okdb_ipc::pair()?;
        let launch = Launch {
            worker,
            ipc: theirs.as_fd(),
            listeners: self.listeners.of_slot(worker.slot).collect(),
        };
        let child = self.spawner.spawn(&launch)?;
        Ok(Process::new(worker, child, Some(peer), unix_ms()))
    }

    fn drain(&mut self, worker: WorkerId, grace_ms: u64) {
        let deadline_ms = monotonic_ms().saturating_add(grace_ms);
        if let Some(process) = self.roster.get_mut(worker) {
            process.send(&ToWorker::Drain { deadline_ms });
            process.talk = Talk::Leaving;
            // A worker that does not read its socket yet, or no more, is reached by the signal.
            process.signal(Signal::Term);
        }
    }

    fn signal(&mut self, worker: WorkerId, kill: Kill) -> Option<Event> {
        let stopping = self.machine.is_stopping();
        let process = self.roster.get_mut(worker)?;
        let pid = process.identity.pid;
        match kill {
            Kill::Kill => {
                let why = if stopping || process.talk == Talk::Leaving {
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
            .roster
            .last_reason(worker.slot)
            .map_or_else(|| exit.to_string(), str::to_owned);
        tracing::warn!(slot = worker.slot, pid, reason, "worker died");
        if let Some(pid) = pid {
            self.observer.on_worker_death(worker.slot, pid, exit);
        }
    }

    fn slot_changed(&mut self, slot: u16) {
        self.snapshot.due = true;
        if let Some(view) = self.machine.view(slot) {
            self.observer.on_slot_changed(&self.roster.status(view));
        }
    }

    pub(super) fn statuses(&self) -> Vec<SlotStatus> {
        self.machine
            .views()
            .map(|view| self.roster.status(view))
            .collect()
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
        let mut statuses = self.statuses();
        bound_stderr(&mut statuses, SNAPSHOT_STDERR_BYTES_MAX);
        let snapshot = ToWorker::Snapshot(self.observer.snapshot(&statuses));
        for process in self.roster.iter_mut() {
            if process.talk >= Talk::Greeted {
                process.send(&snapshot);
            }
        }
    }

    pub(super) fn status_line(&mut self) -> String {
        let statuses = self.statuses();
        self.observer.status_line(&statuses)
    }

    /// When the service manager wants to hear that all is well.
    fn ping_at_ms(&self) -> Option<u64> {
        let interval = self.notifier.watchdog_interval()?;
        let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        Some(self.pinged_at_ms.saturating_add(interval_ms))
    }

    /// Says that all is well, if it is: a primary whose workers all fail to answer is better restarted.
    fn tell_manager(&mut self) {
        let now_ms = monotonic_ms();
        if self.ping_at_ms().is_some_and(|at_ms| now_ms >= at_ms) {
            self.pinged_at_ms = now_ms;
            if self.machine.is_healthy() || self.machine.is_stopping() {
                self.notifier.ping();
            }
        }
        if self.notifier.is_connected()
            && !self.machine.is_stopping()
            && now_ms.saturating_sub(self.status_at_ms) >= STATUS_INTERVAL_MS
        {
            self.status_at_ms = now_ms;
            let line = self.status_line();
            self.notifier.status(&line);
        }
    }
}

/// Whether a worker could not be started for lack of something that all on this host share.
fn is_starvation(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw);
    matches!(
        number,
        Some(Errno::EMFILE | Errno::ENFILE | Errno::EAGAIN | Errno::ENOMEM | Errno::ENOBUFS)
    )
}
