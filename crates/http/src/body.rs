//! The body of an answer: bytes that are there, or chunks that come from elsewhere on the loop.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::mpsc;

use crate::service::Ticket;

/// What a client receives after the head.
pub(crate) enum Body {
    /// All of it, or `None` once taken.
    Full(Option<Bytes>),
    /// Pieces; boxed, for they are the rare case and the common one is moved around a lot.
    Stream(Box<StreamBody>),
}

/// The end of a channel whose other end a task of the loop fills.
pub(crate) struct StreamBody {
    chunks: mpsc::Receiver<Chunk>,
    ended: bool,
    /// Counts the request as in flight until the last byte is on its way.
    pub(crate) ticket: Option<Ticket>,
}

/// One piece of a streamed body.
pub(crate) enum Chunk {
    /// Bytes to send.
    Data(Bytes),
    /// Nothing follows. A channel that closes without it is an answer cut short, and the client must be able to tell.
    End,
}

/// A streamed answer ended before its end.
#[derive(Debug)]
pub(crate) struct CutShort;

impl fmt::Display for CutShort {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the answer was cut short")
    }
}

impl std::error::Error for CutShort {}

impl Body {
    /// A body without bytes.
    pub(crate) const fn empty() -> Self {
        Self::Full(None)
    }

    /// A body of these bytes.
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        Self::Full(Some(bytes.into()))
    }

    /// A body of what is sent into the channel: `chunks_max` pieces wait at most.
    pub(crate) fn stream(chunks_max: usize) -> (mpsc::Sender<Chunk>, Self) {
        let (sender, chunks) = mpsc::channel(chunks_max);
        let stream = StreamBody {
            chunks,
            ended: false,
            ticket: None,
        };
        (sender, Self::Stream(Box::new(stream)))
    }

    /// How many bytes it will be, where that is known.
    pub(crate) fn len(&self) -> Option<u64> {
        match self {
            Self::Full(bytes) => Some(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Stream(_) => None,
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = CutShort;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutShort>>> {
        match &mut *self {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(stream) if stream.ended => Poll::Ready(None),
            Self::Stream(stream) => match ready!(stream.chunks.poll_recv(context)) {
                Some(Chunk::Data(bytes)) => {
                    if let Some(ticket) = &mut stream.ticket {
                        ticket.sent(bytes.len());
                    }
                    Poll::Ready(Some(Ok(Frame::data(bytes))))
                }
                Some(Chunk::End) => {
                    stream.ended = true;
                    Poll::Ready(None)
                }
                None => {
                    stream.ended = true;
                    if let Some(ticket) = &mut stream.ticket {
                        ticket.failed();
                    }
                    Poll::Ready(Some(Err(CutShort)))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_none(),
            Self::Stream(stream) => stream.ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.len().map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}
