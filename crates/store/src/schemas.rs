//! The schema of a type: its definition as a catalog row, compiled once a process, and the references that it declares.

use std::sync::{Arc, OnceLock};

use okdb_schema::{OnDelete, RefPath, Schema};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Error;

/// How far the check of the records that were there before a schema is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SchemaState {
    /// Records are still being looked at. Writes obey the schema already; what older records violate, and whom they refer
    /// to, is not all known yet.
    Checking,
    /// Every record has been looked at.
    Ready,
}

/// The schema of a type, for people and programs.
#[derive(Clone, Debug, Serialize)]
pub struct SchemaInfo {
    /// The schema, as it was given.
    pub schema: Box<RawValue>,
    /// Whether writes that do not fit are refused; otherwise they are recorded as violations.
    pub enforce: bool,
    /// How far the check of older records is.
    pub state: SchemaState,
    /// Share of the records that the check has seen, 0 to 1.
    pub progress: f64,
}

/// A schema to be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaSpec {
    /// The schema document: JSON text.
    pub text: String,
    /// Whether writes that do not fit are refused; otherwise they are recorded as violations.
    pub enforce: bool,
}

/// The stored definition.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct SchemaRow {
    pub(crate) schema: Box<RawValue>,
    pub(crate) enforce: bool,
    pub(crate) state: SchemaState,
    pub(crate) refs: Vec<RefRow>,
}

/// The stored definition of a reference.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct RefRow {
    /// In front of its rows in `refs`.
    pub(crate) id: u32,
    pub(crate) path: String,
    pub(crate) target: String,
    #[serde(rename = "onDelete")]
    pub(crate) on_delete: String,
}

/// A schema as writers and checks use it.
pub(crate) struct SchemaDef {
    pub(crate) row: SchemaRow,
    pub(crate) version: u64,
    pub(crate) refs: Vec<RefDef>,
    /// Compiled at its first use, and shared by all catalogs that hold this version.
    compiled: Arc<OnceLock<Result<Schema, String>>>,
}

/// A reference as writers and checks use it.
pub(crate) struct RefDef {
    pub(crate) id: u32,
    pub(crate) path: RefPath,
    pub(crate) target: String,
    pub(crate) on_delete: OnDelete,
}

impl SchemaDef {
    /// Reads a definition. `before` is the one that the process knew.
    pub(crate) fn load(
        key: &str,
        row: SchemaRow,
        version: u64,
        before: Option<&Self>,
    ) -> Result<Self, Error> {
        let refs = row.refs.iter().map(|row| RefDef::load(key, row));
        let refs = refs.collect::<Result<_, _>>()?;
        let compiled = match before {
            Some(before) if before.version == version => Arc::clone(&before.compiled),
            _ => Arc::default(),
        };
        Ok(Self {
            row,
            version,
            refs,
            compiled,
        })
    }

    /// The compiled schema.
    pub(crate) fn schema(&self) -> Result<&Schema, Error> {
        let compile = || Schema::compile(self.row.schema.get()).map_err(|error| error.to_string());
        let compiled = self.compiled.get_or_init(compile);
        compiled
            .as_ref()
            .map_err(|reason| Error::Damaged(format!("a stored schema is none: {reason}")))
    }
}

impl RefDef {
    fn load(key: &str, row: &RefRow) -> Result<Self, Error> {
        let damaged = || Error::Damaged(format!("schema {key}: reference {:?}", row.path));
        Ok(Self {
            id: row.id,
            path: row.path.parse().map_err(|_| damaged())?,
            target: row.target.clone(),
            on_delete: OnDelete::from_name(&row.on_delete).ok_or_else(damaged)?,
        })
    }
}
