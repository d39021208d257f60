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
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use crate::address::Address;
use crate::exit::ExitCode;
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
            Self::Duplicate { .. } | Self::NotASocket { .. } => ExitCode::Usage,
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
    /// One for each slot; `None` once the slot has been given up.
    PerSlot(Vec<Option<OwnedFd>>),
    Shared(unix::Listening),
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
                    let sockets = Sockets::Shared(unix::listen(path, BACKLOG)?);
                    Bound {
                        address: address.clone(),
                        sockets,
                    }
                }
            });
        }
        Ok(Self { bound, slots })
    }

    /// The addresses as bound, in the order in which they were wished for.
    #[must_use]
    pub fn addresses(&self) -> impl ExactSizeIterator<Item = &Address> {
        self.bound.iter().map(|bound| &bound.address)
    }

    /// For how many slots they are.
    #[must_use]
    pub fn slots(&self) -> NonZeroU16 {
        self.slots
    }

    /// The listeners of a slot, in the order of [`Listeners::addresses`]; fewer once it was closed.
    pub fn of_slot(&self, slot: u16) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.bound
            .iter()
            .filter_map(move |bound| match &bound.sockets {
                Sockets::PerSlot(sockets) => {
                    sockets.get(usize::from(slot))?.as_ref().map(AsFd::as_fd)
                }
                Sockets::Shared(listening) => Some(listening.as_fd()),
            })
    }

    /// Closes them all, as dropping does. Workers that inherited some still have theirs.
    pub fn close(&mut self) {
        self.bound.clear();
    }

    /// Closes the listeners that only this slot has, so that the kernel stops choosing them for new
    /// connections. Those in their queues are reset.
    pub fn close_slot(&mut self, slot: u16) {
        for bound in &mut self.bound {
            if let Sockets::PerSlot(sockets) = &mut bound.sockets
                && let Some(socket) = sockets.get_mut(usize::from(slot))
            {
                *socket = None;
            }
        }
    }
}

fn bind_tcp(wish: SocketAddr, slots: NonZeroU16) -> Result<Bound, ListenError> {
    let explain = |addr: SocketAddr| {
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
    };
    // SO_REUSEPORT would let any process of this user join silently. So the first socket comes without
    // it, and of two servers one gets EADDRINUSE, at bind or, if both are that far, at listen.
    let first = tcp_socket(wish).map_err(explain(wish))?;
    listen(&first, wish).map_err(explain(wish))?;
    let addr = local_addr(&first).map_err(explain(wish))?;
    let mut sockets = vec![Some(OwnedFd::from(first))];
    for _ in 1..slots.get() {
        let socket = tcp_socket(addr).map_err(explain(addr))?;
        if let Some(Some(first)) = sockets.first() {
            socket2::SockRef::from(first)
                .set_reuse_port(true)
                .map_err(explain(addr))?;
        }
        socket.set_reuse_port(true).map_err(explain(addr))?;
        listen(&socket, addr).map_err(explain(addr))?;
        sockets.push(Some(OwnedFd::from(socket)));
    }
    Ok(Bound {
        address: Address::Tcp(addr),
        sockets: Sockets::PerSlot(sockets),
    })
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
