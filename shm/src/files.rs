//! The segment's file and the name that leads to it: attaching, creating, replacing, removing.
//!
//! `run/segment` in the root is one line of text that names the file and where it lies. Files are named
//! `okdb-<root>-<place>-<nonce>`: the place is a hash of the run directory's device and inode, so that a
//! copied root, which carries the same identity and the same `run/segment`, neither attaches to the
//! original's segment nor cleans it away.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate, posix_fallocate};
use okdb_sys::process::Namespaces;

use crate::errors::{AttachError, CreateError, ForeignReason, StaleReason};
use crate::layout::SEGMENT_BYTES;
use crate::map::Mapping;
use crate::segment::{Birth, Identity, Segment, Unfit, examine, fnv1a, inscribe};

/// Where shared memory lives as files.
const DEV_SHM: &str = "/dev/shm";

/// The file in the run directory that names the segment.
const POINTER: &str = "segment";

/// First words of that file: what it is, and the version of its format.
const POINTER_MAGIC: [&str; 2] = ["okdb-segment", "1"];

/// More than any pointer that this version writes.
const POINTER_BYTES_MAX: u64 = 256;

/// Permission bits of everything here: the root's owner alone.
const FILE_MODE: u32 = 0o600;

/// Where a new segment's file goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// `/dev/shm`: memory, which no disk's flush can stall.
    DevShm,
    /// The root's run directory: for processes that share the root but not `/dev/shm`.
    InRoot,
}

impl Segment {
    /// Attaches to the segment that `run/segment` names, if it is valid for `identity` and this directory.
    /// Follows no link, and trusts nothing that the root's owner did not write.
    ///
    /// # Errors
    /// See [`AttachError`]: `Missing` and `Stale` are for whoever holds the root alone to mend.
    pub fn attach(run_dir: &Path, identity: &Identity) -> Result<Arc<Self>, AttachError> {
        let pointer_path = run_dir.join(POINTER);
        let run = fs::metadata(run_dir).map_err(AttachError::at(run_dir))?;
        let place = Place::of(&run);
        let name = read_pointer(&pointer_path, run.uid())?;
        if name.root != identity.root || name.place != place.hash() {
            let reason = if name.root == identity.root {
                StaleReason::Place
            } else {
                StaleReason::Root
            };
            return Err(AttachError::Stale {
                path: pointer_path,
                reason,
            });
        }

        let path = name.path(run_dir);
        let file = open_ours(&path, run.uid(), true)?;
        let size = file.metadata().map_err(AttachError::at(&path))?.size();
        if usize::try_from(size) != Ok(SEGMENT_BYTES) {
            return Err(AttachError::Stale {
                path,
                reason: StaleReason::Size(size),
            });
        }
        fill_holes(&file).map_err(AttachError::at(&path))?;
        let mapping = Mapping::shared(&file).map_err(AttachError::at(&path))?;
        let birth = Birth {
            nonce: name.nonce,
            place,
            namespaces: Namespaces::current().map_err(AttachError::at(&path))?,
        };
        match examine(&mapping.tables().header.fixed, identity, &birth) {
            Ok(()) => Ok(Arc::new(Self::from_parts(mapping, *identity, path))),
            Err(Unfit::Stale(reason)) => Err(AttachError::Stale { path, reason }),
            Err(Unfit::Foreign(reason)) => Err(AttachError::Foreign { path, reason }),
        }
    }

    /// Makes a new segment and lets `run/segment` name it, after removing those that this root left
    /// behind. All its tables are empty: the caller, who **holds the root alone**, seeds it from the
    /// durable clock.
    ///
    /// # Errors
    /// See [`CreateError`]. Nothing is left behind then, and `run/segment` is as it was.
    pub fn create(
        run_dir: &Path,
        identity: &Identity,
        placement: Placement,
    ) -> Result<Arc<Self>, CreateError> {
        match DirBuilder::new().mode(0o700).create(run_dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(CreateError::at(run_dir)(error));
            }
            _ => {}
        }
        let run = fs::metadata(run_dir).map_err(CreateError::at(run_dir))?;
        let place = Place::of(&run);
        // First, so that leftovers which fill the memory do not prevent the start that cleans them.
        remove_leftovers(run_dir, identity, place);

        let name = Name {
            placement,
            root: identity.root,
            place: place.hash(),
            nonce: okdb_sys::host::random_bytes()
                .map(u64::from_ne_bytes)
                .map_err(CreateError::at(run_dir))?,
        };
        let path = name.path(run_dir);
        let created = Unfinished { path: &path };
        let file = create_file(&path).map_err(CreateError::at(&path))?;
        allocate(&file).map_err(CreateError::at(&path))?;
        let mapping = Mapping::shared(&file).map_err(CreateError::at(&path))?;
        let birth = Birth {
            nonce: name.nonce,
            place,
            namespaces: Namespaces::current().map_err(CreateError::at(&path))?,
        };
        inscribe(&mapping.tables().header.fixed, identity, &birth);
        write_pointer(run_dir, &name)?;
        std::mem::forget(created);
        Ok(Arc::new(Self::from_parts(mapping, *identity, path)))
    }

    /// Removes the segment's file, and `run/segment` if it still names it: for a process that **holds the
    /// root alone** and is about to leave it, so that closed roots keep no memory. Private memory has
    /// nothing to remove.
    ///
    /// # Errors
    /// What the file system reports; a file that is gone already is no error.
    pub fn remove(&self, run_dir: &Path) -> io::Result<()> {
        let Some(path) = self.path() else {
            return Ok(());
        };
        let pointer = run_dir.join(POINTER);
        let run = fs::metadata(run_dir)?;
        // The name first: a crash in between leaves a leftover, not a name that leads nowhere.
        if read_pointer(&pointer, run.uid()).is_ok_and(|name| name.path(run_dir) == path) {
            ignore_missing(fs::remove_file(&pointer))?;
        }
        ignore_missing(fs::remove_file(path))
    }
}

/// The run directory as the file system knows it: the same through every mount, another for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

impl Place {
    fn of(run_dir: &fs::Metadata) -> Self {
        Self {
            dev: run_dir.dev(),
            ino: run_dir.ino(),
        }
    }

    fn hash(self) -> u64 {
        fnv1a([self.dev, self.ino].into_iter().flat_map(u64::to_ne_bytes))
    }
}

/// What `run/segment` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    placement: Placement,
    root: [u8; 16],
    place: u64,
    nonce: u64,
}

impl Name {
    fn path(&self, run_dir: &Path) -> PathBuf {
        let dir = match self.placement {
            Placement::DevShm => Path::new(DEV_SHM),
            Placement::InRoot => run_dir,
        };
        dir.join(self.file())
    }

    fn file(&self) -> String {
        format!(
            "okdb-{:032x}-{:016x}-{:016x}",
            u128::from_be_bytes(self.root),
            self.place,
            self.nonce
        )
    }

    /// Root, place and nonce of a file name, if it is exactly one that [`Self::file`] makes.
    fn parse_file(placement: Placement, file: &str) -> Option<Self> {
        let mut parts = file.strip_prefix("okdb-")?.split('-');
        let name = Self {
            placement,
            root: u128::from_str_radix(parts.next()?, 16).ok()?.to_be_bytes(),
            place: u64::from_str_radix(parts.next()?, 16).ok()?,
            nonce: u64::from_str_radix(parts.next()?, 16).ok()?,
        };
        // Refuses all other spellings: shorter ones, signs, capitals, further parts.
        (name.file() == file).then_some(name)
    }

    fn to_pointer(self) -> String {
        let [magic, version] = POINTER_MAGIC;
        let place = match self.placement {
            Placement::DevShm => "dev-shm",
            Placement::InRoot => "run",
        };
        format!("{magic} {version} {place} {}\n", self.file())
    }

    fn parse_pointer(text: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(text).ok()?.strip_suffix('\n')?;
        let [magic, version, place, file] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        if [magic, version] != POINTER_MAGIC {
            return None;
        }
        let placement = match place {
            "dev-shm" => Placement::DevShm,
            "run" => Placement::InRoot,
            _ => return None,
        };
        Self::parse_file(placement, file)
    }
}

fn read_pointer(path: &Path, owner: u32) -> Result<Name, AttachError> {
    let file = open_ours(path, owner, false)?;
    let mut text = Vec::new();
    file.take(POINTER_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(AttachError::at(path))?;
    Name::parse_pointer(&text).ok_or_else(|| AttachError::Stale {
        path: path.to_owned(),
        reason: StaleReason::Pointer,
    })
}

/// Opens a regular file with one name that belongs to `owner` or to this user and to nobody else.
fn open_ours(path: &Path, owner: u32, write: bool) -> Result<File, AttachError> {
    let file = OpenOptions::new()
        .read(true)
        .write(write)
        // Not blocking: a FIFO would make the open wait for its other end.
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(path)
        .map_err(AttachError::at(path))?;
    let meta = file.metadata().map_err(AttachError::at(path))?;
    let user = nix::unistd::geteuid().as_raw();
    let mode = meta.mode() & 0o7777;
    let reason = if !meta.is_file() || meta.nlink() != 1 {
        ForeignReason::NotRegular
    } else if meta.uid() != owner && meta.uid() != user {
        ForeignReason::Owner(meta.uid())
    } else if mode != FILE_MODE {
        ForeignReason::Mode(mode)
    } else {
        return Ok(file);
    };
    Err(AttachError::Foreign {
        path: path.to_owned(),
        reason,
    })
}

fn create_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path)?;
    // The umask may have taken more than it should.
    file.set_permissions(fs::Permissions::from_mode(FILE_MODE))?;
    Ok(file)
}

/// Gives the new file all its blocks now: a page that finds no memory later is a SIGBUS.
fn allocate(file: &File) -> io::Result<()> {
    let length = i64::try_from(SEGMENT_BYTES).map_err(io::Error::other)?;
    loop {
        match posix_fallocate(file, 0, length) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// As [`allocate`] for a file in use, where `posix_fallocate`'s emulation (on file systems without the
/// call) would write zeros beside other processes' counters.
fn fill_holes(file: &File) -> io::Result<()> {
    let length = i64::try_from(SEGMENT_BYTES).map_err(io::Error::other)?;
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, length) {
            Ok(()) | Err(Errno::EOPNOTSUPP) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Replaces `run/segment` in one step.
fn write_pointer(run_dir: &Path, name: &Name) -> Result<(), CreateError> {
    let path = run_dir.join(POINTER);
    let new = run_dir.join(format!("{POINTER}.new"));
    ignore_missing(fs::remove_file(&new)).map_err(CreateError::at(&new))?;
    let unfinished = Unfinished { path: &new };
    let mut file = create_file(&new).map_err(CreateError::at(&new))?;
    file.write_all(name.to_pointer().as_bytes())
        .map_err(CreateError::at(&new))?;
    fs::rename(&new, &path).map_err(CreateError::at(&path))?;
    std::mem::forget(unfinished);
    Ok(())
}

/// Removes the segments that this root made and left behind. Best effort: what stays is not used, and the
/// next start tries again.
fn remove_leftovers(run_dir: &Path, identity: &Identity, place: Place) {
    for (dir, placement) in [
        (Path::new(DEV_SHM), Placement::DevShm),
        (run_dir, Placement::InRoot),
    ] {
        let Ok(entries) = fs::read_dir(dir) else {
            continue;
        };
        for entry in entries.flatten() {
            let file = entry.file_name();
            let Some(name) = file
                .to_str()
                .and_then(|file| Name::parse_file(placement, file))
            else {
                continue;
            };
            // In our own run directory there is nobody else's, but there may be one that was copied along.
            let ours = placement == Placement::InRoot || name.place == place.hash();
            if ours && name.root == identity.root {
                // Unlinking a symbolic link leaves its target alone; a directory refuses.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Removes a file unless it was finished (and this forgotten).
struct Unfinished<'a> {
    path: &'a Path,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path);
    }
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
#[path = "files/tests.rs"]
mod tests;
