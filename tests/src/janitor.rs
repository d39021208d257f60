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
for group in $left; do kill -s KILL -- "-$group" 2>/dev/null; done
"#;

/// Announces a process group that must not outlive the tests.
pub(crate) fn watch(group: i32) {
    tell("add", group);
}

/// Takes it back: the group has ended.
pub(crate) fn forget(group: i32) {
    tell("forget", group);
}

fn tell(verb: &str, group: i32) {
    static PIPE: OnceLock<Mutex<ChildStdin>> = OnceLock::new();
    let pipe = PIPE.get_or_init(|| Mutex::new(hire()));
    let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(pipe, "{verb} {group}").expect("the janitor reads");
}

/// Starts the shell; the pipe it reads from.
#[expect(
    clippy::zombie_processes,
    reason = "the shell outlives this process; waiting for it would defeat its purpose"
)]
fn hire() -> ChildStdin {
    let mut shell = Command::new("/bin/sh")
        .args(["-c", SCRIPT])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("/bin/sh starts");
    shell.stdin.take().expect("the pipe was asked for")
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use crate::wait::{SOON, wait_until};

    #[test]
    fn at_the_end_of_the_pipe_what_was_not_taken_back_is_killed() {
        let mut sleepers = [(); 3].map(|()| {
            Command::new("sleep")
                .arg("600")
                .process_group(0)
                .spawn()
                .expect("sleep starts")
        });
        let mut pipe = super::hire();
        for sleeper in &sleepers {
            writeln!(pipe, "add {}", sleeper.id()).expect("it reads");
        }
        writeln!(pipe, "forget {}", sleepers[1].id()).expect("it reads");
        drop(pipe);
        let [first, spared, last] = &mut sleepers;
        for sleeper in [first, last] {
            wait_until("the end of a sleeper", SOON, || {
                sleeper.try_wait().expect("it is ours").is_some()
            });
        }
        assert!(spared.try_wait().expect("it is ours").is_none());
        spared.kill().expect("it runs");
        spared.wait().expect("it is ours");
    }
}
