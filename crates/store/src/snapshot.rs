//! A short read transaction on one environment.

use std::{cell::OnceCell, sync::Arc};

use crate::{
    Error, IndexInfo, SchemaInfo, TypeInfo,
    catalog::{self, Catalog, TypeDef},
    env::EnvInner,
    layout::{self, Header, RecordPlace},
    lmdb::Reader,
    store::wall_ms,
};

/// One consistent view of an environment, as of the moment it was taken.
///
/// Keep it short: while it lives, pages that later commits free cannot be used again.
pub struct Snapshot<'e> {
    pub(crate) env: &'e EnvInner,
    pub(crate) txn: Reader<'e>,
    pub(crate) catalog: arc_swap::Guard<Arc<Catalog>>,
    /// The wall clock when it first mattered: one answer must not see a record both before and after it expires.
    pub(crate) now: OnceCell<u64>,
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
    /// When it will be gone, in ms since 1970.
    pub expires_ms: Option<u64>,
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
        let Some((header, value)) = self.stored(def, key)? else {
            return Ok(None);
        };
        Ok(Some(Record {
            version: header.version,
            hlc: header.hlc,
            created_ms: header.created_ms,
            expires_ms: header.expires_ms,
            value,
        }))
    }

    /// The schema of a type, if it has one.
    ///
    /// # Errors
    /// [`Error::TypeNotRegistered`], and what LMDB reports.
    pub fn schema(&self, type_name: &str) -> Result<Option<SchemaInfo>, Error> {
        let def = self.catalog.require(type_name)?;
        catalog::schema_info(&self.env.tables, &self.txn, def)
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

    /// The wall clock of this view, in ms since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        *self.now.get_or_init(wall_ms)
    }

    /// Whether this view sees a record, or it has expired.
    pub(crate) fn sees(&self, header: &Header) -> bool {
        // No look at the clock for what does not expire.
        header.expires_ms.is_none() || header.is_live(self.now_ms())
    }

    /// A record's row, if there is one that has not expired.
    pub(crate) fn stored(&self, def: &TypeDef, key: &str) -> Result<Option<(Header, &str)>, Error> {
        let place = RecordPlace::new(def.id, key)?;
        let Some(row) = self.env.tables.data.get(&self.txn, place.as_bytes())? else {
            return Ok(None);
        };
        let (header, text) = layout::decode_record(row)?;
        Ok(self.sees(&header).then_some((header, text)))
    }

    /// The version and text of a record that an index entry names, unless it has expired.
    pub(crate) fn indexed_record(
        &self,
        def: &TypeDef,
        key: &str,
    ) -> Result<Option<(u64, &str)>, Error> {
        let place = RecordPlace::new(def.id, key)?;
        let row = self.env.tables.data.get(&self.txn, place.as_bytes())?;
        let row = row.ok_or_else(|| {
            Error::Damaged(format!(
                "an index of {:?} names the absent record {key:?}",
                def.name
            ))
        })?;
        let (header, text) = layout::decode_record(row)?;
        Ok(self.sees(&header).then_some((header.version, text)))
    }
}
