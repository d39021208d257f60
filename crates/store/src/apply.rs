//! Applying operations inside a write transaction.
//!
//! An operation is checked completely before its first mutation, so that a failure leaves the transaction as it was and
//! the other operations of the batch go on. What fails after a mutation (a full map, a full disk) poisons the
//! transaction; `writer` then abandons the batch and runs it again without the culprit.

mod definitions;
mod prepare;
mod removal;
mod schemas;

use std::sync::Arc;

use heed::{PutFlags, RwTxn};

pub(crate) use self::schemas::check_schema;
use self::{
    prepare::{Change, Prepared},
    removal::Cause,
};
use crate::{
    Action, Error, Operation, Written,
    catalog::{self, Catalog, TypeDef},
    check_key,
    layout::{self, Header, LogAction, LogRow, State},
    lmdb::Tables,
    room::Room,
    violations,
};

/// Room that a definition may cost: a row, its log entry, and a page or two that split.
pub(crate) const DEFINITION_BYTES: usize = 8192;

/// What a record costs beside its key and text: headers of rows and nodes in `data`, `log` and `log_type`.
const ROW_OVERHEAD_BYTES: usize = 128;

/// What a transaction has changed so far, beside its pages. A nested transaction works on a clone.
#[derive(Clone)]
pub(crate) struct Ledger {
    pub(crate) state: State,
    pub(crate) catalog: Arc<Catalog>,
    /// Changes of record counts: type id and difference.
    counts: Vec<(u32, i64)>,
    /// First clock of the multi-operation transaction under way; 0 outside of one.
    pub(crate) txn_mark: u64,
    /// What may still be added.
    pub(crate) room: Room,
    /// Whether pages changed in a way that the state row does not tell.
    pub(crate) touched: bool,
}

impl Ledger {
    pub(crate) fn new(state: State, catalog: Arc<Catalog>, room: Room) -> Self {
        Self {
            state,
            catalog,
            counts: Vec::new(),
            txn_mark: 0,
            room,
            touched: false,
        }
    }

    fn count(&mut self, type_id: u32, difference: i64) {
        match self.counts.iter_mut().find(|(id, _)| *id == type_id) {
            Some((_, sum)) => *sum += difference,
            None => self.counts.push((type_id, difference)),
        }
    }
}

/// What applying needs to know of its environment.
pub(crate) struct Applier<'e> {
    pub(crate) tables: &'e Tables,
    pub(crate) segment: &'e okdb_shm::Segment,
    pub(crate) value_bytes_max: usize,
    pub(crate) auto_types: bool,
    pub(crate) now_ms: u64,
}

/// A row about to be written, as `data`, the log and the tombstones need it.
struct Row<'a> {
    type_id: u32,
    key: &'a str,
    place: &'a [u8],
    old: Option<Header>,
    expires_ms: Option<u64>,
    action: LogAction,
}

impl Applier<'_> {
    /// Applies one operation on a record.
    pub(crate) fn operation(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        operation: &Operation,
    ) -> Result<Written, Error> {
        let def = self.type_of(txn, ledger, operation)?;
        let key = operation.key.as_str();
        check_key(key)?;
        let mut row_key = Vec::with_capacity(4 + key.len());
        layout::record_key(def.id, key, &mut row_key);

        let change = loop {
            match self.prepare(txn, ledger, &def, operation, &row_key)? {
                Prepared::Write(change) => break Some(change),
                Prepared::Remove => break None,
                // Each time round there is one less of them.
                Prepared::Expired(def, key) => {
                    self.remove(txn, ledger, &def, &key, Cause::Expired)?;
                }
            }
        };
        let created = change.as_ref().is_some_and(|change| change.old.is_none());
        let expires_ms = change.as_ref().and_then(|change| change.expires_ms);
        let version = match change {
            Some(change) => self.change(txn, ledger, &def, key, &row_key, change)?,
            None => self.remove(txn, ledger, &def, key, Cause::Deleted)?,
        };
        Ok(Written {
            key: key.to_owned(),
            version,
            created,
            expires_ms,
        })
    }

    /// Makes a change of one record that nothing refuses any more; returns its clock. What fails here poisons the
    /// transaction.
    fn change(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        def: &TypeDef,
        key: &str,
        row_key: &[u8],
        change: Change<'_>,
    ) -> Result<u64, Error> {
        let mut pages_before = None;
        let mut put_bytes = 0;
        if let Some(text) = &change.text {
            put_bytes = row_bytes(key, text) + change.added_bytes();
            let room = &mut ledger.room;
            room.take(put_bytes);
            pages_before = room.before_put(self.tables, txn, text.len(), change.old_bytes)?;
        } else if ledger.room.is_tight() {
            let freed = change.old_bytes + key.len() + ROW_OVERHEAD_BYTES;
            ledger.state.credit = ledger.state.credit.saturating_add(freed as u64);
        }

        // From here on the transaction is changed.
        if !change.newly_multikey.is_empty() {
            self.mark_multikey(txn, ledger, def, &change.newly_multikey)?;
        }
        for row in &change.removed {
            row.delete(self.tables, txn)?;
        }
        for row in &change.added {
            row.put(self.tables, txn)?;
        }
        violations::replace(
            self.tables,
            txn,
            def.id,
            key,
            &change.violations_before,
            change.violations,
        )?;
        let action = if change.text.is_some() {
            LogAction::Put
        } else {
            LogAction::Remove
        };
        let row = Row {
            type_id: def.id,
            key,
            place: row_key,
            old: change.old,
            expires_ms: change.expires_ms,
            action,
        };
        let version = if let Some(text) = &change.text {
            let version = self.write_row(txn, ledger, &row, text)?;
            if change.old.is_none() {
                ledger.count(def.id, 1);
                self.cure(txn, ledger, def, key)?;
            }
            version
        } else {
            ledger.count(def.id, -1);
            self.remove_row(txn, ledger, &row)?
        };
        let (room, credit) = (ledger.room, &mut ledger.state.credit);
        room.after_put(self.tables, txn, pages_before, put_bytes, credit)?;
        Ok(version)
    }

    fn type_of(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        operation: &Operation,
    ) -> Result<Arc<TypeDef>, Error> {
        let name = operation.type_name.as_str();
        if let Some(def) = ledger.catalog.get(name) {
            return Ok(Arc::clone(def));
        }
        if let (true, Action::Put(text) | Action::Create(text)) =
            (self.auto_types, &operation.action)
        {
            // What could refuse the operation must do so before the type is made.
            check_key(&operation.key)?;
            operation.guard.check(None)?;
            self.check_size(text)?;
            ledger
                .room
                .require(DEFINITION_BYTES + row_bytes(&operation.key, text))?;
            self.register_type(txn, ledger, name, &[], true)?;
        }
        ledger.catalog.require(name).cloned()
    }

    fn check_size(&self, text: &str) -> Result<(), Error> {
        if text.len() > self.value_bytes_max {
            return Err(Error::TooLarge {
                what: "the value in bytes",
                limit: self.value_bytes_max,
            });
        }
        Ok(())
    }

    /// Writes a row with the next clock as its version, and its place in the log.
    fn write_row(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        row: &Row<'_>,
        text: &str,
    ) -> Result<u64, Error> {
        let (version, hlc) = self.tick(ledger);
        let header = Header {
            version,
            hlc,
            created_ms: row.old.map_or(self.now_ms, |old| old.created_ms),
            expires_ms: row.expires_ms,
        };
        self.tables
            .data
            .put_reserved(txn, row.place, header.len() + text.len(), |space| {
                use std::io::Write as _;
                header.encode(space)?;
                space.write_all(text.as_bytes())
            })?;
        let superseded = match row.old {
            Some(old) => Some(old.version),
            None => self.take_tombstone(txn, row.place)?,
        };
        self.log(txn, ledger, row, version, hlc, superseded)?;
        Ok(version)
    }

    /// Deletes a row, leaving a tombstone with the next clock.
    fn remove_row(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        row: &Row<'_>,
    ) -> Result<u64, Error> {
        let (clock, hlc) = self.tick(ledger);
        self.tables.data.delete(txn, row.place)?;
        self.tables.tomb.put(txn, row.place, &clock.to_be_bytes())?;
        self.log(txn, ledger, row, clock, hlc, row.old.map(|old| old.version))?;
        Ok(clock)
    }

    fn take_tombstone(&self, txn: &mut RwTxn<'_>, row_key: &[u8]) -> Result<Option<u64>, Error> {
        let Some(clock) = self.tables.tomb.get(txn, row_key)? else {
            return Ok(None);
        };
        let clock = layout::decode_clock(clock)?;
        self.tables.tomb.delete(txn, row_key)?;
        Ok(Some(clock))
    }

    fn tick(&self, ledger: &mut Ledger) -> (u64, u64) {
        ledger.state.clock += 1;
        let hlc = self.segment.hlc().now(self.now_ms);
        ledger.state.hlc = ledger.state.hlc.max(hlc);
        (ledger.state.clock, hlc)
    }

    fn log(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        row: &Row<'_>,
        clock: u64,
        hlc: u64,
        superseded: Option<u64>,
    ) -> Result<(), Error> {
        let entry = LogRow {
            type_id: row.type_id,
            action: row.action,
            hlc,
            txn: ledger.txn_mark,
            key: row.key,
        };
        let mut bytes = Vec::with_capacity(21 + row.key.len());
        entry.encode(&mut bytes);
        // The clock only rises: the new row is the last one of its table.
        self.tables
            .log
            .put_with_flags(txn, PutFlags::APPEND, &clock.to_be_bytes(), &bytes)?;
        self.tables
            .log_type
            .put(txn, &layout::log_type_key(row.type_id, clock), &[])?;
        match superseded {
            // Where room is short it counts at once, at the price of a random page.
            Some(superseded) if ledger.room.is_tight() => {
                self.tables.log.delete(txn, &superseded.to_be_bytes())?;
                self.tables
                    .log_type
                    .delete(txn, &layout::log_type_key(row.type_id, superseded))?;
                Ok(())
            }
            Some(superseded) => self.note_dead(txn, ledger, clock, superseded, row.type_id),
            None => Ok(()),
        }
    }

    /// Notes that a log entry no longer counts; a chore drops it later, in order and many at a time.
    fn note_dead(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        clock: u64,
        superseded: u64,
        type_id: u32,
    ) -> Result<(), Error> {
        let row = layout::dead_row(superseded, type_id);
        self.tables
            .dead
            .put_with_flags(txn, PutFlags::APPEND, &clock.to_be_bytes(), &row)?;
        ledger.state.dead += 1;
        Ok(())
    }

    /// Writes what the ledger gathered; the last step before a commit.
    pub(crate) fn finish(&self, txn: &mut RwTxn<'_>, ledger: &Ledger) -> Result<(), Error> {
        for (type_id, difference) in &ledger.counts {
            if *difference == 0 || ledger.catalog.by_id(*type_id).is_none() {
                continue;
            }
            let count = catalog::read_count(self.tables, txn, *type_id)?
                .checked_add_signed(*difference)
                .ok_or_else(|| {
                    Error::Damaged(format!("the count of type {type_id} falls below zero"))
                })?;
            self.tables
                .meta
                .put(txn, &layout::count_key(*type_id), &count.to_be_bytes())?;
        }
        self.tables
            .meta
            .put(txn, layout::META_STATE, &ledger.state.encode())?;
        Ok(())
    }
}

/// What a record adds to `data` and the log, rows' headers and all.
fn row_bytes(key: &str, text: &str) -> usize {
    text.len() + 2 * key.len() + ROW_OVERHEAD_BYTES
}
