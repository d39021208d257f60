//! Descriptors that arrive in a process which may not open any more. A binary of its own: the limit is the process's.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use okdb_sys::passing::{receive, send};

/// How many arrive of those that are sent.
const ROOM: u64 = 3;

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").expect("/proc").count()
}

#[test]
fn what_does_not_fit_is_missed_and_nothing_leaks() {
    let (ours, theirs) = UnixDatagram::pair().expect("a pair");
    let sent: Vec<OwnedFd> = (0..8)
        .map(|_| File::open("/dev/null").expect("open").into())
        .collect();
    let highest = sent.iter().map(AsRawFd::as_raw_fd).max().expect("some");
    let before = open_files();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    for _ in 0..20 {
        send(&ours, b"packet", &sent).expect("send");
        let limit = u64::try_from(highest).expect("a number") + 1 + ROOM;
        setrlimit(Resource::RLIMIT_NOFILE, limit, hard).expect("a lower limit");
        let packet = receive(&theirs, &mut [0; 16]).expect("receive");
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("the old limit");
        assert_eq!(packet.length, 6);
        assert!(packet.missing && !packet.truncated);
        assert!(packet.descriptors.len() < sent.len());
    }
    assert_eq!(open_files(), before);
    // With room again, all arrive.
    send(&ours, b"packet", &sent).expect("send");
    let packet = receive(&theirs, &mut [0; 16]).expect("receive");
    assert!(!packet.missing);
    assert_eq!(packet.descriptors.len(), sent.len());
}
