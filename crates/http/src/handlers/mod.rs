//! What serves each route, one module a subject, each with its rows of the route table.

use crate::table::Route;

mod changelog;
mod envs;
mod export;
mod import;
mod indexes;
mod queries;
mod records;
mod schemas;
mod system;
mod transaction;
mod ttl;
mod types;

pub use import::{LineRefused, import_line};

/// The route table.
pub(crate) const ROUTES: &[&[Route]] = &[
    system::ROUTES,
    envs::ROUTES,
    types::ROUTES,
    records::ROUTES,
    transaction::ROUTES,
    queries::ROUTES,
    indexes::ROUTES,
    schemas::ROUTES,
    ttl::ROUTES,
    import::ROUTES,
    export::ROUTES,
    changelog::ROUTES,
];
