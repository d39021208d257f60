//! Logs: text for a terminal, JSON lines for machines. Everything goes to standard error.

use std::io::IsTerminal;

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
            let layer = fmt::layer()
                .json()
                .flatten_event(true)
                .with_writer(std::io::stderr)
                .with_current_span(true)
                .with_span_list(false);
            registry.with(layer).try_init()
        } else {
            let layer = fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(self.colored())
                .with_target(false);
            registry.with(layer).try_init()
        };
        if let Some(slot) = slot {
            // Entered for the life of the process, on this thread; other threads' lines carry their own fields.
            let span = tracing::info_span!("worker", slot);
            std::mem::forget(span.entered());
        }
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
}
