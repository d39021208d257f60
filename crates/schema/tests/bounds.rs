//! What a hostile schema, or a hostile record, may not do: hang, or exhaust the stack of a thread of 2 MiB.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use okdb_schema::Schema;

/// Runs on a stack as small as that of a thread that writes.
fn on_small_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    thread.spawn(work).unwrap().join().unwrap()
}

/// A keyword around a schema, as what stands before it and behind it.
const IN_PLACE: [(&str, &str); 8] = [
    (r#"{"allOf":["#, "]}"),
    (r#"{"allOf":[{"type":["object","array"]},"#, "]}"),
    (r#"{"anyOf":[{"type":"string"},"#, "]}"),
    (r#"{"oneOf":[{"type":"string"},"#, "]}"),
    (r#"{"not":{"not":"#, "}}"),
    (r#"{"if":{"minProperties":0},"then":"#, "}"),
    (r#"{"dependentSchemas":{"a":"#, "}}"),
    (
        r#"{"unevaluatedProperties":false,"unevaluatedItems":false,"allOf":["#,
        "]}",
    ),
];

/// Schemas that apply the root to what is inside.
const RECURSION: [&str; 9] = [
    r##"{"properties":{"a":{"$ref":"#"}},"required":["a"],"additionalProperties":false}"##,
    r##"{"properties":{"a":{"$dynamicRef":"#"}}}"##,
    r##"{"additionalProperties":{"$ref":"#"}}"##,
    r##"{"patternProperties":{"^a?[a]$":{"$ref":"#"}}}"##,
    r##"{"unevaluatedProperties":{"$ref":"#"}}"##,
    r##"{"items":{"$ref":"#"}}"##,
    r##"{"prefixItems":[{"$ref":"#"}]}"##,
    r##"{"contains":{"$ref":"#"}}"##,
    r##"{"unevaluatedItems":{"$ref":"#"}}"##,
];

fn nested(open: &str, inner: &str, close: &str, levels: usize) -> String {
    format!("{}{inner}{}", open.repeat(levels), close.repeat(levels))
}

#[test]
fn no_stack_is_exhausted() {
    on_small_stack(|| {
        let mut refused = 0;
        for (open, close) in IN_PLACE {
            // At 127 levels, 6 is about the most that is within the bound.
            let arounds: &[usize] = if open.contains("unevaluated") {
                // The work doubles with each: more is the business of another test.
                &[1, 6]
            } else {
                &[1, 6, 40]
            };
            for inner in RECURSION {
                for &around in arounds {
                    let schema = Schema::compile(&nested(open, inner, close, around)).unwrap();
                    for (open, close) in [(r#"{"a":"#, "}"), ("[", "]")] {
                        for depth in [20, 127] {
                            let record = nested(open, "7", close, depth);
                            let failures = schema.check(&record, 5);
                            assert_eq!(schema.fits(&record), failures.is_empty());
                            refused += usize::from(
                                failures.iter().any(|f| f.message.contains("too deep")),
                            );
                        }
                    }
                }
            }
        }
        // Some of them do pass the bound.
        assert!(refused > 0);
    });
}

#[test]
fn deep_records_are_checked() {
    on_small_stack(|| {
        let tree = r##"{"$defs":{"node":{"oneOf":[{"type":"integer"},{"type":"object","properties":{"a":{"$ref":"#/$defs/node"}},
            "unevaluatedProperties":false}]}},"$ref":"#/$defs/node"}"##;
        let tree = Schema::compile(tree).unwrap();
        assert_eq!(tree.check(&nested(r#"{"a":"#, "7", "}", 128), 5), []);
        assert_eq!(
            tree.check(&nested(r#"{"a":"#, "true", "}", 128), 5).len(),
            1
        );
        let list = Schema::compile(r##"{"type":"array","items":{"$ref":"#"}}"##).unwrap();
        assert_eq!(list.check(&nested("[", "[]", "]", 127), 5), []);
        let failures = list.check(&nested("[", "7", "]", 128), 5);
        assert_eq!(failures[0].path, "/0".repeat(128));
        assert_eq!(list.check(&nested("[", "7", "]", 129), 5).len(), 1);
    });
}

#[test]
fn deep_schemas_are_compiled() {
    on_small_stack(|| {
        for (open, close, levels) in [
            (r#"{"allOf":["#, "]}", 63),
            (r#"{"oneOf":[true,"#, "]}", 63),
            (r#"{"not":"#, "}", 127),
            (r#"{"items":"#, "}", 127),
            (r#"{"properties":{"a":"#, "}}", 63),
            (r#"{"additionalProperties":"#, "}", 127),
            (r#"{"unevaluatedProperties":"#, "}", 127),
            (r#"{"patternProperties":{"a":"#, "}}", 63),
            (r#"{"if":true,"then":"#, "}", 127),
            (r#"{"$defs":{"a":"#, "}}", 63),
        ] {
            Schema::compile(&nested(open, r#"{"type":"string"}"#, close, levels)).unwrap();
        }
        let note = r#"{"type":["null","string"],"ref":{"type":"users","onDelete":"set_null"}}"#;
        let schema = Schema::compile(&nested(r#"{"items":"#, note, "}", 126)).unwrap();
        assert_eq!(schema.references()[0].path.to_string(), "/*".repeat(126));
        let record = nested("[", r#""u1""#, "]", 126);
        let path = &schema.references()[0].path;
        assert_eq!(
            path.set_null(&record, "u1").unwrap(),
            nested("[", "null", "]", 126)
        );
        // A chain that is longer than anything nests.
        let chain: Vec<_> = (0..5_000)
            .map(|i| format!(r##""d{i}":{{"$ref":"#/$defs/d{}"}}"##, i + 1))
            .collect();
        let chain = format!(
            r##"{{"$defs":{{{},"d5000":{{"type":"string"}}}},"properties":{{"a":{{"$ref":"#/$defs/d0"}}}}}}"##,
            chain.join(",")
        );
        assert!(chain.len() < Schema::BYTES_MAX);
        if let Ok(schema) = Schema::compile(&chain) {
            let failures = schema.check(r#"{"a":7}"#, 5);
            assert!(failures[0].message.contains("too deep"), "{failures:?}");
            assert!(!schema.fits(r#"{"a":7}"#));
        }
    });
}

#[test]
fn work_that_doubles_with_each_level_ends() {
    let doubling = |keyword: &str| {
        format!(
            r##"{{"properties":{{"a":{{"{keyword}":[{{"$ref":"#"}},{{"$ref":"#"}},{{"type":"null"}}]}}}}}}"##
        )
    };
    for keyword in ["allOf", "oneOf", "anyOf"] {
        let schema = Schema::compile(&doubling(keyword)).unwrap();
        assert!(schema.fits(r#"{"b":{"a":{"a":null}}}"#));
        for (open, close) in [(r#"{"a":"#, "}"), (r#"{"b":0,"a":"#, "}")] {
            let record = nested(open, "7", close, 90);
            // Whatever comes out, it comes.
            assert_eq!(schema.fits(&record), schema.check(&record, 5).is_empty());
        }
    }
    let schema = Schema::compile(&doubling("allOf")).unwrap();
    let failures = schema.check(&nested(r#"{"a":"#, "7", "}", 90), 5);
    assert!(!failures.is_empty());
}

#[test]
fn ways_through_a_schema_that_double_are_no_burden() {
    let steps: Vec<_> = (0..100)
        .map(|i| format!(r##""d{i}":{{"properties":{{"a":{{"$ref":"#/$defs/d{0}"}},"b":{{"$ref":"#/$defs/d{0}"}}}}}}"##, i + 1))
        .collect();
    let schema = format!(
        r##"{{"$defs":{{{},"d100":false}},"$ref":"#/$defs/d0"}}"##,
        steps.join(",")
    );
    let schema = Schema::compile(&schema).unwrap();
    assert!(schema.fits(&nested(r#"{"a":"#, "7", "}", 99)));
    assert_eq!(schema.check(&nested(r#"{"b":"#, "7", "}", 100), 5).len(), 1);
}

#[test]
fn a_record_with_very_many_failures_is_answered() {
    let record = format!("[{}1]", "1,".repeat(300_000));
    for schema in [
        r#"{"items":{"type":"string"}}"#,
        r#"{"items":{"anyOf":[{"type":"string"},{"type":"null"}]}}"#,
        r#"{"items":{"not":{"type":"integer"}}}"#,
        r#"{"unevaluatedItems":false}"#,
    ] {
        let schema = Schema::compile(schema).unwrap();
        let failures = schema.check(&record, 100);
        assert!(!failures.is_empty());
        assert!(
            failures
                .iter()
                .all(|failure| !failure.message.contains("work")),
            "{failures:?}"
        );
    }
}

#[test]
fn hostile_patterns_take_linear_time() {
    let schema = Schema::compile(r#"{"pattern":"^(a+)+$"}"#).unwrap();
    assert!(!schema.fits(&format!("\"{}b\"", "a".repeat(100_000))));
    let schema = Schema::compile(r#"{"patternProperties":{"(x+x+)+y":false}}"#).unwrap();
    assert!(schema.fits(&format!("{{\"{}\":1}}", "x".repeat(100_000))));
}

#[test]
fn wide_records_and_wide_schemas_are_checked() {
    let properties: Vec<_> = (0..3_000)
        .map(|i| format!(r#""p{i}":{{"type":"integer"}}"#))
        .collect();
    let required: Vec<_> = (0..3_000).map(|i| format!(r#""p{i}""#)).collect();
    let schema = format!(
        r#"{{"properties":{{{}}},"required":[{}],"additionalProperties":false}}"#,
        properties.join(","),
        required.join(",")
    );
    let schema = Schema::compile(&schema).unwrap();
    let members: Vec<_> = (0..3_000).map(|i| format!(r#""p{i}":{i}"#)).collect();
    assert_eq!(schema.check(&format!("{{{}}}", members.join(",")), 5), []);
    let failures = schema.check(&format!("{{{}}}", members[1..].join(",")), 5);
    assert_eq!(failures[0].message, r#""p0" is a required property"#);
}

#[test]
fn a_wide_choice_for_many_values_ends() {
    let kinds: Vec<_> = (0..4_000).map(|_| r#"{"type":"object"}"#).collect();
    let schema = format!(r#"{{"items":{{"anyOf":[{}]}}}}"#, kinds.join(","));
    let schema = Schema::compile(&schema).unwrap();
    let record = format!("[{}1]", "1,".repeat(200_000));
    assert!(!schema.check(&record, 5).is_empty());
    let names: Vec<_> = (0..4_000)
        .map(|i| format!(r#"{{"const":"n{i}"}}"#))
        .collect();
    let schema = format!(r#"{{"propertyNames":{{"anyOf":[{}]}}}}"#, names.join(","));
    let schema = Schema::compile(&schema).unwrap();
    let members: Vec<_> = (0..50_000).map(|i| format!(r#""a{i}":1"#)).collect();
    assert!(
        !schema
            .check(&format!("{{{}}}", members.join(",")), 5)
            .is_empty()
    );
}

#[test]
fn deep_and_large_patterns_are_refused_or_compiled() {
    on_small_stack(|| {
        for pattern in [
            nested("(", "a", ")", 50_000),
            nested("(?:", "a", ")+", 40_000),
            nested("[", "a", "]", 50_000),
            "a|".repeat(100_000),
            "\\\\p{L}{1,50}".repeat(1_000),
            "x{1000}".repeat(1_000),
        ] {
            for schema in [
                format!(r#"{{"pattern":"{pattern}"}}"#),
                format!(r#"{{"patternProperties":{{"{pattern}":true}}}}"#),
            ] {
                if let Ok(schema) = Schema::compile(&schema) {
                    assert!(!schema.fits("7") || schema.fits("{}"));
                }
            }
        }
    });
}
