//! What a server needs to know, checked, and the part of it that each worker is told.

use std::{io, num::NonZeroU16, path::PathBuf, sync::Arc};

use okdb_cluster::{
    address::Address,
    driver::{self, Output},
    exit::ExitCode,
    machine,
};
use okdb_http::HttpLimits;
use okdb_store::{Durability, Limits};
use serde::{Deserialize, Serialize};

use super::{ServerError, status::ClusterSnapshot};

/// The configuration of a server.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line, independent of the others"
)]
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The root.
    pub root: PathBuf,
    /// Where to listen.
    pub listen: Vec<Address>,
    /// How many workers; one means a standalone process.
    pub workers: NonZeroU16,
    /// Durability of the environments that were made without one; `None`: as the root records it.
    pub durability: Option<Durability>,
    /// Another map size, in bytes.
    pub map_size: Option<u64>,
    /// Puts the shared segment into the root.
    pub segment_in_root: bool,
    /// Acts as if shared memory were not shared.
    pub force_private_segment: bool,
    /// Whether addresses that other hosts reach are fine without authentication.
    pub insecure_no_auth: bool,
    /// Registers unknown types at the first write.
    pub auto_types: bool,
    /// Whether each request leaves a line in the log.
    pub access_log: bool,
    /// The largest request body, in bytes.
    pub body_bytes: usize,
    /// The largest value, in bytes of compact JSON.
    pub value_bytes: usize,
    /// Open connections of each worker.
    pub connections: usize,
    /// How long a stop may take, in milliseconds.
    pub shutdown_grace_ms: u64,
    /// How long a worker's event loop may be silent, in milliseconds.
    pub worker_timeout_ms: u64,
    /// How long a worker that is replaced or scaled away may take to finish, in milliseconds.
    pub drain_timeout_ms: u64,
    /// Arguments that a worker needs to log like its primary.
    pub worker_log_arguments: Vec<String>,
    /// Where the program around the server comes in.
    pub program: Program,
}

/// What a server asks of the program around it. Every call comes from the thread that supervises and must be quick.
#[derive(Clone)]
pub struct Program {
    /// Reads the configuration again, for a reload; what it says of the log is in force when it returns. The error is
    /// for the log.
    pub read_again: Arc<dyn Fn() -> Result<ServerConfig, String> + Send + Sync>,
    /// Opens the log files anew, after somebody has renamed them.
    pub reopen_logs: fn(),
    /// Where the output of workers goes.
    pub worker_output: fn() -> io::Result<Output>,
    /// Ends the process at once, for an end that takes longer than it may. A program that goes on after its server has none,
    /// and then the end takes as long as it takes.
    pub give_up: Option<fn(ExitCode) -> !>,
    /// Hears that every worker serves, once, at that very moment.
    pub ready: Arc<dyn Fn(&Ready<'_>) + Send + Sync>,
    /// Hears what has become of the cluster.
    pub changed: Arc<dyn Fn(&ClusterSnapshot) + Send + Sync>,
}

/// What there is to say when a server is ready.
#[derive(Clone, Copy, Debug)]
pub struct Ready<'r> {
    /// The line for people.
    pub line: &'r str,
    /// What has come up.
    pub snapshot: &'r ClusterSnapshot,
}

impl Default for Program {
    /// A program without a configuration or log files of its own.
    fn default() -> Self {
        Self {
            read_again: Arc::new(|| Err("this program has no configuration to read again".into())),
            reopen_logs: || {},
            worker_output: okdb_cluster::driver::standard_error,
            give_up: None,
            ready: Arc::new(|_| {}),
            changed: Arc::new(|_| {}),
        }
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").finish_non_exhaustive()
    }
}

/// What a worker is told by its primary.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerConfig {
    /// The root.
    pub root: PathBuf,
    /// See [`ServerConfig::auto_types`].
    pub auto_types: bool,
    /// See [`ServerConfig::access_log`].
    pub access_log: bool,
    /// See [`ServerConfig::body_bytes`].
    pub body_bytes: usize,
    /// See [`ServerConfig::value_bytes`].
    pub value_bytes: usize,
    /// See [`ServerConfig::connections`].
    pub connections: usize,
    /// See [`ServerConfig::drain_timeout_ms`].
    pub drain_timeout_ms: u64,
    /// What the cluster looks like now.
    pub snapshot: ClusterSnapshot,
}

impl ServerConfig {
    /// Refuses what is unsafe or contradicts itself.
    ///
    /// # Errors
    /// [`ServerError::Config`] that names the ways out.
    pub(crate) fn check(&self) -> Result<(), ServerError> {
        self.check_addresses(self.listen.iter())
    }

    /// The same of addresses that came from elsewhere.
    pub(crate) fn check_addresses<'a>(
        &self,
        mut addresses: impl Iterator<Item = &'a Address>,
    ) -> Result<(), ServerError> {
        let exposed = addresses.find(|address| !address.is_local());
        if let Some(address) = exposed
            && !self.insecure_no_auth
        {
            return Err(ServerError::Config(format!(
                "--listen {address} can be reached from other hosts, and no token has been created: create a token, or add --insecure-no-auth if whoever reaches the address may read and write everything"
            )));
        }
        Ok(())
    }

    /// What the supervisor is told.
    pub(crate) fn supervision(&self) -> driver::Options {
        driver::Options {
            limits: machine::Limits {
                worker_timeout_ms: self.worker_timeout_ms,
                drain_timeout_ms: self.drain_timeout_ms,
                ..machine::Limits::default()
            },
            shutdown_grace_ms: self.shutdown_grace_ms,
        }
    }

    /// Takes over what a reload can change of a configuration that was read again; what it cannot is left as it is and
    /// named in the log.
    pub(crate) fn renew(&mut self, fresh: Self) {
        let fixed = [
            ("root", self.root != fresh.root),
            ("http.listen", self.listen != fresh.listen),
            ("storage.durability", self.durability != fresh.durability),
            ("storage.mapSize", self.map_size != fresh.map_size),
            (
                "storage.segmentInRoot",
                self.segment_in_root != fresh.segment_in_root,
            ),
        ];
        for (key, _) in fixed.iter().filter(|(_, changed)| *changed) {
            tracing::warn!(key, "changed, but only a restart brings it into force");
        }
        *self = Self {
            root: std::mem::take(&mut self.root),
            listen: std::mem::take(&mut self.listen),
            durability: self.durability,
            map_size: self.map_size,
            segment_in_root: self.segment_in_root,
            force_private_segment: self.force_private_segment,
            program: self.program.clone(),
            ..fresh
        };
    }

    pub(crate) fn store_limits(&self) -> Limits {
        Limits {
            value_bytes: self.value_bytes,
            ..Limits::default()
        }
    }

    pub(crate) fn http_limits(&self) -> HttpLimits {
        http_limits(self.body_bytes, self.connections)
    }

    pub(crate) fn for_worker(&self, snapshot: ClusterSnapshot) -> WorkerConfig {
        WorkerConfig {
            root: self.root.clone(),
            auto_types: self.auto_types,
            access_log: self.access_log,
            body_bytes: self.body_bytes,
            value_bytes: self.value_bytes,
            connections: self.connections,
            drain_timeout_ms: self.drain_timeout_ms,
            snapshot,
        }
    }
}

impl WorkerConfig {
    pub(crate) fn store_limits(&self) -> Limits {
        Limits {
            value_bytes: self.value_bytes,
            ..Limits::default()
        }
    }

    pub(crate) fn http_limits(&self) -> HttpLimits {
        http_limits(self.body_bytes, self.connections)
    }
}

fn http_limits(body_bytes: usize, connections: usize) -> HttpLimits {
    HttpLimits {
        body_bytes,
        connections,
        ..HttpLimits::default()
    }
}
