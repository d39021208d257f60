//! Random schemas, records and paths against simpler models of the same.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use okdb_query::Value;
use okdb_schema::{RefPath, Schema, Step};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

/// Few names, so that records meet schemas and paths; some that need escapes.
fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "ref", "*", "~", "a/b", "~2", "0", ""])
        .prop_map(str::to_owned)
}

/// Few strings too, and numbers in many spellings, as text.
fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![r#""u1""#, r#""u2""#, r#""""#, "null", "true", "false"]).prop_map(str::to_owned),
        2 => prop::sample::select(vec!["0", "1", "1.0", "-1", "1e2", "1.50", "18446744073709551615", "9007199254740993"])
            .prop_map(str::to_owned),
        1 => "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,30})?(e[+-]?[0-9]{1,4})?",
    ]
}

fn record() -> impl Strategy<Value = String> {
    scalar().prop_recursive(5, 40, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4)
                .prop_map(|all| format!("[{}]", all.join(","))),
            prop::collection::btree_map(name(), inner, 0..5).prop_map(|members| {
                let members = members.iter();
                let members: Vec<_> = members
                    .map(|(name, value)| format!("{}:{value}", json!(name)))
                    .collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![name().prop_map(Step::Member), Just(Step::Items)];
    prop::collection::vec(step, 0..5)
}

fn text_of(steps: &[Step]) -> String {
    let part = |step: &Step| match step {
        Step::Items => "/*".to_owned(),
        Step::Member(name) => {
            let name = name
                .replace('~', "~0")
                .replace('/', "~1")
                .replace('*', "~2");
            format!("/{name}")
        }
    };
    steps.iter().map(part).collect()
}

/// Every place in a record, as its pointer, its steps and whether it is a string; by brute force.
fn places(
    value: &Value<'_>,
    pointer: &str,
    steps: &[Step],
    out: &mut Vec<(String, Vec<Step>, Option<String>)>,
) {
    out.push((
        pointer.to_owned(),
        steps.to_vec(),
        value.as_str().map(str::to_owned),
    ));
    for (index, element) in value.as_array().into_iter().flatten().enumerate() {
        places(
            element,
            &format!("{pointer}/{index}"),
            &[steps, &[Step::Items]].concat(),
            out,
        );
    }
    for (name, member) in value.as_object().into_iter().flatten() {
        let part = name.replace('~', "~0").replace('/', "~1");
        let step = Step::Member(name.to_string());
        places(
            member,
            &format!("{pointer}/{part}"),
            &[steps, &[step]].concat(),
            out,
        );
    }
}

/// A path that exists in the record, mostly.
fn record_and_steps() -> impl Strategy<Value = (String, Vec<Step>)> {
    (
        record(),
        steps(),
        any::<prop::sample::Index>(),
        any::<bool>(),
    )
        .prop_map(|(text, steps, index, own)| {
            let value = Value::parse(&text).unwrap();
            let mut all = Vec::new();
            places(&value, "", &[], &mut all);
            let steps = if own {
                steps
            } else {
                index.get(&all).1.clone()
            };
            (text, steps)
        })
}

fn schema() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(json!({})),
        any::<bool>().prop_map(Json::Bool),
        prop::sample::select(vec!["string", "null", "integer", "number", "object", "array", "boolean"])
            .prop_map(|kind| json!({"type": kind})),
        prop::sample::select(vec![
            json!({"const": 1}),
            json!({"enum": ["u1", null, 1.5, [1], {"a": "u1"}]}),
            json!({"minimum": 0, "exclusiveMaximum": 100}),
            json!({"multipleOf": 0.5}),
            json!({"minLength": 1, "maxLength": 2}),
            json!({"pattern": "^u[0-9]$"}),
            json!({"uniqueItems": true}),
            json!({"maxItems": 2, "maxProperties": 2}),
            json!({"$ref": "#/$defs/d"}),
            json!({"dependentRequired": {"a": ["b"]}}),
            json!({"propertyNames": {"maxLength": 1}}),
        ]),
        name().prop_map(|name| json!({"required": [name]})),
        name().prop_map(|target| json!({"ref": {"type": target}})),
        prop::sample::select(vec!["restrict", "cascade", "set_null", "no_action"])
            .prop_map(|action| json!({"type": ["string", "null"], "ref": {"type": "users", "onDelete": action}})),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let list = prop::collection::vec(inner.clone(), 1..3);
        prop_oneof![
            4 => prop::collection::btree_map(name(), inner.clone(), 0..4).prop_map(|all| json!({"properties": all})),
            2 => inner.clone().prop_map(|schema| json!({"items": schema})),
            2 => list.clone().prop_map(|all| json!({"allOf": all})),
            1 => (prop::sample::select(vec!["anyOf", "oneOf", "prefixItems"]), list)
                .prop_map(|(keyword, all)| json!({keyword: all})),
            1 => (
                prop::sample::select(vec!["not", "additionalProperties", "contains", "unevaluatedProperties",
                    "unevaluatedItems", "propertyNames"]),
                inner.clone()
            ).prop_map(|(keyword, schema)| json!({keyword: schema})),
            1 => (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(test, yes, no)| json!({"if": test, "then": yes, "else": no})),
            1 => (name(), inner).prop_map(|(name, schema)| json!({"dependentSchemas": {name: schema}})),
        ]
    })
}

fn document() -> impl Strategy<Value = Json> {
    (schema(), schema()).prop_map(|(mut root, definition)| {
        if let Some(members) = root.as_object_mut() {
            members.insert("$defs".to_owned(), json!({"d": definition}));
        }
        root
    })
}

fn keyword() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "type",
        "enum",
        "const",
        "multipleOf",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "uniqueItems",
        "maxContains",
        "minContains",
        "maxProperties",
        "minProperties",
        "required",
        "dependentRequired",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "dependentSchemas",
        "dependencies",
        "prefixItems",
        "items",
        "additionalItems",
        "contains",
        "properties",
        "patternProperties",
        "additionalProperties",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "$anchor",
        "$dynamicAnchor",
        "$defs",
        "$id",
        "$schema",
        "$vocabulary",
        "format",
        "discriminator",
        "contentMediaType",
        "contentEncoding",
        "contentSchema",
        "$comment",
    ])
}

proptest! {
    #[test]
    fn paths_are_written_and_read(steps in steps()) {
        let text = text_of(&steps);
        let path = RefPath::parse(&text).unwrap();
        prop_assert_eq!(path.steps(), &steps[..]);
        prop_assert_eq!(path.to_string(), text);
    }

    #[test]
    fn any_text_is_a_path_or_none(text in "[/~*012a]{0,8}") {
        if let Ok(path) = RefPath::parse(&text) {
            prop_assert_eq!(path.to_string(), text);
        }
    }

    #[test]
    fn values_are_the_strings_at_the_path((text, steps) in record_and_steps()) {
        let path = RefPath::parse(&text_of(&steps)).unwrap();
        let record = Value::parse(&text).unwrap();
        let mut all = Vec::new();
        places(&record, "", &[], &mut all);
        let expected: Vec<(String, String)> = all
            .into_iter()
            .filter(|(_, at, _)| *at == steps)
            .filter_map(|(pointer, _, text)| Some((pointer, text?)))
            .collect();
        let found: Vec<(String, String)> = path
            .values(&record)
            .into_iter()
            .map(|(pointer, text)| (pointer, text.into_owned()))
            .collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn set_null_changes_the_references_and_nothing_else((text, steps) in record_and_steps(), target in "u1|u2|") {
        let path = RefPath::parse(&text_of(&steps)).unwrap();
        let before = Value::parse(&text).unwrap();
        let after_text = path.set_null(&text, &target).unwrap();
        let after = Value::parse(&after_text).unwrap();
        let hit: Vec<String> = path
            .values(&before)
            .into_iter()
            .filter(|(_, value)| *value == target.as_str())
            .map(|(pointer, _)| pointer)
            .collect();
        // The model: the same places with the same texts, but null where a reference was.
        let outline = |value: &Value<'_>| {
            let mut all = Vec::new();
            places(value, "", &[], &mut all);
            all
        };
        for ((pointer, _, was), (same, _, is)) in outline(&before).into_iter().zip(outline(&after)) {
            prop_assert_eq!(&pointer, &same);
            prop_assert_eq!(is, was.filter(|_| !hit.contains(&pointer)));
        }
        // To the letter: what is left when the nulls become the reference again is the text.
        let mut restored: Json = serde_json::from_str(&after_text).unwrap_or(Json::Null);
        for pointer in &hit {
            let place = restored.pointer_mut(pointer);
            if let Some(place) = place {
                prop_assert!(place.is_null());
                *place = json!(target);
            }
        }
        let original: Json = serde_json::from_str(&text).unwrap_or(Json::Null);
        prop_assert_eq!(restored, original);
        let numbers = |text: &str| text.split(['[', ']', '{', '}', ',', ':']).filter(|part| part.starts_with(|c: char| c == '-' || c.is_ascii_digit())).map(str::to_owned).collect::<Vec<_>>();
        prop_assert_eq!(numbers(&after_text), numbers(&text));
        if hit.is_empty() {
            prop_assert_eq!(after_text, text);
        }
    }

    #[test]
    fn checks_agree_with_those_of_plain_json(schema in document(), records in prop::collection::vec(record(), 1..8)) {
        let Ok(compiled) = Schema::compile(&schema.to_string()) else {
            return Ok(());
        };
        let plain = jsonschema::draft202012::new(&schema).unwrap();
        for text in records {
            let failures = compiled.check(&text, 100);
            prop_assert_eq!(compiled.fits(&text), failures.is_empty());
            // What plain JSON cannot hold, or holds less exactly, is tested by example.
            let exact = text.split(|c: char| !(c.is_ascii_digit() || "+-.e".contains(c))).all(|number| number.len() < 12)
                && !text.contains('e');
            if let (true, Ok(record)) = (exact, serde_json::from_str::<Json>(&text)) {
                let expected: Vec<String> =
                    plain.iter_errors(&record).take(100).map(|error| error.instance_path().to_string()).collect();
                let found: Vec<String> = failures.into_iter().map(|failure| failure.path).collect();
                let sorted = |mut all: Vec<String>| { all.sort(); all };
                prop_assert_eq!(sorted(found), sorted(expected), "{} {}", schema, text);
            }
        }
    }

    #[test]
    fn any_text_is_a_schema_or_none(text in record(), other in document()) {
        let _ = Schema::compile(&text);
        let other = other.to_string();
        for cut in (0..other.len()).step_by(7).filter(|cut| other.is_char_boundary(*cut)) {
            let _ = Schema::compile(&other[..cut]);
        }
    }

    /// Where only a `$ref` leads, the meta-schema has no say.
    #[test]
    fn a_ref_may_lead_to_anything(keyword in keyword(), value in record(), more in record(), text in record()) {
        let schema = format!(
            r##"{{"x":{{"{keyword}":{value},"ref":{more}}},"y":{{"{keyword}":{value}}},"properties":{{"a":{{"$ref":"#/x"}}}},"not":{{"$ref":"#/y"}}}}"##
        );
        for schema in [schema.replace("\"ref\"", "\"reg\""), schema] {
            if let Ok(schema) = Schema::compile(&schema) {
                prop_assert_eq!(schema.fits(&text), schema.check(&text, 5).is_empty());
            }
        }
    }

    #[test]
    fn what_was_set_to_null_is_no_reference(schema in document(), text in record()) {
        let Ok(compiled) = Schema::compile(&schema.to_string()) else {
            return Ok(());
        };
        for reference in compiled.references() {
            let value = Value::parse(&text).unwrap();
            for (pointer, target) in reference.path.values(&value) {
                let after = reference.path.set_null(&text, &target).unwrap();
                let after = Value::parse(&after).unwrap();
                prop_assert!(reference.path.values(&after).iter().all(|(other, _)| *other != pointer));
            }
        }
    }
}
