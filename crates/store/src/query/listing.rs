//! Listing an index between bounds, each record once.

use std::{cmp::Ordering, ops::ControlFlow, sync::Arc};

use okdb_query::{Value, compare, encode};

use super::{
    IndexQuery, Item, PAGE_BYTES_MAX, Page, Position, Run, first_prefix, still_there, values_text,
};
use crate::{
    Env, Error,
    catalog::IndexDef,
    cursor::Request,
    index::{self, COMPONENT_BYTES_MAX},
    scan::{Budget, GroupWalk, Progress, Step, above},
};

/// A listing of an index between bounds.
pub(super) struct Listing<'q> {
    env: &'q Env,
    type_name: &'q str,
    type_id: u32,
    index: Arc<IndexDef>,
    query: &'q IndexQuery,
    request: Request,
    after: Option<Position>,
    lower: Vec<u8>,
    upper: Vec<u8>,
    walk: GroupWalk,
}

/// A record's place in an index listing.
struct Placed<'s> {
    values: Vec<Value<'static>>,
    key: &'s str,
    version: u64,
    text: &'s str,
}

impl<'q> Listing<'q> {
    pub(super) fn begin(
        env: &'q Env,
        type_name: &'q str,
        name: &str,
        query: &'q IndexQuery,
    ) -> Result<Self, Error> {
        let snapshot = env.snapshot()?;
        let def = snapshot.catalog.require(type_name)?;
        let index = def.ready_index(name)?.clone();
        let fields = index.paths.len();
        for (what, values) in [
            ("prefix", &query.prefix),
            ("start", &query.start),
            ("end", &query.end),
        ] {
            if values.len() > fields {
                return Err(Error::InvalidParameter(format!(
                    "{what} has {} values, index {name:?} has {fields} fields",
                    values.len()
                )));
            }
        }
        let request = env
            .request("index", def)
            .part(index.row.id.to_be_bytes())
            .part(values_text(&query.prefix))
            .part(values_text(&query.start))
            .part(values_text(&query.end))
            .part([u8::from(query.reverse)]);
        let after = match &query.cursor {
            Some(cursor) => Some(Position::parse(&request.open(cursor)?, fields)?),
            None => None,
        };
        let bound = |values: &[Value<'_>]| {
            let mut bytes = index.row.id.to_be_bytes().to_vec();
            for value in values {
                encode::component(value, COMPONENT_BYTES_MAX, &mut bytes);
            }
            bytes
        };
        let lower = bound(&query.prefix).max(bound(&query.start));
        let upper = above(&bound(&query.prefix)).min(above(&bound(&query.end)));
        let start = after
            .as_ref()
            .map(|after| (bound(&after.values), after.key.clone()));
        let walk = GroupWalk::new(lower.clone(), upper.clone(), query.reverse, fields, start);
        Ok(Self {
            env,
            type_name,
            type_id: def.id,
            index,
            query,
            request,
            after,
            lower,
            upper,
            walk,
        })
    }

    pub(super) fn page(&mut self) -> Result<Run<Page>, Error> {
        let keep = self.query.limit + 1;
        let mut items: Vec<(Vec<Value<'static>>, Item)> = Vec::new();
        let mut bytes = 0;
        let run = self.each(|placed| {
            bytes += placed.text.len();
            let item = Item {
                key: placed.key.to_owned(),
                value: placed.text.to_owned(),
                version: placed.version,
                index_key: Some(values_text(&placed.values)),
            };
            items.push((placed.values, item));
            if items.len() >= keep || bytes > PAGE_BYTES_MAX {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if matches!(run, Run::Again) {
            return Ok(Run::Again);
        }
        // A page that its bytes ended may be the last one; its cursor then finds nothing more.
        let more = items.len() > self.query.limit || bytes > PAGE_BYTES_MAX;
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
            plan: None,
        }))
    }

    pub(super) fn count(&mut self) -> Result<Run<u64>, Error> {
        let mut count = 0;
        let run = self.each(|_| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(match run {
            Run::Done(()) => Run::Done(count),
            Run::Again => Run::Again,
        })
    }

    /// Visits each record once, in order, behind the cursor.
    fn each(
        &mut self,
        mut visit: impl FnMut(Placed<'_>) -> ControlFlow<()>,
    ) -> Result<Run<()>, Error> {
        loop {
            let snapshot = self.env.snapshot()?;
            let def = snapshot.catalog.require(self.type_name)?;
            if def.id != self.type_id || !still_there(def, &self.index) {
                return Ok(Run::Again);
            }
            let judge = Judge {
                index: &self.index,
                query: self.query,
                after: self.after.as_ref(),
                lower: &self.lower,
                upper: &self.upper,
            };
            let table = self.env.0.tables.index;
            let progress = self
                .walk
                .chunk(table, &snapshot.txn, &mut Budget::new(), |step| {
                    let (prefix, keys, cut) = match step {
                        Step::Entry { prefix, key } => (prefix, vec![key], false),
                        Step::CutGroup { prefix, keys } => (prefix, keys, true),
                    };
                    let mut group = Vec::new();
                    for key in keys {
                        let (version, text) = snapshot.indexed_record(def, key)?;
                        if let Some(values) = judge.values_at(prefix, key, text, cut)? {
                            group.push(Placed {
                                values,
                                key,
                                version,
                                text,
                            });
                        }
                    }
                    if cut {
                        group.sort_by(|a, b| judge.order(&a.values, a.key, &b.values, b.key));
                    }
                    for placed in group {
                        if visit(placed).is_break() {
                            return Ok(ControlFlow::Break(()));
                        }
                    }
                    Ok(ControlFlow::Continue(()))
                })?;
            if progress != Progress::More {
                return Ok(Run::Done(()));
            }
        }
    }
}

/// Decides whether, and with which values, a record is listed at an entry.
struct Judge<'j> {
    index: &'j IndexDef,
    query: &'j IndexQuery,
    after: Option<&'j Position>,
    lower: &'j [u8],
    upper: &'j [u8],
}

impl Judge<'_> {
    fn values_at(
        &self,
        prefix: &[u8],
        key: &str,
        text: &str,
        cut: bool,
    ) -> Result<Option<Vec<Value<'static>>>, Error> {
        let doc = index::parse_stored(text)?;
        // A record with several entries between the bounds is listed at the first one in walking order.
        if self.index.row.multikey
            && first_prefix(self.index, &doc, self.lower, self.upper, self.query.reverse)?
                .as_deref()
                != Some(prefix)
        {
            return Ok(None);
        }
        let combinations = index::combinations(self.index, &doc)?;
        let mut here = combinations
            .list
            .iter()
            .filter(|one| one.prefix == prefix && (!cut || self.contains(&one.values)));
        let chosen = if self.query.reverse {
            here.next_back()
        } else {
            here.next()
        };
        let Some(chosen) = chosen else {
            return Ok(None);
        };
        let values: Vec<_> = chosen
            .values
            .iter()
            .map(|value| (*value).clone().into_owned())
            .collect();
        let behind = self
            .after
            .is_none_or(|after| self.order(&values, key, &after.values, &after.key).is_gt());
        Ok(behind.then_some(values))
    }

    /// Whether whole values lie between the bounds; the bytes of cut ones cannot tell.
    fn contains(&self, values: &[&Value<'_>]) -> bool {
        let against = |bound: &[Value<'_>]| {
            let places = bound.iter().zip(values);
            places
                .map(|(bound, value)| compare(value, bound))
                .find(|order| order.is_ne())
        };
        against(&self.query.prefix).is_none()
            && against(&self.query.start) != Some(Ordering::Less)
            && against(&self.query.end) != Some(Ordering::Greater)
    }

    fn order(&self, a: &[Value<'_>], a_key: &str, b: &[Value<'_>], b_key: &str) -> Ordering {
        let values = a
            .iter()
            .zip(b)
            .map(|(a, b)| compare(a, b))
            .find(|order| order.is_ne());
        let values = values.unwrap_or(Ordering::Equal);
        let values = if self.query.reverse {
            values.reverse()
        } else {
            values
        };
        values.then_with(|| a_key.cmp(b_key))
    }
}
