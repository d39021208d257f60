//! A value read from text, which it borrows from where it can.

use std::{borrow::Cow, cmp::Ordering};

use super::{
    DEPTH_MAX, JsonError, JsonErrorKind, Number, names::Names, scan::Scanner, write::write_value,
};

/// A JSON value.
///
/// Equality and order are those of [`crate::compare`]: numbers by value, objects whatever the order of
/// their members.
///
/// Values from text nest at most [`DEPTH_MAX`] deep, and the functions of this crate recurse as deep as
/// a value nests: who builds one by hand keeps to that bound.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, as spelled.
    Number(Number<'a>),
    /// A string, unescaped.
    String(Cow<'a, str>),
    /// The elements.
    Array(Vec<Value<'a>>),
    /// The members in written order, their names unescaped and unique.
    Object(Vec<(Cow<'a, str>, Value<'a>)>),
}

impl<'a> Value<'a> {
    /// Reads exactly one I-JSON value.
    ///
    /// # Errors
    /// When the text is not acceptable, as for [`super::compact()`].
    pub fn parse(text: &'a str) -> Result<Self, JsonError> {
        let mut parser = Parser {
            scan: Scanner::new(text),
            names: Names::new(),
            elements: Vec::new(),
            members: Vec::with_capacity(16),
        };
        parser.scan.skip_whitespace();
        let value = parser.value(0)?;
        parser.scan.finish()?;
        Ok(value)
    }

    /// The same value, independent of the text it was read from.
    #[must_use]
    pub fn into_owned(self) -> Value<'static> {
        match self {
            Value::Null => Value::Null,
            Value::Bool(value) => Value::Bool(value),
            Value::Number(number) => Value::Number(number.into_owned()),
            Value::String(text) => Value::String(Cow::Owned(text.into_owned())),
            Value::Array(elements) => {
                Value::Array(elements.into_iter().map(Value::into_owned).collect())
            }
            Value::Object(members) => Value::Object(
                members
                    .into_iter()
                    .map(|(name, value)| (Cow::Owned(name.into_owned()), value.into_owned()))
                    .collect(),
            ),
        }
    }

    /// Appends the value as compact JSON: numbers as spelled, strings with as few escapes as can be.
    pub fn write(&self, out: &mut String) {
        write_value(self, out);
    }

    /// The value as compact JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    /// The member called `name`, if this is an object that has it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        self.as_object()?
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, value)| value)
    }

    /// Whether this is `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The truth value, if this is one.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The number, if this is one.
    #[must_use]
    pub fn as_number(&self) -> Option<&Number<'a>> {
        match self {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }

    /// The string, if this is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The elements, if this is an array.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Value<'a>]> {
        match self {
            Value::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// The members in written order, if this is an object.
    #[must_use]
    pub fn as_object(&self) -> Option<&[(Cow<'a, str>, Value<'a>)]> {
        match self {
            Value::Object(members) => Some(members),
            _ => None,
        }
    }

    /// What kind of value this is, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        }
    }
}

impl Ord for Value<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        crate::compare(self, other)
    }
}

impl PartialOrd for Value<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Value<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Value<'_> {}

/// Elements and members of open containers wait on two stacks, so that each finished container is
/// exactly as large as it must be: most are small, and a growing list starts larger than they are.
struct Parser<'t> {
    scan: Scanner<'t>,
    names: Names<'t>,
    elements: Vec<Value<'t>>,
    members: Vec<(Cow<'t, str>, Value<'t>)>,
}

impl<'t> Parser<'t> {
    /// One value, inside `depth` open arrays and objects.
    fn value(&mut self, depth: usize) -> Result<Value<'t>, JsonError> {
        match self.scan.peek() {
            Some(b'"') => Ok(Value::String(self.scan.string()?.decode()?)),
            Some(b'-' | b'0'..=b'9') => {
                Ok(Value::Number(Number::from_checked(self.scan.number()?)))
            }
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b't') => self.scan.word("true").map(|()| Value::Bool(true)),
            Some(b'f') => self.scan.word("false").map(|()| Value::Bool(false)),
            Some(b'n') => self.scan.word("null").map(|()| Value::Null),
            _ => Err(self.scan.unexpected()),
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value<'t>, JsonError> {
        self.open(depth)?;
        if self.scan.eat(b']') {
            return Ok(Value::Array(Vec::new()));
        }
        let first = self.elements.len();
        loop {
            let element = self.value(depth + 1)?;
            self.elements.push(element);
            if self.last(b']')? {
                return Ok(Value::Array(self.elements.drain(first..).collect()));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value<'t>, JsonError> {
        self.open(depth)?;
        if self.scan.eat(b'}') {
            return Ok(Value::Object(Vec::new()));
        }
        let first = self.members.len();
        let object = self.names.open();
        loop {
            let raw = self.scan.string()?;
            let name = raw.decode()?;
            self.names.add(object, name.clone(), raw.offset)?;
            self.scan.skip_whitespace();
            if !self.scan.eat(b':') {
                return Err(self.scan.unexpected());
            }
            self.scan.skip_whitespace();
            let member = self.value(depth + 1)?;
            self.members.push((name, member));
            if self.last(b'}')? {
                self.names.close(object)?;
                return Ok(Value::Object(self.members.drain(first..).collect()));
            }
        }
    }

    fn open(&mut self, depth: usize) -> Result<(), JsonError> {
        if depth == DEPTH_MAX {
            return Err(self.scan.error(JsonErrorKind::TooDeep));
        }
        self.scan.bump();
        self.scan.skip_whitespace();
        Ok(())
    }

    /// Passes what follows an element or member: true after the closing `bracket`, false before another.
    #[inline]
    fn last(&mut self, bracket: u8) -> Result<bool, JsonError> {
        self.scan.skip_whitespace();
        if self.scan.eat(b',') {
            self.scan.skip_whitespace();
            Ok(false)
        } else if self.scan.eat(bracket) {
            Ok(true)
        } else {
            Err(self.scan.unexpected())
        }
    }
}
