//! A schema that is ready for use.

use std::fmt::Write as _;

use jsonschema::{
    Draft, PatternOptions, Validator,
    json::{Json as Representation, SerdeJson},
};
use okdb_query::Value;
use serde_json::{Value as Json, json};

use crate::{
    Failure, OnDelete, Reference, SchemaError,
    convert::to_json,
    cost::Cost,
    graph::Graph,
    record::{Item, Records, Steps, is_true},
    references::{applied_at, find},
};

/// The most patterns of a schema, `pattern` and the names of `patternProperties` together.
const PATTERNS_MAX: usize = 256;
/// The most memory for one compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 256 * 1024;
/// The longest `multipleOf`, in characters.
const MULTIPLE_CHARS_MAX: usize = 100;

const TOO_DEEP: &str = "nested too deep to be checked with this schema";
const TOO_MUCH: &str = "takes too much work to be checked with this schema";

const TOO_MANY: &str = "does not fit, in more places than are looked at";

/// A compiled schema. Cheap to share, and thread-safe.
#[derive(Debug)]
pub struct Schema {
    validator: Validator<Records>,
    references: Vec<Reference>,
    cost: Cost,
}

impl Schema {
    /// The longest schema, in bytes of text.
    pub const BYTES_MAX: usize = 256 * 1024;

    /// Compiles the text of a schema: an object, `true` or `false`.
    ///
    /// # Errors
    /// When it is no schema of the dialect 2020-12, reaches outside itself, passes a bound, or holds a `ref` that
    /// cannot be honoured. The message says which.
    pub fn compile(text: &str) -> Result<Self, SchemaError> {
        let root = |message: String| SchemaError::new("", message);
        if text.len() > Self::BYTES_MAX {
            return Err(root(format!(
                "a schema has at most {} bytes",
                Self::BYTES_MAX
            )));
        }
        let schema = Value::parse(text).map_err(|error| root(error.to_string()))?;
        if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
            return Err(root("a schema is an object, true or false".to_owned()));
        }
        let graph = Graph::of(&schema)?;
        check_operands(&graph)?;
        let cost = Cost::of(&graph)?;
        let references = find(&graph)?;
        let document = document(&schema);
        let validator = build(&document)?;
        check_set_null(&graph, &references, document)?;
        Ok(Self {
            validator,
            references,
            cost,
        })
    }

    /// Where the text of a record does not fit: at most `max` places, but one at least if there is any. Nothing means
    /// that it fits.
    #[must_use]
    pub fn check(&self, text: &str, max: usize) -> Vec<Failure> {
        let value = match Value::parse(text) {
            Ok(value) => value,
            Err(error) => return vec![Failure::new("", error)],
        };
        if !self.cost.bears(depth(&value)) {
            return vec![Failure::new("", TOO_DEEP)];
        }
        let steps = Steps::for_text(text);
        let item = Item::new(&value, &steps);
        let fits = self.validator.is_valid(item);
        if fits && !steps.used_up() {
            return Vec::new();
        }
        let unknown = if steps.used_up() { TOO_MUCH } else { TOO_MANY };
        // Finding all failures takes longer than finding that there is one, so it starts anew.
        let steps = Steps::for_text(text);
        let errors = self.validator.iter_errors(Item::new(&value, &steps));
        let failures: Vec<Failure> = errors
            .filter(is_true)
            .take(max.max(1))
            .map(|error| Failure::new(error.instance_path().as_str(), error.masked()))
            .collect();
        if failures.is_empty() {
            return vec![Failure::new("", unknown)];
        }
        failures
    }

    /// Whether the text of a record fits. Faster than [`Schema::check`] if it does not.
    #[must_use]
    pub fn fits(&self, text: &str) -> bool {
        let Ok(value) = Value::parse(text) else {
            return false;
        };
        let steps = Steps::for_text(text);
        self.cost.bears(depth(&value))
            && self.validator.is_valid(Item::new(&value, &steps))
            && !steps.used_up()
    }

    /// The references that records hold under this schema, ordered by path.
    #[must_use]
    pub fn references(&self) -> &[Reference] {
        &self.references
    }
}

/// How many arrays and objects are open at most within each other.
fn depth(value: &Value<'_>) -> usize {
    let inner = match value {
        Value::Array(elements) => elements.iter().map(depth).max(),
        Value::Object(members) => members.iter().map(|(_, member)| depth(member)).max(),
        _ => return 0,
    };
    inner.unwrap_or(0) + 1
}

/// The schema as the checker takes it. What identifies the document is left out: nothing may refer to it, and the
/// dialect is known.
fn document(schema: &Value<'_>) -> Json {
    let mut document = to_json(schema);
    if let Json::Object(members) = &mut document {
        members.remove("$id");
        members.remove("$schema");
    }
    document
}

fn build<F: Representation>(document: &Json) -> Result<Validator<F>, SchemaError> {
    jsonschema::options_for::<F>()
        .with_draft(Draft::Draft202012)
        .with_pattern_options(
            PatternOptions::regex()
                .size_limit(PATTERN_BYTES_MAX)
                .dfa_size_limit(PATTERN_BYTES_MAX),
        )
        .offline()
        .build(document)
        .map_err(|error| SchemaError::new(error.instance_path().as_str(), error.masked()))
}

/// Refuses what the checker would take, and compute with for too long or imprecisely.
fn check_operands(graph: &Graph<'_>) -> Result<(), SchemaError> {
    let mut patterns = 0;
    for node in &graph.nodes {
        patterns += usize::from(node.schema.get("pattern").is_some());
        let by_pattern = node
            .schema
            .get("patternProperties")
            .and_then(Value::as_object);
        patterns += by_pattern.map_or(0, <[_]>::len);
        if patterns > PATTERNS_MAX {
            let message = format!("a schema has at most {PATTERNS_MAX} patterns");
            return Err(SchemaError::new(&node.pointer, message));
        }
        if let Some(number) = node.schema.get("multipleOf").and_then(Value::as_number) {
            let double = number.as_str().parse::<f64>().unwrap_or(0.0);
            if !double.is_normal() || number.as_str().len() > MULTIPLE_CHARS_MAX {
                let pointer = format!("{}/multipleOf", node.pointer);
                let message = format!(
                    "`multipleOf` is a number of at most {MULTIPLE_CHARS_MAX} characters, larger than 0 and within \
                     the range of doubles"
                );
                return Err(SchemaError::new(&pointer, message));
            }
        }
    }
    Ok(())
}

/// Refuses `set_null` where null does not fit: the deletion that has to write it could not.
fn check_set_null(
    graph: &Graph<'_>,
    references: &[Reference],
    mut document: Json,
) -> Result<(), SchemaError> {
    let places: Vec<(usize, &Reference)> = references
        .iter()
        .filter(|reference| reference.on_delete == OnDelete::SetNull)
        .flat_map(|reference| {
            let nodes = applied_at(graph, &reference.path);
            nodes.into_iter().map(move |node| (node, reference))
        })
        .collect();
    let Json::Object(members) = &mut document else {
        return Ok(());
    };
    if places.is_empty() {
        return Ok(());
    }
    // The schema becomes a document within another one, which asks each place about a null.
    members.insert("$id".to_owned(), json!("okdb:schema"));
    let asks: Vec<Json> = places
        .iter()
        .map(|(node, _)| json!({"$ref": format!("okdb:schema#{}", fragment(&graph.nodes[*node].pointer))}))
        .collect();
    let nulls = Json::Array(vec![Json::Null; asks.len()]);
    let probe = build::<SerdeJson>(
        &json!({"$id": "okdb:probe", "prefixItems": asks, "$defs": {"schema": document}}),
    )?;
    let Some(error) = probe.iter_errors(&nulls).next() else {
        return Ok(());
    };
    let index = error
        .instance_path()
        .as_str()
        .trim_start_matches('/')
        .parse::<usize>();
    let (node, reference) = places[index.unwrap_or(0).min(places.len() - 1)];
    let message = format!(
        "set_null at {} needs a schema that allows null",
        reference.path
    );
    Err(SchemaError::new(&graph.nodes[node].pointer, message))
}

/// A pointer as the fragment of a URI.
fn fragment(pointer: &str) -> String {
    let mut out = String::new();
    for byte in pointer.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
