//! okdb as a library: the engine of the `okdb` command, in your own process.
//!
//! Open a root — the folder of a running cluster or one of your own — and read, write, query and index it. What you write
//! is seen by every other process of the root as soon as the call returns, and the other way round.
//!
//! ```
//! use okdb::Db;
//! use serde_json::json;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let root = folder.path().join("data");
//! let db = Db::open(&root)?;
//! let users = db.ensure_type("users")?;
//! users.put("ada", &json!({"name": "Ada", "born": 1815}))?;
//! users.put("alan", &json!({"name": "Alan", "born": 1912}))?;
//!
//! users.ensure_index(&["born"], false)?;
//! let page = users.find(&json!({"born": {"$lt": 1900}}))?;
//! assert_eq!(page.items[0].key, "ada");
//!
//! let ada = users.get("ada")?.expect("just written");
//! assert_eq!(ada.decode::<serde_json::Value>()?["born"], 1815);
//! # Ok(()) }
//! ```
//!
//! - [`Db`], [`Builder`]: an opened root; [`Records`]: one type in it; [`Commits`]: hearing of local commits.
//! - [`store`] and [`query`]: the layers below, for everything that the short forms do not cover.
//! - [`Server`]: serving a root over HTTP, by this process alone or by a cluster of copies of it.
//! - [`server`]: how the `okdb` command does it.

mod chores;
mod db;
mod embedded;
mod process;
mod records;
pub mod server;
mod thread;

pub use db::{Builder, Commits, Db};
pub use embedded::{Server, ServerBuilder, ServerHandle, serve_if_worker};
pub use okdb_query as query;
pub use okdb_store as store;
pub use okdb_store::{Commit, Durability, Env, Error, Item, OpenError, Page};
pub use records::{Document, Records};
pub use server::ServerError;
