//! The filter, patch and ordering language of okdb on JSON: pure, no I/O.
//!
//! - [`json`]: reading, checking and writing JSON text; numbers keep their text.
//! - [`compare`]: the one order of all values.
//! - [`Path`]: dotted paths, and what a record holds at one: [`index_values`], [`sort_value`].
//! - [`encode`]: values as bytes that sort as the values do.
//! - [`Filter`], [`Sort`], [`Select`]: which records a query finds, in which order, and what it shows.
//! - [`Patch`]: changes to a record.
//!
//! ```
//! use okdb_query::{Filter, Value};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let filter = Filter::parse(&Value::parse(r#"{"tags": "new", "price": {"$lt": 10}}"#)?)?;
//! let record = Value::parse(r#"{"price": 9.50, "tags": ["new", "red"]}"#)?;
//! assert!(filter.matches(&record));
//! # Ok(())
//! # }
//! ```
//!
//! The meaning is that of `MongoDB`, on JSON; each module says where it is narrower. Nothing here trusts its
//! input: every parser bounds nesting, sizes and counts, and no function panics on what a client sends.

pub mod encode;
mod extract;
mod filter;
pub mod json;
mod order;
mod patch;
mod path;
mod select;
mod sort;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod testing;
mod walk;

pub use extract::{IndexValues, index_values, sort_value};
pub use filter::{Constraint, Filter, FilterError, FilterErrorKind, Test};
pub use json::{
    DEPTH_MAX, Envelope, JsonError, JsonErrorKind, Number, Value, compact, write_string,
};
pub use order::compare;
pub use patch::{Patch, PatchError, PatchErrorKind};
pub use path::{Path, PathError};
pub use select::{Select, SelectError};
pub use sort::{Sort, SortError, SortField};
