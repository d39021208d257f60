//! What schemas, references and bounds mean, by example.

use crate::{OnDelete, Schema, SchemaError};

fn refused(text: &str) -> SchemaError {
    match Schema::compile(text) {
        Ok(_) => panic!("not refused: {text}"),
        Err(error) => error,
    }
}

fn paths(schema: &str) -> Vec<String> {
    let schema = Schema::compile(schema).unwrap();
    let references = schema.references().iter();
    references
        .map(|reference| {
            let action = reference.on_delete.name();
            format!("{} -> {} {action}", reference.path, reference.target)
        })
        .collect()
}

#[test]
fn annotations_are_found_below_properties_items_all_of_and_ref() {
    let schema = r##"{
        "$defs": {"user": {"type": "string", "ref": {"type": "users"}}, "unused": {"type": "string"}},
        "properties": {
            "author": {"$ref": "#/$defs/user"},
            "ref": {"type": "string"},
            "lines": {"type": "array", "items": {"properties": {
                "article": {"type": "string", "ref": {"type": "articles", "onDelete": "cascade"}}}}}
        },
        "allOf": [{"properties": {"a/b*~": {"allOf": [{"ref": {"type": "~own.x", "onDelete": "no_action"}}]}}}]
    }"##;
    assert_eq!(
        paths(schema),
        [
            "/a~1b~2~0 -> ~own.x no_action",
            "/author -> users restrict",
            "/lines/*/article -> articles cascade",
        ]
    );
}

#[test]
fn set_null_needs_a_place_for_null() {
    let schema = |author: &str| {
        format!(
            r#"{{"$id":"http://x.test/y","$defs":{{"s/t %":{{"type":"string"}},"n":{{"type":["string","null"]}}}},
            "properties":{{"author":{author}}}}}"#
        )
    };
    let set_null = r#""ref":{"type":"users","onDelete":"set_null"}"#;
    for wrong in [
        format!(r#"{{"type":"string",{set_null}}}"#),
        format!(r##"{{"$ref":"#/$defs/s~1t%20%25",{set_null}}}"##),
        format!(r#"{{"enum":["a","b"],{set_null}}}"#),
        format!(r#"{{"allOf":[{{"type":["string","null"],{set_null}}},{{"type":"string"}}]}}"#),
        format!(r#"{{"items":{{"minLength":1,"type":"string",{set_null}}}}}"#),
    ] {
        let error = refused(&schema(&wrong));
        assert!(error.message.contains("allows null"), "{wrong}: {error}");
        assert!(error.path.starts_with("/properties/author"), "{error}");
    }
    for right in [
        format!(r#"{{"type":["string","null"],{set_null}}}"#),
        format!(r##"{{"$ref":"#/$defs/n",{set_null}}}"##),
        format!("{{{set_null}}}"),
        format!(r#"{{"items":{{"anyOf":[{{"type":"string"}},{{"type":"null"}}],{set_null}}}}}"#),
    ] {
        let schema = Schema::compile(&schema(&right)).unwrap();
        assert_eq!(schema.references()[0].on_delete, OnDelete::SetNull);
    }
}

#[test]
fn annotations_elsewhere_are_refused() {
    let note = r#"{"type":"string","ref":{"type":"users"}}"#;
    for keywords in [
        format!(r#""anyOf":[{{"properties":{{"a":{note}}}}}]"#),
        format!(r#""oneOf":[{{"properties":{{"a":{note}}}}}]"#),
        format!(r#""not":{{"properties":{{"a":{note}}}}}"#),
        format!(r#""if":{{"properties":{{"a":{note}}}}}"#),
        format!(r#""then":{{"properties":{{"a":{note}}}}}"#),
        format!(r#""else":{{"properties":{{"a":{note}}}}}"#),
        format!(r#""dependentSchemas":{{"a":{{"properties":{{"a":{note}}}}}}}"#),
        format!(r#""dependencies":{{"a":{{"properties":{{"a":{note}}}}}}}"#),
        format!(r#""patternProperties":{{"^a":{note}}}"#),
        format!(r#""additionalProperties":{note}"#),
        format!(r#""unevaluatedProperties":{note}"#),
        format!(r#""unevaluatedItems":{note}"#),
        format!(r#""propertyNames":{note}"#),
        format!(r#""contains":{note}"#),
        format!(r#""prefixItems":[{note}]"#),
        format!(r#""prefixItems":[{{}}],"items":{note}"#),
        format!(r#""$defs":{{"unused":{note}}}"#),
        format!(r#""contentSchema":{note}"#),
        format!(
            r##""$defs":{{"u":{note}}},"anyOf":[{{"properties":{{"a":{{"$ref":"#/$defs/u"}}}}}}]"##
        ),
        format!(
            r##""$defs":{{"u":{note}}},"properties":{{"a":{{"$ref":"#/$defs/u"}},"b":{{"not":{{"$ref":"#/$defs/u"}}}}}}"##
        ),
        r#""ref":{"type":"users"}"#.to_owned(),
        r#""allOf":[{"ref":{"type":"users"}}]"#.to_owned(),
        r##""properties":{"a":{"ref":{"type":"users"}},"b":{"$ref":"#"}}"##.to_owned(),
    ] {
        let error = refused(&format!("{{{keywords}}}"));
        assert!(error.message.contains("`ref`"), "{keywords}: {error}");
    }
}

#[test]
fn malformed_annotations_are_refused() {
    for (property, message) in [
        (r#"{"ref":"users"}"#, "object"),
        (r#"{"ref":null}"#, "object"),
        (r#"{"ref":{}}"#, "`type`"),
        (r#"{"ref":{"type":7}}"#, "`type`"),
        (r#"{"ref":{"type":"a b"}}"#, "no name of a type"),
        (r#"{"ref":{"type":""}}"#, "no name of a type"),
        (r#"{"ref":{"type":"u","ondelete":"cascade"}}"#, "no member"),
        (r#"{"ref":{"type":"u","onDelete":"CASCADE"}}"#, "restrict"),
        (r#"{"ref":{"type":"u","onDelete":null}}"#, "restrict"),
        (r#"{"type":"array","ref":{"type":"u"}}"#, "no string"),
        (
            r#"{"type":["null","integer"],"ref":{"type":"u"}}"#,
            "no string",
        ),
        (r#"{"enum":[1,null],"ref":{"type":"u"}}"#, "no string"),
        (r#"{"const":1,"ref":{"type":"u"}}"#, "no string"),
    ] {
        let error = refused(&format!(r#"{{"properties":{{"a":{property}}}}}"#));
        assert!(error.message.contains(message), "{property}: {error}");
        assert_eq!(error.path, "/properties/a/ref", "{property}");
    }
}

#[test]
fn one_path_has_one_meaning() {
    let schema = |first: &str, second: &str| {
        format!(
            r#"{{"properties":{{"a":{{"ref":{first}}}}},"allOf":[{{"properties":{{"a":{{"ref":{second}}}}}}}]}}"#
        )
    };
    let users = r#"{"type":"users"}"#;
    let same = r#"{"onDelete":"restrict","type":"users"}"#;
    assert_eq!(paths(&schema(users, same)), ["/a -> users restrict"]);
    for other in [
        r#"{"type":"others"}"#,
        r#"{"type":"users","onDelete":"cascade"}"#,
    ] {
        let error = refused(&schema(users, other));
        assert!(error.message.contains("two different"), "{error}");
    }
}

#[test]
fn bounds_of_references() {
    let schema = |count: usize| {
        let note = r#"{"ref":{"type":"users"}}"#;
        let properties: Vec<_> = (0..count).map(|i| format!(r#""p{i}":{note}"#)).collect();
        format!(r#"{{"properties":{{{}}}}}"#, properties.join(","))
    };
    assert_eq!(paths(&schema(64)).len(), 64);
    assert!(
        refused(&schema(65))
            .message
            .contains("at most 64 references")
    );
    // Doubling with each step: the ways collapse to one path, or are too many paths.
    let chain = |step: fn(usize) -> String| {
        let steps: Vec<_> = (0..100)
            .map(|i| format!(r#""d{i}":{}"#, step(i + 1)))
            .collect();
        format!(
            r##"{{"$defs":{{{},"d100":{{"properties":{{"x":{{"ref":{{"type":"u"}}}}}}}}}},"$ref":"#/$defs/d0"}}"##,
            steps.join(",")
        )
    };
    let wide = chain(|next| {
        let next = format!(r##"{{"$ref":"#/$defs/d{next}"}}"##);
        format!(r#"{{"properties":{{"a":{next},"b":{next}}}}}"#)
    });
    assert!(refused(&wide).message.contains("at most 64 references"));
    let narrow = chain(|next| {
        let next = format!(r##"{{"$ref":"#/$defs/d{next}"}}"##);
        format!(r#"{{"allOf":[{next},{next}]}}"#)
    });
    assert!(refused(&narrow).message.contains("apply to one value"));
    let deep = chain(|next| {
        let next = format!(r##"{{"$ref":"#/$defs/d{next}"}}"##);
        format!(r#"{{"properties":{{"a":{{"properties":{{"a":{next}}}}}}}}}"#)
    });
    assert!(refused(&deep).message.contains("deeper than 128"));
}

#[test]
fn schemas_are_checked_themselves() {
    for (text, message, path) in [
        ("", "end of the text", ""),
        ("7", "object, true or false", ""),
        (r#"{"a":1,"a":2}"#, "duplicate", ""),
        (r#"{"type":"strin"}"#, "", "/type"),
        (
            r#"{"properties":{"a":{"minLength":-1}}}"#,
            "minimum",
            "/properties/a/minLength",
        ),
        (r#"{"required":"a"}"#, "array", "/required"),
        (
            r#"{"$schema":"http://json-schema.org/draft-07/schema#"}"#,
            "2020-12",
            "/$schema",
        ),
        (r#"{"$schema":7}"#, "2020-12", "/$schema"),
        (
            r#"{"$defs":{"a":{"$id":"x"}}}"#,
            "root only",
            "/$defs/a/$id",
        ),
        (r#"{"$ref":"http://example.test/x"}"#, "leads out", "/$ref"),
        (r#"{"$ref":"file:///etc/passwd"}"#, "leads out", "/$ref"),
        (r#"{"$ref":"other.json#/a"}"#, "leads out", "/$ref"),
        (r##"{"$ref":"#/$defs/a"}"##, "nowhere", "/$ref"),
        (r##"{"$ref":"#/%zz"}"##, "nowhere", "/$ref"),
        (
            r##"{"allOf":[{}],"not":{"$ref":"#/allOf/00"}}"##,
            "nowhere",
            "/not/$ref",
        ),
        (r##"{"$ref":"#a"}"##, "no anchor", "/$ref"),
        (r##"{"$ref":"#"}"##, "without end", ""),
        (
            r##"{"anyOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"not":{"$ref":"#"}}}}"##,
            "without end",
            "",
        ),
        (r#"{"multipleOf":0}"#, "multipleOf", "/multipleOf"),
        (r#"{"multipleOf":1e401}"#, "multipleOf", "/multipleOf"),
        (r#"{"multipleOf":1e-401}"#, "multipleOf", "/multipleOf"),
        (r#"{"pattern":"(a)\\1"}"#, "", "/pattern"),
        (r#"{"pattern":"(?=a)"}"#, "", "/pattern"),
        (r#"{"pattern":"((\\w{100}){100}){100}"}"#, "", "/pattern"),
        (
            r#"{"patternProperties":{"(?!a)":{}}}"#,
            "",
            "/patternProperties",
        ),
    ] {
        let error = refused(text);
        assert!(error.message.contains(message), "{text}: {error}");
        assert!(error.path.starts_with(path), "{text}: {:?}", error.path);
    }
    let long = format!(r#"{{"title":"{}"}}"#, "x".repeat(Schema::BYTES_MAX));
    assert!(refused(&long).message.contains("at most 262144 bytes"));
    let patterns: Vec<_> = (0..300)
        .map(|i| format!(r#""p{i}":{{"pattern":"a"}}"#))
        .collect();
    let patterns = format!(r#"{{"properties":{{{}}}}}"#, patterns.join(","));
    assert!(refused(&patterns).message.contains("patterns"));
    for right in [
        "true",
        "{}",
        r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","$id":"https://example.test/x"}"#,
        r##"{"$defs":{"a":{"$anchor":"x"}},"properties":{"b":{"$ref":"#x"},"c":{"$dynamicRef":"#x"}}}"##,
        r##"{"components":{"a":{"type":"string"}},"properties":{"b":{"$ref":"#/components/a"}}}"##,
        r#"{"format":"email","unknownKeyword":{"ref":7},"default":{"ref":7}}"#,
    ] {
        Schema::compile(right).unwrap();
    }
}

fn failures(schema: &str, record: &str) -> Vec<String> {
    let schema = Schema::compile(schema).unwrap();
    let failures = schema.check(record, 100);
    assert_eq!(schema.fits(record), failures.is_empty(), "{record}");
    failures.iter().map(ToString::to_string).collect()
}

#[test]
fn every_failing_place_is_named() {
    let schema = r##"{
        "required": ["name", "mail"], "additionalProperties": false,
        "$defs": {"age": {"type": "integer", "minimum": 0}},
        "properties": {
            "name": {"type": "string", "maxLength": 3},
            "mail": {"pattern": "@"},
            "address": {"required": ["city"], "properties": {"a/b": {"type": "null"}}},
            "lines": {"items": {"properties": {"age": {"$ref": "#/$defs/age"}}}},
            "kind": {"enum": ["a", 1, {"x": [1.0]}]}
        }
    }"##;
    let record = r#"{"name":"Alice","address":{"a/b":7},"lines":[{"age":-1},{},{"age":1.5}],"more":1,"kind":"b"}"#;
    let mut found = failures(schema, record);
    found.sort();
    assert_eq!(
        found,
        [
            r#""city" is a required property at /address"#,
            r#""mail" is a required property"#,
            "Additional properties are not allowed ('more' was unexpected)",
            "value is less than the minimum of 0 at /lines/0/age",
            "value is longer than 3 characters at /name",
            r#"value is not of type "integer" at /lines/2/age"#,
            r#"value is not of type "null" at /address/a~1b"#,
            r#"value is not one of "a", 1 or {"x":[1]} at /kind"#,
        ]
    );
    let compiled = Schema::compile(schema).unwrap();
    assert_eq!(compiled.check(record, 3).len(), 3);
    assert_eq!(compiled.check(record, 0).len(), 1);
    assert_eq!(
        failures(schema, r#"{"name":"Al","mail":"@","kind":{"x":[1]}}"#),
        [""; 0]
    );
    assert_eq!(failures("true", "{").len(), 1);
}

#[test]
fn messages_are_short() {
    let long = "x".repeat(100_000);
    let schema = format!(
        r#"{{"properties":{{"a":{{"const":"{long}"}},"b":{{"unevaluatedItems":false}}}}}}"#
    );
    let schema = Schema::compile(&schema).unwrap();
    let record = format!(r#"{{"a":"{long}y","b":["{long}",["{long}"]]}}"#);
    let failures = schema.check(&record, 10);
    assert_eq!(failures.len(), 2);
    for failure in failures {
        assert!(failure.message.chars().count() <= 301, "{failure}");
    }
}

#[test]
fn numbers_of_any_size_are_checked() {
    for (schema, fit, unfit) in [
        (r#"{"const":1}"#, "1.0 10e-1 1", "2 1.5 true"),
        (r#"{"const":1e400}"#, "1e400 1e500", "1 -1e400"),
        (
            r#"{"enum":[18446744073709551615]}"#,
            "18446744073709551615 18446744073709551615.0",
            "18446744073709551614",
        ),
        (
            r#"{"minimum":9007199254740993}"#,
            "9007199254740993 1e400",
            "9007199254740992 -1e400",
        ),
        (
            r#"{"exclusiveMinimum":0}"#,
            "1e-400 1",
            "0 -0 0e5 -1e-400 -1e400",
        ),
        (
            r#"{"type":"integer"}"#,
            "1e400 1.0 1e2 -0 0.0 99999999999999999999999.0 1.50e1",
            "1e-400 1.5 9007199254740993.5 1.55e1",
        ),
        (r#"{"type":"number"}"#, "1e400 1e-400 0", r#""1" null"#),
        (r#"{"multipleOf":0.01}"#, "0.07 1.13 8", "0.075 1e-400"),
        (r#"{"multipleOf":3}"#, "9 -9 0 9007199254740993", "10 9.5"),
        (r#"{"maximum":1e308}"#, "0", "1e309 1e400"),
        (r#"{"maximum":1e400}"#, "1e308 1e400 1e500", ""),
        (
            r#"{"uniqueItems":true}"#,
            "[1,2] [9007199254740992,9007199254740993] [1,true]",
            "[1,1.0] [[{\"a\":1,\"b\":2}],[{\"b\":2.0,\"a\":10e-1}]]",
        ),
    ] {
        let compiled = Schema::compile(schema).unwrap();
        for record in fit.split(' ').filter(|record| !record.is_empty()) {
            assert!(compiled.fits(record), "{schema} {record}");
            assert_eq!(compiled.check(record, 9), [], "{schema} {record}");
        }
        for record in unfit.split(' ').filter(|record| !record.is_empty()) {
            assert!(!compiled.fits(record), "{schema} {record}");
            assert_ne!(compiled.check(record, 9), [], "{schema} {record}");
        }
    }
}

#[test]
fn formats_are_remarks() {
    assert_eq!(failures(r#"{"format":"email"}"#, r#""no mail""#), [""; 0]);
    assert_eq!(
        failures(r#"{"contentEncoding":"base64"}"#, r#""!""#),
        [""; 0]
    );
}
