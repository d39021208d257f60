//! The `OpenAPI` 3.1 document, written from the route table.

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use crate::{
    codes::Code,
    schemas,
    table::{self, Answer, BodySpec, Content, Field, Group, Route, Shape},
};

/// The document, for this version of the program.
pub(crate) fn document(version: &str) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in table::routes() {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Some(path) = path.as_object_mut() {
            path.insert(route.verb.name().to_lowercase(), operation(route));
        }
    }
    let schemas: Map<String, Value> = schemas::all()
        .into_iter()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect();
    json!({
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "okdb",
            "version": version,
            "summary": "A document database that one command serves on every core of a host.",
        },
        "servers": [{ "url": "/" }],
        "tags": Group::ALL.map(|group| json!({ "name": group.title() })),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "headers": {
                "okdb-worker": { "description": "The slot of the worker that answered.", "schema": { "type": "integer" } },
            },
        },
    })
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "operationId": operation_id(route),
        "tags": [route.group.title()],
        "summary": route.summary,
        "parameters": parameters(route),
        "responses": responses(route),
    });
    if let Some(members) = operation.as_object_mut() {
        if !route.detail.is_empty() {
            members.insert("description".into(), route.detail.into());
        }
        if let Some(body) = body(&route.body) {
            members.insert("requestBody".into(), body);
        }
    }
    operation
}

/// A name for generated clients: the method and the path's words.
fn operation_id(route: &Route) -> String {
    let mut id = route.verb.name().to_lowercase();
    for word in route
        .path
        .split(['/', '{', '}', '.'])
        .filter(|word| !word.is_empty() && *word != "api")
    {
        let mut letters = word.chars();
        id.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        id.push_str(letters.as_str());
    }
    id
}

fn parameters(route: &Route) -> Vec<Value> {
    let captures = route.captures().map(|name| {
        let what = match name {
            "env" => "The environment; `default` is always there.",
            "type" => "The type.",
            "key" => "The key, percent-encoded.",
            _ => "The index: its fields joined by `~`.",
        };
        json!({ "in": "path", "name": name, "required": true, "description": what, "schema": { "type": "string" } })
    });
    let query = route.query.iter().map(|field| {
        json!({
            "in": "query",
            "name": field.name,
            "required": field.required,
            "description": field.what,
            "schema": parameter_schema(field.shape),
        })
    });
    let mut parameters: Vec<Value> = captures.chain(query).collect();
    let header = |name: &str, what: &str| json!({ "in": "header", "name": name, "description": what, "schema": { "type": "string" } });
    if route.guarded {
        parameters.push(header("If-Match", "\"n\": the record's version must be n."));
        parameters.push(header("If-None-Match", "*: the record must not exist."));
    } else if route.answers.iter().any(|answer| answer.status == 304) {
        parameters.push(header(
            "If-None-Match",
            "Entity tags of copies that the client has.",
        ));
    }
    parameters
}

/// A field's schema as a query parameter: what is JSON in a body is text there.
fn parameter_schema(shape: Shape) -> Value {
    match shape {
        Shape::ArrayText => json!({ "type": "string", "contentMediaType": "application/json" }),
        Shape::Version => json!({ "type": "string", "pattern": "^(null|[0-9]+)$" }),
        other => field_schema(other),
    }
}

fn field_schema(shape: Shape) -> Value {
    match shape {
        Shape::Text => json!({ "type": "string" }),
        Shape::Integer => json!({ "type": "integer", "minimum": 0 }),
        Shape::Limit => json!({
            "type": "integer",
            "minimum": 1,
            "maximum": crate::fields::LIMIT_MAX,
            "default": crate::fields::LIMIT_DEFAULT,
        }),
        Shape::Flag => json!({ "type": "boolean", "default": false }),
        Shape::Any => json!({}),
        Shape::Version => json!({ "type": ["integer", "null"], "minimum": 0 }),
        Shape::ArrayText => json!({ "type": "array" }),
        Shape::Component(name) => schemas::reference(name),
    }
}

fn object_schema(fields: &[Field]) -> Value {
    let properties: Map<String, Value> = fields
        .iter()
        .map(|field| {
            let mut schema = field_schema(field.shape);
            if let Some(members) = schema.as_object_mut() {
                members.insert("description".into(), field.what.into());
            }
            (field.name.to_owned(), schema)
        })
        .collect();
    let required: Vec<_> = fields
        .iter()
        .filter(|field| field.required)
        .map(|field| field.name)
        .collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn body(spec: &BodySpec) -> Option<Value> {
    let json_of = |schema: Value| json!({ "application/json": { "schema": schema } });
    let (required, content) = match spec {
        BodySpec::None => return None,
        BodySpec::Fields(fields) => (true, json_of(object_schema(fields))),
        BodySpec::OptionalFields(fields) => (false, json_of(object_schema(fields))),
        BodySpec::Operations(fields) => (
            true,
            json_of(json!({ "oneOf": [object_schema(fields), schemas::reference("Operations")] })),
        ),
        BodySpec::Patch(fields) => (
            true,
            json!({
                "application/json": { "schema": object_schema(fields) },
                "application/merge-patch+json": { "schema": {} },
                "application/json-patch+json": { "schema": { "type": "array", "items": { "type": "object" } } },
            }),
        ),
        BodySpec::Lines => (
            true,
            json!({ "application/x-ndjson": { "schema": { "type": "string" } } }),
        ),
    };
    Some(json!({ "required": required, "content": content }))
}

fn responses(route: &Route) -> Value {
    let mut responses: Map<String, Value> = route
        .answers
        .iter()
        .map(|answer| (answer.status.to_string(), answered(answer)))
        .collect();
    let refusals = route.refusals();
    for status in refusals.iter().map(|code| code.status()) {
        responses
            .entry(status.as_u16().to_string())
            .or_insert_with(|| refused(status, &refusals));
    }
    Value::Object(responses)
}

fn worker_header() -> Value {
    json!({ "okdb-worker": { "$ref": "#/components/headers/okdb-worker" } })
}

fn answered(answer: &Answer) -> Value {
    let content = match answer.content {
        Content::Nothing => None,
        Content::Json(name) => Some(("application/json", schemas::reference(name))),
        Content::AnyJson => Some(("application/json", json!({ "type": "object" }))),
        Content::Lines(name) => Some(("application/x-ndjson", schemas::reference(name))),
        Content::Html => Some(("text/html", json!({ "type": "string" }))),
        Content::Text => Some(("text/plain", json!({ "type": "string" }))),
    };
    let mut response = json!({ "description": answer.what, "headers": worker_header() });
    if let Some((media, schema)) = content
        && let Some(members) = response.as_object_mut()
    {
        members.insert("content".into(), json!({ media: { "schema": schema } }));
    }
    response
}

fn refused(status: StatusCode, codes: &[Code]) -> Value {
    let codes: Vec<_> = codes
        .iter()
        .filter(|code| code.status() == status)
        .map(|code| code.text())
        .collect();
    json!({
        "description": codes.join(", "),
        "headers": worker_header(),
        "content": { "application/json": { "schema": schemas::reference("Error") } },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

    use std::collections::HashSet;

    use super::*;

    fn references(value: &Value, found: &mut HashSet<String>) {
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    match member
                        .as_str()
                        .and_then(|text| text.strip_prefix("#/components/schemas/"))
                    {
                        Some(component) if name == "$ref" => {
                            found.insert(component.to_owned());
                        }
                        _ => references(member, found),
                    }
                }
            }
            Value::Array(elements) => elements
                .iter()
                .for_each(|element| references(element, found)),
            _ => {}
        }
    }

    #[test]
    fn every_route_and_code_is_described() {
        let document = document("0.0.0");
        let mut ids = HashSet::new();
        for route in table::routes() {
            let described = &document["paths"][route.path][route.verb.name().to_lowercase()];
            assert_eq!(described["summary"], route.summary, "{}", route.path);
            assert!(ids.insert(described["operationId"].as_str().unwrap().to_owned()));
            let responses = described["responses"].as_object().unwrap();
            for code in route.refusals() {
                assert!(
                    responses.contains_key(code.status().as_str()),
                    "{} {}",
                    route.path,
                    code.text()
                );
            }
        }
        let operations: usize = document["paths"]
            .as_object()
            .unwrap()
            .values()
            .map(|path| path.as_object().unwrap().len())
            .sum();
        assert_eq!(operations, table::routes().count());
    }

    #[test]
    fn components_are_all_there_and_all_used() {
        let document = document("0.0.0");
        let mut used = HashSet::new();
        references(&document, &mut used);
        let names: HashSet<_> = schemas::all()
            .into_iter()
            .map(|(name, _)| name.to_owned())
            .collect();
        assert_eq!(
            names.len(),
            schemas::all().len(),
            "a component stands twice"
        );
        assert_eq!(used, names);
    }
}
