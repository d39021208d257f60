//! Background work: index builds, the rows of dropped types and indexes, superseded log entries.
//!
//! One process of a root does it: the server, or else the library process that holds the chores lock. Each step runs on
//! the environment's writer, holds the write lock for a few milliseconds, and leaves the store consistent: a death
//! between two steps costs nothing but time.

use std::{
    ops::{Bound, ControlFlow},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use heed::{RoTxn, RwTxn};

use crate::{
    Env, Error, IndexState, Outcome, Store,
    apply::{Applier, Ledger},
    catalog::{self, BuildFailure, BuildProgress, IndexDef, IndexRow, TypeDef},
    changes,
    env::EnvInner,
    index,
    layout::{self, LogRow},
    lmdb::{Table, Tables},
    root,
    scan::{Budget, KeyRange, Progress},
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
/// Pairs of duplicates that a failed build reports.
const DUPLICATES_MAX: usize = 10;
/// Records between two looks at the clock.
const ROWS_PER_LOOK: u64 = 16;
/// Records that one step of a build looks at, at most.
const ROWS_PER_STEP_MAX: usize = 2048;
/// Superseded log entries, or notes of them, that one step drops.
const PRUNE_ROWS: usize = 512;
/// Rows of each table that a sweep deletes at once.
const SWEEP_ROWS: usize = 256;
/// Log entries that one step of forgetting looks at, at most.
const FORGET_ROWS_MAX: usize = 1024;

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
        let builds = matches!(step, Step::Build { .. });
        match env.chore(step).wait() {
            Ok(_) => busy = true,
            Err(error @ Error::StorageFull(_)) => {
                tracing::warn!(env = name, %error, "background work waits for room");
                // A full store builds no index, and what frees room goes on. But notes must not go before their entries.
                if !builds {
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
    let retention = env.0.base.options.log_retention;
    let retention_ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
    let before_ms = wall_ms().saturating_sub(retention_ms);
    let scanned = scanned(tables, &snapshot.txn)?;
    let next = tables
        .log
        .get_greater_than(&snapshot.txn, &scanned.to_be_bytes())?;
    if let Some((_, row)) = next
        && okdb_shm::stamp_ms(LogRow::decode(row)?.hlc) < before_ms
    {
        steps.push(Step::Forget { before_ms });
    }
    Ok(steps)
}

fn scanned(tables: &Tables, txn: &RoTxn<'_>) -> Result<u64, Error> {
    match tables.meta.get(txn, layout::META_SCANNED)? {
        Some(row) => layout::decode_clock(row),
        None => Ok(0),
    }
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
            Self::Build { type_name, index } => build(env, applier, txn, ledger, type_name, index)?,
            Self::Sweep { id } => sweep(env, txn, *id)?,
            Self::Prune { dead } => prune(env, txn, dead)?,
            Self::ClearNotes { through } => {
                let through = through.to_be_bytes();
                let notes = (Bound::Unbounded, Bound::Included(through.as_slice()));
                let cleared = env.tables.dead.delete_range(txn, &notes)?;
                ledger.state.dead = ledger.state.dead.saturating_sub(cleared as u64);
            }
            Self::Forget { before_ms } => forget(env, txn, ledger, *before_ms)?,
        }
        Ok(Outcome::Dropped {
            clock: ledger.state.clock,
        })
    }
}

fn build(
    env: &EnvInner,
    applier: &Applier<'_>,
    txn: &mut RwTxn<'_>,
    ledger: &mut Ledger,
    type_name: &str,
    index_name: &str,
) -> Result<(), Error> {
    // Dropped, or finished by somebody else, since the step was queued.
    let Some(def) = ledger.catalog.get(type_name).cloned() else {
        return Ok(());
    };
    let Some(index) = def.index(index_name).cloned() else {
        return Ok(());
    };
    if index.row.state != IndexState::Building {
        return Ok(());
    }
    let tables = &env.tables;
    let progress_key = layout::build_key(index.row.id);
    let (records, last_key) = match tables.meta.get(txn, &progress_key)? {
        Some(row) => {
            let progress = BuildProgress::decode(row)?;
            (progress.records, progress.last_key.to_vec())
        }
        None => (0, Vec::new()),
    };
    let mut stretch = Stretch {
        records,
        last_key,
        ..Stretch::default()
    };
    stretch.add(env, txn, ledger, &def, &index)?;

    let state = match &stretch.failure {
        Some(_) => IndexState::Failed,
        None if stretch.finished => IndexState::Ready,
        None => IndexState::Building,
    };
    if state == IndexState::Ready {
        tables.meta.delete(txn, &progress_key)?;
    } else {
        let progress = BuildProgress {
            records: stretch.records,
            last_key: &stretch.last_key,
        };
        tables.meta.put(txn, &progress_key, &progress.encode())?;
    }
    let multikey = index.row.multikey || stretch.multikey;
    if state != IndexState::Building || multikey != index.row.multikey {
        let row = IndexRow {
            state,
            multikey,
            failure: stretch.failure,
            ..index.row.clone()
        };
        applier.amend_index(txn, ledger, type_name, &index, &row)?;
    }
    if state != IndexState::Building {
        tracing::info!(
            env = env.name,
            r#type = type_name,
            index = index_name,
            ?state,
            "index build ended"
        );
    }
    Ok(())
}

/// The records of one step of a build.
#[derive(Default)]
struct Stretch {
    /// Records seen since the build began.
    records: u64,
    /// The row key of the last of them.
    last_key: Vec<u8>,
    multikey: bool,
    finished: bool,
    failure: Option<BuildFailure>,
}

impl Stretch {
    /// Adds the entries of the records behind `last_key`, as many as the time allows.
    fn add(
        &mut self,
        env: &EnvInner,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        def: &TypeDef,
        index: &IndexDef,
    ) -> Result<(), Error> {
        let until = Instant::now() + STEP_TIME;
        let mut range = KeyRange::of_prefix(&def.id.to_be_bytes());
        if !self.last_key.is_empty() {
            range.lower = Bound::Excluded(self.last_key.clone());
        }
        let mut duplicates = Vec::new();
        // Keys first, then rows one by one: a range cannot be walked while entries are written.
        let mut row_keys = Vec::new();
        let progress = range.chunk(env.tables.data, txn, &mut Budget::new(), |row_key, _| {
            row_keys.push(row_key.to_vec());
            let full = row_keys.len() >= ROWS_PER_STEP_MAX;
            Ok(if full {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        self.finished = progress == Progress::Done;
        for row_key in row_keys {
            if self.records.is_multiple_of(ROWS_PER_LOOK) && Instant::now() >= until {
                self.finished = false;
                break;
            }
            let key = layout::key_of(&row_key)?;
            match entries_of(env, txn, def, index, &row_key)? {
                Entries::Fit { entries, multikey } => {
                    ledger.room.require(entries.iter().map(Vec::len).sum())?;
                    for entry in &entries {
                        env.tables.index.put(txn, entry, &[])?;
                    }
                    self.multikey |= multikey;
                }
                Entries::Duplicate { holder } => {
                    duplicates.push([holder, key.to_owned()]);
                    if duplicates.len() == DUPLICATES_MAX {
                        break;
                    }
                }
                Entries::Refused { message } => {
                    let message = format!("record {key:?}: {message}");
                    self.failure = Some(BuildFailure {
                        message,
                        duplicates,
                    });
                    return Ok(());
                }
            }
            self.records += 1;
            self.last_key = row_key;
        }
        if !duplicates.is_empty() {
            let message = "records share values that the index holds to be unique".to_owned();
            self.failure = Some(BuildFailure {
                message,
                duplicates,
            });
        }
        Ok(())
    }
}

/// What a record has for an index.
enum Entries {
    Fit {
        entries: Vec<Vec<u8>>,
        multikey: bool,
    },
    Duplicate {
        holder: String,
    },
    Refused {
        message: String,
    },
}

fn entries_of(
    env: &EnvInner,
    txn: &RwTxn<'_>,
    def: &TypeDef,
    index: &IndexDef,
    row_key: &[u8],
) -> Result<Entries, Error> {
    let key = layout::key_of(row_key)?;
    let row =
        env.tables.data.get(txn, row_key)?.ok_or_else(|| {
            Error::Damaged(format!("record {key:?} vanished within a transaction"))
        })?;
    let doc = index::parse_stored(layout::decode_record(row)?.1)?;
    let combinations = match index::combinations(index, &doc) {
        Ok(combinations) => combinations,
        Err(Error::InvalidIndex(message)) => return Ok(Entries::Refused { message }),
        Err(error) => return Err(error),
    };
    if index.row.unique
        && let Some(holder) = index::conflict(&env.tables, txn, index, def.id, &combinations, key)?
    {
        return Ok(Entries::Duplicate { holder });
    }
    Ok(Entries::Fit {
        entries: index::entries(&combinations, key),
        multikey: combinations.multikey,
    })
}

/// Deletes rows that a dropped type or index left, and its note once there are none.
fn sweep(env: &EnvInner, txn: &mut RwTxn<'_>, id: u32) -> Result<(), Error> {
    let until = Instant::now() + STEP_TIME;
    let tables = &env.tables;
    let prefix = id.to_be_bytes();
    while Instant::now() < until {
        let mut rows = 0;
        // A dropped type's log entries are found by its part of `log_type`, and go with it.
        let mut clocks = Vec::new();
        for row in tables.log_type.prefix_iter(txn, &prefix)?.take(SWEEP_ROWS) {
            clocks.push(layout::log_type_clock(row?.0)?);
        }
        for clock in &clocks {
            tables.log.delete(txn, &clock.to_be_bytes())?;
            tables
                .log_type
                .delete(txn, &layout::log_type_key(id, *clock))?;
        }
        rows += clocks.len();
        for table in [tables.data, tables.tomb, tables.index] {
            rows += delete_some(table, txn, &prefix)?;
        }
        if rows == 0 {
            tables.meta.delete(txn, &layout::trash_key(id))?;
            return Ok(());
        }
    }
    Ok(())
}

/// Deletes the first few rows under a prefix; tells how many.
fn delete_some(table: Table, txn: &mut RwTxn<'_>, prefix: &[u8]) -> Result<usize, Error> {
    let last = match table.prefix_iter(txn, prefix)?.take(SWEEP_ROWS).last() {
        Some(row) => row?.0.to_vec(),
        None => return Ok(0),
    };
    let range = (Bound::Included(prefix), Bound::Included(last.as_slice()));
    Ok(table.delete_range(txn, &range)?)
}

/// Drops superseded log entries. One that is gone already costs nothing.
fn prune(env: &EnvInner, txn: &mut RwTxn<'_>, dead: &[(u64, u32)]) -> Result<(), Error> {
    let tables = &env.tables;
    for (clock, type_id) in dead {
        tables.log.delete(txn, &clock.to_be_bytes())?;
        let key = layout::log_type_key(*type_id, *clock);
        tables.log_type.delete(txn, &key)?;
    }
    Ok(())
}

/// Drops removals that are past their retention, and their tombstones, from where the last step ended.
fn forget(
    env: &EnvInner,
    txn: &mut RwTxn<'_>,
    ledger: &mut Ledger,
    before_ms: u64,
) -> Result<(), Error> {
    let tables = &env.tables;
    let mut clock = scanned(tables, txn)?;
    let mut range = KeyRange::of_prefix(&[]);
    range.lower = Bound::Excluded(clock.to_be_bytes().to_vec());
    range.upper = Bound::Unbounded;
    let mut removals = Vec::new();
    let mut rows = 0;
    range.chunk(tables.log, txn, &mut Budget::new(), |key, row| {
        let row = LogRow::decode(row)?;
        if okdb_shm::stamp_ms(row.hlc) >= before_ms || rows == FORGET_ROWS_MAX {
            return Ok(ControlFlow::Break(()));
        }
        rows += 1;
        clock = layout::decode_clock(key)?;
        if row.action.removes() && changes::counts(tables, txn, clock, &row)? {
            let mut place = Vec::new();
            layout::record_key(row.type_id, row.key, &mut place);
            removals.push((clock, row.type_id, place));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    for (clock, type_id, place) in removals {
        tables.tomb.delete(txn, &place)?;
        tables.log.delete(txn, &clock.to_be_bytes())?;
        tables
            .log_type
            .delete(txn, &layout::log_type_key(type_id, clock))?;
        ledger.state.log_floor = ledger.state.log_floor.max(clock);
    }
    tables
        .meta
        .put(txn, layout::META_SCANNED, &clock.to_be_bytes())?;
    Ok(())
}
