//! What a record has beside its own row: its entries in indexes, its references the other way round, and its place among
//! the records that expire. Computed here alone, so that writes, builds, checks and copies agree on it.

use std::sync::Arc;

use heed::RwTxn;
use okdb_query::Value;

use crate::{
    Error, IndexState,
    catalog::{IndexDef, TypeDef},
    check_key,
    index::{self, Combinations},
    layout,
    lmdb::{Table, Tables},
};

/// The table that a derived row is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Index,
    Refs,
    Ttl,
}

/// The key of a row that a record has in another table. The row itself is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DerivedRow {
    pub(crate) place: Place,
    pub(crate) key: Vec<u8>,
}

impl DerivedRow {
    fn table(&self, tables: &Tables) -> Table {
        match self.place {
            Place::Index => tables.index,
            Place::Refs => tables.refs,
            Place::Ttl => tables.ttl,
        }
    }

    pub(crate) fn put(&self, tables: &Tables, txn: &mut RwTxn<'_>) -> Result<(), Error> {
        Ok(self.table(tables).put(txn, &self.key, &[])?)
    }

    pub(crate) fn delete(&self, tables: &Tables, txn: &mut RwTxn<'_>) -> Result<bool, Error> {
        Ok(self.table(tables).delete(txn, &self.key)?)
    }
}

/// A document about to be written, whose index entries `check` looks at first.
pub(crate) type Check<'c> = dyn FnMut(&Arc<IndexDef>, &Combinations<'_>) -> Result<(), Error> + 'c;

/// Whether derived rows depend on a type's documents.
pub(crate) fn reads_documents(def: &TypeDef) -> bool {
    def.schema.is_some() || live_indexes(def).next().is_some()
}

fn live_indexes(def: &TypeDef) -> impl Iterator<Item = &Arc<IndexDef>> {
    let failed = |index: &&Arc<IndexDef>| index.row.state != IndexState::Failed;
    def.indexes.iter().filter(failed)
}

/// The rows of a document that is about to be written, in order, each once.
pub(crate) fn of_new(
    def: &TypeDef,
    key: &str,
    expires_ms: Option<u64>,
    doc: Option<&Value<'_>>,
    check: &mut Check<'_>,
) -> Result<Vec<DerivedRow>, Error> {
    collect(def, key, expires_ms, doc, Some(check))
}

/// The rows that a stored document has, in order, each once. What is still being built may lack some of them. A document
/// that an index cannot take has none in it: the index is being built, and the build, which will fail for it, has not got
/// there.
pub(crate) fn of_stored(
    def: &TypeDef,
    key: &str,
    expires_ms: Option<u64>,
    doc: Option<&Value<'_>>,
) -> Result<Vec<DerivedRow>, Error> {
    collect(def, key, expires_ms, doc, None)
}

fn collect(
    def: &TypeDef,
    key: &str,
    expires_ms: Option<u64>,
    doc: Option<&Value<'_>>,
    mut check: Option<&mut Check<'_>>,
) -> Result<Vec<DerivedRow>, Error> {
    let mut rows = Vec::new();
    if let Some(doc) = doc {
        for index in live_indexes(def) {
            let combinations = match index::combinations(index, doc) {
                Ok(combinations) => combinations,
                Err(Error::InvalidIndex(_))
                    if check.is_none() && index.row.state == IndexState::Building =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Some(check) = &mut check {
                check(index, &combinations)?;
            }
            let entries = index::entries(&combinations, key).into_iter();
            rows.extend(entries.map(|key| DerivedRow {
                place: Place::Index,
                key,
            }));
        }
        for reference in def.refs() {
            for (_, target) in reference.path.values(doc) {
                // A string that is no key can name no record; it has no row either.
                if check_key(&target).is_ok() {
                    rows.push(DerivedRow {
                        place: Place::Refs,
                        key: layout::refs_key(reference.id, &target, key),
                    });
                }
            }
        }
    }
    if let Some(expires_ms) = expires_ms {
        rows.push(DerivedRow {
            place: Place::Ttl,
            key: layout::ttl_key(expires_ms, def.id, key),
        });
    }
    rows.sort_unstable();
    rows.dedup();
    Ok(rows)
}

/// Splits two sorted lists into what only the first and what only the second has.
pub(crate) fn difference(
    before: Vec<DerivedRow>,
    after: Vec<DerivedRow>,
) -> (Vec<DerivedRow>, Vec<DerivedRow>) {
    let mut removed = Vec::new();
    let mut added = Vec::new();
    let (mut before, mut after) = (before.into_iter().peekable(), after.into_iter().peekable());
    loop {
        match (before.peek(), after.peek()) {
            (Some(old), Some(new)) if old == new => {
                before.next();
                after.next();
            }
            (Some(old), Some(new)) if old < new => removed.extend(before.next()),
            (Some(_), None) => removed.extend(before.next()),
            (_, Some(_)) => added.extend(after.next()),
            (None, None) => return (removed, added),
        }
    }
}
