//! One environment: its LMDB handle, its writer, and the door to everything that can be asked of it.

use std::{
    cell::OnceCell,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    Durability, Error, OpenError, Pending, Snapshot, Write,
    apply::Applier,
    catalog::{self, CatalogCache},
    chores::Step,
    cursor::CursorKey,
    layout::{self, FIRST_ID, State},
    lmdb::{self, Lmdb, Tables},
    pages,
    room::Headroom,
    store::{Base, hex, wall_ms},
    system::{self, EnvRow, Past},
    verify,
    writer::{Task, Writer},
};

/// How far the clock jumps when commits may have been undone: their clocks must not come back for other content.
const CLOCK_JUMP: u64 = 1 << 32;

/// An environment, for people and programs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct EnvInfo {
    /// Its name.
    pub name: String,
    /// Its clock.
    pub clock: u64,
    /// `strict`, `balanced` or `fast`.
    pub durability: String,
    /// Bytes of its data file.
    pub bytes: u64,
    /// Bytes in pages that no live data occupies.
    pub reclaimable: u64,
    /// Bytes that it can grow to. Like the rest below no part of the HTTP API's answers.
    #[serde(skip)]
    pub map_size: u64,
    /// Reader slots that have been in use at a time, by all processes.
    #[serde(skip)]
    pub readers: u64,
    /// Its place in the segment's table.
    #[serde(skip)]
    pub index: u16,
}

/// A handle on an open environment. Clones share one handle; while any lives, the root is in use.
#[derive(Clone)]
pub struct Env(pub(crate) Arc<EnvInner>);

pub(crate) struct EnvInner {
    pub(crate) name: String,
    pub(crate) index: u16,
    pub(crate) dir: PathBuf,
    pub(crate) lmdb: Lmdb,
    pub(crate) tables: Tables,
    pub(crate) page_bytes: usize,
    pub(crate) headroom: Headroom,
    pub(crate) durability: Durability,
    pub(crate) catalog: CatalogCache,
    pub(crate) writer: Writer,
    pub(crate) cursor_key: CursorKey,
    /// The root's identity: the origin of every change made here.
    pub(crate) origin: String,
    /// Last, so that the root's locks outlive the files.
    pub(crate) base: Arc<Base>,
}

impl Env {
    pub(crate) fn open(base: Arc<Base>, name: &str, row: &EnvRow) -> Result<Self, OpenError> {
        let durability = base.system.durability_of(row)?;
        let dir = system::env_dir(&base.root, name, row);
        claim_segment_row(&base, name, row.index)?;
        let open = |past| open_files(&base, name, &dir, durability, past);
        let strict = durability == Durability::Strict;
        let (lmdb, tables) = if strict && !base.system.has_epoch(name)? {
            // Nothing that was promised can be undone, however the host goes down.
            open(Past::Whole)?
        } else {
            base.system.in_epoch(name, base.boot, durability, open)?
        };
        if strict && base.system.has_epoch(name)? {
            // It was not always strict: what is not on disk yet has to be, once.
            lmdb.force_sync().map_err(Error::from)?;
            base.system.forget_epoch(name)?;
        }
        lmdb.clear_stale_readers().map_err(Error::from)?;
        let page_bytes = {
            let txn = lmdb.read_txn().map_err(Error::from)?;
            tables.meta.stat(&txn).map_err(Error::from)?.page_size as usize
        };
        let headroom = Headroom::new(&lmdb, page_bytes)?;
        let env = Self(Arc::new(EnvInner {
            name: name.to_owned(),
            index: row.index,
            dir,
            lmdb,
            tables,
            page_bytes,
            headroom,
            durability,
            catalog: CatalogCache::default(),
            writer: Writer::new(),
            cursor_key: CursorKey::new(&base.system.secret, name),
            origin: hex(&base.system.identity),
            base,
        }));
        env.0.republish()?;
        Ok(env)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its place in the shared segment's table.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.0.index
    }

    /// What its replies promise.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.0.durability
    }

    /// Its figures.
    ///
    /// # Errors
    /// What LMDB or the file system report.
    pub fn info(&self) -> Result<EnvInfo, Error> {
        let snapshot = self.snapshot()?;
        let env = &self.0;
        // By path: an own descriptor on the environment's files could cost its locks.
        let bytes = std::fs::metadata(env.dir.join("data.mdb"))?.len();
        let used = env
            .tables
            .pages_used(&snapshot.txn)?
            .saturating_mul(env.page_bytes);
        let map = env.lmdb.info();
        Ok(EnvInfo {
            map_size: map.map_size as u64,
            readers: u64::from(map.number_of_readers),
            index: env.index,
            name: env.name.clone(),
            clock: snapshot.clock()?,
            durability: env.durability.to_string(),
            bytes,
            reclaimable: bytes.saturating_sub(used as u64),
        })
    }

    /// A fresh view. Whatever was acknowledged before this call, by any process, is in it.
    ///
    /// # Errors
    /// What LMDB reports, a full reader table among it.
    pub fn snapshot(&self) -> Result<Snapshot<'_>, Error> {
        self.0.snapshot()
    }

    /// Queues a write for the environment's writer thread. Never blocks.
    pub fn submit(&self, write: Write) -> Pending {
        self.0.writer.submit(&self.0, Task::Write(write))
    }

    pub(crate) fn chore(&self, step: Step) -> Pending {
        self.0.writer.submit(&self.0, Task::Chore(step))
    }
}

impl EnvInner {
    pub(crate) fn snapshot(&self) -> Result<Snapshot<'_>, Error> {
        let txn = self.lmdb.read_txn()?;
        let catalog = self.catalog.of_snapshot(&self.tables, &txn)?;
        Ok(Snapshot {
            env: self,
            txn,
            catalog,
            now: OnceCell::new(),
        })
    }

    pub(crate) fn applier(&self) -> Applier<'_> {
        let options = &self.base.options;
        Applier {
            tables: &self.tables,
            segment: &self.base.segment,
            value_bytes_max: options.limits.value_bytes,
            auto_types: options.auto_types,
            now_ms: wall_ms(),
        }
    }

    /// Tells other processes how far this environment is. A hint: never ahead of what a new read transaction sees.
    pub(crate) fn publish(&self, clock: u64) {
        if let Some(row) = self.base.segment.env(usize::from(self.index)) {
            row.publish(clock);
        }
    }

    /// Publishes the durable clock, whatever was published before.
    pub(crate) fn republish(&self) -> Result<(), Error> {
        let txn = self.lmdb.read_txn()?;
        let state = catalog::read_state(&self.tables, &txn)?;
        self.base.segment.hlc().observe(state.hlc);
        self.publish(state.clock);
        Ok(())
    }

    /// Takes one write transaction: only a writer repairs what a process that was killed inside its commit left half-told.
    pub(crate) fn repair(&self) -> Result<(), Error> {
        self.lmdb.write_txn()?.abort();
        self.republish()
    }

    /// Commits next to nothing, so that the pages which the last transaction freed can be used again.
    pub(crate) fn advance(&self) -> Result<(), Error> {
        let mut txn = self.lmdb.write_txn()?;
        let state = catalog::read_state(&self.tables, &txn)?;
        self.tables
            .meta
            .put(&mut txn, layout::META_STATE, &state.encode())?;
        Ok(txn.commit()?)
    }

    /// Marks a clean end, once everything is on disk. The caller is the root's only user.
    pub(crate) fn leave_epoch(&self) -> Result<(), Error> {
        if self.durability == Durability::Strict {
            return Ok(());
        }
        self.lmdb.force_sync()?;
        self.base.system.leave_epoch(&self.name, self.base.boot)
    }
}

/// Makes the row of the segment that has this environment's place its own.
fn claim_segment_row(base: &Base, name: &str, index: u16) -> Result<(), OpenError> {
    let hash = blake3::hash(name.as_bytes());
    let mut identity = [0; 8];
    identity.copy_from_slice(&hash.as_bytes()[..8]);
    let row = base.segment.env(usize::from(index));
    let claimed = row.is_some_and(|row| row.claim(u64::from_le_bytes(identity) | 1).is_ok());
    if claimed {
        return Ok(());
    }
    Err(OpenError::Segment {
        root: base.root.clone(),
        reason: format!("its row {index} belongs to another environment than {name:?}"),
    })
}

/// Opens an environment's files, makes what is missing in them, and deals with what the end of another boot may have done.
fn open_files(
    base: &Base,
    name: &str,
    dir: &Path,
    durability: Durability,
    past: Past,
) -> Result<(Lmdb, Tables), OpenError> {
    let suspect = past == Past::Suspect;
    let damaged = |what: String| OpenError::Damaged {
        root: base.root.clone(),
        reason: format!(
            "environment {name:?} was in durability fast when the host went down, and its files in {} are not whole: {what}; restore a backup",
            dir.display()
        ),
    };
    if suspect {
        tracing::warn!(
            env = name,
            "verifying an environment that a power loss may have damaged"
        );
        // Before LMDB sees them: it trusts its files, and would crash on some damage.
        pages::check(&dir.join("data.mdb")).map_err(damaged)?;
    }
    let (lmdb, tables) = lmdb::open_env(dir, base.system.map_bytes, durability)?;
    if past == Past::Whole {
        let txn = lmdb.read_txn().map_err(Error::from)?;
        if catalog::has_state(&tables, &txn)? {
            drop(txn);
            return Ok((lmdb, tables));
        }
    }
    let mut txn = lmdb.write_txn().map_err(Error::from)?;
    let stored = tables
        .meta
        .get(&txn, layout::META_STATE)
        .map_err(Error::from)?
        .map(State::decode)
        .transpose()?;
    if suspect && stored.is_some() {
        let report = verify::walk(&tables, &txn, &mut |_, _| {})?;
        if let Some(problem) = report.problems.first() {
            let count = report.problem_count;
            return Err(damaged(format!("{count} problems, the first: {problem}")));
        }
    }
    let state = match stored {
        Some(state) if past != Past::Whole => {
            let clock = state.clock.checked_add(CLOCK_JUMP).ok_or_else(|| {
                Error::Damaged(format!("the clock {} cannot be advanced", state.clock))
            })?;
            tracing::warn!(
                env = name, %durability, clock,
                "the host went down while this environment was open: the last commits may be undone, so its clock jumps ahead"
            );
            State { clock, ..state }
        }
        Some(_) => {
            txn.abort();
            return Ok((lmdb, tables));
        }
        None => State {
            catalog: 1,
            next_id: FIRST_ID,
            ..State::default()
        },
    };
    tables
        .meta
        .put(&mut txn, layout::META_STATE, &state.encode())
        .map_err(Error::from)?;
    txn.commit().map_err(Error::from)?;
    // Whatever the durability: the epoch that is written next says that this has happened.
    lmdb.force_sync().map_err(Error::from)?;
    Ok((lmdb, tables))
}
