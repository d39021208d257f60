//! The records of one type, with values as whatever `serde` can turn into JSON.

use std::time::{Duration, Instant};

use okdb_query::{Filter, Sort, Value, compact};
use okdb_store::{
    Action, Env, Error, Expect, Guard, IndexInfo, IndexSpec, IndexState, Operation, Outcome, Page,
    Query, Store, Write, Written,
};
use serde::{Serialize, de::DeserializeOwned};

/// How often a build that is waited for is looked at.
const BUILD_POLL: Duration = Duration::from_millis(5);

/// The records of a type. Cheap to make and to clone.
#[derive(Clone)]
pub struct Records {
    env: Env,
    type_name: String,
    store: Store,
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The clock of its last write.
    pub version: u64,
    /// Its value: compact JSON text, digit for digit as it was written.
    pub json: String,
}

impl Document {
    /// The value as a Rust type.
    ///
    /// # Errors
    /// What `serde_json` reports when it does not fit.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.json)
    }
}

impl Records {
    pub(crate) fn new(env: Env, type_name: &str, store: Store) -> Self {
        Self {
            env,
            type_name: type_name.to_owned(),
            store,
        }
    }

    /// The environment they are in.
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The record with this key, if there is one.
    ///
    /// # Errors
    /// [`Error::TypeNotRegistered`], [`Error::InvalidKey`], and what LMDB reports.
    pub fn get(&self, key: &str) -> Result<Option<Document>, Error> {
        let snapshot = self.env.snapshot()?;
        let record = snapshot.get(&self.type_name, key)?;
        Ok(record.map(|record| Document {
            version: record.version,
            json: record.value.to_owned(),
        }))
    }

    /// Writes a record, whether or not it exists; returns its version.
    ///
    /// # Errors
    /// See [`Error`]: the variants name what refuses.
    pub fn put(&self, key: &str, value: &impl Serialize) -> Result<u64, Error> {
        self.put_json(key, &to_json(value)?)
    }

    /// [`put`](Self::put) for a value that is JSON text already. Every digit of its numbers is kept.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] if it is not valid JSON; see [`Error`] for the rest.
    pub fn put_json(&self, key: &str, json: &str) -> Result<u64, Error> {
        let text = compacted(json)?;
        Ok(self
            .write(key, Guard::default(), Action::Put(text))?
            .version)
    }

    /// Writes a record that must not exist; returns its version.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`]; see [`Error`] for the rest.
    pub fn create(&self, key: &str, value: &impl Serialize) -> Result<u64, Error> {
        let text = to_json(value)?;
        Ok(self
            .write(key, Guard::default(), Action::Create(text))?
            .version)
    }

    /// Writes a record whose version must be this one; returns the new version.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let db = okdb::Db::open(folder.path().join("data"))?;
    /// let counters = db.ensure_type("counters")?;
    /// let first = counters.put("hits", &1)?;
    /// let second = counters.replace("hits", first, &2)?;
    /// assert!(second > first);
    /// // Somebody else was faster:
    /// assert!(matches!(counters.replace("hits", first, &3), Err(okdb::Error::VersionMismatch { .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::VersionMismatch`]; see [`Error`] for the rest.
    pub fn replace(&self, key: &str, version: u64, value: &impl Serialize) -> Result<u64, Error> {
        let guard = Guard {
            version: Some(Expect::Version(version)),
            header: None,
        };
        Ok(self
            .write(key, guard, Action::Put(to_json(value)?))?
            .version)
    }

    /// Deletes a record; tells whether there was one.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn remove(&self, key: &str) -> Result<bool, Error> {
        match self.write(key, Guard::default(), Action::Remove) {
            Ok(_) => Ok(true),
            Err(Error::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The first thousand records that match a filter, in key order. [`Env::query`] sorts, selects and pages.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] for a filter that is none, [`Error::TypeNotRegistered`], and what LMDB reports.
    pub fn find(&self, filter: &impl Serialize) -> Result<Page, Error> {
        let filter_text = to_json(filter)?;
        let query = Query {
            filter: parse_filter(&filter_text)?,
            filter_text,
            sort: Sort::default(),
            limit: 1000,
            ..Query::default()
        };
        self.env.query(&self.type_name, &query)
    }

    /// How many records match a filter.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn count(&self, filter: &impl Serialize) -> Result<u64, Error> {
        self.env
            .count(&self.type_name, &parse_filter(&to_json(filter)?)?)
    }

    /// Makes an index unless it exists, and waits until it is ready.
    ///
    /// # Errors
    /// [`Error::InvalidIndex`] for bad fields or for records that it cannot hold, [`Error::AlreadyExists`] for one with
    /// another definition; see [`Error`] for the rest.
    pub fn ensure_index(&self, fields: &[&str], unique: bool) -> Result<IndexInfo, Error> {
        let spec = IndexSpec {
            fields: fields.iter().map(ToString::to_string).collect(),
            unique,
        };
        let name = spec.name();
        let register = Write::RegisterIndex {
            type_name: self.type_name.clone(),
            spec,
            ensure: true,
        };
        self.env.submit(register).wait()?;
        self.store.wake_chores();
        // However long it takes; a hint once it is long, for whoever wonders.
        let mut hint_at = Some(Instant::now() + Duration::from_secs(10));
        loop {
            let indexes = self.env.snapshot()?.indexes(&self.type_name)?;
            let index = indexes.into_iter().find(|index| index.name == name);
            let index = index.ok_or_else(|| Error::IndexNotRegistered {
                type_name: self.type_name.clone(),
                name: name.clone(),
                reason: "was dropped while it was built",
            })?;
            match index.state {
                IndexState::Ready => return Ok(index),
                IndexState::Failed => {
                    let message = index
                        .error
                        .map_or_else(String::new, |failure| failure.message);
                    return Err(Error::InvalidIndex(message));
                }
                IndexState::Building => {
                    if hint_at.is_some_and(|at| Instant::now() > at) {
                        hint_at = None;
                        tracing::info!(
                            index = name,
                            progress = index.progress,
                            "waiting for an index build"
                        );
                    }
                    std::thread::sleep(BUILD_POLL);
                }
            }
        }
    }

    fn write(&self, key: &str, guard: Guard, action: Action) -> Result<Written, Error> {
        let operation = Operation {
            type_name: self.type_name.clone(),
            key: key.to_owned(),
            guard,
            ttl: None,
            action,
        };
        match self.env.submit(Write::One(operation)).wait()? {
            Outcome::Done(written) => Ok(written),
            other => Err(Error::Damaged(format!(
                "an operation was answered with {other:?}"
            ))),
        }
    }
}

fn to_json(value: &impl Serialize) -> Result<String, Error> {
    let text = serde_json::to_string(value)
        .map_err(|error| Error::InvalidParameter(format!("the value is no JSON: {error}")))?;
    compacted(&text)
}

fn compacted(json: &str) -> Result<String, Error> {
    let mut text = String::with_capacity(json.len());
    compact(json.as_bytes(), &mut text)
        .map_err(|error| Error::InvalidParameter(format!("the value is no valid JSON: {error}")))?;
    Ok(text)
}

fn parse_filter(text: &str) -> Result<Filter, Error> {
    let value = Value::parse(text).map_err(|error| Error::InvalidParameter(error.to_string()))?;
    Filter::parse(&value).map_err(|error| Error::InvalidParameter(format!("the filter: {error}")))
}
