//! The HTTP interface of okdb: one event loop that serves a store over HTTP/1.1 and cleartext HTTP/2.
//!
//! [`serve`] is the door: listeners, a [`Serving`] and a stop in; it returns when all is drained. What the server asks
//! of the process around it is [`Host`]; what it bounds is [`HttpLimits`].
//!
//! Where to look:
//!
//! - `server`, `accept`: listeners, their coming and going, and a stop.
//! - `connection`, `io`, `watch`: driving and ending connections, and their timeouts.
//! - `service`: from a parsed request to its answer; the guard against panics; counting and the access log.
//! - `table`, `router`: the shape of the route table and the look-up in it. The rows are in `handlers`.
//! - `request`, `reader`, `fields`, `guard`: what handlers take out of a request, checked as it is taken.
//! - `answer`, `body`, `problem`, `codes`: what goes back, errors in one table among it.
//! - `handlers`: one module a subject.
//! - `pool`: where long work goes. `limits`: every bound.
//! - `openapi`, `schemas`, `docs_page`: the table and the codes, written for programs and for people.

mod accept;
mod answer;
mod app;
mod body;
mod codes;
mod connection;
mod docs_page;
mod fields;
mod guard;
mod handlers;
mod host;
mod io;
mod limits;
mod openapi;
mod percent;
mod pool;
mod problem;
mod reader;
mod request;
mod router;
mod schemas;
mod server;
mod service;
mod table;
mod watch;

pub use app::Serving;
pub use codes::Code;
pub use handlers::{LineRefused, import_line};
pub use host::{Finished, Host};
pub use limits::HttpLimits;
pub use server::{Intake, Listener, serve};
