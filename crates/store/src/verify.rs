//! Walking an environment and checking every relation in it: the oracle of every crash test.
//!
//! Checked: each record ↔ its log entry and ↔ its index entries (none missing, none left over, each record once under its
//! version), its place in `ttl`, its references in `refs`, and its violations; each tombstone ↔ its log entry; each log entry ↔ `log_type`; superseded entries ↔ `dead`; counts; clock and HLC ≥
//! every one in use; no rows of unknown types or indexes but those that wait to be swept.

mod references;
mod relations;

use std::{collections::HashMap, fmt};

use heed::RoTxn;
use okdb_query::Value;
use serde::Serialize;

use crate::{
    Env, Error, IndexState,
    catalog::{self, Catalog, TypeDef},
    index,
    layout::{self, CATALOG_ID, Header, LogRow, State},
    lmdb::Tables,
    store::wall_ms,
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
    /// The relation: `catalog`, `record`, `log`, `index`, `tombstone`, `count`, `clock`, `orphan`, `dead`, `ttl`,
    /// `reference` or `violation`.
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
    let mut trash = Vec::new();
    for row in tables.meta.prefix_iter(txn, b"t")? {
        trash.push(layout::id_of(row?.0.get(1..).unwrap_or_default())?);
    }
    let total = tables.data.len(txn)?
        + tables.index.len(txn)?
        + tables.log.len(txn)?
        + tables.tomb.len(txn)?
        + tables.refs.len(txn)?
        + tables.ttl.len(txn)?
        + tables.violations.len(txn)?;
    let mut walk = Walk {
        tables,
        txn,
        state,
        catalog: Catalog::default(),
        trash,
        report: VerifyReport {
            clock: state.clock,
            ..VerifyReport::default()
        },
        entries: HashMap::new(),
        now_ms: wall_ms(),
        progress,
        seen: 0,
        total,
    };
    let catalog = Catalog::load(tables, txn, state.catalog, &Catalog::default());
    // Without it, no row means anything.
    if let Some(catalog) = walk.decoded("catalog", "", "", catalog)? {
        walk.catalog = catalog;
        walk.records()?;
        walk.index_entries()?;
        walk.reference_rows()?;
        walk.expiries()?;
        walk.violations()?;
        walk.log()?;
        walk.tombstones()?;
        walk.dead()?;
        walk.meta()?;
    }
    Ok(walk.report)
}

struct Walk<'w> {
    tables: &'w Tables,
    txn: &'w RoTxn<'w>,
    state: State,
    catalog: Catalog,
    trash: Vec<u32>,
    report: VerifyReport,
    /// What is known of the entries of each ready index, and of the rows of each reference, by id.
    entries: HashMap<u32, EntryCount>,
    now_ms: u64,
    progress: &'w mut dyn FnMut(u64, u64),
    seen: u64,
    total: u64,
}

#[derive(Default)]
struct EntryCount {
    /// Entries that the records must have.
    expected: u64,
    /// Those of them that are not there.
    missing: u64,
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

    /// Turns damage into a problem; any other error ends the walk.
    fn decoded<T>(
        &mut self,
        kind: &'static str,
        type_name: &str,
        key: &str,
        result: Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::Damaged(detail) | Error::InvalidIndex(detail)) => {
                self.problem(kind, type_name, key, detail);
                Ok(None)
            }
            Err(error) => Err(error),
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

    /// The type id and key of a row, if it has them and does not wait to be swept.
    fn place<'k>(
        &mut self,
        kind: &'static str,
        row_key: &'k [u8],
    ) -> Result<Option<(u32, &'k str)>, Error> {
        let id = layout::id_of(row_key);
        let Some(id) = self.decoded(kind, "", "", id)? else {
            return Ok(None);
        };
        if self.trash.contains(&id) {
            return Ok(None);
        }
        let name = self.type_name(id);
        let key = self.decoded(kind, &name, "", layout::key_of(row_key))?;
        Ok(key.map(|key| (id, key)))
    }

    fn records(&mut self) -> Result<(), Error> {
        let mut counts: HashMap<u32, u64> = HashMap::new();
        for row in self.tables.data.iter(self.txn)? {
            let (row_key, row) = row?;
            self.saw_row();
            let Some((type_id, key)) = self.place("record", row_key)? else {
                continue;
            };
            self.report.records += 1;
            *counts.entry(type_id).or_default() += 1;
            self.record(type_id, key, row)?;
        }
        let types: Vec<_> = self.catalog.types().into_iter().cloned().collect();
        for def in types {
            let found = counts.get(&def.id).copied().unwrap_or(0);
            let stored = catalog::read_count(self.tables, self.txn, def.id);
            match self.decoded("count", &def.name, "", stored)? {
                Some(stored) if stored != found => self.problem(
                    "count",
                    &def.name,
                    "",
                    format!("{stored} records are counted, {found} exist"),
                ),
                _ => {}
            }
        }
        Ok(())
    }

    fn record(&mut self, type_id: u32, key: &str, row: &[u8]) -> Result<(), Error> {
        let name = self.type_name(type_id);
        let def = self.catalog.by_id(type_id).cloned();
        if def.is_none() && type_id != CATALOG_ID {
            self.problem("orphan", &name, key, "a record of no type");
            return Ok(());
        }
        let decoded = layout::decode_record(row);
        let Some((header, text)) = self.decoded("record", &name, key, decoded)? else {
            return Ok(());
        };
        if header.version > self.state.clock || header.version == 0 {
            let detail = format!(
                "version {} beside clock {}",
                header.version, self.state.clock
            );
            self.problem("clock", &name, key, detail);
        }
        if header.hlc > self.state.hlc {
            self.problem("clock", &name, key, "its HLC is ahead of the environment's");
        }
        self.check_logged(type_id, key, header.version, false)?;
        let Some(def) = def else { return Ok(()) };
        let doc = index::parse_stored(text);
        let Some(doc) = self.decoded("record", &def.name, key, doc)? else {
            return Ok(());
        };
        self.check_expiry(&def, key, &header)?;
        self.check_entries(&def, key, &doc, &header)?;
        self.check_references(&def, key, text, &doc, &header)
    }

    /// A record or a tombstone must have its log entry, in both tables.
    fn check_logged(
        &mut self,
        type_id: u32,
        key: &str,
        clock: u64,
        removed: bool,
    ) -> Result<(), Error> {
        let name = self.type_name(type_id);
        if let Some(row) = self.tables.log.get(self.txn, &clock.to_be_bytes())? {
            if let Some(row) = self.decoded("log", &name, key, LogRow::decode(row))?
                && (row.type_id != type_id || row.key != key || row.action.removes() != removed)
            {
                let detail = format!("the log entry at its clock {clock} is another one's");
                self.problem("log", &name, key, detail);
            }
        } else {
            let detail = format!("no log entry at its clock {clock}");
            self.problem("log", &name, key, detail);
        }
        let place = layout::log_type_key(type_id, clock);
        if self.tables.log_type.get(self.txn, &place)?.is_none() {
            let detail = format!("clock {clock} is missing in the type's part of the log");
            self.problem("log", &name, key, detail);
        }
        Ok(())
    }

    fn check_entries(
        &mut self,
        def: &TypeDef,
        key: &str,
        doc: &Value<'_>,
        header: &Header,
    ) -> Result<(), Error> {
        for index in &def.indexes {
            if index.row.state != IndexState::Ready {
                continue;
            }
            let combinations = index::combinations(index, doc);
            let Some(combinations) = self.decoded("index", &def.name, key, combinations)? else {
                continue;
            };
            if combinations.multikey && !index.row.multikey {
                let detail = format!("index {} does not know that it holds arrays", index.name);
                self.problem("index", &def.name, key, detail);
            }
            let entries = index::entries(&combinations, key);
            let mut missing = 0;
            for entry in &entries {
                if self.tables.index.get(self.txn, entry)?.is_none() {
                    missing += 1;
                    let detail = format!("an entry is missing in index {}", index.name);
                    self.problem("index", &def.name, key, detail);
                }
            }
            let count = self.entries.entry(index.row.id).or_default();
            count.expected += entries.len() as u64;
            count.missing += missing;
            // What has expired shares its value with nobody.
            if !index.row.unique || !header.is_live(self.now_ms) {
                continue;
            }
            let other = index::conflict(self.tables, self.txn, index, def.id, &combinations, key);
            if let Some(Some(other)) = self.decoded("index", &def.name, key, other)?
                && self.is_live(def.id, &other)?
            {
                let detail = format!(
                    "unique index {} holds its value for {other:?} too",
                    index.name
                );
                self.problem("index", &def.name, key, detail);
            }
        }
        Ok(())
    }
}
