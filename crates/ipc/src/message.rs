//! The messages, one enum each way.
//!
//! New variants go to the end, and [`crate::wire::PROTOCOL`] rises with every change: the two sides can be
//! of different versions while a primary is upgraded in place under its running workers.

use serde::{Deserialize, Serialize};

/// From a worker to its primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToPrimary {
    /// The first message: who speaks.
    Hello {
        /// The worker's process id.
        pid: u32,
        /// The slot that it was started for.
        slot: u16,
    },
    /// It has opened the store and accepts connections from now on.
    Ready,
    /// Its event loop turns.
    Heartbeat {
        /// When the loop said so, in milliseconds of the host's monotonic clock: a heartbeat may have
        /// waited in the socket.
        at_ms: u64,
    },
    /// The last message: it leaves because it was asked to.
    Bye,
}

/// From the primary to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToWorker {
    /// The first message: the configuration, as JSON.
    Config(String),
    /// Stop accepting, finish what is in flight, leave.
    Drain {
        /// What is not finished by then is given up; in milliseconds of the host's monotonic clock.
        deadline_ms: u64,
    },
    /// What the cluster looks like, as JSON. Only the latest matters: a newer one replaces one that has
    /// not been sent yet.
    Snapshot(String),
}
