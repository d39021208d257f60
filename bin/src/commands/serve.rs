//! `okdb`: serving.

use std::sync::Arc;

use clap::ArgMatches;
use okdb::server::{
    Birth, Program, ServerConfig, Takeover, run as serve,
    upgrade::{CHECK_PASSED, check, is_check},
};
use okdb_cluster::{
    address::Address,
    driver::SIGNALS,
    exit::ExitCode,
    systemd::{Notifier, activation},
    workers::{Knobs, worker_count},
};
use okdb_sys::signals::{Blocked, Signals};

use crate::{
    arguments,
    logging::{self, Logging},
    output::Failure,
    settings::{Given, Source},
};

/// Where a server listens if nobody says anything.
pub(crate) const LISTEN_DEFAULT: &str = "127.0.0.1:8484";

pub(crate) fn run(matches: &ArgMatches, given: &Given) -> Result<ExitCode, Failure> {
    let signals = Signals::install(&SIGNALS).map_err(Failure::runtime)?;
    // No thread but this one shall hear signals: one that did would lose them at an upgrade in place.
    let blocked = Blocked::all().map_err(Failure::runtime)?;
    let own_pid = std::process::id();
    let variable = |name: &str| std::env::var_os(name);
    let takeover = Takeover::from_env()?;
    let activated = activation::passed(variable, own_pid)
        .map_err(Failure::usage)?
        .is_some();
    let plan = Plan::new(given, activated)
        .map_err(|complaints| Failure::usage(complaints.join("\nokdb: ")))?;
    if is_check() {
        // The log is opened as it would be afterwards.
        plan.logging.start(None).map_err(Failure::usage)?;
        check(&plan.config)?;
        end_check();
    }
    // After an upgrade in place the variables are still there, but the sockets came with everything else.
    let sockets = match takeover {
        Some(_) => Vec::new(),
        None => activation::take(variable, own_pid).map_err(Failure::usage)?,
    };
    plan.logging.start(None).map_err(Failure::usage)?;
    if let Some(path) = &given.path {
        tracing::info!(file = %path.display(), "configuration file");
    }
    plan.warn();
    if let Err(error) = okdb_sys::host::raise_nofile() {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let birth = Birth {
        signals: Some(signals),
        blocked: Some(blocked),
        notifier: Notifier::from_env(variable, own_pid),
        sockets,
        takeover,
        ..Birth::default()
    };
    let config = ServerConfig {
        program: program(matches, activated),
        ..plan.config
    };
    Ok(serve(&config, birth)?)
}

/// Ends this process where its end waits for somebody who does not let go.
#[allow(clippy::exit, reason = "the main thread is what hangs")]
fn give_up(code: ExitCode) -> ! {
    logging::finish();
    std::process::exit(i32::from(code.number()))
}

/// Ends this process with the code that a passed check ends with, which no other command has.
#[allow(clippy::exit, reason = "the code is none of the command's own")]
fn end_check() -> ! {
    std::process::exit(i32::from(CHECK_PASSED))
}

/// What the server asks of this program.
fn program(matches: &ArgMatches, activated: bool) -> Program {
    let matches = matches.clone();
    Program {
        read_again: Arc::new(move || read_again(&matches, activated)),
        reopen_logs: logging::reopen,
        worker_output: logging::worker_output,
        ready: Arc::new(|ready| logging::announce(ready.line)),
        give_up: Some(give_up),
        ..Program::default()
    }
}

/// Reads the configuration again: the same command line, and whatever the file says now. The log goes on as it says.
fn read_again(matches: &ArgMatches, activated: bool) -> Result<ServerConfig, String> {
    let together = |complaints: Vec<String>| complaints.join("; ");
    let given = arguments::given(matches).map_err(together)?;
    let plan = Plan::new(&given, activated).map_err(together)?;
    plan.logging
        .take_over()
        .map_err(|error| error.to_string())?;
    plan.warn();
    Ok(ServerConfig {
        program: program(matches, activated),
        ..plan.config
    })
}

/// Keeps a complaint for later.
fn note<T>(complaints: &mut Vec<String>, result: Result<T, String>) -> Option<T> {
    result.map_err(|complaint| complaints.push(complaint)).ok()
}

/// What the settings come to.
pub(crate) struct Plan {
    pub(crate) config: ServerConfig,
    logging: Logging,
    /// Something that is taken for something else than was said.
    warning: Option<String>,
}

impl Plan {
    /// Checks the settings; all complaints at once. Sockets that a service manager passed (`activated`) take the place of
    /// the default address.
    pub(crate) fn new(given: &Given, activated: bool) -> Result<Self, Vec<String>> {
        let mut complaints = Vec::new();
        let text = |key: &str, default: &str| given.text(key).unwrap_or_else(|| default.to_owned());
        let count = workers(given);
        let addresses = match given.get("http.listen") {
            Some((values, _)) => values,
            None if activated => Vec::new(),
            None => vec![LISTEN_DEFAULT.to_owned()],
        };
        let listen: Vec<_> = addresses
            .iter()
            .filter_map(|value| {
                note(
                    &mut complaints,
                    value
                        .parse::<Address>()
                        .map_err(|error| format!("http.listen: {error}")),
                )
            })
            .collect();
        let durability = note(
            &mut complaints,
            given
                .text("storage.durability")
                .map(|text| text.parse())
                .transpose()
                .map_err(|error| format!("storage.durability: {error}")),
        );
        let logging = note(
            &mut complaints,
            Logging::new(
                &text("log.format", "text"),
                &text("log.level", "info"),
                &text("log.color", "auto"),
                given.text("log.file").map(Into::into),
            ),
        );
        let mut number = |key: &'static str, default: u64, min: u64, max: u64| {
            let value = note(&mut complaints, given.number(key, default)).unwrap_or(default);
            if !(min..=max).contains(&value) {
                complaints.push(format!("{key}: {value} is not between {min} and {max}"));
            }
            value
        };
        let body_bytes = number("limits.bodyBytes", 16_842_752, 1024, 1 << 30);
        let value_bytes = number("limits.valueBytes", 16 << 20, 256, 1 << 30);
        let connections = number("limits.connections", 10_000, 1, 1_000_000);
        let grace_s = number("supervision.shutdownGrace", 3, 1, 3600);
        let drain_s = number("supervision.drainTimeout", 30, 1, 86_400);
        let timeout_s = number("supervision.workerTimeout", 30, 2, 86_400);
        // Bounds and rounding of a map size are the store's; 0 stands for "not said".
        let map_size = given
            .get("storage.mapSize")
            .map(|_| number("storage.mapSize", 0, 1, u64::MAX));
        let (Some(durability), Some(logging)) = (durability, logging) else {
            return Err(complaints);
        };
        if !complaints.is_empty() {
            return Err(complaints);
        }
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let config = ServerConfig {
            root: super::root(given),
            listen,
            workers: count.count,
            durability,
            map_size,
            segment_in_root: given.switch("storage.segmentInRoot"),
            force_private_segment: super::forced_single(),
            insecure_no_auth: given.switch("http.insecureNoAuth"),
            auto_types: given.switch("storage.autoTypes"),
            access_log: given.switch("http.accessLog"),
            body_bytes: size(body_bytes),
            value_bytes: size(value_bytes),
            connections: size(connections),
            shutdown_grace_ms: grace_s * 1000,
            worker_timeout_ms: timeout_s * 1000,
            drain_timeout_ms: drain_s * 1000,
            worker_log_arguments: logging.to_arguments(),
            program: Program::default(),
        };
        Ok(Self {
            config,
            logging,
            warning: count.warning,
        })
    }

    fn warn(&self) {
        if let Some(warning) = &self.warning {
            tracing::warn!("{warning}");
        }
    }
}

/// Who decides how many workers there are.
pub(crate) fn workers(given: &Given) -> okdb_cluster::workers::WorkerCount {
    let said = |source: Source| {
        let value = match source {
            Source::Option => given.options.get("http.workers"),
            Source::File => given.file.get("http.workers"),
            Source::Variable | Source::Default => None,
        };
        value.and_then(|values| values.last()).map(String::as_str)
    };
    let variable = std::env::var("OKDB_HTTP_WORKERS").ok();
    let knobs = Knobs {
        no_cluster: given.switch("http.noCluster"),
        flag: said(Source::Option),
        env: variable.as_deref(),
        config: said(Source::File),
    };
    worker_count(knobs, okdb_sys::host::available_cores())
}
