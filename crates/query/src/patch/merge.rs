//! JSON merge patch, RFC 7396.

use std::{borrow::Cow, collections::HashMap};

use super::{PatchError, Work, edit::position_of};
use crate::json::Value;

/// Up to this many comparisons of names, looking each up in turn beats an index of them.
const COMPARISONS_MAX: usize = 1024;

/// Merges `patch` into `target`; recurses as deep as `patch` nests.
pub(super) fn merge(
    target: &mut Value<'_>,
    patch: &Value<'static>,
    work: &mut Work,
) -> Result<(), PatchError> {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return Ok(());
    };
    if !matches!(target, Value::Object(_)) {
        *target = Value::Object(Vec::new());
    }
    let Value::Object(members) = target else {
        return Ok(());
    };
    work.spend(members.len() + changes.len())?;
    let positions = positions(members, changes);
    let mut removed = vec![false; members.len()];
    for ((name, change), at) in changes.iter().zip(positions) {
        match (at, change) {
            (Some(at), Value::Null) => removed[at] = true,
            (Some(at), change) => merge(&mut members[at].1, change, work)?,
            (None, Value::Null) => {}
            (None, change) => {
                let mut member = Value::Null;
                merge(&mut member, change, work)?;
                members.push((name.clone(), member));
            }
        }
    }
    let mut removed = removed.into_iter();
    // Those that were added lie past the end of the list, and stay.
    members.retain(|_| !removed.next().unwrap_or(false));
    Ok(())
}

type Member<'a> = (Cow<'a, str>, Value<'a>);

/// Where each change's name is among the members.
fn positions(members: &[Member<'_>], changes: &[Member<'_>]) -> Vec<Option<usize>> {
    let names = changes.iter().map(|(name, _)| &**name);
    if members.len().saturating_mul(changes.len()) <= COMPARISONS_MAX {
        return names.map(|name| position_of(members, name)).collect();
    }
    let index: HashMap<&str, usize> = members
        .iter()
        .enumerate()
        .map(|(at, (name, _))| (&**name, at))
        .collect();
    names.map(|name| index.get(name).copied()).collect()
}
