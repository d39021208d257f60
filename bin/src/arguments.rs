//! The command line, made from the table of settings and the list of commands.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::settings::{self, Given, Kind, SETTINGS, Setting};

/// What there is to know beyond the options. Where a manual is behind, this is what people look at.
const AFTER_HELP: &str = "\
Examples:
  okdb --workers 4                        serve ./okdb-data on 127.0.0.1:8484 with four workers
  okdb --root /srv/okdb --listen 127.0.0.1:9000 --listen unix:/run/okdb.sock
  okdb import cities cities.ndjson        load records, one {\"key\":…,\"value\":…} a line
  okdb export cities > cities.ndjson      and get them back
  okdb verify                             check every relation in the store
  okdb backup /backup/2026-12-01          a hot copy
  okdb doctor                             what would keep this host from serving well

Signals of a server:
  TERM, INT   stop within --shutdown-grace; a second one stops at once
  HUP         read the configuration again and replace the workers one by one; no request fails
  USR1        open the log file anew
  USR2        become the program that now has this one's name, with all connections and listeners
  TTIN, TTOU  one worker more, one fewer

Exit codes: 0 clean, 1 runtime failure, 2 usage or configuration, 3 root locked, 4 address in use, 5 all slots dead.";

/// The whole command line.
pub(crate) fn command() -> Command {
    let serve_options = || {
        SETTINGS
            .iter()
            .map(|setting| option(setting).help_heading(heading(setting)))
    };
    Command::new("okdb")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A document database that one command serves on every core of a host")
        .after_help(AFTER_HELP)
        .args_conflicts_with_subcommands(true)
        .disable_help_subcommand(true)
        .args(serve_options())
        .arg(config_option())
        .subcommand(
            Command::new("serve")
                .about("Serves a root, as okdb does without a command")
                .args(serve_options())
                .arg(config_option())
                .after_help(AFTER_HELP),
        )
        .subcommand(import())
        .subcommand(export())
        .subcommand(
            tool("backup", "Copies a root while it is in use")
                .arg(Arg::new("to").value_name("DIR").required(true).value_parser(value_parser!(PathBuf)).help("An empty or a new folder; it becomes a root of its own"))
                .after_help("Example:\n  okdb backup --root /srv/okdb /backup/monday && okdb --root /backup/monday"),
        )
        .subcommand(
            tool("verify", "Checks every relation in the store; exit code 1 if anything does not hold")
                .arg(env_option())
                .after_help("Example:\n  okdb verify --root /srv/okdb --json | jq .problems"),
        )
        .subcommand(
            tool("doctor", "Checks this host and a root, one line a check; exit code 1 if anything is wrong")
                .after_help("Example:\n  okdb doctor --root /srv/okdb"),
        )
        .subcommand(
            tool("status", "Shows the cluster that serves a root, without HTTP; exit code 1 if none does")
                .arg(Arg::new("watch").long("watch").short('w').action(ArgAction::SetTrue).help("Go on: redraw a terminal each second; into a pipe, write a line for each change, or with --json an object each second"))
                .after_help("Examples:\n  okdb status --root /srv/okdb --watch\n  okdb status --root /srv/okdb --json | jq '.workers[].state'"),
        )
        .subcommand(
            Command::new("config")
                .about("Prints every setting, its value and where that came from")
                .args(serve_options())
                .arg(config_option())
                .arg(json_option())
                .arg(Arg::new("markdown").long("markdown").action(ArgAction::SetTrue).help("Print the table of settings as Markdown"))
                .after_help("Example:\n  okdb config --json"),
        )
}

fn heading(setting: &Setting) -> &'static str {
    match setting.group() {
        "http" => "http",
        "storage" => "storage",
        "limits" => "limits",
        "supervision" => "supervision",
        "log" => "log",
        _ => "general",
    }
}

fn option(setting: &'static Setting) -> Arg {
    let arg = Arg::new(setting.key).long(setting.option);
    let mut help = setting.help.to_owned();
    if setting.kind != Kind::Switch {
        help = format!("{help} [default: {}]", setting.default);
    }
    if let Some(variable) = setting.variable {
        help = format!("{help} [env: {variable}]");
    }
    let arg = arg.help(help);
    match setting.kind {
        Kind::Switch => arg.action(ArgAction::SetTrue),
        Kind::List => arg.action(ArgAction::Append).value_name(setting.value),
        // Negative numbers are values to complain about, not options.
        Kind::Text | Kind::Number => arg.value_name(setting.value).allow_hyphen_values(true),
    }
}

fn root_option() -> Arg {
    SETTINGS
        .iter()
        .find(|setting| setting.key == "root")
        .map_or_else(|| Arg::new("root").long("root"), option)
}

fn config_option() -> Arg {
    Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help(format!(
            "Configuration file, JSON [default: {} in the working directory or the root]",
            settings::FILE_NAME
        ))
}

fn json_option() -> Arg {
    Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print one JSON object instead of text")
}

fn env_option() -> Arg {
    Arg::new("env")
        .long("env")
        .value_name("NAME")
        .help("The environment [default: all, or `default` where one is meant]")
}

fn url_option() -> Arg {
    Arg::new("url")
        .long("url")
        .value_name("URL")
        .conflicts_with("root")
        .help("A server to talk to over HTTP, instead of opening the root: http://HOST:PORT")
}

fn tool(name: &'static str, about: &'static str) -> Command {
    Command::new(name)
        .about(about)
        .arg(root_option())
        .arg(json_option())
}

fn import() -> Command {
    tool("import", "Loads NDJSON records into a type, which is registered if it is not there")
        .arg(Arg::new("type").value_name("TYPE").required(true).help("The type"))
        .arg(Arg::new("file").value_name("FILE").required(true).help("The file, one record a line; - reads standard input"))
        .arg(url_option())
        .arg(env_option())
        .arg(Arg::new("key").long("key").value_name("FIELD").help("Lines are bare documents, and this field is the key"))
        .arg(Arg::new("skip").long("skip-lines").value_name("N").value_parser(value_parser!(u64)).default_value("0").help("Begin behind this line: the last one that an import that was cut short reported"))
        .after_help("Examples:\n  okdb import cities cities.ndjson --url http://127.0.0.1:8484\n  zcat cities.ndjson.gz | okdb import cities - --root /srv/okdb\n\nRecords that exist are overwritten, so that the same import can be run again. Exit code 1 if any line was refused.")
}

fn export() -> Command {
    tool(
        "export",
        "Writes the records of a type as NDJSON, in key order",
    )
    .arg(
        Arg::new("type")
            .value_name("TYPE")
            .required(true)
            .help("The type"),
    )
    .arg(
        Arg::new("output")
            .long("output")
            .short('o')
            .value_name("FILE")
            .help("Where to write [default: standard output]"),
    )
    .arg(url_option())
    .arg(env_option())
    .arg(
        Arg::new("consistent")
            .long("consistent")
            .action(ArgAction::SetTrue)
            .help("Show one moment; for types that are exported within a minute"),
    )
    .after_help("Example:\n  okdb export cities --root /srv/okdb | gzip > cities.ndjson.gz")
}

/// The settings among the arguments, completed by the configuration file.
pub(crate) fn given(matches: &ArgMatches) -> Result<Given, Vec<String>> {
    let mut given = Given::default();
    for setting in &SETTINGS {
        // Commands know some settings only.
        let Ok(values) = matches.try_get_raw(setting.key) else {
            continue;
        };
        if matches.value_source(setting.key) != Some(clap::parser::ValueSource::CommandLine) {
            continue;
        }
        let values = match setting.kind {
            Kind::Switch => vec![matches.get_flag(setting.key).to_string()],
            _ => values
                .into_iter()
                .flatten()
                .map(|value| value.to_string_lossy().into_owned())
                .collect(),
        };
        given.options.insert(setting.key, values);
    }
    let named = matches.try_get_one::<PathBuf>("config").ok().flatten();
    settings::read_file(&mut given, named.map(PathBuf::as_path))?;
    Ok(given)
}
