//! The HTTP interface over a real store, in this process: each route, each code, and what no client should send.
#![allow(
    clippy::unwrap_used,
    clippy::format_collect,
    clippy::format_push_string,
    clippy::naive_bytecount,
    clippy::missing_panics_doc,
    missing_docs,
    unreachable_pub,
    reason = "tests fail by panicking and are read as stories"
)]

mod client;
mod documents;
mod guards;
mod hostile;
mod indexes;
mod intake;
mod parking;
mod protocol;
mod queries;
mod records;
mod rules;
mod server;
mod shortage;
mod stopping;
mod system;
mod transactions;
mod transfer;
