//! What can be asked of a writer, and what it answers.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use okdb_query::Patch;
use tokio::sync::oneshot;

use crate::{Error, IndexInfo, SchemaInfo, SchemaSpec, TypeInfo};

/// The most operations one transaction may have.
pub const TRANSACTION_OPERATIONS_MAX: usize = 10_000;

/// One request to an environment's writer.
#[derive(Debug)]
pub enum Write {
    /// One operation.
    One(Operation),
    /// Operations that apply wholly or not at all, in order.
    Transaction(Vec<Operation>),
    /// Operations that each succeed or fail on their own.
    Bulk(Vec<Operation>),
    /// Registers a type.
    RegisterType {
        /// Its name.
        name: String,
        /// Indexes to make with it.
        indexes: Vec<IndexSpec>,
        /// The schema to give it. `None` leaves the one that there is.
        schema: Option<SchemaSpec>,
        /// Whether an existing type is fine: then only what is missing is made.
        ensure: bool,
    },
    /// Drops a type with its records and indexes.
    DropType {
        /// Its name.
        name: String,
    },
    /// Registers an index; its build starts in the background.
    RegisterIndex {
        /// The type.
        type_name: String,
        /// The definition.
        spec: IndexSpec,
        /// Whether an existing index with the same definition is fine.
        ensure: bool,
    },
    /// Sets the schema of a type; its check of older records starts in the background.
    SetSchema {
        /// The type.
        type_name: String,
        /// The schema.
        schema: SchemaSpec,
    },
    /// Drops the schema of a type, which must have one.
    DropSchema {
        /// The type.
        type_name: String,
    },
    /// Moves a durable cursor: from its clock on, the change log keeps all removals, however old. `None` drops the cursor.
    SetCursor {
        /// Its name.
        name: String,
        /// The clock up to which its owner has seen all changes.
        clock: Option<u64>,
    },
    /// Drops an index.
    DropIndex {
        /// The type.
        type_name: String,
        /// The index.
        name: String,
    },
}

/// A change of one record.
#[derive(Debug)]
pub struct Operation {
    /// The type.
    pub type_name: String,
    /// The key.
    pub key: String,
    /// What must hold before.
    pub guard: Guard,
    /// For an action that writes the value: in how many ms from now the record expires. `None` leaves an expiry as it is.
    pub ttl: Option<u64>,
    /// What to do.
    pub action: Action,
}

impl Operation {
    /// Bytes that it keeps in the queue.
    pub(crate) fn weight(&self) -> usize {
        let value = match &self.action {
            Action::Put(text) | Action::Create(text) | Action::Update(text) => text.len(),
            Action::Patch(_) | Action::Remove | Action::SetTtl(_) | Action::ClearTtl => 0,
        };
        self.type_name.len() + self.key.len() + value
    }
}

/// What an operation does. Values are compact, valid JSON text.
#[derive(Debug)]
pub enum Action {
    /// Writes the value, whether or not the record exists.
    Put(String),
    /// Writes the value of a record that must not exist.
    Create(String),
    /// Writes the value of a record that must exist.
    Update(String),
    /// Changes the value of a record that must exist.
    Patch(Patch),
    /// Deletes a record that must exist.
    Remove,
    /// Lets a record that must exist expire in so many ms from now.
    SetTtl(u64),
    /// Lets a record that must exist stay for good.
    ClearTtl,
}

/// The longest time to live, in ms: a hundred years.
pub const TTL_MS_MAX: u64 = 100 * 365 * 24 * 3600 * 1000;

/// Checks a time to live: 1 ms to a hundred years.
///
/// # Errors
/// [`Error::InvalidParameter`].
pub(crate) fn check_ttl(ttl_ms: u64) -> Result<(), Error> {
    if ttl_ms == 0 || ttl_ms > TTL_MS_MAX {
        return Err(Error::InvalidParameter(format!(
            "ttl must be 1 to {TTL_MS_MAX} ms (a hundred years), not {ttl_ms}"
        )));
    }
    Ok(())
}

/// Version guards; where both are given, both must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// From the body or the query.
    pub version: Option<Expect>,
    /// From a header.
    pub header: Option<Expect>,
}

/// What a guard expects of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// It exists with this version.
    Version(u64),
    /// It does not exist.
    Absent,
}

impl Guard {
    /// Checks both parts against the version now.
    pub(crate) fn check(self, current: Option<u64>) -> Result<(), Error> {
        let holds = |expect: Option<Expect>| match expect {
            None => true,
            Some(Expect::Version(version)) => current == Some(version),
            Some(Expect::Absent) => current.is_none(),
        };
        if holds(self.version) && holds(self.header) {
            Ok(())
        } else {
            Err(Error::VersionMismatch { current })
        }
    }
}

/// The definition of a value index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexSpec {
    /// Dotted paths, in index order.
    pub fields: Vec<String>,
    /// Whether two records may not share a value.
    pub unique: bool,
}

impl IndexSpec {
    /// The index's name: its fields joined by `~`.
    #[must_use]
    pub fn name(&self) -> String {
        self.fields.join("~")
    }
}

/// The answer to a [`Write`].
#[derive(Debug)]
pub enum Outcome {
    /// To [`Write::One`].
    Done(Written),
    /// To [`Write::Transaction`].
    Transaction {
        /// The clock of its last change.
        clock: u64,
        /// One a operation, in order.
        results: Vec<Written>,
    },
    /// To [`Write::Bulk`].
    Bulk {
        /// The environment's clock after it.
        clock: u64,
        /// One an operation, in order.
        results: Vec<Result<Written, Error>>,
    },
    /// To [`Write::RegisterType`].
    Type(TypeInfo),
    /// To [`Write::RegisterIndex`].
    Index(IndexInfo),
    /// To [`Write::SetSchema`].
    Schema(SchemaInfo),
    /// To a sweep of expired records.
    Swept {
        /// How many were removed, without those that went with them.
        records: u64,
    },
    /// To the drops and chores.
    Dropped {
        /// The environment's clock after it.
        clock: u64,
    },
}

/// A record after a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its key.
    pub key: String,
    /// The clock of this write: the record's version, or the clock of its removal.
    pub version: u64,
    /// Whether the record did not exist before.
    pub created: bool,
    /// When the record will be gone, in ms since 1970.
    pub expires_ms: Option<u64>,
}

/// A write on its way. Await it, or [`wait`](Self::wait) on a thread that may block. Dropping it does not undo the write.
#[derive(Debug)]
#[must_use = "a write is only known to be durable once its outcome has arrived"]
pub struct Pending(pub(crate) oneshot::Receiver<Result<Outcome, Error>>);

impl Pending {
    /// An answer that needs no writer.
    pub(crate) fn ready(result: Result<Outcome, Error>) -> Self {
        let (sender, receiver) = oneshot::channel();
        // The receiver is alive: it is returned below.
        let _ = sender.send(result);
        Self(receiver)
    }

    /// Blocks until the outcome is known. Not for a thread that runs an async runtime.
    ///
    /// # Errors
    /// What the write failed with; [`Error::ShuttingDown`] if the store closed before it was run.
    pub fn wait(self) -> Result<Outcome, Error> {
        self.0.blocking_recv().unwrap_or(Err(Error::ShuttingDown))
    }
}

impl Future for Pending {
    type Output = Result<Outcome, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|answer| answer.unwrap_or(Err(Error::ShuttingDown)))
    }
}
