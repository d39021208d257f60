//! A listening Unix socket and its file.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};

use super::ListenError;
use crate::address::Address;
use crate::holder;

/// Only the same user may connect.
const SOCKET_MODE: u32 = 0o600;
/// How long to wait for another server that is making a socket in the same directory. It holds the lock
/// for microseconds, so whoever takes longer is not one.
const DIRECTORY_LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// How often to try meanwhile.
const DIRECTORY_LOCK_STEP: Duration = Duration::from_millis(5);

/// A listening socket that owns its file.
#[derive(Debug)]
pub(super) struct Listening {
    socket: Socket,
    path: PathBuf,
    /// Device and inode of the file that the socket made.
    file: (u64, u64),
}

impl Listening {
    /// One that another program had made in this process.
    pub(super) fn resume(socket: OwnedFd, path: &Path, file: (u64, u64)) -> Self {
        Self {
            socket: socket.into(),
            path: path.to_owned(),
            file,
        }
    }

    /// Device and inode of its file.
    pub(super) fn file(&self) -> (u64, u64) {
        self.file
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // By now another server may have its own socket there.
        if identity(&self.path).is_ok_and(|file| file == self.file)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "could not remove the socket's file");
        }
    }
}

/// Binds and listens at `path`, replacing the file of a socket that nobody listens on any more.
pub(super) fn listen(path: &Path, backlog: i32) -> Result<Listening, ListenError> {
    let address = Address::Unix(path.to_owned());
    match try_listen(path, backlog) {
        Ok(Outcome::Listening(listening)) => Ok(listening),
        Ok(Outcome::Held(pid)) => Err(ListenError::AddressInUse {
            address,
            holder: pid.map(holder::named),
        }),
        Ok(Outcome::NotASocket) => Err(ListenError::NotASocket { address }),
        Err(source) => Err(ListenError::Io { address, source }),
    }
}

enum Outcome {
    Listening(Listening),
    Held(Option<u32>),
    NotASocket,
}

fn try_listen(path: &Path, backlog: i32) -> io::Result<Outcome> {
    // From the look at the old file to listen(), nobody else may do the same: a socket that is bound
    // but does not listen yet looks just like one whose server is dead.
    let _lock = lock_directory(path)?;
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Ok(Outcome::NotASocket),
        Ok(_) => match probe(path)? {
            Probe::Held(pid) => return Ok(Outcome::Held(pid)),
            Probe::Stale => fs::remove_file(path)?,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // The mode of the socket is that of the file it makes, so there is no moment of a wider one.
    fchmod(&socket, Mode::from_bits_truncate(SOCKET_MODE))?;
    socket.set_nonblocking(true)?;
    match socket.bind(&SockAddr::unix(path)?) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Ok(Outcome::Held(None)),
        Err(error) => return Err(error),
    }
    let listening = Listening {
        file: identity(path)?,
        socket,
        path: path.to_owned(),
    };
    listening.socket.listen(backlog)?;
    Ok(Outcome::Listening(listening))
}

enum Probe {
    Held(Option<u32>),
    Stale,
}

/// Whether anybody listens. Only a refusal proves that nobody does: a stopped server accepts into its
/// queue, one with a full queue answers "again".
fn probe(path: &Path) -> io::Result<Probe> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Ok(()) => {
            let peer = getsockopt(&socket, PeerCredentials).ok();
            Ok(Probe::Held(
                peer.and_then(|peer| u32::try_from(peer.pid()).ok())
                    .filter(|pid| *pid > 0),
            ))
        }
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused => Ok(Probe::Stale),
            io::ErrorKind::WouldBlock => Ok(Probe::Held(None)),
            _ => Err(error),
        },
    }
}

/// A lock on the directory itself: it leaves nothing behind, and ends with the process.
fn lock_directory(path: &Path) -> io::Result<File> {
    let directory = path
        .parent()
        .ok_or_else(|| io::Error::other("the path has no directory"))?;
    let file = File::open(directory)?;
    let deadline = Instant::now() + DIRECTORY_LOCK_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                return Err(io::Error::other(format!(
                    "another process holds a lock on the directory {}",
                    directory.display()
                )));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(DIRECTORY_LOCK_STEP),
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}
