//! `okdb backup`: a hot copy.

use std::path::PathBuf;

use clap::ArgMatches;
use okdb_cluster::exit::ExitCode;
use serde_json::json;

use crate::{
    output::{Failure, Progress, print},
    settings::Given,
};

pub(crate) fn run(matches: &ArgMatches, given: &Given) -> Result<ExitCode, Failure> {
    let to = matches
        .get_one::<PathBuf>("to")
        .ok_or_else(|| Failure::usage("where to?"))?;
    let json = matches.get_flag("json");
    let store = super::open_tool(given)?;
    let mut progress = Progress::new(0, "environments", json);
    let bytes = store.backup(to, &mut |done, total| {
        progress.at(done as u64, total as u64);
    })?;
    let took = progress.finish();
    let text = if json {
        json!({ "root": store.root(), "to": to, "bytes": bytes, "ms": took.as_millis() })
            .to_string()
    } else {
        format!(
            "copied {} to {}: {bytes} bytes in {:.1} s",
            store.root().display(),
            to.display(),
            took.as_secs_f64()
        )
    };
    print(&text)?;
    Ok(ExitCode::Clean)
}
