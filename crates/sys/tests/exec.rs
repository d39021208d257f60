//! A process that becomes another program: what crosses, and what does not. The processes are this test binary again.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use okdb_sys::exec::{Exec, memory_file, read_memory_file};
use okdb_sys::fd::set_cloexec;
use okdb_sys::signals::{Signals, unblock_all};
use okdb_sys::spawn::{Spawn, take_inherited_fd};
use okdb_sys::{Identity, Signal, reap};

const ROLE: &str = "OKDB_EXEC_TEST";
const ARGUMENTS: [&str; 4] = ["process_main", "--exact", "--nocapture", "--test-threads=1"];

fn tell(line: &str) {
    writeln!(std::io::stdout(), "okdb-test: {line}").expect("write");
}

/// Not a test of its own: the entry point of the processes that the test starts.
#[test]
fn process_main() {
    match std::env::var(ROLE).as_deref() {
        Ok("first") => first(),
        Ok("before") => before(),
        Ok(numbers) => after(numbers),
        Err(_) => {}
    }
}

/// Becomes itself once more: the threads of a program that begins with all signals blocked are deaf, the test harness's
/// as well.
fn first() {
    let error = Exec::new(std::env::current_exe().expect("this program"))
        .args(ARGUMENTS)
        .env(ROLE, "before")
        .run();
    panic!("not replaced: {error}");
}

fn before() {
    let child = Spawn::new("/bin/sleep")
        .args(["600"])
        .death_signal(Signal::Kill)
        .start()
        .expect("a child");
    let kept = memory_file("kept", b"what was written before").expect("a file");
    let left = memory_file("left", b"nobody's").expect("a file");
    let open = memory_file("open", b"opened carelessly").expect("a file");
    set_cloexec(&open, false).expect("fcntl");
    let mut signals = Signals::install(&[Signal::Term]).expect("signals");
    // As if it came in the last moment: nobody takes it any more in this program.
    let me = Identity::current().expect("/proc");
    me.signal(Signal::Term).expect("signal");
    assert_eq!(signals.drain(), []);
    let numbers = format!(
        "{} {} {} {} {}",
        std::process::id(),
        child.identity.pid,
        kept.as_raw_fd(),
        left.as_raw_fd(),
        open.as_raw_fd()
    );
    let program = std::env::current_exe().expect("this program");
    let error = Exec::new(program)
        .args(ARGUMENTS)
        .env(ROLE, numbers)
        .keep(kept.as_fd())
        .run();
    drop(signals);
    panic!("not replaced: {error}");
}

fn after(numbers: &str) {
    let numbers: Vec<u32> = numbers
        .split(' ')
        .map(|number| number.parse().expect("a number"))
        .collect();
    let [pid, child, kept, left, open] = numbers[..] else {
        panic!("five numbers");
    };
    assert_eq!(pid, std::process::id(), "the pid stays");
    // What was sent to the old program, and what is sent before this one has taken signals over.
    let me = Identity::current().expect("/proc");
    me.signal(Signal::Usr1).expect("signal");
    let mut signals = Signals::install(&[Signal::Usr1, Signal::Term]).expect("signals");
    assert_eq!(signals.drain(), []);
    unblock_all().expect("signals");
    let mut heard = signals.drain();
    heard.sort_by_key(|signal| signal.number());
    assert_eq!(heard, [Signal::Usr1, Signal::Term]);

    let number = |number: u32| RawFd::try_from(number).expect("a number");
    let kept = take_inherited_fd(number(kept)).expect("the kept descriptor");
    assert_eq!(
        read_memory_file(kept).expect("read"),
        b"what was written before"
    );
    for closed in [left, open] {
        take_inherited_fd(number(closed)).expect_err("closed on the way");
    }

    let child = Identity::of(child).expect("a child");
    assert!(child.is_alive(), "its parent lives, so it does");
    child.signal(Signal::Kill).expect("it is our child");
    assert!(child.wait_end(Duration::from_secs(60)).expect("wait"));
    let exit = reap::try_wait(child.pid).expect("it is still ours");
    assert!(matches!(exit, Some(reap::Exit::Signal { .. })), "{exit:?}");
    tell("all is well");
}

#[test]
fn the_next_program_has_the_pid_the_children_and_what_was_kept() {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(ARGUMENTS)
        .env(ROLE, "first")
        .stdin(Stdio::null())
        .output()
        .expect("a process");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("okdb-test: all is well"), "{output:?}");
}
