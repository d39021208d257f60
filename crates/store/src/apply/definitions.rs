//! Registering and dropping types and indexes.
//!
//! Definitions are records of the catalog's pseudo type: they get versions, tombstones and log entries like all others.
//! What a drop leaves behind is noted as trash and swept by a chore.

use std::sync::Arc;

use heed::RwTxn;

use super::{Applier, Ledger, Row};
use crate::{
    Error, IndexSpec, IndexState,
    catalog::{self, Catalog, INDEXES_MAX, IndexDef, IndexRow, TYPES_MAX, TypeDef, TypeRow},
    check_type_name,
    layout::{self, CATALOG_ID, Header, LogAction},
};

impl Applier<'_> {
    /// Registers a type with its indexes, or what is missing of them.
    pub(crate) fn register_type(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        name: &str,
        indexes: &[IndexSpec],
        ensure: bool,
    ) -> Result<(), Error> {
        check_type_name(name)?;
        catalog::check_specs(indexes)?;
        match ledger.catalog.get(name) {
            Some(_) if !ensure => {
                return Err(Error::AlreadyExists {
                    what: format!("type {name:?}"),
                });
            }
            Some(def) => {
                for spec in indexes {
                    check_same(def, spec)?;
                }
                let new = indexes
                    .iter()
                    .filter(|spec| def.index(&spec.name()).is_none());
                check_index_count(def.indexes.len() + new.count())?;
            }
            None => {
                check_index_count(indexes.len())?;
                if ledger.catalog.len() >= TYPES_MAX {
                    return Err(Error::TooLarge {
                        what: "the number of types",
                        limit: TYPES_MAX,
                    });
                }
                let id = next_id(ledger);
                let row = TypeRow { id };
                self.define(txn, ledger, name, None, &row, LogAction::TypeRegister)?;
            }
        }
        for spec in indexes {
            self.register_index(txn, ledger, name, spec, true)?;
        }
        Ok(())
    }

    /// Registers an index. Over an empty type it is ready at once, else a chore builds it.
    pub(crate) fn register_index(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        type_name: &str,
        spec: &IndexSpec,
        ensure: bool,
    ) -> Result<(), Error> {
        catalog::check_spec(spec)?;
        let def = Arc::clone(ledger.catalog.require(type_name)?);
        let name = spec.name();
        if def.index(&name).is_some() {
            return if ensure {
                check_same(&def, spec)
            } else {
                Err(Error::AlreadyExists {
                    what: format!("index {name:?} of type {type_name:?}"),
                })
            };
        }
        check_index_count(def.indexes.len() + 1)?;
        let empty = self.is_empty(txn, &def)?;
        let row = IndexRow {
            id: next_id(ledger),
            fields: spec.fields.clone(),
            unique: spec.unique,
            state: if empty {
                IndexState::Ready
            } else {
                IndexState::Building
            },
            multikey: false,
            failure: None,
        };
        let key = layout::index_catalog_key(type_name, &name);
        self.define(txn, ledger, &key, None, &row, LogAction::IndexRegister)
    }

    /// Whether a type has no record, expired ones included.
    pub(super) fn is_empty(&self, txn: &RwTxn<'_>, def: &TypeDef) -> Result<bool, Error> {
        let prefix = def.id.to_be_bytes();
        Ok(self.tables.data.prefix_iter(txn, &prefix)?.next().is_none())
    }

    /// Drops a type: its name is gone at once, its rows go in the background.
    pub(crate) fn drop_type(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        name: &str,
    ) -> Result<(), Error> {
        let def = Arc::clone(ledger.catalog.require(name)?);
        self.refuse_if_referred_to(txn, ledger, &def)?;
        for index in &def.indexes {
            self.undefine_index(txn, ledger, &def, index)?;
        }
        if let Some(schema) = &def.schema {
            self.undefine_schema(txn, ledger, &def, schema)?;
        }
        self.undefine(txn, ledger, name, def.version, LogAction::TypeDrop)?;
        self.tables
            .meta
            .put(txn, &layout::trash_key(def.id), b"t")?;
        for key in [
            layout::count_key(def.id),
            layout::schema_check_key(def.id),
            layout::cured_key(def.id),
        ] {
            self.tables.meta.delete(txn, &key)?;
        }
        self.reload(txn, ledger)
    }

    /// Drops an index.
    pub(crate) fn drop_index(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        type_name: &str,
        name: &str,
    ) -> Result<(), Error> {
        let def = Arc::clone(ledger.catalog.require(type_name)?);
        let index = def.index(name).ok_or_else(|| Error::IndexNotRegistered {
            type_name: type_name.to_owned(),
            name: name.to_owned(),
            reason: "is not registered",
        })?;
        self.undefine_index(txn, ledger, &def, index)?;
        self.reload(txn, ledger)
    }

    fn undefine_index(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        def: &TypeDef,
        index: &IndexDef,
    ) -> Result<(), Error> {
        let key = layout::index_catalog_key(&def.name, &index.name);
        self.undefine(txn, ledger, &key, index.version, LogAction::IndexDrop)?;
        self.tables
            .meta
            .put(txn, &layout::trash_key(index.row.id), b"i")?;
        self.tables
            .meta
            .delete(txn, &layout::build_key(index.row.id))?;
        Ok(())
    }

    /// Writes a definition, in place of the `old` one if there is one.
    pub(super) fn define(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        key: &str,
        old: Option<Header>,
        row: &impl serde::Serialize,
        action: LogAction,
    ) -> Result<(), Error> {
        let text = to_text(row)?;
        let mut row_key = Vec::new();
        layout::record_key(CATALOG_ID, key, &mut row_key);
        let row = Row {
            type_id: CATALOG_ID,
            key,
            place: &row_key,
            old,
            expires_ms: None,
            action,
        };
        self.write_row(txn, ledger, &row, &text)?;
        self.reload(txn, ledger)
    }

    pub(super) fn undefine(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        key: &str,
        version: u64,
        action: LogAction,
    ) -> Result<(), Error> {
        let mut row_key = Vec::new();
        layout::record_key(CATALOG_ID, key, &mut row_key);
        let old = Some(Header {
            version,
            hlc: 0,
            created_ms: 0,
            expires_ms: None,
        });
        let row = Row {
            type_id: CATALOG_ID,
            key,
            place: &row_key,
            old,
            expires_ms: None,
            action,
        };
        self.remove_row(txn, ledger, &row)?;
        Ok(())
    }

    /// Rewrites an index definition in place: no version, no log entry, but a new catalog generation.
    pub(crate) fn amend_index(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        type_name: &str,
        index: &IndexDef,
        row: &IndexRow,
    ) -> Result<(), Error> {
        let key = layout::index_catalog_key(type_name, &index.name);
        self.amend(txn, ledger, &key, row)
    }

    /// Rewrites a definition in place.
    pub(super) fn amend(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        key: &str,
        row: &impl serde::Serialize,
    ) -> Result<(), Error> {
        let mut row_key = Vec::new();
        layout::record_key(CATALOG_ID, key, &mut row_key);
        let header = match self.tables.data.get(txn, &row_key)? {
            Some(stored) => layout::decode_record(stored)?.0,
            None => return Err(Error::Damaged(format!("{key} has no catalog row"))),
        };
        let row = layout::record_row(header, &to_text(row)?);
        self.tables.data.put(txn, &row_key, &row)?;
        self.reload(txn, ledger)
    }

    pub(super) fn mark_multikey(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        def: &TypeDef,
        indexes: &[Arc<IndexDef>],
    ) -> Result<(), Error> {
        for index in indexes {
            let row = IndexRow {
                multikey: true,
                ..index.row.clone()
            };
            self.amend_index(txn, ledger, &def.name, index, &row)?;
        }
        Ok(())
    }

    pub(super) fn reload(&self, txn: &RwTxn<'_>, ledger: &mut Ledger) -> Result<(), Error> {
        ledger.state.catalog += 1;
        ledger.catalog = Arc::new(Catalog::load(
            self.tables,
            txn,
            ledger.state.catalog,
            &ledger.catalog,
        )?);
        Ok(())
    }
}

pub(super) fn next_id(ledger: &mut Ledger) -> u32 {
    let id = ledger.state.next_id;
    ledger.state.next_id += 1;
    id
}

fn check_index_count(count: usize) -> Result<(), Error> {
    if count > INDEXES_MAX {
        return Err(Error::TooLarge {
            what: "the number of indexes of the type",
            limit: INDEXES_MAX,
        });
    }
    Ok(())
}

/// An existing index must have the definition asked for.
fn check_same(def: &TypeDef, spec: &IndexSpec) -> Result<(), Error> {
    let name = spec.name();
    match def.index(&name) {
        Some(index) if index.row.unique != spec.unique => Err(Error::AlreadyExists {
            what: format!(
                "index {name:?} of type {:?}, with unique = {},",
                def.name, index.row.unique
            ),
        }),
        _ => Ok(()),
    }
}

fn to_text(row: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string(row).map_err(|error| Error::Damaged(format!("catalog row: {error}")))
}
