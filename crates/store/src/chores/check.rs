//! Looking at records that were there before their type's schema: what they violate, and whom they refer to.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
    time::Instant,
};

use heed::RwTxn;

use super::{ROWS_PER_STEP_MAX, STEP_TIME, sweep};
use crate::{
    Error, SchemaState,
    apply::{Applier, Ledger},
    catalog::{BuildProgress, TypeDef},
    derived::{self, Place},
    env::EnvInner,
    index, layout,
    scan::{Budget, KeyRange, Progress},
    schemas::SchemaDef,
    violations::{self, FAILURES_MAX, ViolationKind, ViolationRow},
};

/// Looks at some more records of a type.
pub(super) fn step(
    env: &EnvInner,
    applier: &Applier<'_>,
    txn: &mut RwTxn<'_>,
    ledger: &mut Ledger,
    type_name: &str,
) -> Result<(), Error> {
    // Dropped, or finished by somebody else, since the step was queued.
    let Some(def) = ledger.catalog.get(type_name).cloned() else {
        return Ok(());
    };
    let Some(schema) = def.schema.clone() else {
        return Ok(());
    };
    if schema.row.state != SchemaState::Checking {
        return Ok(());
    }
    let tables = &env.tables;
    let progress_key = layout::schema_check_key(def.id);
    let (mut records, mut last_key) = match tables.meta.get(txn, &progress_key)? {
        Some(row) => {
            let progress = BuildProgress::decode(row)?;
            (progress.records, progress.last_key.to_vec())
        }
        None => (0, Vec::new()),
    };
    let until = Instant::now() + STEP_TIME;
    let mut range = KeyRange::of_prefix(&def.id.to_be_bytes());
    if !last_key.is_empty() {
        range.lower = Bound::Excluded(last_key.clone());
    }
    let mut row_keys = Vec::new();
    let walked = range.chunk(tables.data, txn, &mut Budget::new(), |row_key, _| {
        row_keys.push(row_key.to_vec());
        Ok(if row_keys.len() >= ROWS_PER_STEP_MAX {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    })?;
    let mut finished = walked == Progress::Done;
    for row_key in row_keys {
        if Instant::now() >= until {
            finished = false;
            break;
        }
        record(env, applier, txn, ledger, &def, &schema, &row_key)?;
        records += 1;
        last_key = row_key;
    }
    if finished {
        tables.meta.delete(txn, &progress_key)?;
        tracing::info!(
            env = env.name,
            r#type = type_name,
            records,
            "schema check ended"
        );
        return applier.end_schema_check(txn, ledger, &def, &schema);
    }
    let progress = BuildProgress {
        records,
        last_key: &last_key,
    };
    tables.meta.put(txn, &progress_key, &progress.encode())?;
    Ok(())
}

fn record(
    env: &EnvInner,
    applier: &Applier<'_>,
    txn: &mut RwTxn<'_>,
    ledger: &mut Ledger,
    def: &Arc<TypeDef>,
    schema: &SchemaDef,
    row_key: &[u8],
) -> Result<(), Error> {
    let tables = &env.tables;
    let key = layout::key_of(row_key)?;
    let row = tables.data.get(txn, row_key)?;
    let row = row.ok_or_else(|| Error::Damaged(format!("record {key:?} is gone at once")))?;
    let (header, text) = layout::decode_record(row)?;
    if !header.is_live(applier.now_ms) {
        // It refers to nobody any more, and goes with the next sweep.
        return Ok(());
    }
    let doc = index::parse_stored(text)?;
    let mut found = Vec::new();
    for failure in schema.schema()?.check(text, FAILURES_MAX) {
        let row = ViolationRow::failure(failure, applier.now_ms);
        found.push((ViolationKind::Schema, row));
    }
    for reference in &schema.refs {
        for (path, target) in reference.path.values(&doc) {
            let exists = match ledger.catalog.get(&reference.target) {
                Some(target_def) => applier.is_live(txn, target_def, &target)?,
                None => false,
            };
            if !exists {
                let (name, now_ms) = (&reference.target, applier.now_ms);
                let row = ViolationRow::dangling(reference.id, path, name, &target, now_ms);
                found.push((ViolationKind::Ref, row));
            }
        }
    }
    let mut rows = derived::of_stored(def, key, None, Some(&doc))?;
    rows.retain(|row| row.place == Place::Refs);
    let before = violations::of_record(tables, txn, def.id, key)?;
    ledger
        .room
        .require(rows.iter().map(|row| row.key.len()).sum())?;
    for row in rows {
        row.put(tables, txn)?;
    }
    violations::replace(tables, txn, def.id, key, &before, found)
}

/// Drops some of the violations of a type, and its note once there are none.
pub(super) fn drop_violations(
    env: &EnvInner,
    txn: &mut RwTxn<'_>,
    type_id: u32,
) -> Result<(), Error> {
    let until = Instant::now() + STEP_TIME;
    let note = layout::cured_key(type_id);
    while env.tables.meta.get(txn, &note)?.is_some() && Instant::now() < until {
        if sweep::delete_some(env.tables.violations, txn, &type_id.to_be_bytes())? == 0 {
            env.tables.meta.delete(txn, &note)?;
        }
    }
    Ok(())
}
