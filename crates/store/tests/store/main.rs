//! The store as its users see it: real LMDB files in a temporary folder, real processes, one binary for all stories.

#![allow(
    clippy::unwrap_used,
    reason = "a failed step is a failed test, and its line tells which"
)]

mod backup;
mod children;
mod common;
mod damage;
mod durability;
mod epochs;
mod expiry;
mod full;
mod limits;
mod model;
mod processes;
mod queries;
mod references;
mod schemas;
