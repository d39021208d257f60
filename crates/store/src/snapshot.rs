//! A short read transaction on one environment.

use std::sync::Arc;

use crate::{
    Error, IndexInfo, TypeInfo,
    catalog::{self, Catalog, TypeDef},
    env::EnvInner,
    layout::{self, RecordPlace},
    lmdb::Reader,
};

/// One consistent view of an environment, as of the moment it was taken.
///
/// Keep it short: while it lives, pages that later commits free cannot be used again.
pub struct Snapshot<'e> {
    pub(crate) env: &'e EnvInner,
    pub(crate) txn: Reader<'e>,
    pub(crate) catalog: arc_swap::Guard<Arc<Catalog>>,
}

/// A record as it is stored, borrowed from the memory map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'s> {
    /// The clock of its last write.
    pub version: u64,
    /// The hybrid logical clock of its last write: 48 bits of ms since 1970, 16 bits of counter.
    pub hlc: u64,
    /// When it was created, in ms since 1970.
    pub created_ms: u64,
    /// Its value: compact JSON text, digit for digit as it came in.
    pub value: &'s str,
}

impl Snapshot<'_> {
    /// The environment's clock in this view.
    ///
    /// # Errors
    /// [`Error::Lmdb`] and [`Error::Damaged`].
    pub fn clock(&self) -> Result<u64, Error> {
        Ok(catalog::read_state(&self.env.tables, &self.txn)?.clock)
    }

    /// The record with this key, if there is one.
    ///
    /// # Errors
    /// [`Error::TypeNotRegistered`], [`Error::InvalidKey`], and what LMDB reports.
    pub fn get(&self, type_name: &str, key: &str) -> Result<Option<Record<'_>>, Error> {
        let def = self.catalog.require(type_name)?;
        let place = RecordPlace::new(def.id, key)?;
        let Some(row) = self.env.tables.data.get(&self.txn, place.as_bytes())? else {
            return Ok(None);
        };
        let (header, value) = layout::decode_record(row)?;
        Ok(Some(Record {
            version: header.version,
            hlc: header.hlc,
            created_ms: header.created_ms,
            value,
        }))
    }

    /// All types, by name.
    ///
    /// # Errors
    /// What LMDB reports.
    pub fn types(&self) -> Result<Vec<TypeInfo>, Error> {
        let types = self.catalog.types();
        types.into_iter().map(|def| self.info(def)).collect()
    }

    /// One type.
    ///
    /// # Errors
    /// [`Error::TypeNotRegistered`], and what LMDB reports.
    pub fn type_info(&self, type_name: &str) -> Result<TypeInfo, Error> {
        self.info(self.catalog.require(type_name)?)
    }

    /// The indexes of a type, by name.
    ///
    /// # Errors
    /// [`Error::TypeNotRegistered`], and what LMDB reports.
    pub fn indexes(&self, type_name: &str) -> Result<Vec<IndexInfo>, Error> {
        Ok(self.type_info(type_name)?.indexes)
    }

    fn info(&self, def: &TypeDef) -> Result<TypeInfo, Error> {
        catalog::type_info(&self.env.tables, &self.txn, def)
    }

    /// The stored row of a record that an index entry names.
    pub(crate) fn indexed_record(&self, def: &TypeDef, key: &str) -> Result<(u64, &str), Error> {
        let place = RecordPlace::new(def.id, key)?;
        let row = self
            .env
            .tables
            .data
            .get(&self.txn, place.as_bytes())?
            .ok_or_else(|| {
                Error::Damaged(format!(
                    "an index of {:?} names the absent record {key:?}",
                    def.name
                ))
            })?;
        let (header, text) = layout::decode_record(row)?;
        Ok((header.version, text))
    }
}
