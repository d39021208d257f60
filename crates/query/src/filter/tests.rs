//! The meaning of filters, by example.

use super::*;
use crate::testing::parse;

fn filter(text: &str) -> Filter {
    Filter::parse(&parse(text)).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[track_caller]
fn matches(text: &str, docs: &[&str]) {
    for doc in docs {
        assert!(filter(text).matches(&parse(doc)), "{text} must match {doc}");
    }
}

#[track_caller]
fn differs(text: &str, docs: &[&str]) {
    for doc in docs {
        assert!(
            !filter(text).matches(&parse(doc)),
            "{text} must not match {doc}"
        );
    }
}

#[track_caller]
fn refused(text: &str, kind: FilterErrorKind, message: &str) {
    let error = Filter::parse(&parse(text)).expect_err(text);
    assert_eq!(error.kind, kind, "{text}");
    assert!(error.message.contains(message), "{text}: {}", error.message);
}

#[test]
fn equality_is_deep_and_by_value() {
    matches(
        r#"{"a":1}"#,
        &[r#"{"a":1.0}"#, r#"{"a":10e-1}"#, r#"{"a":[2,1]}"#],
    );
    differs(
        r#"{"a":1}"#,
        &[r#"{"a":"1"}"#, r#"{"a":[[1]]}"#, r#"{"b":1}"#, "1", "[1]"],
    );
    differs(r#"{"a":9007199254740992}"#, &[r#"{"a":9007199254740993}"#]);
    matches(r#"{"a":{"x":1,"y":[2]}}"#, &[r#"{"a":{"y":[2.0],"x":1}}"#]);
    differs(
        r#"{"a":{"x":1}}"#,
        &[r#"{"a":{"x":1,"y":2}}"#, r#"{"a":{}}"#],
    );
    matches(r#"{"a":[1,2]}"#, &[r#"{"a":[1,2]}"#, r#"{"a":[[1,2],3]}"#]);
    differs(
        r#"{"a":[1,2]}"#,
        &[r#"{"a":[2,1]}"#, r#"{"a":[1,2,3]}"#, r#"{"a":1}"#],
    );
    matches(r#"{"a":{}}"#, &[r#"{"a":{}}"#, r#"{"a":[{}]}"#]);
    matches(r#"{"a":{"$eq":{"$gt":1}}}"#, &[r#"{"a":{"$gt":1}}"#]);
    matches("{}", &["{}", "1", "null"]);
    assert!(filter("{}").is_empty() && !filter(r#"{"a":1}"#).is_empty());
}

#[test]
fn null_matches_what_is_missing() {
    for text in [
        r#"{"a.b":null}"#,
        r#"{"a.b":{"$in":[1,null]}}"#,
        r#"{"a.b":{"$gte":null}}"#,
    ] {
        matches(
            text,
            &["{}", r#"{"a":4}"#, r#"{"a":{}}"#, r#"{"a":{"b":null}}"#],
        );
        matches(text, &[r#"{"a":[{"b":2},{}]}"#, r#"{"a":{"b":[2,null]}}"#]);
        differs(
            text,
            &[
                r#"{"a":{"b":2}}"#,
                r#"{"a":[]}"#,
                r#"{"a":[2]}"#,
                r#"{"a":[{"b":2}]}"#,
            ],
        );
    }
    differs(r#"{"a":{"$ne":null}}"#, &["{}", r#"{"a":null}"#]);
    matches(r#"{"a":{"$ne":null}}"#, &[r#"{"a":0}"#, r#"{"a":[]}"#]);
    differs(
        r#"{"a":{"$gt":null}}"#,
        &["{}", r#"{"a":null}"#, r#"{"a":1}"#],
    );
}

#[test]
fn ranges_stay_within_a_type() {
    matches(
        r#"{"a":{"$gt":1}}"#,
        &[r#"{"a":1.00001}"#, r#"{"a":[0,2]}"#],
    );
    differs(
        r#"{"a":{"$gt":1}}"#,
        &[r#"{"a":1}"#, r#"{"a":"2"}"#, r#"{"a":true}"#, "{}"],
    );
    differs(
        r#"{"a":{"$lt":1}}"#,
        &[r#"{"a":null}"#, "{}", r#"{"a":[1,2]}"#],
    );
    matches(
        r#"{"a":{"$gte":"b","$lt":"c"}}"#,
        &[r#"{"a":"b"}"#, r#"{"a":"bzz"}"#],
    );
    matches(r#"{"a":{"$lte":true}}"#, &[r#"{"a":false}"#]);
    matches(
        r#"{"a":{"$gt":{"x":1}}}"#,
        &[r#"{"a":{"x":2}}"#, r#"{"a":[{"x":2}]}"#],
    );
    matches(
        r#"{"a":{"$gt":[1]}}"#,
        &[r#"{"a":[1,0]}"#, r#"{"a":[[2]]}"#],
    );
    // Two bounds may be met by different elements, unless one element must meet both.
    matches(r#"{"a":{"$gt":3,"$lt":2}}"#, &[r#"{"a":[1,4]}"#]);
    differs(
        r#"{"a":{"$elemMatch":{"$gt":3,"$lt":2}}}"#,
        &[r#"{"a":[1,4]}"#],
    );
}

#[test]
fn paths_reach_into_arrays() {
    matches(
        r#"{"a.b":1}"#,
        &[r#"{"a":[{"b":0},{"b":1}]}"#, r#"{"a":[{"b":[1]}]}"#],
    );
    differs(r#"{"a.b":1}"#, &[r#"{"a":[[{"b":1}]]}"#, r#"{"a.b":1}"#]);
    matches(
        r#"{"a.1":2}"#,
        &[r#"{"a":[1,2]}"#, r#"{"a":{"1":2}}"#, r#"{"a":[{"1":2}]}"#],
    );
    matches(r#"{"a.1":2}"#, &[r#"{"a":[1,{"1":2}]}"#]);
    differs(r#"{"a.1":2}"#, &[r#"{"a":[2,1]}"#, r#"{"a":[2]}"#]);
    matches(r#"{"a.0.b":1}"#, &[r#"{"a":[{"b":1},{"b":2}]}"#]);
    differs(r#"{"a.0.b":2}"#, &[r#"{"a":[{"b":1},{"b":2}]}"#]);
    differs(r#"{"a.0.b":null}"#, &[r#"{"a":[{"b":1}]}"#]);
}

#[test]
fn lists_and_negations() {
    matches(
        r#"{"a":{"$in":[1,"x",[5]]}}"#,
        &[r#"{"a":[7,"x"]}"#, r#"{"a":[5]}"#],
    );
    differs(r#"{"a":{"$in":[]}}"#, &["{}", r#"{"a":[]}"#]);
    matches(
        r#"{"a":{"$nin":[1,2]}}"#,
        &["{}", r#"{"a":3}"#, r#"{"a":[3]}"#],
    );
    differs(r#"{"a":{"$nin":[1,2]}}"#, &[r#"{"a":[3,1]}"#]);
    differs(r#"{"a":{"$ne":1}}"#, &[r#"{"a":[2,1]}"#, r#"{"a":1.0}"#]);
    matches(
        r#"{"a":{"$not":{"$gt":1}}}"#,
        &["{}", r#"{"a":"x"}"#, r#"{"a":[1,0]}"#],
    );
    differs(r#"{"a":{"$not":{"$gt":1,"$lt":5}}}"#, &[r#"{"a":3}"#]);
    matches(r#"{"$nor":[{"a":1},{"b":1}]}"#, &["{}", r#"{"a":2}"#]);
    matches(r#"{"$or":[{"a":1},{"b":1}]}"#, &[r#"{"b":1}"#]);
    differs(r#"{"$and":[{"a":1},{"b":1}]}"#, &[r#"{"b":1}"#]);
    matches(r#"{"a":{"$all":[1,2]}}"#, &[r#"{"a":[2,3,1]}"#]);
    differs(r#"{"a":{"$all":[1,2]}}"#, &[r#"{"a":[1]}"#, r#"{"a":1}"#]);
    matches(r#"{"a":{"$all":[1]}}"#, &[r#"{"a":1}"#]);
    matches(r#"{"a":{"$all":[[1,2]]}}"#, &[r#"{"a":[1,2]}"#]);
    differs(r#"{"a":{"$all":[]}}"#, &["{}", r#"{"a":[]}"#]);
    let all = r#"{"a":{"$all":[{"$elemMatch":{"x":1}},{"$elemMatch":{"y":2}}]}}"#;
    matches(all, &[r#"{"a":[{"x":1},{"y":2}]}"#]);
    differs(all, &[r#"{"a":[{"x":1}]}"#]);
}

#[test]
fn tests_of_shape() {
    matches(r#"{"a.b":{"$exists":true}}"#, &[r#"{"a":[{},{"b":null}]}"#]);
    differs(
        r#"{"a.b":{"$exists":1}}"#,
        &["{}", r#"{"a":[]}"#, r#"{"a":{}}"#],
    );
    matches(
        r#"{"a.b":{"$exists":false}}"#,
        &["{}", r#"{"a":[{}]}"#, r#"{"a":[1]}"#],
    );
    differs(r#"{"a":{"$exists":0}}"#, &[r#"{"a":null}"#]);
    matches(r#"{"a":{"$size":2.0}}"#, &[r#"{"a":[1,[2,3]]}"#]);
    differs(
        r#"{"a":{"$size":2}}"#,
        &[r#"{"a":[[1,2]]}"#, r#"{"a":"xx"}"#, "{}"],
    );
    matches(r#"{"a":{"$size":0}}"#, &[r#"{"a":[]}"#]);
    matches(
        r#"{"a":{"$type":"number"}}"#,
        &[r#"{"a":1e5}"#, r#"{"a":["x",2]}"#],
    );
    matches(
        r#"{"a":{"$type":["null","bool"]}}"#,
        &[r#"{"a":null}"#, r#"{"a":false}"#],
    );
    differs(r#"{"a":{"$type":"null"}}"#, &["{}", r#"{"a":0}"#]);
    matches(
        r#"{"a":{"$type":"array"}}"#,
        &[r#"{"a":[]}"#, r#"{"a":[1]}"#],
    );
    matches(r#"{"a":{"$type":3}}"#, &[r#"{"a":{}}"#, r#"{"a":[{}]}"#]);
    let element = r#"{"a":{"$elemMatch":{"b":{"$gt":1},"$or":[{"c":1},{"c":2}]}}}"#;
    matches(element, &[r#"{"a":[5,{"b":2,"c":2}]}"#]);
    differs(
        element,
        &[r#"{"a":{"b":2,"c":2}}"#, r#"{"a":[{"b":2},{"b":0,"c":2}]}"#],
    );
    matches(r#"{"a":{"$elemMatch":{}}}"#, &[r#"{"a":[{}]}"#]);
    differs(
        r#"{"a":{"$elemMatch":{}}}"#,
        &[r#"{"a":[1]}"#, r#"{"a":[]}"#],
    );
    differs(
        r#"{"a":{"$elemMatch":{"$eq":1}}}"#,
        &[r#"{"a":[[1]]}"#, r#"{"a":1}"#],
    );
    matches(
        r#"{"a":{"$elemMatch":{"$not":{"$gt":1}}}}"#,
        &[r#"{"a":[5,0]}"#],
    );
    matches(
        r#"{"a":{"$elemMatch":{"$elemMatch":{"$eq":1}}}}"#,
        &[r#"{"a":[[2],[1]]}"#],
    );
}

#[test]
fn patterns() {
    matches(
        r#"{"a":{"$regex":"^b.*z$"}}"#,
        &[r#"{"a":"buzz"}"#, r#"{"a":[1,"bz"]}"#],
    );
    differs(
        r#"{"a":{"$regex":"^b"}}"#,
        &[r#"{"a":"ab"}"#, r#"{"a":1}"#, "{}"],
    );
    matches(
        r#"{"a":{"$options":"imsx","$regex":"^ É . x $"}}"#,
        &[r#"{"a":"y\né\nx"}"#],
    );
    matches(r#"{"a":{"$not":{"$regex":"x"}}}"#, &["{}", r#"{"a":"y"}"#]);
    for pattern in ["(?=a)", "(a)\\\\1", "(", "a{1000}{1000}{1000}"] {
        refused(
            &format!(r#"{{"a":{{"$regex":"{pattern}"}}}}"#),
            FilterErrorKind::Invalid,
            "$regex at \"a\"",
        );
    }
    refused(
        r#"{"a":{"$regex":"\\w{5000}"}}"#,
        FilterErrorKind::Invalid,
        "too large",
    );
    let long = "a".repeat(Filter::REGEX_PATTERN_BYTES_MAX + 1);
    refused(
        &format!(r#"{{"a":{{"$regex":"{long}"}}}}"#),
        FilterErrorKind::Invalid,
        "longer",
    );
    let many = vec![r#"{"a":{"$regex":"x"}}"#; Filter::REGEXES_MAX + 1].join(",");
    refused(
        &format!(r#"{{"$or":[{many}]}}"#),
        FilterErrorKind::Invalid,
        "more than 32",
    );
}

#[test]
fn remainders() {
    for (modulo, doc, expected) in [
        ("[4,0]", "8", true),
        ("[4,1]", "8", false),
        ("[4,0]", "8.9", true),
        ("[4.9,0.5]", "8", true),
        ("[4,-3]", "-7", true),
        ("[4,3]", "-7", false),
        ("[-4,3]", "7", true),
        ("[3,1]", "1e2", true),
        ("[3,0]", "0.5", true),
        ("[7,0]", "\"7\"", false),
        ("[2,1]", "9007199254740993", true),
        (
            "[10000000000000000000000,5]",
            "30000000000000000000005",
            true,
        ),
        (
            "[10000000000000000000000,1e21]",
            "-30000000000000000000005",
            false,
        ),
        ("[99999999999999999999,-98]", "-1e401", false),
        ("[99999999999999999999,1]", "1e400", true),
        ("[99999999999999999998,1]", "1e400", false),
        ("[5,5]", "10", false),
    ] {
        let text = format!(r#"{{"a":{{"$mod":{modulo}}}}}"#);
        let doc = format!(r#"{{"a":{doc}}}"#);
        assert_eq!(
            filter(&text).matches(&parse(&doc)),
            expected,
            "{modulo} {doc}"
        );
    }
    let digits = "1".repeat(101);
    for operands in [
        format!("[{digits},0]"),
        format!("[3,{digits}]"),
        "[1e401,0]".into(),
    ] {
        refused(
            &format!(r#"{{"a":{{"$mod":{operands}}}}}"#),
            FilterErrorKind::Number,
            "$mod at \"a\"",
        );
    }
}

#[test]
fn mistakes_name_the_operator_and_its_path() {
    use FilterErrorKind::Invalid;
    for (text, message) in [
        ("1", "the filter must be an object, not a number"),
        (r#"{"$gt":1}"#, "$gt at the top level"),
        (r#"{"$where":"x"}"#, "$where at the top level"),
        (r#"{"$not":{"a":1}}"#, "$not at the top level"),
        (
            r#"{"a.b":{"$near":1}}"#,
            "$near at \"a.b\": unknown operator",
        ),
        (r#"{"a":{"$not":{"$foo":1}}}"#, "$foo at \"a\""),
        (
            r#"{"a":{"b":1,"$gt":2}}"#,
            "$gt at \"a\": operators and plain names do not mix",
        ),
        (
            r#"{"a":{"$gt":2,"b":1}}"#,
            "$gt at \"a\": operators and plain names do not mix",
        ),
        (
            r#"{"a":{"$elemMatch":{"$gt":2,"b":1}}}"#,
            "$gt at \"a\": operators and plain names",
        ),
        (
            r#"{"a":{"$elemMatch":{"$gt":2,"$or":[{}]}}}"#,
            "$or at \"a\"",
        ),
        (r#"{"a":{"$elemMatch":1}}"#, "$elemMatch at \"a\""),
        (r#"{"a":{"$elemMatch":{"b":{"$x":1}}}}"#, "$x at \"b\""),
        (
            r#"{"$and":[]}"#,
            "$and at the top level: needs at least one filter",
        ),
        (r#"{"$or":{}}"#, "$or at the top level: needs an array"),
        (r#"{"$nor":[1]}"#, "an element of $nor must be an object"),
        (r#"{"a":{"$in":1}}"#, "$in at \"a\": needs an array"),
        (r#"{"a":{"$nin":{}}}"#, "$nin at \"a\""),
        (r#"{"a":{"$all":1}}"#, "$all at \"a\""),
        (r#"{"a":{"$all":[{"$gt":1}]}}"#, "$all at \"a\""),
        (r#"{"a":{"$not":{}}}"#, "$not at \"a\""),
        (r#"{"a":{"$not":1}}"#, "$not at \"a\""),
        (r#"{"a":{"$exists":"yes"}}"#, "$exists at \"a\""),
        (r#"{"a":{"$size":-1}}"#, "$size at \"a\""),
        (r#"{"a":{"$size":1.5}}"#, "$size at \"a\""),
        (r#"{"a":{"$type":"int"}}"#, "$type at \"a\""),
        (r#"{"a":{"$type":16}}"#, "$type at \"a\""),
        (r#"{"a":{"$type":[]}}"#, "$type at \"a\""),
        (
            r#"{"a":{"$mod":[0,1]}}"#,
            "$mod at \"a\": cannot divide by zero",
        ),
        (r#"{"a":{"$mod":[0.9,1]}}"#, "cannot divide by zero"),
        (r#"{"a":{"$mod":[1]}}"#, "$mod at \"a\""),
        (r#"{"a":{"$regex":1}}"#, "$regex at \"a\""),
        (
            r#"{"a":{"$regex":"a","$options":"g"}}"#,
            "$options at \"a\"",
        ),
        (r#"{"a":{"$options":"i"}}"#, "$options at \"a\""),
        (r#"{"a..b":1}"#, "\"a..b\": a path has no empty parts"),
        (r#"{"":1}"#, "\"\": a path has no empty parts"),
    ] {
        refused(text, Invalid, message);
    }
}

#[test]
fn size_and_nesting_are_bounded() {
    let nested =
        |depth: usize| format!("{}{{}}{}", r#"{"$and":["#.repeat(depth), "]}".repeat(depth));
    filter(&nested(Filter::DEPTH_MAX - 1));
    // JSON's own bound comes first for arrays and objects in turn; $not needs one level only.
    let not = |depth: usize| {
        let (open, close) = (r#"{"$not":"#.repeat(depth), "}".repeat(depth));
        format!(r#"{{"a":{open}{{"$eq":1}}{close}}}"#)
    };
    matches(&not(Filter::DEPTH_MAX), &[r#"{"a":1}"#]);
    refused(
        &not(Filter::DEPTH_MAX + 1),
        FilterErrorKind::Invalid,
        "nest deeper than 64",
    );

    let list = |count: usize| format!(r#"{{"a":{{"$in":[{}]}}}}"#, vec!["1"; count].join(","));
    filter(&list(Filter::NODES_MAX - 2));
    refused(
        &list(Filter::NODES_MAX - 1),
        FilterErrorKind::Invalid,
        "more than 10000 tests",
    );
}

#[test]
fn the_deepest_filter_fits_a_small_stack() {
    // Half the depth bound of JSON: each level of the filter takes two of it, and of the record.
    let levels = Filter::DEPTH_MAX - 1;
    let text = format!(
        "{}{}{}",
        r#"{"a":{"$elemMatch":"#.repeat(levels),
        r#"{"a":1}"#,
        "}}".repeat(levels)
    );
    let doc = format!(
        "{}{}{}",
        r#"{"a":["#.repeat(levels),
        r#"{"a":1}"#,
        "]}".repeat(levels)
    );
    let deep = std::thread::Builder::new()
        .stack_size(512 * 1024)
        .spawn(move || {
            matches(&text, &[&doc]);
            differs(&text, &[&doc.replace('1', "2")]);
        });
    deep.unwrap().join().unwrap();
}

#[test]
fn constraints_are_what_an_index_can_use() {
    let text = r#"{
        "a": 1, "b": {"$gt": 1, "$lte": 9, "$ne": 4}, "c": {"$in": [2, 1, 1.0]}, "d": [1],
        "e": {"$in": [[1], 2]}, "f": {"$not": {"$eq": 1}}, "g": {"$exists": true}, "h": null,
        "i": {"$all": [1, [2]]}, "j": {"$elemMatch": {"$gte": 3}}, "k": {"$elemMatch": {"x": 1}},
        "l": {"$gt": [1]}, "$or": [{"m": 1}], "$and": [{"n": {"x": 1}}, {"$nor": [{"o": 1}]}]
    }"#;
    let filter = filter(text);
    let shown: Vec<String> = filter
        .constraints()
        .iter()
        .map(|Constraint { path, test }| match test {
            Test::Equal(value) => format!("{path} = {}", value.to_json()),
            Test::In(values) => format!("{path} in {}", Value::Array(values.to_vec()).to_json()),
            Test::Lower { value, inclusive } => format!("{path} > {} {inclusive}", value.to_json()),
            Test::Upper { value, inclusive } => format!("{path} < {} {inclusive}", value.to_json()),
        })
        .collect();
    assert_eq!(
        shown,
        [
            "a = 1",
            "b > 1 false",
            "b < 9 true",
            "c in [1,2]",
            "h = null",
            "i = 1",
            "j > 3 true",
            "n = {\"x\":1}",
        ]
    );
}
