//! Building an index over records that were there before it.

use std::{
    ops::{Bound, ControlFlow},
    sync::Arc,
    time::Instant,
};

use heed::RwTxn;

use super::{ROWS_PER_LOOK, ROWS_PER_STEP_MAX, STEP_TIME};
use crate::{
    Error, IndexState,
    apply::{Applier, Ledger},
    catalog::{BuildFailure, BuildProgress, IndexDef, IndexRow, TypeDef},
    env::EnvInner,
    index, layout,
    scan::{Budget, KeyRange, Progress},
    store::wall_ms,
};

/// Pairs of duplicates that a failed build reports.
const DUPLICATES_MAX: usize = 10;

/// Adds the entries of some more records to an index.
pub(super) fn step(
    env: &EnvInner,
    applier: &Applier<'_>,
    txn: &mut RwTxn<'_>,
    ledger: &mut Ledger,
    type_name: &str,
    index_name: &str,
) -> Result<(), Error> {
    // Dropped, or finished by somebody else, since the step was queued.
    let Some(def) = ledger.catalog.get(type_name).cloned() else {
        return Ok(());
    };
    let Some(index) = def.index(index_name).cloned() else {
        return Ok(());
    };
    if index.row.state != IndexState::Building {
        return Ok(());
    }
    let tables = &env.tables;
    let progress_key = layout::build_key(index.row.id);
    let (records, last_key) = match tables.meta.get(txn, &progress_key)? {
        Some(row) => {
            let progress = BuildProgress::decode(row)?;
            (progress.records, progress.last_key.to_vec())
        }
        None => (0, Vec::new()),
    };
    let mut stretch = Stretch {
        records,
        last_key,
        ..Stretch::default()
    };
    stretch.add(env, applier, txn, ledger, &def, &index)?;

    let state = match &stretch.failure {
        Some(_) => IndexState::Failed,
        None if stretch.finished => IndexState::Ready,
        None => IndexState::Building,
    };
    if state == IndexState::Ready {
        tables.meta.delete(txn, &progress_key)?;
    } else {
        let progress = BuildProgress {
            records: stretch.records,
            last_key: &stretch.last_key,
        };
        tables.meta.put(txn, &progress_key, &progress.encode())?;
    }
    let multikey = index.row.multikey || stretch.multikey;
    if state != IndexState::Building || multikey != index.row.multikey {
        let row = IndexRow {
            state,
            multikey,
            failure: stretch.failure,
            ..index.row.clone()
        };
        applier.amend_index(txn, ledger, type_name, &index, &row)?;
    }
    if state != IndexState::Building {
        tracing::info!(
            env = env.name,
            r#type = type_name,
            index = index_name,
            ?state,
            "index build ended"
        );
    }
    Ok(())
}

/// The records of one step of a build.
#[derive(Default)]
struct Stretch {
    /// Records seen since the build began.
    records: u64,
    /// The row key of the last of them.
    last_key: Vec<u8>,
    multikey: bool,
    finished: bool,
    failure: Option<BuildFailure>,
}

impl Stretch {
    /// Adds the entries of the records behind `last_key`, as many as the time allows.
    fn add(
        &mut self,
        env: &EnvInner,
        applier: &Applier<'_>,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        def: &Arc<TypeDef>,
        index: &IndexDef,
    ) -> Result<(), Error> {
        let until = Instant::now() + STEP_TIME;
        let mut range = KeyRange::of_prefix(&def.id.to_be_bytes());
        if !self.last_key.is_empty() {
            range.lower = Bound::Excluded(self.last_key.clone());
        }
        let mut duplicates = Vec::new();
        // Keys first, then rows one by one: a range cannot be walked while entries are written.
        let mut row_keys = Vec::new();
        let progress = range.chunk(env.tables.data, txn, &mut Budget::new(), |row_key, _| {
            row_keys.push(row_key.to_vec());
            let full = row_keys.len() >= ROWS_PER_STEP_MAX;
            Ok(if full {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        self.finished = progress == Progress::Done;
        for row_key in row_keys {
            if self.records.is_multiple_of(ROWS_PER_LOOK) && Instant::now() >= until {
                self.finished = false;
                break;
            }
            let key = layout::key_of(&row_key)?;
            match entries_of(env, applier, txn, def, index, &row_key)? {
                Entries::Fit { entries, multikey } => {
                    ledger.room.require(entries.iter().map(Vec::len).sum())?;
                    for entry in &entries {
                        env.tables.index.put(txn, entry, &[])?;
                    }
                    self.multikey |= multikey;
                }
                Entries::Duplicate { holder } => {
                    duplicates.push([holder, key.to_owned()]);
                    if duplicates.len() == DUPLICATES_MAX {
                        break;
                    }
                }
                Entries::Refused { message } => {
                    let message = format!("record {key:?}: {message}");
                    self.failure = Some(failure(message, duplicates));
                    return Ok(());
                }
            }
            self.records += 1;
            self.last_key = row_key;
        }
        if !duplicates.is_empty() {
            let message = "records share values that the index holds to be unique".to_owned();
            self.failure = Some(failure(message, duplicates));
        }
        Ok(())
    }
}

/// What a record has for an index.
enum Entries {
    Fit {
        entries: Vec<Vec<u8>>,
        multikey: bool,
    },
    Duplicate {
        holder: String,
    },
    Refused {
        message: String,
    },
}

fn entries_of(
    env: &EnvInner,
    applier: &Applier<'_>,
    txn: &RwTxn<'_>,
    def: &Arc<TypeDef>,
    index: &IndexDef,
    row_key: &[u8],
) -> Result<Entries, Error> {
    let key = layout::key_of(row_key)?;
    let row =
        env.tables.data.get(txn, row_key)?.ok_or_else(|| {
            Error::Damaged(format!("record {key:?} vanished within a transaction"))
        })?;
    let doc = index::parse_stored(layout::decode_record(row)?.1)?;
    let combinations = match index::combinations(index, &doc) {
        Ok(combinations) => combinations,
        Err(Error::InvalidIndex(message)) => return Ok(Entries::Refused { message }),
        Err(error) => return Err(error),
    };
    if index.row.unique
        && let Some(holder) = index::conflict(&env.tables, txn, index, def.id, &combinations, key)?
        // One whose time is over shares nothing, and goes with the next sweep.
        && applier.is_live(txn, def, key)?
        && applier.is_live(txn, def, &holder)?
    {
        return Ok(Entries::Duplicate { holder });
    }
    Ok(Entries::Fit {
        entries: index::entries(&combinations, key),
        multikey: combinations.multikey,
    })
}

fn failure(message: String, duplicates: Vec<[String; 2]>) -> BuildFailure {
    BuildFailure {
        message,
        duplicates,
        detected_at: wall_ms(),
    }
}
