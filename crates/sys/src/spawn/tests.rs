//! Tests of [`super`], with real children: shells, and this test binary started again.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use super::*;
use crate::reap::{self, Exit};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Everything that comes through a non-blocking pipe until its other end closes.
fn read_all(fd: OwnedFd) -> String {
    set_nonblocking(&fd, false).unwrap();
    let mut text = String::new();
    File::from(fd).read_to_string(&mut text).unwrap();
    text
}

/// Starts `test` of this binary, which must be ignored in ordinary runs, as a child.
fn again<'fd>(test: &str) -> Spawn<'fd> {
    Spawn::current_exe("okdb-sys-test")
        .args([
            "--exact",
            test,
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .discard_stdout()
}

#[test]
fn standard_error_is_piped_and_the_exit_is_reaped() {
    let child = Spawn::new("/bin/sh")
        .args(["-c", "echo one >&2; echo two >&2; exit 3"])
        .pipe_stderr()
        .start()
        .unwrap();
    assert_eq!(read_all(child.stderr.unwrap()), "one\ntwo\n");
    assert_eq!(reap::wait(child.identity.pid).unwrap(), Exit::Code(3));
}

#[test]
fn a_missing_program_is_an_error_even_with_descriptors_passed() {
    let file = tempfile::tempfile().unwrap();
    // Ten low numbers: among them is the one that the report of the failed exec would have had.
    let spawn = (INHERITED_FD_MIN..13).fold(Spawn::new("/nonexistent/okdb"), |spawn, target| {
        spawn.pass_fd(file.as_fd(), target)
    });
    assert_eq!(spawn.start().unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn descriptors_arrive_under_their_numbers_and_swap() {
    let mut files = Vec::new();
    for text in ["first", "second"] {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        files.push(file);
    }
    // Each source's own number is the other's target.
    let numbers: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let child = Spawn::new("/bin/sh")
        .arg("-c")
        .arg(format!(
            "cat <&{} >&2; echo >&2; cat <&{} >&2",
            numbers[0], numbers[1]
        ))
        .pass_fd(files[0].as_fd(), numbers[1])
        .pass_fd(files[1].as_fd(), numbers[0])
        .pipe_stderr()
        .start()
        .unwrap();
    assert_eq!(read_all(child.stderr.unwrap()), "second\nfirst");
    reap::wait(child.identity.pid).unwrap();
}

#[test]
fn nothing_else_is_inherited() {
    let file = tempfile::tempfile().unwrap();
    // A descriptor such as a careless parent or library leaves behind.
    let stray = tempfile::tempfile().unwrap();
    crate::fd::set_cloexec(&stray, false).unwrap();
    let child = Spawn::new("/bin/sleep")
        .arg("1000")
        .pass_fd(file.as_fd(), 40)
        .start()
        .unwrap();
    let open = || {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", child.identity.pid)).unwrap();
        let mut numbers: Vec<u32> = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers
    };
    // What the loader and the C library open for themselves goes away; what was inherited stays.
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut seen = open();
    while seen != [0, 1, 2, 40] && Instant::now() < deadline {
        std::thread::yield_now();
        seen = open();
    }
    child.identity.signal(Signal::Kill).unwrap();
    reap::wait(child.identity.pid).unwrap();
    assert_eq!(seen, [0, 1, 2, 40]);
}

#[test]
fn standard_and_repeated_targets_are_refused() {
    let file = tempfile::tempfile().unwrap();
    for targets in [[2, 50], [50, 50]] {
        let error = Spawn::new("/bin/true")
            .pass_fd(file.as_fd(), targets[0])
            .pass_fd(file.as_fd(), targets[1])
            .start()
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn the_service_managers_variables_are_recognised() {
    for name in [
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
        "LISTEN_FDS",
        "LISTEN_PID",
    ] {
        assert!(is_managers(OsStr::new(name)), "{name}");
    }
    for name in ["NOTIFY_SOCKET_2", "LISTEN", "OKDB_LISTEN_FDS", ""] {
        assert!(!is_managers(OsStr::new(name)), "{name}");
    }
}

#[test]
fn the_child_takes_what_it_inherited_once() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let child = again("spawn::tests::child_takes_descriptor")
        .pass_fd(theirs.as_fd(), 30)
        .env("OKDB_SYS_TEST_FD", "30")
        .start()
        .unwrap();
    drop(theirs);
    let mut text = String::new();
    ours.read_to_string(&mut text).unwrap();
    assert_eq!(reap::wait(child.identity.pid).unwrap(), Exit::Code(0));
    assert_eq!(text, "taken");
}

#[test]
#[ignore = "the child's side of the_child_takes_what_it_inherited_once"]
fn child_takes_descriptor() {
    let number = std::env::var("OKDB_SYS_TEST_FD").unwrap().parse().unwrap();
    let mut stream = UnixStream::from(take_inherited_fd(number).unwrap());
    let again = take_inherited_fd(number).unwrap_err();
    assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    stream.write_all(b"taken").unwrap();
}

#[test]
fn what_was_not_inherited_is_not_taken() {
    let file = tempfile::tempfile().unwrap();
    let own = take_inherited_fd(file.as_raw_fd()).unwrap_err();
    assert_eq!(own.kind(), io::ErrorKind::AlreadyExists);
    let standard = take_inherited_fd(1).unwrap_err();
    assert_eq!(standard.kind(), io::ErrorKind::InvalidInput);
    let closed = take_inherited_fd(10_000).unwrap_err();
    assert_eq!(closed.kind(), io::ErrorKind::NotFound);
}

#[test]
fn blocked_and_handled_signals_do_not_reach_the_child() {
    // The handler of this process must not swallow what the child is sent.
    let _signals = crate::signals::Signals::install(&[Signal::Term]).unwrap();
    for _ in 0..20 {
        let child = Spawn::new("/bin/sleep").arg("1000").start().unwrap();
        child.identity.signal(Signal::Term).unwrap();
        let exit = reap::wait(child.identity.pid).unwrap();
        let term = Signal::Term.number();
        assert!(
            matches!(exit, Exit::Signal { number, .. } if number == term),
            "{exit}"
        );
    }
}

#[test]
fn the_death_signal_fires_when_the_forking_thread_ends() {
    let child = std::thread::spawn(|| {
        Spawn::new("/bin/sleep")
            .arg("1000")
            .death_signal(Signal::Kill)
            .start()
            .unwrap()
    })
    .join()
    .unwrap();
    assert!(child.identity.wait_end(Duration::from_secs(60)).unwrap());
    let exit = reap::wait(child.identity.pid).unwrap();
    assert!(matches!(exit, Exit::Signal { number: 9, .. }), "{exit}");
}

#[test]
fn a_child_of_a_dead_parent_does_not_come_to_life() {
    let error = arrange_death(Some(Signal::Kill.number()), -1).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    // Undone at once, since it would end this test process with its thread's starter.
    // SAFETY: this option of prctl takes one integer and touches no memory of ours.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
}

#[test]
fn a_thread_has_a_short_name() {
    std::thread::spawn(|| {
        set_short_name("okdb: a long name").unwrap();
        let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        assert_eq!(name.trim_end(), "okdb: a long na");
    })
    .join()
    .unwrap();
    assert!(set_short_name("a\0b").is_err());
}
