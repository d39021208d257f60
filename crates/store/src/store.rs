//! An opened root: its environments, its segment, and what holds for all of them.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant, SystemTime},
};

use okdb_shm::{Placement, Segment};

use crate::{
    Durability, Env, EnvInfo, Error, Limits, OpenError, Options, Role,
    chores::Chores,
    root::{self, Locks},
    system::{EnvRow, System},
};

/// The environment that every root has.
const DEFAULT_ENV: &str = "default";
/// How long a server waits for the workers that a dead one left behind, before it kills them.
const ORPHAN_WAIT: Duration = Duration::from_secs(4);
const POLL: Duration = Duration::from_millis(20);

/// An opened root. Clones share it; the last one closes it. The root stays in use until the last [`Env`] is gone too.
#[derive(Clone)]
pub struct Store(Arc<StoreInner>);

struct StoreInner {
    base: Arc<Base>,
    envs: RwLock<HashMap<String, Env>>,
    /// Held while an environment is opened: LMDB allows one handle a process.
    opening: Mutex<()>,
}

/// What the environments of an opened root share. The locks are the last to go: as long as any environment is open in
/// this process, no other one is alone with the root.
pub(crate) struct Base {
    pub(crate) root: PathBuf,
    pub(crate) options: Options,
    pub(crate) boot: [u8; 16],
    pub(crate) system: System,
    pub(crate) segment: Arc<Segment>,
    pub(crate) chores: Chores,
    locks: Mutex<Locks>,
}

impl Base {
    fn locks(&self) -> MutexGuard<'_, Locks> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// Opens a root, making it if there is none (a [`Role::Tool`] never makes one).
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong and what to do.
    pub fn open(root: &Path, options: Options) -> Result<Self, OpenError> {
        let mut locks = root::enter(root, options.role, options.server_lock.as_deref())?;
        let root = std::fs::canonicalize(root).map_err(OpenError::io(root))?;
        let boot = match options.boot {
            Some(boot) => boot,
            None => okdb_sys::process::boot_id_bytes()
                .map_err(OpenError::io("/proc/sys/kernel/random/boot_id"))?,
        };
        let mut system = System::open(&root)?;
        let identity = okdb_shm::Identity {
            root: system.identity,
            boot,
        };
        if options.role == Role::Server && options.server_lock.is_none() {
            outlive_orphans(&root, &mut locks, &identity)?;
        }
        system.settle_map_bytes(&root, options.map_size, locks.is_alone())?;
        system.settle_durability(options.durability, locks.is_alone())?;
        let segment = open_segment(&root, &options, &identity, locks.is_alone())?;
        if system.env(DEFAULT_ENV)?.is_none() {
            match system.create_env(&root, DEFAULT_ENV, None) {
                Ok(_) | Err(OpenError::Store(Error::AlreadyExists { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        if root::read_format(&root)?.is_none() {
            root::write_format(&root)?;
        }
        let base = Arc::new(Base {
            root,
            options,
            boot,
            system,
            segment,
            chores: Chores::default(),
            locks: Mutex::new(locks),
        });
        let store = Self(Arc::new(StoreInner {
            base: Arc::clone(&base),
            envs: RwLock::default(),
            opening: Mutex::default(),
        }));
        // The clock is seeded before anybody else comes in.
        store.open_env(DEFAULT_ENV)?;
        if base.options.role == Role::Server {
            for name in store.env_names()? {
                store.open_env(&name)?;
            }
        }
        base.locks().share(&base.root)?;
        Ok(store)
    }

    /// The root folder, in canonical form.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0.base.root
    }

    /// The root's identity, 32 hexadecimal digits, made once.
    #[must_use]
    pub fn identity(&self) -> String {
        hex(&self.0.base.system.identity)
    }

    /// The root's identity as bytes.
    #[must_use]
    pub fn identity_bytes(&self) -> [u8; 16] {
        self.0.base.system.identity
    }

    /// A secret that every process of this root shares and nobody else knows.
    #[must_use]
    pub fn secret(&self) -> [u8; 32] {
        self.0.base.system.secret
    }

    /// The shared segment.
    #[must_use]
    pub fn segment(&self) -> &Arc<Segment> {
        &self.0.base.segment
    }

    /// Another descriptor of the server's lock: whoever has it holds the root as its server. It is for the program that
    /// this very process goes on as, which opens the root with it ([`Options::server_lock`]). `None` for who is no server.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn server_lock(&self) -> std::io::Result<Option<std::os::fd::OwnedFd>> {
        self.0.base.locks().server_lock()
    }

    /// The bounds it was opened with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.base.options.limits
    }

    /// The map size of each environment, in bytes of address space.
    #[must_use]
    pub fn map_bytes(&self) -> usize {
        self.0.base.system.map_bytes
    }

    /// An environment, opened at its first use in this process.
    ///
    /// # Errors
    /// [`Error::EnvNotFound`], or what opening it meets.
    pub fn env(&self, name: &str) -> Result<Env, Error> {
        if let Some(env) = self.opened(name) {
            return Ok(env);
        }
        self.open_env(name).map_err(into_error)
    }

    /// Makes an environment.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::AlreadyExists`], or what making it meets.
    pub fn create_env(&self, name: &str, durability: Option<Durability>) -> Result<Env, Error> {
        self.0
            .base
            .system
            .create_env(&self.0.base.root, name, durability)
            .map_err(into_error)?;
        self.env(name)
    }

    /// All environments, by name.
    ///
    /// # Errors
    /// What LMDB reports.
    pub fn envs(&self) -> Result<Vec<EnvInfo>, Error> {
        let rows = self.0.base.system.envs()?;
        rows.iter()
            .map(|(name, _)| self.env(name)?.info())
            .collect()
    }

    /// The names of all environments.
    ///
    /// # Errors
    /// What LMDB reports.
    pub fn env_names(&self) -> Result<Vec<String>, Error> {
        Ok(self
            .0
            .base
            .system
            .envs()?
            .into_iter()
            .map(|(name, _)| name)
            .collect())
    }

    pub(crate) fn system(&self) -> &System {
        &self.0.base.system
    }

    fn opened(&self, name: &str) -> Option<Env> {
        let envs = self.0.envs.read().unwrap_or_else(PoisonError::into_inner);
        envs.get(name).cloned()
    }

    /// The environments that are open in this process.
    fn open_envs(&self) -> Vec<Env> {
        let envs = self.0.envs.read().unwrap_or_else(PoisonError::into_inner);
        envs.values().cloned().collect()
    }

    fn open_env(&self, name: &str) -> Result<Env, OpenError> {
        let (inner, base) = (&self.0, &self.0.base);
        let _one_at_a_time = inner.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(env) = self.opened(name) {
            return Ok(env);
        }
        crate::check_env_name(name)?;
        let row: EnvRow = base.system.env(name)?.ok_or_else(|| Error::EnvNotFound {
            name: name.to_owned(),
        })?;
        let env = Env::open(Arc::clone(base), name, &row)?;
        let mut envs = inner.envs.write().unwrap_or_else(PoisonError::into_inner);
        envs.insert(name.to_owned(), env.clone());
        Ok(env)
    }

    /// Clears the reader slots of dead processes in every open environment; tells how many.
    ///
    /// # Errors
    /// What LMDB reports.
    pub fn clear_stale_readers(&self) -> Result<usize, Error> {
        let mut cleared = 0;
        for env in self.open_envs() {
            cleared += env.0.lmdb.clear_stale_readers()?;
        }
        Ok(cleared)
    }

    /// Makes good what a process that died inside a commit, or before it could publish, left half-told.
    ///
    /// # Errors
    /// What LMDB reports.
    pub fn repair(&self) -> Result<(), Error> {
        for env in self.open_envs() {
            env.0.repair()?;
        }
        Ok(())
    }

    /// Does the root's background work until `stop` is set, if no other process does it: index builds, the rows of
    /// dropped types and indexes, superseded log entries. Blocks; give it a thread.
    pub fn run_chores(&self, stop: &crate::StopFlag) {
        self.0.base.chores.run(self, stop);
    }

    /// Lets the background work look for something to do at once.
    pub fn wake_chores(&self) {
        self.0.base.chores.wake();
    }

    /// Refuses new writes, finishes the queued ones, and marks a clean end where this process is the last one. Reads go on;
    /// but a last user keeps the root to itself until its last handle is dropped, so drop them soon.
    pub fn close(&self) {
        let envs = self.0.close_writers();
        self.0.leave(&envs);
    }
}

impl StoreInner {
    fn close_writers(&self) -> Vec<Env> {
        let envs: Vec<Env> = {
            let envs = self.envs.read().unwrap_or_else(PoisonError::into_inner);
            envs.values().cloned().collect()
        };
        for env in &envs {
            env.0.writer.close();
        }
        envs
    }

    /// Marks a clean end if this process is the root's last user.
    fn leave(&self, envs: &[Env]) {
        let base = &self.base;
        let mut locks = base.locks();
        if base.options.role == Role::Worker || !locks.leave(&base.root) {
            return;
        }
        for env in envs {
            if let Err(error) = env.0.leave_epoch() {
                tracing::warn!(env = env.name(), %error, "cannot mark a clean end");
            }
        }
        if base.segment.is_shared()
            && let Err(error) = base.segment.remove(&base.root.join("run"))
        {
            tracing::warn!(%error, "cannot remove the shared segment");
        }
    }
}

impl Drop for StoreInner {
    fn drop(&mut self) {
        let envs = self.close_writers();
        // One handle is in the table and one in the list. With more of them about, the root stays in use: others may come
        // and go, and the segment is theirs too.
        if envs.iter().all(|env| Arc::strong_count(&env.0) == 2) {
            self.leave(&envs);
        }
    }
}

/// Opening an environment late in a process's life fails like any other operation.
fn into_error(error: OpenError) -> Error {
    match error {
        OpenError::Store(error) => error,
        OpenError::Io { source, .. } => Error::Io(source),
        other => Error::Damaged(other.to_string()),
    }
}

fn open_segment(
    root: &Path,
    options: &Options,
    identity: &okdb_shm::Identity,
    alone: bool,
) -> Result<Arc<Segment>, OpenError> {
    let refuse = |reason: String| OpenError::Segment {
        root: root.to_owned(),
        reason,
    };
    if options.private_segment {
        if !alone {
            return Err(refuse(
                "shared memory does not work here, and another process uses this root".into(),
            ));
        }
        return Segment::private(identity).map_err(|error| refuse(error.to_string()));
    }
    let run = root.join("run");
    root::make_folder(&run)?;
    if alone {
        let placement = if options.segment_in_root {
            Placement::InRoot
        } else {
            Placement::DevShm
        };
        return Segment::create(&run, identity, placement)
            .map_err(|error| refuse(error.to_string()));
    }
    Segment::attach(&run, identity).map_err(|error| {
        refuse(format!(
            "{error}. Other processes use this root, and this one must map the very same segment: if it runs in another container, share /dev/shm or use --segment-in-root"
        ))
    })
}

/// A server that finds workers of a dead one waits for them, then kills them: with the server's lock held, they can have
/// no living parent. Library processes may stay.
fn outlive_orphans(
    root: &Path,
    locks: &mut Locks,
    identity: &okdb_shm::Identity,
) -> Result<(), OpenError> {
    if locks.try_alone() {
        return Ok(());
    }
    let deadline = Instant::now() + ORPHAN_WAIT;
    let Ok(segment) = Segment::attach(&root.join("run"), identity) else {
        // Unreadable: nobody that could be named, but orphans end by themselves. If it is others who use the root,
        // opening the segment will tell what is wrong.
        while !locks.try_alone() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
        return Ok(());
    };
    let last_deadline = deadline + ORPHAN_WAIT;
    loop {
        let orphans: Vec<_> = segment
            .rows()
            .filter(|row| matches!(row.role, okdb_shm::Role::Primary | okdb_shm::Role::Worker))
            .filter_map(|row| row.owner)
            .filter(okdb_sys::Identity::is_alive)
            .collect();
        if locks.try_alone() || orphans.is_empty() {
            return Ok(());
        }
        if let (true, Some(orphan)) = (Instant::now() >= last_deadline, orphans.first()) {
            // Stuck in the kernel: not even SIGKILL ends it.
            return Err(OpenError::Locked {
                root: root.to_owned(),
                pid: Some(orphan.pid),
            });
        }
        if Instant::now() >= deadline {
            for orphan in orphans {
                tracing::warn!(
                    pid = orphan.pid,
                    "killing a worker that a dead server left behind"
                );
                if let Err(source) = orphan.signal(okdb_sys::Signal::Kill)
                    && source.kind() != std::io::ErrorKind::NotFound
                {
                    let path = PathBuf::from(format!("/proc/{}", orphan.pid));
                    return Err(OpenError::Io { path, source });
                }
                // Its locks go with it; the next round sees whether they did.
                let _ = orphan.wait_end(Duration::from_secs(1));
            }
        }
        std::thread::sleep(POLL);
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
            let _ = write!(out, "{byte:02x}");
            out
        })
}

/// Milliseconds since 1970 by the wall clock.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
}
