//! Reading the change log: what differs since a clock.

use std::ops::Bound;

use serde::Serialize;

use crate::{
    Env, Error, Snapshot, catalog,
    layout::{self, CATALOG_ID, LogRow, SCHEMA_NAME},
    scan::Budget,
};

/// Which changes to read.
#[derive(Clone, Debug, Default)]
pub struct ChangesQuery {
    /// Changes after this clock.
    pub after: u64,
    /// Changes up to and with this clock.
    pub before: Option<u64>,
    /// Changes of this type and of its definition only.
    pub type_name: Option<String>,
    /// The most changes.
    pub limit: usize,
}

/// Changes in clock order.
#[derive(Clone, Debug, Serialize)]
pub struct Changes {
    /// At most one a record: the latest.
    pub changes: Vec<Change>,
    /// Everything up to this clock has been looked at: the next `after`.
    pub clock: u64,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Its place in the environment's history.
    pub clock: u64,
    /// The type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The record's key, the index's name, or nothing for a change of the type itself.
    pub key: String,
    /// `put`, `remove`, `type_register`, `type_drop`, `index_register` or `index_drop`.
    pub action: &'static str,
    /// Hybrid logical clock, as text since it exceeds what a double holds.
    pub hlc: String,
    /// When, in ms since 1970.
    pub time: u64,
    /// The root in which it was made.
    pub origin: String,
    /// First clock of the transaction that it was part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub txn: Option<u64>,
}

impl Env {
    /// Changes after a clock, each record once.
    ///
    /// # Errors
    /// [`Error::ChangelogTruncated`] if `after` lies before what the log still holds, [`Error::InvalidParameter`] if it lies
    /// in the future, [`Error::TypeNotRegistered`], and what LMDB reports.
    pub fn changes(&self, query: &ChangesQuery) -> Result<Changes, Error> {
        let mut snapshot = self.snapshot()?;
        let state = catalog::read_state(&self.0.tables, &snapshot.txn)?;
        if query.after < state.log_floor {
            return Err(Error::ChangelogTruncated {
                oldest: state.log_floor,
            });
        }
        if query.after > state.clock {
            return Err(Error::InvalidParameter(format!(
                "after = {} lies in the future: the clock is {}",
                query.after, state.clock
            )));
        }
        if let Some(name) = &query.type_name {
            snapshot.catalog.require(name)?;
        }
        let end = query.before.unwrap_or(u64::MAX).min(state.clock);
        let mut changes = Changes {
            changes: Vec::new(),
            clock: query.after.max(end),
        };
        let mut after = query.after;
        loop {
            let page = Page {
                snapshot: &snapshot,
                query,
                end,
                changes: &mut changes.changes,
            };
            after = match page.fill(after)? {
                Filled::Range => return Ok(changes),
                Filled::Limit => {
                    changes.clock = changes
                        .changes
                        .last()
                        .map_or(query.after, |last| last.clock);
                    return Ok(changes);
                }
                Filled::Until(clock) => clock,
            };
            snapshot = self.snapshot()?;
        }
    }
}

/// How far a snapshot was followed.
enum Filled {
    /// To the end of what was asked for.
    Range,
    /// Until there were enough changes.
    Limit,
    /// To this clock; on from there under a fresh snapshot.
    Until(u64),
}

/// A page of changes being filled from one snapshot.
struct Page<'p, 's> {
    snapshot: &'p Snapshot<'s>,
    query: &'p ChangesQuery,
    end: u64,
    changes: &'p mut Vec<Change>,
}

impl Page<'_, '_> {
    fn fill(self, after: u64) -> Result<Filled, Error> {
        match &self.query.type_name {
            None => self.all(after),
            Some(name) => self.of_type(after, name),
        }
    }

    fn all(self, after: u64) -> Result<Filled, Error> {
        let tables = &self.snapshot.env.tables;
        let range = (
            Bound::Excluded(after.to_be_bytes()),
            Bound::Included(self.end.to_be_bytes()),
        );
        let range = (
            range.0.as_ref().map(<[u8; 8]>::as_slice),
            range.1.as_ref().map(<[u8; 8]>::as_slice),
        );
        if after >= self.end {
            return Ok(Filled::Range);
        }
        let mut budget = Budget::new();
        for row in tables.log.range(&self.snapshot.txn, &range)? {
            let (key, row) = row?;
            if self.changes.len() >= self.query.limit {
                return Ok(Filled::Limit);
            }
            let clock = layout::decode_clock(key)?;
            let change = visible(self.snapshot, clock, &LogRow::decode(row)?)?;
            self.changes.extend(change);
            if !budget.spend() {
                return Ok(Filled::Until(clock));
            }
        }
        Ok(Filled::Range)
    }

    /// Follows the type's part of the log and that of the catalog, side by side.
    fn of_type(self, after: u64, name: &str) -> Result<Filled, Error> {
        let tables = &self.snapshot.env.tables;
        let id = self.snapshot.catalog.require(name)?.id;
        let part = |id: u32| -> Result<_, Error> {
            let lower = layout::log_type_key(id, after);
            let upper = layout::log_type_key(id, self.end);
            let range = (Bound::Excluded(&lower[..]), Bound::Included(&upper[..]));
            let rows = if after < self.end {
                Some(tables.log_type.range(&self.snapshot.txn, &range)?)
            } else {
                None
            };
            let clock = |row: heed::Result<(&[u8], &[u8])>| layout::log_type_clock(row?.0);
            Ok(rows.into_iter().flatten().map(clock))
        };
        let (mut own, mut definitions) = (part(id)?, part(CATALOG_ID)?);
        let mut next_own = own.next().transpose()?;
        let mut next_definition = definitions.next().transpose()?;
        let mut budget = Budget::new();
        while let Some(clock) = match (next_own, next_definition) {
            (Some(own), Some(definition)) => Some(own.min(definition)),
            (own, definition) => own.or(definition),
        } {
            if self.changes.len() >= self.query.limit {
                return Ok(Filled::Limit);
            }
            if next_own == Some(clock) {
                next_own = own.next().transpose()?;
            } else {
                next_definition = definitions.next().transpose()?;
            }
            let Some(row) = tables.log.get(&self.snapshot.txn, &clock.to_be_bytes())? else {
                return Err(Error::Damaged(format!("the log lacks change {clock}")));
            };
            let change = visible(self.snapshot, clock, &LogRow::decode(row)?)?;
            self.changes
                .extend(change.filter(|change| change.type_name == name));
            if !budget.spend() {
                return Ok(Filled::Until(clock));
            }
        }
        Ok(Filled::Range)
    }
}

/// The change, if it is the latest of its record.
fn visible(snapshot: &Snapshot<'_>, clock: u64, row: &LogRow<'_>) -> Result<Option<Change>, Error> {
    if !counts(&snapshot.env.tables, &snapshot.txn, clock, row)? {
        return Ok(None);
    }
    let (type_name, key) = if row.type_id == CATALOG_ID {
        let (name, part) = row.key.split_once('/').unwrap_or((row.key, ""));
        (name, if part == SCHEMA_NAME { "" } else { part })
    } else {
        match snapshot.catalog.by_id(row.type_id) {
            Some(def) => (def.name.as_str(), row.key),
            // The type was dropped: its records went with it.
            None => return Ok(None),
        }
    };
    Ok(Some(Change {
        clock,
        type_name: type_name.to_owned(),
        key: key.to_owned(),
        action: row.action.name(),
        hlc: row.hlc.to_string(),
        time: okdb_shm::stamp_ms(row.hlc),
        origin: snapshot.env.origin.clone(),
        txn: (row.txn != 0).then_some(row.txn),
    }))
}

/// An entry counts if the record's version, or its tombstone, is its clock.
pub(crate) fn counts(
    tables: &crate::lmdb::Tables,
    txn: &heed::RoTxn<'_>,
    clock: u64,
    row: &LogRow<'_>,
) -> Result<bool, Error> {
    let mut row_key = Vec::new();
    layout::record_key(row.type_id, row.key, &mut row_key);
    let current = if row.action.removes() {
        tables.tomb.get(txn, &row_key)?.map(layout::decode_clock)
    } else {
        tables.data.get(txn, &row_key)?.map(layout::decode_version)
    };
    Ok(current.transpose()? == Some(clock))
}
