//! What can be wrong with a schema, and with a record under one.

use std::fmt;

use thiserror::Error;

/// Longer messages are cut: a schema's `enum` may be large, and its author knows it.
const MESSAGE_CHARS_MAX: usize = 300;

/// Why a text is no schema that can be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}{}", At(path))]
pub struct SchemaError {
    /// What is wrong, for the schema's author.
    pub message: String,
    /// Where: a JSON pointer into the schema, empty for the whole.
    pub path: String,
}

impl SchemaError {
    pub(crate) fn new(path: &str, message: impl fmt::Display) -> Self {
        Self {
            message: shorten(&message.to_string()),
            path: path.to_owned(),
        }
    }
}

/// A place where a record does not fit its schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// A JSON pointer into the record, empty for the whole.
    pub path: String,
    /// What is wrong there. The record's own value is not repeated.
    pub message: String,
}

impl Failure {
    pub(crate) fn new(path: &str, message: impl fmt::Display) -> Self {
        Self {
            path: path.to_owned(),
            message: shorten(&message.to_string()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.message, At(&self.path))
    }
}

/// ` at PATH`, but nothing for the whole.
struct At<'a>(&'a str);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, " at {}", self.0)
        }
    }
}

fn shorten(message: &str) -> String {
    match message.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &message[..at]),
        None => message.to_owned(),
    }
}

/// Appends one part to a JSON pointer.
pub(crate) fn push_part(pointer: &mut String, part: &str) {
    pointer.push('/');
    for char in part.chars() {
        match char {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            char => pointer.push(char),
        }
    }
}

/// The parts of a JSON pointer that is known to be well-formed, or at least to start with a slash.
pub(crate) fn parts(pointer: &str) -> impl Iterator<Item = String> {
    // Before the first slash there is nothing.
    pointer
        .split('/')
        .skip(1)
        .map(|part| part.replace("~1", "/").replace("~0", "~"))
}
