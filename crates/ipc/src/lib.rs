//! Supervision messages between a primary and its workers.
