//! Follows a path through a record, arrays included: the one place that knows what a path reaches.
//!
//! As in `MongoDB`, a path that meets an array before its end goes on into each element that is an
//! object, but not into arrays directly inside arrays. A numeric part also goes to the element at that
//! position. An object without the named member, or a scalar where a path should go on, makes the
//! path's target *missing* there; elements that are not objects are passed over without a word. One
//! rule is narrower than there: where a numeric part is a position that the array has, elements
//! without a member of that name do not count as missing, so that `a.0: null` does not match
//! `{"a":[{"b":1}]}`.

use std::ops::ControlFlow;

use crate::{
    json::Value,
    path::{Path, Segment},
};

/// Calls `visit` with each value that the path reaches, and with `None` wherever its target is missing,
/// until it breaks.
///
/// An array at the path's end comes as one value. Returns whether an array was met on the way or at an
/// end, as far as the walk went.
pub(crate) fn walk<'v, F>(value: &'v Value<'v>, path: &Path, visit: F) -> bool
where
    F: FnMut(Option<&'v Value<'v>>) -> ControlFlow<()>,
{
    let mut walk = Walk {
        visit,
        met_array: false,
    };
    // Whether it was stopped does not matter here: the caller's closure knows.
    let _ = walk.step(value, path.parts());
    walk.met_array
}

struct Walk<F> {
    visit: F,
    met_array: bool,
}

impl<F> Walk<F> {
    /// Recurses at most twice for each part of the path.
    fn step<'v>(&mut self, value: &'v Value<'v>, path: &[Segment]) -> ControlFlow<()>
    where
        F: FnMut(Option<&'v Value<'v>>) -> ControlFlow<()>,
    {
        let (mut value, mut path) = (value, path);
        loop {
            let Some((segment, rest)) = path.split_first() else {
                self.met_array |= matches!(value, Value::Array(_));
                return (self.visit)(Some(value));
            };
            match value {
                Value::Object(_) => match value.get(&segment.name) {
                    Some(member) => (value, path) = (member, rest),
                    None => return (self.visit)(None),
                },
                Value::Array(elements) => return self.elements(elements, segment, path),
                _ => return (self.visit)(None),
            }
        }
    }

    fn elements<'v>(
        &mut self,
        elements: &'v [Value<'v>],
        segment: &Segment,
        path: &[Segment],
    ) -> ControlFlow<()>
    where
        F: FnMut(Option<&'v Value<'v>>) -> ControlFlow<()>,
    {
        self.met_array = true;
        let at_position = segment.position.and_then(|index| elements.get(index));
        if let Some(element) = at_position {
            self.step(element, &path[1..])?;
        }
        for element in elements {
            if let Value::Object(_) = element
                && (at_position.is_none() || element.get(&segment.name).is_some())
            {
                self.step(element, path)?;
            }
        }
        ControlFlow::Continue(())
    }
}
