//! What a manager hears, over a real datagram socket.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use proptest::prelude::*;

use super::{Notifier, PINGS_A_PERIOD, STATUS_BYTES_MAX, WAITING_MAX, one_line};

const ME: u32 = 4242;

/// A lookup in a made-up environment.
fn env(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
    let pairs: BTreeMap<String, OsString> = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), OsString::from(value)))
        .collect();
    move |name: &str| pairs.get(name).cloned()
}

/// A manager's socket in a folder of its own, and a notifier that talks to it.
fn manager() -> (tempfile::TempDir, UnixDatagram, Notifier) {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("bind");
    socket.set_nonblocking(true).expect("non-blocking");
    let notifier = Notifier::from_env(env(&[("NOTIFY_SOCKET", path.to_str().expect("UTF-8"))]), ME);
    (folder, socket, notifier)
}

fn heard(socket: &UnixDatagram) -> Option<String> {
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).ok()?;
    Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

#[test]
fn a_life_is_told_in_order() {
    let (_folder, socket, notifier) = manager();
    assert!(notifier.is_connected());
    notifier.ready("4 workers");
    notifier.status("4 workers, 10 writes/s");
    notifier.ping();
    notifier.reloading(Duration::from_micros(1_234_567));
    notifier.ready("reloaded");
    notifier.extend_timeout(Duration::from_secs(5));
    notifier.stopping();
    let all: Vec<String> = std::iter::from_fn(|| heard(&socket)).collect();
    assert_eq!(
        all,
        [
            "READY=1\nSTATUS=4 workers",
            "STATUS=4 workers, 10 writes/s",
            "WATCHDOG=1",
            "RELOADING=1\nMONOTONIC_USEC=1234567\nSTATUS=reloading",
            "READY=1\nSTATUS=reloaded",
            "EXTEND_TIMEOUT_USEC=5000000",
            "STOPPING=1\nSTATUS=stopping",
        ]
    );
}

#[test]
fn an_abstract_address_works_too() {
    let name = format!("okdb-notify-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("address");
    let socket = UnixDatagram::bind_addr(&address).expect("bind");
    let notifier = Notifier::from_env(env(&[("NOTIFY_SOCKET", &format!("@{name}"))]), ME);
    notifier.ready("here");
    assert_eq!(heard(&socket).as_deref(), Some("READY=1\nSTATUS=here"));
}

#[test]
fn without_a_manager_nothing_happens() {
    for pairs in [
        &[][..],
        &[("NOTIFY_SOCKET", "")],
        &[("NOTIFY_SOCKET", "relative/path")],
        &[("NOTIFY_SOCKET", "vsock:2:1234")],
        // Longer than a socket's path can be.
        &[("NOTIFY_SOCKET", &format!("/{}", "x".repeat(200)))],
        &[("WATCHDOG_USEC", "1000000")],
    ] {
        let notifier = Notifier::from_env(env(pairs), ME);
        assert!(!notifier.is_connected(), "{pairs:?}");
        assert_eq!(notifier.watchdog_interval(), None, "{pairs:?}");
        notifier.ready("nobody hears");
        notifier.ping();
        notifier.retry();
        notifier.stopping();
    }
}

#[test]
fn a_manager_that_is_gone_harms_nobody_and_hears_the_news_when_it_is_back() {
    let (folder, socket, notifier) = manager();
    drop(socket);
    let path = folder.path().join("notify");
    std::fs::remove_file(&path).expect("remove");
    notifier.ready("nobody hears");
    notifier.ping();
    let socket = UnixDatagram::bind(&path).expect("bind");
    socket.set_nonblocking(true).expect("non-blocking");
    notifier.retry();
    assert_eq!(
        heard(&socket).as_deref(),
        Some("READY=1\nSTATUS=nobody hears")
    );
    assert_eq!(heard(&socket), None, "a late ping says nothing");
}

#[test]
fn a_full_queue_delays_the_news_but_neither_blocks_nor_loses_it() {
    let (_folder, socket, notifier) = manager();
    // The kernel's bound on a queue is a few hundred datagrams or a few hundred KiB, whichever comes first.
    for _ in 0..100_000 {
        notifier.ping();
    }
    notifier.ready("late");
    notifier.status("dropped");
    notifier.stopping();
    while let Some(message) = heard(&socket) {
        assert_eq!(message, "WATCHDOG=1");
    }
    notifier.ping();
    let all: Vec<String> = std::iter::from_fn(|| heard(&socket)).collect();
    assert_eq!(
        all,
        [
            "READY=1\nSTATUS=late",
            "STOPPING=1\nSTATUS=stopping",
            "WATCHDOG=1"
        ]
    );
}

#[test]
fn what_waits_is_bounded_and_the_newest_stays() {
    let (folder, socket, notifier) = manager();
    drop(socket);
    let path = folder.path().join("notify");
    for number in 0..100 {
        notifier.ready(&number.to_string());
    }
    std::fs::remove_file(&path).expect("remove");
    let socket = UnixDatagram::bind(&path).expect("bind");
    socket.set_nonblocking(true).expect("non-blocking");
    notifier.retry();
    let all: Vec<String> = std::iter::from_fn(|| heard(&socket)).collect();
    assert_eq!(all.len(), WAITING_MAX);
    assert_eq!(all.last().map(String::as_str), Some("READY=1\nSTATUS=99"));
}

#[test]
fn the_watchdog_is_only_for_the_process_that_it_names() {
    let (folder, _socket, _) = manager();
    let path = folder.path().join("notify");
    let path = path.to_str().expect("UTF-8");
    let interval = |usec: &str, pid: Option<&str>| {
        let mut pairs = vec![("NOTIFY_SOCKET", path), ("WATCHDOG_USEC", usec)];
        pairs.extend(pid.map(|pid| ("WATCHDOG_PID", pid)));
        Notifier::from_env(env(&pairs), ME).watchdog_interval()
    };
    let third = Duration::from_secs(30) / PINGS_A_PERIOD;
    assert_eq!(interval("30000000", Some("4242")), Some(third));
    assert_eq!(interval("30000000", None), Some(third));
    assert_eq!(interval("30000000", Some("1")), None);
    assert_eq!(interval("30000000", Some("me")), None);
    assert_eq!(interval("0", None), None);
    assert_eq!(interval("often", None), None);
    assert_eq!(interval("-1", None), None);
    assert!(interval(&u64::MAX.to_string(), None).is_some());
}

proptest! {
    #[test]
    fn no_status_can_be_taken_for_another_assignment(text in any::<String>(), again in 0..20_usize) {
        let text = text.repeat(again);
        let line = one_line(&text);
        prop_assert!(line.len() <= STATUS_BYTES_MAX);
        prop_assert!(!line.contains(char::is_control));
        if text.len() <= STATUS_BYTES_MAX && !text.contains(char::is_control) {
            prop_assert_eq!(line, text);
        }
    }
}
