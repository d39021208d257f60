//! Addresses: where the root's server listens and whether it answers there, or whether a server could listen; shared
//! listeners; the loopback.

use std::{
    collections::{BTreeSet, HashSet},
    fs,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    num::NonZeroU16,
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use okdb_cluster::{address::Address, listen::Listeners};
use serde_json::Value;

use super::{Report, Verdict};
use crate::{commands::serve::LISTEN_DEFAULT, settings::Given};

/// How long a server may take to answer. A worker that hangs is relieved by the others within that time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer that is read. Bytes.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

const NAME: &str = "listen address";

pub(super) fn check(report: &mut Report, given: &Given, server: Option<u32>) {
    match server {
        Some(pid) => of_server(report, given, pid),
        None => of_settings(report, given),
    }
    sharing(report);
}

/// Where a running server listens is its own affair; the settings may be those of another one.
fn of_server(report: &mut Report, given: &Given, pid: u32) {
    let listening = listening(pid).unwrap_or_default();
    for address in &listening {
        match ask(address, "/healthz") {
            Ok((200, _)) => report.good(
                NAME,
                format!("{address} is this root's server, and answers"),
            ),
            Ok((status, _)) => report.bad(
                NAME,
                format!("{address} is this root's server, but answers {status}"),
                "see its log and okdb status",
            ),
            Err(error) => report.bad(
                NAME,
                format!("{address} is this root's server, but does not answer: {error}"),
                "see its log and okdb status",
            ),
        }
    }
    if !listening.is_empty() {
        return;
    }
    // Its descriptors are not ours to see; perhaps it tells itself where it is.
    let found = wishes(report, given)
        .into_iter()
        .filter(|address| is_of(address, pid))
        .collect::<Vec<_>>();
    for address in &found {
        report.good(
            NAME,
            format!("{address} is this root's server, and answers"),
        );
    }
    if found.is_empty() {
        report.odd(
            NAME,
            format!("it cannot be seen where pid {pid} listens"),
            "run this command as its user or as root, or give --listen",
        );
    }
}

/// Whether the server with this pid answers at an address.
fn is_of(address: &Address, pid: u32) -> bool {
    let Ok((200, body)) = ask(address, "/api/cluster/status") else {
        return false;
    };
    let status: Option<Value> = serde_json::from_str(&body).ok();
    status.is_some_and(|status| status["primary"]["pid"] == pid)
}

fn wishes(report: &mut Report, given: &Given) -> Vec<Address> {
    let values = given
        .get("http.listen")
        .map_or_else(|| vec![LISTEN_DEFAULT.to_owned()], |(values, _)| values);
    let mut addresses = Vec::new();
    for value in values {
        match value.parse() {
            Ok(address) => addresses.push(address),
            Err(error) => report.told(NAME, Verdict::Bad, format!("{error}")),
        }
    }
    addresses
}

/// Nobody serves: could somebody listen?
fn of_settings(report: &mut Report, given: &Given) {
    for address in wishes(report, given) {
        match &address {
            Address::Unix(path) => unix(report, path),
            Address::Tcp(_) => {
                match Listeners::bind(std::slice::from_ref(&address), NonZeroU16::MIN) {
                    Ok(_) => report.good(NAME, format!("{address} is free")),
                    Err(error) => {
                        report.bad(NAME, error.to_string(), "choose another with --listen");
                    }
                }
            }
        }
    }
}

/// Making a socket's file to find out whether that works would disturb whoever watches the folder.
fn unix(report: &mut Report, path: &Path) {
    use std::os::unix::fs::FileTypeExt;
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Ok(about) if !about.file_type().is_socket() => report.bad(
            NAME,
            format!("{shown} is something other than a socket"),
            "remove it, or choose another path",
        ),
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                report.good(
                    NAME,
                    format!("{shown} is left from a dead server, and will be replaced"),
                );
            }
            _ => report.bad(
                NAME,
                format!("another server listens on {shown}"),
                "choose another path",
            ),
        },
        Err(_) if path.parent().is_some_and(Path::is_dir) => {
            report.good(NAME, format!("{shown} is free"));
        }
        Err(_) => report.bad(
            NAME,
            format!("the folder of {shown} does not exist"),
            "make it; under systemd: RuntimeDirectory=",
        ),
    }
}

/// Asks a server; the answer's status and body.
fn ask(address: &Address, path: &str) -> io::Result<(u16, String)> {
    match address {
        Address::Tcp(address) => {
            let stream = TcpStream::connect_timeout(&reachable(*address), ANSWER_TIMEOUT)?;
            stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
            converse(stream, path)
        }
        Address::Unix(socket) => {
            let stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
            stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
            converse(stream, path)
        }
    }
}

/// An address to connect to for one that listens everywhere.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

fn converse(mut stream: impl Read + Write, path: &str) -> io::Result<(u16, String)> {
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| io::Error::other("what answers is no HTTP server"))?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}

/// The addresses that a process listens on.
fn listening(pid: u32) -> io::Result<Vec<Address>> {
    let mut inodes = HashSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let link = fs::read_link(entry.path()).unwrap_or_default();
        let link = link.to_string_lossy();
        let inode = link
            .strip_prefix("socket:[")
            .and_then(|rest| rest.strip_suffix(']'));
        inodes.extend(inode.and_then(|inode| inode.parse::<u64>().ok()));
    }
    let table =
        |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let mut tcp = BTreeSet::new();
    for name in ["tcp", "tcp6"] {
        tcp.extend(table(name).lines().filter_map(|row| tcp_row(row, &inodes)));
    }
    let unix = table("unix");
    let unix: BTreeSet<&str> = unix
        .lines()
        .filter_map(|row| unix_row(row, &inodes))
        .collect();
    let unix = unix.into_iter().map(|path| Address::Unix(path.into()));
    Ok(tcp.into_iter().map(Address::Tcp).chain(unix).collect())
}

/// The address of a listening socket in a row of the kernel's table, if it is one of these.
fn tcp_row(row: &str, inodes: &HashSet<u64>) -> Option<SocketAddr> {
    /// `TCP_LISTEN` in the table's numbers.
    const LISTENING: &str = "0A";
    let mut fields = row.split_ascii_whitespace();
    let local = fields.nth(1)?;
    let state = fields.nth(1)?;
    let inode = fields.nth(5)?.parse().ok()?;
    if state != LISTENING || !inodes.contains(&inode) {
        return None;
    }
    let (ip, port) = local.split_once(':')?;
    // 32-bit words in the host's byte order.
    let words: Vec<[u8; 4]> = (0..ip.len())
        .step_by(8)
        .map(|start| {
            let word = ip.get(start..start + 8)?;
            u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
        })
        .collect::<Option<_>>()?;
    let octets = words.concat();
    let ip: IpAddr = if let Ok(v4) = <[u8; 4]>::try_from(octets.as_slice()) {
        v4.into()
    } else {
        <[u8; 16]>::try_from(octets).ok()?.into()
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// The path of a listening socket in a row of the kernel's table, if it is one of these.
fn unix_row<'r>(row: &'r str, inodes: &HashSet<u64>) -> Option<&'r str> {
    /// `__SO_ACCEPTCON`.
    const LISTENING: u32 = 1 << 16;
    let mut fields = row.split_ascii_whitespace();
    let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
    let inode = fields.nth(2)?.parse().ok()?;
    let path = row
        .split_once(" /")
        .map(|(before, _)| &row[before.len() + 1..])?;
    (flags & LISTENING != 0 && inodes.contains(&inode)).then_some(path)
}

fn sharing(report: &mut Report) {
    let loopback = [Address::Tcp((Ipv4Addr::LOCALHOST, 0).into())];
    match Listeners::bind(&loopback, NonZeroU16::MIN.saturating_add(1)) {
        Ok(_) => report.good("reuseport", "two listeners share an address"),
        Err(error) => report.bad("reuseport", error.to_string(), "run with --no-cluster"),
    }
    match udp_round_trip() {
        Ok(()) => report.good("loopback UDP", "a datagram arrives"),
        Err(error) => report.odd(
            "loopback UDP",
            format!("{error}; changes travel on ticks, up to 250 ms late"),
            "let UDP pass on the loopback interface",
        ),
    }
    if let Err(error) = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)) {
        report.bad(
            "loopback TCP",
            error.to_string(),
            "bring the interface up: ip link set lo up",
        );
    }
}

fn udp_round_trip() -> io::Result<()> {
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    receiver.set_read_timeout(Some(Duration::from_secs(1)))?;
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.send_to(b"okdb", receiver.local_addr()?)?;
    let mut buffer = [0; 8];
    receiver.recv(&mut buffer).map(drop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_process_is_seen_to_listen() {
        let folder = tempfile::tempdir().unwrap();
        let v4 = TcpListener::bind("127.0.0.1:0").unwrap();
        let v6 = TcpListener::bind("[::1]:0").ok();
        let path = folder.path().join("a socket");
        let _unix = UnixListener::bind(&path).unwrap();
        let seen = listening(std::process::id()).unwrap();
        assert!(
            seen.contains(&Address::Tcp(v4.local_addr().unwrap())),
            "{seen:?}"
        );
        if let Some(v6) = v6 {
            assert!(
                seen.contains(&Address::Tcp(v6.local_addr().unwrap())),
                "{seen:?}"
            );
        }
        assert!(seen.contains(&Address::Unix(path)), "{seen:?}");
        let connected = TcpStream::connect(v4.local_addr().unwrap()).unwrap();
        let own = Address::Tcp(connected.local_addr().unwrap());
        assert!(!listening(std::process::id()).unwrap().contains(&own));
    }

    #[test]
    fn an_address_for_everybody_is_asked_on_the_loopback() {
        let reach = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(reach("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(reach("[::]:80"), "[::1]:80");
        assert_eq!(reach("10.1.2.3:80"), "10.1.2.3:80");
    }

    #[test]
    fn what_is_no_http_server_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"220-mail\r\n").unwrap();
        });
        assert!(ask(&address, "/healthz").is_err());
        server.join().unwrap();
    }

    #[test]
    fn a_unix_socket_is_judged_without_making_it() {
        let folder = tempfile::tempdir().unwrap();
        let verdict = |path: &Path| {
            let mut report = Report::default();
            unix(&mut report, path);
            report.0.remove(0).verdict
        };
        let path = folder.path().join("socket");
        assert_eq!(verdict(&path), Verdict::Good);
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(verdict(&path), Verdict::Bad, "somebody listens");
        drop(listener);
        assert_eq!(verdict(&path), Verdict::Good, "it is left over");
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(verdict(&file), Verdict::Bad);
        assert_eq!(verdict(&folder.path().join("no/socket")), Verdict::Bad);
        assert!(!folder.path().join("no").exists());
    }
}
