//! Reading the change log: what differs since a clock.

use serde::Serialize;

use crate::{
    Env, Error, Snapshot, catalog,
    layout::{self, CATALOG_ID, LogRow},
    scan::{Budget, KeyRange, Progress},
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
        let mut range = KeyRange::of_prefix(&[]);
        range.lower = std::ops::Bound::Excluded(query.after.to_be_bytes().to_vec());
        range.upper = std::ops::Bound::Included(end.to_be_bytes().to_vec());
        let mut changes = Changes {
            changes: Vec::new(),
            clock: query.after.max(end),
        };
        loop {
            let progress = range.chunk(
                self.0.tables.log,
                &snapshot.txn,
                &mut Budget::new(),
                |key, row| {
                    let clock = layout::decode_clock(key)?;
                    if changes.changes.len() == query.limit {
                        return Ok(std::ops::ControlFlow::Break(()));
                    }
                    if let Some(change) = visible(&snapshot, clock, &LogRow::decode(row)?)?
                        && query
                            .type_name
                            .as_ref()
                            .is_none_or(|name| *name == change.type_name)
                    {
                        changes.changes.push(change);
                    }
                    Ok(std::ops::ControlFlow::Continue(()))
                },
            )?;
            match progress {
                Progress::Done => return Ok(changes),
                Progress::Stopped => {
                    changes.clock = changes
                        .changes
                        .last()
                        .map_or(query.after, |last| last.clock);
                    return Ok(changes);
                }
                Progress::More => snapshot = self.snapshot()?,
            }
        }
    }
}

/// The change, if it is the latest of its record.
fn visible(snapshot: &Snapshot<'_>, clock: u64, row: &LogRow<'_>) -> Result<Option<Change>, Error> {
    if !counts(&snapshot.env.tables, &snapshot.txn, clock, row)? {
        return Ok(None);
    }
    let (type_name, key) = if row.type_id == CATALOG_ID {
        row.key.split_once('/').unwrap_or((row.key, ""))
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
