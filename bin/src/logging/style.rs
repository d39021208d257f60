//! What a line looks like: for people, for a journal, for machines. One event is one line in each of them.

use std::io::{self, Write};

use serde_json::json;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::{
    MakeWriter,
    format::Writer,
    time::{FormatTime, SystemTime},
};

use super::sink::Sink;

/// The form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    /// Text that begins with a priority, as `sd-daemon(3)` has it; the journal knows the time by itself.
    Journal,
    Json,
}

/// The form, and the slot of a worker, which marks every line of every thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) form: Form,
    pub(super) slot: Option<u16>,
}

impl Style {
    /// Completes a line that a subscriber has formatted.
    fn dress(self, level: Level, line: &[u8]) -> Vec<u8> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut dressed = Vec::with_capacity(line.len() + 16);
        match (self.form, self.slot) {
            (Form::Json, Some(slot)) => {
                dressed.extend_from_slice(format!("{{\"slot\":{slot},").as_bytes());
                dressed.extend_from_slice(line.strip_prefix(b"{").unwrap_or(line));
            }
            (Form::Json, None) => dressed.extend_from_slice(line),
            (Form::Text | Form::Journal, slot) => {
                if self.form == Form::Journal {
                    dressed.extend_from_slice(format!("<{}>", priority(level)).as_bytes());
                }
                // A line break inside, which may have come from a client, would pass for the end of the line.
                for byte in line {
                    match byte {
                        b'\n' => dressed.extend_from_slice(b"\\n"),
                        byte => dressed.push(*byte),
                    }
                }
                if let Some(slot) = slot {
                    dressed.extend_from_slice(format!(" slot={slot}").as_bytes());
                }
            }
        }
        dressed.push(b'\n');
        dressed
    }

    /// A whole line about the log itself.
    pub(super) fn line(self, level: Level, text: &str) -> Vec<u8> {
        let mut time = String::new();
        // A clock that cannot be formatted leaves the time out.
        let _ = SystemTime.format_time(&mut Writer::new(&mut time));
        let line = match self.form {
            Form::Text => format!("{time} {level:>5} {text}"),
            Form::Journal => format!("{level:>5} {text}"),
            Form::Json => {
                json!({ "timestamp": time, "level": level.as_str(), "message": text }).to_string()
            }
        };
        self.dress(level, line.as_bytes())
    }
}

fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Takes the lines of a subscriber to a sink.
pub(super) struct Lines {
    pub(super) sink: Sink,
    pub(super) style: Style,
}

/// One of them. The subscriber writes an event in one go.
pub(super) struct Line<'l> {
    lines: &'l Lines,
    level: Level,
}

impl<'l> MakeWriter<'l> for Lines {
    type Writer = Line<'l>;

    fn make_writer(&'l self) -> Line<'l> {
        Line {
            lines: self,
            level: Level::INFO,
        }
    }

    fn make_writer_for(&'l self, meta: &Metadata<'_>) -> Line<'l> {
        Line {
            lines: self,
            level: *meta.level(),
        }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let dressed = self.lines.style.dress(self.level, line);
        self.lines.sink.push(dressed);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dressed(form: Form, slot: Option<u16>, line: &str) -> String {
        let dressed = Style { form, slot }.dress(Level::WARN, line.as_bytes());
        String::from_utf8_lossy(&dressed).into_owned()
    }

    #[test]
    fn each_line_of_a_worker_tells_its_slot() {
        let json = "{\"level\":\"INFO\"}\n";
        assert_eq!(
            dressed(Form::Json, Some(3), json),
            "{\"slot\":3,\"level\":\"INFO\"}\n"
        );
        assert_eq!(dressed(Form::Json, None, json), json);
        assert_eq!(
            dressed(Form::Text, Some(3), "INFO ready\n"),
            "INFO ready slot=3\n"
        );
        assert_eq!(dressed(Form::Text, None, "INFO ready\n"), "INFO ready\n");
    }

    #[test]
    fn a_journal_learns_the_priority_of_each_line() {
        assert_eq!(
            dressed(Form::Journal, Some(0), "WARN odd\n"),
            "<4>WARN odd slot=0\n"
        );
        let levels = [
            Level::ERROR,
            Level::WARN,
            Level::INFO,
            Level::DEBUG,
            Level::TRACE,
        ];
        assert_eq!(levels.map(priority), [3, 4, 6, 7, 7]);
    }

    #[test]
    fn an_event_is_one_line_whatever_is_in_it() {
        let text = dressed(Form::Journal, None, "INFO key=a\n<0>forged\n");
        assert_eq!(text, "<4>INFO key=a\\n<0>forged\n");
    }

    #[test]
    fn a_line_about_the_log_looks_like_one_of_the_log() {
        let line = |form| {
            Style {
                form,
                slot: Some(1),
            }
            .line(Level::WARN, "2 lines were dropped")
        };
        let text = String::from_utf8_lossy(&line(Form::Text)).into_owned();
        assert!(
            text.ends_with("Z  WARN 2 lines were dropped slot=1\n"),
            "{text}"
        );
        let journal = String::from_utf8_lossy(&line(Form::Journal)).into_owned();
        assert_eq!(journal, "<4> WARN 2 lines were dropped slot=1\n");
        let json: Option<serde_json::Value> = serde_json::from_slice(&line(Form::Json)).ok();
        let json = json.unwrap_or_default();
        assert_eq!(json["slot"], 1);
        assert_eq!(json["level"], "WARN");
        assert_eq!(json["message"], "2 lines were dropped");
    }
}
