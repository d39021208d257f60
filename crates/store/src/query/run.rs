//! One query: where its candidates come from, and the page that it fills with those that match.

use std::{
    cmp::Ordering,
    ops::{Bound, ControlFlow},
};

use okdb_query::{Sort, Value, encode};

use super::{Item, PAGE_BYTES_MAX, Page, Position, Query, Run, first_prefix, still_there};
use crate::{
    Env, Error, Plan, Snapshot,
    catalog::TypeDef,
    cursor::Request,
    index::{self, COMPONENT_BYTES_MAX},
    layout,
    plan::{self, Access, Order},
    scan::{Budget, GroupWalk, KeyRange, Progress, Step},
};

/// How a query finds its records.
enum Source {
    /// Every record, by key.
    Table(KeyRange),
    /// A stretch of an index, in entry order.
    Entries(Access, KeyRange),
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
    found: Found<'q>,
    plan: Plan,
}

/// What matched so far, in the order of the answer.
struct Found<'q> {
    sort: &'q Sort,
    /// Items to keep: one more than the page, to know whether there is another.
    keep: usize,
    /// Whether items come in the order of the answer.
    ordered: bool,
    items: Vec<(Vec<Value<'static>>, Item)>,
    bytes: usize,
    /// Whether the page was cut short for its bytes.
    shortened: bool,
    count: u64,
}

impl Found<'_> {
    fn compare(&self, a: (&[Value<'_>], &str), b: (&[Value<'_>], &str)) -> Ordering {
        self.sort.compare(a.0, b.0).then_with(|| a.1.cmp(b.1))
    }

    fn is_full(&self) -> bool {
        self.ordered && self.items.len() >= self.keep
    }

    /// Keeps an item at its place, and the page within its bounds.
    fn insert(&mut self, at: usize, values: Vec<Value<'static>>, item: Item) {
        self.bytes += item.value.len();
        self.items.insert(at, (values, item));
        while self.items.len() > self.keep || (self.bytes > PAGE_BYTES_MAX && self.items.len() > 1)
        {
            let Some((_, dropped)) = self.items.pop() else {
                break;
            };
            self.bytes -= dropped.value.len();
            if self.items.len() < self.keep {
                // The best ones alone fill the page: what comes behind them waits for the next one.
                self.keep = self.items.len();
                self.shortened = true;
            }
        }
    }

    /// Where the item belongs among those kept; `None` if the page is full of better ones.
    fn place(&self, values: &[Value<'_>], key: &str) -> Option<usize> {
        let at = self.items.partition_point(|(other, item)| {
            self.compare((other, &item.key), (values, key)).is_lt()
        });
        (at < self.keep).then_some(at)
    }
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
            found: Found {
                sort: &query.sort,
                keep: query.limit + 1,
                ordered,
                items: Vec::new(),
                bytes: 0,
                shortened: false,
                count: 0,
            },
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
        let mut items = self.found.items;
        let more = self.found.shortened || items.len() > self.query.limit;
        items.truncate(self.query.limit);
        let cursor = match items.last() {
            Some((values, item)) if more => {
                let position = Position {
                    values: values.clone(),
                    key: item.key.clone(),
                };
                Some(self.request.seal(&position.to_text()))
            }
            _ => None,
        };
        Ok(Run::Done(Page {
            items: items.into_iter().map(|(_, item)| item).collect(),
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
                    return Ok(Run::Done(self.found.count));
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
            plan: &mut self.plan,
            counting,
        };
        let progress = match &mut self.source {
            Source::Table(range) => {
                range.chunk(tables.data, &snapshot.txn, &mut budget, |key, row| {
                    let (header, text) = layout::decode_record(row)?;
                    visitor.record(layout::key_of(key)?, header.version, text, |_| Ok(true))
                })?
            }
            Source::Entries(access, range) => {
                if !still_there(def, &access.index) {
                    return Ok(Run::Again);
                }
                let (lower, upper) = (access.lower.clone(), access.upper.clone());
                let index = &access.index;
                range.chunk(tables.index, &snapshot.txn, &mut budget, |entry, _| {
                    visitor.plan.entries += 1;
                    let (prefix, key) = index::split_entry(entry, index.paths.len())?;
                    let (version, text) = snapshot.indexed_record(def, key)?;
                    // A record with several entries in the stretch counts at the first of them.
                    visitor.record(key, version, text, |doc| {
                        Ok(!index.row.multikey
                            || first_prefix(index, doc, &lower, &upper, false)?.as_deref()
                                == Some(prefix))
                    })
                })?
            }
            Source::Groups(access, walk) => {
                if !still_there(def, &access.index) {
                    return Ok(Run::Again);
                }
                walk.chunk(tables.index, &snapshot.txn, &mut budget, |step| {
                    visitor.step(&snapshot, def, step)
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
            let walk = GroupWalk::new(
                access.lower.clone(),
                access.upper.clone(),
                descending,
                access.index.paths.len(),
                start,
            );
            Source::Groups(access, walk)
        }
        Order::ByKey | Order::Other => {
            let mut lower = Bound::Included(access.lower.clone());
            if let (Order::ByKey, Some(after)) = (access.order, after) {
                lower = Bound::Excluded([&access.lower, after.key.as_bytes()].concat());
            }
            let upper = Bound::Excluded(access.upper.clone());
            let range = KeyRange {
                lower,
                upper,
                reverse: false,
            };
            Source::Entries(access, range)
        }
    }
}

struct Visitor<'v, 'q> {
    query: &'q Query,
    after: Option<&'v Position>,
    found: &'v mut Found<'q>,
    plan: &'v mut Plan,
    counting: bool,
}

impl Visitor<'_, '_> {
    fn step(
        &mut self,
        snapshot: &Snapshot<'_>,
        def: &TypeDef,
        step: Step<'_>,
    ) -> Result<ControlFlow<()>, Error> {
        match step {
            Step::Entry { key, .. } => {
                self.plan.entries += 1;
                let (version, text) = snapshot.indexed_record(def, key)?;
                self.record(key, version, text, |_| Ok(true))
            }
            Step::CutGroup { keys, .. } => {
                // The group's place among the groups is right; inside it, `place` puts each item where it belongs.
                for key in keys {
                    self.plan.entries += 1;
                    let (version, text) = snapshot.indexed_record(def, key)?;
                    self.consider(key, version, text, |_| Ok(true))?;
                }
                Ok(self.appetite())
            }
        }
    }

    /// Takes a record if it matches, counts here, and lies behind the cursor. Breaks when the page is full.
    fn record(
        &mut self,
        key: &str,
        version: u64,
        text: &str,
        counts_here: impl FnOnce(&Value<'_>) -> Result<bool, Error>,
    ) -> Result<ControlFlow<()>, Error> {
        self.consider(key, version, text, counts_here)?;
        Ok(self.appetite())
    }

    fn appetite(&self) -> ControlFlow<()> {
        if self.found.is_full() && !self.counting {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn consider(
        &mut self,
        key: &str,
        version: u64,
        text: &str,
        counts_here: impl FnOnce(&Value<'_>) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        self.plan.records += 1;
        let doc = index::parse_stored(text)?;
        if self.query.filter.matches(&doc) && counts_here(&doc)? {
            self.take(key, version, text, &doc);
        }
        Ok(())
    }

    fn take(&mut self, key: &str, version: u64, text: &str, doc: &Value<'_>) {
        if self.counting {
            self.found.count += 1;
            return;
        }
        let values = self.query.sort.keys(doc);
        if let Some(after) = self.after
            && self
                .found
                .compare((&values, key), (&after.values, &after.key))
                .is_le()
        {
            return;
        }
        let Some(at) = self.found.place(&values, key) else {
            return;
        };
        let value = match &self.query.select {
            Some(select) => select.apply(doc),
            None => text.to_owned(),
        };
        let item = Item {
            key: key.to_owned(),
            value,
            version,
            index_key: None,
        };
        self.found.insert(at, values, item);
    }
}
