//! `okdb verify`: does every relation in the store hold?

use clap::ArgMatches;
use okdb_cluster::exit::ExitCode;
use serde_json::json;

use crate::{
    output::{Failure, Progress, print},
    settings::Given,
};

/// Problems that are printed one by one for people.
const SHOWN_MAX: usize = 50;

pub(crate) fn run(matches: &ArgMatches, given: &Given) -> Result<ExitCode, Failure> {
    let json = matches.get_flag("json");
    let store = super::open_tool(given)?;
    let names = match matches.get_one::<String>("env") {
        Some(name) => vec![name.clone()],
        None => store.env_names()?,
    };
    let mut reports = Vec::new();
    let mut problems = 0;
    for name in names {
        let mut progress = Progress::new(1, "rows", json);
        let report = store
            .env(&name)?
            .verify(&mut |done, total| progress.at(done, total))?;
        let took = progress.finish();
        problems += report.problem_count;
        if !json {
            print(&format!(
                "{name}: {} records, {} index entries, {} changes, clock {}, {} in {:.1} s",
                report.records,
                report.entries,
                report.changes,
                report.clock,
                match report.problem_count {
                    0 => "no problems".to_owned(),
                    1 => "1 problem".to_owned(),
                    count => format!("{count} problems"),
                },
                took.as_secs_f64()
            ))?;
            for problem in report.problems.iter().take(SHOWN_MAX) {
                print(&format!("  {problem}"))?;
            }
            if report.problem_count > SHOWN_MAX as u64 {
                print("  …; --json lists up to a thousand")?;
            }
        }
        reports.push(json!({ "env": name, "report": report }));
    }
    if json {
        let all: Vec<_> = reports
            .iter()
            .filter_map(|entry| entry["report"]["problems"].as_array())
            .flatten()
            .collect();
        print(&json!({ "ok": problems == 0, "envs": reports, "problems": all }).to_string())?;
    }
    Ok(if problems == 0 {
        ExitCode::Clean
    } else {
        ExitCode::RuntimeFailure
    })
}
