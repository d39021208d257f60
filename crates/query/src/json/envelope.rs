//! A request body that is an object: checked once, its members kept as text.
//!
//! The value in `{"value": …, "ttl": …}` is stored as the client spelled it, so the body is never
//! turned into a tree; each member is a slice of one compact text.

use std::{borrow::Cow, ops::Range};

use super::{JsonError, JsonErrorKind, compact::Compactor};

/// An object whose members are known by name, their values as compact JSON text.
#[derive(Clone, Debug)]
pub struct Envelope {
    text: String,
    members: Vec<Member>,
}

#[derive(Clone, Debug)]
struct Member {
    name: Name,
    value: Range<usize>,
}

/// A member's name: where it stands in the text or, if it was spelled with escapes, decoded.
#[derive(Clone, Debug)]
enum Name {
    Plain(Range<usize>),
    Decoded(Box<str>),
}

impl Envelope {
    /// Checks a text that must be one I-JSON object.
    ///
    /// # Errors
    /// As [`super::compact()`]; [`JsonErrorKind::NotAnObject`] when the text is a valid value of another kind.
    pub fn parse(text: &[u8]) -> Result<Self, JsonError> {
        let mut out = String::new();
        let mut compactor = Compactor::new(text, &mut out)?;
        compactor.gap();
        let mut members = Vec::new();
        if compactor.scan.peek() != Some(b'{') {
            let start = compactor.scan.error(JsonErrorKind::NotAnObject);
            compactor.value(0)?;
            compactor.finish()?;
            return Err(start);
        }
        compactor.open(0)?;
        if !compactor.scan.eat(b'}') {
            let object = compactor.names.open();
            loop {
                let start = compactor.out_pos() + 1;
                let raw = compactor.scan.string()?;
                let name = match raw.decode()? {
                    Cow::Borrowed(plain) => Name::Plain(start..start + plain.len()),
                    Cow::Owned(decoded) => Name::Decoded(decoded.into()),
                };
                compactor.member(object, raw)?;
                let start = compactor.out_pos();
                // The envelope does not count: a record's value nests as deep through it as on its own.
                compactor.value(0)?;
                let value = start..compactor.out_pos();
                members.push(Member { name, value });
                if compactor.last_member()? {
                    break;
                }
            }
            compactor.names.close(object)?;
        }
        compactor.finish()?;
        Ok(Self { text: out, members })
    }

    /// Each member's name, unescaped, and its value as compact JSON, in written order.
    pub fn members(&self) -> impl Iterator<Item = (&str, &str)> {
        self.members
            .iter()
            .map(|member| (self.name(member), &self.text[member.value.clone()]))
    }

    /// The value of the member called `name`, as compact JSON.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.members()
            .find(|(other, _)| *other == name)
            .map(|(_, value)| value)
    }

    fn name<'e>(&'e self, member: &'e Member) -> &'e str {
        match &member.name {
            Name::Plain(range) => &self.text[range.clone()],
            Name::Decoded(name) => name,
        }
    }
}
