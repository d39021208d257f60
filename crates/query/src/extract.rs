//! What a record holds at a path, for index entries and for sorting.

use std::ops::ControlFlow;

use crate::{compare, json::Value, path::Path, walk::walk};

static NULL: Value<'static> = Value::Null;

/// The values under which an index on a path holds a record.
#[derive(Clone, Debug)]
pub struct IndexValues<'v> {
    /// One per element where the path ends at an array; never empty. May hold equal values.
    pub values: Vec<&'v Value<'v>>,
    /// Whether there was an array on the path or at its end: such a record may have several values, and
    /// two constraints on the path may be met by different ones.
    pub is_array: bool,
    /// Whether a null among the values stands for something that is not there: a missing member, an
    /// empty array, or an array without anything that the path could enter.
    pub has_missing: bool,
}

/// The values at `path`, each array at its end replaced by its elements.
///
/// A missing member or an empty array counts as one null; an element that is itself an array is one
/// value. Whatever value a filter finds at the path, except an array as a whole, is among these.
#[must_use]
pub fn index_values<'v>(doc: &'v Value<'_>, path: &Path) -> IndexValues<'v> {
    let mut values = Vec::new();
    let mut has_missing = false;
    let is_array = walk(doc, path, |target| {
        match target {
            Some(Value::Array(elements)) if !elements.is_empty() => values.extend(elements),
            Some(value) if !matches!(value, Value::Array(_)) => values.push(value),
            _ => {
                has_missing = true;
                values.push(&NULL);
            }
        }
        ControlFlow::Continue(())
    });
    if values.is_empty() {
        has_missing = true;
        values.push(&NULL);
    }
    IndexValues {
        values,
        is_array,
        has_missing,
    }
}

/// The value by which a sort on `path` places a record: of [`index_values`], the smallest for an
/// ascending sort, the largest for a descending one.
#[must_use]
pub fn sort_value<'v>(doc: &'v Value<'_>, path: &Path, descending: bool) -> &'v Value<'v> {
    let mut best: Option<&'v Value<'v>> = None;
    let mut offer = |value: &'v Value<'v>| {
        let better = best.is_none_or(|best| {
            let ordering = compare(value, best);
            if descending {
                ordering.is_gt()
            } else {
                ordering.is_lt()
            }
        });
        if better {
            best = Some(value);
        }
    };
    walk(doc, path, |target| {
        match target {
            Some(Value::Array(elements)) if !elements.is_empty() => {
                elements.iter().for_each(&mut offer);
            }
            Some(value) if !matches!(value, Value::Array(_)) => offer(value),
            _ => offer(&NULL),
        }
        ControlFlow::Continue(())
    });
    best.unwrap_or(&NULL)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#[path = "extract_tests.rs"]
mod tests;
