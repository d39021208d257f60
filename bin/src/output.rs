//! What commands print: progress for a terminal or a pipe, errors, and JSON for scripts.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use okdb_cluster::exit::ExitCode;

/// How often a pipe gets a line of progress.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Why a command failed: what to tell, and the code to exit with.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) code: ExitCode,
}

impl Failure {
    pub(crate) fn runtime(error: impl std::fmt::Display) -> Self {
        Self {
            message: error.to_string(),
            code: ExitCode::RuntimeFailure,
        }
    }

    pub(crate) fn usage(error: impl std::fmt::Display) -> Self {
        Self {
            message: error.to_string(),
            code: ExitCode::Usage,
        }
    }
}

impl From<okdb::server::ServerError> for Failure {
    fn from(error: okdb::server::ServerError) -> Self {
        Self {
            message: error.to_string(),
            code: error.exit_code(),
        }
    }
}

impl From<okdb::OpenError> for Failure {
    fn from(error: okdb::OpenError) -> Self {
        okdb::server::ServerError::Open(error).into()
    }
}

impl From<okdb::Error> for Failure {
    fn from(error: okdb::Error) -> Self {
        Self::runtime(error)
    }
}

/// Prints to standard output. A reader that went away (`| head`) is no error worth a panic.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::runtime(error))
        }
        _ => Ok(()),
    }
}

/// Prints to standard error.
pub(crate) fn complain(text: &str) {
    // With standard error gone there is nobody left to tell.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Progress of long work, on standard error: a bar on a terminal, now and then a line in a pipe, nothing if `quiet`.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    unit: &'static str,
    lines: bool,
    began: Instant,
    told: Instant,
}

impl Progress {
    /// Progress towards `total` (0: unknown) of things called `unit`.
    pub(crate) fn new(total: u64, unit: &'static str, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = (terminal && !quiet).then(|| {
            let bar = if total == 0 {
                ProgressBar::no_length()
            } else {
                ProgressBar::new(total)
            };
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            let template = if total == 0 {
                "{spinner} {human_pos} {msg} ({per_sec}, {elapsed})"
            } else {
                "{bar:30} {human_pos}/{human_len} {msg} ({per_sec}, {eta} left)"
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.with_message(unit)
        });
        let now = Instant::now();
        Self {
            bar,
            unit,
            lines: !terminal && !quiet,
            began: now,
            told: now,
        }
    }

    /// Says how far the work is.
    pub(crate) fn at(&mut self, done: u64, total: u64) {
        if let Some(bar) = &self.bar {
            if total > 0 && bar.length() != Some(total) {
                bar.set_length(total);
            }
            bar.set_position(done);
        } else if self.lines && self.told.elapsed() >= LINE_EVERY {
            self.told = Instant::now();
            let of = if total > 0 {
                format!(" of {total}")
            } else {
                String::new()
            };
            complain(&format!(
                "{done}{of} {} after {:.0} s",
                self.unit,
                self.began.elapsed().as_secs_f64()
            ));
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(self) -> Duration {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
        self.began.elapsed()
    }
}
