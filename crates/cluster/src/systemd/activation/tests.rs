//! Variables, and what may be under the numbers. (Sockets that really come through an exec are a story of the program.)

use std::ffi::OsString;
use std::fs::File;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use super::{check, passed, take};

const ME: u32 = 4242;

fn env<'e>(pid: &'e str, fds: &'e str) -> impl Fn(&str) -> Option<OsString> + 'e {
    move |name| match name {
        "LISTEN_PID" => Some(pid.into()),
        "LISTEN_FDS" => Some(fds.into()),
        _ => None,
    }
}

#[test]
fn sockets_of_another_process_are_left_alone() {
    assert!(take(|_| None, ME).expect("nothing").is_empty());
    for pid in ["1", "", "04242", "4242 ", "x"] {
        assert_eq!(passed(env(pid, "1"), ME).expect("not ours"), None, "{pid}");
    }
}

#[test]
fn a_count_has_to_be_one() {
    assert_eq!(passed(env("4242", "0"), ME).expect("none"), None);
    assert_eq!(passed(env("4242", "2"), ME).expect("two"), Some(2));
    assert_eq!(passed(env("4242", "64"), ME).expect("many"), Some(64));
    for fds in ["", "-1", "65", "two", "99999999999999999999999"] {
        let error = passed(env("4242", fds), ME).expect_err(fds).to_string();
        assert!(error.contains("LISTEN_FDS"), "{error}");
    }
    let without = |name: &str| (name == "LISTEN_PID").then(|| "4242".into());
    assert!(passed(without, ME).is_err());
}

#[test]
fn a_number_that_did_not_come_through_an_exec_is_refused_by_its_name() {
    // Whatever is open here was opened by this process or its test runner.
    let env = |name: &str| match name {
        "LISTEN_PID" => Some(OsString::from("4242")),
        "LISTEN_FDS" => Some("64".into()),
        "LISTEN_FDNAMES" => Some("http:admin".into()),
        _ => None,
    };
    let error = take(env, ME).expect_err("nothing was passed").to_string();
    assert!(error.starts_with("descriptor "), "{error}");
}

#[test]
fn only_a_listening_stream_socket_will_do() {
    let folder = tempfile::tempdir().expect("folder");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("bind");
    let client = TcpStream::connect(tcp.local_addr().expect("address")).expect("connect");
    let unix = UnixListener::bind(folder.path().join("socket")).expect("bind");
    let pair = UnixStream::pair().expect("pair").0;
    let udp = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let file = File::open("/dev/null").expect("open");

    check(&tcp.into()).expect("a TCP listener");
    check(&unix.into()).expect("a Unix listener");
    let refused: [(OwnedFd, &str); 4] = [
        (client.into(), "Accept=no"),
        (pair.into(), "Accept=no"),
        (udp.into(), "ListenStream="),
        (file.into(), "not a socket"),
    ];
    for (fd, why) in refused {
        let error = check(&fd).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
}
