//! How a process opens a root, and what it wants to hear from it.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use crate::{Durability, Role};

const LOG_RETENTION_DEFAULT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Bounds of a store.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The largest value, in bytes of compact JSON.
    pub value_bytes: usize,
    /// Operations that may wait for the writer.
    pub queue_operations: usize,
    /// Bytes of operations that may wait for the writer.
    pub queue_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            value_bytes: 16 << 20,
            queue_operations: 20_000,
            queue_bytes: 128 << 20,
        }
    }
}

/// What was committed, for who wants to count or to tell others.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The environment.
    pub env: String,
    /// Its place in the segment's table.
    pub env_index: u16,
    /// Its clock now.
    pub clock: u64,
    /// Operations in the batch.
    pub operations: u32,
    /// Whether the commit waited for the disk.
    pub synced: bool,
}

/// What a process wants to hear from its writers. Called on writer threads: be quick, never block.
pub trait Hooks: Send + Sync {
    /// A batch is durable as promised and published; its clients are about to be answered.
    fn committed(&self, commit: &Commit) {
        let _ = commit;
    }

    /// Runs `batch`, exactly once, during which this process holds the write lock of the environment at this place of the
    /// segment's table.
    fn holding_write_lock(&self, env_index: u16, batch: &mut dyn FnMut()) {
        let _ = env_index;
        batch();
    }
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

/// How to open a root.
#[derive(Clone)]
pub struct Options {
    /// What the process wants with the root.
    pub role: Role,
    /// Durability of the environments that were made without one, `default` among them. `None`: what the root records,
    /// `strict` for a new one. Only a process that holds the root alone can change what is recorded.
    pub durability: Option<Durability>,
    /// Another map size for every environment, in bytes; only a process that holds the root alone can set it.
    pub map_size: Option<u64>,
    /// Puts the shared segment into the root instead of `/dev/shm`.
    pub segment_in_root: bool,
    /// Uses process-private memory for the segment: for a host where shared memory is not shared. Such a process must be
    /// the root's only one.
    pub private_segment: bool,
    /// Registers an unknown type at the first write to it.
    pub auto_types: bool,
    /// How long the change log tells of a removal. Who asks later learns that the log is truncated.
    pub log_retention: Duration,
    /// Bounds.
    pub limits: Limits,
    /// What to tell the process.
    pub hooks: Arc<dyn Hooks>,
    /// The server's lock, held already by the process that this one goes on as (see [`crate::Store::server_lock`]). The
    /// workers of that server are then this one's.
    pub server_lock: Option<Arc<OwnedFd>>,
    /// Stands in for the kernel's boot identity, in tests of power loss.
    #[doc(hidden)]
    pub boot: Option<[u8; 16]>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            role: Role::Library,
            durability: None,
            map_size: None,
            segment_in_root: false,
            private_segment: false,
            auto_types: false,
            log_retention: LOG_RETENTION_DEFAULT,
            limits: Limits::default(),
            hooks: Arc::new(NoHooks),
            server_lock: None,
            boot: None,
        }
    }
}
