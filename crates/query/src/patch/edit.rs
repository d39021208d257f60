//! Finds and makes the places in a record that a patch document changes.

use std::borrow::Cow;

use super::{PatchError, Work};
use crate::{
    json::Value,
    path::{Path, Segment},
};

/// The value at `path`, made if it is missing, and whether it was: it is null then.
pub(super) fn slot<'d, 'v>(
    doc: &'d mut Value<'v>,
    path: &Path,
    work: &mut Work,
) -> Result<(&'d mut Value<'v>, bool), PatchError> {
    let mut node = doc;
    let mut made = false;
    let last = path.parts().len() - 1;
    for (depth, segment) in path.parts().iter().enumerate() {
        let fresh = || {
            if depth == last {
                Value::Null
            } else {
                Value::Object(Vec::new())
            }
        };
        node = match node {
            Value::Object(members) => {
                work.spend(members.len())?;
                let at = position_of(members, &segment.name).unwrap_or_else(|| {
                    made = true;
                    members.push((Cow::Owned(segment.name.to_string()), fresh()));
                    members.len() - 1
                });
                &mut members[at].1
            }
            Value::Array(elements) => {
                let Some(at) = segment.position else {
                    let name = &segment.name;
                    let message = format!("{name:?} is no position, and there is an array");
                    return Err(PatchError::invalid(message));
                };
                let length = elements.len();
                if at == length {
                    made = true;
                    elements.push(fresh());
                }
                elements.get_mut(at).ok_or_else(|| {
                    PatchError::invalid(format!("position {at} of an array of {length} elements"))
                })?
            }
            scalar => {
                let (name, kind) = (&segment.name, scalar.kind());
                let message = format!("{name:?} cannot be reached through {kind}");
                return Err(PatchError::invalid(message));
            }
        };
    }
    Ok((node, made))
}

/// The value at the place that `parts` name, if it is there.
pub(super) fn find<'d, 'v>(
    doc: &'d mut Value<'v>,
    parts: &[Segment],
    work: &mut Work,
) -> Result<Option<&'d mut Value<'v>>, PatchError> {
    let mut node = doc;
    for segment in parts {
        let inner = match node {
            Value::Object(members) => {
                work.spend(members.len())?;
                let at = position_of(members, &segment.name);
                at.map(|at| &mut members[at].1)
            }
            Value::Array(elements) => segment.position.and_then(|at| elements.get_mut(at)),
            _ => None,
        };
        match inner {
            Some(inner) => node = inner,
            None => return Ok(None),
        }
    }
    Ok(Some(node))
}

/// Removes the member at `path`, or makes the element there null.
pub(super) fn unset(doc: &mut Value<'_>, path: &Path, work: &mut Work) -> Result<(), PatchError> {
    let Some((last, way)) = path.parts().split_last() else {
        return Ok(());
    };
    match find(doc, way, work)? {
        Some(Value::Object(members)) => {
            work.spend(members.len())?;
            if let Some(at) = position_of(members, &last.name) {
                members.remove(at);
            }
        }
        Some(Value::Array(elements)) => {
            if let Some(element) = last.position.and_then(|at| elements.get_mut(at)) {
                *element = Value::Null;
            }
        }
        _ => {}
    }
    Ok(())
}

pub(super) fn position_of(members: &[(Cow<'_, str>, Value<'_>)], name: &str) -> Option<usize> {
    members.iter().position(|(other, _)| other == name)
}
