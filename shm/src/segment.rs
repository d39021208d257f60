//! The segment as a whole: its identity, what is written when it is made, what is checked before it is used.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use okdb_sys::process::{self, Namespaces};

use crate::env::EnvRow;
use crate::errors::{ForeignReason, StaleReason};
use crate::files::Place;
use crate::hlc::Hlc;
use crate::layout::{LAYOUT_VERSION, MAGIC, SEGMENT_BYTES, Static, Tables};
use crate::map::Mapping;

/// What a segment belongs to. One of another root or boot is never used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The root's identity, made when the root was.
    pub root: [u8; 16],
    /// The kernel's identity of this boot; see [`process::boot_id_bytes`].
    pub boot: [u8; 16],
}

impl Identity {
    /// `root` on this boot.
    ///
    /// # Errors
    /// When the kernel does not tell the boot's identity.
    pub fn of_root(root: [u8; 16]) -> std::io::Result<Self> {
        Ok(Self {
            root,
            boot: process::boot_id_bytes()?,
        })
    }
}

/// The mapped segment of a root, or private memory with the same tables. Share it in an [`Arc`].
pub struct Segment {
    mapping: Mapping,
    identity: Identity,
    file: Option<PathBuf>,
}

/// What an operator is told about a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its file; `None` for private memory.
    pub path: Option<PathBuf>,
    /// Its size.
    pub bytes: usize,
    /// The version of its layout.
    pub layout_version: u64,
    /// What tells it from every other segment of the root.
    pub nonce: u64,
    /// When it was made, in milliseconds since 1970.
    pub created_unix_ms: u64,
}

impl Segment {
    /// Memory of this process alone, with the same tables: for a process that serves by itself, and for
    /// tests. A child never sees it.
    ///
    /// # Errors
    /// When the kernel gives no memory, no random bytes, or does not name its namespaces.
    pub fn private(identity: &Identity) -> std::io::Result<Arc<Self>> {
        let mapping = Mapping::private()?;
        let birth = Birth {
            nonce: u64::from_ne_bytes(okdb_sys::host::random_bytes()?),
            place: Place { dev: 0, ino: 0 },
            namespaces: Namespaces::current()?,
        };
        inscribe(&mapping.tables().header.fixed, identity, &birth);
        Ok(Arc::new(Self {
            mapping,
            identity: *identity,
            file: None,
        }))
    }

    pub(crate) fn from_parts(mapping: Mapping, identity: Identity, file: PathBuf) -> Self {
        Self {
            mapping,
            identity,
            file: Some(file),
        }
    }

    pub(crate) fn tables(&self) -> &Tables {
        self.mapping.tables()
    }

    /// What it belongs to.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether other processes can attach to it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.file.is_some()
    }

    /// Its file; `None` for private memory.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// What to tell an operator about it.
    #[must_use]
    pub fn info(&self) -> Info {
        let fixed = &self.tables().header.fixed;
        Info {
            path: self.file.clone(),
            bytes: SEGMENT_BYTES,
            layout_version: LAYOUT_VERSION,
            nonce: fixed.nonce.load(Ordering::Relaxed),
            created_unix_ms: fixed.created_unix_ms.load(Ordering::Relaxed),
        }
    }

    /// The row of the environment with this index; `None` beyond [`crate::ENV_COUNT_MAX`].
    #[must_use]
    pub fn env(&self, index: usize) -> Option<EnvRow<'_>> {
        let words = self.tables().envs.get(index)?;
        Some(EnvRow { words })
    }

    /// The clock for timestamps.
    #[must_use]
    pub fn hlc(&self) -> Hlc<'_> {
        Hlc {
            word: &self.tables().header.hlc.word,
        }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("info", &self.info())
            .finish_non_exhaustive()
    }
}

/// What the static part says beside the identity.
pub(crate) struct Birth {
    pub(crate) nonce: u64,
    pub(crate) place: Place,
    pub(crate) namespaces: Namespaces,
}

/// Writes the static part of a zeroed segment that nobody else knows yet.
pub(crate) fn inscribe(fixed: &Static, identity: &Identity, birth: &Birth) {
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    let [root_high, root_low] = words_of(identity.root);
    let [boot_high, boot_low] = words_of(identity.boot);
    for (word, value) in [
        (&fixed.magic, MAGIC),
        (&fixed.layout, LAYOUT_VERSION),
        (&fixed.size, size_word()),
        (&fixed.nonce, birth.nonce),
        (&fixed.root[0], root_high),
        (&fixed.root[1], root_low),
        (&fixed.boot[0], boot_high),
        (&fixed.boot[1], boot_low),
        (&fixed.created_unix_ms, created),
        (&fixed.run_dev, birth.place.dev),
        (&fixed.run_ino, birth.place.ino),
        (&fixed.pid_namespace, birth.namespaces.pid),
        (&fixed.time_namespace, birth.namespaces.time),
    ] {
        word.store(value, Ordering::Relaxed);
    }
    fixed.checksum.store(checksum(fixed), Ordering::Release);
}

/// Why a segment's static part does not fit.
pub(crate) enum Unfit {
    Stale(StaleReason),
    Foreign(ForeignReason),
}

/// Compares the static part with what it should say. The order makes the reason a useful one: what it is
/// at all, then whether it is whole, then whose it is.
pub(crate) fn examine(fixed: &Static, identity: &Identity, birth: &Birth) -> Result<(), Unfit> {
    let stale = |reason| Err(Unfit::Stale(reason));
    let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let sum = fixed.checksum.load(Ordering::Acquire);
    if read(&fixed.magic) != MAGIC {
        return stale(StaleReason::Magic);
    }
    if read(&fixed.layout) != LAYOUT_VERSION {
        return stale(StaleReason::Layout(read(&fixed.layout)));
    }
    if sum != checksum(fixed) || read(&fixed.size) != size_word() {
        return stale(StaleReason::Checksum);
    }
    if fixed.root.each_ref().map(read) != words_of(identity.root) {
        return stale(StaleReason::Root);
    }
    if fixed.boot.each_ref().map(read) != words_of(identity.boot) {
        return stale(StaleReason::Boot);
    }
    let place = Place {
        dev: read(&fixed.run_dev),
        ino: read(&fixed.run_ino),
    };
    if place != birth.place {
        return stale(StaleReason::Place);
    }
    if read(&fixed.nonce) != birth.nonce {
        return stale(StaleReason::Nonce);
    }
    let namespaces = Namespaces {
        pid: read(&fixed.pid_namespace),
        time: read(&fixed.time_namespace),
    };
    if namespaces != birth.namespaces {
        return Err(Unfit::Foreign(ForeignReason::Namespace));
    }
    Ok(())
}

fn words_of(bytes: [u8; 16]) -> [u64; 2] {
    let value = u128::from_ne_bytes(bytes);
    // Halves in memory order, whatever the host's byte order is.
    let mask = u128::from(u64::MAX);
    let halves = [value & mask, value >> 64].map(|half| u64::try_from(half).unwrap_or(u64::MAX));
    if cfg!(target_endian = "little") {
        halves
    } else {
        let [low, high] = halves;
        [high, low]
    }
}

fn size_word() -> u64 {
    u64::try_from(SEGMENT_BYTES).unwrap_or(u64::MAX)
}

/// FNV-1a over the words before the checksum. It finds damage, not forgery: who may write the file may do
/// anything to it anyhow.
fn checksum(fixed: &Static) -> u64 {
    let [root_high, root_low] = &fixed.root;
    let [boot_high, boot_low] = &fixed.boot;
    let words = [
        &fixed.magic,
        &fixed.layout,
        &fixed.size,
        &fixed.nonce,
        root_high,
        root_low,
        boot_high,
        boot_low,
        &fixed.created_unix_ms,
        &fixed.run_dev,
        &fixed.run_ino,
        &fixed.pid_namespace,
        &fixed.time_namespace,
    ];
    fnv1a(
        words
            .into_iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()),
    )
}

/// The 64-bit FNV-1a hash.
pub(crate) fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
#[path = "segment/tests.rs"]
pub(crate) mod tests;
