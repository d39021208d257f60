//! Tests of [`super`], with real sockets between several buses of one process.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use super::*;
use okdb_shm::Identity;

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
