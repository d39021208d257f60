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
