//! Packets that carry descriptors from one process to another (`SCM_RIGHTS`, unix(7)).

#![allow(
    unsafe_code,
    reason = "the kernel makes descriptors that only a number tells of"
)]

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// Descriptors that one packet carries at most.
pub const DESCRIPTORS_MAX: usize = 64;

/// Descriptors that the kernel lets anybody put into one packet (`SCM_MAX_FD`). There is room for all of them, so that
/// what arrives can be closed, even if it is more than we ever send.
const KERNEL_DESCRIPTORS_MAX: usize = 253;

/// Room for the part of a packet that carries descriptors.
const CONTROL_BYTES: usize = {
    #[expect(clippy::cast_possible_truncation, reason = "about a thousand bytes")]
    let bytes = (KERNEL_DESCRIPTORS_MAX * size_of::<RawFd>()) as libc::c_uint;
    // SAFETY: arithmetic on a length.
    unsafe { libc::CMSG_SPACE(bytes) as usize }
};

/// Aligned as the kernel's headers in it are.
#[repr(C, align(8))]
struct Control(MaybeUninit<[u8; CONTROL_BYTES]>);

const _: () = assert!(align_of::<Control>() >= align_of::<libc::cmsghdr>());

/// Sends one packet, with duplicates of `descriptors`; never waits. The packet must not be empty if it brings any.
///
/// # Errors
/// `InvalidInput` for more than [`DESCRIPTORS_MAX`]; `WouldBlock` when the socket is full; else what `sendmsg` reports:
/// `ETOOMANYREFS` when this user has more descriptors on their way than one process may have open.
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
    /// Whether it did not fit into the buffer.
    pub truncated: bool,
    /// Whether some of its descriptors are missing: this process may not open any more.
    pub missing: bool,
}

/// Receives one packet; never waits.
///
/// # Errors
/// `WouldBlock` when there is none; else what `recvmsg` reports.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Packet> {
    let mut control = Control(MaybeUninit::uninit());
    let mut space = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: msghdr is a C structure for which all zeros is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut space;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = CONTROL_BYTES as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names two live buffers with their lengths, and nothing else.
    let length = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, flags) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    Ok(Packet {
        length,
        descriptors: descriptors_of(&header),
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        missing: header.msg_flags & libc::MSG_CTRUNC != 0,
    })
}

/// Takes what came with the message that the kernel has just written.
fn descriptors_of(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has set the length of the buffer that the header names to what it wrote there.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: null, or a header that the kernel wrote there, aligned as it writes them.
    while let Some(head) = unsafe { part.as_ref() } {
        if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: arithmetic on a length.
            let before = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = head.cmsg_len.saturating_sub(before) / size_of::<RawFd>();
            // SAFETY: the data of this part lie behind its header.
            let numbers = unsafe { libc::CMSG_DATA(part) }.cast::<[u8; size_of::<RawFd>()]>();
            descriptors.reserve_exact(count);
            for index in 0..count {
                // SAFETY: below the count that the part's length leaves room for.
                let number = unsafe { numbers.add(index) };
                // SAFETY: written by the kernel, and bytes need no alignment.
                let number = RawFd::from_ne_bytes(unsafe { number.read() });
                // SAFETY: the kernel has just made this descriptor for this process and tells its number to nobody
                // else: it gets its one owner here.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
        // SAFETY: `part` is a header of this message.
        part = unsafe { libc::CMSG_NXTHDR(header, part) };
    }
    descriptors
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    use super::*;
    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    use std::fs::File;
    use std::io::{Read, Seek};
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_descriptor_arrives_as_a_duplicate_that_no_child_inherits() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let file = File::from(crate::exec::memory_file("okdb-test", b"hello").unwrap());
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
        assert!(!packet.missing);
    }

    #[test]
    fn all_that_the_kernel_lets_through_is_taken_in() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let file = tempfile();
        let numbers = [file.as_raw_fd(); KERNEL_DESCRIPTORS_MAX];
        // Several parts in one packet, as a stranger could send them.
        let parts = [
            ControlMessage::ScmRights(&numbers[..100]),
            ControlMessage::ScmRights(&numbers[..50]),
        ];
        for parts in [&[ControlMessage::ScmRights(&numbers)][..], &parts[..]] {
            let data = [IoSlice::new(b"x")];
            let flags = MsgFlags::empty();
            sendmsg::<()>(ours.as_raw_fd(), &data, parts, flags, None).unwrap();
        }
        for count in [KERNEL_DESCRIPTORS_MAX, 150] {
            let packet = receive(&theirs, &mut [0; 1]).unwrap();
            assert_eq!(packet.descriptors.len(), count);
            assert!(!packet.missing);
        }
    }

    #[test]
    fn a_packet_that_does_not_fit_says_so() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        send(&ours, b"long", &[]).unwrap();
        assert!(receive(&theirs, &mut [0; 2]).unwrap().truncated);
    }

    fn tempfile() -> File {
        File::from(crate::exec::memory_file("okdb-test", b"").unwrap())
    }
}
