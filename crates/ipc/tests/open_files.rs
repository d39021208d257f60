//! A worker that may not open any more files is given listeners. A binary of its own: the limit is the process's.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use okdb_ipc::{Connection, ToWorker, pair};

fn null(count: usize) -> Vec<OwnedFd> {
    (0..count)
        .map(|_| File::open("/dev/null").unwrap().into())
        .collect()
}

#[tokio::test]
async fn listeners_that_it_cannot_take_are_left_to_the_others() {
    let (mut peer, theirs) = pair().unwrap();
    let mut worker = Connection::new(theirs).unwrap();
    let highest = null(1)[0].as_raw_fd();
    peer.send_with(&ToWorker::Adopt { slot: 1 }, null(8))
        .unwrap();
    peer.send(&ToWorker::Drain { deadline_ms: 1 }).unwrap();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();

    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let limit = u64::try_from(highest).unwrap() + 3;
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
    let incoming = worker.next().await;
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();

    let incoming = incoming.unwrap().unwrap();
    assert_eq!(incoming.message, ToWorker::Drain { deadline_ms: 1 });
    assert_eq!(open(), before, "those that came are closed");
    // It is asked again later, and has room.
    peer.send_with(&ToWorker::Adopt { slot: 1 }, null(8))
        .unwrap();
    assert_eq!(worker.next().await.unwrap().unwrap().descriptors.len(), 8);
}
