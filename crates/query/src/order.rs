//! The one order of all values: sorts, comparisons, index keys and equality follow it.

use std::{borrow::Cow, cmp::Ordering};

use crate::json::Value;

/// Compares two values: null < numbers < strings < objects < arrays < false < true.
///
/// Numbers compare by exact decimal value, strings by their UTF-8 bytes, arrays element by element.
/// Objects compare as sets of members: member by member in the order of their names, each by name and
/// then by value. Of two arrays or objects where one continues the other, the shorter is less.
#[must_use]
pub fn compare(a: &Value<'_>, b: &Value<'_>) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.cmp(b),
        (Value::String(a), Value::String(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Value::Object(a), Value::Object(b)) => compare_members(a, b),
        (Value::Array(a), Value::Array(b)) => a
            .iter()
            .zip(b)
            .map(|(a, b)| compare(a, b))
            .find(|ordering| ordering.is_ne())
            .unwrap_or_else(|| a.len().cmp(&b.len())),
        _ => rank(a).cmp(&rank(b)),
    }
}

/// The place of a value's kind in the order; false and true count as two kinds.
fn rank(value: &Value<'_>) -> u8 {
    match value {
        Value::Null => 0,
        Value::Number(_) => 1,
        Value::String(_) => 2,
        Value::Object(_) => 3,
        Value::Array(_) => 4,
        Value::Bool(false) => 5,
        Value::Bool(true) => 6,
    }
}

/// Whether two values are of kinds that a range operator compares: the same, false and true being one.
pub(crate) fn same_bracket(a: &Value<'_>, b: &Value<'_>) -> bool {
    rank(a).min(5) == rank(b).min(5)
}

type Member<'a> = (Cow<'a, str>, Value<'a>);

fn compare_members(a: &[Member<'_>], b: &[Member<'_>]) -> Ordering {
    fn compare_ordered<'m, 'a: 'm, 'b: 'm>(
        mut a: impl Iterator<Item = &'m Member<'a>>,
        mut b: impl Iterator<Item = &'m Member<'b>>,
    ) -> Ordering {
        loop {
            match (a.next(), b.next()) {
                (None, None) => return Ordering::Equal,
                (None, Some(_)) => return Ordering::Less,
                (Some(_), None) => return Ordering::Greater,
                (Some((a_name, a)), Some((b_name, b))) => {
                    let ordering = a_name.cmp(b_name).then_with(|| compare(a, b));
                    if ordering.is_ne() {
                        return ordering;
                    }
                }
            }
        }
    }
    let ordered = |members: &[Member<'_>]| members.is_sorted_by(|a, b| a.0 <= b.0);
    if ordered(a) && ordered(b) {
        compare_ordered(a.iter(), b.iter())
    } else {
        compare_ordered(by_name(a).into_iter(), by_name(b).into_iter())
    }
}

/// An object's members in the order of their names.
pub(crate) fn by_name<'m, 'v>(members: &'m [Member<'v>]) -> Vec<&'m Member<'v>> {
    let mut sorted: Vec<_> = members.iter().collect();
    sorted.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    sorted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{pair, parse, value};

    #[test]
    fn kinds_and_contents_are_ordered() {
        let ascending = [
            "null",
            "-1",
            "0",
            "1.5",
            "\"\"",
            "\"\\u0000\"",
            "\"B\"",
            "\"a\"",
            "\"aa\"",
            "\"é\"",
            "{}",
            r#"{"a":1}"#,
            r#"{"b":1,"a":1}"#,
            r#"{"a":1,"b":2}"#,
            r#"{"a":2}"#,
            r#"{"b":0}"#,
            "[]",
            "[null]",
            "[1]",
            "[1,null]",
            "[2]",
            "[[]]",
            "false",
            "true",
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(compare(&parse(a), &parse(b)), i.cmp(&j), "{a} {b}");
            }
        }
        assert_eq!(parse(r#"{"a":1.0,"b":[2]}"#), parse(r#"{"b":[2e0],"a":1}"#));
    }

    #[test]
    fn brackets_join_only_the_booleans() {
        let kinds = ["null", "1", "\"\"", "{}", "[]", "true"];
        for (i, a) in kinds.iter().enumerate() {
            for (j, b) in kinds.iter().enumerate() {
                assert_eq!(same_bracket(&parse(a), &parse(b)), i == j);
            }
        }
        assert!(same_bracket(&parse("true"), &parse("false")));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn the_order_is_total((a, b) in pair(), c in value()) {
            prop_assert_eq!(compare(&a, &a), Ordering::Equal);
            prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
            let mut sorted = [&a, &b, &c];
            sorted.sort();
            prop_assert!(compare(sorted[0], sorted[1]).is_le());
            prop_assert!(compare(sorted[1], sorted[2]).is_le());
            prop_assert!(compare(sorted[0], sorted[2]).is_le());
        }
    }
}
