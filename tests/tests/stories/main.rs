//! The black-box stories, linked into one binary on purpose.
//!
//! Each module is one incident that users of such software met, or one promise
//! of the crash matrix. `cargo test -p okdb-tests --test stories crash::` tells
//! those of one room; `OKDB_TORTURE=long … -- --nocapture` tells them at full
//! length and shows their tables.

mod cluster;
mod crash;
mod house;
mod http;
mod lifecycle;
mod lmdb;
