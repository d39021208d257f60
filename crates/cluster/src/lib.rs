//! Slots, listeners, respawn and signals of an okdb primary.
//!
//! The crate supervises processes and knows nothing of documents, HTTP or the store. What it needs from
//! them it gets through [`driver::Observer`]; how a worker is started, through [`spawner::Spawner`].
//!
//! The life of a server, in the order of the calls:
//!
//! 1. [`okdb_sys::signals::Signals::install`] with [`driver::SIGNALS`], before anything else;
//! 2. [`workers::worker_count`] and [`address::Address`] out of what the operator said;
//! 3. [`listen::Listeners::bind`], while the root's lock is held;
//! 4. [`driver::Driver::run`] on the main thread, until it says which [`exit::ExitCode`] to end with.
//!
//! In a worker: [`spawner::Inherited::take`] first, then [`parent::Watch::start`].
//!
//! | module | subject | process |
//! |---|---|---|
//! | [`machine`] | the supervisor as a pure state machine: no process, no clock | primary |
//! | [`driver`] | the `poll(2)` loop that feeds it and carries out what it says | primary |
//! | [`spawner`] | launching a worker, and what it finds when it starts | both |
//! | [`parent`] | noticing the primary's death | worker |
//! | [`listen`], [`address`], [`holder`] | binding listeners; who holds an address | primary, standalone |
//! | [`workers`] | how many workers | before the first |
//! | [`status`] | what is told of a slot | all |
//! | [`handover`] | what an upgrade in place hands to the next program | primary |
//! | [`systemd`] | talking to a service manager | primary, standalone |
//! | [`exit`] | exit codes | all |

pub mod address;
pub mod driver;
pub mod exit;
pub mod handover;
pub mod holder;
pub mod listen;
pub mod machine;
mod output;
pub mod parent;
pub mod spawner;
pub mod status;
pub mod systemd;
pub mod workers;
