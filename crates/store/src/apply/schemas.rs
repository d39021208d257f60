//! Setting and dropping the schema of a type.
//!
//! A schema holds for writes from the transaction on that sets it. What older records violate, and whom they refer to, a
//! chore finds out.

use std::sync::Arc;

use heed::RwTxn;
use okdb_schema::{Reference, Schema};
use serde_json::value::RawValue;

use super::{Applier, Ledger, definitions::next_id};
use crate::{
    Error, SchemaSpec,
    catalog::TypeDef,
    layout::{self, Header, LogAction, SCHEMA_NAME},
    schemas::{RefRow, SchemaDef, SchemaRow, SchemaState},
};

/// Compiles a schema before it is stored.
pub(crate) fn check_schema(spec: &SchemaSpec) -> Result<Schema, Error> {
    Schema::compile(&spec.text).map_err(|error| Error::InvalidSchema {
        path: error.path,
        reason: error.message,
    })
}

impl Applier<'_> {
    /// Sets the schema of a type. The same one once more changes nothing.
    pub(crate) fn set_schema(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        type_name: &str,
        spec: &SchemaSpec,
    ) -> Result<(), Error> {
        let def = Arc::clone(ledger.catalog.require(type_name)?);
        let before = def.schema.as_ref();
        if before.is_some_and(|schema| {
            schema.row.schema.get() == spec.text && schema.row.enforce == spec.enforce
        }) {
            return Ok(());
        }
        let schema = check_schema(spec)?;
        let kept = before.map_or(&[][..], |schema| &schema.row.refs);
        let mut refs = Vec::new();
        for reference in schema.references() {
            refs.push(ref_row(ledger, kept, reference));
        }
        for gone in kept
            .iter()
            .filter(|old| refs.iter().all(|new| new.id != old.id))
        {
            self.throw_away(txn, gone.id)?;
        }
        let state = if self.is_empty(txn, &def)? {
            SchemaState::Ready
        } else {
            SchemaState::Checking
        };
        let row = SchemaRow {
            schema: RawValue::from_string(spec.text.clone())
                .map_err(|error| Error::Damaged(format!("schema: {error}")))?,
            enforce: spec.enforce,
            state,
            refs,
        };
        // From the first record on, and what an older schema left is looked at with them.
        self.tables
            .meta
            .delete(txn, &layout::schema_check_key(def.id))?;
        self.tables.meta.delete(txn, &layout::cured_key(def.id))?;
        let old = before.map(|schema| header_of(schema.version));
        let key = layout::index_catalog_key(type_name, SCHEMA_NAME);
        self.define(txn, ledger, &key, old, &row, LogAction::SchemaSet)
    }

    /// Drops the schema of a type, with its references. Violations go in the background, and are not told any more.
    pub(crate) fn drop_schema(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        type_name: &str,
    ) -> Result<(), Error> {
        let def = Arc::clone(ledger.catalog.require(type_name)?);
        let schema = def.schema.as_ref().ok_or(Error::NotFound)?;
        self.undefine_schema(txn, ledger, &def, schema)?;
        self.tables
            .meta
            .delete(txn, &layout::schema_check_key(def.id))?;
        self.tables.meta.put(txn, &layout::cured_key(def.id), &[])?;
        self.reload(txn, ledger)
    }

    pub(super) fn undefine_schema(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        def: &TypeDef,
        schema: &SchemaDef,
    ) -> Result<(), Error> {
        for reference in &schema.refs {
            self.throw_away(txn, reference.id)?;
        }
        let key = layout::index_catalog_key(&def.name, SCHEMA_NAME);
        self.undefine(txn, ledger, &key, schema.version, LogAction::SchemaDrop)
    }

    /// Notes that every older record of a type has been looked at.
    pub(crate) fn end_schema_check(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        def: &TypeDef,
        schema: &SchemaDef,
    ) -> Result<(), Error> {
        let row = SchemaRow {
            state: SchemaState::Ready,
            ..schema.row.clone()
        };
        let key = layout::index_catalog_key(&def.name, SCHEMA_NAME);
        self.amend(txn, ledger, &key, &row)
    }

    /// A type to which records of another one refer cannot be dropped.
    pub(super) fn refuse_if_referred_to(
        &self,
        txn: &RwTxn<'_>,
        ledger: &Ledger,
        def: &TypeDef,
    ) -> Result<(), Error> {
        for referrer in ledger.catalog.referrers(&def.name) {
            let Some(reference) = referrer.reference() else {
                continue;
            };
            if referrer.source.id == def.id {
                continue;
            }
            let prefix = reference.id.to_be_bytes();
            for row in self.tables.refs.prefix_iter(txn, &prefix)? {
                let (_, _, key) = layout::decode_refs(row?.0)?;
                if self.is_live(txn, &referrer.source, key)? {
                    return Err(Error::ForeignKeyRestricted {
                        type_name: referrer.source.name.clone(),
                        key: key.to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Leaves the rows of a reference to be swept.
    fn throw_away(&self, txn: &mut RwTxn<'_>, ref_id: u32) -> Result<(), Error> {
        Ok(self
            .tables
            .meta
            .put(txn, &layout::trash_key(ref_id), b"r")?)
    }
}

/// The row of a reference: an old one goes on, with its rows, whatever happens on deletion now.
fn ref_row(ledger: &mut Ledger, kept: &[RefRow], reference: &Reference) -> RefRow {
    let path = reference.path.to_string();
    let same = |row: &&RefRow| row.path == path && row.target == reference.target;
    RefRow {
        id: match kept.iter().find(same) {
            Some(row) => row.id,
            None => next_id(ledger),
        },
        path,
        target: reference.target.clone(),
        on_delete: reference.on_delete.name().to_owned(),
    }
}

/// What is known of the header of a definition that is replaced.
fn header_of(version: u64) -> Header {
    Header {
        version,
        hlc: 0,
        created_ms: 0,
        expires_ms: None,
    }
}
