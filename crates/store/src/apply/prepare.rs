//! Everything that can refuse an operation, before anything is changed.

use std::{borrow::Cow, sync::Arc};

use heed::RoTxn;
use okdb_query::Value;

use super::{Applier, Ledger};
use crate::{
    Action, Error, Operation,
    catalog::{Catalog, IndexDef, TypeDef},
    derived::{self, DerivedRow},
    index::{self, parse_stored},
    layout::{self, Header},
    violations::{self, FAILURES_MAX, ViolationKind, ViolationRow},
    write::check_ttl,
};

/// What an operation comes to.
pub(super) enum Prepared<'o> {
    /// The record's row changes.
    Write(Change<'o>),
    /// The record is deleted, with all that follows from that.
    Remove,
    /// First a record that is past its expiry has to go.
    Expired(Arc<TypeDef>, String),
}

/// What happens to one record.
pub(super) struct Change<'o> {
    pub(super) old: Option<Header>,
    pub(super) old_bytes: usize,
    /// The new text, `None` for a removal.
    pub(super) text: Option<Cow<'o, str>>,
    pub(super) expires_ms: Option<u64>,
    pub(super) removed: Vec<DerivedRow>,
    pub(super) added: Vec<DerivedRow>,
    pub(super) newly_multikey: Vec<Arc<IndexDef>>,
    pub(super) violations_before: Vec<(ViolationKind, ViolationRow)>,
    pub(super) violations: Vec<(ViolationKind, ViolationRow)>,
}

impl Change<'_> {
    pub(super) fn added_bytes(&self) -> usize {
        self.added.iter().map(|row| row.key.len()).sum()
    }
}

/// A record as it is stored.
#[derive(Clone, Copy)]
pub(super) struct Stored<'t> {
    pub(super) header: Header,
    pub(super) text: &'t str,
}

/// Whether a record can be referred to.
enum Target {
    Live,
    Expired(Arc<TypeDef>),
    Absent,
}

impl Applier<'_> {
    pub(super) fn stored<'t>(
        &self,
        txn: &'t RoTxn<'_>,
        row_key: &[u8],
    ) -> Result<Option<Stored<'t>>, Error> {
        match self.tables.data.get(txn, row_key)? {
            Some(row) => {
                let (header, text) = layout::decode_record(row)?;
                Ok(Some(Stored { header, text }))
            }
            None => Ok(None),
        }
    }

    pub(super) fn prepare<'o>(
        &self,
        txn: &RoTxn<'_>,
        ledger: &Ledger,
        def: &Arc<TypeDef>,
        operation: &'o Operation,
        row_key: &[u8],
    ) -> Result<Prepared<'o>, Error> {
        let stored = self.stored(txn, row_key)?;
        if let Some(stored) = stored
            && !stored.header.is_live(self.now_ms)
        {
            return Ok(Prepared::Expired(Arc::clone(def), operation.key.clone()));
        }
        let version = stored.map(|stored| stored.header.version);
        operation.guard.check(version)?;
        let expires_ms = self.expiry(operation, stored)?;
        let old_doc = match (&operation.action, stored) {
            (Action::Remove | Action::SetTtl(_) | Action::ClearTtl, _) | (_, None) => None,
            (Action::Patch(_), Some(stored)) => Some(parse_stored(stored.text)?),
            (_, Some(stored)) if reads_documents(def) => Some(parse_stored(stored.text)?),
            _ => None,
        };
        let text = match (&operation.action, stored) {
            (Action::Create(_), Some(_)) => {
                return Err(Error::AlreadyExists {
                    what: format!("record {:?}", operation.key),
                });
            }
            (Action::Put(text) | Action::Create(text), _) | (Action::Update(text), Some(_)) => {
                Cow::Borrowed(text.as_str())
            }
            (_, None) => return Err(Error::NotFound),
            (Action::Patch(patch), Some(_)) => {
                Cow::Owned(patch.apply(old_doc.as_ref().ok_or(Error::NotFound)?)?)
            }
            (Action::Remove, Some(_)) => return Ok(Prepared::Remove),
            (Action::SetTtl(_) | Action::ClearTtl, Some(stored)) => {
                return Ok(Prepared::Write(only_expiry(
                    def, operation, stored, expires_ms,
                )?));
            }
        };
        self.check_size(&text)?;
        let draft = Draft {
            def,
            key: &operation.key,
            stored,
            old_doc,
            expires_ms,
            forced: false,
        };
        self.check_document(txn, &ledger.catalog, draft, text)
    }

    /// The change that rewrites a record because another one went: nothing refuses it, what does not hold is recorded.
    pub(super) fn prepare_rewrite(
        &self,
        txn: &RoTxn<'_>,
        ledger: &Ledger,
        def: &Arc<TypeDef>,
        key: &str,
        stored: Stored<'_>,
        text: String,
    ) -> Result<Change<'static>, Error> {
        let draft = Draft {
            def,
            key,
            stored: Some(stored),
            old_doc: Some(parse_stored(stored.text)?),
            expires_ms: stored.header.expires_ms,
            forced: true,
        };
        match self.check_document(txn, &ledger.catalog, draft, Cow::Owned(text))? {
            Prepared::Write(change) => Ok(change),
            Prepared::Remove | Prepared::Expired(..) => {
                Err(Error::Damaged("a forced write was not one".into()))
            }
        }
    }

    /// The change that deletes a record by itself.
    pub(super) fn prepare_removal(
        &self,
        txn: &RoTxn<'_>,
        def: &TypeDef,
        key: &str,
        stored: Stored<'_>,
    ) -> Result<Change<'static>, Error> {
        let doc = if reads_documents(def) {
            Some(parse_stored(stored.text)?)
        } else {
            None
        };
        let expires_ms = stored.header.expires_ms;
        Ok(Change {
            old: Some(stored.header),
            old_bytes: stored.text.len(),
            text: None,
            expires_ms: None,
            removed: derived::of_stored(def, key, expires_ms, doc.as_ref())?,
            added: Vec::new(),
            newly_multikey: Vec::new(),
            violations_before: violations::of_record(self.tables, txn, def.id, key)?,
            violations: Vec::new(),
        })
    }

    /// When the record will expire after this operation.
    fn expiry(
        &self,
        operation: &Operation,
        stored: Option<Stored<'_>>,
    ) -> Result<Option<u64>, Error> {
        let ttl = match operation.action {
            Action::SetTtl(ttl) => Some(ttl),
            Action::ClearTtl => return Ok(None),
            _ => operation.ttl,
        };
        match ttl {
            Some(ttl) => {
                check_ttl(ttl)?;
                Ok(Some(self.now_ms.saturating_add(ttl)))
            }
            None => Ok(stored.and_then(|stored| stored.header.expires_ms)),
        }
    }

    /// Schema, references and unique indexes, and the rows that the new document has.
    fn check_document<'o>(
        &self,
        txn: &RoTxn<'_>,
        catalog: &Catalog,
        draft: Draft<'_, '_>,
        text: Cow<'o, str>,
    ) -> Result<Prepared<'o>, Error> {
        let Draft {
            def,
            key,
            stored,
            old_doc,
            expires_ms,
            forced,
        } = draft;
        let new_doc = if reads_documents(def) {
            Some(parse_stored(&text)?)
        } else {
            None
        };
        let mut violations_before = Vec::new();
        let mut found = Vec::new();
        if let Some(schema) = &def.schema {
            violations_before = violations::of_record(self.tables, txn, def.id, key)?;
            let failures = schema.schema()?.check(&text, FAILURES_MAX);
            if !failures.is_empty() && schema.row.enforce && !forced {
                return Err(Error::SchemaViolation {
                    failures: failures
                        .into_iter()
                        .map(|failure| [failure.path, failure.message])
                        .collect(),
                });
            }
            found.extend(failures.into_iter().map(|failure| {
                let row = ViolationRow::failure(failure, self.now_ms);
                (ViolationKind::Schema, row)
            }));
        }
        if let Some(doc) = &new_doc {
            let judge = References {
                def,
                key,
                old_doc: old_doc.as_ref(),
                violations_before: &violations_before,
            };
            match self.check_references(txn, catalog, &judge, doc, &mut found)? {
                Some((target, key)) if !forced => return Ok(Prepared::Expired(target, key)),
                _ => {}
            }
        }
        let mut newly_multikey = Vec::new();
        let mut expired_holder = None;
        let added = derived::of_new(def, key, expires_ms, new_doc.as_ref(), &mut |index, all| {
            if index.row.unique
                && !forced
                && let Some(holder) = index::conflict(self.tables, txn, index, def.id, all, key)?
            {
                match self.target(txn, def, &holder)? {
                    Target::Live => {
                        return Err(Error::UniqueConstraint {
                            index: index.name.clone(),
                            key: holder,
                        });
                    }
                    Target::Expired(_) | Target::Absent => expired_holder = Some(holder),
                }
            }
            if all.multikey && !index.row.multikey {
                newly_multikey.push(Arc::clone(index));
            }
            Ok(())
        })?;
        if let Some(holder) = expired_holder {
            return Ok(Prepared::Expired(Arc::clone(def), holder));
        }
        let before = match stored {
            Some(stored) => {
                derived::of_stored(def, key, stored.header.expires_ms, old_doc.as_ref())?
            }
            None => Vec::new(),
        };
        let (removed, added) = derived::difference(before, added);
        Ok(Prepared::Write(Change {
            old: stored.map(|stored| stored.header),
            old_bytes: stored.map_or(0, |stored| stored.text.len()),
            text: Some(text),
            expires_ms,
            removed,
            added,
            newly_multikey,
            violations_before,
            violations: found,
        }))
    }

    /// Each record that the document refers to must exist. A reference that was let in dangling, and has not changed, may
    /// stay so. Tells of a target that has expired and has to go first.
    fn check_references(
        &self,
        txn: &RoTxn<'_>,
        catalog: &Catalog,
        judge: &References<'_>,
        doc: &Value<'_>,
        found: &mut Vec<(ViolationKind, ViolationRow)>,
    ) -> Result<Option<(Arc<TypeDef>, String)>, Error> {
        for reference in judge.def.refs() {
            let old: Vec<String> = match judge.old_doc {
                Some(old) => {
                    let values = reference.path.values(old).into_iter();
                    values.map(|(_, target)| target.into_owned()).collect()
                }
                None => Vec::new(),
            };
            for (path, target) in reference.path.values(doc) {
                if reference.target == judge.def.name && target == judge.key {
                    continue;
                }
                if old.iter().any(|old| *old == target) {
                    if judge.was_dangling(reference.id, &target) {
                        let row = ViolationRow::dangling(
                            reference.id,
                            path,
                            &reference.target,
                            &target,
                            self.now_ms,
                        );
                        found.push((ViolationKind::Ref, row));
                    }
                    continue;
                }
                let state = match catalog.get(&reference.target) {
                    Some(def) => self.target(txn, def, &target)?,
                    None => Target::Absent,
                };
                match state {
                    Target::Live => {}
                    Target::Expired(def) => return Ok(Some((def, target.into_owned()))),
                    Target::Absent => {
                        return Err(Error::ForeignKeyViolation {
                            path,
                            type_name: reference.target.clone(),
                            key: target.into_owned(),
                        });
                    }
                }
            }
        }
        Ok(None)
    }

    fn target(&self, txn: &RoTxn<'_>, def: &Arc<TypeDef>, key: &str) -> Result<Target, Error> {
        // A reference may hold any string; one that is no key names no record.
        if crate::check_key(key).is_err() {
            return Ok(Target::Absent);
        }
        let mut row_key = Vec::new();
        layout::record_key(def.id, key, &mut row_key);
        Ok(match self.stored(txn, &row_key)? {
            None => Target::Absent,
            Some(stored) if stored.header.is_live(self.now_ms) => Target::Live,
            Some(_) => Target::Expired(Arc::clone(def)),
        })
    }

    /// Whether a record is there and has not expired.
    pub(crate) fn is_live(
        &self,
        txn: &RoTxn<'_>,
        def: &Arc<TypeDef>,
        key: &str,
    ) -> Result<bool, Error> {
        Ok(matches!(self.target(txn, def, key)?, Target::Live))
    }
}

/// A document on its way into a record.
struct Draft<'d, 's> {
    def: &'d Arc<TypeDef>,
    key: &'d str,
    stored: Option<Stored<'s>>,
    old_doc: Option<Value<'s>>,
    expires_ms: Option<u64>,
    /// Whether it is written whatever it violates.
    forced: bool,
}

/// Whose references are checked.
struct References<'r> {
    def: &'r Arc<TypeDef>,
    key: &'r str,
    old_doc: Option<&'r Value<'r>>,
    violations_before: &'r [(ViolationKind, ViolationRow)],
}

impl References<'_> {
    fn was_dangling(&self, ref_id: u32, target: &str) -> bool {
        let same = |row: &ViolationRow| {
            row.target
                .as_ref()
                .is_some_and(|(id, key)| *id == ref_id && key == target)
        };
        self.violations_before.iter().any(|(_, row)| same(row))
    }
}

fn reads_documents(def: &TypeDef) -> bool {
    derived::reads_documents(def)
}

/// The change of a record of which only the expiry changes.
fn only_expiry(
    def: &TypeDef,
    operation: &Operation,
    stored: Stored<'_>,
    expires_ms: Option<u64>,
) -> Result<Change<'static>, Error> {
    let rows = |expires_ms| derived::of_stored(def, &operation.key, expires_ms, None);
    let (removed, added) = derived::difference(rows(stored.header.expires_ms)?, rows(expires_ms)?);
    Ok(Change {
        old: Some(stored.header),
        old_bytes: stored.text.len(),
        text: Some(Cow::Owned(stored.text.to_owned())),
        expires_ms,
        removed,
        added,
        newly_multikey: Vec::new(),
        violations_before: Vec::new(),
        violations: Vec::new(),
    })
}
