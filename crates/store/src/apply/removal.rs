//! What the end of a record means for those that refer to it: planned as a whole, then done.
//!
//! The plan is made of reads alone, with a list instead of recursion, so that cycles end and chains may be long. A record
//! that refers to one that goes, and goes itself, holds nobody back.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use heed::{RoTxn, RwTxn};
use okdb_schema::OnDelete;

use super::{Applier, Ledger};
use crate::{
    Error,
    catalog::{Catalog, TypeDef},
    layout,
    violations::{self, ViolationKind, ViolationRow},
};

/// Why a record goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Somebody deletes it: `restrict` holds it back.
    Deleted,
    /// Its time is over: what would hold it back becomes a violation.
    Expired,
}

/// A reference to a record that goes, from one that stays.
struct Loose {
    source: Arc<TypeDef>,
    key: String,
    /// The place of the reference in the source's schema.
    place: usize,
    target: String,
}

/// All that a removal changes.
struct Plan {
    /// The records that go, the one asked for first.
    doomed: Vec<(Arc<TypeDef>, String)>,
    nulled: Vec<Loose>,
    dangling: Vec<Loose>,
}

impl Applier<'_> {
    /// Deletes a record and does what follows; returns the clock of its own removal.
    pub(super) fn remove(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        def: &Arc<TypeDef>,
        key: &str,
        cause: Cause,
    ) -> Result<u64, Error> {
        if ledger.catalog.referrers(&def.name).is_empty() {
            return self.remove_alone(txn, ledger, def, key);
        }
        let plan = self.plan_removal(txn, &ledger.catalog, def, key, cause)?;
        self.set_null(txn, ledger, &plan.nulled)?;
        // Those that refer go before those they refer to.
        let mut clock = ledger.state.clock;
        for (def, key) in plan.doomed.iter().rev() {
            clock = self.remove_alone(txn, ledger, def, key)?;
        }
        for loose in &plan.dangling {
            self.note_dangling(txn, loose)?;
        }
        Ok(clock)
    }

    /// Removes a record whose time is over, if that is still so.
    pub(crate) fn expire(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        def: &Arc<TypeDef>,
        key: &str,
    ) -> Result<bool, Error> {
        let mut row_key = Vec::new();
        layout::record_key(def.id, key, &mut row_key);
        match self.stored(txn, &row_key)? {
            Some(stored) if !stored.header.is_live(self.now_ms) => {}
            _ => return Ok(false),
        }
        self.remove(txn, ledger, def, key, Cause::Expired)?;
        Ok(true)
    }

    fn plan_removal(
        &self,
        txn: &RoTxn<'_>,
        catalog: &Catalog,
        def: &Arc<TypeDef>,
        key: &str,
        cause: Cause,
    ) -> Result<Plan, Error> {
        let mut plan = Plan {
            doomed: vec![(Arc::clone(def), key.to_owned())],
            nulled: Vec::new(),
            dangling: Vec::new(),
        };
        let mut seen: HashSet<(u32, String)> = HashSet::from([(def.id, key.to_owned())]);
        let mut restricted = Vec::new();
        let mut next = 0;
        while let Some((target_def, target)) = plan.doomed.get(next).cloned() {
            next += 1;
            for referrer in catalog.referrers(&target_def.name) {
                let Some(reference) = referrer.reference() else {
                    continue;
                };
                let prefix = layout::refs_prefix(reference.id, &target);
                for row in self.tables.refs.prefix_iter(txn, &prefix)? {
                    let (_, _, source) = layout::decode_refs(row?.0)?;
                    let place = (referrer.source.id, source.to_owned());
                    if seen.contains(&place) {
                        continue;
                    }
                    let doomed = reference.on_delete == OnDelete::Cascade
                        || !self.is_live(txn, &referrer.source, source)?;
                    if doomed {
                        plan.doomed
                            .push((Arc::clone(&referrer.source), place.1.clone()));
                        seen.insert(place);
                        continue;
                    }
                    let loose = Loose {
                        source: Arc::clone(&referrer.source),
                        key: place.1,
                        place: referrer.place(),
                        target: target.clone(),
                    };
                    match reference.on_delete {
                        OnDelete::Restrict if cause == Cause::Deleted => restricted.push(loose),
                        OnDelete::SetNull => plan.nulled.push(loose),
                        _ => plan.dangling.push(loose),
                    }
                }
            }
        }
        let stays = |loose: &Loose| !seen.contains(&(loose.source.id, loose.key.clone()));
        if let Some(loose) = restricted.into_iter().find(stays) {
            return Err(Error::ForeignKeyRestricted {
                type_name: loose.source.name.clone(),
                key: loose.key,
            });
        }
        plan.nulled.retain(stays);
        plan.dangling.retain(stays);
        Ok(plan)
    }

    /// Deletes one record, whatever refers to it.
    fn remove_alone(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        def: &Arc<TypeDef>,
        key: &str,
    ) -> Result<u64, Error> {
        let mut row_key = Vec::new();
        layout::record_key(def.id, key, &mut row_key);
        let change = match self.stored(txn, &row_key)? {
            Some(stored) => self.prepare_removal(txn, def, key, stored)?,
            None => {
                return Err(Error::Damaged(format!(
                    "a reference of {:?} is kept for the absent record {key:?}",
                    def.name
                )));
            }
        };
        self.change(txn, ledger, def, key, &row_key, change)
    }

    /// Rewrites the records that refer with null in place of their references.
    fn set_null(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &mut Ledger,
        nulled: &[Loose],
    ) -> Result<(), Error> {
        // A record may lose several references, and is written once.
        let mut records: BTreeMap<(u32, &str), Vec<&Loose>> = BTreeMap::new();
        for loose in nulled {
            let place = (loose.source.id, loose.key.as_str());
            records.entry(place).or_default().push(loose);
        }
        for ((type_id, key), all) in records {
            let mut row_key = Vec::new();
            layout::record_key(type_id, key, &mut row_key);
            let Some(stored) = self.stored(txn, &row_key)? else {
                return Err(Error::Damaged(format!(
                    "a reference is kept for the absent record {key:?}"
                )));
            };
            let mut text = stored.text.to_owned();
            for loose in &all {
                if let Some(reference) = loose.source.refs().get(loose.place) {
                    text = reference
                        .path
                        .set_null(&text, &loose.target)
                        .map_err(|error| {
                            Error::Damaged(format!("a stored value does not parse: {error}"))
                        })?;
                }
            }
            let Some(def) = all.first().map(|loose| Arc::clone(&loose.source)) else {
                continue;
            };
            let change = self.prepare_rewrite(txn, ledger, &def, key, stored, text)?;
            self.change(txn, ledger, &def, key, &row_key, change)?;
        }
        Ok(())
    }

    /// Records that a reference leads nowhere now.
    fn note_dangling(&self, txn: &mut RwTxn<'_>, loose: &Loose) -> Result<(), Error> {
        let Some(reference) = loose.source.refs().get(loose.place) else {
            return Ok(());
        };
        let mut row_key = Vec::new();
        layout::record_key(loose.source.id, &loose.key, &mut row_key);
        let Some(stored) = self.stored(txn, &row_key)? else {
            return Ok(());
        };
        let doc = crate::index::parse_stored(stored.text)?;
        let before = violations::of_record(self.tables, txn, loose.source.id, &loose.key)?;
        let mut after = before.clone();
        for (path, target) in reference.path.values(&doc) {
            let known = |(kind, row): &(ViolationKind, ViolationRow)| {
                *kind == ViolationKind::Ref && row.path == path
            };
            if target == loose.target.as_str() && !before.iter().any(known) {
                let row = ViolationRow::dangling(
                    reference.id,
                    path,
                    &reference.target,
                    &target,
                    self.now_ms,
                );
                after.push((ViolationKind::Ref, row));
            }
        }
        let source = loose.source.id;
        violations::replace(self.tables, txn, source, &loose.key, &before, after)
    }

    /// A record that comes (back) into being cures the references that had led nowhere.
    pub(super) fn cure(
        &self,
        txn: &mut RwTxn<'_>,
        ledger: &Ledger,
        def: &TypeDef,
        key: &str,
    ) -> Result<(), Error> {
        let referrers = ledger.catalog.referrers(&def.name);
        if referrers.is_empty() || self.tables.violations.is_empty(txn)? {
            return Ok(());
        }
        for referrer in referrers {
            let Some(reference) = referrer.reference() else {
                continue;
            };
            let prefix = layout::refs_prefix(reference.id, key);
            let mut sources = Vec::new();
            for row in self.tables.refs.prefix_iter(txn, &prefix)? {
                let (_, _, source) = layout::decode_refs(row?.0)?;
                sources.push(source.to_owned());
            }
            let type_id = referrer.source.id;
            for source in sources {
                let before = violations::of_record(self.tables, txn, type_id, &source)?;
                let stays = |row: &ViolationRow| {
                    row.target.as_ref() != Some(&(reference.id, key.to_owned()))
                };
                let after: Vec<_> = before
                    .iter()
                    .filter(|(_, row)| stays(row))
                    .cloned()
                    .collect();
                if after.len() != before.len() {
                    violations::replace(self.tables, txn, type_id, &source, &before, after)?;
                }
            }
        }
        Ok(())
    }
}
