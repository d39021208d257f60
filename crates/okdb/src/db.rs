//! An opened root, for a program of one's own.

use std::{path::Path, sync::Arc};

use okdb_store::{Commit, Durability, Env, Error, Limits, OpenError, Options, Role, Store, Write};
use tokio::sync::broadcast;

use crate::{
    Records,
    chores::Chores,
    process::{Presence, Telemetry},
};

/// How to open a root.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let db = okdb::Db::builder()
///     .durability(okdb::Durability::Balanced)
///     .map_size(64 << 20)
///     .open(folder.path().join("data"))?;
/// # drop(db);
/// # Ok(()) }
/// ```
#[must_use]
pub struct Builder {
    options: Options,
    background: bool,
}

impl Builder {
    /// Durability of the environments that were made without one, `default` among them. The root records it; only works
    /// as a change while nobody else uses the root.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.options.durability = Some(durability);
        self
    }

    /// Another map size for every environment, in bytes. Only works while nobody else uses the root.
    pub fn map_size(mut self, bytes: u64) -> Self {
        self.options.map_size = Some(bytes);
        self
    }

    /// Registers an unknown type at the first write to it.
    pub fn auto_types(mut self, on: bool) -> Self {
        self.options.auto_types = on;
        self
    }

    /// Bounds of values and of the write queue.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.options.limits = limits;
        self
    }

    /// Whether this process may do the root's background work (index builds and the like) while no server does. On unless
    /// said otherwise.
    pub fn background(mut self, on: bool) -> Self {
        self.background = on;
        self
    }

    /// Opens the root, making it if there is none.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong and what to do.
    pub fn open(self, root: impl AsRef<Path>) -> Result<Db, OpenError> {
        let telemetry = Telemetry::new();
        let options = Options {
            role: Role::Library,
            hooks: telemetry.clone(),
            ..self.options
        };
        let store = Store::open(root.as_ref(), options)?;
        let presence = telemetry.join(&store, okdb_shm::Role::Library, None);
        let chores = self
            .background
            .then(|| Chores::start(&store))
            .transpose()
            .map_err(|error| OpenError::Store(Error::Io(error)))?;
        Ok(Db(Arc::new(DbInner {
            store,
            telemetry,
            own: Some(Own {
                _presence: presence,
                chores,
            }),
        })))
    }
}

/// An opened root. Clones share it; dropping the last one finishes what is queued and closes it.
#[derive(Clone)]
pub struct Db(Arc<DbInner>);

struct DbInner {
    store: Store,
    telemetry: Arc<Telemetry>,
    /// `None` where a server in this process has opened the root, and closes it.
    own: Option<Own>,
}

/// What ends with a root that a `Db` has opened itself.
struct Own {
    /// Held for its end: rows and the bus port are given back when the root is closed.
    _presence: Presence,
    chores: Option<Chores>,
}

impl Db {
    /// The root of a server in this process.
    pub(crate) fn of_server(store: Store, telemetry: Arc<Telemetry>) -> Self {
        Self(Arc::new(DbInner {
            store,
            telemetry,
            own: None,
        }))
    }

    /// Opens a root with the usual options, making it if there is none.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong and what to do.
    pub fn open(root: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::builder().open(root)
    }

    /// Options other than the usual ones.
    pub fn builder() -> Builder {
        Builder {
            options: Options::default(),
            background: true,
        }
    }

    /// The store below, for everything that has no short form here.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// An environment by name; `default` always exists.
    ///
    /// # Errors
    /// [`Error::EnvNotFound`], or what opening it meets.
    pub fn env(&self, name: &str) -> Result<Env, Error> {
        self.0.store.env(name)
    }

    /// The records of a type in the environment `default`. The type need not exist yet.
    ///
    /// # Errors
    /// What opening the environment meets.
    pub fn records(&self, type_name: &str) -> Result<Records, Error> {
        Ok(Records::new(
            self.env("default")?,
            type_name,
            self.0.store.clone(),
        ))
    }

    /// Registers a type in the environment `default` unless it exists, and returns its records.
    ///
    /// # Errors
    /// [`Error::InvalidName`], and what the write meets.
    pub fn ensure_type(&self, type_name: &str) -> Result<Records, Error> {
        let records = self.records(type_name)?;
        let register = Write::RegisterType {
            name: type_name.to_owned(),
            indexes: Vec::new(),
            schema: None,
            ensure: true,
        };
        records.env().submit(register).wait()?;
        Ok(records)
    }

    /// Hears of every batch that this process commits from now on.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// let db = okdb::Db::open(folder.path().join("data"))?;
    /// let users = db.ensure_type("users")?;
    /// let mut commits = db.subscribe();
    /// let version = users.put("ada", &"Ada")?;
    /// let commit = commits.next_blocking().expect("the root is open");
    /// assert_eq!((commit.env.as_str(), commit.clock), ("default", version));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn subscribe(&self) -> Commits {
        Commits(self.0.telemetry.commits())
    }
}

impl Drop for DbInner {
    fn drop(&mut self) {
        let Some(own) = self.own.take() else {
            return;
        };
        drop(own.chores);
        self.store.close();
    }
}

/// The commits of this process, as they happen. A listener that falls behind misses some and goes on with newer ones; the
/// change log has them all.
pub struct Commits(broadcast::Receiver<Commit>);

impl Commits {
    /// The next commit; `None` once the root is closed. For async code, on any runtime.
    pub async fn next(&mut self) -> Option<Commit> {
        loop {
            match self.0.recv().await {
                Ok(commit) => return Some(commit),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// The next commit; blocks. `None` once the root is closed.
    pub fn next_blocking(&mut self) -> Option<Commit> {
        loop {
            match self.0.blocking_recv() {
                Ok(commit) => return Some(commit),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}
