//! Binding the listeners: one per slot and TCP address, one shared by all slots per Unix socket.
//!
//! Runs in the primary, before anything is spawned. The primary keeps every listener open for its slot's
//! lifetime, so that connections which the kernel has accepted outlive the worker that should answer
//! them. Workers get theirs by inheritance.

mod unix;

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use thiserror::Error;

use crate::address::Address;
use crate::exit::ExitCode;
use crate::handover::{HandedAddress, HandedSockets, ResumeError, take};
use crate::holder::{self, Holder};

/// How many accepted connections the kernel may queue per listener. `net.core.somaxconn` may lower it.
pub const BACKLOG: i32 = 1_024;

/// Why the listeners could not be had. Nothing stays bound then.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Somebody listens there.
    #[error("address {address} is already in use{}", held_by(.holder.as_ref()))]
    AddressInUse {
        /// The address.
        address: Address,
        /// Who it is, if that can be known.
        holder: Option<Holder>,
    },
    /// The same address was given twice.
    #[error("--listen {address} was given more than once")]
    Duplicate {
        /// The address.
        address: Address,
    },
    /// A file that is no socket stands where a Unix socket should.
    #[error(
        "cannot listen on {address}: something that is not a socket has that path; remove it or choose another"
    )]
    NotASocket {
        /// The address.
        address: Address,
    },
    /// A socket that a service manager passed is of no use.
    #[error("a socket that the service manager passed cannot be served: {source}")]
    Given {
        /// Why.
        source: io::Error,
    },
    /// The system refused.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// The address.
        address: Address,
        /// Why.
        source: io::Error,
    },
}

impl ListenError {
    /// What the server ends with because of it.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::AddressInUse { .. } => ExitCode::AddressInUse,
            Self::Duplicate { .. } | Self::NotASocket { .. } | Self::Given { .. } => {
                ExitCode::Usage
            }
            Self::Io { .. } => ExitCode::RuntimeFailure,
        }
    }
}

fn held_by(holder: Option<&Holder>) -> String {
    match holder {
        None => String::new(),
        Some(holder) if holder.pid == std::process::id() => {
            " by another listener of this server".to_owned()
        }
        Some(holder) => format!(" by another process ({holder})"),
    }
}

/// All listeners of a server. Dropping it closes them and removes the files of its Unix sockets, unless
/// somebody has put others in their place.
#[derive(Debug)]
pub struct Listeners {
    bound: Vec<Bound>,
    slots: NonZeroU16,
}

#[derive(Debug)]
struct Bound {
    address: Address,
    sockets: Sockets,
}

#[derive(Debug)]
enum Sockets {
    /// One for each slot.
    PerSlot(Vec<OwnedFd>),
    /// One for all, whose file is ours.
    Unix(unix::Listening),
    /// One for all, which a service manager made.
    Given(OwnedFd),
}

impl Listeners {
    /// Binds every address for `slots` slots: all of them, or none.
    ///
    /// The caller holds the root's lock, so that no second server of the same root is at this point. A
    /// Unix socket's file is made with mode 0600 (only the same user may connect); one that nobody listens on any more
    /// is replaced. TCP listeners are IPv6-only where they are IPv6: an address is what it says.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind(wishes: &[Address], slots: NonZeroU16) -> Result<Self, ListenError> {
        let mut bound: Vec<Bound> = Vec::with_capacity(wishes.len());
        for (index, address) in wishes.iter().enumerate() {
            let any_port = matches!(address, Address::Tcp(addr) if addr.port() == 0);
            if !any_port && wishes[..index].contains(address) {
                return Err(ListenError::Duplicate {
                    address: address.clone(),
                });
            }
            bound.push(match address {
                Address::Tcp(addr) => bind_tcp(*addr, slots)?,
                Address::Unix(path) => {
                    let sockets = Sockets::Unix(unix::listen(path, BACKLOG)?);
                    Bound {
                        address: address.clone(),
                        sockets,
                    }
                }
            });
        }
        Ok(Self { bound, slots })
    }

    /// What the next program needs to go on with them, see [`crate::handover`].
    pub(crate) fn hand_over(&self) -> Vec<HandedAddress> {
        let handed = self.bound.iter().map(|bound| HandedAddress {
            address: bound.address.to_string(),
            sockets: match &bound.sockets {
                Sockets::PerSlot(sockets) => {
                    HandedSockets::PerSlot(sockets.iter().map(AsRawFd::as_raw_fd).collect())
                }
                Sockets::Unix(listening) => HandedSockets::Unix {
                    fd: listening.as_fd().as_raw_fd(),
                    file: listening.file(),
                },
                Sockets::Given(socket) => HandedSockets::Given(socket.as_raw_fd()),
            },
        });
        handed.collect()
    }

    /// Goes on with what was handed over for `slots` slots.
    pub(crate) fn resume(
        handed: Vec<HandedAddress>,
        slots: NonZeroU16,
    ) -> Result<Self, ResumeError> {
        let mut bound = Vec::with_capacity(handed.len());
        for HandedAddress { address, sockets } in handed {
            let address: Address = address
                .parse()
                .map_err(|error| ResumeError::Malformed(format!("{error}")))?;
            let sockets = match (sockets, &address) {
                (HandedSockets::PerSlot(fds), _) => {
                    Sockets::PerSlot(fds.into_iter().map(take).collect::<io::Result<_>>()?)
                }
                (HandedSockets::Unix { fd, file }, Address::Unix(path)) => {
                    Sockets::Unix(unix::Listening::resume(take(fd)?, path, file))
                }
                (HandedSockets::Unix { .. }, Address::Tcp(_)) => {
                    return Err(ResumeError::Malformed(format!("{address} has no file")));
                }
                (HandedSockets::Given(fd), _) => Sockets::Given(take(fd)?),
            };
            bound.push(Bound { address, sockets });
        }
        Ok(Self { bound, slots })
    }

    /// All descriptors.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.bound.iter().flat_map(|bound| {
            let (per_slot, shared) = match &bound.sockets {
                Sockets::PerSlot(sockets) => (sockets.as_slice(), None),
                Sockets::Unix(listening) => (&[][..], Some(listening.as_fd())),
                Sockets::Given(socket) => (&[][..], Some(socket.as_fd())),
            };
            per_slot.iter().map(AsFd::as_fd).chain(shared)
        })
    }

    /// Adds sockets that a service manager made and that listen already. Every slot's worker accepts from them, and
    /// their files, if they have any, stay the manager's.
    ///
    /// # Errors
    /// [`ListenError::Io`] when one of them has no address of a kind that is served.
    pub fn add_given(&mut self, sockets: Vec<OwnedFd>) -> Result<(), ListenError> {
        for socket in sockets {
            let address = given_address(&socket)?;
            self.bound.push(Bound {
                address,
                sockets: Sockets::Given(socket),
            });
        }
        Ok(())
    }

    /// The addresses as bound, in the order in which they were wished for.
    #[must_use]
    pub fn addresses(&self) -> impl ExactSizeIterator<Item = &Address> {
        self.bound.iter().map(|bound| &bound.address)
    }

    /// For how many slots there are listeners.
    #[must_use]
    pub fn slots(&self) -> NonZeroU16 {
        self.slots
    }

    /// Makes sure that `slot` has its listeners. From then on the kernel chooses them for a share of all new
    /// connections, so somebody has to accept from them, for good.
    ///
    /// # Errors
    /// See [`ListenError`]; some of the listeners may have been made then, and the next call makes the rest.
    pub fn ensure_slot(&mut self, slot: u16) -> Result<(), ListenError> {
        let wanted = usize::from(slot) + 1;
        for bound in &mut self.bound {
            if let (Address::Tcp(addr), Sockets::PerSlot(sockets)) =
                (&bound.address, &mut bound.sockets)
            {
                join_tcp(sockets, *addr, wanted).map_err(explain(*addr))?;
            }
        }
        self.slots = self.slots.max(NonZeroU16::MIN.saturating_add(slot));
        Ok(())
    }

    /// The listeners that a slot's worker accepts from, in the order of [`Listeners::addresses`].
    pub fn of_slot(&self, slot: u16) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.bound
            .iter()
            .filter_map(move |bound| match &bound.sockets {
                Sockets::PerSlot(sockets) => sockets.get(usize::from(slot)).map(AsFd::as_fd),
                Sockets::Unix(listening) => Some(listening.as_fd()),
                Sockets::Given(socket) => Some(socket.as_fd()),
            })
    }

    /// Those of them that no other slot's worker accepts from.
    pub fn only_of_slot(&self, slot: u16) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.bound
            .iter()
            .filter_map(move |bound| match &bound.sockets {
                Sockets::PerSlot(sockets) => sockets.get(usize::from(slot)).map(AsFd::as_fd),
                Sockets::Unix(_) | Sockets::Given(_) => None,
            })
    }

    /// Closes them all, as dropping does. Workers that inherited some still have theirs.
    pub fn close(&mut self) {
        self.bound.clear();
    }
}

fn explain(addr: SocketAddr) -> impl Fn(io::Error) -> ListenError {
    move |source: io::Error| {
        let address = Address::Tcp(addr);
        if source.kind() == io::ErrorKind::AddrInUse {
            ListenError::AddressInUse {
                address,
                holder: holder::of_tcp(addr),
            }
        } else {
            ListenError::Io { address, source }
        }
    }
}

fn bind_tcp(wish: SocketAddr, slots: NonZeroU16) -> Result<Bound, ListenError> {
    // SO_REUSEPORT would let any process of this user join silently. So the first socket comes without
    // it, and of two servers one gets EADDRINUSE, at bind or, if both are that far, at listen.
    let first = tcp_socket(wish).map_err(explain(wish))?;
    listen(&first, wish).map_err(explain(wish))?;
    let addr = local_addr(&first).map_err(explain(wish))?;
    let mut sockets = vec![OwnedFd::from(first)];
    join_tcp(&mut sockets, addr, usize::from(slots.get())).map_err(explain(addr))?;
    Ok(Bound {
        address: Address::Tcp(addr),
        sockets: Sockets::PerSlot(sockets),
    })
}

/// More listeners on an address that is ours, until there are `wanted`.
fn join_tcp(sockets: &mut Vec<OwnedFd>, addr: SocketAddr, wanted: usize) -> io::Result<()> {
    while sockets.len() < wanted {
        // Only now may others join, and a server that has one listener never lets them.
        if let Some(first) = sockets.first() {
            SockRef::from(first).set_reuse_port(true)?;
        }
        let socket = tcp_socket(addr)?;
        socket.set_reuse_port(true)?;
        listen(&socket, addr)?;
        sockets.push(socket.into());
    }
    Ok(())
}

fn tcp_socket(addr: SocketAddr) -> io::Result<Socket> {
    // Close-on-exec comes with the call.
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of a server that has just ended linger in TIME_WAIT; they must not block the next one.
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    // Accepted connections inherit it, which spares each one a call.
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

fn listen(socket: &Socket, addr: SocketAddr) -> io::Result<()> {
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)
}

fn local_addr(socket: &Socket) -> io::Result<SocketAddr> {
    socket
        .local_addr()?
        .as_socket()
        .ok_or_else(|| io::Error::other("the socket has no IP address"))
}

/// The address of a socket that was made elsewhere.
fn given_address(socket: &OwnedFd) -> Result<Address, ListenError> {
    let local = SockRef::from(socket).local_addr();
    let refuse = |source| ListenError::Given { source };
    let local = local.map_err(refuse)?;
    if let Some(addr) = local.as_socket() {
        return Ok(Address::Tcp(addr));
    }
    local
        .as_pathname()
        .map(|path| Address::Unix(path.to_owned()))
        .ok_or_else(|| refuse(io::Error::other("it has neither an IP address nor a path")))
}
