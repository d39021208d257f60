//! Slots, listeners, respawn and signals of an okdb primary.
//!
//! The crate supervises processes and knows nothing of documents, HTTP or the store.

pub mod address;
pub mod exit;
pub mod holder;
pub mod listen;
pub mod machine;
pub mod workers;
