//! The messages, one enum each way.
//!
//! New variants go to the end, and [`crate::wire::PROTOCOL`] rises with every change: the two sides can be
//! of different versions while a primary is upgraded in place under its running workers.

use std::os::fd::OwnedFd;

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
    /// The listeners that come with it belong to another slot whose own worker does not answer: accept from them, too.
    /// Without effect for a slot that was adopted already.
    Adopt {
        /// Whose they are.
        slot: u16,
    },
    /// That slot answers for itself again. Without effect for one that was not adopted.
    Release {
        /// Which slot.
        slot: u16,
    },
}

/// A message with what came with it.
#[derive(Debug)]
pub struct Incoming {
    /// The message.
    pub message: ToWorker,
    /// Descriptors; only [`ToWorker::Adopt`] brings some.
    pub descriptors: Vec<OwnedFd>,
}
