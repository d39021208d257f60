//! Tests of [`super`] against the other end of its socket, and against a worker's [`Connection`].

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use super::*;
use crate::connection::Connection;
use crate::socket::Received;
use crate::wire::{MESSAGE_BYTES_MAX, PACKET_BYTES_MAX};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Everything that waits in `socket`, as a worker would understand it.
fn read_all(socket: &OwnedFd, decoder: &mut Decoder<ToWorker>) -> Vec<ToWorker> {
    let mut buffer = Buffer::new();
    let mut messages = Vec::new();
    while let Received::Packet(length) = try_receive(socket, &mut buffer).unwrap() {
        messages.extend(decoder.push(buffer.packet(length)).unwrap());
    }
    messages
}

/// Sends a packet as a worker would; tells whether the socket took it.
fn put(socket: &OwnedFd, packet: &[u8]) -> bool {
    try_send(socket, packet, &[]).unwrap() == Sent::Taken
}

fn snapshot(mark: char, bytes: usize) -> ToWorker {
    ToWorker::Snapshot(std::iter::repeat_n(mark, bytes).collect())
}

fn drain(deadline_ms: u64) -> ToWorker {
    ToWorker::Drain { deadline_ms }
}

/// The next message, which brings nothing.
async fn next(worker: &mut Connection) -> Option<ToWorker> {
    let incoming = worker.next().await.unwrap()?;
    assert!(incoming.descriptors.is_empty());
    Some(incoming.message)
}

#[test]
fn a_worker_that_does_not_read_gets_the_latest_snapshot_and_every_control_message() {
    let (mut peer, theirs) = pair().unwrap();
    peer.send(&ToWorker::Config("{}".to_owned())).unwrap();
    // More than a socket buffer holds, so that the rest waits here.
    for mark in ['a', 'b', 'c', 'd'] {
        peer.send(&snapshot(mark, 1 << 20)).unwrap();
        peer.send(&drain(1)).unwrap();
    }
    assert!(peer.wants_write());
    let mut decoder = Decoder::new(Side::Primary);
    let mut messages = Vec::new();
    while peer.wants_write() {
        messages.extend(read_all(&theirs, &mut decoder));
        peer.on_writable().unwrap();
    }
    messages.extend(read_all(&theirs, &mut decoder));
    let marks: String = messages
        .iter()
        .map(|message| match message {
            ToWorker::Config(_) => 'C',
            ToWorker::Drain { .. } => 'D',
            ToWorker::Snapshot(json) => json.chars().next().unwrap(),
            ToWorker::Adopt { .. } | ToWorker::Release { .. } => panic!("{message:?}"),
        })
        .collect();
    // The first was under way already; of the others, only the last is left, in its place.
    assert_eq!(marks, "CaDDDdD");
}

#[test]
fn a_worker_that_never_reads_is_given_up_in_the_end() {
    let (mut peer, _theirs) = pair().unwrap();
    peer.send(&snapshot('x', MESSAGE_BYTES_MAX / 2)).unwrap();
    let error = (0..=CONTROL_QUEUE_MAX)
        .find_map(|n| peer.send(&drain(n as u64)).err())
        .unwrap();
    assert!(matches!(error, SendError::Backlog), "{error}");
}

#[test]
fn of_each_slot_only_the_last_word_waits_and_of_none_is_it_left_out() {
    const SLOTS: u16 = 300;
    let (mut peer, theirs) = pair().unwrap();
    peer.send(&snapshot('x', MESSAGE_BYTES_MAX / 2)).unwrap();
    let before = open_files();
    for round in 0..10u16 {
        for slot in 0..SLOTS {
            if (round + slot) % 2 == 0 {
                let adopt = ToWorker::Adopt { slot };
                peer.send_with(&adopt, some_descriptors(1)).unwrap();
            } else {
                peer.send(&ToWorker::Release { slot }).unwrap();
            }
        }
    }
    // Half of the slots have one here. (Other tests open and close some meanwhile.)
    assert!(open_files() < before + usize::from(SLOTS));
    let mut decoder = Decoder::new(Side::Primary);
    let mut messages = Vec::new();
    while peer.wants_write() {
        messages.extend(read_all(&theirs, &mut decoder));
        peer.on_writable().unwrap();
    }
    messages.extend(read_all(&theirs, &mut decoder));
    let last: Vec<ToWorker> = (0..SLOTS)
        .map(|slot| match (9 + slot) % 2 {
            0 => ToWorker::Adopt { slot },
            _ => ToWorker::Release { slot },
        })
        .collect();
    assert!(messages[1..] == last);
}

#[test]
fn a_message_that_is_too_large_leaves_the_connection_as_it_was() {
    let (mut peer, theirs) = pair().unwrap();
    let error = peer.send(&snapshot('x', MESSAGE_BYTES_MAX)).unwrap_err();
    assert!(matches!(error, SendError::Wire(_)), "{error}");
    peer.send(&drain(7)).unwrap();
    let messages = read_all(&theirs, &mut Decoder::new(Side::Primary));
    assert_eq!(messages, [drain(7)]);
}

#[test]
fn a_dead_worker_is_noticed_by_both_directions() {
    let (mut peer, theirs) = pair().unwrap();
    let (_, open) = peer.on_readable();
    assert!(open);
    drop(theirs);
    assert!(matches!(peer.send(&drain(1)), Err(SendError::Closed)));
    assert_eq!(peer.on_readable(), (vec![], false));
}

#[test]
fn the_last_words_of_a_worker_arrive_and_half_a_message_does_not() {
    let (mut peer, theirs) = pair().unwrap();
    let bye = encode(&ToPrimary::Bye).unwrap().remove(0);
    for packet in [greeting(Side::Worker), bye, vec![1, 0, 0]] {
        assert!(put(&theirs, &packet));
    }
    drop(theirs);
    assert_eq!(peer.on_readable(), (vec![ToPrimary::Bye], false));
}

#[test]
fn what_is_not_understood_ends_the_connection() {
    for garbage in [
        vec![0; 10],
        vec![0; PACKET_BYTES_MAX + 1],
        greeting(Side::Primary),
    ] {
        let (mut peer, theirs) = pair().unwrap();
        assert!(put(&theirs, &garbage));
        assert_eq!(peer.on_readable(), (vec![], false));
    }
}

#[test]
fn a_worker_that_talks_without_end_gets_one_turn_at_a_time() {
    let (mut peer, theirs) = pair().unwrap();
    assert!(put(&theirs, &greeting(Side::Worker)));
    let packet = encode(&ToPrimary::Ready).unwrap().remove(0);
    while put(&theirs, &packet) {}
    let (messages, open) = peer.on_readable();
    assert_eq!((messages.len(), open), (TURN_PACKETS_MAX - 1, true));
}

/// Runs the primary's side until `until` says that it has heard enough.
fn serve(mut peer: Peer, mut until: impl FnMut(&mut Peer, ToPrimary) -> bool) -> Peer {
    loop {
        let mut events = PollFlags::POLLIN;
        events.set(PollFlags::POLLOUT, peer.wants_write());
        let mut fds = [PollFd::new(peer.as_fd(), events)];
        poll(&mut fds, PollTimeout::NONE).unwrap();
        peer.on_writable().unwrap();
        let (messages, open) = peer.on_readable();
        for message in messages {
            if until(&mut peer, message) {
                return peer;
            }
        }
        assert!(open, "the worker left too early");
    }
}

#[tokio::test]
async fn a_primary_and_a_worker_talk() {
    let (peer, theirs) = pair().unwrap();
    let config = ToWorker::Config("{\"a\": \"\u{2028}\\n\"}".to_owned());
    let large = snapshot('s', 1 << 20);
    let (answer, sent) = (config.clone(), large.clone());
    let primary = std::thread::spawn(move || {
        let peer = serve(peer, |peer, message| match message {
            ToPrimary::Hello { pid: 1, slot: 2 } => {
                peer.send(&answer).unwrap();
                peer.send(&sent).unwrap();
                false
            }
            ToPrimary::Ready | ToPrimary::Heartbeat { .. } => false,
            ToPrimary::Bye => true,
            hello @ ToPrimary::Hello { .. } => panic!("{hello:?}"),
        });
        drop(peer);
    });
    let mut worker = Connection::new(theirs).unwrap();
    let hello = ToPrimary::Hello { pid: 1, slot: 2 };
    worker.send(&hello).await.unwrap();
    assert_eq!(next(&mut worker).await, Some(config));
    worker.send(&ToPrimary::Ready).await.unwrap();
    assert!(worker.try_send(&ToPrimary::Heartbeat { at_ms: 5 }).unwrap());
    assert!(next(&mut worker).await == Some(large));
    worker.send(&ToPrimary::Bye).await.unwrap();
    assert_eq!(next(&mut worker).await, None);
    let error = worker.send(&ToPrimary::Bye).await.unwrap_err();
    assert!(matches!(error, SendError::Closed), "{error}");
    primary.join().unwrap();
}

#[tokio::test]
async fn a_primary_that_does_not_read_costs_heartbeats_only() {
    let (peer, theirs) = pair().unwrap();
    let mut worker = Connection::new(theirs).unwrap();
    let mut sent = 0;
    while worker
        .try_send(&ToPrimary::Heartbeat { at_ms: sent })
        .unwrap()
    {
        sent += 1;
    }
    assert!(sent > 0);
    assert!(
        !worker
            .try_send(&ToPrimary::Heartbeat { at_ms: sent })
            .unwrap()
    );
    let primary = std::thread::spawn(move || {
        let mut next = 0;
        serve(peer, |_, message| match message {
            ToPrimary::Heartbeat { at_ms } => {
                assert_eq!(at_ms, next);
                next += 1;
                false
            }
            message => {
                assert_eq!(message, ToPrimary::Bye);
                assert_eq!(next, sent, "each one that was accepted, and no other");
                true
            }
        })
    });
    worker.send(&ToPrimary::Bye).await.unwrap();
    drop(primary.join().unwrap());
}

#[tokio::test]
async fn giving_up_on_the_next_message_loses_nothing() {
    let (mut peer, theirs) = pair().unwrap();
    let mut worker = Connection::new(theirs).unwrap();
    peer.send(&drain(1)).unwrap();
    for _ in 0..3 {
        // A turn that ends at once, however far it got.
        tokio::select! {
            biased;
            () = std::future::ready(()) => {}
            message = worker.next() => panic!("{message:?}"),
        }
    }
    assert_eq!(next(&mut worker).await, Some(drain(1)));
    tokio::select! {
        biased;
        message = worker.next() => panic!("{message:?}"),
        () = tokio::task::yield_now() => {}
    }
    peer.send(&drain(2)).unwrap();
    assert_eq!(next(&mut worker).await, Some(drain(2)));
}

fn some_descriptors(count: usize) -> Vec<OwnedFd> {
    (0..count)
        .map(|_| std::fs::File::open("/dev/null").unwrap().into())
        .collect()
}

/// The files that this process has open.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test]
async fn descriptors_come_with_their_message_and_with_no_other() {
    let (mut peer, theirs) = pair().unwrap();
    let mut worker = Connection::new(theirs).unwrap();
    peer.send(&drain(1)).unwrap();
    peer.send_with(&ToWorker::Adopt { slot: 3 }, some_descriptors(2))
        .unwrap();
    peer.send(&ToWorker::Release { slot: 3 }).unwrap();
    peer.send_with(
        &ToWorker::Adopt { slot: 4 },
        some_descriptors(DESCRIPTORS_MAX),
    )
    .unwrap();
    for (message, count) in [
        (drain(1), 0),
        (ToWorker::Adopt { slot: 3 }, 2),
        (ToWorker::Release { slot: 3 }, 0),
        (ToWorker::Adopt { slot: 4 }, DESCRIPTORS_MAX),
    ] {
        let incoming = worker.next().await.unwrap().unwrap();
        assert_eq!(incoming.message, message);
        assert_eq!(incoming.descriptors.len(), count);
    }
    let error = peer
        .send_with(
            &ToWorker::Adopt { slot: 5 },
            some_descriptors(DESCRIPTORS_MAX + 1),
        )
        .unwrap_err();
    assert!(
        matches!(error, SendError::Wire(WireError::TooLarge)),
        "{error}"
    );
}

#[tokio::test]
async fn descriptors_that_nobody_asked_for_end_the_connection() {
    let (mut peer, theirs) = pair().unwrap();
    let mut worker = Connection::new(theirs).unwrap();
    peer.send_with(&drain(1), some_descriptors(1)).unwrap();
    assert!(worker.next().await.is_err());
}

#[test]
fn descriptors_from_a_worker_are_closed_at_once() {
    let (mut peer, theirs) = pair().unwrap();
    assert!(put(&theirs, &greeting(Side::Worker)));
    let ready = encode(&ToPrimary::Ready).unwrap().remove(0);
    let sent = some_descriptors(8);
    let before = open_files();
    for _ in 0..8 {
        assert!(try_send(&theirs, &ready, &sent).unwrap() == Sent::Taken);
        assert_eq!(peer.on_readable(), (vec![ToPrimary::Ready], true));
    }
    // Other tests open and close some meanwhile; eight times eight would show.
    assert!(open_files() < before + 40);
}

#[test]
fn another_program_goes_on_where_this_one_was() {
    let (mut peer, theirs) = pair().unwrap();
    assert!(put(&theirs, &greeting(Side::Worker)));
    // The worker is in the middle of a message, and does not read what it is told.
    assert!(put(&theirs, &[1, 0]));
    assert_eq!(peer.on_readable(), (vec![], true));
    for mark in ['a', 'b'] {
        peer.send(&snapshot(mark, 1 << 20)).unwrap();
    }
    peer.send(&drain(9)).unwrap();
    peer.send_with(&ToWorker::Adopt { slot: 1 }, some_descriptors(1))
        .unwrap();
    let text = serde_json::to_string(&peer.state()).unwrap();
    let socket = peer.socket.try_clone().unwrap();
    drop(peer);
    let mut peer = Peer::resume(socket, serde_json::from_str(&text).unwrap());
    let mut decoder = Decoder::new(Side::Primary);
    let mut messages = Vec::new();
    while peer.wants_write() {
        messages.extend(read_all(&theirs, &mut decoder));
        peer.on_writable().unwrap();
    }
    messages.extend(read_all(&theirs, &mut decoder));
    // What was begun is finished, what is owed is said; the rest will be said anew.
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[1], drain(9));
    let bytes = encode(&ToPrimary::Hello { pid: 0, slot: 7 })
        .unwrap()
        .remove(0);
    assert!(put(&theirs, &[&[0], &bytes[2..]].concat()));
    assert_eq!(
        peer.on_readable(),
        (vec![ToPrimary::Hello { pid: 0, slot: 7 }], true)
    );
}
