//! `okdb doctor`: what would keep this host, or this root, from serving well. One line a check, with the remedy where
//! something is wrong.
//!
//! It disturbs nothing: a server's root is only read, every trial is made in a folder that is thrown away, and addresses
//! are tried for a moment only where no server of this root listens.

mod host;
mod network;
mod robust;
mod root;

use clap::ArgMatches;
use okdb::store::{FORMAT_VERSION, server_pid};
use okdb_cluster::exit::ExitCode;
use serde_json::json;

use crate::{
    output::{Failure, print},
    settings::Given,
};

pub(crate) use robust::{COMMAND as LOCK_COMMAND, hold_lock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Odd,
    Bad,
}

impl Verdict {
    fn sign(self) -> &'static str {
        match self {
            Self::Good => "✓",
            Self::Odd => "⚠",
            Self::Bad => "✗",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Odd => "warning",
            Self::Bad => "error",
        }
    }
}

/// What one check found.
#[derive(Debug)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    detail: String,
    /// What to do about it.
    remedy: Option<String>,
}

impl Check {
    fn line(&self) -> String {
        let line = format!("{} {}: {}", self.verdict.sign(), self.name, self.detail);
        match &self.remedy {
            Some(remedy) => format!("{line}: {remedy}"),
            None => line,
        }
    }
}

/// What all checks found.
#[derive(Debug, Default)]
struct Report(Vec<Check>);

impl Report {
    fn good(&mut self, name: &'static str, detail: impl Into<String>) {
        self.add(name, Verdict::Good, detail.into(), None);
    }

    fn odd(&mut self, name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) {
        self.add(name, Verdict::Odd, detail.into(), Some(remedy.into()));
    }

    fn bad(&mut self, name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) {
        self.add(name, Verdict::Bad, detail.into(), Some(remedy.into()));
    }

    /// For what says itself what to do about it.
    fn told(&mut self, name: &'static str, verdict: Verdict, detail: impl Into<String>) {
        self.add(name, verdict, detail.into(), None);
    }

    fn add(
        &mut self,
        name: &'static str,
        verdict: Verdict,
        detail: String,
        remedy: Option<String>,
    ) {
        self.0.push(Check {
            name,
            verdict,
            detail,
            remedy,
        });
    }

    fn is_bad(&self) -> bool {
        self.0.iter().any(|check| check.verdict == Verdict::Bad)
    }
}

pub(crate) fn run(matches: &ArgMatches, given: &Given) -> Result<ExitCode, Failure> {
    let root = super::root(given);
    let server = server_pid(&root);
    let mut report = Report::default();
    report.good(
        "version",
        format!(
            "okdb {}, storage format {FORMAT_VERSION}",
            env!("CARGO_PKG_VERSION")
        ),
    );
    match server {
        Some(pid) => report.good("server", format!("served by pid {pid}")),
        None => report.good("server", "not running"),
    }
    host::file_system(&mut report, &root);
    host::disk(&mut report, &root);
    root::check(&mut report, &root, server);
    robust::check(&mut report);
    network::check(&mut report, given, server);
    host::check(&mut report, given, server);

    if matches.get_flag("json") {
        let checks: Vec<_> = report
            .0
            .iter()
            .map(|check| {
                json!({
                    "check": check.name,
                    "verdict": check.verdict.name(),
                    "detail": check.detail,
                    "remedy": check.remedy,
                })
            })
            .collect();
        let ok = !report.is_bad();
        print(&json!({ "ok": ok, "root": root, "checks": checks }).to_string())?;
    } else {
        for check in &report.0 {
            print(&check.line())?;
        }
    }
    Ok(if report.is_bad() {
        ExitCode::RuntimeFailure
    } else {
        ExitCode::Clean
    })
}
