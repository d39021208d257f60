//! The relations of expiries, references and violations.

use std::collections::{HashMap, HashSet};

use okdb_query::Value;

use super::Walk;
use crate::{
    Error, SchemaState,
    catalog::TypeDef,
    check_key,
    layout::{self, Header},
    violations::{self, FAILURES_MAX, ViolationKind},
};

impl Walk<'_> {
    /// Whether a record is there and has not expired.
    pub(super) fn is_live(&self, type_id: u32, key: &str) -> Result<bool, Error> {
        Ok(self
            .header(type_id, key)?
            .is_some_and(|header| header.is_live(self.now_ms)))
    }

    fn header(&self, type_id: u32, key: &str) -> Result<Option<Header>, Error> {
        let mut row_key = Vec::new();
        layout::record_key(type_id, key, &mut row_key);
        match self.tables.data.get(self.txn, &row_key)? {
            Some(row) => Ok(Some(layout::decode_record(row)?.0)),
            None => Ok(None),
        }
    }

    /// A record that expires is among those that do.
    pub(super) fn check_expiry(
        &mut self,
        def: &TypeDef,
        key: &str,
        header: &Header,
    ) -> Result<(), Error> {
        if let Some(expires_ms) = header.expires_ms {
            let place = layout::ttl_key(expires_ms, def.id, key);
            if self.tables.ttl.get(self.txn, &place)?.is_none() {
                let detail = "it expires, and nobody would remove it then";
                self.problem("ttl", &def.name, key, detail);
            }
        }
        Ok(())
    }

    /// What a record refers to, and what it violates, is known.
    pub(super) fn check_references(
        &mut self,
        def: &TypeDef,
        key: &str,
        text: &str,
        doc: &Value<'_>,
        header: &Header,
    ) -> Result<(), Error> {
        let Some(schema) = &def.schema else {
            return Ok(());
        };
        if schema.row.state != SchemaState::Ready || !header.is_live(self.now_ms) {
            return Ok(());
        }
        let rows = violations::of_record(self.tables, self.txn, def.id, key);
        let Some(rows) = self.decoded("violation", &def.name, key, rows)? else {
            return Ok(());
        };
        let compiled = schema.schema();
        if let Some(compiled) = self.decoded("catalog", &def.name, "", compiled)? {
            let failing = compiled.check(text, FAILURES_MAX);
            let failing: HashSet<_> = failing
                .iter()
                .map(|failure| failure.path.as_str())
                .collect();
            let of_schema = rows
                .iter()
                .filter(|(kind, _)| *kind == ViolationKind::Schema);
            let noted: HashSet<_> = of_schema.map(|(_, row)| row.path.as_str()).collect();
            for path in failing.difference(&noted) {
                let detail =
                    format!("it does not fit the schema at {path:?}, and that is not noted");
                self.problem("violation", &def.name, key, detail);
            }
            for path in noted.difference(&failing) {
                let detail = format!("it is said not to fit the schema at {path:?}, and does");
                self.problem("violation", &def.name, key, detail);
            }
        }
        for reference in &schema.refs {
            let mut targets = HashSet::new();
            for (path, target) in reference.path.values(doc) {
                if check_key(&target).is_ok() && targets.insert(target.clone()) {
                    let row_key = layout::refs_key(reference.id, &target, key);
                    let count = self.entries.entry(reference.id).or_default();
                    count.expected += 1;
                    if self.tables.refs.get(self.txn, &row_key)?.is_none() {
                        count.missing += 1;
                        let detail = format!(
                            "that it refers to {}/{target} is not known there",
                            reference.target
                        );
                        self.problem("reference", &def.name, key, detail);
                    }
                }
                let noted = rows
                    .iter()
                    .any(|(kind, row)| *kind == ViolationKind::Ref && row.path == path);
                let target_id = self.catalog.get(&reference.target).map(|def| def.id);
                let exists = match target_id {
                    Some(id) if check_key(&target).is_ok() => self.header(id, &target)?.is_some(),
                    _ => false,
                };
                if !exists && !noted {
                    let detail = format!(
                        "{path} refers to {}/{target}, which does not exist, and that is not noted",
                        reference.target
                    );
                    self.problem("violation", &def.name, key, detail);
                }
            }
        }
        Ok(())
    }

    /// Each reference row belongs to a record, and there are no more of them than records refer.
    pub(super) fn reference_rows(&mut self) -> Result<(), Error> {
        let mut known: HashMap<u32, (u32, String, bool)> = HashMap::new();
        for def in self.catalog.types() {
            for reference in def.refs() {
                let ready = def
                    .schema
                    .as_ref()
                    .is_some_and(|schema| schema.row.state == SchemaState::Ready);
                known.insert(reference.id, (def.id, def.name.clone(), ready));
            }
        }
        let mut found: HashMap<u32, u64> = HashMap::new();
        for row in self.tables.refs.iter(self.txn)? {
            let (row_key, _) = row?;
            self.saw_row();
            let decoded = layout::decode_refs(row_key);
            let Some((id, target, source)) = self.decoded("reference", "", "", decoded)? else {
                continue;
            };
            if self.trash.contains(&id) {
                continue;
            }
            match known.get(&id) {
                None => {
                    let detail = format!("a row of the unknown reference {id}");
                    self.problem("orphan", "", source, detail);
                }
                Some((type_id, name, _)) => match self.header(*type_id, source)? {
                    None => {
                        let detail =
                            format!("it is said to refer to {target:?}, and does not exist");
                        self.problem("reference", name, source, detail);
                    }
                    // What has expired was not counted with the records.
                    Some(header) if header.is_live(self.now_ms) => {
                        *found.entry(id).or_default() += 1;
                    }
                    Some(_) => {}
                },
            }
        }
        for (id, (_, name, ready)) in known {
            let (expected, missing) = match self.entries.get(&id) {
                Some(count) => (count.expected, count.missing),
                None => (0, 0),
            };
            let found = found.get(&id).copied().unwrap_or(0);
            if ready && found > expected - missing {
                let detail = format!(
                    "{found} rows of reference {id} say that records refer; there are {expected}, of which {missing} lack their row"
                );
                self.problem("reference", &name, "", detail);
            }
        }
        Ok(())
    }

    /// Each expiry belongs to a record that expires then.
    pub(super) fn expiries(&mut self) -> Result<(), Error> {
        for row in self.tables.ttl.iter(self.txn)? {
            let (row_key, _) = row?;
            self.saw_row();
            let decoded = layout::decode_ttl(row_key);
            let Some((expires_ms, type_id, key)) = self.decoded("ttl", "", "", decoded)? else {
                continue;
            };
            if self.trash.contains(&type_id) {
                continue;
            }
            let header = self.header(type_id, key);
            let name = self.type_name(type_id);
            let header = self.decoded("record", &name, key, header)?.flatten();
            if header.and_then(|header| header.expires_ms) != Some(expires_ms) {
                let detail = format!("it is said to expire at {expires_ms}, and does not");
                self.problem("ttl", &name, key, detail);
            }
        }
        Ok(())
    }

    /// Each violation belongs to a record of a type with a schema, and each reference that is said to lead nowhere does.
    pub(super) fn violations(&mut self) -> Result<(), Error> {
        for row in self.tables.violations.iter(self.txn)? {
            let (row_key, row) = row?;
            self.saw_row();
            let decoded = layout::decode_violation(row_key);
            let Some((type_id, key, kind)) = self.decoded("violation", "", "", decoded)? else {
                continue;
            };
            let cured = self
                .tables
                .meta
                .get(self.txn, &layout::cured_key(type_id))?
                .is_some();
            if cured || self.trash.contains(&type_id) {
                continue;
            }
            let name = self.type_name(type_id);
            let schema = self
                .catalog
                .by_id(type_id)
                .and_then(|def| def.schema.clone());
            let Some(schema) = schema else {
                self.problem(
                    "orphan",
                    &name,
                    key,
                    "a violation of a type without a schema",
                );
                continue;
            };
            if self.header(type_id, key)?.is_none() {
                self.problem("violation", &name, key, "it is noted, and does not exist");
                continue;
            }
            let parsed = violations::decode_row(row);
            let Some(row) = self.decoded("violation", &name, key, parsed)? else {
                continue;
            };
            if schema.row.state != SchemaState::Ready || kind != ViolationKind::Ref as u8 {
                continue;
            }
            let target = row.target.as_ref().and_then(|(ref_id, target)| {
                let reference = schema
                    .refs
                    .iter()
                    .find(|reference| reference.id == *ref_id)?;
                Some((self.catalog.get(&reference.target)?.id, target))
            });
            if let Some((id, target)) = target
                && self.is_live(id, target)?
            {
                let detail = format!(
                    "it is said to refer to nothing at {}, and does not",
                    row.path
                );
                self.problem("violation", &name, key, detail);
            }
        }
        Ok(())
    }
}
