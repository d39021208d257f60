//! Processes that die with SIGKILL: nothing acknowledged is lost, nothing is
//! half there, and the clock neither skips nor repeats.

mod acknowledged_puts;
mod import;
mod import_kill;
mod index_build_kill;
mod stopped_writer;
