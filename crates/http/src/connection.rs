//! One connection, from its first byte to its farewell.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    rc::Rc,
    task::Poll,
};

use hyper::{
    rt::Executor,
    server::conn::{http1, http2},
};
use hyper_util::rt::TokioIo;

use crate::{
    app::App,
    io::{Io, Protocol, Socket, Waited},
    service::Service,
    watch::{Listed, Verdict, Watch},
};

/// What a peer is told whose request head took too long, where there is no request yet that could be answered.
const HEAD_TIMEOUT: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
/// Why a connection is dropped whose peer takes no bytes.
const DEAF: &str = "the peer does not read";
/// How many sweeps in a row an HTTP/2 peer without requests may stay after it was told to leave.
const TELL_TO_LEAVE_MAX: u32 = 3;
/// Space for what one HTTP/2 stream may send before its client asks for more.
const SEND_BUFFER_BYTES: usize = 256 * 1024;

/// Starts to serve a connection.
pub(crate) fn open(app: &Rc<App>, socket: Socket) {
    let connected = Connected::new(app);
    tokio::task::spawn_local(async move {
        // What ends a connection early is the peer's doing or its network's, and normal.
        if let Err(error) = drive(&connected.app, socket, &connected.listed).await {
            tracing::debug!(error = &*error, "a connection ended early");
        }
    });
}

/// A connection as others count it, until it is dropped.
struct Connected {
    app: Rc<App>,
    listed: Listed,
}

impl Connected {
    fn new(app: &Rc<App>) -> Self {
        app.host.connection_opened();
        Self {
            app: Rc::clone(app),
            listed: app.connections.list(),
        }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.app.host.connection_closed();
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Serves a connection to its end.
async fn drive(app: &Rc<App>, socket: Socket, listed: &Listed) -> Result<(), Failure> {
    let watch = &listed.watch;
    let mut io = Io::new(socket, Rc::clone(watch));
    loop {
        watch.park(true);
        let mut waited = io.wait().await?;
        // What serves is boxed, for a connection spends most of its life waiting, and should be small then.
        if let Waited::For(protocol) = waited {
            watch.park(false);
            let service = Service {
                app: Rc::clone(app),
                watch: Rc::clone(watch),
            };
            match protocol {
                Protocol::Http1 => match Box::pin(drive_http1(app, io, service, watch)).await? {
                    Some(quiet) => (io, waited) = (quiet.io, Waited::Judged(quiet.why)),
                    None => return Ok(()),
                },
                Protocol::Http2 => {
                    return Box::pin(drive_http2(app, io, service, watch)).await;
                }
            }
        }
        match waited {
            Waited::For(_) | Waited::Judged(Verdict::Park | Verdict::Stay) => {}
            Waited::Left => return Ok(()),
            Waited::Judged(Verdict::Close) if io.is_expectant() || !io.part() => {}
            Waited::Judged(Verdict::Close) => {
                // Who made room for others makes it now.
                if !watch.is_evicted() {
                    io.close().await;
                }
                return Ok(());
            }
            Waited::Judged(Verdict::HeadTimeout) => {
                io.send_now(HEAD_TIMEOUT);
                io.close().await;
                return Ok(());
            }
            Waited::Judged(Verdict::Drop) => return Err(DEAF.into()),
        }
    }
}

/// An HTTP/1.1 connection between two requests, with nothing of either in any buffer but its own.
struct Quiet {
    io: Io,
    /// What the sweep wants with it.
    why: Verdict,
}

/// How a stretch of HTTP/1.1 came to its end.
enum End {
    /// By itself.
    Over(Result<(), Failure>),
    /// The sweep asked for it between two requests.
    Quiet(Verdict),
    /// The sweep's patience with a head was over.
    HeadTimeout,
    /// The sweep's patience with a peer that does not read was over.
    Deaf,
}

/// Serves HTTP/1.1 until the connection ends, which gives `None`, or until the sweep finds it idle.
async fn drive_http1(
    app: &App,
    io: Io,
    service: Service,
    watch: &Watch,
) -> Result<Option<Quiet>, Failure> {
    // Its own timer for heads would cost each request an allocation and two turns of the timer wheel; the sweep does it.
    let mut connection = http1::Builder::new()
        .max_header_size(app.limits.header_bytes)
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(io), service);
    let end = poll_fn(|context| {
        watch.wake_with(context.waker());
        // What has arrived goes first: the sweep may have judged before it did.
        if let Poll::Ready(ended) = connection.poll_without_shutdown(context) {
            return Poll::Ready(End::Over(ended.map_err(Failure::from)));
        }
        let verdict = watch.take_verdict();
        match verdict {
            Verdict::HeadTimeout if watch.is_in_head() => return Poll::Ready(End::HeadTimeout),
            Verdict::Drop if !watch.writable() => return Poll::Ready(End::Deaf),
            // An idle one ends at once; one that still takes in the body of a refused request ends after it.
            Verdict::Close if watch.is_answered() => {}
            Verdict::Park if watch.is_quiet() => {}
            _ => return Poll::Pending,
        }
        let quiet = watch.is_quiet();
        Pin::new(&mut connection).graceful_shutdown();
        connection.poll_without_shutdown(context).map(|ended| {
            if quiet && ended.is_ok() {
                End::Quiet(verdict)
            } else {
                End::Over(ended.map_err(Failure::from))
            }
        })
    })
    .await;
    let parts = connection.into_parts();
    let mut io = parts.io.into_inner();
    match end {
        End::Quiet(why) => {
            io.give_back(parts.read_buf);
            Ok(Some(Quiet { io, why }))
        }
        End::Over(Err(failure)) if !watch.writable() => Err(failure),
        End::Over(ended) => {
            io.close().await;
            ended.map(|()| None)
        }
        End::HeadTimeout => {
            io.send_now(HEAD_TIMEOUT);
            io.close().await;
            Ok(None)
        }
        End::Deaf => Err(DEAF.into()),
    }
}

async fn drive_http2(app: &App, io: Io, service: Service, watch: &Watch) -> Result<(), Failure> {
    let limits = &app.limits;
    let connection = http2::Builder::new(OnLoop)
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let mut told = 0_u32;
    poll_fn(|context| {
        watch.wake_with(context.waker());
        match watch.take_verdict() {
            Verdict::Stay | Verdict::Park => {}
            // GOAWAY tells which streams were taken; what it crosses the client sends again elsewhere. A peer that has
            // been told and stays idle does not answer any more.
            Verdict::Close if told >= TELL_TO_LEAVE_MAX => return Poll::Ready(Ok(())),
            Verdict::Close => {
                told += 1;
                connection.as_mut().graceful_shutdown();
            }
            Verdict::HeadTimeout | Verdict::Drop => {
                return Poll::Ready(Err(DEAF.into()));
            }
        }
        connection
            .as_mut()
            .poll(context)
            .map(|ended| ended.map_err(Failure::from))
    })
    .await
}

/// Runs the streams of an HTTP/2 connection as tasks of the loop.
#[derive(Clone, Copy)]
struct OnLoop;

impl<F: Future + 'static> Executor<F> for OnLoop {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async {
            future.await;
        });
    }
}
