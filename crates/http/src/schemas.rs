//! The components of the `OpenAPI` document: the shapes of bodies and answers as JSON Schema 2020-12.

use serde_json::{Value, json};

/// A reference to a component.
pub(crate) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// An object that has exactly these members, all required but those whose name ends in `?`.
fn object(members: &[(&str, Value)]) -> Value {
    let mut properties = serde_json::Map::new();
    let mut required = Vec::new();
    for (name, schema) in members {
        let plain = name.trim_end_matches('?');
        if plain.len() == name.len() {
            required.push(plain);
        }
        properties.insert(plain.to_owned(), schema.clone());
    }
    json!({ "type": "object", "properties": properties, "required": required })
}

fn array(items: &Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn nullable(kind: &str) -> Value {
    json!({ "type": [kind, "null"] })
}

/// Every component, by name.
pub(crate) fn all() -> Vec<(&'static str, Value)> {
    let mut all = requests();
    all.extend(records());
    all.extend(definitions());
    all.extend(rules());
    all.push(("Error", error()));
    all
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

/// What bodies hold.
fn requests() -> Vec<(&'static str, Value)> {
    let by_path = |value: Value| json!({ "type": "object", "additionalProperties": value });
    let operation = |action: &str, own: &[(&str, Value)]| {
        let mut members = vec![
            ("action", json!({ "const": action })),
            ("type", text()),
            ("key", text()),
            (
                "ifVersion?",
                json!({ "type": ["integer", "null"], "minimum": 0 }),
            ),
        ];
        members.extend_from_slice(own);
        object(&members)
    };
    vec![
        (
            "Filter",
            json!({
                "type": "object",
                "description": "MongoDB's filter language on JSON: implicit equality, $eq $ne $gt $gte $lt $lte $in $nin $exists $type $regex $options $mod $size $all $elemMatch $not $and $or $nor, dotted paths.",
            }),
        ),
        (
            "Sort",
            json!({
                "description": "{\"a\": 1, \"b.c\": -1} in written order, or [[\"a\", 1], [\"b.c\", -1]].",
                "oneOf": [
                    { "type": "object", "additionalProperties": { "enum": [1, -1] } },
                    { "type": "array", "items": { "type": "array", "prefixItems": [{ "type": "string" }, { "enum": [1, -1] }] } },
                ],
            }),
        ),
        ("Paths", array(&text())),
        ("Schema", json!({ "type": ["object", "boolean"] })),
        ("IndexKind", json!({ "enum": ["value"] })),
        (
            "Durability",
            json!({ "enum": ["strict", "balanced", "fast"] }),
        ),
        (
            "IndexDefinitions",
            array(&object(&[
                ("fields", reference("Paths")),
                ("unique?", json!({ "type": "boolean" })),
                ("kind?", reference("IndexKind")),
            ])),
        ),
        (
            "PatchDocument",
            object(&[
                ("set?", by_path(json!({}))),
                ("unset?", reference("Paths")),
                ("inc?", by_path(json!({ "type": "number" }))),
                ("merge?", by_path(json!({ "type": "object" }))),
                ("append?", by_path(array(&json!({})))),
                ("pull?", by_path(array(&json!({})))),
            ]),
        ),
        (
            "Operations",
            json!({
                "type": "array",
                "maxItems": okdb_store::TRANSACTION_OPERATIONS_MAX,
                "items": { "oneOf": [
                    operation("put", &[("value", json!({})), ("ttl?", count())]),
                    operation("create", &[("value", json!({})), ("ttl?", count())]),
                    operation("update", &[("value", json!({})), ("ttl?", count())]),
                    operation("patch", &[("patch", reference("PatchDocument"))]),
                    operation("remove", &[]),
                    operation("setTtl", &[("ttl", count())]),
                    operation("clearTtl", &[]),
                ] },
            }),
        ),
    ]
}

/// Records and what is said of them.
fn records() -> Vec<(&'static str, Value)> {
    let bare = [("key", text()), ("value", json!({})), ("version", count())];
    let mut record = bare.to_vec();
    record.push(("ttl?", reference("Ttl")));
    let mut indexed = bare.to_vec();
    indexed.push(("indexKey", array(&json!({}))));
    let plan = object(&[
        ("index", nullable("string")),
        ("entries", count()),
        ("records", count()),
        ("sorted", json!({ "type": "boolean" })),
    ]);
    let failure = object(&[("line", count()), ("code", text()), ("message", text())]);
    let change = object(&[
        ("clock", count()),
        ("type", text()),
        ("key", text()),
        ("action", text()),
        ("hlc", text()),
        ("time", count()),
        ("origin", text()),
        ("txn?", count()),
    ]);
    vec![
        ("Record", object(&record)),
        ("Written", object(&[("key", text()), ("version", count())])),
        (
            "Page",
            object(&[
                ("items", array(&reference("Record"))),
                ("cursor", nullable("string")),
                ("plan?", reference("Plan")),
            ]),
        ),
        ("Plan", plan),
        (
            "IndexPage",
            object(&[
                ("items", array(&object(&indexed))),
                ("cursor", nullable("string")),
            ]),
        ),
        ("Count", object(&[("count", count())])),
        (
            "Transacted",
            object(&[
                ("clock", count()),
                ("results", array(&reference("Written"))),
            ]),
        ),
        ("Line", object(&[("key", text()), ("value", json!({}))])),
        (
            "Imported",
            object(&[
                ("imported", count()),
                ("failed", array(&failure)),
                ("failedCount", count()),
                ("clock", count()),
            ]),
        ),
        (
            "Changes",
            object(&[("changes", array(&change)), ("clock", count())]),
        ),
    ]
}

/// Types, indexes, environments and the server itself.
fn definitions() -> Vec<(&'static str, Value)> {
    let index = object(&[
        ("name", text()),
        ("fields", reference("Paths")),
        ("unique", json!({ "type": "boolean" })),
        ("kind", reference("IndexKind")),
        ("state", json!({ "enum": ["building", "ready", "failed"] })),
        (
            "progress",
            json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        ),
        (
            "error?",
            object(&[("message", text()), ("duplicates", array(&array(&text())))]),
        ),
    ]);
    let env = object(&[
        ("name", text()),
        ("clock", count()),
        ("durability", reference("Durability")),
        ("bytes", count()),
        ("reclaimable", count()),
    ]);
    let named = object(&[("name", text()), ("clock", count())]);
    vec![
        ("Index", index),
        (
            "Indexes",
            object(&[("indexes", array(&reference("Index")))]),
        ),
        (
            "Type",
            object(&[
                ("name", text()),
                ("count", count()),
                ("clock", count()),
                ("indexes", array(&reference("Index"))),
                (
                    "schema",
                    json!({ "oneOf": [reference("Schema"), { "type": "null" }] }),
                ),
            ]),
        ),
        ("Types", object(&[("types", array(&reference("Type")))])),
        ("Environment", env),
        (
            "Environments",
            object(&[("envs", array(&reference("Environment")))]),
        ),
        (
            "Info",
            object(&[
                ("name", text()),
                ("version", text()),
                ("root", text()),
                ("storageFormat", count()),
                ("durability", reference("Durability")),
                (
                    "limits",
                    json!({ "type": "object", "additionalProperties": { "type": "integer" } }),
                ),
                ("uptimeMs", count()),
                ("envs", array(&named)),
            ]),
        ),
    ]
}

/// Schemas, violations and expiries.
fn rules() -> Vec<(&'static str, Value)> {
    let violation = object(&[
        ("kind", json!({ "enum": ["schema", "ref", "unique"] })),
        ("type", text()),
        ("key", text()),
        ("path", text()),
        ("detail", text()),
        ("detectedAt", count()),
    ]);
    let ttl = [("expiresAt", count()), ("remainingMs", count())];
    let mut expiring = vec![("type", text()), ("key", text())];
    expiring.extend_from_slice(&ttl);
    vec![
        (
            "TypeSchema",
            object(&[
                ("schema", reference("Schema")),
                ("enforce", json!({ "type": "boolean" })),
                ("state", json!({ "enum": ["checking", "ready"] })),
                (
                    "progress",
                    json!({ "type": "number", "minimum": 0, "maximum": 1 }),
                ),
            ]),
        ),
        (
            "Violations",
            object(&[
                ("violations", array(&violation)),
                ("cursor", nullable("string")),
            ]),
        ),
        ("Ttl", object(&ttl)),
        (
            "Expiring",
            object(&[
                ("items", array(&object(&expiring))),
                ("cursor", nullable("string")),
            ]),
        ),
        ("Swept", object(&[("swept", count())])),
    ]
}

fn error() -> Value {
    let codes: Vec<_> = crate::codes::Code::ALL
        .iter()
        .map(|code| code.text())
        .collect();
    object(&[(
        "error",
        object(&[
            ("code", json!({ "enum": codes })),
            ("message", text()),
            ("details?", json!({ "type": "object" })),
        ]),
    )])
}
