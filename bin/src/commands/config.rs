//! `okdb config`: every setting, its value and where that came from.

use clap::ArgMatches;
use okdb_cluster::exit::ExitCode;
use serde_json::json;

use crate::{
    output::{Failure, print},
    settings::{self, Given, SETTINGS, Source},
};

pub(crate) fn run(matches: &ArgMatches, given: &Given) -> Result<ExitCode, Failure> {
    if matches.get_flag("markdown") {
        print(settings::markdown().trim_end())?;
        return Ok(ExitCode::Clean);
    }
    // What would keep the server from starting is said here too.
    super::serve::Plan::new(given, false)
        .map_err(|complaints| Failure::usage(complaints.join("\nokdb: ")))?;
    let rows = SETTINGS.iter().map(|setting| match given.get(setting.key) {
        Some((values, source)) => (setting, values.join(", "), source),
        None => (setting, setting.default.to_owned(), Source::Default),
    });
    if matches.get_flag("json") {
        let settings: Vec<_> = rows
            .map(|(setting, value, source)| {
                json!({ "key": setting.key, "option": format!("--{}", setting.option), "value": value, "source": source.name(), "help": setting.help })
            })
            .collect();
        print(&json!({ "file": given.path, "settings": settings }).to_string())?;
        return Ok(ExitCode::Clean);
    }
    if let Some(path) = &given.path {
        print(&format!("configuration file: {}", path.display()))?;
    }
    for (setting, value, source) in rows {
        print(&format!(
            "{:26} {:24} {}",
            setting.key,
            value,
            source.name()
        ))?;
    }
    let count = super::serve::workers(given);
    print(&format!("\nworkers: {} ({})", count.count, count.source))?;
    Ok(ExitCode::Clean)
}
