//! The `okdb` command: from its arguments to the code it exits with.
//!
//! Signals are taken over before anything else, so that a stop that comes during the start is not lost. Then the arguments
//! are read, logging begins, and the one command that was asked for runs.

mod arguments;
mod commands;
mod http_client;
mod logging;
mod output;
mod settings;

use std::process::ExitCode;

use okdb::server::{GATE_COMMAND, WORKER_COMMAND};

fn main() -> ExitCode {
    let code = run();
    logging::finish();
    code
}

fn run() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    // The commands that only this program itself gives.
    match arguments.get(1).map(String::as_str) {
        Some(WORKER_COMMAND) => {
            return commands::worker::run(arguments.get(2..).unwrap_or_default());
        }
        Some(GATE_COMMAND) => {
            return commands::worker::gate(arguments.get(2..).unwrap_or_default());
        }
        Some(commands::LOCK_COMMAND) => {
            return commands::hold_lock(arguments.get(2..).unwrap_or_default());
        }
        _ => {}
    }
    let matches = match arguments::command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => {
            // Help and version go to standard output and succeed; the rest is a mistake in the arguments.
            let code = if error.use_stderr() {
                okdb_cluster::exit::ExitCode::Usage
            } else {
                okdb_cluster::exit::ExitCode::Clean
            };
            let _ = error.print();
            return code.into();
        }
    };
    commands::run(&matches).into()
}
