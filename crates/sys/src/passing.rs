//! Packets that carry descriptors from one process to another (`SCM_RIGHTS`, unix(7)).

#![allow(
    unsafe_code,
    reason = "the kernel makes descriptors that only a number tells of"
)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// Descriptors that one packet carries at most.
pub const DESCRIPTORS_MAX: usize = 64;

/// Sends one packet, with duplicates of `descriptors`; never waits. The packet must not be empty if it brings any.
///
/// # Errors
/// `InvalidInput` for more than [`DESCRIPTORS_MAX`]; `WouldBlock` when the socket is full; else what `sendmsg` reports.
pub fn send(socket: impl AsFd, packet: &[u8], descriptors: &[OwnedFd]) -> io::Result<usize> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let sent = sendmsg::<()>(
        socket.as_fd().as_raw_fd(),
        &[IoSlice::new(packet)],
        if numbers.is_empty() { &[] } else { &rights },
        MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(sent)
}

/// A packet as it was received.
#[derive(Debug)]
pub struct Packet {
    /// How much of the buffer it fills.
    pub length: usize,
    /// What it brought, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
    /// Whether the kernel had to leave out part of the packet or some of its descriptors.
    pub truncated: bool,
}

/// Receives one packet; never waits.
///
/// # Errors
/// `WouldBlock` when there is none; else what `recvmsg` reports.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Packet> {
    let mut space = cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let mut slices = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(
        socket.as_fd().as_raw_fd(),
        &mut slices,
        Some(&mut space),
        MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut descriptors = Vec::new();
    let whole = match message.cmsgs() {
        Ok(parts) => {
            for part in parts {
                if let ControlMessageOwned::ScmRights(numbers) = part {
                    // SAFETY: the kernel has just made these descriptors for this process, and tells their numbers to
                    // nobody else: each gets its one owner here.
                    descriptors.extend(
                        numbers
                            .into_iter()
                            .map(|number| unsafe { OwnedFd::from_raw_fd(number) }),
                    );
                }
            }
            true
        }
        // More than fits: the kernel has installed those that fit, and no list of them can be had. That only happens when
        // the other side is not one of ours, so the few that are lost are its doing, and the connection ends.
        Err(Errno::ENOBUFS) => false,
        Err(errno) => return Err(errno.into()),
    };
    Ok(Packet {
        length: message.bytes,
        descriptors,
        truncated: !whole || message.flags.contains(MsgFlags::MSG_TRUNC),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    use super::*;
    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_descriptor_arrives_as_a_duplicate_that_no_child_inherits() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let mut file = tempfile();
        file.write_all(b"hello").unwrap();
        let copy = OwnedFd::from(file.try_clone().unwrap());
        assert_eq!(send(&ours, b"here", &[copy]).unwrap(), 4);
        let mut buffer = [0; 16];
        let packet = receive(&theirs, &mut buffer).unwrap();
        assert_eq!(&buffer[..packet.length], b"here");
        assert!(!packet.truncated);
        let [received] = <[OwnedFd; 1]>::try_from(packet.descriptors).unwrap();
        let flags = FdFlag::from_bits_retain(fcntl(&received, FcntlArg::F_GETFD).unwrap());
        assert!(flags.contains(FdFlag::FD_CLOEXEC));
        let mut received = File::from(received);
        received.rewind().unwrap();
        let mut text = String::new();
        received.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn nothing_waits_and_too_many_are_refused() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let error = receive(&theirs, &mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let many: Vec<OwnedFd> = (0..=DESCRIPTORS_MAX).map(|_| tempfile().into()).collect();
        let error = send(&ours, b"x", &many).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        send(&ours, b"x", &many[..DESCRIPTORS_MAX]).unwrap();
        let packet = receive(&theirs, &mut [0; 1]).unwrap();
        assert_eq!(packet.descriptors.len(), DESCRIPTORS_MAX);
    }

    #[test]
    fn a_packet_that_does_not_fit_says_so() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        send(&ours, b"long", &[]).unwrap();
        assert!(receive(&theirs, &mut [0; 2]).unwrap().truncated);
    }

    fn tempfile() -> File {
        let path =
            std::env::temp_dir().join(format!("okdb-passing-{}-{:p}", std::process::id(), &0));
        let file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(path).ok();
        file
    }
}
