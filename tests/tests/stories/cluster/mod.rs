//! What an operator does to a running cluster, and what must not be noticed of it.

mod chaos;
mod reload;
mod scale;
mod upgrade;
