//! The HTTP interface as a client of a two-worker cluster meets it.

mod fidelity;
mod guards;
mod races;
mod rubbish;
mod rubbish_bytes;
mod visibility;
