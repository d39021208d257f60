//! Removing records whose time is over.
//!
//! Whether it is, is decided in the transaction that removes: a renewal that was committed before wins, and one that comes
//! after meets no record.

use std::time::Instant;

use heed::RwTxn;

use super::STEP_TIME;
use crate::{
    Error,
    apply::{Applier, Ledger},
    env::EnvInner,
    layout,
};

/// Records that one step removes, at most. Others go with them where they refer to these.
const ROWS_MAX: usize = 256;

/// Removes records in the order in which they expired; tells how many.
pub(super) fn step(
    env: &EnvInner,
    applier: &Applier<'_>,
    txn: &mut RwTxn<'_>,
    ledger: &mut Ledger,
) -> Result<u64, Error> {
    let until = Instant::now() + STEP_TIME;
    let mut due = Vec::new();
    for row in env.tables.ttl.iter(txn)?.take(ROWS_MAX) {
        let (expires_ms, type_id, key) = layout::decode_ttl(row?.0)?;
        if expires_ms > applier.now_ms {
            break;
        }
        due.push((expires_ms, type_id, key.to_owned()));
    }
    let mut removed = 0;
    for (expires_ms, type_id, key) in due {
        if let Some(def) = ledger.catalog.by_id(type_id).cloned() {
            removed += u64::from(applier.expire(txn, ledger, &def, &key)?);
        } else {
            // The type was dropped: its records go anyway.
            let row_key = layout::ttl_key(expires_ms, type_id, &key);
            env.tables.ttl.delete(txn, &row_key)?;
        }
        if Instant::now() >= until {
            break;
        }
    }
    Ok(removed)
}
