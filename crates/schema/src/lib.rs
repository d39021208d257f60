//! JSON Schema 2020-12 for records, and the references between types that schemas declare: pure, no I/O.
//!
//! - [`Schema`]: a compiled schema; checks the text of a record.
//! - [`Reference`], [`RefPath`]: what a `ref` annotation says, and where a record holds such references.
//!
//! ```
//! use okdb_schema::{OnDelete, Schema};
//!
//! # fn main() -> Result<(), okdb_schema::SchemaError> {
//! let schema = Schema::compile(
//!     r#"{"required":["author"],"properties":{
//!         "author":{"type":["string","null"],"ref":{"type":"users","onDelete":"set_null"}}}}"#,
//! )?;
//! assert!(schema.fits(r#"{"author":"u1"}"#));
//! assert_eq!(schema.check("{}", 10)[0].message, "\"author\" is a required property");
//! assert_eq!(schema.references()[0].target, "users");
//! assert_eq!(schema.references()[0].on_delete, OnDelete::SetNull);
//! assert_eq!(schema.references()[0].path.to_string(), "/author");
//! # Ok(())
//! # }
//! ```
//!
//! The checking itself is the crate `jsonschema`. What is added here keeps a hostile schema or record from hanging or
//! crashing the thread that writes: no schema reaches outside itself, patterns take linear time, and how deep
//! a check may recurse is computed beforehand (`cost.rs`).

mod annotation;
mod convert;
mod cost;
mod error;
mod graph;
mod record;
mod ref_path;
mod references;
mod schema;

pub use annotation::{OnDelete, Reference};
pub use error::{Failure, SchemaError};
pub use ref_path::{RefPath, RefPathError, Step};
pub use schema::Schema;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests;
