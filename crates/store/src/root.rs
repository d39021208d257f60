//! The root folder: its layout, its locks and its format.
//!
//! Two locks, both on `okdb.lock`, both gone with the process that holds them, however it ends:
//!
//! - `flock`, exclusive: who *serves* the root. The file says who that is.
//! - byte range [`USERS`], shared by every process that uses the root in any way. Who gets it exclusively is alone, and
//!   may make what is shared: the format file, the system environment, the segment, the map size.
//! - byte range [`CHORES`], exclusive: who does background work where no server does.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use okdb_sys::{
    Identity,
    lock::{FlockGuard, LockError, Mode, RangeGuard},
};

use crate::OpenError;

/// The storage format that this build writes.
pub const FORMAT_VERSION: u32 = 2;
const FORMAT_NAME: &str = "okdb storage format";

const USERS: std::ops::Range<u64> = 1..2;
const CHORES: std::ops::Range<u64> = 2..3;

/// How long to wait for another process that is just setting up the root.
const SETUP_WAIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// What a process wants with a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Serves it: takes its lock, does its background work.
    Server,
    /// A worker of the server: its parent holds the lock.
    Worker,
    /// A program of its own that reads and writes; does the background work when no server does and it is asked to.
    Library,
    /// A command that looks and goes, such as `verify` or `backup`.
    Tool,
}

/// The locks that a process holds on a root.
pub(crate) struct Locks {
    /// Held by a server alone.
    server: Option<FlockGuard>,
    /// `None` only if somebody else took the root over while this process was leaving it.
    users: Option<RangeGuard>,
}

impl Locks {
    /// Another descriptor of the server's lock, which holds it as much as this process does; `None` for who is no server.
    pub(crate) fn server_lock(&self) -> io::Result<Option<OwnedFd>> {
        self.server
            .as_ref()
            .map(|lock| lock.as_fd().try_clone_to_owned())
            .transpose()
    }

    /// Whether nobody else uses the root now.
    pub(crate) fn is_alone(&self) -> bool {
        self.users
            .as_ref()
            .is_some_and(|users| users.mode() == Mode::Exclusive)
    }

    /// Lets others in.
    pub(crate) fn share(&mut self, root: &Path) -> Result<(), OpenError> {
        match &mut self.users {
            Some(users) if users.mode() == Mode::Exclusive => {
                users.downgrade().map_err(OpenError::io(lock_path(root)))
            }
            _ => Ok(()),
        }
    }

    /// Becomes the only user, if there is no other.
    pub(crate) fn try_alone(&mut self) -> bool {
        self.is_alone()
            || self
                .users
                .as_mut()
                .is_some_and(|users| users.try_upgrade().unwrap_or(false))
    }

    /// Stops using the root, and tells whether this process was its last user; if so, nobody comes in before the locks are
    /// dropped. Two that leave at once must not wait for each other to be gone, so each lets go before it looks: whoever
    /// looks last is alone.
    pub(crate) fn leave(&mut self, root: &Path) -> bool {
        if self.is_alone() {
            return true;
        }
        for mode in [Mode::Exclusive, Mode::Shared] {
            self.users = None;
            let fd = open_lock_file(root).ok();
            self.users = fd.and_then(|fd| RangeGuard::try_lock(fd, USERS, mode).ok());
            if self.users.is_some() {
                break;
            }
        }
        self.is_alone()
    }
}

fn lock_path(root: &Path) -> PathBuf {
    root.join("okdb.lock")
}

/// Makes the folder if needed, refuses what cannot be a root, and takes the locks for a role.
///
/// `held` is the server's lock where it was handed over by the program that this process ran before.
pub(crate) fn enter(root: &Path, role: Role, held: Option<&OwnedFd>) -> Result<Locks, OpenError> {
    prepare_folder(root, role)?;
    let server = match role {
        Role::Server => Some(lock_as_server(root, held)?),
        Role::Worker | Role::Library | Role::Tool => None,
    };
    let users = Some(join_users(root, role)?);
    Ok(Locks { server, users })
}

fn prepare_folder(root: &Path, role: Role) -> Result<(), OpenError> {
    match fs::metadata(root) {
        Ok(meta) if !meta.is_dir() => {
            return Err(OpenError::NotARoot {
                root: root.to_owned(),
                reason: "it is not a folder".into(),
            });
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound && role != Role::Tool => {
            make_folder(root)?;
        }
        Err(source) => {
            return Err(OpenError::Io {
                path: root.to_owned(),
                source,
            });
        }
    }
    if let Ok(fs) = okdb_sys::host::fs_type(root)
        && fs.is_network()
    {
        return Err(OpenError::NetworkFs {
            root: root.to_owned(),
            fs: fs.name().to_owned(),
        });
    }
    if read_format(root)?.is_none() {
        if role == Role::Tool {
            return Err(OpenError::NotARoot {
                root: root.to_owned(),
                reason: "it holds no `format` file; name the folder that a server made".into(),
            });
        }
        // A start that was cut short leaves these; anything else is somebody's data.
        // (A file system made for the root has a folder of its own, and an operator may configure before the first start.)
        let ours = [
            "okdb.lock",
            "run",
            "system",
            "envs",
            "format.new",
            "lost+found",
            ".kdbconfig",
        ];
        for entry in fs::read_dir(root).map_err(OpenError::io(root))? {
            let name = entry.map_err(OpenError::io(root))?.file_name();
            if !ours.iter().any(|known| name == *known) {
                return Err(OpenError::NotARoot {
                    root: root.to_owned(),
                    reason: format!(
                        "it holds {} and no `format` file; name an empty or a new folder",
                        name.display()
                    ),
                });
            }
        }
    }
    Ok(())
}

/// Makes a folder for the owner alone, and its parents.
pub(crate) fn make_folder(path: &Path) -> Result<(), OpenError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(OpenError::io(path))
}

fn open_lock_file(root: &Path) -> Result<OwnedFd, OpenError> {
    let path = lock_path(root);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(&path)
        .map_err(OpenError::io(path))?;
    Ok(file.into())
}

/// A descriptor through which to lock: the one that holds the lock already, if it is one of this root.
fn lock_descriptor(root: &Path, held: Option<&OwnedFd>) -> Result<OwnedFd, OpenError> {
    let fresh = open_lock_file(root)?;
    let Some(held) = held else { return Ok(fresh) };
    let path = lock_path(root);
    let same = nix::sys::stat::fstat(held)
        .and_then(|held| nix::sys::stat::fstat(&fresh).map(|fresh| (held, fresh)))
        .map(|(held, fresh)| (held.st_dev, held.st_ino) == (fresh.st_dev, fresh.st_ino))
        .map_err(|errno| OpenError::io(&path)(errno.into()))?;
    if same {
        held.try_clone().map_err(OpenError::io(&path))
    } else {
        Err(OpenError::Io {
            path,
            source: io::Error::other("the lock that was handed over is another root's"),
        })
    }
}

/// Takes the server's lock and writes down who holds it.
fn lock_as_server(root: &Path, held: Option<&OwnedFd>) -> Result<FlockGuard, OpenError> {
    let path = lock_path(root);
    match FlockGuard::try_lock(lock_descriptor(root, held)?, Mode::Exclusive) {
        Ok(guard) => {
            let me = Identity::current().map_err(OpenError::io("/proc/self/stat"))?;
            let text = format!("{} {}\n", me.pid, me.start_time);
            let file = guard.file();
            file.write_all_at(text.as_bytes(), 0)
                .and_then(|()| file.set_len(text.len() as u64))
                .map_err(OpenError::io(&path))?;
            Ok(guard)
        }
        Err(LockError::Held(fd)) => {
            let pid = holder(&mut File::from(fd));
            Err(OpenError::Locked {
                root: root.to_owned(),
                pid,
            })
        }
        Err(LockError::Io(source, _)) => Err(OpenError::Io { path, source }),
    }
}

/// The pid in the lock file, if that very process still lives.
fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(64).read_to_string(&mut text).ok()?;
    let mut words = text.split_whitespace();
    let pid = words.next()?.parse().ok()?;
    let start_time = words.next()?.parse().ok()?;
    Identity { pid, start_time }.is_alive().then_some(pid)
}

/// The pid of the server of a root, if one lives and says so. Takes no lock.
#[must_use]
pub fn server_pid(root: &Path) -> Option<u32> {
    holder(&mut File::open(lock_path(root)).ok()?)
}

/// Joins the users: alone if possible, else beside the others.
fn join_users(root: &Path, role: Role) -> Result<RangeGuard, OpenError> {
    let path = lock_path(root);
    let deadline = Instant::now() + SETUP_WAIT;
    let mut fd = open_lock_file(root)?;
    loop {
        // Only somebody who is setting up holds it exclusively, and not for long.
        for mode in [Mode::Exclusive, Mode::Shared] {
            // A worker never is alone, and a tool has nothing to set up in a root that is in use.
            if mode == Mode::Exclusive && role == Role::Worker {
                continue;
            }
            match RangeGuard::try_lock(fd, USERS, mode) {
                Ok(guard) => return Ok(guard),
                Err(LockError::Held(back)) => fd = back,
                Err(LockError::Io(source, _)) => return Err(OpenError::Io { path, source }),
            }
        }
        if Instant::now() > deadline {
            return Err(OpenError::Locked {
                root: root.to_owned(),
                pid: server_pid(root),
            });
        }
        std::thread::sleep(POLL);
    }
}

/// Takes the lock of who does background work, if it is free.
pub(crate) fn try_chores_lock(root: &Path) -> Option<RangeGuard> {
    RangeGuard::try_lock(open_lock_file(root).ok()?, CHORES, Mode::Exclusive).ok()
}

/// The format a root says it has.
pub(crate) fn read_format(root: &Path) -> Result<Option<u32>, OpenError> {
    let path = root.join("format");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(OpenError::Io { path, source }),
    };
    let version = text
        .trim()
        .strip_prefix(FORMAT_NAME)
        .and_then(|rest| rest.trim().parse().ok());
    match version {
        Some(found) if found > FORMAT_VERSION => Err(OpenError::FormatTooNew {
            root: root.to_owned(),
            found,
            supported: FORMAT_VERSION,
        }),
        Some(found) => Ok(Some(found)),
        None => Err(OpenError::NotARoot {
            root: root.to_owned(),
            reason: "its `format` file does not say which format it has".into(),
        }),
    }
}

/// Writes the format file; the last step of making a root, so that a half-made one has none.
pub(crate) fn write_format(root: &Path) -> Result<(), OpenError> {
    let (new, path) = (root.join("format.new"), root.join("format"));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .map_err(OpenError::io(&new))?;
    writeln!(file, "{FORMAT_NAME} {FORMAT_VERSION}")
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&new, &path))
        .and_then(|()| sync_folder(root))
        .map_err(OpenError::io(&path))
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
