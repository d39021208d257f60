//! Where a record holds references: member names, and "every element".

use std::{borrow::Cow, fmt, str::FromStr};

use okdb_query::{JsonError, Value};
use thiserror::Error;

use crate::error::push_part;

/// A way into a record. Its text is a JSON pointer in which `*` stands for every element of an array, and a `*` within
/// a member's name is spelled `~2`: `/lines/*/article`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefPath(Vec<Step>);

/// A part of a [`RefPath`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// The member of an object that has this name.
    Member(String),
    /// Every element of an array.
    Items,
}

/// The text is not that of a [`RefPath`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not the path of a reference")]
pub struct RefPathError;

impl RefPath {
    pub(crate) fn new(steps: Vec<Step>) -> Self {
        Self(steps)
    }

    /// The parts, outermost first.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Reads what the `Display` of a path writes.
    ///
    /// # Errors
    /// When it is something else.
    pub fn parse(text: &str) -> Result<Self, RefPathError> {
        if text.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let text = text.strip_prefix('/').ok_or(RefPathError)?;
        text.split('/')
            .map(parse_step)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The strings that `record` holds here, each with its JSON pointer. Anything else here, or nothing,
    /// is no reference.
    #[must_use]
    pub fn values<'d>(&self, record: &'d Value<'_>) -> Vec<(String, Cow<'d, str>)> {
        let mut found = Vec::new();
        collect(record, &self.0, &mut String::new(), &mut found);
        found
    }

    /// The text of a record in which every reference here to `target` has become null. Numbers keep their digits, and
    /// members their order.
    ///
    /// # Errors
    /// When `text` is no JSON.
    pub fn set_null(&self, text: &str, target: &str) -> Result<String, JsonError> {
        let mut record = Value::parse(text)?;
        clear(&mut record, &self.0, target);
        Ok(record.to_json())
    }
}

impl fmt::Display for RefPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.0 {
            match step {
                Step::Items => f.write_str("/*")?,
                Step::Member(name) => {
                    let mut part = String::new();
                    push_part(&mut part, name);
                    f.write_str(&part.replace('*', "~2"))?;
                }
            }
        }
        Ok(())
    }
}

impl FromStr for RefPath {
    type Err = RefPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

fn parse_step(part: &str) -> Result<Step, RefPathError> {
    if part == "*" {
        return Ok(Step::Items);
    }
    let mut name = String::with_capacity(part.len());
    let mut chars = part.chars();
    while let Some(char) = chars.next() {
        name.push(match char {
            '*' => return Err(RefPathError),
            '~' => match chars.next() {
                Some('0') => '~',
                Some('1') => '/',
                Some('2') => '*',
                _ => return Err(RefPathError),
            },
            char => char,
        });
    }
    Ok(Step::Member(name))
}

/// Recurses once for each step.
fn collect<'d>(
    value: &'d Value<'_>,
    steps: &[Step],
    pointer: &mut String,
    found: &mut Vec<(String, Cow<'d, str>)>,
) {
    let length = pointer.len();
    match (steps.split_first(), value) {
        (None, Value::String(text)) => found.push((pointer.clone(), Cow::Borrowed(text))),
        (Some((Step::Member(name), rest)), Value::Object(_)) => {
            if let Some(member) = value.get(name) {
                push_part(pointer, name);
                collect(member, rest, pointer, found);
            }
        }
        (Some((Step::Items, rest)), Value::Array(elements)) => {
            for (index, element) in elements.iter().enumerate() {
                push_part(pointer, &index.to_string());
                collect(element, rest, pointer, found);
                pointer.truncate(length);
            }
        }
        _ => {}
    }
    pointer.truncate(length);
}

fn clear(value: &mut Value<'_>, steps: &[Step], target: &str) {
    match (steps.split_first(), value) {
        (None, value) if value.as_str() == Some(target) => *value = Value::Null,
        (Some((Step::Member(name), rest)), Value::Object(members)) => {
            if let Some((_, member)) = members.iter_mut().find(|(other, _)| other == name) {
                clear(member, rest, target);
            }
        }
        (Some((Step::Items, rest)), Value::Array(elements)) => {
            for element in elements {
                clear(element, rest, target);
            }
        }
        _ => {}
    }
}
