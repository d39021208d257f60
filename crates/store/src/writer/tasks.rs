//! What the writer runs: each kind of task, inside the transaction of its batch.

use std::sync::Arc;

use heed::RwTxn;

use super::Task;
use crate::{
    Error, Operation, Outcome, SchemaSpec, Write,
    apply::{Applier, DEFINITION_BYTES, Ledger, check_schema},
    catalog, check_type_name,
    env::EnvInner,
    layout,
};

/// Runs one task inside the writer's transaction.
pub(super) fn run(
    env: &Arc<EnvInner>,
    applier: &Applier<'_>,
    txn: &mut RwTxn<'_>,
    ledger: &mut Ledger,
    task: &Task,
    alone: bool,
) -> Result<Outcome, Error> {
    let write = match task {
        Task::Write(write) => write,
        Task::Chore(step) => return step.run(env, applier, txn, ledger),
    };
    match write {
        Write::One(operation) => applier.operation(txn, ledger, operation).map(Outcome::Done),
        Write::Bulk(operations) => {
            let mut results = Vec::with_capacity(operations.len());
            for operation in operations {
                match applier.operation(txn, ledger, operation) {
                    Err(error) if error.poisons_transaction() => return Err(error),
                    result => results.push(result),
                }
            }
            Ok(Outcome::Bulk {
                clock: ledger.state.clock,
                results,
            })
        }
        Write::Transaction(operations) => {
            let mut inner = ledger.clone();
            inner.txn_mark = ledger.state.clock + 1;
            let results = if alone || operations.len() < 2 {
                all_of(applier, txn, &mut inner, operations)?
            } else {
                let mut nested = env.lmdb.nested_write_txn(txn)?;
                let results = all_of(applier, &mut nested, &mut inner, operations);
                // A failed child must be aborted: committed, it would carry its half-done work into the parent.
                match results {
                    Ok(results) => {
                        nested.commit()?;
                        results
                    }
                    Err(error) => {
                        nested.abort();
                        return Err(error);
                    }
                }
            };
            inner.txn_mark = 0;
            *ledger = inner;
            Ok(Outcome::Transaction {
                clock: ledger.state.clock,
                results,
            })
        }
        definition => define(env, applier, txn, ledger, definition),
    }
}

/// Runs what changes types, indexes and schemas.
fn define(
    env: &Arc<EnvInner>,
    applier: &Applier<'_>,
    txn: &mut RwTxn<'_>,
    ledger: &mut Ledger,
    write: &Write,
) -> Result<Outcome, Error> {
    match write {
        Write::RegisterType {
            name,
            indexes,
            schema,
            ensure,
        } => {
            let schema_bytes = schema.as_ref().map_or(0, schema_bytes);
            let bytes = DEFINITION_BYTES * (1 + indexes.len()) + schema_bytes;
            ledger.room.require(bytes)?;
            if let Some(schema) = schema {
                // Before the type is made: what refuses must do so while nothing has changed.
                check_schema(schema)?;
            }
            applier.register_type(txn, ledger, name, indexes, *ensure)?;
            if let Some(schema) = schema {
                applier.set_schema(txn, ledger, name, schema)?;
            }
            let def = ledger.catalog.require(name)?;
            catalog::type_info(&env.tables, txn, def).map(Outcome::Type)
        }
        Write::DropType { name } => {
            applier.drop_type(txn, ledger, name)?;
            Ok(Outcome::Dropped {
                clock: ledger.state.clock,
            })
        }
        Write::RegisterIndex {
            type_name,
            spec,
            ensure,
        } => {
            ledger.room.require(DEFINITION_BYTES)?;
            applier.register_index(txn, ledger, type_name, spec, *ensure)?;
            let def = ledger.catalog.require(type_name)?;
            let name = spec.name();
            let index = def
                .index(&name)
                .ok_or_else(|| Error::Damaged(format!("index {name:?} is gone at once")))?;
            let count = catalog::read_count(&env.tables, txn, def.id)?;
            catalog::index_info(&env.tables, txn, count, index).map(Outcome::Index)
        }
        Write::SetSchema { type_name, schema } => {
            ledger
                .room
                .require(DEFINITION_BYTES + schema_bytes(schema))?;
            applier.set_schema(txn, ledger, type_name, schema)?;
            let def = ledger.catalog.require(type_name)?;
            let info = catalog::schema_info(&env.tables, txn, def)?;
            let gone = || Error::Damaged(format!("the schema of {type_name:?} is gone at once"));
            info.map(Outcome::Schema).ok_or_else(gone)
        }
        Write::DropSchema { type_name } => {
            applier.drop_schema(txn, ledger, type_name)?;
            Ok(Outcome::Dropped {
                clock: ledger.state.clock,
            })
        }
        Write::SetCursor { name, clock } => {
            set_cursor(env, txn, ledger, name, *clock)?;
            Ok(Outcome::Dropped {
                clock: ledger.state.clock,
            })
        }
        Write::DropIndex { type_name, name } => {
            applier.drop_index(txn, ledger, type_name, name)?;
            Ok(Outcome::Dropped {
                clock: ledger.state.clock,
            })
        }
        Write::One(_) | Write::Bulk(_) | Write::Transaction(_) => Err(Error::InvalidParameter(
            "an operation on records is no definition".into(),
        )),
    }
}

fn set_cursor(
    env: &EnvInner,
    txn: &mut RwTxn<'_>,
    ledger: &mut Ledger,
    name: &str,
    clock: Option<u64>,
) -> Result<(), Error> {
    check_type_name(name)?;
    let key = layout::cursor_key(name);
    match clock {
        Some(clock) if clock > ledger.state.clock => {
            return Err(Error::InvalidParameter(format!(
                "cursor {name:?} cannot be at {clock}: the clock is {}",
                ledger.state.clock
            )));
        }
        Some(clock) => env.tables.meta.put(txn, &key, &clock.to_be_bytes())?,
        None => {
            env.tables.meta.delete(txn, &key)?;
        }
    }
    ledger.touched = true;
    Ok(())
}

/// What a schema takes beside a definition's usual room.
fn schema_bytes(schema: &SchemaSpec) -> usize {
    2 * schema.text.len()
}

fn all_of(
    applier: &Applier<'_>,
    txn: &mut RwTxn<'_>,
    ledger: &mut Ledger,
    operations: &[Operation],
) -> Result<Vec<crate::Written>, Error> {
    let mut results = Vec::with_capacity(operations.len());
    for (index, operation) in operations.iter().enumerate() {
        match applier.operation(txn, ledger, operation) {
            Ok(written) => results.push(written),
            Err(error) if error.poisons_transaction() => return Err(error),
            Err(error) => {
                return Err(Error::Operation {
                    index,
                    source: Box::new(error),
                });
            }
        }
    }
    Ok(results)
}
