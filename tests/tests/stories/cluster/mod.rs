//! What an operator does to a running cluster, and what must not be noticed of it.

mod amid;
mod chaos;
mod clock;
mod hostile;
mod in_between;
mod overlapping;
mod reload;
mod scale;
mod sent_away;
mod starved;
mod stopped;
mod upgrade;
