//! What was let in and does not hold: rows of the `violations` table, and listing them.
//!
//! A row belongs to a record that exists and is rewritten with it; so it is gone when its cause is.

use std::ops::{Bound, ControlFlow};

use heed::{RoTxn, RwTxn};
use serde::{Deserialize, Serialize};

use crate::{
    Env, Error, IndexState,
    catalog::{IndexDef, TypeDef},
    index, layout,
    lmdb::Tables,
    scan::{Budget, KeyRange, Progress},
    snapshot::Snapshot,
    store::hex,
};

/// Failures of one document that are told and stored, at most.
pub(crate) const FAILURES_MAX: usize = 64;

/// What does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ViolationKind {
    /// The record does not fit its type's schema.
    Schema = 1,
    /// A record that this one refers to does not exist.
    Ref = 2,
    /// Another record holds the same value, and a unique index over it could not be built.
    Unique = 3,
}

impl ViolationKind {
    fn decode(byte: u8) -> Option<Self> {
        [Self::Schema, Self::Ref, Self::Unique]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

impl std::str::FromStr for ViolationKind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "schema" => Ok(Self::Schema),
            "ref" => Ok(Self::Ref),
            "unique" => Ok(Self::Unique),
            _ => Err(()),
        }
    }
}

/// Something that was let in and does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Violation {
    /// What kind of rule it breaks.
    pub kind: ViolationKind,
    /// The type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The record's key.
    pub key: String,
    /// Where in the record: a JSON pointer (RFC 6901); for a unique index its name.
    pub path: String,
    /// What is wrong, for people.
    pub detail: String,
    /// When it was noticed, in ms since 1970.
    pub detected_at: u64,
}

/// Which violations to list.
#[derive(Clone, Debug, Default)]
pub struct ViolationsQuery {
    /// Of this kind only.
    pub kind: Option<ViolationKind>,
    /// Of this type only.
    pub type_name: Option<String>,
    /// The most to list.
    pub limit: usize,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

/// A page of violations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Violations {
    /// By type, in the order in which types were made, and key.
    pub violations: Vec<Violation>,
    /// Where to go on, `None` at the end.
    pub cursor: Option<String>,
}

/// The row of a violation: JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ViolationRow {
    pub(crate) path: String,
    pub(crate) detail: String,
    #[serde(rename = "detectedAt")]
    pub(crate) detected_at: u64,
    /// For a reference: its id and the key of the record that it names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<(u32, String)>,
}

/// Reads the row of a violation.
pub(crate) fn decode_row(row: &[u8]) -> Result<ViolationRow, Error> {
    serde_json::from_slice(row).map_err(|error| Error::Damaged(format!("violation: {error}")))
}

impl ViolationRow {
    /// A place that does not fit the schema.
    pub(crate) fn failure(failure: okdb_schema::Failure, now_ms: u64) -> Self {
        Self {
            path: failure.path,
            detail: failure.message,
            detected_at: now_ms,
            target: None,
        }
    }

    /// A reference to a record that does not exist.
    pub(crate) fn dangling(
        ref_id: u32,
        path: String,
        target_type: &str,
        target: &str,
        now_ms: u64,
    ) -> Self {
        Self {
            path,
            detail: format!("it refers to {target_type}/{target}, which does not exist"),
            detected_at: now_ms,
            target: Some((ref_id, target.to_owned())),
        }
    }
}

/// The violations of one record, in order.
pub(crate) fn of_record(
    tables: &Tables,
    txn: &RoTxn<'_>,
    type_id: u32,
    key: &str,
) -> Result<Vec<(ViolationKind, ViolationRow)>, Error> {
    let mut rows = Vec::new();
    // Hardly any store has any.
    if tables.violations.is_empty(txn)? {
        return Ok(rows);
    }
    let prefix = layout::violations_prefix(type_id, key);
    for row in tables.violations.prefix_iter(txn, &prefix)? {
        let (row_key, row) = row?;
        let (_, _, kind) = layout::decode_violation(row_key)?;
        let kind = ViolationKind::decode(kind)
            .ok_or_else(|| layout::damaged("violations key", row_key))?;
        rows.push((kind, decode_row(row)?));
    }
    Ok(rows)
}

/// Makes these the violations of a record, in place of `before`. What stays keeps the time at which it was noticed.
pub(crate) fn replace(
    tables: &Tables,
    txn: &mut RwTxn<'_>,
    type_id: u32,
    key: &str,
    before: &[(ViolationKind, ViolationRow)],
    mut after: Vec<(ViolationKind, ViolationRow)>,
) -> Result<(), Error> {
    if before.is_empty() && after.is_empty() {
        return Ok(());
    }
    for (kind, row) in &mut after {
        let same = |(old_kind, old): &&(ViolationKind, ViolationRow)| {
            old_kind == kind && old.path == row.path && old.detail == row.detail
        };
        if let Some((_, old)) = before.iter().find(same) {
            row.detected_at = old.detected_at;
        }
    }
    if !before.is_empty() {
        let prefix = layout::violations_prefix(type_id, key);
        let mut end = prefix.clone();
        // Behind the zero byte stands a kind.
        end.push(u8::MAX);
        let range = (
            Bound::Included(prefix.as_slice()),
            Bound::Excluded(end.as_slice()),
        );
        tables.violations.delete_range(txn, &range)?;
    }
    for (place, (kind, row)) in after.iter().enumerate() {
        let place = u16::try_from(place).unwrap_or(u16::MAX);
        let row_key = layout::violation_key(type_id, key, *kind as u8, place);
        let text = serde_json::to_vec(row)
            .map_err(|error| Error::Damaged(format!("violation: {error}")))?;
        tables.violations.put(txn, &row_key, &text)?;
    }
    Ok(())
}

impl Env {
    /// What was let in and does not hold. Violations go by themselves when they are cured.
    ///
    /// # Errors
    /// [`Error::TypeNotRegistered`], [`Error::InvalidCursor`], and what LMDB reports.
    pub fn violations(&self, query: &ViolationsQuery) -> Result<Violations, Error> {
        let mut snapshot = self.snapshot()?;
        let only = match &query.type_name {
            Some(name) => Some(snapshot.catalog.require(name)?.id),
            None => None,
        };
        let request = self
            .0
            .cursor_key
            .request("violations")
            .part(query.type_name.as_deref().unwrap_or_default())
            .part([query.kind.map_or(0, |kind| kind as u8)]);
        let start = match &query.cursor {
            Some(cursor) => Start::parse(&request.open(cursor)?)?,
            None => Start::Unique(0),
        };
        let mut page = Violations::default();
        let mut range = match only {
            Some(id) => KeyRange::of_prefix(&id.to_be_bytes()),
            None => KeyRange {
                lower: Bound::Unbounded,
                upper: Bound::Unbounded,
                reverse: false,
            },
        };
        match start {
            Start::Behind(row_key) => range.lower = Bound::Excluded(row_key),
            Start::Unique(seen) => {
                let mut unique = Vec::new();
                if query.kind.is_none_or(|kind| kind == ViolationKind::Unique) {
                    unique = unique_violations(&snapshot, only)?;
                }
                let rest = unique.len().saturating_sub(seen);
                page.violations
                    .extend(unique.into_iter().skip(seen).take(query.limit));
                if rest > query.limit {
                    let next = Start::Unique(seen + query.limit);
                    page.cursor = Some(request.seal(&next.to_text()));
                    return Ok(page);
                }
            }
        }
        if query.kind == Some(ViolationKind::Unique) {
            return Ok(page);
        }
        let mut last = Vec::new();
        loop {
            let progress = range.chunk(
                self.0.tables.violations,
                &snapshot.txn,
                &mut Budget::new(),
                |row_key, row| {
                    let Some(violation) = listed(&snapshot, query.kind, row_key, row)? else {
                        return Ok(ControlFlow::Continue(()));
                    };
                    if page.violations.len() >= query.limit {
                        let next = Start::Behind(std::mem::take(&mut last));
                        page.cursor = Some(request.seal(&next.to_text()));
                        return Ok(ControlFlow::Break(()));
                    }
                    page.violations.push(violation);
                    last = row_key.to_vec();
                    Ok(ControlFlow::Continue(()))
                },
            )?;
            if progress != Progress::More {
                return Ok(page);
            }
            snapshot = self.snapshot()?;
        }
    }
}

/// Where a page begins.
enum Start {
    /// Behind so many violations of unique indexes, which come first.
    Unique(usize),
    /// Behind this row; an empty one lies before all.
    Behind(Vec<u8>),
}

impl Start {
    fn to_text(&self) -> String {
        match self {
            Self::Unique(seen) => format!("u{seen}"),
            Self::Behind(row_key) => format!("r{}", hex(row_key)),
        }
    }

    fn parse(text: &str) -> Result<Self, Error> {
        if let Some(seen) = text.strip_prefix('u') {
            return seen
                .parse()
                .map(Self::Unique)
                .map_err(|_| Error::InvalidCursor);
        }
        let digits = text.strip_prefix('r').ok_or(Error::InvalidCursor)?;
        let byte = |pair: &[u8]| {
            let pair = std::str::from_utf8(pair).map_err(|_| Error::InvalidCursor)?;
            u8::from_str_radix(pair, 16).map_err(|_| Error::InvalidCursor)
        };
        let row_key = digits.as_bytes().chunks(2).map(byte);
        Ok(Self::Behind(row_key.collect::<Result<_, _>>()?))
    }
}

/// A violation as it is listed: of a live record of a type that has a schema.
fn listed(
    snapshot: &Snapshot<'_>,
    only: Option<ViolationKind>,
    row_key: &[u8],
    row: &[u8],
) -> Result<Option<Violation>, Error> {
    let (type_id, key, kind) = layout::decode_violation(row_key)?;
    let Some(def) = snapshot.catalog.by_id(type_id) else {
        return Ok(None);
    };
    let Some(kind) = ViolationKind::decode(kind) else {
        return Err(layout::damaged("violations key", row_key));
    };
    if only.is_some_and(|only| only != kind)
        || def.schema.is_none()
        || snapshot.stored(def, key)?.is_none()
    {
        return Ok(None);
    }
    let row = decode_row(row)?;
    Ok(Some(Violation {
        kind,
        type_name: def.name.clone(),
        key: key.to_owned(),
        path: row.path,
        detail: row.detail,
        detected_at: row.detected_at,
    }))
}

/// Records that keep a unique index from being built, as far as they still do.
fn unique_violations(snapshot: &Snapshot<'_>, only: Option<u32>) -> Result<Vec<Violation>, Error> {
    let mut found = Vec::new();
    for def in snapshot.catalog.types() {
        if only.is_some_and(|id| id != def.id) {
            continue;
        }
        for index in &def.indexes {
            let Some(failure) = index.row.failure.as_ref() else {
                continue;
            };
            if index.row.state != IndexState::Failed {
                continue;
            }
            for [holder, key] in &failure.duplicates {
                if !share_a_value(snapshot, def, index, holder, key)? {
                    continue;
                }
                found.push(Violation {
                    kind: ViolationKind::Unique,
                    type_name: def.name.clone(),
                    key: key.clone(),
                    path: index.name.clone(),
                    detail: format!("record {holder:?} holds the same value"),
                    detected_at: failure.detected_at,
                });
            }
        }
    }
    Ok(found)
}

fn share_a_value(
    snapshot: &Snapshot<'_>,
    def: &TypeDef,
    index: &IndexDef,
    one: &str,
    other: &str,
) -> Result<bool, Error> {
    let text = |key| Ok::<_, Error>(snapshot.stored(def, key)?.map(|(_, text)| text));
    let (Some(one), Some(other)) = (text(one)?, text(other)?) else {
        return Ok(false);
    };
    let (one, other) = (index::parse_stored(one)?, index::parse_stored(other)?);
    let (one, other) = (
        index::combinations(index, &one)?,
        index::combinations(index, &other)?,
    );
    Ok(one.list.iter().any(|a| {
        let equal =
            |b: &index::Combination<'_>| index::compare_values(&a.values, &b.values).is_eq();
        a.is_complete() && other.list.iter().any(equal)
    }))
}
