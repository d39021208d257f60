//! Logs: text for a terminal, text with priorities for a journal, JSON lines for machines. They go to standard error or to
//! a file, through a queue of their own: see `sink`.
//!
//! A worker logs to its standard error, which its primary passes on to wherever its own lines go.

mod sink;
mod style;

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, IsTerminal, Write},
    os::{fd::AsFd, unix::fs::MetadataExt},
    panic::PanicHookInfo,
    path::PathBuf,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use okdb_cluster::driver::Output;
use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt,
    layer::{Layered, SubscriberExt},
    reload,
    util::SubscriberInitExt,
};

use sink::{Sink, Target};
use style::{Form, Lines, Style};

/// The log target of the ready line, which is logged whatever the log level.
pub(crate) const READY_TARGET: &str = "okdb::ready";

/// How long the end of a process waits for its last lines.
const END_TIMEOUT: Duration = Duration::from_millis(300);
/// How long a panic waits for its line: it may be the last that is ever written.
const PANIC_TIMEOUT: Duration = Duration::from_millis(100);

/// How to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Logging {
    format: Format,
    level: String,
    color: Color,
    /// Instead of standard error.
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// With priorities where standard error is a journal.
    Text,
    /// What a worker does whose primary found a journal.
    Journal,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Color {
    Auto,
    Always,
    Never,
}

impl Logging {
    /// Checks the values of the settings.
    pub(crate) fn new(
        format: &str,
        level: &str,
        color: &str,
        file: Option<PathBuf>,
    ) -> Result<Self, String> {
        let format = match format {
            "text" => Format::Text,
            "json" => Format::Json,
            _ => return Err(format!("log.format: {format:?} is neither text nor json")),
        };
        let color = match color {
            "auto" => Color::Auto,
            "always" => Color::Always,
            "never" => Color::Never,
            _ => {
                return Err(format!(
                    "log.color: {color:?} is neither auto, always nor never"
                ));
            }
        };
        EnvFilter::try_new(level).map_err(|error| format!("log.level: {level:?}: {error}"))?;
        Ok(Self {
            format,
            level: level.to_owned(),
            color,
            file,
        })
    }

    /// For a command that tells its findings on standard output: only what is odd.
    pub(crate) fn of_a_command() -> Self {
        Self {
            format: Format::Text,
            level: "warn".into(),
            color: Color::Auto,
            file: None,
        }
    }

    /// As arguments for a worker.
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        let format = match self.form() {
            Form::Text => "text",
            Form::Journal => "journal",
            Form::Json => "json",
        };
        let color = if self.colored() { "always" } else { "never" };
        vec![format.into(), self.level.clone(), color.into()]
    }

    /// From the arguments of a worker.
    pub(crate) fn from_arguments(arguments: &[String]) -> Self {
        let given = match arguments {
            [format, level, color, ..] if format == "journal" => {
                Self::new("text", level, color, None).map(|logging| Self {
                    format: Format::Journal,
                    ..logging
                })
            }
            [format, level, color, ..] => Self::new(format, level, color, None),
            _ => Err(String::new()),
        };
        given.unwrap_or_else(|_| Self {
            level: "info".into(),
            ..Self::of_a_command()
        })
    }

    /// Whether the ready line is to be an event of the log rather than a line for people.
    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    fn form(&self) -> Form {
        match self.format {
            Format::Json => Form::Json,
            Format::Journal => Form::Journal,
            Format::Text if self.file.is_none() && is_journal() => Form::Journal,
            Format::Text => Form::Text,
        }
    }

    fn colored(&self) -> bool {
        match self.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                self.file.is_none()
                    && io::stderr().is_terminal()
                    && std::env::var_os("NO_COLOR").is_none()
            }
        }
    }

    fn target(&self) -> Target {
        self.file.clone().map_or(Target::Stderr, Target::File)
    }

    fn filter(&self) -> EnvFilter {
        // The ready line is a contract: no level hides it.
        let ready = format!("{READY_TARGET}=info");
        let filter = EnvFilter::try_new(&self.level).unwrap_or_else(|_| EnvFilter::new("info"));
        match ready.parse() {
            Ok(directive) => filter.add_directive(directive),
            Err(_) => filter,
        }
    }

    fn printer(&self, sink: &Sink, style: Style) -> Printer {
        let lines = Lines {
            sink: sink.clone(),
            style,
        };
        let layer = fmt::layer().with_writer(lines);
        match style.form {
            Form::Json => layer.json().flatten_event(true).boxed(),
            Form::Text => layer.with_ansi(self.colored()).with_target(false).boxed(),
            Form::Journal => layer
                .with_ansi(false)
                .with_target(false)
                .without_time()
                .boxed(),
        }
    }

    /// Begins to log. `slot` marks every line of a worker.
    ///
    /// # Errors
    /// When the log file cannot be opened, or no thread can be made.
    pub(crate) fn start(&self, slot: Option<u16>) -> io::Result<()> {
        let style = Style {
            form: self.form(),
            slot,
        };
        let target = self.target();
        let file = target.open().map_err(|error| self.explain(&error))?;
        let sink = Sink::start(target, file, style)?;
        let (filter, filter_handle) = reload::Layer::new(self.filter());
        let (printer, printer_handle) = reload::Layer::new(self.printer(&sink, style));
        // A second start in one process has nothing to add.
        let _ = tracing_subscriber::registry()
            .with(filter)
            .with(printer)
            .try_init();
        let _ = LOG.set(Log {
            sink,
            stderr: OnceLock::new(),
            slot,
            filter: filter_handle,
            printer: printer_handle,
            now: Mutex::new(self.clone()),
        });
        std::panic::set_hook(Box::new(tell_panic));
        Ok(())
    }

    /// Goes on in this way.
    ///
    /// # Errors
    /// When the log file cannot be opened; nothing has changed then.
    pub(crate) fn take_over(&self) -> io::Result<()> {
        let Some(log) = LOG.get() else {
            return Ok(());
        };
        let mut now = log.now();
        if *now == *self {
            return Ok(());
        }
        let style = Style {
            form: self.form(),
            slot: log.slot,
        };
        let target = self.target();
        let file = target.open().map_err(|error| self.explain(&error))?;
        log.filter.reload(self.filter()).map_err(io::Error::other)?;
        log.printer
            .reload(self.printer(&log.sink, style))
            .map_err(io::Error::other)?;
        log.sink.redirect(target, file, style);
        *now = self.clone();
        Ok(())
    }

    fn explain(&self, error: &io::Error) -> io::Error {
        let file = self.file.clone().unwrap_or_default();
        let text = format!("log.file: cannot open {}: {error}", file.display());
        io::Error::new(error.kind(), text)
    }
}

type Base = Layered<reload::Layer<EnvFilter, Registry>, Registry>;
type Printer = Box<dyn Layer<Base> + Send + Sync>;

/// The log of this process.
struct Log {
    sink: Sink,
    /// For what goes to standard error although the log goes to a file.
    stderr: OnceLock<Sink>,
    slot: Option<u16>,
    filter: reload::Handle<EnvFilter, Registry>,
    printer: reload::Handle<Printer, Base>,
    now: Mutex<Logging>,
}

static LOG: OnceLock<Log> = OnceLock::new();

impl Log {
    fn now(&self) -> MutexGuard<'_, Logging> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the log file, if there is one, by its name again. Does not wait.
pub(crate) fn reopen() {
    let Some(log) = LOG.get() else {
        return;
    };
    if log.now().file.is_some() {
        log.sink.reopen();
        tracing::info!("opening the log file anew");
    } else {
        tracing::info!("the log goes to standard error: there is no file to open anew");
    }
}

/// Where a primary passes on what its workers write. Writing there never blocks; flushing waits, within a limit, until
/// everything has been written.
#[allow(
    clippy::unnecessary_wraps,
    reason = "the signature is that of a program's hook, and other programs' may fail"
)]
pub(crate) fn worker_output() -> io::Result<Output> {
    Ok(Box::new(Passed))
}

/// Prints a line for people on standard error without waiting for anybody to read it; and logs it where the log goes
/// elsewhere.
pub(crate) fn announce(line: &str) {
    let Some(log) = LOG.get() else {
        return;
    };
    let now = log.now().clone();
    if now.is_json() || now.file.is_some() {
        tracing::info!(target: READY_TARGET, "{line}");
    }
    if now.is_json() && now.file.is_none() {
        return;
    }
    let bytes = format!("{line}\n").into_bytes();
    if now.file.is_none() {
        log.sink.push(bytes);
        return;
    }
    let style = Style {
        form: Form::Text,
        slot: None,
    };
    let stderr = Target::Stderr.open();
    match stderr.and_then(|file| Sink::start(Target::Stderr, file, style)) {
        Ok(sink) => {
            sink.push(bytes);
            let _ = log.stderr.set(sink);
        }
        Err(error) => tracing::warn!(%error, "standard error cannot be written to"),
    }
}

/// Waits for the last lines of this process, within a limit.
pub(crate) fn finish() {
    if let Some(log) = LOG.get() {
        log.sink.flush(END_TIMEOUT);
        if let Some(stderr) = log.stderr.get() {
            stderr.flush(END_TIMEOUT);
        }
    }
}

/// The lines of workers, as they are.
struct Passed;

impl Write for Passed {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        if let Some(log) = LOG.get() {
            log.sink.push(lines.to_vec());
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match LOG.get().map(|log| log.sink.flush(END_TIMEOUT)) {
            Some(false) => Err(io::ErrorKind::TimedOut.into()),
            Some(true) | None => Ok(()),
        }
    }
}

/// Whether standard error goes to a journal: the service manager says which file that is.
fn is_journal() -> bool {
    let Some(said) = std::env::var_os("JOURNAL_STREAM") else {
        return false;
    };
    let stderr = io::stderr().as_fd().try_clone_to_owned();
    let Ok(about) = stderr.and_then(|fd| std::fs::File::from(fd).metadata()) else {
        return false;
    };
    said.to_str() == Some(format!("{}:{}", about.dev(), about.ino()).as_str())
}

/// A panic's words go where all others go; the library's own way would wait for whoever reads standard error.
fn tell_panic(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let said = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("of an unknown kind");
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let place = panic
        .location()
        .map(ToString::to_string)
        .unwrap_or_default();
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::error!(thread, place, %backtrace, "panic: {said}");
    } else {
        tracing::error!(thread, place, "panic: {said}");
    }
    if let Some(log) = LOG.get() {
        log.sink.flush(PANIC_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

    use super::*;

    #[test]
    fn bad_values_are_refused_with_their_key() {
        for (format, level, color, key) in [
            ("xml", "info", "auto", "log.format"),
            ("journal", "info", "auto", "log.format"),
            ("text", "info", "red", "log.color"),
            ("text", "okdb=loud", "auto", "log.level"),
        ] {
            let error = Logging::new(format, level, color, None).unwrap_err();
            assert!(error.starts_with(key), "{error}");
        }
    }

    #[test]
    fn a_worker_logs_like_its_primary_but_to_its_primary() {
        let file = Some("/var/log/okdb.log".into());
        let logging = Logging::new("json", "debug", "never", file).unwrap();
        let worker = Logging::from_arguments(&logging.to_arguments());
        assert_eq!(
            worker,
            Logging {
                file: None,
                ..logging
            }
        );
        let journal = ["journal", "warn", "never"].map(str::to_owned);
        let worker = Logging::from_arguments(&journal);
        assert_eq!(worker.form(), Form::Journal);
        assert_eq!(worker.to_arguments(), journal);
    }

    #[test]
    fn a_worker_with_arguments_that_it_does_not_know_logs_all_the_same() {
        assert_eq!(Logging::from_arguments(&[]).level, "info");
        let odd = ["xml", "?", "?"].map(str::to_owned);
        assert_eq!(Logging::from_arguments(&odd).form(), Form::Text);
    }
}
