//! Who holds an address that we wanted: found in `/proc`, for a message that names a pid.
//!
//! Best effort by nature. Sockets of other users and of other namespaces stay anonymous, and whoever is
//! named may be gone a moment later; nothing but the message depends on it.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// A process that holds an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its pid.
    pub pid: u32,
    /// The short name of its command; may be empty.
    pub command: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.command.is_empty() {
            write!(f, "pid {}", self.pid)
        } else {
            write!(f, "{}, pid {}", self.command, self.pid)
        }
    }
}

/// The process whose listening TCP socket excludes `addr`, if it can be known. Among several that share
/// the socket it is the one that the others descend from.
#[must_use]
pub fn of_tcp(addr: SocketAddr) -> Option<Holder> {
    let mut inodes = HashSet::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        if let Ok(text) = fs::read_to_string(table) {
            inodes.extend(listening_inodes(&text, addr));
        }
    }
    if inodes.is_empty() {
        return None;
    }
    let mut parents = BTreeMap::new();
    for pid in pids() {
        if holds_one_of(pid, &inodes) {
            parents.insert(pid, parent(pid));
        }
    }
    let pid = eldest(&parents)?;
    Some(named(pid))
}

/// The holder with this pid.
#[must_use]
pub fn named(pid: u32) -> Holder {
    let command = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).trim().to_owned();
    Holder { pid, command }
}

/// The inodes of the listening sockets in a kernel table that exclude `wanted`.
fn listening_inodes(table: &str, wanted: SocketAddr) -> Vec<u64> {
    /// `TCP_LISTEN` in the table's numbers.
    const LISTENING: &str = "0A";
    let rows = table.lines().skip(1);
    rows.filter_map(|row| {
        let mut fields = row.split_ascii_whitespace();
        let local = local_address(fields.nth(1)?)?;
        let state = fields.nth(1)?;
        let inode = fields.nth(5)?.parse::<u64>().ok()?;
        (state == LISTENING && excludes(local, wanted)).then_some(inode)
    })
    .collect()
}

/// Two listeners exclude each other on one port when their addresses are equal or one is a wildcard that
/// covers the other.
fn excludes(held: SocketAddr, wanted: SocketAddr) -> bool {
    if held.port() != wanted.port() {
        return false;
    }
    match (held.ip().to_canonical(), wanted.ip().to_canonical()) {
        // An IPv6 wildcard may be one for both families; only the kernel knows.
        (IpAddr::V6(held), _) if held.is_unspecified() => true,
        (IpAddr::V4(held), IpAddr::V4(wanted)) => {
            held == wanted || held.is_unspecified() || wanted.is_unspecified()
        }
        (IpAddr::V6(held), IpAddr::V6(wanted)) => held == wanted || wanted.is_unspecified(),
        _ => false,
    }
}

/// Reads `0100007F:2124`: 32-bit words in the host's byte order, then the port.
fn local_address(field: &str) -> Option<SocketAddr> {
    let (ip, port) = field.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut octets = Vec::with_capacity(16);
    for start in (0..ip.len()).step_by(8) {
        let word = u32::from_str_radix(ip.get(start..start + 8)?, 16).ok()?;
        octets.extend_from_slice(&word.to_ne_bytes());
    }
    let ip = match octets.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(octets).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(octets).ok()?)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn holds_one_of(pid: u32, inodes: &HashSet<u64>) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    entries.flatten().any(|entry| {
        fs::read_link(entry.path())
            .ok()
            .and_then(|target| socket_inode(&target))
            .is_some_and(|inode| inodes.contains(&inode))
    })
}

fn socket_inode(link: &Path) -> Option<u64> {
    link.to_str()?
        .strip_prefix("socket:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// The first whose parent is not among them.
fn eldest(parents: &BTreeMap<u32, Option<u32>>) -> Option<u32> {
    parents
        .iter()
        .find(|(_, parent)| parent.is_none_or(|parent| !parents.contains_key(&parent)))
        .map(|(pid, _)| *pid)
}

#[cfg(test)]
mod tests {
    use super::{eldest, listening_inodes, local_address, of_tcp};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2124 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0
   1: 00000000:2125 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0 100 0 0 10 0
   2: 0100007F:2124 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 100 0 0 10 0
   torn 0100007F";

    #[cfg(target_endian = "little")]
    #[test]
    fn only_listeners_that_exclude_the_address_are_found() {
        for (wanted, inodes) in [
            ("127.0.0.1:8484", vec![11]),
            ("0.0.0.0:8484", vec![11]),
            ("127.0.0.2:8484", vec![]),
            ("[::1]:8484", vec![]),
            ("10.0.0.1:8485", vec![12]),
        ] {
            let wanted: SocketAddr = wanted
                .parse()
                .unwrap_or_else(|error| panic!("{wanted}: {error}"));
            assert_eq!(listening_inodes(TABLE, wanted), inodes, "{wanted}");
        }
    }

    #[test]
    fn our_own_listener_is_traced_to_us() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let addr = listener.local_addr().expect("address");
        assert_eq!(
            of_tcp(addr).map(|holder| holder.pid),
            Some(std::process::id())
        );
        drop(listener);
        assert_eq!(of_tcp(addr), None);
    }

    #[test]
    fn the_parent_is_named_not_its_workers() {
        let parents = BTreeMap::from([(10, Some(50)), (11, Some(50)), (50, Some(1))]);
        assert_eq!(eldest(&parents), Some(50));
        assert_eq!(eldest(&BTreeMap::new()), None);
    }

    proptest! {
        #[test]
        fn a_strange_table_is_no_harm(text in ".{0,200}", field in "[0-9A-F:]{0,40}") {
            let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
            let _ = listening_inodes(&text, wanted);
            let _ = local_address(&field);
        }
    }
}
