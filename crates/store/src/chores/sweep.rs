//! Dropping what nobody needs any more: rows of dropped types and indexes, superseded log entries, old removals.

use std::{
    ops::{Bound, ControlFlow},
    time::Instant,
};

use heed::{RoTxn, RwTxn};

use super::STEP_TIME;
use crate::{
    Error,
    apply::Ledger,
    changes,
    env::EnvInner,
    layout::{self, LogRow},
    lmdb::{Table, Tables},
    scan::{Budget, KeyRange},
};

/// Rows of each table that a sweep deletes at once.
const SWEEP_ROWS: usize = 256;
/// Log entries that one step of forgetting looks at, at most.
const FORGET_ROWS_MAX: usize = 1024;

/// The clock up to which removals past their retention have been dropped.
pub(super) fn scanned(tables: &Tables, txn: &RoTxn<'_>) -> Result<u64, Error> {
    match tables.meta.get(txn, layout::META_SCANNED)? {
        Some(row) => layout::decode_clock(row),
        None => Ok(0),
    }
}

/// The clock of the durable cursor that is furthest behind: what comes after it must stay in the log.
pub(super) fn slowest_cursor(tables: &Tables, txn: &RoTxn<'_>) -> Result<u64, Error> {
    let mut slowest = u64::MAX;
    for row in tables.meta.prefix_iter(txn, layout::CURSOR_TAG)? {
        slowest = slowest.min(layout::decode_clock(row?.1)?);
    }
    Ok(slowest)
}

/// Deletes rows that a dropped type, index or reference left, and its note once there are none.
pub(super) fn sweep(env: &EnvInner, txn: &mut RwTxn<'_>, id: u32) -> Result<(), Error> {
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
        forget_expiries(tables, txn, id)?;
        for table in [
            tables.data,
            tables.tomb,
            tables.index,
            tables.refs,
            tables.violations,
        ] {
            rows += delete_some(table, txn, &prefix)?;
        }
        if rows == 0 {
            tables.meta.delete(txn, &layout::trash_key(id))?;
            return Ok(());
        }
    }
    Ok(())
}

/// Deletes the rows in `ttl` of the records that go next.
fn forget_expiries(tables: &Tables, txn: &mut RwTxn<'_>, id: u32) -> Result<(), Error> {
    let mut expiries = Vec::new();
    for row in tables
        .data
        .prefix_iter(txn, &id.to_be_bytes())?
        .take(SWEEP_ROWS)
    {
        let (row_key, row) = row?;
        let (header, _) = layout::decode_record(row)?;
        if let Some(expires_ms) = header.expires_ms {
            expiries.push(layout::ttl_key(expires_ms, id, layout::key_of(row_key)?));
        }
    }
    for row_key in expiries {
        tables.ttl.delete(txn, &row_key)?;
    }
    Ok(())
}

/// Deletes the first few rows under a prefix; tells how many.
pub(super) fn delete_some(
    table: Table,
    txn: &mut RwTxn<'_>,
    prefix: &[u8],
) -> Result<usize, Error> {
    let last = match table.prefix_iter(txn, prefix)?.take(SWEEP_ROWS).last() {
        Some(row) => row?.0.to_vec(),
        None => return Ok(0),
    };
    let range = (Bound::Included(prefix), Bound::Included(last.as_slice()));
    Ok(table.delete_range(txn, &range)?)
}

/// Drops superseded log entries. One that is gone already costs nothing.
pub(super) fn prune(env: &EnvInner, txn: &mut RwTxn<'_>, dead: &[(u64, u32)]) -> Result<(), Error> {
    let tables = &env.tables;
    for (clock, type_id) in dead {
        tables.log.delete(txn, &clock.to_be_bytes())?;
        let key = layout::log_type_key(*type_id, *clock);
        tables.log_type.delete(txn, &key)?;
    }
    Ok(())
}

/// Drops removals that are past their retention, and their tombstones, from where the last step ended.
pub(super) fn forget(
    env: &EnvInner,
    txn: &mut RwTxn<'_>,
    ledger: &mut Ledger,
    before_ms: u64,
) -> Result<(), Error> {
    let tables = &env.tables;
    let mut clock = scanned(tables, txn)?;
    let end = slowest_cursor(tables, txn)?;
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
        let at = layout::decode_clock(key)?;
        if at > end {
            return Ok(ControlFlow::Break(()));
        }
        rows += 1;
        clock = at;
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
