//! The patch document: `set`, `unset`, `inc`, `merge`, `append`, `pull`.

use super::{
    Patch, PatchError, PatchErrorKind, Work,
    edit::{find, slot, unset},
    measure,
    merge::merge,
};
use crate::{
    compare,
    json::{
        Number, Value,
        decimal::{Decimal, add, operand_refusal},
    },
    path::Path,
};

type Result<T> = std::result::Result<T, PatchError>;

/// The changes of a patch document, in the order in which they apply.
#[derive(Clone, Debug, Default)]
pub(super) struct Update {
    set: Vec<(Path, Value<'static>)>,
    unset: Vec<Path>,
    inc: Vec<(Path, Number<'static>)>,
    /// Each value is an object.
    merge: Vec<(Path, Value<'static>)>,
    append: Vec<(Path, Vec<Value<'static>>)>,
    /// Each list is sorted.
    pull: Vec<(Path, Vec<Value<'static>>)>,
}

impl Update {
    pub(super) fn parse(value: &Value<'_>) -> Result<Self> {
        let members = value.as_object().ok_or_else(|| {
            PatchError::invalid(format!("a patch must be an object, not {}", value.kind()))
        })?;
        let mut update = Self::default();
        for (name, operand) in members {
            let parsed = match &**name {
                "set" => changes(operand, |value| Ok(value.clone().into_owned()))
                    .map(|changes| update.set = changes),
                "unset" => paths(operand).map(|paths| update.unset = paths),
                "inc" => changes(operand, increment).map(|changes| update.inc = changes),
                "merge" => changes(operand, object).map(|changes| update.merge = changes),
                "append" => changes(operand, list).map(|changes| update.append = changes),
                "pull" => changes(operand, |value| {
                    let mut elements = list(value)?;
                    elements.sort_unstable_by(compare);
                    Ok(elements)
                })
                .map(|changes| update.pull = changes),
                _ => {
                    let known = "knows set, unset, inc, merge, append and pull";
                    let message = format!("{name:?}: a patch {known}");
                    return Err(PatchError::invalid(message));
                }
            };
            parsed.map_err(|error| error.within(name))?;
        }
        let count = update.set.len()
            + update.unset.len()
            + update.inc.len()
            + update.merge.len()
            + update.append.len()
            + update.pull.len();
        if count > Patch::CHANGES_MAX {
            let message = format!("more than {} changes", Patch::CHANGES_MAX);
            return Err(PatchError::invalid(message));
        }
        Ok(update)
    }

    pub(super) fn apply(&self, doc: &mut Value<'_>, work: &mut Work) -> Result<()> {
        fn each<T>(
            name: &str,
            changes: &[(Path, T)],
            mut change: impl FnMut(&Path, &T) -> Result<()>,
        ) -> Result<()> {
            for (path, operand) in changes {
                change(path, operand)
                    .map_err(|error| error.within(format_args!("{name} {:?}", path.as_str())))?;
            }
            Ok(())
        }
        each("set", &self.set, |path, value| {
            *slot(doc, path, work)?.0 = value.clone();
            Ok(())
        })?;
        for path in &self.unset {
            unset(doc, path, work)?;
        }
        each("inc", &self.inc, |path, number| {
            let (target, made) = slot(doc, path, work)?;
            let sum = match target {
                Value::Number(value) => add(value, number).ok_or_else(refused_number)?,
                _ if made => number.clone(),
                other => return Err(wrong("a number", other)),
            };
            *target = Value::Number(sum);
            Ok(())
        })?;
        each("merge", &self.merge, |path, changes| {
            match slot(doc, path, work)? {
                (target, made) if made || matches!(target, Value::Object(_)) => {
                    merge(target, changes, work)
                }
                (other, _) => Err(wrong("an object", other)),
            }
        })?;
        each("append", &self.append, |path, elements| {
            let (target, made) = slot(doc, path, work)?;
            if made {
                *target = Value::Array(Vec::new());
            }
            match target {
                Value::Array(array) => {
                    array.extend(elements.iter().cloned());
                    Ok(())
                }
                other => Err(wrong("an array", other)),
            }
        })?;
        each("pull", &self.pull, |path, elements| {
            match find(doc, path.parts(), work)? {
                None => Ok(()),
                Some(target) => {
                    work.spend(measure(target).nodes)?;
                    pull(target, elements)
                }
            }
        })
    }
}

fn pull(target: &mut Value<'_>, sorted: &[Value<'static>]) -> Result<()> {
    let Value::Array(array) = target else {
        return Err(wrong("an array", target));
    };
    array.retain(|element| {
        sorted
            .binary_search_by(|pulled| compare(pulled, element))
            .is_err()
    });
    Ok(())
}

fn wrong(wanted: &str, found: &Value<'_>) -> PatchError {
    PatchError::invalid(format!("needs {wanted}, and there is {}", found.kind()))
}

fn refused_number() -> PatchError {
    PatchError {
        kind: PatchErrorKind::Number,
        message: operand_refusal(),
    }
}

fn path(text: &str) -> Result<Path> {
    Path::parse(text).map_err(|error| PatchError::invalid(format!("{text:?}: {error}")))
}

/// `{path: operand}`, each operand read by `read`.
fn changes<T>(value: &Value<'_>, read: impl Fn(&Value<'_>) -> Result<T>) -> Result<Vec<(Path, T)>> {
    let members = value
        .as_object()
        .ok_or_else(|| PatchError::invalid("needs an object of paths"))?;
    members
        .iter()
        .map(|(text, operand)| {
            let operand = read(operand).map_err(|error| error.within(format_args!("{text:?}")))?;
            Ok((path(text)?, operand))
        })
        .collect()
}

fn paths(value: &Value<'_>) -> Result<Vec<Path>> {
    let malformed = || PatchError::invalid("needs an array of paths");
    let elements = value.as_array().ok_or_else(malformed)?;
    elements
        .iter()
        .map(|element| path(element.as_str().ok_or_else(malformed)?))
        .collect()
}

fn increment(value: &Value<'_>) -> Result<Number<'static>> {
    let number = value
        .as_number()
        .ok_or_else(|| PatchError::invalid("needs a number"))?;
    if Decimal::of(number).is_operand() {
        Ok(number.clone().into_owned())
    } else {
        Err(refused_number())
    }
}

fn object(value: &Value<'_>) -> Result<Value<'static>> {
    match value {
        Value::Object(_) => Ok(value.clone().into_owned()),
        _ => Err(PatchError::invalid("needs an object")),
    }
}

fn list(value: &Value<'_>) -> Result<Vec<Value<'static>>> {
    match value.clone().into_owned() {
        Value::Array(elements) => Ok(elements),
        _ => Err(PatchError::invalid("needs an array of elements")),
    }
}
