//! Tests of [`super`], with real sockets between several buses of one process.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use super::*;
use okdb_shm::{Identity, Role};
use proptest::prelude::*;

const SECRET: [u8; SECRET_BYTES] = [5; SECRET_BYTES];

/// Longer than any test runs, unless it fails.
const LONG: Duration = Duration::from_secs(60);

fn segment() -> Arc<Segment> {
    Segment::private(&Identity {
        root: [1; 16],
        boot: [2; 16],
    })
    .unwrap()
}

fn join(segment: &Arc<Segment>, secret: [u8; SECRET_BYTES]) -> Arc<Bus> {
    let me = process::Identity::current().unwrap();
    Arc::new(Bus::open(Arc::clone(segment), me, secret).unwrap())
}

#[test]
fn every_other_process_is_poked_once_until_it_looks() {
    let segment = segment();
    let [a, b, c] = [(); 3].map(|()| join(&segment, SECRET));
    for clock in 1..=100 {
        a.poke(3, clock);
    }
    let first = Some(Poke { env: 3, clock: 1 });
    assert_eq!(b.wait(LONG).unwrap(), first);
    assert_eq!(c.wait(LONG).unwrap(), first);
    assert_eq!(a.wait(Duration::ZERO).unwrap(), None);
    a.poke(4, 200);
    assert_eq!(b.wait(LONG).unwrap(), Some(Poke { env: 4, clock: 200 }));
    let counters = a.counters();
    assert_eq!(
        (counters.sent, counters.suppressed, counters.failed),
        (4, 198, 0)
    );
    assert_eq!(b.counters().received, 2);
}

#[test]
fn a_tick_recovers_from_a_lost_datagram() {
    let segment = segment();
    let [a, b] = [(); 2].map(|()| join(&segment, SECRET));
    a.poke(0, 1);
    // Lost: taken from the socket behind the bus's back.
    let mut fds = [PollFd::new(b.socket.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::NONE).unwrap();
    b.socket.recv(&mut [0; BUFFER_BYTES]).unwrap();
    a.poke(0, 2);
    assert_eq!(a.counters().suppressed, 1);
    assert_eq!(b.wait(Duration::ZERO).unwrap(), None);
    a.poke(0, 3);
    assert_eq!(b.wait(LONG).unwrap(), Some(Poke { env: 0, clock: 3 }));
}

#[test]
fn noise_is_counted_and_wakes_nobody() {
    let segment = segment();
    let [a, b] = [(); 2].map(|()| join(&segment, SECRET));
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let send = |bytes: &[u8]| {
        stranger
            .send_to(bytes, (Ipv4Addr::LOCALHOST, b.port()))
            .unwrap();
    };
    let key = Key::new([1; 16], SECRET);
    let valid = Frame { env: 1, clock: 1 }.encode(&key);
    send(b"");
    send(&vec![0; 65_507]);
    send(&[valid.as_slice(), b"x"].concat());
    send(&Frame { env: 1, clock: 1 }.encode(&Key::new([9; 16], SECRET)));
    send(&Frame { env: 1, clock: 1 }.encode(&Key::new([1; 16], [9; SECRET_BYTES])));
    send(&{
        let mut newer = valid;
        newer[0] = 7;
        newer
    });
    a.poke(2, 2);
    // What is valid arrives behind all of that, and a replay is one more hint.
    assert_eq!(b.wait(LONG).unwrap(), Some(Poke { env: 2, clock: 2 }));
    send(&valid);
    assert_eq!(b.wait(LONG).unwrap(), Some(Poke { env: 1, clock: 1 }));
    let counters = b.counters();
    let expected = Counters {
        received: 2,
        dropped_length: 3,
        dropped_version: 1,
        dropped_root: 1,
        dropped_mac: 1,
        ..Counters::default()
    };
    assert_eq!(counters, expected);
}

#[test]
fn a_flood_does_not_keep_the_tick_away() {
    let bus = join(&segment(), SECRET);
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for _ in 0..10 {
        stranger
            .send_to(b"noise", (Ipv4Addr::LOCALHOST, bus.port()))
            .unwrap();
    }
    for _ in 0..10 {
        assert_eq!(bus.wait(Duration::ZERO).unwrap(), None);
    }
}

#[test]
fn two_secrets_do_not_understand_each_other() {
    let segment = segment();
    let a = join(&segment, SECRET);
    let b = join(&segment, [6; SECRET_BYTES]);
    a.poke(0, 1);
    let mut fds = [PollFd::new(b.socket.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::NONE).unwrap();
    assert_eq!(b.wait(Duration::ZERO).unwrap(), None);
    assert_eq!(b.counters().dropped_mac, 1);
}

#[test]
fn who_has_left_is_not_poked() {
    let segment = segment();
    let [a, b] = [(); 2].map(|()| join(&segment, SECRET));
    drop(b);
    a.poke(0, 1);
    assert_eq!(a.counters(), Counters::default());
}

#[tokio::test]
async fn an_event_loop_receives_pokes() {
    let segment = segment();
    let [a, b] = [(); 2].map(|()| join(&segment, SECRET));
    let listener = b.listen().unwrap();
    let poker = std::thread::spawn(move || {
        a.poke(1, 10);
        a
    });
    assert_eq!(listener.next().await.unwrap(), Poke { env: 1, clock: 10 });
    let a = poker.join().unwrap();
    a.poke(2, 20);
    assert_eq!(listener.next().await.unwrap(), Poke { env: 2, clock: 20 });
    assert_eq!(listener.bus().port(), b.port());
}

/// A datagram that this bus must not take for a poke.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let valid = Frame { env: 1, clock: 1 }.encode(&Key::new([1; 16], SECRET));
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..FRAME_BYTES * 2),
        (0..valid.len(), 1u8..).prop_map(move |(at, flip)| {
            let mut changed = valid.to_vec();
            changed[at] ^= flip;
            changed
        }),
        (0..valid.len()).prop_map(move |length| valid[..length].to_vec()),
        (1usize..2_000).prop_map(move |more| [valid.to_vec(), vec![0; more]].concat()),
        any::<[u8; SECRET_BYTES]>().prop_map(|secret| {
            let frame = Frame { env: 1, clock: 1 };
            frame.encode(&Key::new([1; 16], secret)).to_vec()
        }),
        any::<[u8; 16]>().prop_map(|root| {
            let frame = Frame { env: 1, clock: 1 };
            frame.encode(&Key::new(root, SECRET)).to_vec()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Fewer at a time than a socket holds, so that none is lost on the way.
    #[test]
    fn hostile_datagrams_are_counted_and_none_is_an_event(
        datagrams in proptest::collection::vec(hostile(), 0..20),
    ) {
        let segment = segment();
        let [a, b] = [(); 2].map(|()| join(&segment, SECRET));
        let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for datagram in &datagrams {
            stranger.send_to(datagram, (Ipv4Addr::LOCALHOST, b.port())).unwrap();
        }
        a.poke(7, 8);
        prop_assert_eq!(b.wait(LONG).unwrap(), Some(Poke { env: 7, clock: 8 }));
        let counters = b.counters();
        prop_assert_eq!(counters.received, 1);
        prop_assert_eq!(counters.dropped(), u64::try_from(datagrams.len()).unwrap());
    }
}

#[tokio::test]
async fn an_event_loop_sleeps_through_noise() {
    let bus = join(&segment(), SECRET);
    let listener = bus.listen().unwrap();
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let valid = Frame { env: 1, clock: 1 }.encode(&Key::new([1; 16], SECRET));
    for round in 1..=20u8 {
        let mut changed = valid;
        changed[usize::from(round)] ^= round;
        stranger
            .send_to(&changed, (Ipv4Addr::LOCALHOST, bus.port()))
            .unwrap();
        tokio::select! {
            poke = listener.next() => panic!("{poke:?}"),
            // Others get their turn, and see each datagram gone.
            () = async {
                while bus.counters().dropped() < u64::from(round) {
                    tokio::task::yield_now().await;
                }
            } => {}
        }
    }
    assert_eq!(bus.counters().received, 0);
}

#[test]
fn the_row_is_told_each_thing_once() {
    let segment = segment();
    let [a, b] = [(); 2].map(|()| join(&segment, SECRET));
    let me = process::Identity::current().unwrap();
    let row = segment.claim_row(Role::Command, None, me).unwrap();
    let told = || {
        let row = row.snapshot().unwrap();
        [
            row.pokes_sent,
            row.pokes_skipped,
            row.pokes_received,
            row.bus_dropped,
        ]
    };
    a.poke(0, 1);
    a.poke(0, 2);
    a.report(&row);
    a.report(&row);
    assert_eq!(told(), [1, 1, 0, 0]);
    assert!(b.wait(LONG).unwrap().is_some());
    b.report(&row);
    assert_eq!(told(), [1, 1, 1, 0]);
    a.socket
        .send_to(b"noise", (Ipv4Addr::LOCALHOST, b.port()))
        .unwrap();
    a.poke(0, 3);
    assert!(b.wait(LONG).unwrap().is_some());
    a.report(&row);
    b.report(&row);
    assert_eq!(told(), [2, 1, 2, 1]);
}
