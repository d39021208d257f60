//! An upgrade in place: becoming another program under the same pid, and checking beforehand whether that can work.
//!
//! The primary keeps its pid, its children, its listeners, the root's lock and the supervision sockets; the new program
//! finds them by a state that travels in memory ([`Takeover`]). LMDB's handles do not survive, and need not: they are
//! closed with the old program, and a process that reads nothing at that moment leaves no reader slot behind.

use std::{
    ffi::{OsStr, OsString},
    io,
    num::NonZeroU16,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

pub use okdb_cluster::handover::CHECK_PASSED;
use okdb_cluster::handover::{Parcel, VERSION};
use okdb_store::{Options, Role, Store};
use okdb_sys::{
    Signal,
    exec::{Exec, memory_file, read_memory_file},
    spawn::{Child, Spawn, take_inherited_fd},
};

use super::{ServerConfig, ServerError};

/// The variable by which a program learns that it goes on as a server's primary: `PID:STATE_FD:LOCK_FD:WORKERS`.
const TAKEOVER_VARIABLE: &str = "OKDB_TAKEOVER";

/// The variable by which a program learns that it is only to check whether it could: the version of the state.
const CHECK_VARIABLE: &str = "OKDB_UPGRADE_CHECK";

/// What a program goes on with.
#[derive(Debug)]
pub struct Takeover {
    /// For [`okdb_cluster::driver::Driver::resume`].
    pub(crate) state: Vec<u8>,
    /// The root's lock.
    pub(crate) lock: Arc<OwnedFd>,
    /// How many workers the configuration had said there shall be.
    pub(crate) workers: u16,
}

impl Takeover {
    /// What the program that this process ran before has left for this one; `None` for an ordinary start. Call it once,
    /// before anything opens a descriptor.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn from_env() -> Result<Option<Self>, ServerError> {
        let Some(said) = std::env::var_os(TAKEOVER_VARIABLE) else {
            return Ok(None);
        };
        let numbers: Vec<i64> = said
            .to_string_lossy()
            .split(':')
            .map_while(|number| number.parse().ok())
            .collect();
        // A variable that came by way of a parent is about that parent.
        let [pid, state, lock, workers] = numbers.as_slice() else {
            return Ok(None);
        };
        if *pid != i64::from(std::process::id()) {
            return Ok(None);
        }
        let take = |number: i64| take_inherited_fd(i32::try_from(number).unwrap_or(-1));
        let take = || -> io::Result<Self> {
            Ok(Self {
                state: read_memory_file(take(*state)?)?,
                lock: Arc::new(take(*lock)?),
                workers: u16::try_from(*workers).unwrap_or(0),
            })
        };
        take()
            .map(Some)
            .map_err(ServerError::system("cannot go on as the upgraded server"))
    }

    /// Leaves what a running server cannot change as it is, whatever the configuration says by now.
    pub(crate) fn settle(&self, config: &mut ServerConfig) -> io::Result<()> {
        let lock = std::fs::read_link(format!("/proc/self/fd/{}", self.lock.as_raw_fd()))?;
        let root = lock
            .parent()
            .ok_or_else(|| io::Error::other("the root's lock has no folder"))?;
        if std::fs::canonicalize(&config.root).ok().as_deref() != Some(root) {
            tracing::warn!(
                key = "root",
                "changed, but only a restart brings it into force"
            );
            root.clone_into(&mut config.root);
        }
        // As the root has recorded them.
        config.durability = None;
        config.map_size = None;
        Ok(())
    }
}

/// The program of this process, and how it was called.
#[derive(Clone, Debug)]
pub(crate) struct Successor {
    path: PathBuf,
    name: OsString,
    arguments: Vec<OsString>,
}

impl Successor {
    /// Whatever has this program's name when it is asked for.
    pub(crate) fn of_this_process() -> io::Result<Self> {
        let mut arguments = std::env::args_os();
        let name = arguments.next().unwrap_or_else(|| "okdb".into());
        Ok(Self {
            path: named(&name)?,
            name,
            arguments: arguments.collect(),
        })
    }

    /// Starts the check.
    pub(crate) fn check(&self) -> io::Result<Child> {
        Spawn::new(&self.path)
            .args(&self.arguments)
            .env(CHECK_VARIABLE, VERSION.to_string())
            .env_remove(TAKEOVER_VARIABLE)
            .death_signal(Signal::Kill)
            .pipe_stderr()
            .start()
    }

    /// Becomes it. Comes back only with the reason why not.
    pub(crate) fn become_it(
        &self,
        parcel: &Parcel<'_>,
        store: &Store,
        workers: NonZeroU16,
    ) -> io::Error {
        let prepare = || -> io::Result<(OwnedFd, OwnedFd)> {
            let lock = store
                .server_lock()?
                .ok_or_else(|| io::Error::other("this process does not hold the root's lock"))?;
            Ok((memory_file("okdb-takeover", &parcel.state)?, lock))
        };
        let (state, lock) = match prepare() {
            Ok(prepared) => prepared,
            Err(error) => return error,
        };
        let takeover = format!(
            "{}:{}:{}:{workers}",
            std::process::id(),
            state.as_raw_fd(),
            lock.as_raw_fd()
        );
        let kept = parcel.descriptors.iter().copied();
        kept.chain([state.as_fd(), lock.as_fd()])
            .fold(Exec::new(&self.path), Exec::keep)
            .arg0(&self.name)
            .args(&self.arguments)
            .env(TAKEOVER_VARIABLE, takeover)
            .run()
    }
}

/// Where the program of this name is. (The link that the kernel keeps of a running program would follow a replaced file,
/// and would have followed a symbolic link when it began.)
fn named(name: &OsStr) -> io::Result<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return std::path::absolute(path);
    }
    let found = std::env::var_os("PATH").and_then(|folders| {
        std::env::split_paths(&folders)
            .map(|folder| folder.join(path))
            .find(|candidate| candidate.is_file())
    });
    found.map_or_else(std::env::current_exe, Ok)
}

/// Whether this process was only started to check.
#[must_use]
pub fn is_check() -> bool {
    std::env::var_os(CHECK_VARIABLE).is_some()
}

/// The check: whether this program could go on with what the running one would hand over, for this root and
/// configuration. Changes nothing. A program for which it succeeds ends with [`CHECK_PASSED`].
///
/// # Errors
/// Why it could not.
pub fn check(config: &ServerConfig) -> Result<(), ServerError> {
    config.check()?;
    let asked = std::env::var(CHECK_VARIABLE).unwrap_or_default();
    if asked != VERSION.to_string() {
        return Err(ServerError::Config(format!(
            "the running server hands over version {asked} of its state, this program goes on from version {VERSION}: stop the server and start this program instead"
        )));
    }
    // Opens what a primary opens: the format, the system environment, the segment, and the first environment.
    let store = Store::open(
        &config.root,
        Options {
            role: Role::Tool,
            ..Options::default()
        },
    )?;
    drop(store);
    Ok(())
}
