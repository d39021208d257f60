//! One module a command. Each returns what to exit with; a [`Failure`] is told on standard error.

mod backup;
mod config;
mod doctor;
mod export;
mod import;
mod serve;
mod status;
mod verify;
pub(crate) mod worker;

pub(crate) use doctor::{LOCK_COMMAND, hold_lock};

use std::path::PathBuf;

use clap::ArgMatches;
use okdb::store::{Options, Role, Store};
use okdb_cluster::exit::ExitCode;

use crate::{
    arguments,
    logging::Logging,
    output::{Failure, complain},
    settings::Given,
};

/// Runs the command that was asked for.
pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let (name, matches) = match matches.subcommand() {
        Some((name, matches)) => (name, matches),
        None => ("", matches),
    };
    let given = match arguments::given(matches) {
        Ok(given) => given,
        Err(complaints) => {
            for complaint in complaints {
                complain(&format!("okdb: {complaint}"));
            }
            return ExitCode::Usage;
        }
    };
    let serves = matches!(name, "" | "serve");
    if !serves && let Err(error) = Logging::of_a_command().start(None) {
        complain(&format!("okdb: cannot log: {error}"));
        return ExitCode::RuntimeFailure;
    }
    let result = match name {
        "" | "serve" => serve::run(matches, &given),
        "import" => import::run(matches, &given),
        "export" => export::run(matches, &given),
        "backup" => backup::run(matches, &given),
        "verify" => verify::run(matches, &given),
        "doctor" => doctor::run(matches, &given),
        "status" => status::run(matches, &given),
        "config" => config::run(matches, &given),
        other => Err(Failure::usage(format!("unknown command {other:?}"))),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            complain(&format!("okdb: {}", failure.message));
            failure.code
        }
    }
}

/// The root that a command is about.
fn root(given: &Given) -> PathBuf {
    given
        .text("root")
        .unwrap_or_else(|| "./okdb-data".into())
        .into()
}

/// Whether this host is to be taken for one on which processes cannot share memory: for tests and for support.
fn forced_single() -> bool {
    std::env::var("OKDB_FORCE_SHM_FALLBACK").is_ok_and(|value| value == "1")
}

/// Opens the root to look at it.
fn open_tool(given: &Given) -> Result<Store, Failure> {
    Ok(Store::open(
        &root(given),
        Options {
            role: Role::Tool,
            ..Options::default()
        },
    )?)
}

/// The environment that a command with `--env` is about.
fn env_name(matches: &ArgMatches) -> String {
    matches
        .get_one::<String>("env")
        .cloned()
        .unwrap_or_else(|| "default".into())
}
