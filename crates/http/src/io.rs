//! A socket as hyper sees it: TCP or Unix, with a note of progress, and with the bytes that told its protocol given back.

use std::{
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::{TcpStream, UnixStream},
};

use crate::watch::Watch;

/// What an HTTP/2 client with prior knowledge sends first.
const H2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What remains of the peer's bytes is read this long after the last answer, so that a reset cannot overtake it.
const LINGER: Duration = Duration::from_secs(1);

/// Up to this size an answer's head and body are copied together: one plain send costs the kernel less than a gathered
/// one, and copying so little costs next to nothing.
const TOGETHER_BYTES_MAX: usize = 1024;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection's two ways.
#[derive(Debug)]
pub(crate) struct Io {
    socket: Socket,
    /// Read before hyper took over, and not yet given to it.
    first: [u8; H2_PREFACE.len()],
    first_from: usize,
    first_to: usize,
    /// Whether the peer has said all.
    ended: bool,
    heads: bool,
    watch: Rc<Watch>,
}

/// The protocols served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

impl Io {
    /// Reads as many bytes as tell the protocol; `None` if the peer left before.
    pub(crate) async fn open(
        mut socket: Socket,
        watch: Rc<Watch>,
    ) -> io::Result<Option<(Self, Protocol)>> {
        let mut first = [0; H2_PREFACE.len()];
        let mut count = 0;
        let protocol = loop {
            let Some(room) = first.get_mut(count..).filter(|room| !room.is_empty()) else {
                watch.multiplex();
                break Protocol::Http2;
            };
            let read = socket.read(room).await?;
            if read == 0 {
                return Ok(None);
            }
            watch.heard(true);
            count += read;
            if first.get(..count) != H2_PREFACE.get(..count) {
                break Protocol::Http1;
            }
        };
        let io = Self {
            socket,
            first,
            first_from: 0,
            first_to: count,
            ended: false,
            heads: protocol == Protocol::Http1,
            watch,
        };
        Ok(Some((io, protocol)))
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
    pub(crate) async fn close(mut self) {
        if self.ended || self.socket.shutdown().await.is_err() {
            return;
        }
        let drain = async {
            let mut sink = vec![0; 16 * 1024];
            while matches!(self.socket.read(&mut sink).await, Ok(read) if read > 0) {}
        };
        // Either way the socket closes now.
        let _ = tokio::time::timeout(LINGER, drain).await;
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(rest) = this.first.get(this.first_from..this.first_to)
            && !rest.is_empty()
        {
            let taken = rest.len().min(buffer.remaining());
            buffer.put_slice(rest.get(..taken).unwrap_or_default());
            this.first_from += taken;
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.socket).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            this.watch.heard(this.heads);
        } else if buffer.remaining() > 0 {
            this.ended = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl Io {
    fn note(&self, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match wrote {
            Poll::Pending => self.watch.blocked(),
            Poll::Ready(_) => self.watch.wrote(),
        }
        wrote
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
