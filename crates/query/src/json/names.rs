//! Finds duplicate member names while a text is read.
//!
//! One stack serves all open objects. A small object compares each new name with those before it, by
//! fingerprint first; a large one sorts its names when it closes, so that an object of a million
//! members costs n log n, whatever its names are.

use std::borrow::Cow;

use super::{JsonError, JsonErrorKind};

/// Up to this many names, comparing them pairwise is cheaper than sorting.
const PAIRWISE_MAX: usize = 16;

pub(super) struct Names<'t> {
    stack: Vec<Name<'t>>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Name<'t> {
    fingerprint: u64,
    text: Cow<'t, str>,
    offset: usize,
}

impl<'t> Names<'t> {
    /// With room for the names of an ordinary record.
    pub(super) fn new() -> Self {
        Self {
            stack: Vec::with_capacity(PAIRWISE_MAX),
        }
    }

    /// Opens an object; hand the answer to the other two calls.
    pub(super) fn open(&self) -> usize {
        self.stack.len()
    }

    /// Notes a name of the object that was opened last.
    #[inline]
    pub(super) fn add(
        &mut self,
        object: usize,
        text: Cow<'t, str>,
        offset: usize,
    ) -> Result<(), JsonError> {
        let fingerprint = fingerprint(text.as_bytes());
        let before = &self.stack[object..];
        if before.len() < PAIRWISE_MAX
            && before
                .iter()
                .any(|name| name.fingerprint == fingerprint && name.text == text)
        {
            return Err(duplicate(offset));
        }
        self.stack.push(Name {
            fingerprint,
            text,
            offset,
        });
        Ok(())
    }

    /// Closes the object that was opened last.
    #[inline]
    pub(super) fn close(&mut self, object: usize) -> Result<(), JsonError> {
        let names = &mut self.stack[object..];
        if names.len() > PAIRWISE_MAX {
            names.sort_unstable();
            let again = names
                .windows(2)
                .filter(|pair| pair[0].text == pair[1].text)
                .map(|pair| pair[1].offset)
                .min();
            if let Some(offset) = again {
                return Err(duplicate(offset));
            }
        }
        self.stack.truncate(object);
        Ok(())
    }
}

fn duplicate(offset: usize) -> JsonError {
    JsonError {
        offset,
        kind: JsonErrorKind::DuplicateName,
    }
}

/// Equal for equal names, and cheap; it only has to tell most different names apart.
#[inline]
fn fingerprint(name: &[u8]) -> u64 {
    let length = name.len() as u64;
    if let (Some(first), Some(last)) = (name.first_chunk::<8>(), name.last_chunk::<8>()) {
        u64::from_le_bytes(*first) ^ u64::from_le_bytes(*last).rotate_left(29) ^ length
    } else if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        u64::from(first) | u64::from(last) << 32
    } else {
        let bytes = name.iter().map(|byte| u64::from(*byte));
        bytes.fold(length, |sum, byte| sum << 8 | byte)
    }
}
