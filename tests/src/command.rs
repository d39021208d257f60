//! Owns the short-lived subcommands: run, wait under a limit, read.

use std::ffi::OsStr;
use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::binary;
use crate::server::clean_environment;
use crate::wait::wait_for;

/// How long a subcommand may take; the longest verifies a large root.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// What a subcommand did.
#[derive(Debug)]
pub struct Done {
    /// Its exit code; a death by signal is -1.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Done {
    /// Ends the story unless the exit code is this one.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        self
    }

    /// Standard output as one JSON value.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error} in {:?}", self.stdout))
    }
}

/// Runs `okdb` with these arguments.
#[track_caller]
pub fn okdb<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Done {
    okdb_with(arguments, &[])
}

/// Runs `okdb` with these arguments and environment variables.
#[track_caller]
pub fn okdb_with<S: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = S>,
    environment: &[(&str, &str)],
) -> Done {
    let mut command = Command::new(binary::okdb());
    clean_environment(&mut command);
    command.args(arguments).envs(environment.iter().copied());
    run(command)
}

/// Runs `okdb` by a program that runs the rest of its arguments.
#[track_caller]
pub fn okdb_through<S: AsRef<OsStr>>(
    wrapper: &[&str],
    arguments: impl IntoIterator<Item = S>,
) -> Done {
    let mut command = Command::new(wrapper[0]);
    clean_environment(&mut command);
    command.args(&wrapper[1..]).arg(binary::okdb());
    command.args(arguments);
    run(command)
}

/// Runs `okdb doctor` on a root that exists. Doctor tries the address that a start
/// would take, and the default one may be somebody else's here.
#[track_caller]
pub fn doctor(root: &Path, environment: &[(&str, &str)]) -> Done {
    std::fs::write(
        root.join(".kdbconfig"),
        r#"{"http":{"listen":["127.0.0.1:0"]}}"#,
    )
    .expect("the root can be written");
    let root = root.to_str().expect("a temporary path is UTF-8");
    okdb_with(["doctor", "--root", root], environment)
}

#[track_caller]
fn run(mut command: Command) -> Done {
    // Files, not pipes: a pipe that nobody empties would stop the command.
    let [mut stdout, mut stderr] =
        [(); 2].map(|()| tempfile::tempfile().expect("the temporary folder can be written"));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().expect("a descriptor is free"))
        .stderr(stderr.try_clone().expect("a descriptor is free"))
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", binary::okdb().display()));
    let status = wait_for(&format!("the end of {command:?}"), COMMAND_LIMIT, || {
        child.try_wait().expect("the child is ours")
    });
    let read = |file: &mut std::fs::File| {
        let mut text = Vec::new();
        file.rewind().expect("a file can be read again");
        file.read_to_end(&mut text).expect("a file can be read");
        String::from_utf8_lossy(&text).into_owned()
    };
    Done {
        code: status.code().unwrap_or(-1),
        stdout: read(&mut stdout),
        stderr: read(&mut stderr),
    }
}
