//! Real sockets on free ports and in private directories.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Barrier;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use socket2::{Domain, SockRef, Socket, Type};

use super::{ListenError, Listeners};
use crate::address::Address;
use crate::exit::ExitCode;

fn slots(count: u16) -> NonZeroU16 {
    NonZeroU16::new(count).expect("a slot")
}

fn tcp(text: &str) -> Address {
    text.parse().expect("an address")
}

fn bound_addr(listeners: &Listeners) -> SocketAddr {
    match listeners.addresses().next() {
        Some(Address::Tcp(addr)) => *addr,
        other => panic!("no TCP address: {other:?}"),
    }
}

#[test]
fn one_listener_per_slot_on_one_port() {
    let listeners =
        Listeners::bind(&[tcp("127.0.0.1:0"), tcp("127.0.0.1:0")], slots(3)).expect("bind");
    let addresses: Vec<&Address> = listeners.addresses().collect();
    assert_ne!(addresses[0], addresses[1]);
    for slot in 0..3 {
        let fds: Vec<_> = listeners.of_slot(slot).collect();
        assert_eq!(fds.len(), 2);
        for (fd, address) in fds.iter().zip(&addresses) {
            let socket = SockRef::from(fd);
            let local = socket
                .local_addr()
                .ok()
                .and_then(|addr| addr.as_socket())
                .map(Address::Tcp);
            assert_eq!(local.as_ref(), Some(*address));
            let flags = fcntl(*fd, FcntlArg::F_GETFD).expect("flags");
            assert!(FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC));
            assert!(socket.nonblocking().expect("flag"));
            assert!(socket.is_listener().expect("flag"));
        }
    }
    assert_eq!(listeners.of_slot(3).count(), 0);
}

#[test]
fn every_slot_gets_connections() {
    let listeners = Listeners::bind(&[tcp("127.0.0.1:0")], slots(2)).expect("bind");
    let addr = bound_addr(&listeners);
    let clients: Vec<TcpStream> = (0..64)
        .map(|_| TcpStream::connect(addr).expect("connect"))
        .collect();
    let counts: Vec<usize> = (0..2)
        .map(|slot| {
            let fd = listeners.of_slot(slot).next().expect("listener");
            std::iter::from_fn(|| SockRef::from(&fd).accept().ok()).count()
        })
        .collect();
    assert_eq!(counts.iter().sum::<usize>(), clients.len());
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

#[test]
fn the_second_server_is_refused_and_told_by_whom() {
    for count in [1, 4] {
        let first = Listeners::bind(&[tcp("127.0.0.1:0")], slots(count)).expect("bind");
        let port = bound_addr(&first).port();
        for other in ["127.0.0.1", "0.0.0.0"] {
            let error =
                Listeners::bind(&[tcp(&format!("{other}:{port}"))], slots(2)).expect_err("in use");
            let ListenError::AddressInUse {
                holder: Some(holder),
                ..
            } = &error
            else {
                panic!("unexpected: {error}");
            };
            assert_eq!(holder.pid, std::process::id());
            assert!(error.to_string().contains(&port.to_string()), "{error}");
            assert_eq!(error.exit_code(), ExitCode::AddressInUse);
        }
    }
}

/// Lets two servers start at the same instant, and tells how many got the address.
fn winners(wish: &Address) -> usize {
    let start = Barrier::new(2);
    let results: Vec<Result<Listeners, ListenError>> = std::thread::scope(|scope| {
        let servers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    Listeners::bind(std::slice::from_ref(wish), slots(3))
                })
            })
            .collect();
        servers
            .into_iter()
            .map(|server| server.join().expect("no panic"))
            .collect()
    });
    for result in &results {
        if let Err(error) = result {
            assert!(matches!(error, ListenError::AddressInUse { .. }), "{error}");
        }
    }
    results.iter().filter(|result| result.is_ok()).count()
}

#[test]
fn of_two_servers_that_start_at_once_exactly_one_gets_the_address() {
    let first = Listeners::bind(&[tcp("127.0.0.5:0")], slots(1)).expect("bind");
    let wish = Address::Tcp(bound_addr(&first));
    drop(first);
    let room = Room::new();
    for _ in 0..50 {
        assert_eq!(winners(&wish), 1);
        assert_eq!(winners(&Address::Unix(room.path())), 1);
    }
}

#[test]
fn overlapping_addresses_of_one_server_are_told_as_such() {
    let free = bound_addr(&Listeners::bind(&[tcp("127.0.0.6:0")], slots(1)).expect("bind"));
    let wishes = [Address::Tcp(free), tcp(&format!("0.0.0.0:{}", free.port()))];
    let error = Listeners::bind(&wishes, slots(1)).expect_err("in use");
    assert!(error.to_string().contains("of this server"), "{error}");
}

#[test]
fn time_wait_of_a_former_server_does_not_block_the_next() {
    let first = Listeners::bind(&[tcp("127.0.0.2:0")], slots(2)).expect("bind");
    let addr = bound_addr(&first);
    for _ in 0..8 {
        let mut client = TcpStream::connect(addr).expect("connect");
        let accepted = (0..2).find_map(|slot| {
            let fd = first.of_slot(slot).next()?;
            SockRef::from(&fd).accept().ok()
        });
        // The side that closes first keeps TIME_WAIT: ours.
        drop(accepted.expect("a connection"));
        assert_eq!(client.read(&mut [0; 1]).expect("end of stream"), 0);
    }
    drop(first);
    Listeners::bind(&[Address::Tcp(addr)], slots(2)).expect("the port is free again");
}

#[test]
fn a_failure_leaves_nothing_bound() {
    let probe = Listeners::bind(&[tcp("127.0.0.3:0")], slots(1)).expect("bind");
    let taken = bound_addr(&probe);
    let free = bound_addr(&Listeners::bind(&[tcp("127.0.0.3:0")], slots(1)).expect("bind"));
    Listeners::bind(&[Address::Tcp(free), Address::Tcp(taken)], slots(2)).expect_err("in use");
    Listeners::bind(&[Address::Tcp(free)], slots(2)).expect("still free");
}

#[test]
fn the_same_address_twice_is_refused() {
    let free = bound_addr(&Listeners::bind(&[tcp("127.0.0.4:0")], slots(1)).expect("bind"));
    let error =
        Listeners::bind(&[Address::Tcp(free), Address::Tcp(free)], slots(1)).expect_err("twice");
    assert!(matches!(error, ListenError::Duplicate { .. }), "{error}");
}

#[test]
fn both_families_may_share_a_port() {
    let v6 = match Listeners::bind(&[tcp("[::]:0")], slots(2)) {
        Ok(listeners) => listeners,
        // A host without IPv6 has nothing to show here.
        Err(ListenError::Io { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    let port = bound_addr(&v6).port();
    match Listeners::bind(&[tcp(&format!("0.0.0.0:{port}"))], slots(2)) {
        Ok(_)
        | Err(ListenError::AddressInUse {
            holder: Some(_), ..
        }) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_foreign_address_is_an_error_that_names_it() {
    // TEST-NET-1 belongs to nobody.
    let error = Listeners::bind(&[tcp("192.0.2.1:8484")], slots(1)).expect_err("not ours");
    assert!(matches!(error, ListenError::Io { .. }));
    assert!(error.to_string().contains("192.0.2.1:8484"), "{error}");
}

/// How many connections wait at each of the slots' own listeners.
fn queued(listeners: &Listeners, slots: u16) -> Vec<usize> {
    (0..slots)
        .map(|slot| {
            let fd = listeners.only_of_slot(slot).next().expect("a listener");
            std::iter::from_fn(|| SockRef::from(&fd).accept().ok()).count()
        })
        .collect()
}

#[test]
fn a_slot_that_is_added_later_gets_its_share() {
    // One slot alone never lets others join; the second comes all the same.
    let mut listeners = Listeners::bind(&[tcp("127.0.0.1:0")], slots(1)).expect("bind");
    let addr = bound_addr(&listeners);
    listeners.ensure_slot(2).expect("more slots");
    listeners.ensure_slot(2).expect("nothing to do");
    assert_eq!(listeners.slots(), slots(3));
    let _clients: Vec<TcpStream> = (0..120)
        .map(|_| TcpStream::connect(addr).expect("connect"))
        .collect();
    let queued = queued(&listeners, 3);
    assert_eq!(queued.iter().sum::<usize>(), 120);
    assert!(queued.iter().all(|count| *count > 0), "{queued:?}");
}

#[test]
fn sockets_of_a_service_manager_are_everybody_s_and_stay_its_own() {
    let room = Room::new();
    let given = std::os::unix::net::UnixListener::bind(room.path()).expect("bind");
    let tcp_given = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = tcp_given.local_addr().expect("an address");
    let mut listeners = Listeners::bind(&[], slots(2)).expect("nothing to bind");
    listeners
        .add_given(vec![given.into(), tcp_given.into()])
        .expect("sockets");
    let addresses: Vec<Address> = listeners.addresses().cloned().collect();
    assert_eq!(addresses, [Address::Unix(room.path()), Address::Tcp(addr)]);
    for slot in 0..2 {
        assert_eq!(listeners.of_slot(slot).count(), 2);
        assert_eq!(listeners.only_of_slot(slot).count(), 0);
    }
    drop(listeners);
    assert!(room.path().exists(), "the file is the manager's");
    TcpStream::connect(addr).expect_err("the descriptor was ours to close");
}

#[test]
fn closing_refuses_clients_at_once_and_removes_files() {
    let room = Room::new();
    let wishes = [tcp("127.0.0.1:0"), Address::Unix(room.path())];
    let mut listeners = Listeners::bind(&wishes, slots(2)).expect("bind");
    let addr = bound_addr(&listeners);
    listeners.close();
    let refused = TcpStream::connect(addr).map_err(|error| error.kind());
    assert_eq!(refused.err(), Some(io::ErrorKind::ConnectionRefused));
    assert!(!room.path().exists());
    assert_eq!(listeners.of_slot(0).count(), 0);
}

struct Room {
    dir: tempfile::TempDir,
}

impl Room {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a directory"),
        }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("okdb.sock")
    }

    fn bind(&self) -> Result<Listeners, ListenError> {
        Listeners::bind(&[Address::Unix(self.path())], slots(2))
    }
}

#[test]
fn a_unix_socket_is_shared_private_and_removed() {
    let room = Room::new();
    let listeners = room.bind().expect("bind");
    assert_eq!(
        fs::metadata(room.path())
            .expect("file")
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
    let mut client = UnixStream::connect(room.path()).expect("connect");
    client.write_all(b"x").expect("write");
    let fd = listeners.of_slot(1).next().expect("listener");
    assert!(
        SockRef::from(&fd).accept().is_ok(),
        "each slot sees the one queue"
    );
    assert_eq!(listeners.of_slot(0).count(), 1);
    drop(listeners);
    assert!(!room.path().exists());
}

#[test]
fn a_dead_server_s_socket_is_replaced() {
    let room = Room::new();
    drop(UnixListener::bind(room.path()).expect("bind"));
    assert!(room.path().exists(), "nobody removed it");
    let _listeners = room.bind().expect("replaced");
    UnixStream::connect(room.path()).expect("connect");
}

#[test]
fn a_living_server_s_socket_is_left_alone() {
    let room = Room::new();
    let first = room.bind().expect("bind");
    let inode = fs::metadata(room.path()).expect("file").ino();
    let error = room.bind().expect_err("in use");
    let ListenError::AddressInUse {
        holder: Some(holder),
        ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!(holder.pid, std::process::id());
    assert_eq!(fs::metadata(room.path()).expect("file").ino(), inode);
    drop(first);
}

#[test]
fn a_full_queue_is_a_living_server() {
    let room = Room::new();
    let server = Socket::new(Domain::UNIX, Type::STREAM, None).expect("socket");
    server
        .bind(&socket2::SockAddr::unix(room.path()).expect("address"))
        .expect("bind");
    server.listen(0).expect("listen");
    let mut waiting: Vec<OwnedFd> = Vec::new();
    loop {
        let client = Socket::new(Domain::UNIX, Type::STREAM, None).expect("socket");
        client.set_nonblocking(true).expect("flag");
        match client.connect(&socket2::SockAddr::unix(room.path()).expect("address")) {
            Ok(()) => waiting.push(client.into()),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                break;
            }
        }
    }
    let error = room.bind().expect_err("in use");
    assert!(matches!(error, ListenError::AddressInUse { .. }), "{error}");
    assert!(
        server.as_fd().try_clone_to_owned().is_ok(),
        "the server was there all the time"
    );
}

#[test]
fn what_is_no_socket_is_never_removed() {
    let room = Room::new();
    fs::write(room.path(), b"precious").expect("write");
    let error = room.bind().expect_err("not a socket");
    assert!(matches!(error, ListenError::NotASocket { .. }), "{error}");
    assert_eq!(fs::read(room.path()).expect("read"), b"precious");

    fs::remove_file(room.path()).expect("remove");
    std::os::unix::fs::symlink("/nonexistent", room.path()).expect("link");
    assert!(matches!(room.bind(), Err(ListenError::NotASocket { .. })));
}

#[test]
fn another_server_s_file_outlives_our_end() {
    let room = Room::new();
    let first = room.bind().expect("bind");
    fs::remove_file(room.path()).expect("remove");
    let second = UnixListener::bind(room.path()).expect("bind");
    drop(first);
    assert!(room.path().exists());
    drop(second);
}

#[test]
fn a_missing_directory_is_an_error_that_names_the_path() {
    let error = Listeners::bind(&[Address::Unix("/nonexistent/okdb.sock".into())], slots(1))
        .expect_err("no directory");
    assert!(
        error.to_string().contains("/nonexistent/okdb.sock"),
        "{error}"
    );
}
