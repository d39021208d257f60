//! What may stand behind `--listen`, and what came of it.
//!
//! Pure text handling: nothing is resolved, opened or bound here.

use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

/// The longest path that the kernel takes for a Unix socket, without its closing NUL. Bytes.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Where to listen: one `--listen` value, or one listener as it was bound.
///
/// A bound TCP address has its real port where the wish said 0. Shown as it would be typed; see
/// [`Address::url`] for what a client types.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An IP address and a port.
    Tcp(SocketAddr),
    /// The absolute path of a Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Whether only this host can reach it. A Unix socket counts: it is guarded by its file mode.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(addr) => addr.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// What to give to a client: `http://HOST:PORT`, or `unix:PATH`. A wildcard address is shown as the
    /// loopback address of its family, which a client can really connect to.
    #[must_use]
    pub fn url(&self) -> String {
        match self {
            Self::Tcp(addr) => {
                let mut addr = *addr;
                if addr.ip().is_unspecified() {
                    addr.set_ip(match addr.ip() {
                        IpAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
                        IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
                    });
                }
                format!("http://{addr}")
            }
            Self::Unix(path) => format!("unix:{}", path.display()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => write!(f, "{addr}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why a `--listen` value cannot be used. Each message quotes the value and says what to write.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// Neither an IP address with a port nor a Unix socket.
    #[error("--listen {value:?}: {why}; write 127.0.0.1:8484, [::1]:8484 or unix:/path/to/socket")]
    Syntax {
        /// The value.
        value: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The path does not fit into a Unix socket's address.
    #[error(
        "--listen {value:?}: the socket path has {bytes} bytes, but the system takes at most \
         {SOCKET_PATH_BYTES_MAX}; choose a shorter directory"
    )]
    PathTooLong {
        /// The value.
        value: String,
        /// The length of its path.
        bytes: usize,
    },
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(value: &str) -> Result<Self, AddressError> {
        let syntax = |why| AddressError::Syntax {
            value: value.to_owned(),
            why,
        };
        if let Some(path) = value.strip_prefix("unix:") {
            return unix(value, path).map(Self::Unix);
        }
        if let Ok(addr) = value.parse::<SocketAddr>() {
            // ::ffff:1.2.3.4 means the IPv4 address, which an IPv6-only socket could not bind.
            return Ok(Self::Tcp(canonical(addr)));
        }
        if value.is_empty() {
            return Err(syntax("the address is empty"));
        }
        if value.contains("://") {
            return Err(syntax("an address is wanted, not a URL"));
        }
        if value.starts_with('/') {
            return Err(syntax("a path needs the prefix unix:"));
        }
        if value.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            return Err(syntax(
                "the port is missing (and an IPv6 address stands in brackets)",
            ));
        }
        let (host, port) = value.rsplit_once(':').unwrap_or(("", value));
        if port.parse::<u16>().is_err() {
            return Err(syntax("the port is not a number from 0 to 65535"));
        }
        Err(syntax(match host {
            "" => "the IP address is missing",
            "*" => "a star is no address (0.0.0.0 is every IPv4 address, [::] every IPv6 one)",
            "localhost" => "localhost may mean two addresses, so name the one you mean",
            _ => "host names are not looked up, only IP addresses are taken",
        }))
    }
}

/// Turns a mapped IPv4 address into a plain one.
fn canonical(mut addr: SocketAddr) -> SocketAddr {
    if let IpAddr::V4(ip) = addr.ip().to_canonical() {
        addr.set_ip(IpAddr::V4(ip));
    }
    addr
}

fn unix(value: &str, path: &str) -> Result<PathBuf, AddressError> {
    let syntax = |why| AddressError::Syntax {
        value: value.to_owned(),
        why,
    };
    if path.contains('\0') {
        return Err(syntax("the path holds a NUL character"));
    }
    if !path.starts_with('/') {
        return Err(syntax("the socket's path is not absolute"));
    }
    if path.ends_with('/') || Path::new(path).file_name().is_none() {
        return Err(syntax("the path names a directory"));
    }
    let bytes = OsStr::new(path).as_bytes().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        return Err(AddressError::PathTooLong {
            value: value.to_owned(),
            bytes,
        });
    }
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::{Address, AddressError, SOCKET_PATH_BYTES_MAX};
    use proptest::prelude::*;

    fn shown(value: &str) -> String {
        value
            .parse::<Address>()
            .map_or_else(|error| panic!("{error}"), |address| address.to_string())
    }

    fn refusal(value: &str) -> String {
        match value.parse::<Address>() {
            Ok(address) => panic!("{value:?} was taken for {address}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn good_values_come_back_as_typed() {
        for value in [
            "127.0.0.1:8484",
            "0.0.0.0:0",
            "[::1]:0",
            "[fe80::1%3]:80",
            "unix:/run/okdb.sock",
        ] {
            assert_eq!(shown(value), value);
        }
        assert_eq!(shown("[::ffff:127.0.0.1]:80"), "127.0.0.1:80");
    }

    #[test]
    fn bad_values_say_what_to_write() {
        for (value, hint) in [
            ("", "empty"),
            ("8484", "IP address is missing"),
            (":8484", "IP address is missing"),
            ("*:8484", "0.0.0.0"),
            ("localhost:8484", "two addresses"),
            ("db.example.com:8484", "not looked up"),
            ("127.0.0.1", "port is missing"),
            ("::1", "port is missing"),
            ("[::1]", "port is missing"),
            ("127.0.0.1:70000", "0 to 65535"),
            ("127.0.0.1:http", "0 to 65535"),
            ("http://127.0.0.1:80", "not a URL"),
            ("/run/okdb.sock", "prefix unix:"),
            ("unix:", "not absolute"),
            ("unix:okdb.sock", "not absolute"),
            ("unix:/", "directory"),
            ("unix:/run/", "directory"),
            ("unix:/run/..", "directory"),
            ("unix:/a\0b", "NUL"),
        ] {
            let message = refusal(value);
            assert!(message.contains(hint), "{value:?}: {message}");
            assert!(message.contains("127.0.0.1:8484"), "{message}");
        }
    }

    #[test]
    fn a_path_that_the_kernel_cannot_take_is_refused_by_its_length_in_bytes() {
        let longest = format!("unix:/{}", "a".repeat(SOCKET_PATH_BYTES_MAX - 1));
        assert_eq!(shown(&longest), longest);
        let umlauts = format!("unix:/{}", "ä".repeat(SOCKET_PATH_BYTES_MAX / 2 + 1));
        assert!(matches!(
            umlauts.parse::<Address>(),
            Err(AddressError::PathTooLong { bytes: 109, .. })
        ));
    }

    #[test]
    fn local_means_this_host_only() {
        for (value, local) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("unix:/a", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("192.168.0.1:1", false),
            ("[::ffff:10.0.0.1]:1", false),
        ] {
            assert_eq!(
                value.parse::<Address>().map(|address| address.is_local()),
                Ok(local),
                "{value}"
            );
        }
    }

    #[test]
    fn urls_can_be_connected_to() {
        for (value, url) in [
            ("127.0.0.1:80", "http://127.0.0.1:80"),
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("[::]:80", "http://[::1]:80"),
            ("unix:/a b", "unix:/a b"),
        ] {
            assert_eq!(
                value.parse::<Address>().map(|address| address.url()),
                Ok(url.to_owned())
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_address_or_a_clear_refusal(text in ".{0,200}") {
            match text.parse::<Address>() {
                Ok(address) => prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address)),
                Err(error) => prop_assert!(error.to_string().contains("--listen")),
            }
        }
    }
}
