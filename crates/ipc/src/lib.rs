//! Supervision messages between a primary and its workers, over one socket pair per worker.
//!
//! No documents travel here: a worker says who it is, when it serves and that it lives; the primary says
//! how to serve, when to stop, and what the whole cluster looks like. A slow, stopped or dead side never
//! makes the other one wait.
//!
//! | module | subject |
//! |---|---|
//! | [`ToPrimary`], [`ToWorker`] | the messages |
//! | [`Peer`] | the primary's end: non-blocking, with a bounded queue, for a `poll(2)` loop |
//! | [`Connection`] | the worker's end: asynchronous |
//! | [`wire`] | messages as packets, packets as messages: no sockets, no clock |

mod connection;
mod message;
mod peer;
mod socket;
pub mod wire;

pub use connection::{Connection, ReceiveError};
pub use message::{Incoming, ToPrimary, ToWorker};
pub use peer::{CONTROL_QUEUE_MAX, Peer, PeerState, pair};
pub use socket::SendError;
