//! What can go wrong, as small enums: [`OpenError`] for opening a root, [`Error`] for everything after.
//!
//! Each variant tells whose side the fault is on; the HTTP edge maps them to codes without a wildcard.

use std::{fmt, io, path::PathBuf};

use nix::errno::Errno;
use okdb_query::PatchError;

/// Why an operation on an open store failed.
///
/// Exhaustive on purpose: the HTTP edge gives each variant its code, and the compiler tells when one is new.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The type is not registered in the environment.
    #[error("type {type_name:?} is not registered")]
    TypeNotRegistered {
        /// The name asked for.
        type_name: String,
    },
    /// The index does not exist on the type, or is not ready to be used.
    #[error("index {name:?} of type {type_name:?} {reason}")]
    IndexNotRegistered {
        /// The type.
        type_name: String,
        /// The index name asked for.
        name: String,
        /// `is not registered`, `is still building` or `failed to build`.
        reason: &'static str,
    },
    /// No environment has this name.
    #[error("environment {name:?} does not exist")]
    EnvNotFound {
        /// The name asked for.
        name: String,
    },
    /// No record has this key.
    #[error("no such record")]
    NotFound,
    /// The thing to be created exists.
    #[error("{what} exists already")]
    AlreadyExists {
        /// What exists, for people: `record "k"`, `type "users"`.
        what: String,
    },
    /// A version guard does not hold.
    #[error("the record's version is {}, not the one asked for", current.map_or_else(|| "none (it does not exist)".to_owned(), |v| v.to_string()))]
    VersionMismatch {
        /// The version now, `None` if there is no record.
        current: Option<u64>,
    },
    /// Another record holds the same value in a unique index.
    #[error("unique index {index:?} already holds this value, in record {key:?}")]
    UniqueConstraint {
        /// The index that refuses.
        index: String,
        /// The key of the record that holds the value.
        key: String,
    },
    /// The document does not fit its type's schema.
    #[error("the value does not fit the schema: {}", told(failures))]
    SchemaViolation {
        /// Each failing place: a JSON pointer (RFC 6901) into the document, and what is wrong there.
        failures: Vec<[String; 2]>,
    },
    /// A record that the document refers to does not exist.
    #[error("{path} refers to {type_name}/{key}, which does not exist")]
    ForeignKeyViolation {
        /// Where in the document: a JSON pointer (RFC 6901).
        path: String,
        /// The type of the record that is missing.
        type_name: String,
        /// Its key.
        key: String,
    },
    /// Another record refers to what is to be deleted.
    #[error("record {key:?} of type {type_name:?} refers to it; delete or change that one first")]
    ForeignKeyRestricted {
        /// The type of the record that refers.
        type_name: String,
        /// Its key.
        key: String,
    },
    /// A schema that cannot be used.
    #[error("invalid schema: {reason}{}", if path.is_empty() { String::new() } else { format!(" at {path}") })]
    InvalidSchema {
        /// Where: a JSON pointer (RFC 6901) into the schema.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The key breaks the rules for keys.
    #[error("invalid key: {0}")]
    InvalidKey(String),
    /// A name of an environment, type or index breaks the rules.
    #[error("invalid name: {0}")]
    InvalidName(String),
    /// An index definition or a document that an index cannot take.
    #[error("invalid index: {0}")]
    InvalidIndex(String),
    /// A patch that does not fit the document.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// A cursor that this query did not hand out.
    #[error("the cursor does not belong to this request")]
    InvalidCursor,
    /// A parameter that makes no sense here.
    #[error("{0}")]
    InvalidParameter(String),
    /// A value or a transaction over its limit.
    #[error("{what} is larger than {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The limit, in bytes or operations as `what` tells.
        limit: usize,
    },
    /// No room for new data; deletes still work.
    #[error("storage is full: {0}; delete records or make room, then write again")]
    StorageFull(Full),
    /// The change log no longer reaches back to the clock asked for.
    #[error("the change log starts after clock {oldest}")]
    ChangelogTruncated {
        /// The smallest `after` that can be served.
        oldest: u64,
    },
    /// The write queue is full.
    #[error("the write queue is full; try again shortly")]
    Overloaded,
    /// The store is closing.
    #[error("the store is shutting down")]
    ShuttingDown,
    /// One operation of a transaction failed, so none of it took effect.
    #[error("operation {index}: {source}")]
    Operation {
        /// Its place, counted from 0.
        index: usize,
        /// What was wrong with it.
        source: Box<Error>,
    },
    /// What is stored contradicts itself.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// LMDB reports something else.
    #[error("storage: {0}")]
    Lmdb(heed::Error),
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Failures in one line.
fn told(failures: &[[String; 2]]) -> String {
    let told = failures.iter().map(|[path, message]| {
        if path.is_empty() {
            message.clone()
        } else {
            format!("{path}: {message}")
        }
    });
    told.collect::<Vec<_>>().join("; ")
}

/// Dirty pages that LMDB tracks in one transaction.
const TRANSACTION_PAGES_MAX: usize = 131_071;

/// What ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The map has no pages left but those that are kept for deletes.
    MapKept,
    /// The map has no pages left that could be used now.
    Map,
    /// The file system gives no more bytes; what the environment owns is kept for deletes.
    DiskKept,
    /// The file system gives no more bytes.
    Disk,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Map | Self::MapKept => "the map size is used up",
            Self::Disk | Self::DiskKept => "the disk is full",
        })
    }
}

impl Error {
    /// Whether the write transaction in which this happened can no longer be trusted or committed.
    pub(crate) fn poisons_transaction(&self) -> bool {
        matches!(
            self,
            Self::StorageFull(_) | Self::Lmdb(_) | Self::Io(_) | Self::Damaged(_)
        )
    }

    /// Whether the transaction failed for its size, so that less of it might succeed.
    pub(crate) fn asks_for_too_much(&self) -> bool {
        matches!(
            self,
            Self::StorageFull(_) | Self::Lmdb(heed::Error::Mdb(heed::MdbError::TxnFull))
        )
    }

    /// Whether LMDB itself found no page. The pages that the last transaction freed can be used by the next but one.
    pub(crate) fn is_out_of_pages(&self) -> bool {
        matches!(self, Self::StorageFull(Full::Map | Full::Disk))
    }

    /// What the client of a failed transaction is told.
    pub(crate) fn for_client(self) -> Self {
        match self {
            // More dirty pages than LMDB tracks: too much at once, not a fault of the store.
            Self::Lmdb(heed::Error::Mdb(heed::MdbError::TxnFull)) => Self::TooLarge {
                what: "the transaction in pages",
                limit: TRANSACTION_PAGES_MAX,
            },
            other => other,
        }
    }
}

impl From<heed::Error> for Error {
    fn from(error: heed::Error) -> Self {
        match error {
            heed::Error::Mdb(heed::MdbError::MapFull) => Self::StorageFull(Full::Map),
            heed::Error::Io(ref io) if is_disk_full(io) => Self::StorageFull(Full::Disk),
            other => Self::Lmdb(other),
        }
    }
}

/// LMDB reports a short write as EIO, and a short write is how a full disk shows first.
fn is_disk_full(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG | Errno::EIO)
    )
}

/// Why a root could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another server serves this root.
    #[error("root {} is served by another process{}; stop it first", root.display(), pid.map_or_else(String::new, |pid| format!(" (pid {pid})")))]
    Locked {
        /// The root.
        root: PathBuf,
        /// The holder, where it can be known.
        pid: Option<u32>,
    },
    /// The root was written by a newer okdb.
    #[error("root {} has storage format {found}; this okdb knows formats up to {supported}: use a newer okdb", root.display())]
    FormatTooNew {
        /// The root.
        root: PathBuf,
        /// The format found.
        found: u32,
        /// The newest format this build knows.
        supported: u32,
    },
    /// The folder exists, is not empty and is not a root.
    #[error("{} is not an okdb root: {reason}", root.display())]
    NotARoot {
        /// The folder.
        root: PathBuf,
        /// What speaks against it.
        reason: String,
    },
    /// The root lies on a network file system, where LMDB's locks and map do not hold.
    #[error("root {} lies on {fs}, a network file system, which cannot carry shared memory maps: move it to a local disk", root.display())]
    NetworkFs {
        /// The root.
        root: PathBuf,
        /// The file system's name.
        fs: String,
    },
    /// The shared segment cannot be mapped while others use the root.
    #[error("the shared segment of root {} cannot be used: {reason}", root.display())]
    Segment {
        /// The root.
        root: PathBuf,
        /// Why, with the remedy.
        reason: String,
    },
    /// An option contradicts what the root records.
    #[error("{0}")]
    Option(String),
    /// What is stored contradicts itself.
    #[error("root {} is damaged: {reason}", root.display())]
    Damaged {
        /// The root.
        root: PathBuf,
        /// What was found.
        reason: String,
    },
    /// A file could not be made, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Anything that the opened store reports.
    #[error(transparent)]
    Store(#[from] Error),
}

impl OpenError {
    /// Names the file an I/O error belongs to.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
