//! Listing an index between bounds, each record once.

use std::{cmp::Ordering, ops::ControlFlow, sync::Arc};

use okdb_query::{Value, compare, encode};

use super::{IndexQuery, Item, Page, Position, Run, found::Found, still_there, values_text};
use crate::{
    Env, Error,
    catalog::IndexDef,
    cursor::Request,
    index::{self, COMPONENT_BYTES_MAX, compare_values},
    scan::{Budget, GroupWalk, Progress, above},
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
                // Behind a cut component, bytes tell nothing of the order of values.
                if encode::component(value, COMPONENT_BYTES_MAX, &mut bytes) {
                    break;
                }
            }
            bytes
        };
        let lower = bound(&query.prefix).max(bound(&query.start));
        let upper = above(&bound(&query.prefix)).min(above(&bound(&query.end)));
        let start = after
            .as_ref()
            .map(|after| (bound(&after.values), after.key.clone()));
        let walk = GroupWalk::new(lower, upper, query.reverse, fields, start);
        Ok(Self {
            env,
            type_name,
            type_id: def.id,
            index,
            query,
            request,
            after,
            walk,
        })
    }

    pub(super) fn page(&mut self) -> Result<Run<Page>, Error> {
        let mut found = Found::new(self.query.limit);
        let reverse = self.query.reverse;
        let run = self.each(|placed| {
            let item = || Item {
                key: placed.key.to_owned(),
                value: placed.text.to_owned(),
                version: placed.version,
                index_key: Some(values_text(&placed.values)),
            };
            // The values are kept twice: for the order, and as text.
            let extra_bytes = 2 * placed.text.len();
            let order = |a: &[Value<'_>], a_key: &str, b: &[Value<'_>], b_key: &str| {
                order(reverse, a, a_key, b, b_key)
            };
            found.offer(placed.values.clone(), placed.key, extra_bytes, order, item);
            if found.is_full() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        if matches!(run, Run::Again) {
            return Ok(Run::Again);
        }
        let (items, last) = found.page(self.query.limit);
        Ok(Run::Done(Page {
            items,
            cursor: last.map(|position| self.request.seal(&position.to_text())),
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

    /// Visits each record behind the cursor once, in order but for what shares a cut group.
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
            };
            let table = self.env.0.tables.index;
            let mut flow = ControlFlow::Continue(());
            let progress = self.walk.chunk(
                table,
                &snapshot.txn,
                &mut Budget::new(),
                |components, key| {
                    let Some((version, text)) = snapshot.indexed_record(def, key)? else {
                        return Ok(flow);
                    };
                    if let Some(values) = judge.values_at(components, key, text)? {
                        flow = visit(Placed {
                            values,
                            key,
                            version,
                            text,
                        });
                    }
                    Ok(flow)
                },
            )?;
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
}

impl Judge<'_> {
    /// A record that has several entries between the bounds is listed at the first one in walking order.
    fn values_at(
        &self,
        components: &[u8],
        key: &str,
        text: &str,
    ) -> Result<Option<Vec<Value<'static>>>, Error> {
        let doc = index::parse_stored(text)?;
        let combinations = index::combinations(self.index, &doc)?;
        let first = combinations
            .list
            .iter()
            .filter(|one| self.contains(&one.values))
            .min_by(|a, b| {
                let order = compare_values(&a.values, &b.values);
                if self.query.reverse {
                    order.reverse()
                } else {
                    order
                }
            });
        let Some(first) = first.filter(|first| first.prefix == components) else {
            return Ok(None);
        };
        let values: Vec<_> = first
            .values
            .iter()
            .map(|value| (*value).clone().into_owned())
            .collect();
        let behind = self.after.is_none_or(|after| {
            order(self.query.reverse, &values, key, &after.values, &after.key).is_gt()
        });
        Ok(behind.then_some(values))
    }

    /// Whether values lie between the bounds; the bytes of cut ones cannot tell.
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
}

/// The order of a listing: by values, and by key among equal ones.
fn order(reverse: bool, a: &[Value<'_>], a_key: &str, b: &[Value<'_>], b_key: &str) -> Ordering {
    let values = a
        .iter()
        .zip(b)
        .map(|(a, b)| compare(a, b))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal);
    let values = if reverse { values.reverse() } else { values };
    values.then_with(|| a_key.cmp(b_key))
}
