//! Every setting of the server, as one table: its key in the configuration file, its option, its variable, its default.
//!
//! The command line, the configuration file, `okdb config` and the docs all come from this table, so that none of them can
//! know a setting that another does not.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// What a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A text.
    Text,
    /// One or more texts.
    List,
    /// On or off; the option takes no value.
    Switch,
    /// A whole number.
    Number,
}

/// One setting.
pub(crate) struct Setting {
    /// Its key in the configuration file, dotted.
    pub(crate) key: &'static str,
    /// Its option, without the dashes.
    pub(crate) option: &'static str,
    /// The name of its value in the help.
    pub(crate) value: &'static str,
    /// The environment variable that it can also come from.
    pub(crate) variable: Option<&'static str>,
    pub(crate) kind: Kind,
    /// What it is when nobody says anything, for people.
    pub(crate) default: &'static str,
    /// One sentence.
    pub(crate) help: &'static str,
}

const fn setting(
    key: &'static str,
    option: &'static str,
    value: &'static str,
    kind: Kind,
    default: &'static str,
    help: &'static str,
) -> Setting {
    Setting {
        key,
        option,
        value,
        variable: None,
        kind,
        default,
        help,
    }
}

impl Setting {
    const fn variable(mut self, name: &'static str) -> Self {
        self.variable = Some(name);
        self
    }

    /// The group in the help: the first word of the key.
    pub(crate) fn group(&self) -> &'static str {
        self.key
            .split_once('.')
            .map_or("general", |(group, _)| group)
    }
}

/// The table.
pub(crate) static SETTINGS: [Setting; 20] = [
    setting(
        "root",
        "root",
        "DIR",
        Kind::Text,
        "./okdb-data",
        "The data directory",
    )
    .variable("OKDB_ROOT"),
    setting(
        "http.listen",
        "listen",
        "ADDR",
        Kind::List,
        "127.0.0.1:8484",
        "Where to listen: IP:PORT or unix:/PATH; may be repeated, port 0 picks a free one",
    ),
    setting(
        "http.workers",
        "workers",
        "N",
        Kind::Text,
        "cores - 1, at least 1",
        "How many worker processes serve; 1 means a single process",
    )
    .variable("OKDB_HTTP_WORKERS"),
    setting(
        "http.noCluster",
        "no-cluster",
        "",
        Kind::Switch,
        "off",
        "Run one process, whatever else is said about workers",
    ),
    setting(
        "http.accessLog",
        "access-log",
        "",
        Kind::Switch,
        "off",
        "Log a line for each request",
    ),
    setting(
        "http.insecureNoAuth",
        "insecure-no-auth",
        "",
        Kind::Switch,
        "off",
        "Listen on addresses that other hosts reach without asking anyone for a token",
    ),
    setting(
        "storage.durability",
        "durability",
        "MODE",
        Kind::Text,
        "as the root records; strict in a new one",
        "What a reply promises in environments that were made without a mode of their own: strict, balanced or fast; can only change while nothing else uses the root",
    ),
    setting(
        "storage.mapSize",
        "map-size",
        "BYTES",
        Kind::Number,
        "as the root records; 137438953472 in a new one",
        "Address space of each environment; can only change while nothing else uses the root",
    ),
    setting(
        "storage.autoTypes",
        "auto-types",
        "",
        Kind::Switch,
        "off",
        "Register an unknown type at the first write to it",
    ),
    setting(
        "storage.segmentInRoot",
        "segment-in-root",
        "",
        Kind::Switch,
        "off",
        "Keep the shared segment in the root instead of /dev/shm",
    ),
    setting(
        "limits.bodyBytes",
        "body-bytes",
        "BYTES",
        Kind::Number,
        "16842752",
        "The largest request body",
    ),
    setting(
        "limits.valueBytes",
        "value-bytes",
        "BYTES",
        Kind::Number,
        "16777216",
        "The largest record value",
    ),
    setting(
        "limits.connections",
        "connections",
        "N",
        Kind::Number,
        "10000",
        "Open connections of each worker",
    ),
    setting(
        "supervision.shutdownGrace",
        "shutdown-grace",
        "SECONDS",
        Kind::Number,
        "3",
        "How long a stop may take before what is left is cut off",
    ),
    setting(
        "supervision.workerTimeout",
        "worker-timeout",
        "SECONDS",
        Kind::Number,
        "30",
        "How long a worker may be silent before it is replaced",
    ),
    setting(
        "supervision.drainTimeout",
        "drain-timeout",
        "SECONDS",
        Kind::Number,
        "30",
        "How long a worker that is replaced or scaled away may take to finish what it has",
    ),
    setting(
        "log.format",
        "log-format",
        "FORMAT",
        Kind::Text,
        "text",
        "text or json",
    ),
    setting(
        "log.level",
        "log-level",
        "LEVEL",
        Kind::Text,
        "info",
        "error, warn, info, debug, trace, or a filter such as okdb_http=debug,info",
    )
    .variable("OKDB_LOG"),
    setting(
        "log.color",
        "log-color",
        "WHEN",
        Kind::Text,
        "auto",
        "auto, always or never",
    ),
    setting(
        "log.file",
        "log-file",
        "PATH",
        Kind::Text,
        "standard error",
        "A file to append the log to; SIGUSR1 opens it anew after it was renamed",
    ),
];

/// Where a value came from, from the strongest to the weakest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Option,
    Variable,
    File,
    Default,
}

impl Source {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Option => "command line",
            Self::Variable => "environment",
            Self::File => "configuration file",
            Self::Default => "default",
        }
    }
}

/// What was said, before it is checked: texts by key.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) options: BTreeMap<&'static str, Vec<String>>,
    pub(crate) file: BTreeMap<&'static str, Vec<String>>,
    /// The configuration file that was read.
    pub(crate) path: Option<PathBuf>,
}

impl Given {
    /// The values of a setting and where they came from; a variable only counts where nothing stronger is said.
    pub(crate) fn get(&self, key: &str) -> Option<(Vec<String>, Source)> {
        if let Some(values) = self.options.get(key) {
            return Some((values.clone(), Source::Option));
        }
        let setting = SETTINGS.iter().find(|setting| setting.key == key);
        let variable = setting
            .and_then(|setting| setting.variable)
            .and_then(|name| std::env::var(name).ok());
        if let Some(value) = variable.filter(|value| !value.is_empty()) {
            return Some((vec![value], Source::Variable));
        }
        self.file
            .get(key)
            .map(|values| (values.clone(), Source::File))
    }

    pub(crate) fn text(&self, key: &str) -> Option<String> {
        self.get(key)
            .and_then(|(values, _)| values.into_iter().next_back())
    }

    pub(crate) fn switch(&self, key: &str) -> bool {
        self.text(key).is_some_and(|value| value == "true")
    }

    pub(crate) fn number(&self, key: &'static str, default: u64) -> Result<u64, String> {
        match self.get(key) {
            None => Ok(default),
            Some((values, source)) => {
                let value = values.last().map(String::as_str).unwrap_or_default();
                value.parse().map_err(|_| {
                    format!(
                        "{key} from the {}: {value:?} is not a whole number",
                        source.name()
                    )
                })
            }
        }
    }
}

/// The name of the configuration file in the working directory or the root.
pub(crate) const FILE_NAME: &str = ".kdbconfig";

/// Reads the configuration file: the named one, or the first that exists in the working directory and the root.
pub(crate) fn read_file(given: &mut Given, named: Option<&Path>) -> Result<(), Vec<String>> {
    let root = given.text("root").unwrap_or_else(|| "./okdb-data".into());
    let path = if let Some(path) = named {
        path.to_owned()
    } else {
        let candidates = [PathBuf::from(FILE_NAME), Path::new(&root).join(FILE_NAME)];
        match candidates.into_iter().find(|path| path.exists()) {
            Some(path) => path,
            None => return Ok(()),
        }
    };
    let text =
        fs::read_to_string(&path).map_err(|error| vec![format!("{}: {error}", path.display())])?;
    given.file = parse_file(&text).map_err(|complaints| {
        complaints
            .into_iter()
            .map(|complaint| format!("{}: {complaint}", path.display()))
            .collect::<Vec<_>>()
    })?;
    given.path = Some(path);
    Ok(())
}

/// Parses a configuration file; all complaints at once.
fn parse_file(text: &str) -> Result<BTreeMap<&'static str, Vec<String>>, Vec<String>> {
    let parsed: Value = serde_json::from_str(text).map_err(|error| vec![error.to_string()])?;
    let mut found = BTreeMap::new();
    let mut complaints = Vec::new();
    let Value::Object(top) = parsed else {
        return Err(vec!["it must be a JSON object".into()]);
    };
    let mut leaves = Vec::new();
    for (name, value) in top {
        match value {
            // Groups are one level deep; {"http.workers": 4} says the same as {"http": {"workers": 4}}.
            Value::Object(group) => leaves.extend(
                group
                    .into_iter()
                    .map(|(leaf, value)| (format!("{name}.{leaf}"), value)),
            ),
            value => leaves.push((name, value)),
        }
    }
    for (key, value) in leaves {
        match SETTINGS.iter().find(|setting| setting.key == key) {
            None => complaints.push(format!(
                "unknown key {key:?}; did you mean {:?}?",
                nearest(&key)
            )),
            Some(setting) => match texts(setting, value) {
                Ok(texts) => {
                    if found.insert(setting.key, texts).is_some() {
                        complaints.push(format!("{key} is given twice"));
                    }
                }
                Err(expected) => complaints.push(format!("{key} must be {expected}")),
            },
        }
    }
    if complaints.is_empty() {
        Ok(found)
    } else {
        Err(complaints)
    }
}

fn texts(setting: &Setting, value: Value) -> Result<Vec<String>, &'static str> {
    let scalar = |value: Value| match value {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    match (setting.kind, value) {
        (Kind::Switch, Value::Bool(on)) => Ok(vec![on.to_string()]),
        (Kind::Switch, _) => Err("true or false"),
        (Kind::List, Value::Array(list)) => list
            .into_iter()
            .map(scalar)
            .collect::<Option<_>>()
            .ok_or("a list of texts"),
        (Kind::Number, Value::Number(number)) => Ok(vec![number.to_string()]),
        (Kind::Number, _) => Err("a number"),
        (_, value) => scalar(value).map(|text| vec![text]).ok_or("a text"),
    }
}

/// The known key that takes the fewest edits to reach.
fn nearest(key: &str) -> &'static str {
    SETTINGS
        .iter()
        .map(|setting| setting.key)
        .min_by_key(|known| edits(key, known))
        .unwrap_or("root")
}

/// Levenshtein distance, without regard to case.
fn edits(a: &str, b: &str) -> usize {
    let (a, b) = (a.to_lowercase(), b.to_lowercase());
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
        for (j, to) in b.iter().enumerate() {
            let above = row.get(j + 1).copied().unwrap_or(usize::MAX);
            let left = row.get(j).copied().unwrap_or(usize::MAX);
            let best = (diagonal + usize::from(from != *to))
                .min(above + 1)
                .min(left + 1);
            diagonal = above;
            if let Some(cell) = row.get_mut(j + 1) {
                *cell = best;
            }
        }
    }
    row.last().copied().unwrap_or(usize::MAX)
}

/// The table of settings in Markdown, as `okdb config --markdown` prints it and `docs/configuration.md` holds it.
pub(crate) fn markdown() -> String {
    let mut text =
        String::from("| key | option | variable | default | meaning |\n|---|---|---|---|---|\n");
    for setting in &SETTINGS {
        let option = match setting.kind {
            Kind::Switch => format!("`--{}`", setting.option),
            _ => format!("`--{} {}`", setting.option, setting.value),
        };
        let variable = setting
            .variable
            .map_or_else(String::new, |name| format!("`{name}`"));
        text = format!(
            "{text}| `{}` | {option} | {variable} | {} | {} |\n",
            setting.key, setting.default, setting.help
        );
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

    use super::*;

    #[test]
    fn keys_and_options_are_unique() {
        for (place, setting) in SETTINGS.iter().enumerate() {
            for other in &SETTINGS[..place] {
                assert_ne!(setting.key, other.key);
                assert_ne!(setting.option, other.option);
            }
        }
    }

    #[test]
    fn the_docs_hold_this_very_table() {
        let page = include_str!("../../docs/configuration.md");
        assert!(
            page.contains(&markdown()),
            "docs/configuration.md is behind; `okdb config --markdown` prints the table"
        );
    }

    #[test]
    fn a_file_may_group_or_dot_its_keys() {
        let grouped =
            parse_file(r#"{"http": {"workers": 4, "listen": ["127.0.0.1:1", "unix:/x"]}}"#)
                .unwrap();
        assert_eq!(grouped["http.workers"], ["4"]);
        assert_eq!(grouped["http.listen"], ["127.0.0.1:1", "unix:/x"]);
        let dotted = parse_file(r#"{"http.workers": "4", "storage.autoTypes": true}"#).unwrap();
        assert_eq!(dotted["http.workers"], ["4"]);
        assert_eq!(dotted["storage.autoTypes"], ["true"]);
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let text =
            r#"{"http": {"wokers": 4}, "storage.autoTypes": "yes", "limits": {"bodyBytes": "x"}}"#;
        let complaints = parse_file(text).unwrap_err();
        assert_eq!(complaints.len(), 3, "{complaints:?}");
        assert!(
            complaints
                .iter()
                .any(|complaint| complaint.contains("\"http.workers\"")),
            "{complaints:?}"
        );
        assert!(parse_file("[]").is_err());
        assert!(parse_file("{").is_err());
        assert!(
            parse_file(r#"{"root": "a", "root": "b"}"#).is_ok(),
            "the JSON parser keeps the last"
        );
    }
}
