//! Choosing how to find the records that match a filter.
//!
//! An index is worth using when the filter fixes its leading fields to single values, or bounds the next one. Every
//! record found is still checked against the whole filter, so a plan decides how much is read, never what is answered.

use std::sync::Arc;

use okdb_query::{Constraint, Sort, Test, Value, encode};
use serde::Serialize;

use crate::{
    Error, IndexState, Query,
    catalog::{IndexDef, TypeDef},
    index::COMPONENT_BYTES_MAX,
    scan::above,
};

/// How a query was answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The index used, `None` for a scan of the type.
    pub index: Option<String>,
    /// Index entries looked at.
    pub entries: u64,
    /// Records looked at.
    pub records: u64,
    /// Whether the answer had to be sorted after it was found.
    pub sorted: bool,
}

/// The order in which an access meets records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// By record key.
    ByKey,
    /// As the query's sort asks, in this direction of the index.
    BySort { descending: bool },
    /// Any; the answer is sorted afterwards.
    Other,
}

/// Stretches of an index and what they are good for.
pub(crate) struct Access {
    pub(crate) index: Arc<IndexDef>,
    /// In order, apart from one another; more than one where a filter names a list of values.
    pub(crate) stretches: Vec<Stretch>,
    pub(crate) order: Order,
    /// Whether the filter bounds the field behind the fixed ones.
    bounded: bool,
    /// The values of the leading fields that the filter fixes.
    pub(crate) fixed: Vec<Value<'static>>,
}

/// Entries from `lower` on, up to but without `upper`.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) lower: Vec<u8>,
    pub(crate) upper: Vec<u8>,
}

impl Stretch {
    /// All entries that begin with these components.
    fn of(components: Vec<u8>) -> Self {
        Self {
            upper: above(&components),
            lower: components,
        }
    }
}

/// Picks an index, or `None` for a scan of the type in key order.
pub(crate) fn choose(def: &TypeDef, query: &Query) -> Result<Option<Access>, Error> {
    let constraints = query.filter.constraints();
    if let Some(name) = &query.index {
        let index = def.ready_index(name)?;
        return Ok(Some(access(index, &constraints, &query.sort)));
    }
    let ready = def
        .indexes
        .iter()
        .filter(|index| index.row.state == IndexState::Ready);
    Ok(ready
        .map(|index| access(index, &constraints, &query.sort))
        .filter(|access| worth(access).is_some())
        .max_by_key(worth))
}

/// Ranks an access: unique hit, then fixed fields, then a bounded field, then an order that needs no sorting, then few
/// fields. Nothing but an order that needs no sorting is worth less than a scan of the type.
fn worth(access: &Access) -> Option<impl Ord + use<>> {
    let index = &access.index;
    let sorted = matches!(access.order, Order::BySort { .. });
    let hit = index.row.unique && access.fixed.len() == index.paths.len();
    let ordered = access.order != Order::Other;
    let fields = std::cmp::Reverse(index.paths.len());
    (!access.fixed.is_empty() || access.bounded || sorted).then_some((
        hit,
        access.fixed.len(),
        access.bounded,
        ordered,
        fields,
    ))
}

fn access(index: &Arc<IndexDef>, constraints: &[Constraint<'_>], sort: &Sort) -> Access {
    let mut base = index.row.id.to_be_bytes().to_vec();
    let mut fixed = Vec::new();
    for path in &index.paths {
        let equal = constraints
            .iter()
            .find_map(|constraint| match constraint.test {
                Test::Equal(value) if constraint.path == path && !is_array(value) => Some(value),
                _ => None,
            });
        let Some(value) = equal else { break };
        encode::component(value, COMPONENT_BYTES_MAX, &mut base);
        fixed.push(value.clone());
    }
    let stretches = match index.paths.get(fixed.len()) {
        Some(path) => {
            let on_path = constraints
                .iter()
                .filter(|constraint| constraint.path == path);
            stretches(&base, index, on_path)
        }
        None => vec![Stretch::of(base.clone())],
    };
    let bounded = stretches != [Stretch::of(base)];
    let order = if stretches.len() == 1 {
        order(index, fixed.len(), sort)
    } else {
        Order::Other
    };
    Access {
        index: Arc::clone(index),
        stretches,
        order,
        bounded,
        fixed,
    }
}

/// The stretches that the constraints on the field behind the fixed ones leave.
fn stretches<'c>(
    base: &[u8],
    index: &IndexDef,
    constraints: impl Iterator<Item = &'c Constraint<'c>> + Clone,
) -> Vec<Stretch> {
    let list = constraints
        .clone()
        .find_map(|constraint| match constraint.test {
            Test::In(values) if !values.iter().any(is_array) => Some(values),
            _ => None,
        });
    let Some(values) = list else {
        let (lower, upper) = bounds(base, index, constraints);
        return vec![Stretch { lower, upper }];
    };
    let mut stretches: Vec<_> = values
        .iter()
        .map(|value| {
            let mut components = base.to_vec();
            encode::component(value, COMPONENT_BYTES_MAX, &mut components);
            Stretch::of(components)
        })
        .collect();
    // Values that differ may be cut to the same bytes.
    stretches.dedup();
    stretches
}

/// The stretch that the constraints on the field behind the fixed ones leave.
fn bounds<'c>(
    base: &[u8],
    index: &IndexDef,
    constraints: impl Iterator<Item = &'c Constraint<'c>>,
) -> (Vec<u8>, Vec<u8>) {
    let (mut lower, mut upper) = (None, None);
    for constraint in constraints {
        match constraint.test {
            Test::Lower { value, inclusive } if !is_array(value) && lower.is_none() => {
                lower = Some((value, inclusive));
            }
            Test::Upper { value, inclusive } if !is_array(value) && upper.is_none() => {
                upper = Some((value, inclusive));
            }
            _ => {}
        }
    }
    // Under an array, two constraints may be met by different elements: one stretch can serve only one of them.
    if index.row.multikey && lower.is_some() {
        upper = None;
    }
    let with = |value: &Value<'_>| {
        let mut bytes = base.to_vec();
        let cut = encode::component(value, COMPONENT_BYTES_MAX, &mut bytes);
        (bytes, cut)
    };
    let bracket_end = |tag: u8| [base, &[tag]].concat();
    let low = match (lower, upper) {
        (Some((value, inclusive)), _) => match with(value) {
            // Entries equal to a cut bound may lie on either side of it.
            (bytes, cut) if inclusive || cut => bytes,
            (bytes, _) => above(&bytes),
        },
        (None, Some((value, _))) => bracket_end(encode::bracket(value).0),
        (None, None) => base.to_vec(),
    };
    let high = match (upper, lower) {
        (Some((value, inclusive)), _) => match with(value) {
            (bytes, cut) if inclusive || cut => above(&bytes),
            (bytes, _) => bytes,
        },
        (None, Some((value, _))) => bracket_end(encode::bracket(value).1),
        (None, None) => above(base),
    };
    (low, high)
}

fn order(index: &IndexDef, fixed: usize, sort: &Sort) -> Order {
    let fields = sort.fields();
    if fields.is_empty() {
        // Behind fixed components, entries lie in key order.
        return if fixed == index.paths.len() && !index.row.multikey {
            Order::ByKey
        } else {
            Order::Other
        };
    }
    // A sort uses one element of an array; an index holds them all.
    if index.row.multikey {
        return Order::Other;
    }
    let rest = index.paths.get(fixed..).unwrap_or_default();
    let descending = fields.first().is_some_and(|field| field.descending);
    let fits = rest.len() == fields.len()
        && rest
            .iter()
            .zip(fields)
            .all(|(path, field)| *path == field.path && field.descending == descending);
    if fits {
        Order::BySort { descending }
    } else {
        Order::Other
    }
}

fn is_array(value: &Value<'_>) -> bool {
    matches!(value, Value::Array(_))
}
