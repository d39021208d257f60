//! Socket activation: listeners that the service manager made and passed under the numbers from 3 on.

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::os::fd::{OwnedFd, RawFd};

use okdb_sys::fd::set_nonblocking;
use okdb_sys::spawn::{INHERITED_FD_MIN, take_inherited_fd};
use socket2::{Domain, SockRef, Type};

/// How many sockets may be passed.
pub const PASSED_MAX: usize = 64;

/// Takes the sockets that were passed to this process: close-on-exec and non-blocking from then on. `env` looks a
/// variable up, `own_pid` is this process. Call it once, and not in a program that goes on as a server's primary: there,
/// the variables are still those of the first start, and the sockets come another way.
///
/// # Errors
/// `InvalidInput`, in words for the operator: a variable that makes no sense, or something that is not a listening stream
/// socket.
pub fn take(env: impl Fn(&str) -> Option<OsString>, own_pid: u32) -> io::Result<Vec<OwnedFd>> {
    let Some(count) = passed(&env, own_pid)? else {
        return Ok(Vec::new());
    };
    let names = env("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.to_string_lossy();
    let mut names = names.split(':').filter(|name| !name.is_empty());
    (INHERITED_FD_MIN..)
        .take(count)
        .map(|number| {
            let name = names.next().unwrap_or("unknown");
            take_one(number)
                .map_err(|error| refuse(format_args!("descriptor {number} ({name:?}): {error}")))
        })
        .collect()
}

/// How many sockets were passed to this process; `None` if they are meant for another one, or there are none.
///
/// # Errors
/// `InvalidInput`, in words for the operator: the count makes no sense.
pub fn passed(env: impl Fn(&str) -> Option<OsString>, own_pid: u32) -> io::Result<Option<usize>> {
    let Some(pid) = env("LISTEN_PID") else {
        return Ok(None);
    };
    if pid.to_str() != Some(own_pid.to_string().as_str()) {
        return Ok(None);
    }
    let said = env("LISTEN_FDS").unwrap_or_default();
    let said = said.to_string_lossy();
    match said.parse() {
        Ok(0) => Ok(None),
        Ok(count @ 1..=PASSED_MAX) => Ok(Some(count)),
        _ => Err(refuse(format_args!(
            "LISTEN_FDS={said:?} is not a number up to {PASSED_MAX}"
        ))),
    }
}

fn take_one(number: RawFd) -> io::Result<OwnedFd> {
    let fd = take_inherited_fd(number)?;
    check(&fd)?;
    set_nonblocking(&fd, true)?;
    Ok(fd)
}

/// Whether connections can be accepted from it.
fn check(fd: &OwnedFd) -> io::Result<()> {
    let socket = SockRef::from(fd);
    let kind = socket.r#type().map_err(|error| {
        if error.raw_os_error() == Some(nix::libc::ENOTSOCK) {
            refuse("it is not a socket")
        } else {
            error
        }
    })?;
    if kind != Type::STREAM {
        return Err(refuse(
            "it is not a stream socket: the socket unit wants ListenStream=",
        ));
    }
    if ![Domain::IPV4, Domain::IPV6, Domain::UNIX].contains(&socket.domain()?) {
        return Err(refuse("it is neither an IP nor a Unix socket"));
    }
    if !socket.is_listener()? {
        return Err(refuse(
            "it does not listen: the socket unit wants Accept=no",
        ));
    }
    Ok(())
}

fn refuse(why: impl Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.to_string())
}

#[cfg(test)]
mod tests;
