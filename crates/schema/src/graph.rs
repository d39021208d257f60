//! The subschemas of a schema, and which of them is applied by which.
//!
//! Everything that is decided about a schema before it is used, what its annotations mean and what a check may cost, is
//! decided on this graph. It must therefore be complete: a `$ref` that does not lead to a place in the same document is
//! refused, and so is what would change where `$ref`s lead (`$id` below the root).

use std::collections::{HashMap, hash_map::Entry};

use okdb_query::Value;

use crate::{
    SchemaError,
    error::{parts, push_part},
};

/// The only dialect.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// How a subschema comes into play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Apply {
    /// `properties/NAME`: to the member of that name.
    Property,
    /// `items` without `prefixItems`: to every element.
    Items,
    /// `allOf`, or `$ref`: always, to the value itself.
    Always,
    /// To the value itself, but not always, or only as a question: `anyOf`, `not`, `if` and so on.
    Sometimes,
    /// To some of the members or elements.
    Inside,
    /// By nothing, until a `$ref` leads here: `$defs`.
    Never,
}

impl Apply {
    /// Whether it is the value itself that the subschema is applied to.
    pub(crate) fn in_place(self) -> bool {
        matches!(self, Self::Always | Self::Sometimes)
    }
}

pub(crate) struct Edge<'s> {
    pub(crate) apply: Apply,
    /// The member's name, for [`Apply::Property`].
    pub(crate) name: &'s str,
    pub(crate) to: usize,
}

pub(crate) struct Node<'s> {
    /// Where it stands in the document.
    pub(crate) pointer: String,
    pub(crate) schema: &'s Value<'s>,
    pub(crate) edges: Vec<Edge<'s>>,
}

/// Node 0 is the root.
pub(crate) struct Graph<'s> {
    pub(crate) nodes: Vec<Node<'s>>,
}

impl<'s> Graph<'s> {
    pub(crate) fn of(root: &'s Value<'s>) -> Result<Self, SchemaError> {
        let mut builder = Builder {
            root,
            nodes: Vec::new(),
            known: HashMap::new(),
            anchors: HashMap::new(),
            anchored: Vec::new(),
        };
        builder.node(String::new(), root);
        let mut next = 0;
        // Ends: a node is a place in the document.
        while next < builder.nodes.len() {
            builder.visit(next)?;
            next += 1;
        }
        builder.anchored()?;
        Ok(Self {
            nodes: builder.nodes,
        })
    }
}

struct Builder<'s> {
    root: &'s Value<'s>,
    nodes: Vec<Node<'s>>,
    known: HashMap<String, usize>,
    anchors: HashMap<&'s str, usize>,
    /// References by anchor, to be followed when all anchors are known: from, keyword, anchor.
    anchored: Vec<(usize, &'s str, &'s str)>,
}

impl<'s> Builder<'s> {
    fn node(&mut self, pointer: String, schema: &'s Value<'s>) -> usize {
        match self.known.entry(pointer) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                let pointer = entry.key().clone();
                entry.insert(self.nodes.len());
                self.nodes.push(Node {
                    pointer,
                    schema,
                    edges: Vec::new(),
                });
                self.nodes.len() - 1
            }
        }
    }

    /// Adds what the subschema applies. The meta-schema is checked elsewhere: what has a wrong shape is passed over.
    fn visit(&mut self, from: usize) -> Result<(), SchemaError> {
        let schema = self.nodes[from].schema;
        self.identity(from, schema)?;
        let elements_apart = schema.get("prefixItems").is_some();
        for (keyword, value) in schema.as_object().into_iter().flatten() {
            match keyword.as_ref() {
                "properties" => self.members(from, keyword, value, Apply::Property),
                "items" if elements_apart => self.single(from, keyword, value, Apply::Inside),
                "items" => self.single(from, keyword, value, Apply::Items),
                "allOf" => self.elements(from, keyword, value, Apply::Always),
                "anyOf" | "oneOf" => self.elements(from, keyword, value, Apply::Sometimes),
                "not" | "if" | "then" | "else" => {
                    self.single(from, keyword, value, Apply::Sometimes);
                }
                // `dependencies` is of older dialects, but the checker still honours it.
                "dependentSchemas" | "dependencies" => {
                    self.members(from, keyword, value, Apply::Sometimes);
                }
                "patternProperties" => self.members(from, keyword, value, Apply::Inside),
                "prefixItems" => self.elements(from, keyword, value, Apply::Inside),
                "additionalItems"
                | "additionalProperties"
                | "contains"
                | "propertyNames"
                | "unevaluatedItems"
                | "unevaluatedProperties" => self.single(from, keyword, value, Apply::Inside),
                "$defs" | "definitions" => self.members(from, keyword, value, Apply::Never),
                "contentSchema" => self.single(from, keyword, value, Apply::Never),
                "$ref" | "$dynamicRef" => self.reference(from, keyword, value)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Notes the anchors of a subschema, and refuses other dialects and documents within the document.
    fn identity(&mut self, at: usize, schema: &'s Value<'s>) -> Result<(), SchemaError> {
        let pointer = &self.nodes[at].pointer;
        if let Some(dialect) = schema.get("$schema") {
            let dialect = dialect.as_str().unwrap_or_default();
            if dialect.strip_suffix('#').unwrap_or(dialect) != DIALECT {
                let message = format!("`$schema` may only be {DIALECT}");
                return Err(SchemaError::new(&format!("{pointer}/$schema"), message));
            }
        }
        if at != 0 && schema.get("$id").is_some() {
            let message = "`$id` may stand at the root only: a schema is one document";
            return Err(SchemaError::new(&format!("{pointer}/$id"), message));
        }
        for keyword in ["$anchor", "$dynamicAnchor"] {
            if let Some(name) = schema.get(keyword).and_then(Value::as_str)
                && self
                    .anchors
                    .insert(name, at)
                    .is_some_and(|other| other != at)
            {
                let message = format!("the anchor {name:?} stands twice");
                return Err(SchemaError::new(&format!("{pointer}/{keyword}"), message));
            }
        }
        Ok(())
    }

    fn single(&mut self, from: usize, keyword: &str, schema: &'s Value<'s>, apply: Apply) {
        let mut pointer = self.nodes[from].pointer.clone();
        push_part(&mut pointer, keyword);
        self.edge(from, "", pointer, schema, apply);
    }

    fn elements(&mut self, from: usize, keyword: &str, schemas: &'s Value<'s>, apply: Apply) {
        for (index, schema) in schemas.as_array().into_iter().flatten().enumerate() {
            let pointer = format!("{}/{keyword}/{index}", self.nodes[from].pointer);
            self.edge(from, "", pointer, schema, apply);
        }
    }

    fn members(&mut self, from: usize, keyword: &str, schemas: &'s Value<'s>, apply: Apply) {
        for (name, schema) in schemas.as_object().into_iter().flatten() {
            let mut pointer = format!("{}/{keyword}", self.nodes[from].pointer);
            push_part(&mut pointer, name);
            self.edge(from, name, pointer, schema, apply);
        }
    }

    fn edge(
        &mut self,
        from: usize,
        name: &'s str,
        pointer: String,
        schema: &'s Value<'s>,
        apply: Apply,
    ) {
        // `true` and `false` hold nothing, and cost nothing.
        if schema.as_object().is_some() {
            let to = self.node(pointer, schema);
            self.nodes[from].edges.push(Edge { apply, name, to });
        }
    }

    fn reference(
        &mut self,
        from: usize,
        keyword: &'s str,
        value: &'s Value<'s>,
    ) -> Result<(), SchemaError> {
        let Some(text) = value.as_str() else {
            return Ok(());
        };
        let wrong = |node: &Node<'_>, message: String| {
            Err(SchemaError::new(
                &format!("{}/{keyword}", node.pointer),
                message,
            ))
        };
        let Some(fragment) = text.strip_prefix('#') else {
            let message =
                format!("{text:?} leads out of the document: a `{keyword}` starts with #");
            return wrong(&self.nodes[from], message);
        };
        if !fragment.is_empty() && !fragment.starts_with('/') {
            self.anchored.push((from, keyword, fragment));
            return Ok(());
        }
        let Some((pointer, schema)) = percent_decode(fragment)
            .filter(|pointer| pointer.split('/').count() <= okdb_query::DEPTH_MAX + 1)
            .and_then(|pointer| Some((resolve(self.root, &pointer)?, pointer)))
            .map(|(schema, pointer)| (canonical(&pointer), schema))
        else {
            return wrong(&self.nodes[from], format!("{text:?} leads nowhere"));
        };
        self.edge(from, "", pointer, schema, Apply::Always);
        Ok(())
    }

    fn anchored(&mut self) -> Result<(), SchemaError> {
        for (from, keyword, anchor) in std::mem::take(&mut self.anchored) {
            let Some(to) = self.anchors.get(anchor).copied() else {
                let pointer = format!("{}/{keyword}", self.nodes[from].pointer);
                let message = format!("there is no anchor {anchor:?} in a place that is a schema");
                return Err(SchemaError::new(&pointer, message));
            };
            let apply = Apply::Always;
            self.nodes[from].edges.push(Edge {
                apply,
                name: "",
                to,
            });
        }
        Ok(())
    }
}

fn resolve<'s>(root: &'s Value<'s>, pointer: &str) -> Option<&'s Value<'s>> {
    parts(pointer).try_fold(root, |value, part| match value {
        Value::Object(_) => value.get(&part),
        Value::Array(elements) => elements.get(position(&part)?),
        _ => None,
    })
}

/// The position that a part of a pointer spells; there is one spelling for each.
fn position(part: &str) -> Option<usize> {
    let position: usize = part.parse().ok()?;
    (position.to_string() == part).then_some(position)
}

/// The one spelling of a pointer, so that a place is one node however it was written.
fn canonical(pointer: &str) -> String {
    let mut out = String::new();
    for part in parts(pointer) {
        push_part(&mut out, &part);
    }
    out
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let mut nibble = || char::from(rest.next()?).to_digit(16);
            u8::try_from(nibble()? * 16 + nibble()?).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).ok()
}
