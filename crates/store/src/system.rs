//! The system environment: what a root is, apart from its data.
//!
//! Identity, secret, map size and the registry of environments. It is opened by every process, and written only by who
//! makes a root or an environment.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{
    Durability, Error, OpenError, check_env_name,
    lmdb::{self, Lmdb, Table},
    root,
};

/// The system environment's own map: it holds a row an environment.
const SYSTEM_MAP_BYTES: usize = 64 << 20;
/// Default map of each environment: address space, not memory or disk.
const MAP_BYTES_DEFAULT: u64 = 128 << 30;
/// The smallest map that holds the tables, their headroom and a little data.
const MAP_BYTES_MIN: u64 = 4 << 20;
/// The largest map: x86-64 and arm64 give a process 128 TiB of addresses or more.
const MAP_BYTES_MAX: u64 = 1 << 46;
/// Map sizes are multiples of this: the largest page size about.
const MAP_BYTES_UNIT: u64 = 64 << 10;
/// Environments that the shared segment has room for.
pub(crate) const ENVS_MAX: u16 = 256;

const IDENTITY: &[u8] = b"identity";
const SECRET: &[u8] = b"secret";
const MAP_BYTES: &[u8] = b"map_bytes";
const DURABILITY: &[u8] = b"durability";
const ENV_PREFIX: &[u8] = b"env/";
const EPOCH_PREFIX: &[u8] = b"epoch/";

pub(crate) struct System {
    lmdb: Lmdb,
    table: Table,
    pub(crate) identity: [u8; 16],
    pub(crate) secret: [u8; 32],
    pub(crate) map_bytes: usize,
    /// Of the environments that were made without one.
    pub(crate) durability: Durability,
}

/// A row of the registry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EnvRow {
    /// Place in the segment's table.
    pub(crate) index: u16,
    /// Folder below `envs/<name>/`.
    pub(crate) generation: u32,
    /// `None`: the root's.
    pub(crate) durability: Option<String>,
}

impl System {
    /// Opens it, making what is missing. The map size is settled later.
    pub(crate) fn open(root: &Path) -> Result<Self, OpenError> {
        let dir = root.join("system");
        root::make_folder(&dir)?;
        let (lmdb, table) = lmdb::open_system(&dir, SYSTEM_MAP_BYTES)?;
        let identity = fixed_row(&lmdb, table, IDENTITY)?;
        let secret = fixed_row(&lmdb, table, SECRET)?;
        Ok(Self {
            lmdb,
            table,
            identity,
            secret,
            map_bytes: 0,
            durability: Durability::default(),
        })
    }

    pub(crate) fn lmdb(&self) -> &Lmdb {
        &self.lmdb
    }

    /// Reads the durability that the root records for environments made without one, or records the one that is wanted,
    /// which only a lone process may change: every process has to commit in the same way.
    pub(crate) fn settle_durability(
        &mut self,
        wanted: Option<Durability>,
        alone: bool,
    ) -> Result<(), OpenError> {
        let recorded = {
            let txn = self.lmdb.read_txn().map_err(Error::from)?;
            let row = self.table.get(&txn, DURABILITY).map_err(Error::from)?;
            row.map(decode_durability).transpose()?
        };
        let durability = match (recorded, wanted) {
            (Some(recorded), None) => recorded,
            (Some(recorded), Some(wanted)) if recorded == wanted => recorded,
            (Some(recorded), Some(wanted)) if !alone => {
                return Err(OpenError::Option(format!(
                    "the durability is {recorded} and other processes use this root: stop them to change it to {wanted}"
                )));
            }
            (_, wanted) => {
                let durability = wanted.unwrap_or_default();
                let mut txn = self.lmdb.write_txn().map_err(Error::from)?;
                self.table
                    .put(&mut txn, DURABILITY, durability.to_string().as_bytes())
                    .map_err(Error::from)?;
                txn.commit().map_err(Error::from)?;
                durability
            }
        };
        self.durability = durability;
        Ok(())
    }

    /// What an environment's replies promise.
    pub(crate) fn durability_of(&self, row: &EnvRow) -> Result<Durability, Error> {
        match &row.durability {
            Some(own) => decode_durability(own.as_bytes()),
            None => Ok(self.durability),
        }
    }

    /// Reads the map size that the root records, or records the one that is wanted, which only a lone process may change.
    pub(crate) fn settle_map_bytes(
        &mut self,
        root: &Path,
        wanted: Option<u64>,
        alone: bool,
    ) -> Result<(), OpenError> {
        let recorded = {
            let txn = self.lmdb.read_txn().map_err(Error::from)?;
            let row = self.table.get(&txn, MAP_BYTES).map_err(Error::from)?;
            row.map(crate::layout::decode_clock).transpose()?
        };
        let wanted = wanted.map(check_map_bytes).transpose()?;
        let bytes = match (recorded, wanted) {
            (Some(recorded), None) => recorded,
            (Some(recorded), Some(wanted)) if recorded == wanted => recorded,
            (Some(recorded), Some(wanted)) if !alone => {
                return Err(OpenError::Option(format!(
                    "the map size is {recorded} and other processes use this root: stop them to change it to {wanted}"
                )));
            }
            (_, wanted) => {
                let wanted = wanted.unwrap_or(MAP_BYTES_DEFAULT);
                let needed = self.map_bytes_needed(root)?;
                if needed > wanted {
                    tracing::warn!(
                        wanted,
                        needed,
                        "the map size is too small for what is stored; using what it needs"
                    );
                }
                let bytes = wanted.max(needed);
                let mut txn = self.lmdb.write_txn().map_err(Error::from)?;
                self.table
                    .put(&mut txn, MAP_BYTES, &bytes.to_be_bytes())
                    .map_err(Error::from)?;
                txn.commit().map_err(Error::from)?;
                bytes
            }
        };
        self.map_bytes = usize::try_from(bytes).map_err(|_| {
            OpenError::Option(format!("map size {bytes} is too large for this machine"))
        })?;
        Ok(())
    }

    /// What the largest environment takes, with room to delete from it.
    fn map_bytes_needed(&self, root: &Path) -> Result<u64, OpenError> {
        let mut largest = 0;
        for (name, row) in self.envs()? {
            let path = env_dir(root, &name, &row).join("data.mdb");
            match std::fs::metadata(&path) {
                Ok(meta) => largest = largest.max(meta.len()),
                // Registered, and not yet made.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(OpenError::Io { path, source }),
            }
        }
        Ok((largest + largest / 8).next_multiple_of(MAP_BYTES_UNIT))
    }

    /// The registry, by name.
    pub(crate) fn envs(&self) -> Result<Vec<(String, EnvRow)>, Error> {
        let txn = self.lmdb.read_txn()?;
        let mut envs = Vec::new();
        for row in self.table.prefix_iter(&txn, ENV_PREFIX)? {
            let (key, row) = row?;
            let name = String::from_utf8_lossy(&key[ENV_PREFIX.len()..]).into_owned();
            envs.push((name, decode(row)?));
        }
        Ok(envs)
    }

    /// One environment's row.
    pub(crate) fn env(&self, name: &str) -> Result<Option<EnvRow>, Error> {
        let txn = self.lmdb.read_txn()?;
        self.table
            .get(&txn, &env_key(name))?
            .map(decode)
            .transpose()
    }

    /// Registers an environment. Its folder is made first: a crash in between leaves an empty folder and no row.
    pub(crate) fn create_env(
        &self,
        root: &Path,
        name: &str,
        durability: Option<Durability>,
    ) -> Result<EnvRow, OpenError> {
        check_env_name(name)?;
        let mut txn = self.lmdb.write_txn().map_err(Error::from)?;
        let mut taken = Vec::new();
        for row in self
            .table
            .prefix_iter(&txn, ENV_PREFIX)
            .map_err(Error::from)?
        {
            let (key, row) = row.map_err(Error::from)?;
            if key == env_key(name) {
                return Err(Error::AlreadyExists {
                    what: format!("environment {name:?}"),
                }
                .into());
            }
            taken.push(decode(row)?.index);
        }
        let index = (0..ENVS_MAX)
            .find(|index| !taken.contains(index))
            .ok_or_else(|| {
                Error::InvalidParameter(format!("a root holds at most {ENVS_MAX} environments"))
            })?;
        let row = EnvRow {
            index,
            generation: 1,
            durability: durability.map(|own| own.to_string()),
        };
        let dir = env_dir(root, name, &row);
        root::make_folder(&dir)?;
        for folder in dir.ancestors().take(3) {
            root::sync_folder(folder).map_err(OpenError::io(folder))?;
        }
        let text = serde_json::to_vec(&row).map_err(|error| Error::Damaged(error.to_string()))?;
        self.table
            .put(&mut txn, &env_key(name), &text)
            .map_err(Error::from)?;
        txn.commit().map_err(Error::from)?;
        Ok(row)
    }
}

/// What the last end of an environment may have done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Past {
    /// Nothing: it ended well, or the host has been up since it was last in use, or it is new.
    Whole,
    /// The host went down while it was in use: the last commits may be undone.
    Undone,
    /// The same, while nothing was flushed: its files may be damaged.
    Suspect,
}

/// Which boot of the host used an environment last, and whether it ended well. Kept here, in an environment that is always
/// synced, and not in the one it is about, whose rows cannot be trusted before it is known.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Epoch {
    boot: [u8; 16],
    clean: bool,
    /// Whether nothing was flushed.
    fast: bool,
}

impl Epoch {
    /// boot identity (16) · clean (1) · fast (1).
    fn encode(self) -> [u8; 18] {
        let mut row = [0; 18];
        row[..16].copy_from_slice(&self.boot);
        row[16] = u8::from(self.clean);
        row[17] = u8::from(self.fast);
        row
    }

    /// A row that does not decode vouches for nothing.
    fn decode(row: &[u8]) -> Self {
        let (boot, clean) = row.split_first_chunk::<16>().unwrap_or((&[0; 16], &[]));
        Self {
            boot: *boot,
            clean: clean.first() == Some(&1),
            fast: clean.get(1) != Some(&0),
        }
    }
}

impl System {
    /// Runs `open` on an environment, and notes that this boot uses it. `open` learns what the last end may have done, and
    /// only one process at a time is told of one.
    pub(crate) fn in_epoch<T>(
        &self,
        name: &str,
        boot: [u8; 16],
        durability: Durability,
        open: impl FnOnce(Past) -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        let fast = durability == Durability::Fast;
        let key = epoch_key(name);
        let read = |txn: &heed::RoTxn<'_>| -> Result<Option<Epoch>, Error> {
            Ok(self.table.get(txn, &key)?.map(Epoch::decode))
        };
        let in_use = |last: &Epoch| last.boot == boot && !last.clean;
        let known = {
            let txn = self.lmdb.read_txn().map_err(Error::from)?;
            read(&txn)?
        };
        if known.is_some_and(|last| in_use(&last) && (last.fast || !fast)) {
            return open(Past::Whole);
        }
        let mut txn = self.lmdb.write_txn().map_err(Error::from)?;
        let last = read(&txn)?;
        let past = match last {
            Some(last) if last.boot != boot && !last.clean && last.fast => Past::Suspect,
            Some(last) if last.boot != boot && !last.clean => Past::Undone,
            _ => Past::Whole,
        };
        let opened = open(past)?;
        // Whatever was fast on this boot, and not flushed by a clean end, stays suspect.
        let current = Epoch {
            boot,
            clean: false,
            fast: fast || last.is_some_and(|last| in_use(&last) && last.fast),
        };
        self.table
            .put(&mut txn, &key, &current.encode())
            .map_err(Error::from)?;
        txn.commit().map_err(Error::from)?;
        Ok(opened)
    }

    /// Notes that an environment ended well: everything in it is on disk, and nobody uses it.
    pub(crate) fn leave_epoch(&self, name: &str, boot: [u8; 16]) -> Result<(), Error> {
        let mut txn = self.lmdb.write_txn()?;
        let epoch = Epoch {
            boot,
            clean: true,
            fast: false,
        };
        self.table
            .put(&mut txn, &epoch_key(name), &epoch.encode())?;
        txn.commit()?;
        Ok(())
    }
}

impl System {
    /// Whether an environment has ever been used without flushing every commit, and not been made whole since.
    pub(crate) fn has_epoch(&self, name: &str) -> Result<bool, Error> {
        let txn = self.lmdb.read_txn()?;
        Ok(self.table.get(&txn, &epoch_key(name))?.is_some())
    }

    /// Notes that everything in an environment is on disk and stays so: it is strict now.
    pub(crate) fn forget_epoch(&self, name: &str) -> Result<(), Error> {
        let mut txn = self.lmdb.write_txn()?;
        self.table.delete(&mut txn, &epoch_key(name))?;
        txn.commit()?;
        Ok(())
    }
}

fn decode_durability(row: &[u8]) -> Result<Durability, Error> {
    String::from_utf8_lossy(row).parse().map_err(Error::Damaged)
}

fn epoch_key(name: &str) -> Vec<u8> {
    [EPOCH_PREFIX, name.as_bytes()].concat()
}

/// Where an environment's files are.
pub(crate) fn env_dir(root: &Path, name: &str, row: &EnvRow) -> std::path::PathBuf {
    root.join("envs")
        .join(name)
        .join(row.generation.to_string())
}

fn env_key(name: &str) -> Vec<u8> {
    [ENV_PREFIX, name.as_bytes()].concat()
}

fn decode(row: &[u8]) -> Result<EnvRow, Error> {
    serde_json::from_slice(row).map_err(|error| Error::Damaged(format!("environment row: {error}")))
}

/// A row of random bytes that is made once and never changes.
fn fixed_row<const N: usize>(lmdb: &Lmdb, table: Table, key: &[u8]) -> Result<[u8; N], OpenError> {
    let read = |txn: &heed::RoTxn<'_>| -> Result<Option<[u8; N]>, Error> {
        let Some(row) = table.get(txn, key)? else {
            return Ok(None);
        };
        let row = row
            .try_into()
            .map_err(|_| Error::Damaged("a system row has a wrong length".into()))?;
        Ok(Some(row))
    };
    {
        let txn = lmdb.read_txn().map_err(Error::from)?;
        if let Some(row) = read(&txn)? {
            return Ok(row);
        }
    }
    let mut txn = lmdb.write_txn().map_err(Error::from)?;
    if let Some(row) = read(&txn)? {
        return Ok(row);
    }
    let row = okdb_sys::host::random_bytes::<N>().map_err(OpenError::io("getrandom"))?;
    table.put(&mut txn, key, &row).map_err(Error::from)?;
    txn.commit().map_err(Error::from)?;
    Ok(row)
}

/// A map size that somebody asks for, in whole units.
fn check_map_bytes(bytes: u64) -> Result<u64, OpenError> {
    if bytes < MAP_BYTES_MIN {
        return Err(OpenError::Option(format!(
            "map size {bytes}: at least {MAP_BYTES_MIN} bytes are needed"
        )));
    }
    if bytes > MAP_BYTES_MAX {
        return Err(OpenError::Option(format!(
            "map size {bytes}: more than {MAP_BYTES_MAX} bytes cannot be mapped"
        )));
    }
    Ok(bytes.next_multiple_of(MAP_BYTES_UNIT))
}
