//! Both ends against whatever the other one may send: packets of any content, torn messages, descriptors where none
//! belong, real processes that write rubbish or are killed in the middle.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use okdb_ipc::wire::{PACKET_BYTES_MAX, Side, encode, greeting};
use okdb_ipc::{Connection, Peer, ToPrimary, ToWorker, pair};
use okdb_sys::passing::{DESCRIPTORS_MAX, send};
use okdb_sys::spawn::{Child, Spawn};
use okdb_sys::{Signal, reap};
use proptest::prelude::*;

/// A packet from a stranger, and how many descriptors it brings.
type Packet = (Vec<u8>, usize);

fn null(count: usize) -> Vec<OwnedFd> {
    (0..count)
        .map(|_| File::open("/dev/null").unwrap().into())
        .collect()
}

/// Mostly what a speaker of the protocol could begin with, so that more than the first check is reached.
fn packet(from: Side) -> impl Strategy<Value = Packet> {
    let valid = match from {
        Side::Worker => [
            encode(&ToPrimary::Hello { pid: 1, slot: 2 }),
            encode(&ToPrimary::Ready),
            encode(&ToPrimary::Heartbeat { at_ms: 3 }),
        ],
        Side::Primary => [
            encode(&ToWorker::Config("{}".to_owned())),
            encode(&ToWorker::Adopt { slot: 4 }),
            encode(&ToWorker::Snapshot("x".repeat(300))),
        ],
    };
    let valid: Vec<Vec<u8>> = valid.into_iter().flat_map(Result::unwrap).collect();
    let bytes = prop_oneof![
        4 => proptest::sample::select(valid.clone()),
        // A piece that another one shall follow.
        2 => proptest::sample::select(valid.clone()).prop_map(|mut packet| { packet[0] = 1; packet }),
        2 => (proptest::sample::select(valid), any::<prop::sample::Index>(), any::<u8>()).prop_map(
            |(mut packet, at, byte)| { let at = at.index(packet.len()); packet[at] = byte; packet },
        ),
        1 => Just(greeting(from)),
        1 => proptest::collection::vec(any::<u8>(), 1..64),
        1 => (1..3usize).prop_map(|more| vec![1; PACKET_BYTES_MAX - 1 + more]),
    ];
    let descriptors = prop_oneof![8 => Just(0), 1 => 1..4usize, 1 => Just(DESCRIPTORS_MAX)];
    (bytes, descriptors)
}

fn packets(from: Side) -> impl Strategy<Value = Vec<Packet>> {
    let greeted = prop_oneof![9 => Just(true), 1 => Just(false)];
    (greeted, proptest::collection::vec(packet(from), 0..12)).prop_map(
        move |(greeted, mut packets)| {
            if greeted {
                packets.insert(0, (greeting(from), 0));
            }
            packets
        },
    )
}

/// Sends them all; the other side may have hung up.
fn put(socket: &OwnedFd, packets: &[Packet]) {
    for (bytes, descriptors) in packets {
        let _ = send(socket, bytes, &null(*descriptors));
    }
}

/// A descriptor, and what tells when its last duplicate is closed.
fn traced() -> (OwnedFd, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (ours.into(), theirs)
}

/// Waits for the last duplicate of a descriptor to be closed: it fails the test if that does not come about.
fn expect_closed(mut trace: UnixStream) {
    trace
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    assert_eq!(trace.read(&mut [0; 1]).unwrap(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_primary_survives_any_packets(packets in packets(Side::Worker)) {
        let (mut peer, theirs) = pair().unwrap();
        put(&theirs, &packets);
        drop(theirs);
        let mut messages = 0;
        loop {
            let (some, open) = peer.on_readable();
            messages += some.len();
            if !open {
                break;
            }
        }
        prop_assert!(messages <= packets.len());
        let _ = peer.send(&ToWorker::Drain { deadline_ms: 1 });
    }

    #[test]
    fn a_worker_survives_any_packets(packets in packets(Side::Primary)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let (peer, theirs) = pair().unwrap();
        let ours = peer.as_fd().try_clone_to_owned().unwrap();
        drop(peer);
        put(&ours, &packets);
        drop(ours);
        let brought = runtime.block_on(async {
            let mut worker = Connection::new(theirs).unwrap();
            let mut brought = Vec::new();
            while let Ok(Some(incoming)) = worker.next().await {
                brought.push(incoming);
            }
            brought
        });
        for incoming in brought {
            let adopts = matches!(incoming.message, ToWorker::Adopt { .. });
            prop_assert!(adopts || incoming.descriptors.is_empty());
        }
    }
}

#[tokio::test]
async fn what_a_primary_may_not_send_is_closed_with_the_connection() {
    let adopt = encode(&ToWorker::Adopt { slot: 1 }).unwrap().remove(0);
    let drain = encode(&ToWorker::Drain { deadline_ms: 1 })
        .unwrap()
        .remove(0);
    let hello = greeting(Side::Primary);
    let mut piece = drain.clone();
    piece[0] = 1;
    for (first, packet, surplus) in [
        // With the greeting, with another message, with a piece of a message, and too many.
        (None, &hello, 0),
        (Some(&hello), &drain, 0),
        (Some(&hello), &piece, 0),
        (Some(&hello), &adopt, DESCRIPTORS_MAX),
    ] {
        let (peer, theirs) = pair().unwrap();
        let ours = peer.as_fd().try_clone_to_owned().unwrap();
        drop(peer);
        if let Some(first) = first {
            send(&ours, first, &[]).unwrap();
        }
        let (descriptor, trace) = traced();
        if surplus == 0 {
            send(&ours, packet, &[descriptor]).unwrap();
        } else {
            send_many(&ours, packet, &descriptor, surplus);
            drop(descriptor);
        }
        let mut worker = Connection::new(theirs).unwrap();
        worker.next().await.unwrap_err();
        expect_closed(trace);
    }
}

/// As a stranger can: more at a time than our own function sends.
fn send_many(socket: &OwnedFd, packet: &[u8], descriptor: &OwnedFd, surplus: usize) {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use std::io::IoSlice;
    use std::os::fd::AsRawFd;
    let numbers = vec![descriptor.as_raw_fd(); surplus + 1];
    let rights = [ControlMessage::ScmRights(&numbers)];
    let data = [IoSlice::new(packet)];
    sendmsg::<()>(socket.as_raw_fd(), &data, &rights, MsgFlags::empty(), None).unwrap();
}

#[test]
fn what_a_worker_sends_along_is_closed() {
    let (mut peer, theirs) = pair().unwrap();
    let (descriptor, trace) = traced();
    send(&theirs, &greeting(Side::Worker), &[descriptor]).unwrap();
    assert_eq!(peer.on_readable(), (vec![], true));
    expect_closed(trace);
}

/// A shell that has the worker's end as its descriptor 3, and the primary's end.
fn worker_that_runs(script: &str) -> (Peer, Child) {
    let (peer, theirs) = pair().unwrap();
    send(&theirs, &greeting(Side::Worker), &[]).unwrap();
    let child = Spawn::new("/bin/sh")
        .arg("-c")
        .arg(script)
        .pass_fd(theirs.as_fd(), 3)
        .discard_stdout()
        .death_signal(Signal::Kill)
        .start()
        .unwrap();
    (peer, child)
}

/// Listens until nothing can follow.
fn listen(peer: &mut Peer) -> Vec<ToPrimary> {
    let mut all = Vec::new();
    loop {
        let mut fds = [PollFd::new(peer.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::NONE);
        let (messages, open) = peer.on_readable();
        all.extend(messages);
        if !open {
            return all;
        }
    }
}

#[test]
fn a_worker_that_writes_rubbish_is_hung_up_on() {
    // Noise; then pieces of a message that never ends, which would otherwise fill our memory.
    for script in [
        "exec cat /dev/urandom >&3",
        "one=$(printf '\\001'); exec yes \"$one$one$one\" >&3",
    ] {
        let (mut peer, child) = worker_that_runs(script);
        // Most noise is refused at once, and what is not must be short messages.
        assert!(listen(&mut peer).len() < 64);
        drop(peer);
        // Nobody listens any more: the pipe breaks.
        let ended = child.identity.wait_end(Duration::from_secs(60)).unwrap();
        assert!(ended);
        reap::wait(child.identity.pid).unwrap();
    }
}

#[test]
fn a_worker_that_is_killed_inside_a_message_has_not_said_it() {
    let script = "printf '\\000\\001' >&3; printf '\\001\\002\\377\\377' >&3; kill -KILL $$";
    let (mut peer, child) = worker_that_runs(script);
    assert_eq!(listen(&mut peer), [ToPrimary::Ready]);
    reap::wait(child.identity.pid).unwrap();
}
