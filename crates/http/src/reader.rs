//! Reading request bodies as they come, and throwing away those that are refused.

use std::{future::poll_fn, pin::Pin, rc::Rc, task::Poll, time::Duration};

use bytes::Bytes;
use http_body::Body as _;
use hyper::{HeaderMap, body::Incoming, header::EXPECT};
use tokio::time::{Sleep, sleep};

use crate::{codes::Code, problem::Problem, watch::Upload};

/// How much of a refused body is read and thrown away so that the client gets to read the refusal.
const DISCARD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long that may take.
const DISCARD: Duration = Duration::from_secs(2);

/// A body as it comes.
pub(crate) struct Reader {
    body: Option<Incoming>,
    /// Tells others what has come.
    upload: Option<Rc<Upload>>,
    patience: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Reader {
    /// Reads a body; between two pieces of it at most `patience` may pass.
    pub(crate) fn new(
        body: Option<Incoming>,
        upload: Option<Rc<Upload>>,
        patience: Duration,
    ) -> Self {
        Self {
            body,
            upload,
            patience,
            timer: None,
        }
    }

    /// Takes back what has not been read.
    pub(crate) fn into_rest(mut self) -> Option<Incoming> {
        self.body.take()
    }

    /// The next bytes, or `None` at the end.
    ///
    /// # Errors
    /// `REQUEST_TIMEOUT` if nothing came in time; `INVALID_PARAMETER` if the body is not framed as HTTP frames bodies.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        let Some(body) = &mut self.body else {
            return Ok(None);
        };
        let (patience, timer) = (self.patience, &mut self.timer);
        let frame = poll_fn(|context| match Pin::new(&mut *body).poll_frame(context) {
            Poll::Ready(frame) => {
                *timer = None;
                Poll::Ready(Some(frame))
            }
            Poll::Pending => {
                let timer = timer.get_or_insert_with(|| Box::pin(sleep(patience)));
                timer.as_mut().poll(context).map(|()| None)
            }
        });
        match frame.await {
            None => Err(Problem::new(
                Code::RequestTimeout,
                "the body stopped coming",
            )),
            Some(None) => {
                self.body = None;
                if let Some(upload) = &self.upload {
                    upload.whole.set(true);
                }
                Ok(None)
            }
            Some(Some(Ok(frame))) => {
                let data = frame.into_data().unwrap_or_default();
                if let Some(upload) = &self.upload {
                    let bytes = upload.bytes.get().saturating_add(data.len() as u64);
                    upload.bytes.set(bytes);
                }
                Ok(Some(data))
            }
            Some(Some(Err(error))) => {
                self.body = None;
                Err(Problem::parameter(format!(
                    "the body could not be read: {error}"
                )))
            }
        }
    }

    /// Gives up on the rest.
    pub(crate) fn discard(mut self, headers: &HeaderMap) {
        if let Some(body) = self.body.take() {
            discard(headers, body, self.upload.take());
        }
    }
}

/// Reads the rest of a body that is not wanted, within bounds, beside the answer.
///
/// A connection closed with unread bytes sends a reset, and the client may lose the answer that explains. A client that
/// waits for leave to send gets none.
pub(crate) fn discard(headers: &HeaderMap, mut body: Incoming, upload: Option<Rc<Upload>>) {
    if body.is_end_stream() {
        if let Some(upload) = upload {
            upload.whole.set(true);
        }
        return;
    }
    if headers.contains_key(EXPECT) {
        return;
    }
    tokio::task::spawn_local(tokio::time::timeout(DISCARD, async move {
        let mut read = 0_usize;
        loop {
            match poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                Some(Ok(frame)) => {
                    read = read.saturating_add(frame.data_ref().map_or(0, Bytes::len));
                    if read > DISCARD_BYTES_MAX {
                        break;
                    }
                }
                Some(Err(_)) => break,
                None => {
                    if let Some(upload) = upload {
                        upload.whole.set(true);
                    }
                    break;
                }
            }
        }
    }));
}
