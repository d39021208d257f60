//! What a planner may rely on: tests that every matching record passes.

use super::{Clause, Predicate};
use crate::{json::Value, path::Path};

/// A test that some value at a path must pass, in every record that matches the filter.
#[derive(Clone, Copy, Debug)]
pub struct Constraint<'f> {
    /// Where the value is.
    pub path: &'f Path,
    /// What holds for it.
    pub test: Test<'f>,
}

/// A test that an index can answer. Its values are never arrays: an index holds an array's elements.
///
/// A bound implies that the value is in the bound's type bracket.
#[derive(Clone, Copy, Debug)]
pub enum Test<'f> {
    /// The value is this one; null is also met by a record where the path is missing.
    Equal(&'f Value<'static>),
    /// The value is one of these, which are sorted and differ from one another.
    In(&'f [Value<'static>]),
    /// The value is greater.
    Lower {
        /// The bound.
        value: &'f Value<'static>,
        /// Whether the value may also be equal to it.
        inclusive: bool,
    },
    /// The value is less.
    Upper {
        /// The bound.
        value: &'f Value<'static>,
        /// Whether the value may also be equal to it.
        inclusive: bool,
    },
}

pub(super) fn of(root: &[Clause]) -> Vec<Constraint<'_>> {
    let mut constraints = Vec::new();
    for clause in root {
        if let Clause::Field { path, tests } = clause {
            for test in tests {
                add(path, test, &mut constraints);
            }
        }
    }
    constraints
}

fn add<'f>(path: &'f Path, predicate: &'f Predicate, constraints: &mut Vec<Constraint<'f>>) {
    let is_array = |value: &Value<'_>| matches!(value, Value::Array(_));
    let test = match predicate {
        Predicate::Equal(value) if !is_array(value) => Test::Equal(value),
        Predicate::In(values) if !values.iter().any(is_array) => Test::In(values),
        Predicate::Lower { value, inclusive } if !is_array(value) => Test::Lower {
            value,
            inclusive: *inclusive,
        },
        Predicate::Upper { value, inclusive } if !is_array(value) => Test::Upper {
            value,
            inclusive: *inclusive,
        },
        // Each of these must hold for some element, and elements are what an index holds.
        Predicate::All(tests) | Predicate::ElementValue(tests) => {
            for test in tests {
                add(path, test, constraints);
            }
            return;
        }
        _ => return,
    };
    constraints.push(Constraint { path, test });
}
