//! One query: where its candidates come from, and the page that it fills with those that match.

use std::ops::{Bound, ControlFlow};

use okdb_query::{Sort, Value, encode};

use super::{Item, Page, Position, Query, Run, first_prefix, found::Found, still_there};
use crate::{
    Env, Error, Plan,
    cursor::Request,
    index::{self, COMPONENT_BYTES_MAX},
    layout,
    plan::{self, Access, Order},
    scan::{Budget, GroupWalk, KeyRange, Progress},
};

/// How a query finds its records.
enum Source {
    /// Every record, by key.
    Table(KeyRange),
    /// Stretches of an index, in entry order; those still to be walked, the next one last.
    Entries(Access, Vec<KeyRange>),
    /// A stretch of an index, in the order that the sort asks for.
    Groups(Access, GroupWalk),
}

pub(super) struct QueryRun<'q> {
    env: &'q Env,
    query: &'q Query,
    type_name: &'q str,
    type_id: u32,
    request: Request,
    after: Option<Position>,
    source: Source,
    found: Found,
    /// Whether candidates come in the order of the answer.
    ordered: bool,
    count: u64,
    plan: Plan,
}

impl<'q> QueryRun<'q> {
    pub(super) fn begin(env: &'q Env, type_name: &'q str, query: &'q Query) -> Result<Self, Error> {
        let snapshot = env.snapshot()?;
        let def = snapshot.catalog.require(type_name)?;
        let mut request = env
            .request("query", def)
            .part(&query.filter_text)
            .part(query.index.as_deref().unwrap_or_default());
        for field in query.sort.fields() {
            request = request
                .part(field.path.as_str())
                .part([u8::from(field.descending)]);
        }
        let after = match &query.cursor {
            Some(cursor) => Some(Position::parse(
                &request.open(cursor)?,
                query.sort.fields().len(),
            )?),
            None => None,
        };
        let access = plan::choose(def, query)?;
        let index = access.as_ref().map(|access| access.index.name.clone());
        let source = source(def.id, access, &query.sort, after.as_ref());
        let ordered = match &source {
            Source::Table(_) => query.sort.fields().is_empty(),
            Source::Entries(access, _) => access.order == Order::ByKey,
            Source::Groups(..) => true,
        };
        Ok(Self {
            env,
            query,
            type_name,
            type_id: def.id,
            request,
            after,
            source,
            found: Found::new(query.limit),
            ordered,
            count: 0,
            plan: Plan {
                index,
                sorted: !ordered,
                ..Plan::default()
            },
        })
    }

    pub(super) fn run(mut self) -> Result<Run<Page>, Error> {
        loop {
            match self.chunk(false)? {
                Run::Again => return Ok(Run::Again),
                Run::Done(Progress::More) => {}
                Run::Done(Progress::Done | Progress::Stopped) => break,
            }
        }
        let (items, last) = self.found.page(self.query.limit);
        let cursor = last.map(|position| self.request.seal(&position.to_text()));
        Ok(Run::Done(Page {
            items,
            cursor,
            plan: self.query.explain.then_some(self.plan),
        }))
    }

    pub(super) fn count(mut self) -> Result<Run<u64>, Error> {
        loop {
            match self.chunk(true)? {
                Run::Again => return Ok(Run::Again),
                Run::Done(Progress::More) => {}
                Run::Done(Progress::Done | Progress::Stopped) => {
                    return Ok(Run::Done(self.count));
                }
            }
        }
    }

    /// Goes on under a fresh snapshot, if everything that the scan relies on is still there.
    fn chunk(&mut self, counting: bool) -> Result<Run<Progress>, Error> {
        let snapshot = self.env.snapshot()?;
        let def = snapshot.catalog.require(self.type_name)?;
        if def.id != self.type_id {
            return Ok(Run::Again);
        }
        let mut budget = Budget::new();
        let tables = self.env.0.tables;
        let mut visitor = Visitor {
            query: self.query,
            after: self.after.as_ref(),
            found: &mut self.found,
            ordered: self.ordered,
            count: counting.then_some(&mut self.count),
            plan: &mut self.plan,
        };
        let progress = match &mut self.source {
            Source::Table(range) => {
                range.chunk(tables.data, &snapshot.txn, &mut budget, |key, row| {
                    let (header, text) = layout::decode_record(row)?;
                    if !snapshot.sees(&header) {
                        return Ok(ControlFlow::Continue(()));
                    }
                    visitor.record(layout::key_of(key)?, header.version, text, |_| Ok(true))
                })?
            }
            Source::Entries(access, ranges) => {
                let index = &access.index;
                if !still_there(def, index) {
                    return Ok(Run::Again);
                }
                let mut progress = Progress::Done;
                while let (Progress::Done, Some(range)) = (progress, ranges.last_mut()) {
                    progress =
                        range.chunk(tables.index, &snapshot.txn, &mut budget, |entry, _| {
                            visitor.plan.entries += 1;
                            let (components, key) = index::split_entry(entry, index.paths.len())?;
                            let Some((version, text)) = snapshot.indexed_record(def, key)? else {
                                return Ok(ControlFlow::Continue(()));
                            };
                            // A record with several entries in the stretches counts at the first of them.
                            visitor.record(key, version, text, |doc| {
                                Ok(!index.row.multikey
                                    || first_prefix(index, doc, &access.stretches)?.as_deref()
                                        == Some(components))
                            })
                        })?;
                    if progress == Progress::Done {
                        ranges.pop();
                    }
                }
                progress
            }
            Source::Groups(access, walk) => {
                if !still_there(def, &access.index) {
                    return Ok(Run::Again);
                }
                walk.chunk(tables.index, &snapshot.txn, &mut budget, |_, key| {
                    visitor.plan.entries += 1;
                    let Some((version, text)) = snapshot.indexed_record(def, key)? else {
                        return Ok(ControlFlow::Continue(()));
                    };
                    visitor.record(key, version, text, |_| Ok(true))
                })?
            }
        };
        Ok(Run::Done(progress))
    }
}

fn source(type_id: u32, access: Option<Access>, sort: &Sort, after: Option<&Position>) -> Source {
    let Some(access) = access else {
        let mut range = KeyRange::of_prefix(&type_id.to_be_bytes());
        if let Some(after) = after
            && sort.fields().is_empty()
        {
            let mut key = Vec::new();
            layout::record_key(type_id, &after.key, &mut key);
            range.lower = Bound::Excluded(key);
        }
        return Source::Table(range);
    };
    match access.order {
        Order::BySort { descending } => {
            let start = after.map(|after| {
                let mut prefix = access.index.row.id.to_be_bytes().to_vec();
                for value in access.fixed.iter().chain(&after.values) {
                    encode::component(value, COMPONENT_BYTES_MAX, &mut prefix);
                }
                (prefix, after.key.clone())
            });
            let stretch = access.stretches.first().cloned().unwrap_or_default();
            let fields = access.index.paths.len();
            let walk = GroupWalk::new(stretch.lower, stretch.upper, descending, fields, start);
            Source::Groups(access, walk)
        }
        Order::ByKey | Order::Other => {
            let mut ranges: Vec<_> = access
                .stretches
                .iter()
                .rev()
                .map(|stretch| KeyRange {
                    lower: Bound::Included(stretch.lower.clone()),
                    upper: Bound::Excluded(stretch.upper.clone()),
                    reverse: false,
                })
                .collect();
            if let (Order::ByKey, Some(after)) = (access.order, after)
                && let Some(range) = ranges.last_mut()
                && let Bound::Included(components) = &range.lower
            {
                range.lower = Bound::Excluded([components, after.key.as_bytes()].concat());
            }
            Source::Entries(access, ranges)
        }
    }
}

struct Visitor<'v, 'q> {
    query: &'q Query,
    after: Option<&'v Position>,
    found: &'v mut Found,
    ordered: bool,
    /// Where to count what matches, if it is only to be counted.
    count: Option<&'v mut u64>,
    plan: &'v mut Plan,
}

impl Visitor<'_, '_> {
    /// Takes a record if it matches, counts here, and lies behind the cursor. Breaks when the page is full.
    fn record(
        &mut self,
        key: &str,
        version: u64,
        text: &str,
        counts_here: impl FnOnce(&Value<'_>) -> Result<bool, Error>,
    ) -> Result<ControlFlow<()>, Error> {
        self.plan.records += 1;
        let doc = index::parse_stored(text)?;
        if self.query.filter.matches(&doc) && counts_here(&doc)? {
            match &mut self.count {
                Some(count) => **count += 1,
                None => self.take(key, version, text, &doc),
            }
        }
        Ok(if self.ordered && self.found.is_full() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    }

    fn take(&mut self, key: &str, version: u64, text: &str, doc: &Value<'_>) {
        let sort = &self.query.sort;
        let values = sort.keys(doc);
        let order = |a: &[Value<'_>], a_key: &str, b: &[Value<'_>], b_key: &str| {
            sort.compare(a, b).then_with(|| a_key.cmp(b_key))
        };
        if let Some(after) = self.after
            && order(&values, key, &after.values, &after.key).is_le()
        {
            return;
        }
        // Sort values are kept beside the item: they may be as large as the record.
        let extra_bytes = if values.is_empty() { 0 } else { text.len() };
        let item = || Item {
            key: key.to_owned(),
            value: match &self.query.select {
                Some(select) => select.apply(doc),
                None => text.to_owned(),
            },
            version,
            index_key: None,
        };
        self.found.offer(values, key, extra_bytes, order, item);
    }
}
