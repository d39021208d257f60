//! Projections: only some paths of a record.
//!
//! Members keep the record's order. A path goes through arrays into every element; elements that it
//! cannot enter are left out, as are scalars where a path should go on. Numeric parts are member names
//! here, never positions: a projection keeps the shape of a record.

use thiserror::Error;

use crate::{
    json::{Value, write_string},
    path::{Path, PathError},
};

/// A projection.
#[derive(Clone, Debug, Default)]
pub struct Select {
    root: Node,
}

/// What is selected below a place: everything, or the named members. Members are sorted by name.
#[derive(Clone, Debug, Default)]
struct Node {
    whole: bool,
    members: Vec<(Box<str>, Node)>,
}

/// Why a projection was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectError {
    /// Not an array of strings.
    #[error("a selection is an array of paths")]
    Form,
    /// A path that cannot be one.
    #[error("{0:?}: {1}")]
    Path(String, PathError),
    /// More than [`Select::PATHS_MAX`] paths.
    #[error("a selection has at most {} paths", Select::PATHS_MAX)]
    TooMany,
}

impl Select {
    /// The most paths of a projection.
    pub const PATHS_MAX: usize = 1_000;

    /// Reads an array of dotted paths.
    ///
    /// # Errors
    /// When the value is anything else.
    pub fn parse(value: &Value<'_>) -> Result<Self, SelectError> {
        let texts = value.as_array().ok_or(SelectError::Form)?;
        if texts.len() > Self::PATHS_MAX {
            return Err(SelectError::TooMany);
        }
        let mut select = Self::default();
        for text in texts {
            let text = text.as_str().ok_or(SelectError::Form)?;
            let path =
                Path::parse(text).map_err(|error| SelectError::Path(text.to_owned(), error))?;
            select.root.add(&path);
        }
        Ok(select)
    }

    /// The record as compact JSON with nothing but the selected paths; `{}` if it is a scalar.
    #[must_use]
    pub fn apply(&self, doc: &Value<'_>) -> String {
        let mut out = String::new();
        if is_container(doc) {
            write(&self.root, doc, &mut out);
        } else {
            out.push_str("{}");
        }
        out
    }
}

impl Node {
    fn add(&mut self, path: &Path) {
        let mut node = self;
        for name in path.segments() {
            let at = match node
                .members
                .binary_search_by(|(other, _)| (**other).cmp(name))
            {
                Ok(at) => at,
                Err(at) => {
                    node.members.insert(at, (name.into(), Self::default()));
                    at
                }
            };
            node = &mut node.members[at].1;
        }
        node.whole = true;
    }

    fn member(&self, name: &str) -> Option<&Self> {
        let found = self
            .members
            .binary_search_by(|(other, _)| (**other).cmp(name));
        found.ok().map(|at| &self.members[at].1)
    }

    /// Whether anything of `value`, which this node stands for, is selected.
    fn enters(&self, value: &Value<'_>) -> bool {
        self.whole || is_container(value)
    }
}

fn is_container(value: &Value<'_>) -> bool {
    matches!(value, Value::Array(_) | Value::Object(_))
}

/// Recurses as deep as the record nests.
fn write(node: &Node, value: &Value<'_>, out: &mut String) {
    match value {
        _ if node.whole => value.write(out),
        Value::Object(members) => {
            out.push('{');
            let mut first = true;
            for (name, value) in members {
                if let Some(node) = node.member(name).filter(|node| node.enters(value)) {
                    separate(&mut first, out);
                    write_string(name, out);
                    out.push(':');
                    write(node, value, out);
                }
            }
            out.push('}');
        }
        Value::Array(elements) => {
            out.push('[');
            let mut first = true;
            for element in elements.iter().filter(|element| is_container(element)) {
                separate(&mut first, out);
                write(node, element, out);
            }
            out.push(']');
        }
        // Scalars are only reached as a whole: `enters` keeps them out otherwise.
        _ => {}
    }
}

fn separate(first: &mut bool, out: &mut String) {
    if !std::mem::take(first) {
        out.push(',');
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::testing::{nested, parse};

    fn select(paths: &str, doc: &str) -> String {
        Select::parse(&parse(paths)).unwrap().apply(&parse(doc))
    }

    #[test]
    fn only_the_selected_paths_remain() {
        let doc = r#"{"c":1.0,"a":{"y":[1],"x":2,"z":{}},"b":[{"x":1,"y":2},3,[{"x":4}],{"y":5}]}"#;
        for (paths, expected) in [
            (r#"["a","c"]"#, r#"{"c":1.0,"a":{"y":[1],"x":2,"z":{}}}"#),
            (r#"["a.x","a.y","nothing"]"#, r#"{"a":{"y":[1],"x":2}}"#),
            (r#"["a","a.x"]"#, r#"{"a":{"y":[1],"x":2,"z":{}}}"#),
            (r#"["a.x","a"]"#, r#"{"a":{"y":[1],"x":2,"z":{}}}"#),
            (r#"["b.x"]"#, r#"{"b":[{"x":1},[{"x":4}],{}]}"#),
            (r#"["c.d"]"#, "{}"),
            (r#"["a.z.q"]"#, r#"{"a":{"z":{}}}"#),
            (r#"["b.0"]"#, r#"{"b":[{},[{}],{}]}"#),
            ("[]", "{}"),
        ] {
            assert_eq!(select(paths, doc), expected, "{paths}");
        }
    }

    #[test]
    fn records_need_not_be_objects() {
        assert_eq!(select(r#"["a"]"#, r#"[{"a":1,"b":2},7]"#), r#"[{"a":1}]"#);
        assert_eq!(select(r#"["a"]"#, "7"), "{}");
        assert_eq!(select(r#"["a"]"#, &nested(128, true)), nested(128, true));
    }

    #[test]
    fn mistakes_are_refused() {
        let refused = |text: &str| Select::parse(&parse(text)).unwrap_err();
        for text in ["{}", "\"a\"", "[1]", r#"["a",null]"#] {
            assert_eq!(refused(text), SelectError::Form, "{text}");
        }
        assert!(matches!(refused(r#"["a."]"#), SelectError::Path(..)));
        let many = vec!["\"a\""; Select::PATHS_MAX + 1].join(",");
        assert_eq!(refused(&format!("[{many}]")), SelectError::TooMany);
    }
}
