//! What patch documents do and refuse, and what holds for all forms.

use proptest::prelude::*;

use super::*;
use crate::testing::{nested, parse, value};

pub(super) type Parse = fn(&Value<'_>) -> Result<Patch, PatchError>;

pub(super) const DOCUMENT: Parse = |value| Patch::parse_document(value);
pub(super) const MERGE: Parse = |value| Patch::parse_merge(value);
pub(super) const JSON_PATCH: Parse = |value| Patch::parse_json_patch(value);

pub(super) fn apply(form: Parse, patch: &str, doc: &str) -> Result<String, PatchError> {
    form(&parse(patch))?.apply(&parse(doc))
}

#[track_caller]
pub(super) fn gives(form: Parse, patch: &str, doc: &str, expected: &str) {
    let result = apply(form, patch, doc);
    assert_eq!(result.as_deref(), Ok(expected), "{patch} on {doc}");
}

#[track_caller]
pub(super) fn refused(form: Parse, patch: &str, doc: &str, kind: PatchErrorKind, message: &str) {
    let error = apply(form, patch, doc).expect_err(patch);
    assert_eq!(error.kind, kind, "{patch}: {error}");
    assert!(error.message.contains(message), "{patch}: {error}");
}

#[track_caller]
pub(super) fn invalid(form: Parse, patch: &str, doc: &str, message: &str) {
    refused(form, patch, doc, PatchErrorKind::Invalid, message);
}

#[test]
fn set_creates_objects_on_the_way() {
    for (patch, doc, expected) in [
        (
            r#"{"set":{"a":1.50}}"#,
            r#"{"b":2.0,"a":9}"#,
            r#"{"b":2.0,"a":1.50}"#,
        ),
        (r#"{"set":{"a.b.c":[1]}}"#, "{}", r#"{"a":{"b":{"c":[1]}}}"#),
        (
            r#"{"set":{"a.0":7,"a.2":9}}"#,
            r#"{"a":[1,2]}"#,
            r#"{"a":[7,2,9]}"#,
        ),
        (
            r#"{"set":{"a.1.x":7}}"#,
            r#"{"a":[1]}"#,
            r#"{"a":[1,{"x":7}]}"#,
        ),
        (r#"{"set":{"a.0":7}}"#, "{}", r#"{"a":{"0":7}}"#),
        (r#"{"set":{"0":7}}"#, "[1]", "[7]"),
        ("{}", r#"{"a":1.0}"#, r#"{"a":1.0}"#),
    ] {
        gives(DOCUMENT, patch, doc, expected);
    }
    invalid(
        DOCUMENT,
        r#"{"set":{"a.b":1}}"#,
        r#"{"a":1}"#,
        "set \"a.b\": \"b\" cannot be reached",
    );
    invalid(
        DOCUMENT,
        r#"{"set":{"a.b":1}}"#,
        r#"{"a":null}"#,
        "through null",
    );
    invalid(DOCUMENT, r#"{"set":{"a":1}}"#, "\"x\"", "through a string");
    invalid(
        DOCUMENT,
        r#"{"set":{"a.3":1}}"#,
        r#"{"a":[1,2]}"#,
        "position 3 of an array of 2",
    );
    invalid(
        DOCUMENT,
        r#"{"set":{"a.b":1}}"#,
        r#"{"a":[]}"#,
        "\"b\" is no position",
    );
    invalid(
        DOCUMENT,
        r#"{"set":{"a.01":1}}"#,
        r#"{"a":[1,2]}"#,
        "\"01\" is no position",
    );
}

#[test]
fn unset_removes_and_keeps_positions() {
    for (patch, doc, expected) in [
        (
            r#"{"unset":["a","b.c"]}"#,
            r#"{"a":1,"b":{"c":2,"d":3}}"#,
            r#"{"b":{"d":3}}"#,
        ),
        (
            r#"{"unset":["x","a.x","b.c.d"]}"#,
            r#"{"a":1,"b":{}}"#,
            r#"{"a":1,"b":{}}"#,
        ),
        (
            r#"{"unset":["a.0","a.7","a.x"]}"#,
            r#"{"a":[1,2]}"#,
            r#"{"a":[null,2]}"#,
        ),
        (
            r#"{"unset":["a.1.b"]}"#,
            r#"{"a":[1,{"b":2}]}"#,
            r#"{"a":[1,{}]}"#,
        ),
        (r#"{"unset":["a"]}"#, "7", "7"),
    ] {
        gives(DOCUMENT, patch, doc, expected);
    }
}

#[test]
fn inc_is_exact() {
    for (patch, doc, expected) in [
        (
            r#"{"inc":{"a":0.2}}"#,
            r#"{"a":0.1,"b":1.0}"#,
            r#"{"a":0.3,"b":1.0}"#,
        ),
        (
            r#"{"inc":{"a":-1}}"#,
            r#"{"a":9007199254740993}"#,
            r#"{"a":9007199254740992}"#,
        ),
        (r#"{"inc":{"n.x":2.50}}"#, "{}", r#"{"n":{"x":2.50}}"#),
        (r#"{"inc":{"a.1":2}}"#, r#"{"a":[1]}"#, r#"{"a":[1,2]}"#),
    ] {
        gives(DOCUMENT, patch, doc, expected);
    }
    for other in ["null", "\"1\"", "[1]", "{}", "true"] {
        let doc = format!("{{\"a\":{other}}}");
        invalid(
            DOCUMENT,
            r#"{"inc":{"a":1}}"#,
            &doc,
            "inc \"a\": needs a number",
        );
    }
    let long = "1".repeat(101);
    for big in [&long, "1e401", "1e-401"] {
        let patch = format!("{{\"inc\":{{\"a\":{big}}}}}");
        refused(
            DOCUMENT,
            &patch,
            r#"{"a":1}"#,
            PatchErrorKind::Number,
            "more than 100 digits",
        );
        let doc = format!("{{\"a\":{big}}}");
        refused(
            DOCUMENT,
            r#"{"inc":{"a":1}}"#,
            &doc,
            PatchErrorKind::Number,
            "inc \"a\"",
        );
        gives(
            DOCUMENT,
            r#"{"set":{"b":1}}"#,
            &doc,
            &format!("{{\"a\":{big},\"b\":1}}"),
        );
    }
}

#[test]
fn merge_append_and_pull() {
    for (patch, doc, expected) in [
        (
            r#"{"merge":{"a":{"x":null,"y":{"z":1,"n":null}}}}"#,
            r#"{"a":{"x":1,"y":2,"k":3}}"#,
            r#"{"a":{"y":{"z":1},"k":3}}"#,
        ),
        (
            r#"{"merge":{"a.b":{"c":{"d":null}}}}"#,
            "{}",
            r#"{"a":{"b":{"c":{}}}}"#,
        ),
        (
            r#"{"append":{"a":[3,[4]]}}"#,
            r#"{"a":[1]}"#,
            r#"{"a":[1,3,[4]]}"#,
        ),
        (r#"{"append":{"a.b":[]}}"#, "{}", r#"{"a":{"b":[]}}"#),
        (
            r#"{"append":{"a":[2],"a.0":[9]}}"#,
            r#"{"a":[[]]}"#,
            r#"{"a":[[9],2]}"#,
        ),
        (
            r#"{"pull":{"a":[1,{"y":2,"x":1}]}}"#,
            r#"{"a":[1.0,2,{"x":1,"y":2},[1]]}"#,
            r#"{"a":[2,[1]]}"#,
        ),
        (
            r#"{"pull":{"b":[1],"a.x":[1],"a.0.y":[1]}}"#,
            r#"{"a":[1]}"#,
            r#"{"a":[1]}"#,
        ),
        (
            r#"{"pull":{"a":["x"]},"append":{"a":["y"]}}"#,
            r#"{"a":["x"]}"#,
            r#"{"a":["y"]}"#,
        ),
    ] {
        gives(DOCUMENT, patch, doc, expected);
    }
    for other in ["null", "1", "\"x\"", "[]"] {
        let doc = format!("{{\"a\":{other}}}");
        invalid(
            DOCUMENT,
            r#"{"merge":{"a":{}}}"#,
            &doc,
            "merge \"a\": needs an object",
        );
    }
    for other in ["null", "1", "\"x\"", "{}"] {
        let doc = format!("{{\"a\":{other}}}");
        invalid(
            DOCUMENT,
            r#"{"append":{"a":[1]}}"#,
            &doc,
            "append \"a\": needs an array",
        );
        invalid(
            DOCUMENT,
            r#"{"pull":{"a":[1]}}"#,
            &doc,
            "pull \"a\": needs an array",
        );
    }
}

#[test]
fn malformed_documents_are_refused() {
    for (patch, message) in [
        ("[]", "a patch must be an object, not an array"),
        (r#"{"push":{}}"#, "\"push\": a patch knows set, unset"),
        (r#"{"set":[]}"#, "set: needs an object of paths"),
        (r#"{"set":{"":1}}"#, "set: \"\": a path has no empty parts"),
        (r#"{"set":{"a..b":1}}"#, "a path has no empty parts"),
        (r#"{"unset":{"a":1}}"#, "unset: needs an array of paths"),
        (r#"{"unset":[1]}"#, "unset: needs an array of paths"),
        (r#"{"inc":{"a":"1"}}"#, "inc: \"a\": needs a number"),
        (r#"{"merge":{"a":[]}}"#, "merge: \"a\": needs an object"),
        (r#"{"append":{"a":1}}"#, "append: \"a\": needs an array"),
        (r#"{"pull":{"a":{}}}"#, "pull: \"a\": needs an array"),
    ] {
        invalid(DOCUMENT, patch, "{}", message);
    }
    let unset = format!(
        "{{\"unset\":[{}]}}",
        vec!["\"a\""; Patch::CHANGES_MAX + 1].join(",")
    );
    invalid(DOCUMENT, &unset, "{}", "more than 10000 changes");
}

#[test]
fn results_stay_within_the_nesting_bound() {
    let depth_max = crate::DEPTH_MAX;
    let path = vec!["a"; depth_max].join(".");
    gives(
        DOCUMENT,
        &format!("{{\"set\":{{\"{path}\":1}}}}"),
        "{}",
        &nested(depth_max, true),
    );
    invalid(
        DOCUMENT,
        &format!("{{\"set\":{{\"{path}\":[]}}}}"),
        "{}",
        "deeper than 128",
    );
    let deep = nested(depth_max - 3, false);
    let append = format!("{{\"append\":{{\"a.b\":[{deep}]}}}}");
    assert!(apply(DOCUMENT, &append, "{}").is_ok());
    invalid(
        DOCUMENT,
        &append.replace("a.b", "a.b.c"),
        "{}",
        "deeper than 128",
    );
    let deepest = parse(&nested(depth_max, true));
    let merged = Patch::parse_merge(&deepest)
        .unwrap()
        .apply(&deepest)
        .unwrap();
    assert_eq!(merged, nested(depth_max, true));
    let copies = vec![r#"{"op":"copy","from":"/a","path":"/a/a"}"#; 200].join(",");
    invalid(
        JSON_PATCH,
        &format!("[{copies}]"),
        r#"{"a":{"a":1}}"#,
        "deeper than 128",
    );
}

#[test]
fn work_is_bounded() {
    let doubling = vec![r#"{"op":"copy","from":"/a","path":"/a/-"}"#; 60].join(",");
    invalid(
        JSON_PATCH,
        &format!("[{doubling}]"),
        r#"{"a":[[]]}"#,
        "too much work",
    );
    let long = format!("{{\"a\":[{}]}}", vec!["1"; 100_000].join(","));
    let shifting = vec![r#"{"op":"add","path":"/a/0","value":1}"#; 5_000].join(",");
    invalid(JSON_PATCH, &format!("[{shifting}]"), &long, "too much work");
    let testing = vec![r#"{"op":"test","path":"/a","value":[]}"#; 5_000].join(",");
    assert!(apply(JSON_PATCH, &format!("[{testing}]"), &long).is_err());
    let many = vec![r#"{"op":"test","path":"","value":1}"#; Patch::CHANGES_MAX + 1].join(",");
    invalid(
        JSON_PATCH,
        &format!("[{many}]"),
        "1",
        "more than 10000 operations",
    );
}

proptest! {
    #[test]
    fn merging_the_same_twice_changes_nothing_more(doc in value(), patch in value()) {
        let patch = Patch::parse_merge(&patch).unwrap();
        let once = patch.apply(&doc).unwrap();
        prop_assert_eq!(patch.apply(&parse(&once)).unwrap(), once);
    }

    #[test]
    fn what_was_set_is_there_and_can_be_unset(doc in value(), set in value()) {
        let path = "zz.y.x";
        let Value::Object(_) = doc else { return Ok(()) };
        let patch = format!("{{\"set\":{{\"{path}\":{}}}}}", set.to_json());
        let after = apply(DOCUMENT, &patch, &doc.to_json()).unwrap();
        let after = parse(&after);
        let found = after.get("zz").and_then(|v| v.get("y")).and_then(|v| v.get("x"));
        prop_assert_eq!(found, Some(&set));
        let before = apply(DOCUMENT, r#"{"unset":["zz"]}"#, &after.to_json()).unwrap();
        prop_assert_eq!(before, doc.to_json());
    }

    #[test]
    fn adding_and_removing_leaves_no_trace(elements in prop::collection::vec(value(), 0..6), new in value(), at in any::<prop::sample::Index>()) {
        let at = at.index(elements.len() + 1);
        let doc = Value::Array(elements).to_json();
        let patch = format!(
            r#"[{{"op":"add","path":"/{at}","value":{new}}},{{"op":"test","path":"/{at}","value":{new}}},{{"op":"remove","path":"/{at}"}}]"#,
            new = new.to_json(),
        );
        prop_assert_eq!(apply(JSON_PATCH, &patch, &doc).unwrap(), doc);
    }

    #[test]
    fn any_value_is_a_patch_or_refused(patch in hostile(), doc in value()) {
        for form in [DOCUMENT, MERGE, JSON_PATCH] {
            if let Ok(patch) = form(&patch)
                && let Ok(text) = patch.apply(&doc)
            {
                let mut compacted = String::new();
                crate::compact(text.as_bytes(), &mut compacted).unwrap();
                prop_assert_eq!(compacted, text);
            }
        }
    }
}

/// Patches of all forms whose paths may or may not fit.
fn hostile() -> impl Strategy<Value = Value<'static>> {
    let operation = (
        "(add|remove|replace|move|copy|test)",
        "(/([ab01]|-)){0,2}",
        "(/([ab01]|-)){0,2}",
        value(),
    )
        .prop_map(|(op, path, from, value)| {
            format!(
                r#"{{"op":"{op}","path":"{path}","from":"{from}","value":{}}}"#,
                value.to_json()
            )
        });
    let change = ("(set|inc|merge|append|pull)", "[ab01](\\.[ab01])?", value()).prop_map(
        |(name, path, value)| parse(&format!(r#"{{"{name}":{{"{path}":{}}}}}"#, value.to_json())),
    );
    prop_oneof![
        3 => prop::collection::vec(operation, 0..4)
            .prop_map(|operations| parse(&format!("[{}]", operations.join(",")))),
        3 => change,
        1 => value(),
    ]
}
