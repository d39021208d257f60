//! What paths reach in records with and without arrays.

use proptest::prelude::*;

use super::*;
use crate::testing::{object_of, parse, scalar};

fn path(text: &str) -> Path {
    Path::parse(text).unwrap()
}

/// The index values as JSON, in order, with the two flags.
fn indexed(doc: &str, at: &str) -> (String, bool, bool) {
    let doc = parse(doc);
    let found = index_values(&doc, &path(at));
    let values: Vec<String> = found.values.iter().map(|value| value.to_json()).collect();
    (values.join(" "), found.is_array, found.has_missing)
}

#[test]
fn paths_reach_through_objects_and_arrays() {
    for (doc, at, values, is_array, has_missing) in [
        (r#"{"a":1}"#, "a", "1", false, false),
        (r#"{"a":{"b":[]}}"#, "a", r#"{"b":[]}"#, false, false),
        (r#"{"a":null}"#, "a", "null", false, false),
        (r#"{"a":1}"#, "b", "null", false, true),
        (r#"{"a":1}"#, "a.b", "null", false, true),
        (r#"{"a":[]}"#, "a", "null", true, true),
        (r#"{"a":[]}"#, "a.b", "null", true, true),
        (r#"{"a":[1,2]}"#, "a.b", "null", true, true),
        (r#"{"a":[1,"x",null]}"#, "a", r#"1 "x" null"#, true, false),
        (r#"{"a":[[1,2],3]}"#, "a", "[1,2] 3", true, false),
        (
            r#"{"a":[{"b":1},{"b":[2,3]},{},7]}"#,
            "a.b",
            "1 2 3 null",
            true,
            true,
        ),
        (r#"{"a":[[{"b":1}]]}"#, "a.b", "null", true, true),
        (r#"{"a":[[{"b":1}]]}"#, "a.0.b", "1", true, false),
        (r#"{"a":[5,6]}"#, "a.1", "6", true, false),
        (r#"{"a":[5,6]}"#, "a.2", "null", true, true),
        (r#"{"a":[5,6]}"#, "a.01", "null", true, true),
        (r#"{"a":{"1":6}}"#, "a.1", "6", false, false),
        (r#"{"a":[{"b":5},{"b":6}]}"#, "a.1.b", "6", true, false),
        (r#"{"a":[5,{"1":4}]}"#, "a.1", r#"{"1":4} 4"#, true, false),
        (r#"{"a":[{"0":4}]}"#, "a.0", r#"{"0":4} 4"#, true, false),
        (r#"{"a":[{"b":1}]}"#, "a.5", "null", true, true),
        ("[1,2]", "1", "2", true, false),
        ("7", "a", "null", false, true),
    ] {
        let expected = (values.to_owned(), is_array, has_missing);
        assert_eq!(indexed(doc, at), expected, "{doc} {at}");
    }
}

#[test]
fn sorts_take_the_smallest_or_the_largest_element() {
    for (doc, at, smallest, largest) in [
        (r#"{"a":[3,1,2]}"#, "a", "1", "3"),
        (r#"{"a":[]}"#, "a", "null", "null"),
        (r#"{"b":1}"#, "a", "null", "null"),
        (r#"{"a":[1,"x",null,true]}"#, "a", "null", "true"),
        (
            r#"{"a":[{"b":2},{},{"b":[5,"x"]}]}"#,
            "a.b",
            "null",
            "\"x\"",
        ),
        (r#"{"a":4}"#, "a", "4", "4"),
    ] {
        let doc = parse(doc);
        assert_eq!(sort_value(&doc, &path(at), false).to_json(), smallest);
        assert_eq!(sort_value(&doc, &path(at), true).to_json(), largest);
    }
}

#[test]
fn numeric_paths_cannot_multiply_without_bound() {
    // Every array can be entered by position or by name; the deepest of them 64 times in a row.
    let doc = parse(&format!("{}1{}", "[{\"0\":".repeat(64), "}]".repeat(64)));
    let at = path(&["0"; Path::POSITIONS_MAX].join("."));
    assert!(index_values(&doc, &at).values.len() <= 256);
    assert!(Path::parse(&["0"; Path::POSITIONS_MAX + 1].join(".")).is_err());
}

proptest! {
    #[test]
    fn sort_values_are_the_ends_of_the_index_values(doc in doc(), at in "[ab0](\\.[ab0]){0,2}") {
        let at = path(&at);
        let mut values = index_values(&doc, &at).values;
        prop_assert!(!values.is_empty());
        values.sort();
        prop_assert_eq!(values.first().copied(), Some(sort_value(&doc, &at, false)));
        prop_assert_eq!(values.last().copied(), Some(sort_value(&doc, &at, true)));
    }
}

fn doc() -> impl Strategy<Value = Value<'static>> {
    scalar().prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            object_of("[ab0]", inner, 3),
        ]
    })
}
