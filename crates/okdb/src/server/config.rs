//! What a server needs to know, checked, and the part of it that each worker is told.

use std::{num::NonZeroU16, path::PathBuf};

use okdb_cluster::address::Address;
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
    /// Prints the ready line, at the moment at which every worker serves.
    pub announce: fn(&str),
    /// Arguments that a worker needs to log like its primary.
    pub worker_log_arguments: Vec<String>,
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
    /// What the cluster looks like now.
    pub snapshot: ClusterSnapshot,
}

impl ServerConfig {
    /// Refuses what is unsafe or contradicts itself.
    ///
    /// # Errors
    /// [`ServerError::Config`] that names the ways out.
    pub(crate) fn check(&self) -> Result<(), ServerError> {
        let exposed = self.listen.iter().find(|address| !address.is_local());
        if let Some(address) = exposed
            && !self.insecure_no_auth
        {
            return Err(ServerError::Config(format!(
                "--listen {address} can be reached from other hosts, and no token has been created: create a token, or add --insecure-no-auth if whoever reaches the address may read and write everything"
            )));
        }
        Ok(())
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
