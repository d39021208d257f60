//! The harness of the black-box tests: it starts the real `okdb` command, talks
//! to it as a client does, kills it as the world does, and always cleans up.
//!
//! Nothing here links product code. A fault in the harness or in the product
//! ends a story by a panic that carries the server's log.
//!
//! - [`binary`] finds the command that was built beside the test.
//! - [`server`] starts it, reads its log, stops it, kills it.
//! - [`clock`] is a wall clock that can be stepped.
//! - [`command`] runs its short-lived subcommands.
//! - [`http`] is a small blocking HTTP/1.1 client; [`load`] runs many of them, and counts.
//! - [`process`] reads `/proc` and sends signals.
//! - [`oracle`] asks whether a root is whole and its clock without gap.
//! - [`data`] makes deterministic records and random numbers.
//! - [`slow_start`] is a program that becomes okdb when it may.
//! - [`wait`] waits for conditions; [`torture`] says how long a story is told.

#![allow(
    clippy::missing_panics_doc,
    reason = "every function of a test harness panics when its expectation fails: that is its result"
)]
#![allow(
    clippy::return_self_not_must_use,
    clippy::must_use_candidate,
    reason = "an expectation is called for its panic; going on with its value is optional"
)]

pub mod binary;
pub mod clock;
pub mod command;
pub mod data;
pub mod http;
mod janitor;
pub mod load;
pub mod oracle;
pub mod process;
pub mod server;
pub mod slow_start;
pub mod torture;
pub mod wait;
