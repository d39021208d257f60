//! Types and indexes: their definitions as rows, and this process's cached view of them.
//!
//! Definitions are records of a pseudo type, so that versions, tombstones and the change log work for them as for data.
//! The cache is never trusted by itself: each transaction compares the catalog generation in the snapshot it reads with
//! the cached one, so a type or index that another process made, dropped or finished building is seen at once, poke or
//! no poke. While the snapshot is the one last compared (the common case of a read-mostly load), even that is skipped.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use arc_swap::ArcSwap;
use heed::RoTxn;
use okdb_query::Path;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    Error, IndexSpec, SchemaInfo,
    layout::{self, CATALOG_ID, SCHEMA_NAME, State},
    lmdb::Tables,
    schemas::{RefDef, SchemaDef, SchemaRow, SchemaState},
    store::wall_ms,
};

/// How far an index is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexState {
    /// Entries of older records are still being added; writers maintain it, no query uses it.
    Building,
    /// Complete.
    Ready,
    /// The build met records that the index cannot hold; it answers nothing and waits to be deleted.
    Failed,
}

/// Why an index build failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildFailure {
    /// For people.
    pub message: String,
    /// Pairs of keys that hold the same value, at most a handful.
    pub duplicates: Vec<[String; 2]>,
    /// When it failed, in ms since 1970.
    #[serde(default, rename = "detectedAt")]
    pub detected_at: u64,
}

/// An index, for people and programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IndexInfo {
    /// The fields joined by `~`.
    pub name: String,
    /// Dotted paths, in index order.
    pub fields: Vec<String>,
    /// Whether two records may not share a value.
    pub unique: bool,
    /// `value`.
    pub kind: &'static str,
    /// How far it is.
    pub state: IndexState,
    /// Share of the records that the build has seen, 0 to 1.
    pub progress: f64,
    /// Why the build failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<BuildFailure>,
}

/// A type, for people and programs.
#[derive(Clone, Debug, Serialize)]
pub struct TypeInfo {
    /// Its name.
    pub name: String,
    /// How many records it has.
    pub count: u64,
    /// Clock of the last change in it.
    pub clock: u64,
    /// Its indexes, by name.
    pub indexes: Vec<IndexInfo>,
    /// Its JSON Schema.
    pub schema: Option<Box<RawValue>>,
}

/// The stored definition of a type.
#[derive(Serialize, Deserialize)]
pub(crate) struct TypeRow {
    pub(crate) id: u32,
}

/// The stored definition of an index.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct IndexRow {
    pub(crate) id: u32,
    pub(crate) fields: Vec<String>,
    pub(crate) unique: bool,
    pub(crate) state: IndexState,
    /// Whether any record ever gave more than one entry, or one from inside an array.
    pub(crate) multikey: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<BuildFailure>,
}

/// An index as writers and scans use it.
pub(crate) struct IndexDef {
    pub(crate) name: String,
    pub(crate) paths: Vec<Path>,
    pub(crate) row: IndexRow,
    pub(crate) version: u64,
}

/// A type as writers and scans use it.
pub(crate) struct TypeDef {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) version: u64,
    /// Every index that writers maintain, by name.
    pub(crate) indexes: Vec<Arc<IndexDef>>,
    pub(crate) schema: Option<Arc<SchemaDef>>,
}

/// A reference, with the type whose records refer.
#[derive(Clone)]
pub(crate) struct Referrer {
    pub(crate) source: Arc<TypeDef>,
    /// Its place among the references of the source's schema.
    place: usize,
}

impl Referrer {
    pub(crate) fn reference(&self) -> Option<&RefDef> {
        self.source.refs().get(self.place)
    }

    /// The place of the reference in the schema of its source.
    pub(crate) fn place(&self) -> usize {
        self.place
    }
}

impl TypeDef {
    /// The references that its schema declares.
    pub(crate) fn refs(&self) -> &[RefDef] {
        self.schema.as_ref().map_or(&[], |schema| &schema.refs)
    }

    pub(crate) fn index(&self, name: &str) -> Option<&Arc<IndexDef>> {
        self.indexes.iter().find(|index| index.name == name)
    }

    /// The index of this name, if queries may use it.
    pub(crate) fn ready_index(&self, name: &str) -> Result<&Arc<IndexDef>, Error> {
        let refuse = |reason| Error::IndexNotRegistered {
            type_name: self.name.clone(),
            name: name.to_owned(),
            reason,
        };
        let index = self
            .index(name)
            .ok_or_else(|| refuse("is not registered"))?;
        match index.row.state {
            IndexState::Ready => Ok(index),
            IndexState::Building => Err(refuse("is still building")),
            IndexState::Failed => Err(refuse("failed to build")),
        }
    }
}

/// All definitions of one snapshot.
#[derive(Default)]
pub(crate) struct Catalog {
    pub(crate) generation: u64,
    by_name: HashMap<String, Arc<TypeDef>>,
    by_id: HashMap<u32, Arc<TypeDef>>,
    /// The references to each type, by its name; it need not exist.
    referrers: HashMap<String, Vec<Referrer>>,
    /// The last snapshot that was found to have this generation.
    seen_in: AtomicUsize,
}

impl Catalog {
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<TypeDef>> {
        self.by_name.get(name)
    }

    pub(crate) fn require(&self, name: &str) -> Result<&Arc<TypeDef>, Error> {
        self.get(name).ok_or_else(|| Error::TypeNotRegistered {
            type_name: name.to_owned(),
        })
    }

    /// How many types there are.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(crate) fn by_id(&self, id: u32) -> Option<&Arc<TypeDef>> {
        self.by_id.get(&id)
    }

    /// The references to the records of a type, from whatever type.
    pub(crate) fn referrers(&self, name: &str) -> &[Referrer] {
        self.referrers.get(name).map_or(&[], Vec::as_slice)
    }

    /// Types in name order.
    pub(crate) fn types(&self) -> Vec<&Arc<TypeDef>> {
        let mut types: Vec<_> = self.by_name.values().collect();
        types.sort_by(|a, b| a.name.cmp(&b.name));
        types
    }

    /// Reads every definition in a snapshot. What `before` has compiled already is not compiled again.
    pub(crate) fn load(
        tables: &Tables,
        txn: &RoTxn<'_>,
        generation: u64,
        before: &Self,
    ) -> Result<Self, Error> {
        let mut types: HashMap<String, TypeDef> = HashMap::new();
        // A type's row sorts before the rows of its indexes: "users" < "users/country".
        for row in tables.data.prefix_iter(txn, &CATALOG_ID.to_be_bytes())? {
            let (key, row) = row?;
            let key = layout::key_of(key)?;
            let (header, text) = layout::decode_record(row)?;
            if let Some((type_name, SCHEMA_NAME)) = key.split_once('/') {
                let row: SchemaRow = parse(key, text)?;
                let Some(def) = types.get_mut(type_name) else {
                    return Err(Error::Damaged(format!("schema {key} has no type")));
                };
                let known = before.by_id.get(&def.id);
                let known = known.and_then(|def| def.schema.as_deref());
                let schema = SchemaDef::load(key, row, header.version, known)?;
                def.schema = Some(Arc::new(schema));
            } else if let Some((type_name, index_name)) = key.split_once('/') {
                let row: IndexRow = parse(key, text)?;
                let paths = row.fields.iter().map(|field| {
                    Path::parse(field)
                        .map_err(|error| Error::Damaged(format!("index {key}: {error}")))
                });
                let index = IndexDef {
                    name: index_name.to_owned(),
                    paths: paths.collect::<Result<_, _>>()?,
                    row,
                    version: header.version,
                };
                match types.get_mut(type_name) {
                    Some(def) => def.indexes.push(Arc::new(index)),
                    None => return Err(Error::Damaged(format!("index {key} has no type"))),
                }
            } else {
                let row: TypeRow = parse(key, text)?;
                let def = TypeDef {
                    id: row.id,
                    name: key.to_owned(),
                    version: header.version,
                    indexes: Vec::new(),
                    schema: None,
                };
                types.insert(key.to_owned(), def);
            }
        }
        let mut catalog = Self {
            generation,
            ..Self::default()
        };
        for (name, def) in types {
            let def = Arc::new(def);
            for (place, reference) in def.refs().iter().enumerate() {
                let referrers = catalog.referrers.entry(reference.target.clone());
                referrers.or_default().push(Referrer {
                    source: Arc::clone(&def),
                    place,
                });
            }
            catalog.by_id.insert(def.id, Arc::clone(&def));
            catalog.by_name.insert(name, def);
        }
        Ok(catalog)
    }
}

fn parse<'a, T: Deserialize<'a>>(key: &str, text: &'a str) -> Result<T, Error> {
    serde_json::from_str(text)
        .map_err(|error| Error::Damaged(format!("catalog row {key}: {error}")))
}

/// The catalog as this process last saw it.
#[derive(Default)]
pub(crate) struct CatalogCache {
    current: ArcSwap<Catalog>,
}

impl CatalogCache {
    /// The catalog of exactly this snapshot.
    pub(crate) fn of_snapshot(
        &self,
        tables: &Tables,
        txn: &RoTxn<'_>,
    ) -> Result<arc_swap::Guard<Arc<Catalog>>, Error> {
        let cached = self.current.load();
        let snapshot = txn.id();
        if cached.seen_in.load(Ordering::Relaxed) == snapshot {
            return Ok(cached);
        }
        let state = read_state(tables, txn)?;
        if cached.generation != state.catalog {
            let fresh = Arc::new(Catalog::load(tables, txn, state.catalog, &cached)?);
            fresh.seen_in.store(snapshot, Ordering::Relaxed);
            // An old snapshot must not displace what a newer one has installed.
            if state.catalog > cached.generation {
                self.current.store(Arc::clone(&fresh));
            }
            return Ok(arc_swap::Guard::from_inner(fresh));
        }
        cached.seen_in.fetch_max(snapshot, Ordering::Relaxed);
        Ok(cached)
    }

    /// The same for a write transaction that has changed nothing yet.
    pub(crate) fn of_write(&self, tables: &Tables, txn: &RoTxn<'_>) -> Result<Arc<Catalog>, Error> {
        // Its id is that of the snapshot that it will become: it is not noted as one whose catalog is known.
        let state = read_state(tables, txn)?;
        let cached = self.current.load_full();
        if cached.generation == state.catalog {
            return Ok(cached);
        }
        let fresh = Arc::new(Catalog::load(tables, txn, state.catalog, &cached)?);
        if state.catalog > cached.generation {
            self.current.store(Arc::clone(&fresh));
        }
        Ok(fresh)
    }
}

/// The state row of a snapshot.
pub(crate) fn read_state(tables: &Tables, txn: &RoTxn<'_>) -> Result<State, Error> {
    match tables.meta.get(txn, layout::META_STATE)? {
        Some(row) => State::decode(row),
        None => Err(Error::Damaged("the environment has no state row".into())),
    }
}

/// Whether an environment has been set up.
pub(crate) fn has_state(tables: &Tables, txn: &RoTxn<'_>) -> Result<bool, Error> {
    Ok(tables.meta.get(txn, layout::META_STATE)?.is_some())
}

/// The record count of a type.
pub(crate) fn read_count(tables: &Tables, txn: &RoTxn<'_>, type_id: u32) -> Result<u64, Error> {
    match tables.meta.get(txn, &layout::count_key(type_id))? {
        Some(row) => layout::decode_clock(row),
        None => Ok(0),
    }
}

/// How many records of a type are past their expiry and not swept yet.
pub(crate) fn expired_count(
    tables: &Tables,
    txn: &RoTxn<'_>,
    type_id: u32,
    now_ms: u64,
) -> Result<u64, Error> {
    let mut count = 0;
    for row in tables.ttl.iter(txn)? {
        let (expires_ms, id, _) = layout::decode_ttl(row?.0)?;
        if expires_ms > now_ms {
            break;
        }
        count += u64::from(id == type_id);
    }
    Ok(count)
}

/// How many records of a type reads see.
pub(crate) fn live_count(
    tables: &Tables,
    txn: &RoTxn<'_>,
    type_id: u32,
    now_ms: u64,
) -> Result<u64, Error> {
    let expired = expired_count(tables, txn, type_id, now_ms)?;
    Ok(read_count(tables, txn, type_id)?.saturating_sub(expired))
}

/// What people see of a schema.
pub(crate) fn schema_info(
    tables: &Tables,
    txn: &RoTxn<'_>,
    def: &TypeDef,
) -> Result<Option<SchemaInfo>, Error> {
    let Some(schema) = &def.schema else {
        return Ok(None);
    };
    let progress = match schema.row.state {
        SchemaState::Ready => 1.0,
        SchemaState::Checking => {
            let seen = match tables.meta.get(txn, &layout::schema_check_key(def.id))? {
                Some(row) => BuildProgress::decode(row)?.records,
                None => 0,
            };
            share(seen, read_count(tables, txn, def.id)?)
        }
    };
    Ok(Some(SchemaInfo {
        schema: schema.row.schema.clone(),
        enforce: schema.row.enforce,
        state: schema.row.state,
        progress,
    }))
}

/// What people see of a type.
pub(crate) fn type_info(
    tables: &Tables,
    txn: &RoTxn<'_>,
    def: &TypeDef,
) -> Result<TypeInfo, Error> {
    let count = live_count(tables, txn, def.id, wall_ms())?;
    let newest = tables
        .log_type
        .get_lower_than(txn, &layout::after_id(def.id))?
        .filter(|(key, _)| key.starts_with(&def.id.to_be_bytes()));
    let clock = match newest {
        Some((key, _)) => layout::log_type_clock(key)?,
        None => def.version,
    };
    let indexes = def
        .indexes
        .iter()
        .map(|index| index_info(tables, txn, count, index));
    Ok(TypeInfo {
        name: def.name.clone(),
        count,
        clock: clock.max(def.version),
        indexes: indexes.collect::<Result<_, _>>()?,
        schema: def.schema.as_ref().map(|schema| schema.row.schema.clone()),
    })
}

/// What people see of an index.
pub(crate) fn index_info(
    tables: &Tables,
    txn: &RoTxn<'_>,
    records: u64,
    index: &IndexDef,
) -> Result<IndexInfo, Error> {
    let progress = match index.row.state {
        IndexState::Ready => 1.0,
        IndexState::Building | IndexState::Failed => {
            let seen = match tables.meta.get(txn, &layout::build_key(index.row.id))? {
                Some(row) => BuildProgress::decode(row)?.records,
                None => 0,
            };
            share(seen, records)
        }
    };
    Ok(IndexInfo {
        name: index.name.clone(),
        fields: index.row.fields.clone(),
        unique: index.row.unique,
        kind: "value",
        state: index.row.state,
        progress,
        error: index.row.failure.clone(),
    })
}

#[allow(clippy::cast_precision_loss, reason = "a share for people")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        (part as f64 / whole as f64).min(0.999)
    }
}

/// How far a build is: the records it has seen and the last key among them.
pub(crate) struct BuildProgress<'a> {
    pub(crate) records: u64,
    pub(crate) last_key: &'a [u8],
}

impl<'a> BuildProgress<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&self.records.to_be_bytes(), self.last_key].concat()
    }

    pub(crate) fn decode(row: &'a [u8]) -> Result<Self, Error> {
        match row.split_first_chunk::<8>() {
            Some((records, last_key)) => Ok(Self {
                records: u64::from_be_bytes(*records),
                last_key,
            }),
            None => Err(layout::damaged("build row", row)),
        }
    }
}

/// The most types of an environment: each change of the catalog reads all of it.
pub(crate) const TYPES_MAX: usize = 4096;
/// The most indexes of a type: each write maintains all of them.
pub(crate) const INDEXES_MAX: usize = 64;
/// The most fields an index can have.
pub(crate) const INDEX_FIELDS_MAX: usize = 8;

/// Checks the definitions that come with a type: each by itself, and that no two share a name.
pub(crate) fn check_specs(specs: &[IndexSpec]) -> Result<(), Error> {
    for (place, spec) in specs.iter().enumerate() {
        check_spec(spec)?;
        if specs[..place]
            .iter()
            .any(|other| other.fields == spec.fields)
        {
            return Err(Error::InvalidIndex(format!(
                "{:?} is given twice",
                spec.name()
            )));
        }
    }
    Ok(())
}

/// Checks a definition before it is stored.
pub(crate) fn check_spec(spec: &IndexSpec) -> Result<(), Error> {
    if spec.fields.is_empty() || spec.fields.len() > INDEX_FIELDS_MAX {
        return Err(Error::InvalidIndex(format!(
            "it needs 1 to {INDEX_FIELDS_MAX} fields, not {}",
            spec.fields.len()
        )));
    }
    for (place, field) in spec.fields.iter().enumerate() {
        Path::parse(field)
            .map_err(|error| Error::InvalidIndex(format!("field {field:?}: {error}")))?;
        if field.contains('~') || field.bytes().any(|byte| byte < 0x20) {
            return Err(Error::InvalidIndex(format!(
                "field {field:?}: ~ and control characters cannot be part of an indexed path"
            )));
        }
        if spec.fields[..place].contains(field) {
            return Err(Error::InvalidIndex(format!(
                "field {field:?} is named twice"
            )));
        }
    }
    // The name goes into a catalog key behind the type's name.
    if spec.name().len() > 1000 {
        return Err(Error::InvalidIndex(
            "its fields are too long together".into(),
        ));
    }
    Ok(())
}
