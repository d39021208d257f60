//! The relations that are checked from the side of the entries, the log, the tombstones and the notes.

use std::{collections::HashMap, sync::Arc};

use super::Walk;
use crate::{
    Error, IndexState, SchemaState,
    catalog::{IndexDef, TypeDef},
    changes, index,
    layout::{self, CATALOG_ID, LogRow},
    schemas::SchemaDef,
};

impl Walk<'_> {
    /// Each entry belongs to a record, and there are no more of them than the records have.
    pub(super) fn index_entries(&mut self) -> Result<(), Error> {
        let mut known: HashMap<u32, (Arc<TypeDef>, Arc<IndexDef>)> = HashMap::new();
        for def in self.catalog.types() {
            for index in &def.indexes {
                known.insert(index.row.id, (Arc::clone(def), Arc::clone(index)));
            }
        }
        let mut found: HashMap<u32, u64> = HashMap::new();
        for row in self.tables.index.iter(self.txn)? {
            let (entry, _) = row?;
            self.saw_row();
            let Some(id) = self.decoded("index", "", "", layout::id_of(entry))? else {
                continue;
            };
            if self.trash.contains(&id) {
                continue;
            }
            self.report.entries += 1;
            *found.entry(id).or_default() += 1;
            match known.get(&id) {
                None => {
                    let detail = format!("an entry of the unknown index {id}");
                    self.problem("orphan", "", "", detail);
                }
                Some((_, index)) if index.row.state == IndexState::Failed => {}
                Some((def, index)) => self.index_entry(def, index, entry)?,
            }
        }
        for (id, (def, index)) in known {
            let Some(count) = self.entries.get(&id) else {
                continue;
            };
            let (expected, missing) = (count.expected, count.missing);
            let found = found.get(&id).copied().unwrap_or(0);
            // Each expected entry was looked up; a surplus is an entry that no record has any more.
            if found > expected - missing {
                let detail = format!(
                    "index {} has {found} entries; its records have {expected}, of which {missing} are missing",
                    index.name
                );
                self.problem("index", &def.name, "", detail);
            }
        }
        Ok(())
    }

    fn index_entry(&mut self, def: &TypeDef, index: &IndexDef, entry: &[u8]) -> Result<(), Error> {
        let split = index::split_entry(entry, index.paths.len());
        let Some((_, key)) = self.decoded("index", &def.name, "", split)? else {
            return Ok(());
        };
        let mut row_key = Vec::new();
        layout::record_key(def.id, key, &mut row_key);
        if self.tables.data.get(self.txn, &row_key)?.is_none() {
            let detail = format!("index {} names it, and it does not exist", index.name);
            self.problem("index", &def.name, key, detail);
        }
        Ok(())
    }

    /// Each entry of the log is in the type's part of it too; what no longer counts is noted as dead.
    pub(super) fn log(&mut self) -> Result<(), Error> {
        let mut superseded = 0;
        for row in self.tables.log.iter(self.txn)? {
            let (key, row) = row?;
            self.saw_row();
            self.report.changes += 1;
            let clock = self.decoded("log", "", "", layout::decode_clock(key))?;
            let row = self.decoded("log", "", "", LogRow::decode(row))?;
            let (Some(clock), Some(row)) = (clock, row) else {
                continue;
            };
            if self.trash.contains(&row.type_id) {
                continue;
            }
            let name = self.type_name(row.type_id);
            if clock > self.state.clock || row.hlc > self.state.hlc {
                let detail = format!(
                    "log entry {clock} is ahead of clock {} or its HLC",
                    self.state.clock
                );
                self.problem("clock", &name, row.key, detail);
            }
            if row.type_id != CATALOG_ID && self.catalog.by_id(row.type_id).is_none() {
                let detail = format!("log entry {clock} is of no type");
                self.problem("orphan", &name, row.key, detail);
            }
            let place = layout::log_type_key(row.type_id, clock);
            if self.tables.log_type.get(self.txn, &place)?.is_none() {
                let detail = format!("log entry {clock} is missing in the type's part of the log");
                self.problem("log", &name, row.key, detail);
            }
            let counts = changes::counts(self.tables, self.txn, clock, &row);
            if self.decoded("log", &name, row.key, counts)? == Some(false) {
                superseded += 1;
            }
        }
        let log = self.tables.log.len(self.txn)?;
        let by_type = self.tables.log_type.len(self.txn)?;
        if log != by_type {
            let detail = format!("{log} entries by clock, {by_type} by type");
            self.problem("log", "", "", detail);
        }
        if superseded > self.state.dead {
            let detail = format!(
                "{superseded} log entries are superseded, {} are noted",
                self.state.dead
            );
            self.problem("dead", "", "", detail);
        }
        Ok(())
    }

    /// Each tombstone stands for a record that is not there, and for a removal in the log.
    pub(super) fn tombstones(&mut self) -> Result<(), Error> {
        for row in self.tables.tomb.iter(self.txn)? {
            let (row_key, row) = row?;
            self.saw_row();
            let Some((type_id, key)) = self.place("tombstone", row_key)? else {
                continue;
            };
            let name = self.type_name(type_id);
            if self.tables.data.get(self.txn, row_key)?.is_some() {
                self.problem("tombstone", &name, key, "the record exists");
            }
            let clock = self.decoded("tombstone", &name, key, layout::decode_clock(row))?;
            if let Some(clock) = clock {
                self.check_logged(type_id, key, clock, true)?;
            }
        }
        Ok(())
    }

    /// What is noted as dead does not count.
    pub(super) fn dead(&mut self) -> Result<(), Error> {
        let count = self.tables.dead.len(self.txn)?;
        if count != self.state.dead {
            let detail = format!(
                "{count} superseded entries are noted, {} are counted",
                self.state.dead
            );
            self.problem("dead", "", "", detail);
        }
        for row in self.tables.dead.iter(self.txn)? {
            let (key, row) = row?;
            let by = self.decoded("dead", "", "", layout::decode_clock(key))?;
            let dead = self.decoded("dead", "", "", layout::decode_dead(row))?;
            let (Some(by), Some((clock, type_id))) = (by, dead) else {
                continue;
            };
            let Some(row) = self.tables.log.get(self.txn, &clock.to_be_bytes())? else {
                continue;
            };
            // An entry that does not decode has been told of.
            let Ok(row) = LogRow::decode(row) else {
                continue;
            };
            let name = self.type_name(type_id);
            let counts = changes::counts(self.tables, self.txn, clock, &row);
            if self.decoded("dead", &name, row.key, counts)? == Some(true)
                && !self.trash.contains(&type_id)
            {
                let detail =
                    format!("change {clock} counts, and {by} claims to have superseded it");
                self.problem("dead", &name, row.key, detail);
            }
        }
        Ok(())
    }

    /// Notes belong to something; ids and clocks are not ahead of what hands them out.
    pub(super) fn meta(&mut self) -> Result<(), Error> {
        let types = self.catalog.types();
        let indexes = || types.iter().flat_map(|def| &def.indexes);
        let type_ids: Vec<_> = types.iter().map(|def| def.id).collect();
        let building: Vec<_> = indexes()
            .filter(|index| index.row.state != IndexState::Ready)
            .map(|index| index.row.id)
            .collect();
        let checking = types.iter().filter(|def| {
            let checking = |schema: &Arc<SchemaDef>| schema.row.state == SchemaState::Checking;
            def.schema.as_ref().is_some_and(checking)
        });
        let checking: Vec<_> = checking.map(|def| def.id).collect();
        let cured = types.iter().filter(|def| def.schema.is_none());
        let cured: Vec<_> = cured.map(|def| def.id).collect();
        let references = types.iter().flat_map(|def| def.refs());
        let highest = indexes()
            .map(|index| index.row.id)
            .chain(references.map(|reference| reference.id))
            .chain(type_ids.iter().copied())
            .max();
        for (tag, what, owners) in [
            (b"c", "a count of the unknown type", type_ids),
            (b"b", "progress of the unknown build", building),
            (b"k", "progress of the unknown schema check", checking),
            (b"v", "a note on violations of the unknown type", cured),
        ] {
            for row in self.tables.meta.prefix_iter(self.txn, tag)? {
                let id = layout::id_of(row?.0.get(1..).unwrap_or_default());
                if let Some(id) = self.decoded("orphan", "", "", id)?
                    && !owners.contains(&id)
                {
                    self.problem("orphan", "", "", format!("{what} {id}"));
                }
            }
        }
        if highest.is_some_and(|id| id >= self.state.next_id) {
            let detail = format!("id {} would be given again", self.state.next_id);
            self.problem("catalog", "", "", detail);
        }
        if self.state.log_floor > self.state.clock {
            let detail = format!("the log begins at {}", self.state.log_floor);
            self.problem("clock", "", "", detail);
        }
        Ok(())
    }
}
