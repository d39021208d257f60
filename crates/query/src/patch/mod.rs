//! Patches: changes to a record, told apart from its new text by saying only what changes.
//!
//! Three forms: a *patch document* of `set`, `unset`, `inc`, `merge`, `append` and `pull`; a JSON merge
//! patch (RFC 7396); a JSON patch (RFC 6902). A patch applies wholly or not at all, and what it does not
//! touch stays: numbers keep their spelling, members their order.
//!
//! A patch may ask for much more work than its size suggests (copy a value into itself, again and
//! again; insert at the front of a long array, ten thousand times), so applying one counts its steps.

mod document;
mod edit;
mod json_patch;
mod merge;
#[cfg(test)]
mod rfc_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests;

use thiserror::Error;

use crate::json::{DEPTH_MAX, Value};

/// A parsed patch; it owns all it needs.
#[derive(Clone, Debug)]
pub struct Patch {
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    Document(document::Update),
    Merge(Value<'static>),
    JsonPatch(Vec<json_patch::Operation>),
}

impl Patch {
    /// The most changes in one patch: paths of a patch document, or operations of a JSON patch.
    pub const CHANGES_MAX: usize = 10_000;
    /// The most steps that applying a patch may take: members looked through, elements shifted, values
    /// compared or copied.
    pub const STEPS_MAX: u64 = 1 << 28;
    /// The most memory, in bytes, that the copies a JSON patch makes of the record's own values may take.
    pub const COPIED_BYTES_MAX: u64 = 64 << 20;

    /// Reads a patch document.
    ///
    /// | member | does |
    /// |---|---|
    /// | `set {path: value}` | puts a value there |
    /// | `unset [path]` | removes the member; an array's element becomes null, so that no other moves |
    /// | `inc {path: number}` | adds exactly; a missing number counts as 0 |
    /// | `merge {path: object}` | merges into the object there by the rules of RFC 7396 |
    /// | `append {path: [elements]}` | adds to the end of the array there |
    /// | `pull {path: [elements]}` | removes all elements equal to one of these |
    ///
    /// They apply in this order, and each member's paths in written order. All but `unset` and `pull`,
    /// which do nothing where the path is missing, create what is missing: objects on the way and, at the
    /// end, what they need. A numeric part is a position where there is an array; the array's length
    /// itself stands for one more element. A path never goes through a scalar, and what is at its end
    /// must be what the change applies to.
    ///
    /// # Errors
    /// When the document is malformed, or a number in `inc` is one that arithmetic refuses.
    pub fn parse_document(value: &Value<'_>) -> Result<Self, PatchError> {
        let form = Form::Document(document::Update::parse(value)?);
        Ok(Self { form })
    }

    /// Takes a value as a JSON merge patch (RFC 7396); every value is one.
    ///
    /// # Errors
    /// None at present; callers treat the three forms alike.
    pub fn parse_merge(value: &Value<'_>) -> Result<Self, PatchError> {
        let form = Form::Merge(value.clone().into_owned());
        Ok(Self { form })
    }

    /// Reads a JSON patch (RFC 6902).
    ///
    /// # Errors
    /// When it is malformed, or would remove the whole record.
    pub fn parse_json_patch(value: &Value<'_>) -> Result<Self, PatchError> {
        let form = Form::JsonPatch(json_patch::parse(value)?);
        Ok(Self { form })
    }

    /// The record after the patch, as compact JSON.
    ///
    /// # Errors
    /// When the patch does not fit the record (a wrong type, a position beyond an array's end, a failed
    /// `test`), when the result would nest deeper than [`DEPTH_MAX`], when a bound on work is passed, or
    /// when `inc` meets a number that arithmetic refuses.
    pub fn apply(&self, doc: &Value<'_>) -> Result<String, PatchError> {
        let mut doc = doc.clone();
        let mut work = Work::default();
        match &self.form {
            Form::Document(update) => update.apply(&mut doc, &mut work)?,
            Form::Merge(patch) => merge::merge(&mut doc, patch, &mut work)?,
            Form::JsonPatch(operations) => json_patch::apply(operations, &mut doc, &mut work)?,
        }
        check_depth(measure(&doc).depth)?;
        Ok(doc.to_json())
    }
}

/// Why a patch was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct PatchError {
    /// Which kind of mistake it is.
    pub kind: PatchErrorKind,
    /// What is wrong, for the client: names the change and its path.
    pub message: String,
}

/// Kinds of [`PatchError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchErrorKind {
    /// The patch is malformed, too large, or does not fit the record.
    Invalid,
    /// A number that arithmetic refuses: too many digits, or too large an exponent.
    Number,
}

impl PatchError {
    fn invalid(message: impl Into<String>) -> Self {
        Self {
            kind: PatchErrorKind::Invalid,
            message: message.into(),
        }
    }

    /// The same, after what it is about.
    fn within(mut self, place: impl std::fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }
}

/// What applying a patch may still cost.
struct Work {
    steps_left: u64,
    copied_bytes_left: u64,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            steps_left: Patch::STEPS_MAX,
            copied_bytes_left: Patch::COPIED_BYTES_MAX,
        }
    }
}

impl Work {
    fn spend(&mut self, steps: usize) -> Result<(), PatchError> {
        take(&mut self.steps_left, steps as u64)
    }

    fn copy(&mut self, size: Size) -> Result<(), PatchError> {
        self.spend(size.nodes)?;
        take(&mut self.copied_bytes_left, size.bytes)
    }
}

fn take(left: &mut u64, amount: u64) -> Result<(), PatchError> {
    *left = left
        .checked_sub(amount)
        .ok_or_else(|| PatchError::invalid("the patch asks for too much work on this record"))?;
    Ok(())
}

/// How large a value is.
#[derive(Clone, Copy, Default)]
struct Size {
    /// How many values, containers and what is in them.
    nodes: usize,
    /// What a copy takes in memory, about.
    bytes: u64,
    /// How deep it nests; a scalar does not.
    depth: usize,
}

/// Recurses as deep as the value nests.
fn measure(value: &Value<'_>) -> Size {
    let mut size = Size {
        nodes: 1,
        bytes: size_of::<Value<'_>>() as u64,
        depth: 0,
    };
    let mut inside = |value: &Value<'_>, name: &str| {
        let inner = measure(value);
        size.nodes += inner.nodes;
        size.bytes += inner.bytes + (size_of::<String>() + name.len()) as u64;
        size.depth = size.depth.max(inner.depth + 1);
    };
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::Number(number) => size.bytes += number.as_str().len() as u64,
        Value::String(text) => size.bytes += text.len() as u64,
        Value::Array(elements) => {
            for element in elements {
                inside(element, "");
            }
            size.depth = size.depth.max(1);
        }
        Value::Object(members) => {
            for (name, member) in members {
                inside(member, name);
            }
            size.depth = size.depth.max(1);
        }
    }
    size
}

fn check_depth(depth: usize) -> Result<(), PatchError> {
    if depth > DEPTH_MAX {
        let message = format!("the result would nest deeper than {DEPTH_MAX} levels");
        return Err(PatchError::invalid(message));
    }
    Ok(())
}
