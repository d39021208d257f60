//! JSON merge patch and JSON patch: the appendices of RFC 7396 and RFC 6902, and some beyond.

use super::tests::{JSON_PATCH, MERGE, gives, invalid};

#[test]
fn merge_patches_do_as_the_appendix_of_rfc_7396() {
    for (doc, patch, expected) in [
        (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
        (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
        (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
        (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
        (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
        (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
        (
            r#"{"a":{"b":"c"}}"#,
            r#"{"a":{"b":"d","c":null}}"#,
            r#"{"a":{"b":"d"}}"#,
        ),
        (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
        (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
        (r#"{"a":"b"}"#, r#"["c"]"#, r#"["c"]"#),
        (r#"{"a":"foo"}"#, "null", "null"),
        (r#"{"a":"foo"}"#, "\"bar\"", "\"bar\""),
        (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
        ("[1,2]", r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
        ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
    ] {
        gives(MERGE, patch, doc, expected);
    }
}

#[test]
fn json_patches_do_as_the_appendix_of_rfc_6902() {
    for (doc, patch, expected) in [
        (
            r#"{"foo":"bar"}"#,
            r#"[{"op":"add","path":"/baz","value":"qux"}]"#,
            r#"{"foo":"bar","baz":"qux"}"#,
        ),
        (
            r#"{"foo":["bar","baz"]}"#,
            r#"[{"op":"add","path":"/foo/1","value":"qux"}]"#,
            r#"{"foo":["bar","qux","baz"]}"#,
        ),
        (
            r#"{"baz":"qux","foo":"bar"}"#,
            r#"[{"op":"remove","path":"/baz"}]"#,
            r#"{"foo":"bar"}"#,
        ),
        (
            r#"{"foo":["bar","qux","baz"]}"#,
            r#"[{"op":"remove","path":"/foo/1"}]"#,
            r#"{"foo":["bar","baz"]}"#,
        ),
        (
            r#"{"baz":"qux","foo":"bar"}"#,
            r#"[{"op":"replace","path":"/baz","value":"boo"}]"#,
            r#"{"baz":"boo","foo":"bar"}"#,
        ),
        (
            r#"{"foo":{"bar":"baz","waldo":"fred"},"qux":{"corge":"grault"}}"#,
            r#"[{"op":"move","from":"/foo/waldo","path":"/qux/thud"}]"#,
            r#"{"foo":{"bar":"baz"},"qux":{"corge":"grault","thud":"fred"}}"#,
        ),
        (
            r#"{"foo":["all","grass","cows","eat"]}"#,
            r#"[{"op":"move","from":"/foo/1","path":"/foo/3"}]"#,
            r#"{"foo":["all","cows","eat","grass"]}"#,
        ),
        (
            r#"{"baz":"qux","foo":["a",2,"c"]}"#,
            r#"[{"op":"test","path":"/baz","value":"qux"},{"op":"test","path":"/foo/1","value":2.0}]"#,
            r#"{"baz":"qux","foo":["a",2,"c"]}"#,
        ),
        (
            r#"{"foo":"bar"}"#,
            r#"[{"op":"add","path":"/child","value":{"grandchild":{}}}]"#,
            r#"{"foo":"bar","child":{"grandchild":{}}}"#,
        ),
        (
            r#"{"foo":"bar"}"#,
            r#"[{"op":"add","path":"/baz","value":"qux","xyz":123}]"#,
            r#"{"foo":"bar","baz":"qux"}"#,
        ),
        (
            r#"{"/":9,"~1":10}"#,
            r#"[{"op":"test","path":"/~01","value":10}]"#,
            r#"{"/":9,"~1":10}"#,
        ),
        (
            r#"{"foo":["bar"]}"#,
            r#"[{"op":"add","path":"/foo/-","value":["abc","def"]}]"#,
            r#"{"foo":["bar",["abc","def"]]}"#,
        ),
        // Beyond the appendix.
        (
            r#"{"a":{"b":1}}"#,
            r#"[{"op":"copy","from":"/a","path":"/a/b"}]"#,
            r#"{"a":{"b":{"b":1}}}"#,
        ),
        (
            r#"{"a":1}"#,
            r#"[{"op":"add","path":"","value":[2]},{"op":"test","path":"","value":[2]}]"#,
            "[2]",
        ),
        (
            r#"{"":1,"a":{"":2}}"#,
            r#"[{"op":"remove","path":"/"},{"op":"replace","path":"/a/","value":3}]"#,
            r#"{"a":{"":3}}"#,
        ),
        (
            r#"{"a":1}"#,
            r#"[{"op":"move","from":"/a","path":"/a"}]"#,
            r#"{"a":1}"#,
        ),
        (
            r#"{"a":[1,2]}"#,
            r#"[{"op":"add","path":"/a/2","value":3}]"#,
            r#"{"a":[1,2,3]}"#,
        ),
        (
            r#"{"a":1,"b":2}"#,
            r#"[{"op":"add","path":"/a","value":3}]"#,
            r#"{"a":3,"b":2}"#,
        ),
        ("{}", "[]", "{}"),
    ] {
        gives(JSON_PATCH, patch, doc, expected);
    }
}

#[test]
fn json_patches_that_do_not_fit_are_refused() {
    for (doc, patch, message) in [
        (
            r#"{"baz":"qux"}"#,
            r#"[{"op":"test","path":"/baz","value":"bar"}]"#,
            "operation 0: test \"/baz\"",
        ),
        (
            r#"{"foo":"bar"}"#,
            r#"[{"op":"add","path":"/baz/bat","value":"qux"}]"#,
            "no such value",
        ),
        (
            r#"{"/":9,"~1":10}"#,
            r#"[{"op":"test","path":"/~01","value":"10"}]"#,
            "the value there is another",
        ),
        (
            r#"{"a":[1]}"#,
            r#"[{"op":"add","path":"/a/2","value":1}]"#,
            "array of 1 elements",
        ),
        (
            r#"{"a":[1]}"#,
            r#"[{"op":"add","path":"/a/01","value":1}]"#,
            "no position",
        ),
        (
            r#"{"a":[1]}"#,
            r#"[{"op":"remove","path":"/a/-"}]"#,
            "no such value",
        ),
        (
            r#"{"a":[1]}"#,
            r#"[{"op":"test","path":"/a/1","value":null}]"#,
            "no such value",
        ),
        (
            r#"{"a":1}"#,
            r#"[{"op":"add","path":"/a/b","value":1}]"#,
            "through a number",
        ),
        (
            r#"{"a":1}"#,
            r#"[{"op":"replace","path":"/b","value":1}]"#,
            "no such value",
        ),
        (
            r#"{"a":1}"#,
            r#"[{"op":"move","from":"/b","path":"/b"}]"#,
            "no such value",
        ),
        (
            r#"{"a":{}}"#,
            r#"[{"op":"move","from":"/a","path":"/a/b"}]"#,
            "cannot move into itself",
        ),
        (
            r#"{"a":{}}"#,
            r#"[{"op":"move","from":"","path":"/a"}]"#,
            "cannot move into itself",
        ),
        (
            "{}",
            r#"[{"op":"remove","path":""}]"#,
            "remove the whole record",
        ),
    ] {
        invalid(JSON_PATCH, patch, doc, message);
    }
}

#[test]
fn malformed_json_patches_are_refused() {
    for (doc, patch, message) in [
        ("{}", "{}", "must be an array"),
        ("{}", "[1]", "operation 0: needs a string \"op\""),
        ("{}", r#"[{"op":"add","path":"/a"}]"#, "needs \"value\""),
        (
            "{}",
            r#"[{"op":"add","value":1}]"#,
            "needs a string \"path\"",
        ),
        (
            "{}",
            r#"[{"op":"copy","path":"/a"}]"#,
            "needs a string \"from\"",
        ),
        (
            "{}",
            r#"[{"op":"inc","path":"/a","value":1}]"#,
            "\"inc\" is no operation",
        ),
        (
            "{}",
            r#"[{"op":"add","path":"a","value":1}]"#,
            "\"a\" is no JSON pointer",
        ),
        (
            "{}",
            r#"[{"op":"add","path":"/a~2","value":1}]"#,
            "is no JSON pointer",
        ),
        (
            "{}",
            r#"[{"op":"add","path":"/a~","value":1}]"#,
            "is no JSON pointer",
        ),
    ] {
        invalid(JSON_PATCH, patch, doc, message);
    }
}

#[test]
fn large_merges_find_their_members() {
    let object = |from: usize, to: usize, value: &str| {
        let members: Vec<_> = (from..to).map(|i| format!("\"n{i}\":{value}")).collect();
        format!("{{{}}}", members.join(","))
    };
    gives(MERGE, &object(50, 150, "2"), &object(0, 100, "1"), &{
        let (kept, new) = (object(0, 50, "1"), object(50, 150, "2"));
        format!(
            "{},{}",
            kept.trim_end_matches('}'),
            new.trim_start_matches('{')
        )
    });
    gives(
        MERGE,
        &object(50, 150, "null"),
        &object(0, 100, "1"),
        &object(0, 50, "1"),
    );
}
