//! A socket as hyper sees it: TCP or Unix, with a note of progress, and with bytes that were read before given back.
//!
//! Between requests nobody but this needs to be there: [`Io::wait`] watches a silent socket without a buffer, and
//! [`Io::part`] closes one so that no request which has arrived is left unanswered.

use std::{
    io::{self, Read as _},
    net::Shutdown,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::{TcpStream, UnixStream},
};

use crate::watch::{Verdict, Watch};

/// What an HTTP/2 client with prior knowledge sends first.
const H2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What remains of the peer's bytes is read this long after the last answer, so that a reset cannot overtake it.
const LINGER: Duration = Duration::from_secs(1);
/// How much of that is read in one go before others get their turn.
const DRAIN_BYTES: usize = 64 * 1024;
/// How much is read at most where a request was not expected any more: a head, or the beginning of one.
const LATE_BYTES: usize = 4 * 1024;

/// Up to this size an answer's head and body are copied together: one plain send costs the kernel less than a gathered
/// one, and copying so little costs next to nothing.
const TOGETHER_BYTES_MAX: usize = 1024;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn raw(&self) -> SockRef<'_> {
        match self {
            Self::Tcp(stream) => SockRef::from(stream),
            Self::Unix(stream) => SockRef::from(stream),
        }
    }

    /// Waits until there may be something to read, or the peer is gone.
    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.ready(Interest::READABLE).await,
            Self::Unix(stream) => stream.ready(Interest::READABLE).await,
        }
        .map(drop)
    }

    fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(room),
            Self::Unix(stream) => stream.try_read(room),
        }
    }
}

/// A connection's two ways.
#[derive(Debug)]
pub(crate) struct Io {
    socket: Socket,
    /// Was read already, and not yet given to hyper.
    before: Bytes,
    /// Whether the peer has said all.
    ended: bool,
    /// What the peer speaks, once it has said enough to tell.
    protocol: Option<Protocol>,
    watch: Rc<Watch>,
}

/// The protocols served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// What became of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The peer has begun to say something.
    For(Protocol),
    /// It has left.
    Left,
    /// The sweep's patience was over first.
    Judged(Verdict),
}

impl Io {
    /// Takes a fresh connection.
    pub(crate) fn new(socket: Socket, watch: Rc<Watch>) -> Self {
        Self {
            socket,
            before: Bytes::new(),
            ended: false,
            protocol: None,
            watch,
        }
    }

    /// Puts back what was read ahead.
    pub(crate) fn give_back(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.watch.heard(true);
            self.before = bytes;
        }
    }

    /// Whether there are bytes that hyper has yet to see.
    pub(crate) fn is_expectant(&self) -> bool {
        !self.before.is_empty()
    }

    /// Waits for the peer to say something, and finds out what it speaks; for the sweep as well.
    pub(crate) async fn wait(&mut self) -> io::Result<Waited> {
        loop {
            if let Some(protocol) = self.protocol
                && self.is_expectant()
            {
                return Ok(Waited::For(protocol));
            }
            tokio::select! {
                readable = self.socket.readable() => readable?,
                verdict = self.watch.judged() => return Ok(Waited::Judged(verdict)),
            }
            // A known peer says the next thing, or leaves: the one or the other is hyper's to read.
            if let Some(protocol) = self.protocol {
                return Ok(Waited::For(protocol));
            }
            if !self.read_first()? {
                return Ok(Waited::Left);
            }
        }
    }

    /// Reads as many bytes as tell the protocol, as far as they are there; `false` if the peer left before.
    fn read_first(&mut self) -> io::Result<bool> {
        let mut first = [0; H2_PREFACE.len()];
        let known = self.before.len();
        let (old, room) = first.split_at_mut(known);
        old.copy_from_slice(&self.before);
        let read = match self.socket.try_read(room) {
            Ok(0) => return Ok(false),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error),
        };
        self.take_first(first.get(..known + read).unwrap_or_default());
        Ok(true)
    }

    /// Takes the first bytes of a connection, all that came so far.
    fn take_first(&mut self, first: &[u8]) {
        self.watch.heard(true);
        self.before = Bytes::copy_from_slice(first);
        if !H2_PREFACE.starts_with(first) && !first.starts_with(H2_PREFACE) {
            self.protocol = Some(Protocol::Http1);
        } else if first.len() >= H2_PREFACE.len() {
            self.watch.multiplex();
            self.protocol = Some(Protocol::Http2);
        }
    }

    /// Ends a connection that nobody uses: tells the peer that nothing follows. `false` if the peer has just said
    /// something, which has to be answered first.
    ///
    /// The kernel itself is asked, for the runtime knows only what it was told; and nothing comes between the question
    /// and the farewell. What the peer sends after that it sends on a connection that it could know to be closed but
    /// for the time that the farewell travels. HTTP/1.1 has no way to close that gap.
    pub(crate) fn part(&mut self) -> bool {
        let mut late = [0; LATE_BYTES];
        let socket = self.socket.raw();
        match (&*socket).read(&mut late) {
            Ok(0) => self.ended = true,
            Ok(read) => {
                let late = late.get(..read).unwrap_or_default();
                if self.protocol.is_some() {
                    self.give_back(Bytes::copy_from_slice(late));
                } else {
                    let first = [&self.before, late].concat();
                    self.take_first(&first);
                }
                return false;
            }
            // Nothing, as it should be; or an error, and then there is nobody to answer.
            Err(_) => {}
        }
        // The peer may be gone; there is nobody left to tell.
        let _ = socket.shutdown(Shutdown::Write);
        true
    }

    /// Sends what fits at once: for a last word to a peer that has not earned patience.
    pub(crate) fn send_now(&self, bytes: &[u8]) {
        // The peer may be gone; there is nobody left to tell.
        let _ = match &self.socket {
            Socket::Tcp(stream) => stream.try_write(bytes),
            Socket::Unix(stream) => stream.try_write(bytes),
        };
    }

    /// Closes so that the peer can still read the last answer: says that nothing follows, then reads what it had under
    /// way. Closing with unread bytes would send a reset, and a reset may overtake the answer.
    pub(crate) async fn close(self) {
        if self.ended || self.socket.raw().shutdown(Shutdown::Write).is_err() {
            return;
        }
        let drain = async {
            while self.socket.readable().await.is_ok() && !self.drained() {
                tokio::task::yield_now().await;
            }
        };
        // Either way the socket closes now.
        let _ = tokio::time::timeout(LINGER, drain).await;
    }

    /// Throws away what is there; whether the peer's bytes are at their end. The buffer lives for the call alone, so that
    /// many connections that end at once need one.
    fn drained(&self) -> bool {
        let mut sink = [0; LATE_BYTES];
        for _ in 0..DRAIN_BYTES / LATE_BYTES {
            match self.socket.try_read(&mut sink) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
        false
    }

    fn note(&self, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match wrote {
            Poll::Pending => self.watch.blocked(),
            Poll::Ready(_) => self.watch.wrote(),
        }
        wrote
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let given_back = !this.before.is_empty();
        if given_back {
            let taken = this.before.len().min(buffer.remaining());
            buffer.put_slice(&this.before.split_to(taken));
            if buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            // And what follows it at once, for hyper makes room anew whenever it gets less than it has room for.
        }
        let before = buffer.filled().len();
        match Pin::new(&mut this.socket).poll_read(context, buffer) {
            Poll::Pending if given_back => return Poll::Ready(Ok(())),
            polled => ready!(polled)?,
        }
        if buffer.filled().len() > before {
            this.watch.heard(this.protocol == Some(Protocol::Http1));
        } else {
            this.ended = buffer.remaining() > 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.note(wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut together = [0; TOGETHER_BYTES_MAX];
        let wrote = if let Some(mut room) = together.get_mut(..length) {
            for slice in slices {
                let (place, rest) = room.split_at_mut(slice.len().min(room.len()));
                place.copy_from_slice(slice.get(..place.len()).unwrap_or_default());
                room = rest;
            }
            let together = together.get(..length).unwrap_or_default();
            Pin::new(&mut self.socket).poll_write(context, together)
        } else {
            Pin::new(&mut self.socket).poll_write_vectored(context, slices)
        };
        self.note(wrote)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::watch::Connections;

    fn connection() -> (Io, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let listed = Rc::new(Connections::new()).list();
        let watch = Rc::clone(&listed.watch);
        (Io::new(Socket::Unix(ours), watch), theirs)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_has_just_arrived_is_kept_and_only_silence_is_left() {
        let (mut io, mut peer) = connection();
        // Neither has the runtime heard of these bytes when the question comes.
        peer.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        assert!(!io.part());
        assert_eq!(io.wait().await.unwrap(), Waited::For(Protocol::Http1));
        let mut head = [0; 16];
        io.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"GET / HTTP/1.1\r\n");
        peer.write_all(b"more").await.unwrap();
        assert!(!io.part());
        io.read_exact(&mut head[..4]).await.unwrap();
        assert_eq!(&head[..4], b"more");
        assert!(io.part());
        assert_eq!(peer.read(&mut head).await.unwrap(), 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_protocol_is_told_however_its_first_bytes_come() {
        for (bytes, protocol) in [
            (b"GET / HTTP/1.1\r\n\r\n".as_slice(), Protocol::Http1),
            (b"P", Protocol::Http1),
            (b"PRI * HTTP/1.1\r\n\r\n", Protocol::Http1),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Protocol::Http2),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore", Protocol::Http2),
        ] {
            for late in [false, true] {
                let (mut io, mut peer) = connection();
                if late {
                    peer.write_all(bytes).await.unwrap();
                    assert!(!io.part());
                } else {
                    for byte in bytes {
                        peer.write_all(&[*byte]).await.unwrap();
                        tokio::task::yield_now().await;
                    }
                }
                if bytes == b"P" {
                    peer.write_all(b"UT").await.unwrap();
                }
                assert_eq!(io.wait().await.unwrap(), Waited::For(protocol));
                let mut read = vec![0; bytes.len()];
                io.read_exact(&mut read).await.unwrap();
                assert_eq!(read, bytes);
            }
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_peer_that_leaves_early_is_noticed() {
        let (mut io, mut peer) = connection();
        peer.write_all(b"PRI * HT").await.unwrap();
        drop(peer);
        assert_eq!(io.wait().await.unwrap(), Waited::Left);
        let (mut io, peer) = connection();
        drop(peer);
        assert!(io.part());
    }
}
