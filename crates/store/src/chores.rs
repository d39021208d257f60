//! Background work: index builds, the rows of dropped types and indexes, superseded log entries.
//!
//! One process of a root does it: the server, or else the library process that holds the chores lock. Each step runs on
//! the environment's writer, holds the write lock for a few milliseconds, and leaves the store consistent: a death
//! between two steps costs nothing but time.

mod build;
mod check;
mod expiry;
mod sweep;

use std::{
    ops::Bound,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use heed::RwTxn;

use crate::{
    Env, Error, IndexState, Outcome, SchemaState, Store,
    apply::{Applier, Ledger},
    catalog,
    env::EnvInner,
    expiry::first_is_due,
    layout::{self, LogRow},
    root,
    schemas::SchemaDef,
    store::wall_ms,
};

/// How long a step may hold the write lock.
const STEP_TIME: Duration = Duration::from_millis(5);
/// How often to look for work without being woken: pokes may be lost.
const TICK: Duration = Duration::from_millis(250);
/// Superseded log entries worth a pass over the log.
const DEAD_MIN: u64 = 16_384;
/// Superseded log entries dropped in one pass, in the order of the log.
const DEAD_PASS_MAX: usize = 131_072;
/// Records between two looks at the clock.
const ROWS_PER_LOOK: u64 = 16;
/// Records that one step of a build looks at, at most.
const ROWS_PER_STEP_MAX: usize = 2048;
/// Superseded log entries, or notes of them, that one step drops.
const PRUNE_ROWS: usize = 512;

/// Asks a blocking task to end.
#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// A flag that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets it, for good.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it is set.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Where the background work waits.
#[derive(Default)]
pub(crate) struct Chores {
    woken: Mutex<bool>,
    signal: Condvar,
}

impl Chores {
    pub(crate) fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.signal.notify_all();
    }

    fn wait(&self) {
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.signal.wait_timeout_while(woken, TICK, |woken| !*woken);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    pub(crate) fn run(&self, store: &Store, stop: &StopFlag) {
        let mut lock = None;
        while !stop.is_stopped() {
            if lock.is_none() {
                lock = root::try_chores_lock(store.root());
            }
            let busy = lock.is_some()
                && match pass(store, stop) {
                    Ok(busy) => busy,
                    Err(Error::ShuttingDown) => return,
                    Err(error) => {
                        tracing::error!(%error, "background work failed; trying again");
                        false
                    }
                };
            if !busy {
                self.wait();
            }
        }
    }
}

/// One step for each thing that waits; tells whether there was any. What goes wrong in one environment keeps none of the
/// others waiting.
fn pass(store: &Store, stop: &StopFlag) -> Result<bool, Error> {
    let mut busy = false;
    for name in store.env_names()? {
        match pass_env(store, &name, stop) {
            Ok(done) => busy |= done,
            Err(Error::ShuttingDown) => return Err(Error::ShuttingDown),
            Err(error) => {
                tracing::error!(env = name, %error, "background work failed; trying again");
            }
        }
    }
    Ok(busy)
}

fn pass_env(store: &Store, name: &str, stop: &StopFlag) -> Result<bool, Error> {
    let env = store.env(name)?;
    let mut busy = false;
    for step in due(&env)? {
        if stop.is_stopped() {
            return Ok(false);
        }
        let adds = step.adds();
        match env.chore(step).wait() {
            Ok(_) => busy = true,
            Err(error @ Error::StorageFull(_)) => {
                tracing::warn!(env = name, %error, "background work waits for room");
                // A full store builds and checks nothing, and what frees room goes on. But notes must not go before their entries.
                if !adds {
                    return Ok(busy);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(busy)
}

/// A bounded piece of background work.
pub(crate) enum Step {
    /// Adds the entries of some more records to an index that is building.
    Build { type_name: String, index: String },
    /// Deletes some more rows of a dropped type or index.
    Sweep { id: u32 },
    /// Drops these superseded log entries: clock and type id.
    Prune { dead: Vec<(u64, u32)> },
    /// Drops the notes of superseded entries that were dropped, up to and with this superseding clock.
    ClearNotes { through: u64 },
    /// Drops removals that were made before this time, in ms since 1970, from the log.
    Forget { before_ms: u64 },
    /// Looks at some more records of a type that were there before its schema.
    CheckSchema { type_name: String },
    /// Drops some more violations of a type that has no schema any more.
    DropViolations { type_id: u32 },
    /// Removes some more records whose time is over.
    Expire,
}

impl Step {
    /// Whether it needs room, and can wait for it.
    pub(crate) fn adds(&self) -> bool {
        matches!(self, Self::Build { .. } | Self::CheckSchema { .. })
    }
}

/// What waits in an environment.
fn due(env: &Env) -> Result<Vec<Step>, Error> {
    let snapshot = env.snapshot()?;
    let tables = &env.0.tables;
    let mut steps = Vec::new();
    for def in snapshot.catalog.types() {
        for index in &def.indexes {
            if index.row.state == IndexState::Building {
                steps.push(Step::Build {
                    type_name: def.name.clone(),
                    index: index.name.clone(),
                });
            }
        }
    }
    for def in snapshot.catalog.types() {
        let checking = |schema: &Arc<SchemaDef>| schema.row.state == SchemaState::Checking;
        if def.schema.as_ref().is_some_and(checking) {
            steps.push(Step::CheckSchema {
                type_name: def.name.clone(),
            });
        }
    }
    for row in tables.meta.prefix_iter(&snapshot.txn, b"v")? {
        steps.push(Step::DropViolations {
            type_id: layout::id_of(row?.0.get(1..).unwrap_or_default())?,
        });
    }
    for row in tables.meta.prefix_iter(&snapshot.txn, b"t")? {
        let (key, _) = row?;
        steps.push(Step::Sweep {
            id: layout::id_of(key.get(1..).unwrap_or_default())?,
        });
    }
    let state = catalog::read_state(tables, &snapshot.txn)?;
    // (Where room is short, a few are worth it too.)
    if state.dead >= DEAD_MIN || (state.dead > 0 && env.0.headroom.is_tight()) {
        let mut dead = Vec::new();
        let mut notes = Vec::new();
        for row in tables.dead.iter(&snapshot.txn)?.take(DEAD_PASS_MAX) {
            let (key, row) = row?;
            dead.push(layout::decode_dead(row)?);
            notes.push(layout::decode_clock(key)?);
        }
        // In the order of the log, many entries share a page; in the order of the notes, hardly any do. So first the
        // entries in the one order, then their notes in the other: a death in between leaves notes of what is gone.
        dead.sort_unstable();
        steps.extend(dead.chunks(PRUNE_ROWS).map(|chunk| Step::Prune {
            dead: chunk.to_vec(),
        }));
        let ends = notes.chunks(PRUNE_ROWS).filter_map(|chunk| chunk.last());
        steps.extend(ends.map(|end| Step::ClearNotes { through: *end }));
    }
    if first_is_due(tables, &snapshot.txn, snapshot.now_ms())? {
        steps.push(Step::Expire);
    }
    let retention = env.0.base.options.log_retention;
    let retention_ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
    let before_ms = wall_ms().saturating_sub(retention_ms);
    let scanned = sweep::scanned(tables, &snapshot.txn)?;
    let next = tables
        .log
        .get_greater_than(&snapshot.txn, &scanned.to_be_bytes())?;
    if let Some((clock, row)) = next
        && okdb_shm::stamp_ms(LogRow::decode(row)?.hlc) < before_ms
        && layout::decode_clock(clock)? <= sweep::slowest_cursor(tables, &snapshot.txn)?
    {
        steps.push(Step::Forget { before_ms });
    }
    Ok(steps)
}

impl Step {
    /// Runs inside the writer's transaction.
    pub(crate) fn run(
        &self,
        env: &EnvInner,
        applier: &Applier<'_>,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
    ) -> Result<Outcome, Error> {
        ledger.touched = true;
        match self {
            Self::Build { type_name, index } => {
                build::step(env, applier, txn, ledger, type_name, index)?;
            }
            Self::CheckSchema { type_name } => {
                check::step(env, applier, txn, ledger, type_name)?;
            }
            Self::DropViolations { type_id } => check::drop_violations(env, txn, *type_id)?,
            Self::Expire => {
                let records = expiry::step(env, applier, txn, ledger)?;
                return Ok(Outcome::Swept { records });
            }
            Self::Sweep { id } => sweep::sweep(env, txn, *id)?,
            Self::Prune { dead } => sweep::prune(env, txn, dead)?,
            Self::ClearNotes { through } => {
                let through = through.to_be_bytes();
                let notes = (Bound::Unbounded, Bound::Included(through.as_slice()));
                let cleared = env.tables.dead.delete_range(txn, &notes)?;
                ledger.state.dead = ledger.state.dead.saturating_sub(cleared as u64);
            }
            Self::Forget { before_ms } => sweep::forget(env, txn, ledger, *before_ms)?,
        }
        Ok(Outcome::Dropped {
            clock: ledger.state.clock,
        })
    }
}
