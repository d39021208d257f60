//! Answering lists, queries and counts: the scans behind them, in chunks that renew their snapshot.

mod found;
mod listing;
mod run;

use std::ops::{Bound, ControlFlow};

use okdb_query::{Filter, Select, Sort, Value, write_string};

use self::{listing::Listing, run::QueryRun};
use crate::{
    Env, Error, Plan,
    catalog::{self, IndexDef, TypeDef},
    cursor::Request,
    index, layout,
    plan::Stretch,
    scan::{Budget, KeyRange, Progress, above},
};

/// How often a scan starts over because an index that it used changed under it.
const RESTARTS_MAX: usize = 8;

/// A page of records in key order.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Keys that begin with this.
    pub prefix: Option<String>,
    /// The lower bound, inclusive.
    pub start: Option<String>,
    /// The upper bound, inclusive.
    pub end: Option<String>,
    /// Last key first.
    pub reverse: bool,
    /// The most items.
    pub limit: usize,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

/// A page of records that match.
#[derive(Debug, Default)]
pub struct Query {
    /// What must match.
    pub filter: Filter,
    /// The filter's compact text, which a cursor is bound to.
    pub filter_text: String,
    /// The order; ties, and everything where it is empty, go by key.
    pub sort: Sort,
    /// Which parts of each value to give; all of it if `None`.
    pub select: Option<Select>,
    /// The index to use, instead of one that the planner picks.
    pub index: Option<String>,
    /// The most items.
    pub limit: usize,
    /// Where the page before ended.
    pub cursor: Option<String>,
    /// Whether to tell the plan.
    pub explain: bool,
}

/// A page of records in index order. Empty lists are bounds that were not given.
#[derive(Clone, Debug, Default)]
pub struct IndexQuery {
    /// Values of the leading fields.
    pub prefix: Vec<Value<'static>>,
    /// The lower bound of the leading fields, inclusive.
    pub start: Vec<Value<'static>>,
    /// The upper bound of the leading fields, inclusive.
    pub end: Vec<Value<'static>>,
    /// Largest first; equal ones still by key.
    pub reverse: bool,
    /// The most items.
    pub limit: usize,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

/// A page of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The records.
    pub items: Vec<Item>,
    /// Where to go on, `None` at the end.
    pub cursor: Option<String>,
    /// How it was found, if that was asked.
    pub plan: Option<Plan>,
}

/// A record of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its key.
    pub key: String,
    /// Its value, or the selected parts of it: compact JSON text.
    pub value: String,
    /// Its version.
    pub version: u64,
    /// The values of the indexed fields, a JSON array, where an index was listed.
    pub index_key: Option<String>,
}

/// Where a page ended: the values of the sort and the record key.
#[derive(Clone, Debug)]
struct Position {
    values: Vec<Value<'static>>,
    key: String,
}

impl Position {
    /// `[value, …, "key"]`
    fn to_text(&self) -> String {
        let mut text = values_text(&self.values);
        text.pop();
        if !self.values.is_empty() {
            text.push(',');
        }
        write_string(&self.key, &mut text);
        text.push(']');
        text
    }

    fn parse(text: &str, values: usize) -> Result<Self, Error> {
        let parsed = Value::parse(text)
            .map_err(|_| Error::InvalidCursor)?
            .into_owned();
        let Value::Array(mut list) = parsed else {
            return Err(Error::InvalidCursor);
        };
        match list.pop() {
            Some(Value::String(key)) if list.len() == values => Ok(Self {
                values: list,
                key: key.into_owned(),
            }),
            _ => Err(Error::InvalidCursor),
        }
    }
}

/// A JSON array of values.
fn values_text<'v>(values: impl IntoIterator<Item = &'v Value<'v>>) -> String {
    let mut text = String::from("[");
    for value in values {
        if text.len() > 1 {
            text.push(',');
        }
        value.write(&mut text);
    }
    text.push(']');
    text
}

/// A scan that has to begin again: what it relied on has changed.
enum Run<T> {
    Done(T),
    Again,
}

impl Env {
    /// Records in key order.
    ///
    /// # Errors
    /// [`Error::TypeNotRegistered`], [`Error::InvalidCursor`], and what LMDB reports.
    pub fn list(&self, type_name: &str, query: &ListQuery) -> Result<Page, Error> {
        let snapshot = self.snapshot()?;
        let def = snapshot.catalog.require(type_name)?;
        let request = self
            .request("list", def)
            .part(query.prefix.as_deref().unwrap_or_default())
            .part(query.start.as_deref().unwrap_or_default())
            .part(query.end.as_deref().unwrap_or_default())
            .part([u8::from(query.reverse)]);
        let mut range = key_range(def.id, query);
        if let Some(cursor) = &query.cursor {
            let position = Position::parse(&request.open(cursor)?, 0)?;
            let mut at = Vec::new();
            layout::record_key(def.id, &position.key, &mut at);
            if query.reverse {
                range.upper = Bound::Excluded(at);
            } else {
                range.lower = Bound::Excluded(at);
            }
        }
        let mut items: Vec<Item> = Vec::new();
        let mut bytes = 0;
        let mut more = false;
        let mut snapshot = snapshot;
        loop {
            let progress = range.chunk(
                self.0.tables.data,
                &snapshot.txn,
                &mut Budget::new(),
                |key, row| {
                    let (header, text) = layout::decode_record(row)?;
                    if !snapshot.sees(&header) {
                        return Ok(ControlFlow::Continue(()));
                    }
                    if items.len() == query.limit || bytes > found::PAGE_BYTES_MAX {
                        more = true;
                        return Ok(ControlFlow::Break(()));
                    }
                    bytes += text.len();
                    items.push(Item {
                        key: layout::key_of(key)?.to_owned(),
                        value: text.to_owned(),
                        version: header.version,
                        index_key: None,
                    });
                    Ok(ControlFlow::Continue(()))
                },
            )?;
            if progress != Progress::More {
                break;
            }
            snapshot = self.snapshot()?;
        }
        let cursor = match items.last() {
            Some(last) if more => Some(
                request.seal(
                    &Position {
                        values: Vec::new(),
                        key: last.key.clone(),
                    }
                    .to_text(),
                ),
            ),
            _ => None,
        };
        Ok(Page {
            items,
            cursor,
            plan: None,
        })
    }

    /// Records that match a filter, in the order of its sort.
    ///
    /// # Errors
    /// [`Error::TypeNotRegistered`], [`Error::IndexNotRegistered`] for a forced index, [`Error::InvalidCursor`], and what
    /// LMDB reports.
    pub fn query(&self, type_name: &str, query: &Query) -> Result<Page, Error> {
        for _ in 0..RESTARTS_MAX {
            if let Run::Done(page) = QueryRun::begin(self, type_name, query)?.run()? {
                return Ok(page);
            }
        }
        Err(Error::Overloaded)
    }

    /// How many records match a filter.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    pub fn count(&self, type_name: &str, filter: &Filter) -> Result<u64, Error> {
        if filter.is_empty() {
            let snapshot = self.snapshot()?;
            let def = snapshot.catalog.require(type_name)?;
            return catalog::live_count(&self.0.tables, &snapshot.txn, def.id, snapshot.now_ms());
        }
        // Counting is a query whose items are only counted.
        let query = Query {
            filter: filter.clone(),
            limit: 0,
            ..Query::default()
        };
        for _ in 0..RESTARTS_MAX {
            if let Run::Done(count) = QueryRun::begin(self, type_name, &query)?.count()? {
                return Ok(count);
            }
        }
        Err(Error::Overloaded)
    }

    /// Records in the order of an index.
    ///
    /// # Errors
    /// [`Error::TypeNotRegistered`], [`Error::IndexNotRegistered`], [`Error::InvalidCursor`], [`Error::InvalidParameter`]
    /// for bounds with more values than the index has fields, and what LMDB reports.
    pub fn index_list(
        &self,
        type_name: &str,
        name: &str,
        query: &IndexQuery,
    ) -> Result<Page, Error> {
        for _ in 0..RESTARTS_MAX {
            let mut listing = Listing::begin(self, type_name, name, query)?;
            if let Run::Done(page) = listing.page()? {
                return Ok(page);
            }
        }
        Err(Error::Overloaded)
    }

    /// How many records an index holds between bounds.
    ///
    /// # Errors
    /// As [`index_list`](Self::index_list).
    pub fn index_count(
        &self,
        type_name: &str,
        name: &str,
        query: &IndexQuery,
    ) -> Result<u64, Error> {
        for _ in 0..RESTARTS_MAX {
            let mut listing = Listing::begin(self, type_name, name, query)?;
            if let Run::Done(count) = listing.count()? {
                return Ok(count);
            }
        }
        Err(Error::Overloaded)
    }

    fn request(&self, route: &str, def: &TypeDef) -> Request {
        // The id is in it: a cursor does not outlive a drop and re-creation.
        self.0
            .cursor_key
            .request(route)
            .part(&def.name)
            .part(def.id.to_be_bytes())
    }
}

fn key_range(type_id: u32, query: &ListQuery) -> KeyRange {
    let key = |text: &str| {
        let mut key = Vec::new();
        layout::record_key(type_id, text, &mut key);
        key
    };
    let mut lower = key(query.prefix.as_deref().unwrap_or_default());
    let mut upper = match &query.prefix {
        // No key holds the byte 0xFF.
        Some(prefix) if !prefix.is_empty() => above(&key(prefix)),
        _ => layout::after_id(type_id).to_vec(),
    };
    if let Some(start) = &query.start {
        lower = lower.max(key(start));
    }
    if let Some(end) = &query.end {
        // Inclusive: the smallest key above it is itself and a zero byte.
        let mut end = key(end);
        end.push(0);
        upper = upper.min(end);
    }
    KeyRange {
        lower: Bound::Included(lower),
        upper: Bound::Excluded(upper),
        reverse: query.reverse,
    }
}

/// Whether the index is the one that the scan began with, as it was.
fn still_there(def: &TypeDef, index: &IndexDef) -> bool {
    def.ready_index(&index.name)
        .is_ok_and(|now| now.row.id == index.row.id && now.row.multikey == index.row.multikey)
}

/// The components of the first entry that a document has in stretches of an index.
fn first_prefix(
    index: &IndexDef,
    doc: &Value<'_>,
    stretches: &[Stretch],
) -> Result<Option<Vec<u8>>, Error> {
    let list = index::combinations(index, doc)?.list;
    let mut inside = list.into_iter().map(|one| one.prefix).filter(|prefix| {
        // An entry is its components and a key: a bound that ends behind the components lies above them alone.
        let end = above(prefix);
        stretches
            .iter()
            .any(|stretch| end > stretch.lower && *prefix < stretch.upper)
    });
    Ok(inside.next())
}
