//! Other processes: this very binary, started again with a part to play, spoken to line by line.

use std::{
    io::{BufRead, BufReader, Lines, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

const PART: &str = "OKDB_TEST_PART";
const ROOT: &str = "OKDB_TEST_ROOT";
/// What a child has to say begins with this; the rest of its output is the test harness's.
const MARK: &str = "@ ";

/// A process that plays a part.
pub(crate) struct Actor {
    process: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    /// Starts a process in which [`Cue::take`] finds `part`, of the test that is called `stage`.
    pub(crate) fn start(stage: &str, part: &str, root: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", stage, "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .env(ROOT, root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: process.stdin.take(),
            output: BufReader::new(process.stdout.take().unwrap()).lines(),
            process,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The next thing it says; `None` when it is gone.
    pub(crate) fn hear(&mut self) -> Option<String> {
        loop {
            let line = self.output.next()?.ok()?;
            // The harness does not end its own line before a test begins.
            if let Some((_, said)) = line.split_once(MARK) {
                return Some(said.to_owned());
            }
        }
    }

    /// Waits for it to say `words`.
    pub(crate) fn expect(&mut self, words: &str) {
        assert_eq!(self.hear().as_deref(), Some(words));
    }

    pub(crate) fn tell(&mut self, words: &str) {
        writeln!(self.input.as_mut().unwrap(), "{words}").unwrap();
    }

    /// Asks, and waits for the answer.
    pub(crate) fn ask(&mut self, words: &str) -> String {
        self.tell(words);
        self.hear().expect("an answer")
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.process.id().cast_signed());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Ends it without warning; what it had said before can still be heard.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Lets it come to its end, which must be a good one.
    pub(crate) fn finish(mut self) {
        drop(self.input.take());
        while self.hear().is_some() {}
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        drop(self.input.take());
        // Gone already, or somebody's assertion failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In a process that an [`Actor`] stands for: its part and the root.
pub(crate) struct Cue {
    pub(crate) part: String,
    pub(crate) root: PathBuf,
}

impl Cue {
    /// `None` in the process that runs the tests.
    pub(crate) fn take() -> Option<Self> {
        Some(Self {
            part: std::env::var(PART).ok()?,
            root: std::env::var_os(ROOT)?.into(),
        })
    }
}

/// Says something to the process that started this one. Nobody listens any more when that one is gone.
pub(crate) fn say(words: &str) {
    let mut output = std::io::stdout().lock();
    let said = writeln!(output, "{MARK}{words}").and_then(|()| output.flush());
    if said.is_err() {
        std::process::abort();
    }
}

/// The next thing that this process is told; `None` when it is to end.
pub(crate) fn listen() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line).ok()?;
    (read > 0).then(|| line.trim_end().to_owned())
}
