//! The other side of a cluster in a program of one's own: a copy of the program that is to be a worker.

use std::{
    io::Write,
    num::NonZeroU16,
    sync::atomic::{AtomicBool, Ordering},
};

use okdb_cluster::exit::ExitCode;
use okdb_sys::signals::Signals;

use crate::server::{
    GATE_COMMAND, ServerError, WORKER_COMMAND, answer_gate,
    worker::{self, WorkerArguments},
};

/// Whether `main` has given copies of this program the chance to be what they are.
static CALLED: AtomicBool = AtomicBool::new(false);

/// Serves, in a copy of this program that a [`Server`](crate::Server) has started as one of its workers, and ends the process
/// when that is over. In any other process it returns at once.
///
/// `main` begins with it, before threads are started, arguments parsed, roots opened: a worker shall do nothing else. Only
/// what a worker is to have in common with the program comes first, such as a `tracing` subscriber; what that writes to
/// standard error comes out at the program's own.
///
/// ```no_run
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     okdb::serve_if_worker();
///     let server = okdb::Server::builder("./okdb-data").workers(4).handle_signals().start()?;
///     println!("serving on {}", server.urls().join(" "));
///     Ok(server.wait()?)
/// }
/// ```
pub fn serve_if_worker() {
    CALLED.store(true, Ordering::Relaxed);
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let Some((command, arguments)) = hidden_command(&arguments) else {
        return;
    };
    let result = match command {
        Command::Worker => work(arguments),
        Command::Gate => answer_gate(arguments)
            .map(|()| ExitCode::Clean)
            .map_err(|error| {
                complain(&format!("okdb gate: {error}"));
                ExitCode::RuntimeFailure
            }),
    };
    let code = result.unwrap_or_else(|code| code);
    #[allow(
        clippy::exit,
        reason = "the rest of this program's main is not for a worker; its threads have ended"
    )]
    std::process::exit(i32::from(code.number()));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Worker,
    Gate,
}

/// What a copy was started for, out of its arguments, and those that belong to it.
fn hidden_command(arguments: &[String]) -> Option<(Command, &[String])> {
    let (first, rest) = arguments.split_first()?;
    match first.as_str() {
        WORKER_COMMAND => Some((Command::Worker, rest)),
        GATE_COMMAND => Some((Command::Gate, rest)),
        _ => None,
    }
}

fn work(arguments: &[String]) -> Result<ExitCode, ExitCode> {
    let Some((arguments, _)) = WorkerArguments::parse(arguments) else {
        complain("okdb: a worker is started by its primary, not by hand");
        return Err(ExitCode::Usage);
    };
    let failed = |error: ServerError| {
        complain(&format!("okdb worker {}: {error}", arguments.slot));
        error.exit_code()
    };
    let signals = Signals::install(&worker::SIGNALS)
        .map_err(ServerError::system("cannot hear signals"))
        .map_err(failed)?;
    // The kernel named the process after the link that it was started through.
    let named = okdb_sys::spawn::set_short_name(format!("okdb-worker-{}", arguments.slot));
    if let Err(error) = named.and_then(|()| okdb_sys::host::raise_nofile().map(drop)) {
        tracing::warn!(%error, "a worker with the name and the limits of its program");
    }
    // On a thread of its own: a main that is async has an event loop on this one.
    let worker = std::thread::Builder::new()
        .name("worker".into())
        .spawn(move || worker::run(arguments, signals))
        .map_err(ServerError::system("cannot start the worker's thread"))
        .map_err(failed)?;
    match worker.join() {
        Ok(result) => result.map_err(failed),
        // It has told so itself.
        Err(_) => Err(ExitCode::RuntimeFailure),
    }
}

/// Refuses a server that would end in copies of this program that start copies.
pub(super) fn check(workers: NonZeroU16) -> Result<(), ServerError> {
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    check_with(workers, &arguments, CALLED.load(Ordering::Relaxed))
}

fn check_with(workers: NonZeroU16, arguments: &[String], called: bool) -> Result<(), ServerError> {
    let complaint = if hidden_command(arguments).is_some() {
        "this process was started as a worker of a server, and may not start one itself"
    } else if workers > NonZeroU16::MIN && !called {
        "the workers of a server are copies of this program"
    } else {
        return Ok(());
    };
    Err(ServerError::Config(format!(
        "{complaint}: main has to begin with okdb::serve_if_worker()"
    )))
}

fn complain(text: &str) {
    // With standard error gone there is nobody left to tell.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn only_the_first_argument_makes_a_copy() {
        let command = |line| hidden_command(&arguments(line)).map(|(command, _)| command);
        assert_eq!(command(""), None);
        assert_eq!(command("serve __worker 0 1 1"), None);
        assert_eq!(command("__worker 0 1 1"), Some(Command::Worker));
        assert_eq!(command("__gate"), Some(Command::Gate));
    }

    #[test]
    fn a_program_that_would_start_copies_of_itself_for_ever_is_refused() {
        let two = NonZeroU16::MIN.saturating_add(1);
        let refused = |workers, line, called| {
            check_with(workers, &arguments(line), called)
                .err()
                .map(|error| error.to_string())
        };
        assert_eq!(refused(NonZeroU16::MIN, "", false), None);
        assert_eq!(refused(two, "", true), None);
        let hint = "main has to begin with okdb::serve_if_worker()";
        for refusal in [
            refused(two, "", false),
            refused(two, "__worker 0 1 1", true),
            refused(NonZeroU16::MIN, "__worker 0 1 1", false),
        ] {
            assert!(refusal.is_some_and(|text| text.ends_with(hint)));
        }
    }
}
