//! The workers that the stories are about. Each answers a connection with its pid.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use okdb_cluster::parent::Watch;
use okdb_cluster::spawner::Inherited;
use okdb_ipc::{Connection, Incoming, ToPrimary, ToWorker};
use okdb_sys::Signal;
use okdb_sys::host::monotonic_ms;
use okdb_sys::signals::Signals;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::harness::{PARENT, SLOT};

/// Serves, and leaves when asked to.
pub(crate) const GOOD: &str = "good";
/// Serves, and will not leave.
pub(crate) const STUBBORN: &str = "stubborn";
/// Says Ready and is never heard of again.
pub(crate) const MUTE: &str = "mute";
/// Serves and will not leave; when its primary is gone its event loop hangs, too.
pub(crate) const STUCK: &str = "stuck";

/// Serves until it hears that a neighbour has died, and tells what it has been told.
pub(crate) const LISTENER: &str = "listener";
/// What a [`LISTENER`] ends with.
pub(crate) const HEARD: i32 = 42;

const HEARTBEAT: Duration = Duration::from_millis(50);

pub(crate) fn run(role: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    runtime.block_on(serve(role));
}

async fn serve(role: &str) {
    let mut signals = Signals::install(&[Signal::Term, Signal::Int]).expect("signals");
    let signalled = signals.as_fd().try_clone_to_owned().expect("duplicate");
    let signalled = StdUnixStream::from(signalled);
    signalled.set_nonblocking(true).expect("flag");
    let signalled = UnixStream::from_std(signalled).expect("signals");
    let inherited = Inherited::take(1).expect("inherited descriptors");
    let duplicate = inherited.ipc.try_clone().expect("duplicate");
    let leaves = role != STUCK;
    let watch = Watch::start(duplicate, number(PARENT), move || {
        if leaves {
            leave(0);
        }
    });
    watch.expect("watchdog");
    let listener = inherited.listeners.into_iter().next().expect("a listener");
    let listener = TcpListener::from_std(listener.into()).expect("listener");
    let mut ipc = Connection::new(inherited.ipc).expect("connection");
    let (pid, slot) = (std::process::id(), number(SLOT));
    ipc.send(&ToPrimary::Hello { pid, slot })
        .await
        .expect("hello");
    ipc.send(&ToPrimary::Ready).await.expect("ready");
    let mut heartbeat = tokio::time::interval(HEARTBEAT);
    let mut adopted: HashMap<u16, Vec<tokio::task::JoinHandle<()>>> = HashMap::new();
    loop {
        tokio::select! {
            _ = heartbeat.tick(), if role != MUTE => {
                let at_ms = monotonic_ms();
                // A primary that is gone is noticed elsewhere.
                let _ = ipc.try_send(&ToPrimary::Heartbeat { at_ms });
            }
            message = ipc.next() => match message {
                Ok(Some(Incoming { message, descriptors })) => match message {
                    ToWorker::Config(json) | ToWorker::Snapshot(json) => hear(role, &json),
                    ToWorker::Drain { .. } => leave_if_asked(role, &mut ipc).await,
                    ToWorker::Adopt { slot } => {
                        let tasks = descriptors.into_iter().map(|listener| tokio::spawn(answer_all(listener)));
                        adopted.insert(slot, tasks.collect());
                    }
                    ToWorker::Release { slot } => {
                        for task in adopted.remove(&slot).unwrap_or_default() {
                            task.abort();
                        }
                    }
                },
                Ok(None) | Err(_) if role == STUCK => loop {
                    std::thread::park();
                },
                Ok(None) | Err(_) => leave(0),
            },
            _ = signalled.readable() => {
                if !signals.drain().is_empty() {
                    leave_if_asked(role, &mut ipc).await;
                }
                // Tells the runtime that the socket is empty again.
                let _ = signalled.try_read(&mut [0; 8]);
            }
            client = listener.accept() => {
                if let Ok((client, _)) = client {
                    answer(client).await;
                }
            }
        }
    }
}

async fn answer(mut client: TcpStream) {
    let pid = std::process::id();
    let _ = client.write_all(format!("{pid}\n").as_bytes()).await;
}

/// Answers what arrives for another slot.
async fn answer_all(listener: OwnedFd) {
    let listener = TcpListener::from_std(listener.into()).expect("listener");
    loop {
        if let Ok((client, _)) = listener.accept().await {
            answer(client).await;
        }
    }
}

fn hear(role: &str, json: &str) {
    if role == LISTENER {
        eprintln!("{json}");
        if json.contains("Backoff") {
            leave(HEARD);
        }
    }
}

async fn leave_if_asked(role: &str, ipc: &mut Connection) {
    if !matches!(role, STUBBORN | STUCK) {
        let _ = ipc.send(&ToPrimary::Bye).await;
        leave(0);
    }
}

#[allow(
    clippy::exit,
    reason = "a scripted worker ends where the script says so"
)]
fn leave(code: i32) -> ! {
    std::process::exit(code);
}

fn number<T: std::str::FromStr>(name: &str) -> T {
    let text = std::env::var(name).unwrap_or_default();
    text.parse()
        .unwrap_or_else(|_| panic!("{name}={text:?} is no number"))
}
