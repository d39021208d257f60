//! The writer: one named thread per environment and process that runs everything queued in one transaction.
//!
//! It takes all that is queued, waits for LMDB's write lock, takes what has arrived meanwhile, applies each job, commits
//! once, publishes the clock and answers. A batch therefore grows by itself while another process holds the lock. One
//! client's failure never affects another's: see `apply` for what fails before and after a mutation.

mod tasks;

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread::JoinHandle,
    time::Duration,
};

use heed::RwTxn;
use tokio::sync::oneshot;

use crate::{
    Action, Commit, Error, Full, Operation, Outcome, Pending, TRANSACTION_OPERATIONS_MAX, Write,
    apply::Ledger, catalog, chores::Step, env::EnvInner,
};

/// Operations after which a batch is closed, so that one long import cannot make others wait without bound.
const BATCH_OPERATIONS_MAX: usize = 4096;
/// Bytes of values after which a batch is closed.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// How often, and how far apart, what frees room is tried again while readers hold the pages that it needs.
const PAGE_RETRIES_MAX: usize = 25;
const PAGE_RETRY_PAUSE: Duration = Duration::from_millis(10);

/// What the writer thread runs.
pub(crate) enum Task {
    Write(Write),
    Chore(Step),
}

impl Task {
    /// Whether it is one step towards more room, which cannot be made any smaller.
    fn frees_room(&self) -> bool {
        let removes = |operation: &Operation| matches!(operation.action, Action::Remove);
        match self {
            Self::Write(Write::One(operation)) => removes(operation),
            Self::Write(Write::Bulk(operations)) => {
                matches!(operations.as_slice(), [only] if removes(only))
            }
            Self::Write(Write::DropType { .. } | Write::DropIndex { .. }) => true,
            Self::Write(_) => false,
            Self::Chore(step) => !step.adds(),
        }
    }
}

struct Job {
    task: Task,
    operations: usize,
    bytes: usize,
    reply: oneshot::Sender<Result<Outcome, Error>>,
}

impl Job {
    /// A part of another job, which answers for it.
    fn unanswered(task: Task) -> Self {
        Self {
            task,
            operations: 1,
            bytes: 0,
            reply: oneshot::channel().0,
        }
    }

    fn answer(self, outcome: Result<Outcome, Error>) {
        // A client that went away does not undo its write.
        let _ = self.reply.send(outcome);
    }
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    operations: usize,
    bytes: usize,
    closed: bool,
}

/// The door to an environment's writer thread.
pub(crate) struct Writer {
    queue: Mutex<Queue>,
    arrived: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    pub(crate) fn new() -> Self {
        Self {
            queue: Mutex::default(),
            arrived: Condvar::new(),
            thread: Mutex::new(None),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // The queue is whole between any two statements; a panic elsewhere does not spoil it.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a task. Never blocks: a full queue refuses. The thread starts with the first task.
    pub(crate) fn submit(&self, env: &Arc<EnvInner>, task: Task) -> Pending {
        let (operations, bytes) = match weigh(&task) {
            Ok(weight) => weight,
            Err(error) => return Pending::ready(Err(error)),
        };
        let (reply, receiver) = oneshot::channel();
        let mut queue = self.queue();
        if queue.closed {
            return Pending::ready(Err(Error::ShuttingDown));
        }
        let limits = &env.base.options.limits;
        let full = queue.operations + operations > limits.queue_operations.max(operations)
            || queue.bytes + bytes > limits.queue_bytes.max(bytes);
        if full {
            return Pending::ready(Err(Error::Overloaded));
        }
        if let Err(error) = self.ensure_thread(env) {
            return Pending::ready(Err(error));
        }
        queue.operations += operations;
        queue.bytes += bytes;
        let idle = queue.jobs.is_empty();
        queue.jobs.push_back(Job {
            task,
            operations,
            bytes,
            reply,
        });
        drop(queue);
        if idle {
            self.arrived.notify_one();
        }
        Pending(receiver)
    }

    fn ensure_thread(&self, env: &Arc<EnvInner>) -> Result<(), Error> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            // The thread holds the environment only while it works, so that dropping the last handle ends it.
            let weak = Arc::downgrade(env);
            let spawned = std::thread::Builder::new()
                .name("writer".into())
                .spawn(move || run(&weak))?;
            *thread = Some(spawned);
        }
        Ok(())
    }

    /// Refuses what comes from now on, lets the thread finish what is queued, and waits for it.
    pub(crate) fn close(&self) {
        self.queue().closed = true;
        self.arrived.notify_all();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the writer thread ended with a panic");
        }
    }

    /// Whether there is work; waits a moment for it. `None`: closed and empty.
    fn wait(&self) -> Option<bool> {
        let queue = self.queue();
        if queue.jobs.is_empty() {
            if queue.closed {
                return None;
            }
            let (queue, _) = self
                .arrived
                .wait_timeout(queue, Duration::from_secs(1))
                .unwrap_or_else(PoisonError::into_inner);
            return Some(!queue.jobs.is_empty());
        }
        Some(true)
    }

    /// Moves queued jobs into `batch` up to the bounds of a batch.
    fn take(&self, batch: &mut Vec<Job>) {
        let mut queue = self.queue();
        let mut operations: usize = batch.iter().map(|job| job.operations).sum();
        let mut bytes: usize = batch.iter().map(|job| job.bytes).sum();
        while let Some(next) = queue.jobs.front() {
            let fits = operations + next.operations <= BATCH_OPERATIONS_MAX
                && bytes + next.bytes <= BATCH_BYTES_MAX;
            if !fits && !batch.is_empty() {
                break;
            }
            let Some(job) = queue.jobs.pop_front() else {
                break;
            };
            operations += job.operations;
            bytes += job.bytes;
            queue.operations -= job.operations;
            queue.bytes -= job.bytes;
            batch.push(job);
        }
    }
}

fn weigh(task: &Task) -> Result<(usize, usize), Error> {
    let operations: &[Operation] = match task {
        Task::Write(Write::One(operation)) => std::slice::from_ref(operation),
        Task::Write(Write::Bulk(operations)) => operations,
        Task::Write(Write::Transaction(operations)) => {
            if operations.len() > TRANSACTION_OPERATIONS_MAX {
                return Err(Error::TooLarge {
                    what: "the number of operations in the transaction",
                    limit: TRANSACTION_OPERATIONS_MAX,
                });
            }
            operations
        }
        Task::Write(_) | Task::Chore(_) => &[],
    };
    Ok((
        operations.len().max(1),
        operations.iter().map(Operation::weight).sum(),
    ))
}

fn run(env: &Weak<EnvInner>) {
    loop {
        let Some(env) = env.upgrade() else { return };
        match env.writer.wait() {
            None => return,
            Some(false) => {}
            Some(true) => {
                let mut batch = Vec::new();
                env.writer.take(&mut batch);
                // A panic is our bug: the transaction goes with it, and the clients learn that it failed.
                let run = std::panic::AssertUnwindSafe(|| run_batch(&env, &mut batch));
                if std::panic::catch_unwind(run).is_err() {
                    tracing::error!(env = env.name, "a write batch panicked and was abandoned");
                    for job in batch {
                        job.answer(Err(Error::Io(std::io::Error::other(
                            "the write was abandoned after an internal error",
                        ))));
                    }
                }
            }
        }
    }
}

/// What came of jobs inside a transaction.
enum Attempt {
    /// Every job has an outcome, and the transaction is committed; with the clock, if it changed anything.
    Committed(Vec<Result<Outcome, Error>>, Option<u64>),
    /// This job, by its place, poisoned the transaction.
    Culprit(usize, Error),
    /// The transaction could not be begun or committed, so none of it happened.
    Failed(Error),
}

/// Runs jobs until each has been answered.
fn run_batch(env: &Arc<EnvInner>, batch: &mut Vec<Job>) {
    let mut grow = true;
    while !batch.is_empty() {
        match attempt(env, batch, grow) {
            Attempt::Committed(outcomes, _) => {
                for (job, outcome) in batch.drain(..).zip(outcomes) {
                    job.answer(outcome);
                }
            }
            Attempt::Culprit(place, error) if !error.asks_for_too_much() => {
                tell_operator(env, &error);
                batch.remove(place).answer(Err(error));
            }
            // Too much together, or one that asks for too much: alone, each shows which.
            Attempt::Culprit(_, error) | Attempt::Failed(error) => {
                tracing::debug!(env = env.name, %error, jobs = batch.len(), "a batch failed; running its jobs one by one");
                while !batch.is_empty() {
                    run_alone(env, batch.remove(0));
                }
            }
        }
        grow = false;
    }
}

/// Runs a job by itself; a bulk that does not fit whole, in ever smaller parts.
fn run_alone(env: &Arc<EnvInner>, job: Job) {
    let mut alone = vec![job];
    let result = attempt_one(env, &mut alone);
    let Some(Job { task, reply, .. }) = alone.pop() else {
        return;
    };
    let outcome = match (task, result) {
        (Task::Write(Write::Bulk(operations)), Err(error)) if error.asks_for_too_much() => {
            Ok(run_in_parts(env, operations))
        }
        (_, result) => result.map_err(|error| {
            tell_operator(env, &error);
            error.for_client()
        }),
    };
    // A client that went away does not undo its write.
    let _ = reply.send(outcome);
}

fn attempt_one(env: &Arc<EnvInner>, alone: &mut Vec<Job>) -> Result<Outcome, Error> {
    let mut result = attempt(env, alone, false);
    for retry in 0..PAGE_RETRIES_MAX {
        let (Attempt::Culprit(_, error) | Attempt::Failed(error)) = &result else {
            break;
        };
        if !error.is_out_of_pages() {
            break;
        }
        if retry > 0 {
            // Readers keep freed pages from being used. They are brief, and what frees room is worth waiting for them.
            if !alone.iter().all(|job| job.task.frees_room()) {
                break;
            }
            std::thread::sleep(PAGE_RETRY_PAUSE);
        }
        if let Err(error) = env.advance() {
            tracing::debug!(env = env.name, %error, "not even a page to advance");
        }
        result = attempt(env, alone, false);
    }
    match result {
        Attempt::Committed(mut outcomes, _) => outcomes.pop().unwrap_or(Err(Error::ShuttingDown)),
        Attempt::Culprit(_, error) | Attempt::Failed(error) => Err(error),
    }
}

/// Logs what is no client's fault.
fn tell_operator(env: &EnvInner, error: &Error) {
    match error {
        Error::Lmdb(_) | Error::Io(_) | Error::Damaged(_) => {
            tracing::error!(env = env.name, %error, "a write failed");
        }
        // LMDB tells a short write and a broken disk alike.
        Error::StorageFull(Full::Disk) => {
            let free = okdb_sys::host::disk_free(&env.dir).unwrap_or(0);
            tracing::error!(env = env.name, bytes_free = free, %error, "the disk refused a write");
        }
        _ => {}
    }
}

/// Halves a bulk until each part is committed or is one operation: what frees room must not fail together with what
/// needs it.
fn run_in_parts(env: &Arc<EnvInner>, operations: Vec<Operation>) -> Outcome {
    let mut clock = 0;
    let mut results = Vec::with_capacity(operations.len());
    let mut parts = vec![operations];
    while let Some(part) = parts.pop() {
        let mut alone = vec![Job::unanswered(Task::Write(Write::Bulk(part)))];
        match attempt_one(env, &mut alone) {
            Ok(Outcome::Bulk {
                clock: now,
                results: done,
            }) => {
                clock = now;
                results.extend(done);
            }
            Ok(_) => {}
            Err(error) => match alone.pop().map(|job| job.task) {
                Some(Task::Write(Write::Bulk(mut part))) if part.len() > 1 => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([second, part]);
                }
                _ => results.push(Err(error.for_client())),
            },
        }
    }
    Outcome::Bulk { clock, results }
}

/// Runs a batch in one transaction, in which what arrives while another process holds the lock rides along if it may.
fn attempt(env: &Arc<EnvInner>, batch: &mut Vec<Job>, grow: bool) -> Attempt {
    let txn = match env.lmdb.write_txn() {
        Ok(txn) => txn,
        Err(error) => return Attempt::Failed(error.into()),
    };
    if grow {
        env.writer.take(batch);
    }
    let mut txn = Some(txn);
    let mut attempt = None;
    let hooks = &env.base.options.hooks;
    hooks.holding_write_lock(env.index, &mut || {
        if let Some(txn) = txn.take() {
            attempt = Some(apply_all(env, txn, batch));
        }
    });
    if let Some(Attempt::Committed(_, Some(clock))) = &attempt {
        env.publish(*clock);
        let operations = batch.iter().map(|job| job.operations).sum::<usize>();
        hooks.committed(&Commit {
            env: env.name.clone(),
            env_index: env.index,
            clock: *clock,
            operations: u32::try_from(operations).unwrap_or(u32::MAX),
            synced: env.durability.syncs(),
        });
    }
    attempt.unwrap_or(Attempt::Failed(Error::ShuttingDown))
}

fn apply_all(env: &Arc<EnvInner>, mut txn: RwTxn<'_>, batch: &[Job]) -> Attempt {
    let applier = env.applier();
    let mut ledger = match begin(env, &txn) {
        Ok(ledger) => ledger,
        Err(error) => return Attempt::Failed(error),
    };
    let before = ledger.state;
    let alone = batch.len() == 1;
    let mut outcomes = Vec::with_capacity(batch.len());
    for (place, job) in batch.iter().enumerate() {
        let result = tasks::run(env, &applier, &mut txn, &mut ledger, &job.task, alone);
        match result {
            Err(error) if error.poisons_transaction() => return Attempt::Culprit(place, error),
            // Alone in the transaction, a failed job has nobody to protect from its half-done work.
            Err(error @ Error::Operation { .. }) if alone => return Attempt::Culprit(place, error),
            result => outcomes.push(result),
        }
    }
    if ledger.state == before && !ledger.touched {
        // Nothing changed: no page to write, no sync to wait for.
        txn.abort();
        return Attempt::Committed(outcomes, None);
    }
    let committed = applier
        .finish(&mut txn, &ledger)
        .and_then(|()| txn.commit().map_err(Error::from));
    if let Err(error) = committed {
        return Attempt::Failed(error);
    }
    if ledger.state.catalog != before.catalog {
        env.base.chores.wake();
    }
    Attempt::Committed(outcomes, Some(ledger.state.clock))
}

fn begin(env: &EnvInner, txn: &RwTxn<'_>) -> Result<Ledger, Error> {
    let catalog = env.catalog.of_write(&env.tables, txn)?;
    let mut state = catalog::read_state(&env.tables, txn)?;
    let room = env.headroom.room(&env.lmdb);
    if !room.is_tight() {
        state.credit = 0;
    }
    Ok(Ledger::new(state, catalog, room))
}
