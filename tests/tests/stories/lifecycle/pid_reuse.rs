//! Pids that now belong to somebody else: a stale pid in the root must neither
//! block a start nor cost a stranger its life.
//!
//! In a pid namespace, where the next pid can be chosen. Where the kernel does
//! not allow one, the story says so and ends.

use std::process::Command;

use okdb_tests::binary;
use okdb_tests::server::{Place, clean_environment};

/// Serves, kills everything, gives each old pid to a `sleep`, serves again.
const SCRIPT: &str = r#"
set -eu
serve() {
    "$OKDB" --root "$ROOT" --listen 127.0.0.1:0 --workers 2 2> "$1" &
    primary=$!
    for _ in $(seq 400); do
        if grep -q 'okdb ready' "$1"; then return; fi
        sleep 0.05
    done
    cat "$1"; echo 'never ready'; exit 1
}
serve first.log
workers=$(cat /proc/$primary/task/$primary/children)
kill -9 $primary $workers
for pid in $primary $workers; do
    while [ -e /proc/$pid ]; do wait -n || true; sleep 0.01; done
done
strangers=
for pid in $primary $workers; do
    echo $((pid - 1)) > /proc/sys/kernel/ns_last_pid
    sleep 1000 &
    if [ $! != $pid ]; then echo "pid $! instead of $pid"; exit 7; fi
    strangers="$strangers $!"
done
serve second.log
for pid in $strangers; do
    if [ "$(cat /proc/$pid/comm)" != sleep ]; then echo "$pid is gone"; exit 1; fi
done
kill -TERM $primary
wait $primary
for pid in $strangers; do
    if [ "$(cat /proc/$pid/comm)" != sleep ]; then echo "$pid is gone"; exit 1; fi
done
echo 'all is well'
"#;

#[test]
fn who_has_an_old_pid_now_is_left_alone_and_blocks_nothing() {
    let place = Place::new();
    let mut command = Command::new("unshare");
    clean_environment(&mut command);
    command
        .args(["-rpf", "--mount-proc", "--kill-child", "bash", "-c", SCRIPT])
        .env("OKDB", binary::okdb())
        .env("ROOT", place.root())
        .current_dir(place.path("."));
    let done = command.output().expect("unshare");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    if !done.status.success() && said.contains("unshare") {
        println!("no such namespaces here: not told");
        return;
    }
    // Another process took the pid in between: nothing was shown.
    if done.status.code() == Some(7) {
        println!("{said}: not told");
        return;
    }
    assert!(said.contains("all is well"), "{said}");
}
