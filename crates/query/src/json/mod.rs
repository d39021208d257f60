//! JSON text: what is accepted, how it is read and how it is written.
//!
//! Owns the parser and the writer. Accepted is I-JSON: RFC 8259 in UTF-8, with unique member names
//! (compared after unescaping) and no lone surrogates, nested at most [`DEPTH_MAX`] deep. Code points
//! that Unicode calls noncharacters are let through: refusing them would lose a client's data for
//! nothing. Numbers are never converted: a [`Number`] is its text, and is compared by exact value.

mod compact;
pub(crate) mod decimal;
mod envelope;
mod names;
mod number;
mod scan;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests;
mod value;
mod write;

use thiserror::Error;

pub use compact::compact;
pub use envelope::Envelope;
pub use number::Number;
pub use value::Value;
pub use write::write_string;

/// How deep arrays and objects may nest: `[[1]]` is 2 deep, a scalar 0.
///
/// Every recursion of this crate over a value goes at most a small multiple of this deep.
pub const DEPTH_MAX: usize = 128;

/// The largest exponent, either sign, that may be spelled in a number.
///
/// It bounds no useful value; it keeps the place of a number's first digit within 64 bits.
pub const EXPONENT_MAX: u64 = 1_000_000_000_000_000;

/// Why a text was refused, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{kind} at byte {offset}")]
pub struct JsonError {
    /// Position in the text, in bytes from 0.
    pub offset: usize,
    /// What is wrong there.
    pub kind: JsonErrorKind,
}

/// What is wrong with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum JsonErrorKind {
    /// The bytes are not UTF-8.
    #[error("invalid UTF-8")]
    InvalidUtf8,
    /// The text stops inside a value, or holds none.
    #[error("unexpected end of the text")]
    UnexpectedEnd,
    /// A byte that cannot stand here.
    #[error("unexpected character")]
    UnexpectedByte,
    /// Something other than whitespace follows the value.
    #[error("unexpected character after the value")]
    TrailingData,
    /// A backslash with something JSON does not define.
    #[error("invalid escape sequence")]
    InvalidEscape,
    /// An escape that names half a surrogate pair.
    #[error("lone surrogate")]
    LoneSurrogate,
    /// A character below U+0020 that is not escaped.
    #[error("unescaped control character in a string")]
    ControlCharacter,
    /// A number that JSON's grammar does not know, such as `01` or `1.`.
    #[error("malformed number")]
    InvalidNumber,
    /// A number whose exponent is larger than [`EXPONENT_MAX`].
    #[error("number with an exponent beyond {}", EXPONENT_MAX)]
    NumberRange,
    /// A member name that the same object holds already.
    #[error("duplicate member name")]
    DuplicateName,
    /// More than [`DEPTH_MAX`] levels of arrays and objects.
    #[error("nesting deeper than {} levels", DEPTH_MAX)]
    TooDeep,
    /// A valid value where an object is required.
    #[error("expected a JSON object")]
    NotAnObject,
}
