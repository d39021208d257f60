//! The store of okdb: roots, environments, records, indexes, the change log and the write pipeline.
//!
//! It owns every byte under a root but the shared segment (crate `okdb-shm`) and what later rooms derive. Any process of
//! the host may open the same root: reads go straight to the memory map, writes go through one writer thread per process
//! and environment, and LMDB's lock decides between processes.
//!
//! ```
//! use okdb_store::{Action, Guard, Operation, Options, Store, Write};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let root = folder.path().join("root");
//! let options = Options {
//!     auto_types: true,
//! #   segment_in_root: true,
//!     ..Options::default()
//! };
//! let store = Store::open(&root, options)?;
//! let env = store.env("default")?;
//! let put = Operation {
//!     type_name: "cities".into(),
//!     key: "paris".into(),
//!     guard: Guard::default(),
//!     ttl: None,
//!     action: Action::Put(r#"{"country":"FR"}"#.into()),
//! };
//! env.submit(Write::One(put)).wait()?;
//! let snapshot = env.snapshot()?;
//! let record = snapshot.get("cities", "paris")?;
//! assert_eq!(record.map(|record| record.value), Some(r#"{"country":"FR"}"#));
//! # Ok(())
//! # }
//! ```
//!
//! Where to look:
//!
//! - [`Store`] and [`Options`]: opening a root, its lock, identity, format and environments (`options`, `root`, `store`).
//! - [`Env`]: one environment (`env`); [`Snapshot`]: a short read transaction on it (`snapshot`).
//! - [`Write`], [`Operation`], [`Outcome`]: what a writer accepts (`write`), run by `writer`, applied by `apply`, as far as there is `room`.
//! - `catalog`: types and indexes as this process last saw them, checked against each snapshot.
//! - `layout`: the bytes of every key and row, with `docs/storage.md` as its prose.
//! - `derived`: what a record has beside its row. `schemas`, `violations`: the schema of a type, and what was let in and does not hold.
//! - `index`, `plan`, `scan`, `query`: index entries, the choice of an index, and the scans that answer requests.
//! - `changes`: reading the change log. `chores`: background work of the process that owns it.
//! - `verify`, `backup`: the oracle, and the hot copy. `pages`: LMDB's file looked at before it is trusted.

mod apply;
mod backup;
mod catalog;
mod changes;
mod chores;
mod cursor;
mod derived;
mod env;
mod error;
mod expiry;
mod export;
mod index;
mod layout;
mod lmdb;
mod names;
mod options;
mod pages;
mod plan;
mod query;
mod room;
mod root;
mod scan;
mod schemas;
mod snapshot;
mod store;
mod system;
mod verify;
mod violations;
mod write;
mod writer;

pub use catalog::{BuildFailure, IndexInfo, IndexState, TypeInfo};
pub use changes::{Change, Changes, ChangesQuery};
pub use chores::StopFlag;
pub use env::{Env, EnvInfo};
pub use error::{Error, Full, OpenError};
pub use expiry::{Expiring, ExpiringPage, ExpiringQuery};
pub use export::Export;
pub use lmdb::Durability;
pub use names::{KEY_BYTES_MAX, check_env_name, check_key, check_type_name};
pub use options::{Commit, Hooks, Limits, NoHooks, Options};
pub use plan::Plan;
pub use query::{IndexQuery, Item, ListQuery, Page, Query};
pub use root::{FORMAT_VERSION, Role, server_pid};
pub use schemas::{SchemaInfo, SchemaSpec, SchemaState};
pub use snapshot::{Record, Snapshot};
pub use store::Store;
pub use verify::{Problem, VerifyReport};
pub use violations::{Violation, ViolationKind, Violations, ViolationsQuery};
pub use write::{
    Action, Expect, Guard, IndexSpec, Operation, Outcome, Pending, TRANSACTION_OPERATIONS_MAX,
    TTL_MS_MAX, Write, Written,
};
