//! Index entries: which ones a document has, how they look, and what keeps a unique index unique.
//!
//! An entry is a key of the `index` table with an empty row: index id (4) · one component a field · record key. Components
//! are cut at a fixed length, so entries whose cut parts are equal say nothing about the order of their values: scans
//! re-sort and re-check those against the records.

use std::cmp::Ordering;

use heed::RoTxn;
use okdb_query::{Value, compare, encode, index_values};

use crate::{Error, catalog::IndexDef, layout, lmdb::Tables};

/// The most bytes of one component, marker included. Eight of them, an id and a key fit LMDB's 1,982.
pub(crate) const COMPONENT_BYTES_MAX: usize = 180;
/// The most entries one record may have in one index.
const ENTRIES_MAX: usize = 10_000;

/// One combination of field values of a document: what an entry stands for.
pub(crate) struct Combination<'v> {
    pub(crate) values: Vec<&'v Value<'v>>,
    /// Index id and components: the entry without the record key.
    pub(crate) prefix: Vec<u8>,
    /// Whether any component was cut.
    pub(crate) cut: bool,
}

impl Combination<'_> {
    /// Unique indexes speak only of records in which every field is present and not null.
    pub(crate) fn is_complete(&self) -> bool {
        self.values
            .iter()
            .all(|value| !matches!(value, Value::Null))
    }

    pub(crate) fn entry(&self, key: &str) -> Vec<u8> {
        [&self.prefix, key.as_bytes()].concat()
    }
}

/// What a document has in an index.
pub(crate) struct Combinations<'v> {
    /// In entry order, each prefix and value once.
    pub(crate) list: Vec<Combination<'v>>,
    /// Whether an array was involved.
    pub(crate) multikey: bool,
}

/// All combinations of a document's values for an index.
pub(crate) fn combinations<'v>(
    index: &IndexDef,
    doc: &'v Value<'_>,
) -> Result<Combinations<'v>, Error> {
    let mut multikey = false;
    let mut fields = Vec::with_capacity(index.paths.len());
    let mut total: usize = 1;
    for path in &index.paths {
        let found = index_values(doc, path);
        multikey |= found.is_array;
        total = total.saturating_mul(found.values.len());
        if total > ENTRIES_MAX {
            return Err(Error::InvalidIndex(format!(
                "the record would need more than {ENTRIES_MAX} entries in index {:?}",
                index.name
            )));
        }
        fields.push(found.values);
    }
    let start = Combination {
        values: Vec::with_capacity(fields.len()),
        prefix: index.row.id.to_be_bytes().to_vec(),
        cut: false,
    };
    let mut list = vec![start];
    for values in &fields {
        let mut longer = Vec::with_capacity(list.len() * values.len());
        for head in list {
            for value in values {
                let mut next = Combination {
                    values: head.values.clone(),
                    prefix: head.prefix.clone(),
                    cut: head.cut,
                };
                next.values.push(value);
                next.cut |= encode::component(value, COMPONENT_BYTES_MAX, &mut next.prefix);
                longer.push(next);
            }
        }
        list = longer;
    }
    list.sort_by(|a, b| {
        a.prefix
            .cmp(&b.prefix)
            .then_with(|| compare_values(&a.values, &b.values))
    });
    list.dedup_by(|a, b| a.prefix == b.prefix && compare_values(&a.values, &b.values).is_eq());
    Ok(Combinations { list, multikey })
}

/// Compares lists of values place by place.
pub(crate) fn compare_values(a: &[&Value<'_>], b: &[&Value<'_>]) -> Ordering {
    a.iter()
        .zip(b)
        .map(|(a, b)| compare(a, b))
        .find(|order| order.is_ne())
        .unwrap_or_else(|| a.len().cmp(&b.len()))
}

/// The entries (without duplicates, in order) that a list of combinations makes for a record.
pub(crate) fn entries(combinations: &Combinations<'_>, key: &str) -> Vec<Vec<u8>> {
    let mut entries: Vec<_> = combinations.list.iter().map(|one| one.entry(key)).collect();
    entries.dedup();
    entries
}

/// Where the components end and the record key begins.
pub(crate) fn split_entry(entry: &[u8], fields: usize) -> Result<(&[u8], &str), Error> {
    let mut end = 4;
    for _ in 0..fields {
        let rest = entry
            .get(end..)
            .ok_or_else(|| layout::damaged("index entry", entry))?;
        end += encode::component_len(rest).ok_or_else(|| layout::damaged("index entry", entry))?;
    }
    let (prefix, key) = entry
        .split_at_checked(end)
        .ok_or_else(|| layout::damaged("index entry", entry))?;
    let key = std::str::from_utf8(key).map_err(|_| layout::damaged("index entry", entry))?;
    Ok((prefix, key))
}

/// How far entries agree whose order their bytes cannot tell: index id and components, up to and with the first cut one;
/// and whether there is a cut one.
pub(crate) fn group_prefix(components: &[u8]) -> (&[u8], bool) {
    let mut end = 4;
    while let Some(rest) = components.get(end..)
        && let Some(length) = encode::component_len(rest)
    {
        end += length;
        if encode::is_cut(rest.get(..length).unwrap_or_default()) {
            return (components.get(..end).unwrap_or(components), true);
        }
    }
    (components, false)
}

/// The key of another record that already holds one of these combinations in a unique index.
pub(crate) fn conflict(
    tables: &Tables,
    txn: &RoTxn<'_>,
    index: &IndexDef,
    type_id: u32,
    combinations: &Combinations<'_>,
    own_key: &str,
) -> Result<Option<String>, Error> {
    for combination in combinations.list.iter().filter(|one| one.is_complete()) {
        for entry in tables.index.prefix_iter(txn, &combination.prefix)? {
            let (entry, _) = entry?;
            let (prefix, key) = split_entry(entry, index.paths.len())?;
            if prefix != combination.prefix || key == own_key {
                continue;
            }
            if !combination.cut || holds(tables, txn, index, type_id, key, combination)? {
                return Ok(Some(key.to_owned()));
            }
        }
    }
    Ok(None)
}

/// Whether the record really has the whole values of a cut combination.
fn holds(
    tables: &Tables,
    txn: &RoTxn<'_>,
    index: &IndexDef,
    type_id: u32,
    key: &str,
    combination: &Combination<'_>,
) -> Result<bool, Error> {
    let mut row_key = Vec::new();
    layout::record_key(type_id, key, &mut row_key);
    let Some(row) = tables.data.get(txn, &row_key)? else {
        return Err(Error::Damaged(format!(
            "index {} names the absent record {key:?}",
            index.name
        )));
    };
    let (_, text) = layout::decode_record(row)?;
    let doc = parse_stored(text)?;
    let theirs = combinations(index, &doc)?;
    Ok(theirs
        .list
        .iter()
        .any(|one| compare_values(&one.values, &combination.values).is_eq()))
}

/// Parses a stored document.
pub(crate) fn parse_stored(text: &str) -> Result<Value<'_>, Error> {
    Value::parse(text)
        .map_err(|error| Error::Damaged(format!("a stored value does not parse: {error}")))
}
