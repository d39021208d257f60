//! JSON patch, RFC 6902, with JSON pointers, RFC 6901.

use std::{borrow::Cow, fmt};

use super::{Patch, PatchError, Work, check_depth, edit::position_of, measure};
use crate::{json::Value, path::position};

type Result<T> = std::result::Result<T, PatchError>;

/// One operation.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Add {
        path: Pointer,
        value: Value<'static>,
    },
    Remove {
        path: Pointer,
    },
    Replace {
        path: Pointer,
        value: Value<'static>,
    },
    Move {
        from: Pointer,
        path: Pointer,
    },
    Copy {
        from: Pointer,
        path: Pointer,
    },
    Test {
        path: Pointer,
        value: Value<'static>,
    },
}

/// A JSON pointer: as written, and its parts with the escapes resolved.
#[derive(Clone, Debug)]
pub(super) struct Pointer {
    text: String,
    parts: Vec<String>,
}

pub(super) fn parse(value: &Value<'_>) -> Result<Vec<Operation>> {
    let operations = value
        .as_array()
        .ok_or_else(|| PatchError::invalid("a JSON patch must be an array"))?;
    if operations.len() > Patch::CHANGES_MAX {
        let message = format!("more than {} operations", Patch::CHANGES_MAX);
        return Err(PatchError::invalid(message));
    }
    operations
        .iter()
        .enumerate()
        .map(|(index, operation)| {
            Operation::parse(operation).map_err(|error| error.within(Nth(index)))
        })
        .collect()
}

pub(super) fn apply(operations: &[Operation], doc: &mut Value<'_>, work: &mut Work) -> Result<()> {
    for (index, operation) in operations.iter().enumerate() {
        operation
            .apply(doc, work)
            .map_err(|error| error.within(operation).within(Nth(index)))?;
    }
    Ok(())
}

/// An operation's place in the patch, for messages.
struct Nth(usize);

impl fmt::Display for Nth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {}", self.0)
    }
}

impl Operation {
    fn parse(operation: &Value<'_>) -> Result<Self> {
        let text = |name: &str| {
            operation
                .get(name)
                .and_then(Value::as_str)
                .ok_or_else(|| PatchError::invalid(format!("needs a string {name:?}")))
        };
        let value = || {
            operation
                .get("value")
                .map(|value| value.clone().into_owned())
                .ok_or_else(|| PatchError::invalid("needs \"value\""))
        };
        let name = text("op")?;
        let path = Pointer::parse(text("path")?)?;
        match name {
            "add" => value().map(|value| Self::Add { path, value }),
            "replace" => value().map(|value| Self::Replace { path, value }),
            "test" => value().map(|value| Self::Test { path, value }),
            "remove" => Ok(Self::Remove { path }),
            "move" | "copy" => {
                let from = Pointer::parse(text("from")?)?;
                if name == "copy" {
                    return Ok(Self::Copy { from, path });
                }
                if path.parts.len() > from.parts.len() && path.parts.starts_with(&from.parts) {
                    return Err(PatchError::invalid("a value cannot move into itself"));
                }
                Ok(Self::Move { from, path })
            }
            _ => Err(PatchError::invalid(format!(
                "{name:?} is no operation of JSON patch"
            ))),
        }
    }

    fn apply(&self, doc: &mut Value<'_>, work: &mut Work) -> Result<()> {
        match self {
            Self::Add { path, value } => add(doc, path, value.clone(), work),
            Self::Remove { path } => remove(doc, path, work).map(drop),
            Self::Replace { path, value } => {
                check_depth(path.parts.len() + measure(value).depth)?;
                *find(doc, &path.parts, work)? = value.clone();
                Ok(())
            }
            Self::Move { from, path } if from.parts == path.parts => {
                find(doc, &from.parts, work).map(drop)
            }
            Self::Move { from, path } => {
                let value = remove(doc, from, work)?;
                work.spend(measure(&value).nodes)?;
                add(doc, path, value, work)
            }
            Self::Copy { from, path } => {
                let value = find(doc, &from.parts, work)?;
                work.copy(measure(value))?;
                let value = value.clone();
                add(doc, path, value, work)
            }
            Self::Test { path, value } => {
                let found = find(doc, &path.parts, work)?;
                work.spend(measure(found).nodes)?;
                if found == value {
                    Ok(())
                } else {
                    Err(PatchError::invalid("the value there is another"))
                }
            }
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, path) = match self {
            Self::Add { path, .. } => ("add", path),
            Self::Remove { path } => ("remove", path),
            Self::Replace { path, .. } => ("replace", path),
            Self::Move { path, .. } => ("move", path),
            Self::Copy { path, .. } => ("copy", path),
            Self::Test { path, .. } => ("test", path),
        };
        write!(f, "{name} {:?}", path.text)
    }
}

impl Pointer {
    fn parse(text: &str) -> Result<Self> {
        let malformed = || PatchError::invalid(format!("{text:?} is no JSON pointer"));
        let mut parts = Vec::new();
        let mut rest = text.split('/');
        if rest.next() != Some("") {
            return Err(malformed());
        }
        for part in rest {
            // A tilde is only ever the first half of ~0 or ~1.
            let mut after_tildes = part.split('~');
            let mut decoded = after_tildes.next().unwrap_or_default().to_owned();
            for piece in after_tildes {
                let (letter, tail) = match piece.as_bytes().first() {
                    Some(b'0') => ('~', &piece[1..]),
                    Some(b'1') => ('/', &piece[1..]),
                    _ => return Err(malformed()),
                };
                decoded.push(letter);
                decoded.push_str(tail);
            }
            parts.push(decoded);
        }
        Ok(Self {
            text: text.to_owned(),
            parts,
        })
    }

    /// The parts of the container's pointer, and the name or position in it; nothing for the whole record.
    fn split_last(&self) -> Option<(&[String], &str)> {
        let (last, way) = self.parts.split_last()?;
        Some((way, last))
    }
}

fn find<'d, 'v>(
    doc: &'d mut Value<'v>,
    parts: &[String],
    work: &mut Work,
) -> Result<&'d mut Value<'v>> {
    let mut node = doc;
    for part in parts {
        node = match node {
            Value::Object(members) => {
                work.spend(members.len())?;
                let at = position_of(members, part);
                at.map(|at| &mut members[at].1)
            }
            Value::Array(elements) => position(part).and_then(|at| elements.get_mut(at)),
            _ => None,
        }
        .ok_or_else(missing)?;
    }
    Ok(node)
}

fn missing() -> PatchError {
    PatchError::invalid("there is no such value")
}

fn add<'v>(
    doc: &mut Value<'v>,
    pointer: &Pointer,
    value: Value<'v>,
    work: &mut Work,
) -> Result<()> {
    // Checked before it is put there: else values could be copied into one another ever deeper.
    check_depth(pointer.parts.len() + measure(&value).depth)?;
    let Some((way, last)) = pointer.split_last() else {
        *doc = value;
        return Ok(());
    };
    match find(doc, way, work)? {
        Value::Object(members) => {
            work.spend(members.len())?;
            match position_of(members, last) {
                Some(at) => members[at].1 = value,
                None => members.push((Cow::Owned(last.to_owned()), value)),
            }
            Ok(())
        }
        Value::Array(elements) if last == "-" => {
            elements.push(value);
            Ok(())
        }
        Value::Array(elements) => {
            let length = elements.len();
            let at = position(last).filter(|at| *at <= length).ok_or_else(|| {
                PatchError::invalid(format!("no position in an array of {length} elements"))
            })?;
            work.spend(length - at)?;
            elements.insert(at, value);
            Ok(())
        }
        scalar => {
            let message = format!("cannot be reached through {}", scalar.kind());
            Err(PatchError::invalid(message))
        }
    }
}

fn remove<'v>(doc: &mut Value<'v>, pointer: &Pointer, work: &mut Work) -> Result<Value<'v>> {
    let Some((way, last)) = pointer.split_last() else {
        return Err(PatchError::invalid(
            "a patch cannot remove the whole record",
        ));
    };
    match find(doc, way, work)? {
        Value::Object(members) => {
            work.spend(members.len())?;
            let at = position_of(members, last).ok_or_else(missing)?;
            Ok(members.remove(at).1)
        }
        Value::Array(elements) => {
            let at = position(last).filter(|at| *at < elements.len());
            let at = at.ok_or_else(missing)?;
            work.spend(elements.len() - at)?;
            Ok(elements.remove(at))
        }
        _ => Err(missing()),
    }
}
