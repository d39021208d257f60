//! One environment: its LMDB handle, its writer, and the door to everything that can be asked of it.

use std::{path::PathBuf, sync::Arc};

use okdb_shm::Segment;

use crate::{
    Durability, Error, Hooks, Limits, OpenError, Pending, Snapshot, Write,
    apply::Applier,
    catalog::{self, CatalogCache},
    chores::Step,
    cursor::CursorKey,
    layout::{self, FIRST_ID, State},
    lmdb::{self, Lmdb, Tables},
    store::wall_ms,
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
}

/// A handle on an open environment. Clones share one handle.
#[derive(Clone)]
pub struct Env(pub(crate) Arc<EnvInner>);

pub(crate) struct EnvInner {
    pub(crate) name: String,
    pub(crate) index: u16,
    pub(crate) dir: PathBuf,
    pub(crate) lmdb: Lmdb,
    pub(crate) tables: Tables,
    pub(crate) page_bytes: usize,
    pub(crate) durability: Durability,
    pub(crate) catalog: CatalogCache,
    pub(crate) segment: Arc<Segment>,
    pub(crate) writer: Writer,
    pub(crate) limits: Limits,
    pub(crate) hooks: Arc<dyn Hooks>,
    pub(crate) auto_types: bool,
    pub(crate) cursor_key: CursorKey,
    /// The root's identity: the origin of every change made here.
    pub(crate) origin: String,
}

/// What opening an environment needs to know.
pub(crate) struct Opening {
    pub(crate) name: String,
    pub(crate) index: u16,
    pub(crate) dir: PathBuf,
    pub(crate) map_bytes: usize,
    pub(crate) durability: Durability,
    pub(crate) boot: [u8; 16],
    pub(crate) segment: Arc<Segment>,
    pub(crate) limits: Limits,
    pub(crate) hooks: Arc<dyn Hooks>,
    pub(crate) auto_types: bool,
    pub(crate) secret: [u8; 32],
    pub(crate) origin: String,
}

impl Env {
    pub(crate) fn open(opening: Opening) -> Result<Self, OpenError> {
        let (lmdb, tables) = lmdb::open_env(&opening.dir, opening.map_bytes, opening.durability)?;
        let page_bytes = {
            let txn = lmdb.read_txn().map_err(Error::from)?;
            tables.meta.stat(&txn).map_err(Error::from)?.page_size as usize
        };
        let inner = EnvInner {
            cursor_key: CursorKey::new(&opening.secret, &opening.name),
            name: opening.name,
            index: opening.index,
            dir: opening.dir,
            lmdb,
            tables,
            page_bytes,
            durability: opening.durability,
            catalog: CatalogCache::default(),
            segment: opening.segment,
            writer: Writer::new(),
            limits: opening.limits,
            hooks: opening.hooks,
            auto_types: opening.auto_types,
            origin: opening.origin,
        };
        inner.claim_segment_row()?;
        inner.lmdb.clear_stale_readers().map_err(Error::from)?;
        inner.enter_epoch(opening.boot)?;
        let env = Self(Arc::new(inner));
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
        Ok(EnvInfo {
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
        })
    }

    pub(crate) fn applier(&self) -> Applier<'_> {
        Applier {
            tables: &self.tables,
            segment: &self.segment,
            value_bytes_max: self.limits.value_bytes,
            auto_types: self.auto_types,
            now_ms: wall_ms(),
        }
    }

    /// Tells other processes how far this environment is. A hint: never ahead of what a new read transaction sees.
    pub(crate) fn publish(&self, clock: u64) {
        if let Some(row) = self.segment.env(usize::from(self.index)) {
            row.publish(clock);
        }
    }

    /// Publishes the durable clock, whatever was published before.
    pub(crate) fn republish(&self) -> Result<(), Error> {
        let txn = self.lmdb.read_txn()?;
        let state = catalog::read_state(&self.tables, &txn)?;
        self.segment.hlc().observe(state.hlc);
        self.publish(state.clock);
        Ok(())
    }

    /// Takes one write transaction: only a writer repairs what a process that was killed inside its commit left half-told.
    pub(crate) fn repair(&self) -> Result<(), Error> {
        self.lmdb.write_txn()?.abort();
        self.republish()
    }

    /// Makes the row of the segment that has this environment's place its own.
    fn claim_segment_row(&self) -> Result<(), OpenError> {
        let hash = blake3::hash(self.name.as_bytes());
        let mut identity = [0; 8];
        identity.copy_from_slice(&hash.as_bytes()[..8]);
        let row = self.segment.env(usize::from(self.index));
        let claimed = row.is_some_and(|row| row.claim(u64::from_le_bytes(identity) | 1).is_ok());
        if claimed {
            return Ok(());
        }
        Err(OpenError::Segment {
            root: self.dir.clone(),
            reason: format!("its row {} belongs to another environment", self.index),
        })
    }

    /// Notes that this boot uses the environment, and deals with what the end of another boot may have undone.
    fn enter_epoch(&self, boot: [u8; 16]) -> Result<(), OpenError> {
        let current = Epoch { boot, clean: false };
        {
            let txn = self.lmdb.read_txn().map_err(Error::from)?;
            if self.read_epoch(&txn)? == Some(current) {
                return Ok(());
            }
        }
        let mut txn = self.lmdb.write_txn().map_err(Error::from)?;
        let epoch = self.read_epoch(&txn)?;
        let mut state = match self
            .tables
            .meta
            .get(&txn, layout::META_STATE)
            .map_err(Error::from)?
        {
            Some(row) => State::decode(row)?,
            None => State {
                catalog: 1,
                next_id: FIRST_ID,
                ..State::default()
            },
        };
        let undone = self.durability != Durability::Strict
            && epoch.is_some_and(|epoch| epoch.boot != boot && !epoch.clean);
        if undone {
            if self.durability == Durability::Fast {
                self.verify_before_service(&txn)?;
            }
            state.clock += CLOCK_JUMP;
            tracing::warn!(
                env = self.name, durability = %self.durability, clock = state.clock,
                "the host went down while this environment was open: the last commits may be undone, so its clock jumps ahead"
            );
        }
        let put =
            |txn: &mut heed::RwTxn<'_>, key: &[u8], row: &[u8]| self.tables.meta.put(txn, key, row);
        put(&mut txn, layout::META_STATE, &state.encode()).map_err(Error::from)?;
        put(&mut txn, layout::META_EPOCH, &current.encode()).map_err(Error::from)?;
        txn.commit().map_err(Error::from)?;
        self.lmdb.force_sync().map_err(Error::from)?;
        Ok(())
    }

    fn verify_before_service(&self, txn: &heed::RoTxn<'_>) -> Result<(), OpenError> {
        tracing::warn!(
            env = self.name,
            "verifying an environment that a power loss may have damaged"
        );
        let report = verify::walk(self, txn, &mut |_, _| {})?;
        match report.problems.first() {
            None => Ok(()),
            Some(problem) => Err(OpenError::Damaged {
                root: self.dir.clone(),
                reason: format!(
                    "environment {:?} was in durability fast when the host went down, and {} problems were found (first: {problem}); restore a backup",
                    self.name,
                    report.problems.len()
                ),
            }),
        }
    }

    fn read_epoch(&self, txn: &heed::RoTxn<'_>) -> Result<Option<Epoch>, Error> {
        let row = self.tables.meta.get(txn, layout::META_EPOCH)?;
        Ok(row.and_then(Epoch::decode))
    }

    /// Marks a clean end, once everything is on disk. The caller is the root's only user.
    pub(crate) fn leave_epoch(&self, boot: [u8; 16]) -> Result<(), Error> {
        self.lmdb.force_sync()?;
        let mut txn = self.lmdb.write_txn()?;
        let epoch = Epoch { boot, clean: true };
        self.tables
            .meta
            .put(&mut txn, layout::META_EPOCH, &epoch.encode())?;
        txn.commit()?;
        self.lmdb.force_sync()?;
        Ok(())
    }
}

/// Which boot of the host used the environment last, and whether it ended well.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Epoch {
    boot: [u8; 16],
    clean: bool,
}

impl Epoch {
    fn encode(self) -> [u8; 17] {
        let mut row = [0; 17];
        row[..16].copy_from_slice(&self.boot);
        row[16] = u8::from(self.clean);
        row
    }

    fn decode(row: &[u8]) -> Option<Self> {
        let (boot, clean) = row.split_first_chunk::<16>()?;
        Some(Self {
            boot: *boot,
            clean: clean == [1],
        })
    }
}
