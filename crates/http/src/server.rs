//! Accepting and driving connections, and stopping without dropping what was accepted.
//!
//! Everything runs on one event loop. A stop ends accepting, lets requests finish, answers what still arrives on open
//! connections with `Connection: close`, and returns when the last connection is gone; the caller holds the deadline.

use std::{
    collections::{HashMap, hash_map::Entry},
    future::Future,
    io,
    net::{TcpListener as StdTcpListener, TcpStream as StdTcpStream},
    os::unix::net::UnixListener as StdUnixListener,
    pin::pin,
    rc::Rc,
    task::Poll,
    time::{Duration, Instant},
};

use hyper::{
    rt::Executor,
    server::conn::{http1, http2},
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{mpsc, watch},
    task::{JoinHandle, LocalSet},
};

use crate::{
    app::{App, Serving},
    io::{Io, Protocol, Socket},
    limits::HttpLimits,
    service::Service,
    watch::{Listed, Verdict},
};

/// The pause after an accept that failed for lack of something, such as descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(75);
/// How often such a failure is logged.
const ACCEPT_LOG_EVERY: Duration = Duration::from_secs(1);
/// Connections that are accepted in one go before others get their turn.
const ACCEPT_BURST_MAX: u32 = 64;
/// What a peer is told whose request head took too long, where there is no request yet that could be answered.
const HEAD_TIMEOUT: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
/// How many sweeps in a row an HTTP/2 peer without requests may stay after it was told to leave.
const TELL_TO_LEAVE_MAX: u32 = 3;
/// Space for what one HTTP/2 stream may send before its client asks for more.
const SEND_BUFFER_BYTES: usize = 256 * 1024;

/// A listening socket, bound and listening already.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(StdTcpListener),
    /// A Unix stream socket.
    Unix(StdUnixListener),
}

/// Listeners that come and go while a server serves.
#[derive(Debug)]
pub enum Intake {
    /// Accepts from another slot's listeners, too. Without effect for a slot that was adopted already.
    Adopt {
        /// Whose they are.
        slot: u16,
        /// The listeners. Others may accept from them at the same time.
        listeners: Vec<Listener>,
    },
    /// Accepts from them no more. What was accepted is served; what still waits is left to who goes on accepting.
    Release {
        /// Whose they are.
        slot: u16,
    },
}

/// Serves until `stop` is ready and every connection has ended. `intake` tells of listeners that come and go.
///
/// To be awaited on a current-thread runtime with I/O and time; it brings what it needs to run tasks that stay on the
/// thread. A caller that wants a deadline for the drain drops the future, which drops what is still open.
///
/// # Errors
/// When a listener cannot be handed to the runtime.
pub async fn serve(
    listeners: Vec<Listener>,
    intake: mpsc::UnboundedReceiver<Intake>,
    serving: Serving,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let app = Rc::new(App::new(serving));
    let listeners = listeners
        .into_iter()
        .map(Accepting::new)
        .collect::<io::Result<Vec<_>>>()?;
    LocalSet::new()
        .run_until(run(app, listeners, intake, stop))
        .await
}

async fn run(
    app: Rc<App>,
    listeners: Vec<Accepting>,
    mut intake: mpsc::UnboundedReceiver<Intake>,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let own = Door::open(&app, listeners);
    let sweeping = app.connections.keep_sweeping(&app.limits);
    let serving = async {
        let mut adopted = HashMap::new();
        {
            let mut stop = pin!(stop);
            loop {
                tokio::select! {
                    () = &mut stop => break,
                    // Without anybody who could tell of more, the stop is all that is left to wait for.
                    Some(change) = intake.recv() => heed(&app, &mut adopted, change),
                }
            }
        }
        app.connections.stop();
        app.connections.sweep(&app.limits);
        let doors: Vec<Door> = std::iter::once(own).chain(adopted.into_values()).collect();
        for door in &doors {
            door.tell(Closing::Drain);
        }
        for door in doors {
            door.closed().await;
        }
        app.connections.until(|count| count == 0).await;
    };
    let (mut sweeping, mut serving) = (pin!(sweeping), pin!(serving));
    std::future::poll_fn(|context| {
        // The sweep never ends by itself.
        let _ = sweeping.as_mut().poll(context);
        serving.as_mut().poll(context)
    })
    .await;
    Ok(())
}

/// Takes listeners in, or lets go of them.
fn heed(app: &Rc<App>, adopted: &mut HashMap<u16, Door>, change: Intake) {
    match change {
        Intake::Adopt { slot, listeners } => {
            if let Entry::Vacant(place) = adopted.entry(slot) {
                match listeners.into_iter().map(Accepting::new).collect() {
                    Ok(listeners) => {
                        tracing::debug!(slot, "answering for another slot");
                        place.insert(Door::open(app, listeners));
                    }
                    Err(error) => {
                        tracing::error!(slot, %error, "cannot answer for another slot");
                    }
                }
            }
        }
        Intake::Release { slot } => {
            if let Some(door) = adopted.remove(&slot) {
                door.tell(Closing::Leave);
            }
        }
    }
}

/// How to close a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    /// Not yet.
    Open,
    /// After what the kernel has accepted already was taken in: closing a listener would reset it.
    Drain,
    /// At once: others accept from the same listeners.
    Leave,
}

/// Listeners that are accepted from, each by a task of its own.
struct Door {
    closing: watch::Sender<Closing>,
    tasks: Vec<JoinHandle<()>>,
}

impl Door {
    fn open(app: &Rc<App>, listeners: Vec<Accepting>) -> Self {
        let (closing, told) = watch::channel(Closing::Open);
        let accept = |listener| accept(Rc::clone(app), listener, told.clone());
        let tasks = listeners
            .into_iter()
            .map(|listener| tokio::task::spawn_local(accept(listener)));
        Self {
            tasks: tasks.collect(),
            closing,
        }
    }

    fn tell(&self, closing: Closing) {
        self.closing.send_replace(closing);
    }

    /// Waits until its tasks have ended.
    async fn closed(self) {
        for task in self.tasks {
            if let Err(failed) = task.await {
                tracing::error!(cause = %failed, "a listener's task ended badly");
            }
        }
    }
}

/// A listener on the runtime.
enum Accepting {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Accepting {
    fn new(listener: Listener) -> io::Result<Self> {
        Ok(match listener {
            Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Self::Tcp(TcpListener::from_std(listener)?)
            }
            Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Self::Unix(UnixListener::from_std(listener)?)
            }
        })
    }

    async fn accept(&self) -> io::Result<Socket> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                no_delay(&stream);
                Socket::Tcp(stream)
            }
            Self::Unix(listener) => Socket::Unix(listener.accept().await?.0),
        })
    }

    /// Back to a socket that can be asked directly what waits: the runtime only knows what it was told.
    fn into_listener(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(listener.into_std()?),
            Self::Unix(listener) => Listener::Unix(listener.into_std()?),
        })
    }
}

impl Listener {
    /// A connection that waits already.
    fn accept_now(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => socket_of_tcp(listener.accept()?.0),
            Self::Unix(listener) => {
                let stream = listener.accept()?.0;
                stream.set_nonblocking(true)?;
                Ok(Socket::Unix(UnixStream::from_std(stream)?))
            }
        }
    }
}

fn socket_of_tcp(stream: StdTcpStream) -> io::Result<Socket> {
    stream.set_nonblocking(true)?;
    let stream = TcpStream::from_std(stream)?;
    no_delay(&stream);
    Ok(Socket::Tcp(stream))
}

/// Without it small answers may wait for the peer's acknowledgement; a socket that refuses is no reason to refuse the
/// client.
fn no_delay(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
}

/// Accepts until the door is closed.
async fn accept(app: Rc<App>, listener: Accepting, mut told: watch::Receiver<Closing>) {
    let mut failing = Failing::default();
    let mut burst = 0;
    loop {
        let room = app
            .connections
            .until(|count| count < app.limits.connections);
        if until_told(&mut told, room).await.is_none() {
            break;
        }
        match until_told(&mut told, listener.accept()).await {
            None => break,
            Some(Ok(socket)) => {
                open(&app, socket);
                burst += 1;
                if burst >= ACCEPT_BURST_MAX {
                    burst = 0;
                    tokio::task::yield_now().await;
                }
            }
            Some(Err(error)) => {
                let pause = failing.note(&error);
                if until_told(&mut told, tokio::time::sleep(pause))
                    .await
                    .is_none()
                {
                    break;
                }
            }
        }
    }
    if *told.borrow() != Closing::Drain {
        return;
    }
    let queued = match listener.into_listener() {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%error, "cannot look for connections that wait at a stop");
            return;
        }
    };
    while app.connections.count() < app.limits.connections {
        match queued.accept_now() {
            Ok(socket) => open(&app, socket),
            // A peer that gave up while it waited does not end this; that nobody waits, or lack of descriptors, does.
            Err(error) if is_peers_fault(&error) => {}
            Err(_) => break,
        }
    }
}

/// Waits for `future`; `None` if the door shall be closed first.
async fn until_told<F: Future>(
    told: &mut watch::Receiver<Closing>,
    future: F,
) -> Option<F::Output> {
    tokio::select! {
        biased;
        // An error means that the server is gone, or that the door was left.
        _ = told.wait_for(|closing| *closing != Closing::Open) => None,
        output = future => Some(output),
    }
}

/// Whether an accept failed for this connection alone.
fn is_peers_fault(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// Accepts that fail: when they were last logged, and how many since.
#[derive(Default)]
struct Failing {
    logged: Option<Instant>,
    unlogged: u64,
}

impl Failing {
    /// Logs a failure, but not each, and tells how long to wait.
    fn note(&mut self, error: &io::Error) -> Duration {
        if is_peers_fault(error) {
            return Duration::ZERO;
        }
        if self
            .logged
            .is_none_or(|logged| logged.elapsed() >= ACCEPT_LOG_EVERY)
        {
            tracing::warn!(%error, unlogged = self.unlogged, "cannot accept connections; trying again");
            self.logged = Some(Instant::now());
            self.unlogged = 0;
        } else {
            self.unlogged += 1;
        }
        ACCEPT_PAUSE
    }
}

/// Starts to serve a connection.
fn open(app: &Rc<App>, socket: Socket) {
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
    let opening = Io::open(socket, Rc::clone(&listed.watch));
    let opened = tokio::select! {
        opened = opening => opened?,
        // It has not said what it wants in time.
        () = listed.watch.judged() => None,
    };
    let Some((io, protocol)) = opened else {
        return Ok(());
    };
    let service = Service {
        app: Rc::clone(app),
        watch: Rc::clone(&listed.watch),
    };
    match protocol {
        Protocol::Http1 => drive_http1(&app.limits, io, service, listed).await,
        Protocol::Http2 => drive_http2(&app.limits, io, service, listed).await,
    }
}

async fn drive_http1(
    limits: &HttpLimits,
    io: Io,
    service: Service,
    listed: &Listed,
) -> Result<(), Failure> {
    // Its own timer for heads would cost each request an allocation and two turns of the timer wheel; the sweep does it.
    let mut connection = http1::Builder::new()
        .max_header_size(limits.header_bytes)
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(io), service);
    let watch = &listed.watch;
    let (ended, last_word) = std::future::poll_fn(|context| {
        watch.wake_with(context.waker());
        match watch.take_verdict() {
            Verdict::Stay => {}
            Verdict::Close => std::pin::Pin::new(&mut connection).graceful_shutdown(),
            Verdict::HeadTimeout => return Poll::Ready((Ok(()), Some(HEAD_TIMEOUT))),
            Verdict::Drop => return Poll::Ready((Err("the peer does not read".into()), None)),
        }
        connection
            .poll_without_shutdown(context)
            .map(|ended| (ended.map_err(Failure::from), None))
    })
    .await;
    let io = connection.into_parts().io.into_inner();
    match last_word {
        Some(word) => io.send_now(word),
        None if ended.is_ok() || listed.watch.writable() => {}
        None => return ended,
    }
    io.close().await;
    ended
}

async fn drive_http2(
    limits: &HttpLimits,
    io: Io,
    service: Service,
    listed: &Listed,
) -> Result<(), Failure> {
    let connection = http2::Builder::new(OnLoop)
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    let watch = &listed.watch;
    let mut told = 0_u32;
    std::future::poll_fn(|context| {
        watch.wake_with(context.waker());
        match watch.take_verdict() {
            Verdict::Stay => {}
            // GOAWAY tells which streams were taken; what it crosses the client sends again elsewhere. A peer that has
            // been told and stays idle does not answer any more.
            Verdict::Close if told >= TELL_TO_LEAVE_MAX => return Poll::Ready(Ok(())),
            Verdict::Close => {
                told += 1;
                connection.as_mut().graceful_shutdown();
            }
            Verdict::HeadTimeout | Verdict::Drop => {
                return Poll::Ready(Err("the peer does not read".into()));
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
