//! Walking an environment and checking every relation in it: the oracle of every crash test.
//!
//! Checked: each record ↔ its log entry and ↔ its index entries (none missing, none left over, each record once under its
//! version); each tombstone ↔ its log entry; each log entry ↔ `log_type`; superseded entries ↔ `dead`; counts; clock and HLC ≥
//! every one in use; no rows of unknown types or indexes but those that wait to be swept.

use std::{collections::HashMap, fmt};

use heed::RoTxn;
use serde::Serialize;

use crate::{
    Env, Error, IndexState,
    catalog::{self, Catalog, IndexDef, TypeDef},
    changes, index,
    layout::{self, CATALOG_ID, LogRow, State},
    lmdb::Tables,
};

/// Problems that are listed; more are only counted.
const PROBLEMS_MAX: usize = 1000;

/// What a walk found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VerifyReport {
    /// The environment's clock.
    pub clock: u64,
    /// Records looked at.
    pub records: u64,
    /// Index entries looked at.
    pub entries: u64,
    /// Log entries looked at.
    pub changes: u64,
    /// What does not hold, at most a thousand.
    pub problems: Vec<Problem>,
    /// How many there are in all.
    pub problem_count: u64,
}

/// Something that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The relation: `record`, `log`, `index`, `tombstone`, `count`, `clock`, `orphan` or `dead`.
    pub kind: &'static str,
    /// The type, where there is one.
    pub type_name: String,
    /// The record's key, where there is one.
    pub key: String,
    /// What is wrong.
    pub detail: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}/{}: {}",
            self.kind, self.type_name, self.key, self.detail
        )
    }
}

impl Env {
    /// Checks every relation in one snapshot. `progress` hears how many of about how many rows were looked at.
    ///
    /// # Errors
    /// What LMDB reports; what does not hold is in the report.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<VerifyReport, Error> {
        let txn = self.0.lmdb.read_txn()?;
        walk(&self.0.tables, &txn, progress)
    }
}

pub(crate) fn walk(
    tables: &Tables,
    txn: &RoTxn<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VerifyReport, Error> {
    let state = catalog::read_state(tables, txn)?;
    let catalog = Catalog::load(tables, txn, state.catalog)?;
    let mut trash = Vec::new();
    for row in tables.meta.prefix_iter(txn, b"t")? {
        trash.push(layout::id_of(row?.0.get(1..).unwrap_or_default())?);
    }
    let total = tables.data.len(txn)?
        + tables.index.len(txn)?
        + tables.log.len(txn)?
        + tables.tomb.len(txn)?;
    let mut walk = Walk {
        tables,
        txn,
        state,
        catalog,
        trash,
        report: VerifyReport {
            clock: state.clock,
            ..VerifyReport::default()
        },
        expected_entries: HashMap::new(),
        progress,
        seen: 0,
        total,
    };
    walk.records()?;
    walk.index_entries()?;
    walk.log()?;
    walk.tombstones()?;
    walk.dead()?;
    Ok(walk.report)
}

struct Walk<'w> {
    tables: &'w Tables,
    txn: &'w RoTxn<'w>,
    state: State,
    catalog: Catalog,
    trash: Vec<u32>,
    report: VerifyReport,
    /// Entries that the records of a ready index must have, by index id.
    expected_entries: HashMap<u32, u64>,
    progress: &'w mut dyn FnMut(u64, u64),
    seen: u64,
    total: u64,
}

impl Walk<'_> {
    fn problem(
        &mut self,
        kind: &'static str,
        type_name: &str,
        key: &str,
        detail: impl Into<String>,
    ) {
        self.report.problem_count += 1;
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(Problem {
                kind,
                type_name: type_name.to_owned(),
                key: key.to_owned(),
                detail: detail.into(),
            });
        }
    }

    fn saw_row(&mut self) {
        self.seen += 1;
        if self.seen.is_multiple_of(1024) || self.seen == self.total {
            (self.progress)(self.seen, self.total);
        }
    }

    fn type_name(&self, type_id: u32) -> String {
        match self.catalog.by_id(type_id) {
            Some(def) => def.name.clone(),
            None if type_id == CATALOG_ID => "(catalog)".into(),
            None => format!("(unknown type {type_id})"),
        }
    }

    fn records(&mut self) -> Result<(), Error> {
        let mut counts: HashMap<u32, u64> = HashMap::new();
        for row in self.tables.data.iter(self.txn)? {
            let (row_key, row) = row?;
            self.saw_row();
            let type_id = layout::id_of(row_key)?;
            if self.trash.contains(&type_id) {
                continue;
            }
            self.report.records += 1;
            *counts.entry(type_id).or_default() += 1;
            let key = layout::key_of(row_key)?;
            let name = self.type_name(type_id);
            let def = self.catalog.by_id(type_id).cloned();
            if def.is_none() && type_id != CATALOG_ID {
                self.problem("orphan", &name, key, "a record of no type");
                continue;
            }
            let (header, text) = match layout::decode_record(row) {
                Ok(decoded) => decoded,
                Err(error) => {
                    self.problem("record", &name, key, error.to_string());
                    continue;
                }
            };
            if header.version > self.state.clock || header.version == 0 {
                self.problem(
                    "clock",
                    &name,
                    key,
                    format!(
                        "version {} beside clock {}",
                        header.version, self.state.clock
                    ),
                );
            }
            if header.hlc > self.state.hlc {
                self.problem("clock", &name, key, "its HLC is ahead of the environment's");
            }
            self.check_logged(type_id, &name, key, header.version, false)?;
            if let Some(def) = def {
                self.check_entries(&def, key, text)?;
            }
        }
        for def in self
            .catalog
            .types()
            .into_iter()
            .cloned()
            .collect::<Vec<_>>()
        {
            let found = counts.get(&def.id).copied().unwrap_or(0);
            let stored = catalog::read_count(self.tables, self.txn, def.id)?;
            if stored != found {
                self.problem(
                    "count",
                    &def.name,
                    "",
                    format!("{stored} records are counted, {found} exist"),
                );
            }
        }
        Ok(())
    }

    /// A record or a tombstone must have its log entry, in both tables.
    fn check_logged(
        &mut self,
        type_id: u32,
        name: &str,
        key: &str,
        clock: u64,
        removed: bool,
    ) -> Result<(), Error> {
        let tables = self.tables;
        match tables.log.get(self.txn, &clock.to_be_bytes())? {
            None => self.problem(
                "log",
                name,
                key,
                format!("no log entry at its clock {clock}"),
            ),
            Some(row) => {
                let row = LogRow::decode(row)?;
                if row.type_id != type_id || row.key != key || row.action.removes() != removed {
                    self.problem(
                        "log",
                        name,
                        key,
                        format!("the log entry at its clock {clock} is another record's"),
                    );
                }
            }
        }
        if tables
            .log_type
            .get(self.txn, &layout::log_type_key(type_id, clock))?
            .is_none()
        {
            self.problem(
                "log",
                name,
                key,
                format!("clock {clock} is missing in the type's part of the log"),
            );
        }
        Ok(())
    }

    fn check_entries(&mut self, def: &TypeDef, key: &str, text: &str) -> Result<(), Error> {
        let doc = match okdb_query::Value::parse(text) {
            Ok(doc) => doc,
            Err(error) => {
                self.problem(
                    "record",
                    &def.name,
                    key,
                    format!("its value does not parse: {error}"),
                );
                return Ok(());
            }
        };
        for index in &def.indexes {
            if index.row.state != IndexState::Ready {
                continue;
            }
            let combinations = index::combinations(index, &doc)?;
            if combinations.multikey && !index.row.multikey {
                self.problem(
                    "index",
                    &def.name,
                    key,
                    format!("index {} does not know that it holds arrays", index.name),
                );
            }
            let entries = index::entries(&combinations, key);
            *self.expected_entries.entry(index.row.id).or_default() += entries.len() as u64;
            for entry in entries {
                if self.tables.index.get(self.txn, &entry)?.is_none() {
                    self.problem(
                        "index",
                        &def.name,
                        key,
                        format!("an entry is missing in index {}", index.name),
                    );
                }
            }
            if index.row.unique
                && let Some(other) =
                    index::conflict(self.tables, self.txn, index, def.id, &combinations, key)?
            {
                self.problem(
                    "index",
                    &def.name,
                    key,
                    format!(
                        "unique index {} holds its value for {other:?} too",
                        index.name
                    ),
                );
            }
        }
        Ok(())
    }

    fn index_entries(&mut self) -> Result<(), Error> {
        let mut known: HashMap<u32, (std::sync::Arc<TypeDef>, std::sync::Arc<IndexDef>)> =
            HashMap::new();
        for def in self.catalog.types() {
            for index in &def.indexes {
                known.insert(index.row.id, (def.clone(), index.clone()));
            }
        }
        let mut found: HashMap<u32, u64> = HashMap::new();
        for row in self.tables.index.iter(self.txn)? {
            let (entry, _) = row?;
            self.saw_row();
            let id = layout::id_of(entry)?;
            if self.trash.contains(&id) {
                continue;
            }
            self.report.entries += 1;
            *found.entry(id).or_default() += 1;
            let Some((def, index)) = known.get(&id) else {
                self.problem(
                    "orphan",
                    "",
                    "",
                    format!("an entry of the unknown index {id}"),
                );
                continue;
            };
            if index.row.state == IndexState::Failed {
                continue;
            }
            match index::split_entry(entry, index.paths.len()) {
                Ok((_, key)) => {
                    let mut row_key = Vec::new();
                    layout::record_key(def.id, key, &mut row_key);
                    if self.tables.data.get(self.txn, &row_key)?.is_none() {
                        self.problem(
                            "index",
                            &def.name,
                            key,
                            format!("index {} names it, and it does not exist", index.name),
                        );
                    }
                }
                Err(error) => self.problem("index", &def.name, "", error.to_string()),
            }
        }
        for (id, (def, index)) in known {
            let expected = self.expected_entries.get(&id).copied().unwrap_or(0);
            let found = found.get(&id).copied().unwrap_or(0);
            // Each expected entry was looked up; a surplus is an entry that no record has any more.
            if index.row.state == IndexState::Ready && found > expected {
                self.problem(
                    "index",
                    &def.name,
                    "",
                    format!(
                        "index {} has {found} entries, its records have {expected}",
                        index.name
                    ),
                );
            }
        }
        Ok(())
    }

    fn log(&mut self) -> Result<(), Error> {
        let tables = self.tables;
        let mut superseded = 0;
        for row in tables.log.iter(self.txn)? {
            let (key, row) = row?;
            self.saw_row();
            self.report.changes += 1;
            let clock = layout::decode_clock(key)?;
            let row = LogRow::decode(row)?;
            let name = self.type_name(row.type_id);
            if clock > self.state.clock {
                self.problem(
                    "clock",
                    &name,
                    row.key,
                    format!("log entry {clock} is ahead of clock {}", self.state.clock),
                );
            }
            let swept = self.trash.contains(&row.type_id);
            if !swept && self.catalog.by_id(row.type_id).is_none() && row.type_id != CATALOG_ID {
                self.problem(
                    "orphan",
                    &name,
                    row.key,
                    format!("log entry {clock} is of no type"),
                );
            }
            if tables
                .log_type
                .get(self.txn, &layout::log_type_key(row.type_id, clock))?
                .is_none()
            {
                self.problem(
                    "log",
                    &name,
                    row.key,
                    format!("log entry {clock} is missing in the type's part of the log"),
                );
            }
            if !swept && !changes::counts(tables, self.txn, clock, &row)? {
                superseded += 1;
            }
        }
        let (log, by_type) = (tables.log.len(self.txn)?, tables.log_type.len(self.txn)?);
        if log != by_type {
            self.problem(
                "log",
                "",
                "",
                format!("{log} entries by clock, {by_type} by type"),
            );
        }
        if superseded > self.state.dead {
            self.problem(
                "dead",
                "",
                "",
                format!(
                    "{superseded} log entries are superseded, {} are noted",
                    self.state.dead
                ),
            );
        }
        Ok(())
    }

    fn tombstones(&mut self) -> Result<(), Error> {
        for row in self.tables.tomb.iter(self.txn)? {
            let (row_key, row) = row?;
            self.saw_row();
            let type_id = layout::id_of(row_key)?;
            if self.trash.contains(&type_id) {
                continue;
            }
            let key = layout::key_of(row_key)?;
            let name = self.type_name(type_id);
            let clock = layout::decode_clock(row)?;
            if self.tables.data.get(self.txn, row_key)?.is_some() {
                self.problem("tombstone", &name, key, "the record exists");
            }
            if clock > self.state.log_floor {
                self.check_logged(type_id, &name, key, clock, true)?;
            }
        }
        Ok(())
    }

    fn dead(&mut self) -> Result<(), Error> {
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
            let by = layout::decode_clock(key)?;
            let (clock, type_id) = layout::decode_dead(row)?;
            let Some(log) = self.tables.log.get(self.txn, &clock.to_be_bytes())? else {
                continue;
            };
            let log = LogRow::decode(log)?;
            if changes::counts(self.tables, self.txn, clock, &log)?
                && !self.trash.contains(&type_id)
            {
                let name = self.type_name(type_id);
                self.problem(
                    "dead",
                    &name,
                    log.key,
                    format!("change {clock} counts, and {by} claims to have superseded it"),
                );
            }
        }
        Ok(())
    }
}
