//! Opening LMDB: the one module of this crate with `unsafe`, and the rules that make it sound.
//!
//! Every environment is opened here, with the fixed set of sub-databases, before anybody else in the process sees it.

#![allow(unsafe_code, reason = "the named room for opening LMDB")]

use std::{fmt, fs, os::unix::fs::PermissionsExt, path::Path, str::FromStr};

use heed::{
    CommitOrAbort, Database, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithoutTls, types::Bytes,
};

use crate::{Error, OpenError};

/// How much a reply promises. See `docs/storage.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Data and meta pages are on disk before the reply.
    #[default]
    Strict,
    /// Data pages are; a power loss may undo the last commits, in order, and leaves the store intact.
    Balanced,
    /// Nothing is flushed; a power loss can damage the environment. A process crash loses nothing.
    Fast,
}

impl Durability {
    /// Whether a commit waits for the disk.
    #[must_use]
    pub fn syncs(self) -> bool {
        self != Self::Fast
    }

    fn flags(self) -> EnvFlags {
        match self {
            Self::Strict => EnvFlags::empty(),
            Self::Balanced => EnvFlags::NO_META_SYNC,
            Self::Fast => EnvFlags::NO_SYNC,
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Strict => "strict",
            Self::Balanced => "balanced",
            Self::Fast => "fast",
        })
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "strict" => Ok(Self::Strict),
            "balanced" => Ok(Self::Balanced),
            "fast" => Ok(Self::Fast),
            _ => Err(format!(
                "unknown durability {text:?}: strict, balanced or fast"
            )),
        }
    }
}

/// LMDB's environment as this crate uses it: read transactions are not bound to threads.
pub(crate) type Lmdb = heed::Env<WithoutTls>;
pub(crate) type Reader<'e> = RoTxn<'e, WithoutTls>;
/// A sub-database of raw bytes.
pub(crate) type Table = Database<'static, Bytes, Bytes>;

/// Reader slots in the lock file, shared by every process of the root.
pub(crate) const READERS_MAX: u32 = 1024;
/// Room for the tables of this format and of those that come after it.
const TABLES_MAX: u32 = 32;

/// The fixed tables of an environment.
#[derive(Clone, Copy)]
pub(crate) struct Tables {
    pub(crate) meta: Table,
    pub(crate) data: Table,
    pub(crate) index: Table,
    pub(crate) log: Table,
    pub(crate) log_type: Table,
    pub(crate) tomb: Table,
    pub(crate) dead: Table,
    pub(crate) refs: Table,
    pub(crate) ttl: Table,
    pub(crate) violations: Table,
}

const TABLE_NAMES: [&str; 10] = [
    "meta",
    "data",
    "index",
    "log",
    "log_type",
    "tomb",
    "dead",
    "refs",
    "ttl",
    "violations",
];

impl Tables {
    fn all(&self) -> [Table; 10] {
        [
            self.meta,
            self.data,
            self.index,
            self.log,
            self.log_type,
            self.tomb,
            self.dead,
            self.refs,
            self.ttl,
            self.violations,
        ]
    }

    /// Pages that live data occupies, the free list not counted.
    pub(crate) fn pages_used(&self, txn: &RoTxn<'_>) -> Result<usize, Error> {
        let mut pages = 0;
        for table in self.all() {
            let stat = table.stat(txn)?;
            pages += stat.branch_pages + stat.leaf_pages + stat.overflow_pages;
        }
        Ok(pages)
    }
}

/// Opens the environment in `dir`, which exists, and makes the tables that are missing.
pub(crate) fn open_env(
    dir: &Path,
    map_bytes: usize,
    durability: Durability,
) -> Result<(Lmdb, Tables), OpenError> {
    let lmdb = open_raw(dir, map_bytes, durability)?;
    let [
        meta,
        data,
        index,
        log,
        log_type,
        tomb,
        dead,
        refs,
        ttl,
        violations,
    ] = open_tables(&lmdb, TABLE_NAMES)?;
    Ok((
        lmdb,
        Tables {
            meta,
            data,
            index,
            log,
            log_type,
            tomb,
            dead,
            refs,
            ttl,
            violations,
        },
    ))
}

/// Opens the system environment in `dir`, with its one table.
pub(crate) fn open_system(dir: &Path, map_bytes: usize) -> Result<(Lmdb, Table), OpenError> {
    let lmdb = open_raw(dir, map_bytes, Durability::Strict)?;
    let [table] = open_tables(&lmdb, ["system"])?;
    Ok((lmdb, table))
}

fn open_raw(dir: &Path, map_bytes: usize, durability: Durability) -> Result<Lmdb, OpenError> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options
        .map_size(map_bytes)
        .max_readers(READERS_MAX)
        .max_dbs(TABLES_MAX);
    // Random access dominates, and read-ahead of a large map evicts what other processes use.
    //
    // SAFETY: NO_SYNC and NO_META_SYNC weaken durability, never memory safety: an environment that a power loss may have
    // damaged is verified before it serves (see `env`). NO_READ_AHEAD is a hint to the kernel.
    unsafe { options.flags(durability.flags() | EnvFlags::NO_READ_AHEAD) };
    // SAFETY: The map stays valid as long as only LMDB writes the files. The folder is ours (mode 0700), nobody in this
    // process opens its files by other means (backups copy through LMDB), the file system is local (checked by `root`),
    // every process uses the recorded map size, and heed refuses a second handle on one path.
    let lmdb = unsafe { options.open(dir) }.map_err(|error| match error {
        heed::Error::Io(source) => OpenError::Io {
            path: dir.to_owned(),
            source,
        },
        heed::Error::EnvAlreadyOpened => OpenError::Option(format!(
            "{} is open in this process already: share that handle, or drop it first",
            dir.display()
        )),
        other => OpenError::Damaged {
            root: dir.to_owned(),
            reason: other.to_string(),
        },
    })?;
    restrict(&dir.join("data.mdb"));
    Ok(lmdb)
}

/// LMDB makes its files under the umask; data is for the owner alone. Metadata only: opening the file would cost the locks.
fn restrict(path: &Path) {
    if let Err(error) = fs::set_permissions(path, fs::Permissions::from_mode(0o600)) {
        tracing::warn!(path = %path.display(), %error, "cannot restrict a file to its owner");
    }
}

fn open_tables<const N: usize>(lmdb: &Lmdb, names: [&str; N]) -> Result<[Table; N], Error> {
    // A read transaction first: once the tables exist, opening takes no write lock.
    let reader = lmdb.read_txn()?;
    let found = lmdb.open_databases_and_commit(reader, |opener, txn| {
        let mut tables = Vec::with_capacity(N);
        for name in names {
            match opener.open_database::<Bytes, Bytes>(txn, Some(name))? {
                Some(table) => tables.push(table),
                None => return Ok(CommitOrAbort::Abort(())),
            }
        }
        Ok::<_, heed::Error>(match <[_; N]>::try_from(tables) {
            Ok(tables) => CommitOrAbort::Commit(tables),
            Err(_) => CommitOrAbort::Abort(()),
        })
    })?;
    if let CommitOrAbort::Commit(tables) = found {
        return Ok(tables);
    }
    let writer: RwTxn<'_> = lmdb.write_txn()?;
    let made = lmdb.create_databases_and_commit(writer, |opener, txn| {
        let mut tables = Vec::with_capacity(N);
        for name in names {
            tables.push(opener.create_database::<Bytes, Bytes>(txn, Some(name))?);
        }
        Ok::<_, heed::Error>(match <[_; N]>::try_from(tables) {
            Ok(tables) => CommitOrAbort::Commit(tables),
            Err(_) => CommitOrAbort::Abort(()),
        })
    })?;
    match made {
        CommitOrAbort::Commit(tables) => Ok(tables),
        CommitOrAbort::Abort(()) => Err(Error::Damaged("tables cannot be made".into())),
    }
}
