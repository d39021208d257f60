//! Filters: which records a query, a count or a feed is about.
//!
//! The language is that of `MongoDB` on JSON: `{"a": 1, "b.c": {"$gt": 2}, "$or": […]}`, with `$eq $ne $gt
//! $gte $lt $lte $in $nin $exists $type $regex $options $mod $size $all $elemMatch $not $and $or $nor`.
//! A test on a field holds if it holds for the value at the path, or for an element if that is an array;
//! `null` equals what is missing; range operators compare within a type bracket.
//!
//! Narrower than there: the element that `$elemMatch` tests with a filter must be an object; in one
//! object, operators and plain names do not mix (`$eq` compares with an object of any names); `$type`
//! knows JSON's types only; and what [`crate::walk`] says of numeric parts.

mod constraints;
mod matches;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod model_tests;
mod parse;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests;

use regex::Regex;
use thiserror::Error;

pub use constraints::{Constraint, Test};

use crate::{json::Value, path::Path};

/// A parsed filter; it owns all it needs.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    root: Conjunction,
}

impl Filter {
    /// How deep `$and`, `$or`, `$nor`, `$not` and `$elemMatch` may nest.
    pub const DEPTH_MAX: usize = 64;
    /// The most tests and operators, each value in a list of `$in`, `$nin` or `$all` counted too.
    pub const NODES_MAX: usize = 10_000;
    /// The most `$regex` in one filter.
    pub const REGEXES_MAX: usize = 32;
    /// The longest pattern of a `$regex`, in bytes.
    pub const REGEX_PATTERN_BYTES_MAX: usize = 32 * 1024;
    /// The most memory, in bytes, that a `$regex` may take when compiled, and again for its matching.
    pub const REGEX_COMPILED_BYTES_MAX: usize = 1024 * 1024;

    /// Reads a filter from its JSON form.
    ///
    /// # Errors
    /// When the filter is not understood or passes a bound; the message names the operator and its path.
    pub fn parse(value: &Value<'_>) -> Result<Self, FilterError> {
        parse::parse(value).map(|root| Self { root })
    }

    /// Whether a record is one that the filter asks for.
    #[must_use]
    pub fn matches(&self, doc: &Value<'_>) -> bool {
        matches::conjunction(&self.root, doc)
    }

    /// Whether the filter is `{}`, which every record matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.root.is_empty()
    }

    /// What must hold for every record that matches, as far as an index can make use of it.
    ///
    /// A constraint holds for some value among [`crate::index_values`] at its path. Where those are
    /// several, each constraint on the path may be met by a different one, so that a lower and an upper
    /// bound are a range only for records without arrays there.
    #[must_use]
    pub fn constraints(&self) -> Vec<Constraint<'_>> {
        constraints::of(&self.root)
    }
}

/// Why a filter was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct FilterError {
    /// Which kind of mistake it is.
    pub kind: FilterErrorKind,
    /// What is wrong, for the client: names the operator and its path.
    pub message: String,
}

/// Kinds of [`FilterError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterErrorKind {
    /// The filter is malformed, or too large.
    Invalid,
    /// A number that arithmetic refuses: too many digits, or too large an exponent.
    Number,
}

/// Clauses that must all hold.
type Conjunction = Vec<Clause>;

#[derive(Clone, Debug)]
enum Clause {
    /// `$or`
    Any(Vec<Conjunction>),
    /// `$nor`
    NoneOf(Vec<Conjunction>),
    /// What a record must hold at a path.
    Field { path: Path, tests: Vec<Predicate> },
}

/// A test on what is at a path.
#[derive(Clone, Debug)]
enum Predicate {
    Equal(Value<'static>),
    /// Sorted, without equal values.
    In(Vec<Value<'static>>),
    Lower {
        value: Value<'static>,
        inclusive: bool,
    },
    Upper {
        value: Value<'static>,
        inclusive: bool,
    },
    Exists,
    Type(Types),
    Regex(Regex),
    Modulo(Modulo),
    Size(u64),
    /// `$all`: false if empty.
    All(Vec<Predicate>),
    /// `$elemMatch` with operators.
    ElementValue(Vec<Predicate>),
    /// `$elemMatch` with a filter.
    ElementObject(Conjunction),
    /// Not all of them hold; `$ne`, `$nin` and `$exists: false` are made of it too.
    Not(Vec<Predicate>),
}

/// A set of JSON's types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Types(u8);

/// `$mod`: integers as digits, most significant first, without leading zeros.
#[derive(Clone, Debug)]
struct Modulo {
    divisor: Vec<u8>,
    remainder: Vec<u8>,
    remainder_negative: bool,
}

impl Types {
    fn of(value: &Value<'_>) -> Self {
        Self(match value {
            Value::Null => 1,
            Value::Bool(_) => 1 << 1,
            Value::Number(_) => 1 << 2,
            Value::String(_) => 1 << 3,
            Value::Array(_) => 1 << 4,
            Value::Object(_) => 1 << 5,
        })
    }

    fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }
}
