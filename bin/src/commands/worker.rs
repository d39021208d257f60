//! The two hidden commands: a worker, and the child of the hard gate.

use std::process::ExitCode;

use okdb::server::{
    answer_gate,
    worker::{SIGNALS, WorkerArguments, run as work},
};
use okdb_sys::signals::Signals;

use crate::{logging::Logging, output::complain};

/// `okdb __worker SLOT LISTENERS PARENT_PID [log format, level, colour]`
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let signals = match Signals::install(&SIGNALS) {
        Ok(signals) => signals,
        Err(error) => {
            complain(&format!("okdb worker: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let Some((worker, log)) = WorkerArguments::parse(arguments) else {
        complain("okdb: a worker is started by its primary, not by hand");
        return okdb_cluster::exit::ExitCode::Usage.into();
    };
    // The kernel named the process after the link that it was started through.
    if let Err(error) = okdb_sys::spawn::set_short_name(format!("okdb-worker-{}", worker.slot)) {
        complain(&format!("okdb worker: {error}"));
    }
    if let Err(error) = Logging::from_arguments(log).start(Some(worker.slot)) {
        complain(&format!("okdb worker: cannot log: {error}"));
        return ExitCode::FAILURE;
    }
    match work(worker, signals) {
        Ok(code) => code.into(),
        Err(error) => {
            tracing::error!("{error}");
            error.exit_code().into()
        }
    }
}

/// `okdb __gate …`
pub(crate) fn gate(arguments: &[String]) -> ExitCode {
    match answer_gate(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("okdb gate: {error}"));
            ExitCode::FAILURE
        }
    }
}
