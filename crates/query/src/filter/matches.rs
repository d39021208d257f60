//! Tests a record against a filter, without copying any of it.

use std::{cmp::Ordering, ops::ControlFlow};

use super::{Clause, Modulo, Predicate, Types};
use crate::{
    compare,
    json::{
        Number, Value,
        decimal::{Decimal, remainder},
    },
    order::same_bracket,
    path::Path,
    walk::walk,
};

/// Recurses as deep as the filter nests.
pub(super) fn conjunction(clauses: &[Clause], doc: &Value<'_>) -> bool {
    clauses.iter().all(|clause| match clause {
        Clause::Any(filters) => filters.iter().any(|filter| conjunction(filter, doc)),
        Clause::NoneOf(filters) => !filters.iter().any(|filter| conjunction(filter, doc)),
        Clause::Field { path, tests } => tests.iter().all(|test| at_path(test, doc, path)),
    })
}

/// Whether the test holds for a record: for anything that the path reaches, whole or an element.
fn at_path(test: &Predicate, doc: &Value<'_>, path: &Path) -> bool {
    match test {
        Predicate::Not(tests) => !tests.iter().all(|test| at_path(test, doc, path)),
        Predicate::All(tests) => {
            !tests.is_empty() && tests.iter().all(|test| at_path(test, doc, path))
        }
        _ => {
            let mut found = false;
            walk(doc, path, |target| {
                found = holds(test, target) || holds_for_element(test, target);
                if found {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            found
        }
    }
}

fn holds_for_element(test: &Predicate, target: Option<&Value<'_>>) -> bool {
    let looks_at_elements = match test {
        Predicate::Equal(_)
        | Predicate::In(_)
        | Predicate::Lower { .. }
        | Predicate::Upper { .. }
        | Predicate::Type(_)
        | Predicate::Regex(_)
        | Predicate::Modulo(_) => true,
        Predicate::Exists
        | Predicate::Size(_)
        | Predicate::All(_)
        | Predicate::ElementValue(_)
        | Predicate::ElementObject(_)
        | Predicate::Not(_) => false,
    };
    looks_at_elements && elements(target).iter().any(|e| holds(test, Some(e)))
}

/// Whether the test holds for one value as it is, or for its absence.
fn holds(test: &Predicate, target: Option<&Value<'_>>) -> bool {
    let or_null = target.unwrap_or(&Value::Null);
    match test {
        Predicate::Equal(value) => compare(or_null, value).is_eq(),
        Predicate::In(values) => values
            .binary_search_by(|value| compare(value, or_null))
            .is_ok(),
        Predicate::Lower { value, inclusive } => {
            within(or_null, value, *inclusive, Ordering::Greater)
        }
        Predicate::Upper { value, inclusive } => within(or_null, value, *inclusive, Ordering::Less),
        Predicate::Exists => target.is_some(),
        Predicate::Type(types) => target.is_some_and(|value| types.contains(Types::of(value))),
        Predicate::Regex(regex) => target
            .and_then(Value::as_str)
            .is_some_and(|text| regex.is_match(text)),
        Predicate::Modulo(modulo) => target
            .and_then(Value::as_number)
            .is_some_and(|number| modulo.holds(number)),
        Predicate::Size(size) => target
            .and_then(Value::as_array)
            .is_some_and(|elements| elements.len() as u64 == *size),
        Predicate::All(tests) => !tests.is_empty() && tests.iter().all(|test| holds(test, target)),
        Predicate::ElementValue(tests) => elements(target)
            .iter()
            .any(|element| tests.iter().all(|test| holds(test, Some(element)))),
        Predicate::ElementObject(filter) => elements(target)
            .iter()
            .any(|element| element.as_object().is_some() && conjunction(filter, element)),
        Predicate::Not(tests) => !tests.iter().all(|test| holds(test, target)),
    }
}

fn elements<'v>(target: Option<&'v Value<'_>>) -> &'v [Value<'v>] {
    target.and_then(Value::as_array).unwrap_or_default()
}

fn within(value: &Value<'_>, bound: &Value<'_>, inclusive: bool, side: Ordering) -> bool {
    same_bracket(value, bound) && {
        let ordering = compare(value, bound);
        ordering == side || inclusive && ordering.is_eq()
    }
}

impl Modulo {
    /// The dividend's part before the point counts; the remainder has the dividend's sign.
    ///
    /// A number that arithmetic refuses has no remainder: a stored one cannot fail a query.
    fn holds(&self, number: &Number<'_>) -> bool {
        let dividend = Decimal::of(number);
        if !dividend.is_operand() {
            return false;
        }
        remainder(&dividend, &self.divisor) == self.remainder
            && (self.remainder.is_empty() || dividend.negative == self.remainder_negative)
    }
}
