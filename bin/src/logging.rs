//! Logs: text for a terminal, JSON lines for machines. Everything goes to standard error.

use std::io::{IsTerminal, Write};

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

/// The log target of the ready line, which is printed whatever the log level.
pub(crate) const READY_TARGET: &str = "okdb::ready";

/// How to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Logging {
    pub(crate) json: bool,
    pub(crate) level: String,
    /// `auto`, `always` or `never`.
    pub(crate) color: String,
}

impl Default for Logging {
    fn default() -> Self {
        Self {
            json: false,
            level: "info".into(),
            color: "auto".into(),
        }
    }
}

impl Logging {
    /// Checks the values of the settings.
    pub(crate) fn new(format: &str, level: &str, color: &str) -> Result<Self, String> {
        let json = match format {
            "text" => false,
            "json" => true,
            _ => return Err(format!("log.format: {format:?} is neither text nor json")),
        };
        if !matches!(color, "auto" | "always" | "never") {
            return Err(format!(
                "log.color: {color:?} is neither auto, always nor never"
            ));
        }
        EnvFilter::try_new(level).map_err(|error| format!("log.level: {level:?}: {error}"))?;
        Ok(Self {
            json,
            level: level.to_owned(),
            color: color.to_owned(),
        })
    }

    /// As arguments for a worker.
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        let format = if self.json { "json" } else { "text" };
        let color = if self.colored() { "always" } else { "never" };
        vec![format.into(), self.level.clone(), color.into()]
    }

    /// From the arguments of a worker.
    pub(crate) fn from_arguments(arguments: &[String]) -> Self {
        match arguments {
            [format, level, color, ..] => Self::new(format, level, color).unwrap_or_default(),
            _ => Self::default(),
        }
    }

    fn colored(&self) -> bool {
        match self.color.as_str() {
            "always" => true,
            "never" => false,
            _ => std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        }
    }

    /// Begins to log. `slot` marks every line of a worker.
    pub(crate) fn start(&self, slot: Option<u16>) {
        // The ready line is a contract: no level hides it.
        let ready = format!("{READY_TARGET}=info");
        let filter = EnvFilter::try_new(&self.level).unwrap_or_else(|_| EnvFilter::new("info"));
        let filter = match ready.parse() {
            Ok(directive) => filter.add_directive(directive),
            Err(_) => filter,
        };
        let registry = tracing_subscriber::registry().with(filter);
        // A second start in one process has nothing to add.
        let _ = if self.json {
            let mark = slot.map(|slot| format!("{{\"slot\":{slot},"));
            let layer = fmt::layer()
                .json()
                .flatten_event(true)
                .with_writer(move || Marked::Head(mark.clone()));
            registry.with(layer).try_init()
        } else {
            let mark = slot.map(|slot| format!(" slot={slot}\n"));
            let layer = fmt::layer()
                .with_writer(move || Marked::Tail(mark.clone()))
                .with_ansi(self.colored())
                .with_target(false);
            registry.with(layer).try_init()
        };
    }
}

/// Standard error, with a worker's slot in every line of every thread. The subscriber writes an event in one go.
enum Marked {
    /// Takes the place of the brace that a JSON line begins with.
    Head(Option<String>),
    /// Takes the place of the line feed that a text line ends with.
    Tail(Option<String>),
}

impl Marked {
    fn mark(&self, line: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Head(Some(mark)) => line
                .strip_prefix(b"{")
                .map(|rest| [mark.as_bytes(), rest].concat()),
            Self::Tail(Some(mark)) => line
                .strip_suffix(b"\n")
                .map(|rest| [rest, mark.as_bytes()].concat()),
            Self::Head(None) | Self::Tail(None) => None,
        }
    }
}

impl Write for Marked {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let mut stderr = std::io::stderr().lock();
        match self.mark(line) {
            Some(marked) => stderr.write_all(&marked)?,
            None => stderr.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

    use super::*;

    #[test]
    fn bad_values_are_refused_with_their_key() {
        assert!(
            Logging::new("xml", "info", "auto")
                .unwrap_err()
                .starts_with("log.format")
        );
        assert!(
            Logging::new("text", "info", "red")
                .unwrap_err()
                .starts_with("log.color")
        );
        assert!(
            Logging::new("text", "okdb=loud", "auto")
                .unwrap_err()
                .starts_with("log.level")
        );
    }

    #[test]
    fn a_worker_logs_like_its_primary() {
        let logging = Logging::new("json", "debug", "never").unwrap();
        assert_eq!(Logging::from_arguments(&logging.to_arguments()), logging);
    }

    #[test]
    fn each_line_of_a_worker_tells_its_slot() {
        let json = Marked::Head(Some("{\"slot\":3,".into()));
        let line = json.mark(b"{\"level\":\"INFO\"}\n").unwrap();
        assert_eq!(line, b"{\"slot\":3,\"level\":\"INFO\"}\n");
        let text = Marked::Tail(Some(" slot=3\n".into()));
        assert_eq!(text.mark(b"INFO ready\n").unwrap(), b"INFO ready slot=3\n");
        assert_eq!(Marked::Tail(None).mark(b"INFO ready\n"), None);
    }
}
