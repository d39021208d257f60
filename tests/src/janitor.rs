//! Owns the last resort: a shell that outlives a test process which was itself
//! killed, and then kills the process groups that it left behind.
//!
//! A `Drop` does not run when somebody presses Ctrl-C or a CI job is cancelled.
//! The shell reads the groups from a pipe; when the pipe ends, it kills those
//! that were announced and not taken back.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

const SCRIPT: &str = r#"
trap '' INT TERM HUP
left=' '
while read -r verb group; do
    case $verb in
        add) left="$left$group " ;;
        forget) left="${left%% $group *} ${left#* $group }" ;;
    esac
done
for group in $left; do kill -KILL -- "-$group" 2>/dev/null; done
"#;

/// Announces a process group that must not outlive the tests.
pub(crate) fn watch(group: i32) {
    tell("add", group);
}

/// Takes it back: the group has ended.
pub(crate) fn forget(group: i32) {
    tell("forget", group);
}

#[expect(
    clippy::zombie_processes,
    reason = "the shell outlives this process; waiting for it would defeat its purpose"
)]
fn tell(verb: &str, group: i32) {
    static PIPE: OnceLock<Mutex<ChildStdin>> = OnceLock::new();
    let pipe = PIPE.get_or_init(|| {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("/bin/sh starts");
        Mutex::new(shell.stdin.take().expect("the pipe was asked for"))
    });
    let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(pipe, "{verb} {group}").expect("the janitor reads");
}
