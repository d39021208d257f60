//! The shared-memory segment of an okdb root: what every process must see *now*, without a transaction.
//!
//! Nothing in it is the truth. The durable clock in the store is; a segment can be thrown away and seeded
//! again whenever one process holds the root alone. Everything in it is an atomic word, no process ever
//! waits for another one in it, and a process killed at any instruction leaves it usable.
//! `docs/segment.md` describes the layout byte for byte.
//!
//! | module | subject |
//! |---|---|
//! | [`Segment`] | the mapping: attached to what `run/segment` names, created, or private to a process |
//! | [`EnvRow`] | published clock and generation of an environment |
//! | [`Hlc`] | hybrid logical clock, strictly increasing over all processes |
//! | [`RowGuard`], [`ScoreRow`] | one scoreboard row per process: counters, gauges, latencies |
//! | [`SlotWriter`], [`SlotRow`] | the supervisor's table of slots |
//! | [`PeerGuard`], [`Peer`] | ports and poke-pending flags of the bus |
//! | [`gate`] | the proof that a child process really shares the segment |

mod env;
mod errors;
mod files;
pub mod gate;
mod hlc;
mod layout;
mod map;
#[cfg(test)]
mod models;
mod owner;
mod peers;
mod scoreboard;
mod segment;
mod slots;
mod word;

pub use env::EnvRow;
pub use errors::{AttachError, CreateError, ForeignReason, StaleReason};
pub use files::Placement;
pub use hlc::{Hlc, OBSERVED_MAX, stamp_ms};
pub use layout::{
    BATCH_BUCKETS, ENV_COUNT_MAX, LATENCY_BUCKETS, PROCESS_COUNT_MAX, SEGMENT_BYTES,
    SLOT_COUNT_MAX, WRITE_LOCKS_MAX,
};
pub use owner::ClaimError;
pub use peers::{Peer, PeerGuard, Poked};
pub use scoreboard::{
    HeldWriteLock, InFlight, Role, RowGuard, RowState, ScoreRow, WriteLock, batch_bucket,
    batch_bucket_max, latency_bucket, latency_bucket_max_us,
};
pub use segment::{Identity, Info, Segment};
pub use slots::{SlotRow, SlotState, SlotWriter};
