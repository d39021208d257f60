//! Accepting connections, also while descriptors are short, and letting go of a listener without losing one.

use std::{
    cell::RefCell,
    future::Future,
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream as StdTcpStream},
    os::unix::net::UnixDatagram,
    rc::Rc,
    time::{Duration, Instant},
};

use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::watch,
};

use crate::{app::App, connection, io::Socket, server::Listener};

/// The pause after an accept that failed for lack of something, such as descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(75);
/// How often such a failure is logged.
const ACCEPT_LOG_EVERY: Duration = Duration::from_secs(1);
/// Connections that are accepted in one go before others get their turn.
const ACCEPT_BURST_MAX: u32 = 64;
/// How many idle connections are closed at a time to make room for others.
const EVICTED_MAX: usize = 32;
/// How many connections may be open beyond the limit, while those that were closed for them take their leave.
const SURPLUS_MAX: usize = 64;
/// How long descriptors may be short before clients are turned away rather than left to wait: longer than it takes until
/// an idle connection may be closed for them.
const SHORTAGE_PATIENCE: Duration = Duration::from_secs(2);
/// What they are told.
const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
/// How much of what they had sent is read, so that no reset overtakes the answer.
const TURNED_AWAY_BYTES_MAX: usize = 64 * 1024;
/// The process, and the system, has no descriptor left. The same number on every architecture of Linux.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// How to close a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// Not yet.
    Open,
    /// After what the kernel has accepted already was taken in: closing a listener would reset it.
    Drain,
    /// At once: others accept from the same listeners.
    Leave,
}

/// A listener on the runtime.
pub(crate) enum Accepting {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Accepting {
    pub(crate) fn new(listener: Listener) -> io::Result<Self> {
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

    fn raw(&self) -> SockRef<'_> {
        match self {
            Self::Tcp(listener) => SockRef::from(listener),
            Self::Unix(listener) => SockRef::from(listener),
        }
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
    fn raw(&self) -> SockRef<'_> {
        match self {
            Self::Tcp(listener) => SockRef::from(listener),
            Self::Unix(listener) => SockRef::from(listener),
        }
    }

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
pub(crate) async fn accept(app: Rc<App>, listener: Accepting, mut told: watch::Receiver<Closing>) {
    let mut failing = Failing::default();
    let mut burst = 0;
    loop {
        match until_told(&mut told, listener.accept()).await {
            None => break,
            Some(Ok(socket)) => {
                failing.over();
                // It is served in any case, if only as the last one.
                let made_room = until_told(&mut told, make_room(&app)).await;
                connection::open(&app, socket);
                if made_room.is_none() {
                    break;
                }
                burst += 1;
                if burst >= ACCEPT_BURST_MAX {
                    burst = 0;
                    tokio::task::yield_now().await;
                }
            }
            Some(Err(error)) if is_peers_fault(&error) => {}
            Some(Err(error)) => {
                failing.note(&error);
                if is_shortage(&error) && app.connections.evict(EVICTED_MAX) == 0 && failing.long()
                {
                    app.reserve.turn_away(&listener.raw());
                }
                let pause = tokio::time::sleep(ACCEPT_PAUSE);
                if until_told(&mut told, pause).await.is_none() {
                    break;
                }
            }
        }
    }
    if *told.borrow() == Closing::Drain {
        drain(&app, listener);
    }
}

/// Waits until one more connection may be open, and closes one that is idle to that end.
async fn make_room(app: &App) {
    let connections = &app.connections;
    let limit = app.limits.connections;
    loop {
        let count = connections.count();
        if count < limit || count < limit + SURPLUS_MAX && connections.evict(1) > 0 {
            return;
        }
        let room = connections.until(|count| count < limit);
        // Others become idle meanwhile.
        let _ = tokio::time::timeout(ACCEPT_PAUSE, room).await;
    }
}

/// Takes in what the kernel has accepted already.
fn drain(app: &Rc<App>, listener: Accepting) {
    let queued = match listener.into_listener() {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%error, "cannot look for connections that wait at a stop");
            return;
        }
    };
    while app.connections.count() < app.limits.connections {
        match queued.accept_now() {
            Ok(socket) => connection::open(app, socket),
            // A peer that gave up while it waited does not end this.
            Err(error) if is_peers_fault(&error) => {}
            Err(error) => {
                if is_shortage(&error) {
                    app.reserve.turn_away(&queued.raw());
                }
                return;
            }
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

/// Whether an accept failed because there are no descriptors left.
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(EMFILE | ENFILE))
}

/// Accepts that fail: since when, when they were last logged, and how many since.
#[derive(Default)]
struct Failing {
    since: Option<Instant>,
    logged: Option<Instant>,
    unlogged: u64,
}

impl Failing {
    /// Logs a failure, but not each.
    fn note(&mut self, error: &io::Error) {
        let now = Instant::now();
        self.since.get_or_insert(now);
        if self
            .logged
            .is_none_or(|logged| now.duration_since(logged) >= ACCEPT_LOG_EVERY)
        {
            tracing::warn!(%error, unlogged = self.unlogged, "cannot accept connections; trying again");
            self.logged = Some(now);
            self.unlogged = 0;
        } else {
            self.unlogged += 1;
        }
    }

    /// Whether nothing has been accepted for long.
    fn long(&self) -> bool {
        self.since
            .is_some_and(|since| since.elapsed() >= SHORTAGE_PATIENCE)
    }

    /// Something was accepted.
    fn over(&mut self) {
        self.since = None;
    }
}

/// A descriptor kept for the time when there is no other: with it a client can be told so, instead of being left to wait
/// for an answer that does not come.
#[derive(Debug)]
pub(crate) struct Reserve(RefCell<Option<UnixDatagram>>);

impl Reserve {
    pub(crate) fn new() -> Self {
        Self(RefCell::new(UnixDatagram::unbound().ok()))
    }

    /// Refuses the connections that wait at a listener.
    fn turn_away(&self, listener: &SockRef<'_>) {
        let mut reserve = self.0.borrow_mut();
        for _ in 0..ACCEPT_BURST_MAX {
            // Another thread may take the descriptor that this frees: then there is no answer, this time.
            drop(reserve.take());
            let accepted = listener.accept();
            if let Ok((socket, _)) = &accepted {
                refuse(socket);
            }
            let over = accepted.is_err();
            drop(accepted);
            *reserve = UnixDatagram::unbound().ok();
            if over {
                return;
            }
        }
    }
}

/// Tells a client to try again, without waiting for anything. What cannot be told to it now is not told.
fn refuse(mut socket: &socket2::Socket) {
    let told = socket
        .set_nonblocking(true)
        .and_then(|()| socket.write(TURNED_AWAY));
    if told.is_err() || socket.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let mut sink = [0; 4 * 1024];
    let mut read = 0;
    while read < TURNED_AWAY_BYTES_MAX {
        match socket.read(&mut sink) {
            Ok(count) if count > 0 => read += count,
            _ => return,
        }
    }
}
