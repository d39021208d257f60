//! The server as a whole: its listeners, those that come and go, and a stop that drops nothing that was accepted.
//!
//! Everything runs on one event loop. A stop ends accepting, lets requests finish, answers what still arrives on open
//! connections with `Connection: close`, and returns when the last connection is gone; the caller holds the deadline.

use std::{
    collections::{HashMap, hash_map::Entry},
    future::Future,
    io,
    net::TcpListener as StdTcpListener,
    os::unix::net::UnixListener as StdUnixListener,
    pin::pin,
    rc::Rc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, LocalSet},
};

use crate::{
    accept::{Accepting, Closing, accept},
    app::{App, Serving},
};

/// The part of a drain's time for which connections without a request are kept, in case one is about to come.
const LINGER_PART: u32 = 10;
/// And at most this long: the next worker to be replaced waits for it.
const LINGER_MAX: Duration = Duration::from_secs(1);

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
/// `stop` is ready with the time that is left to end in. Connections that are idle then are kept for a tenth of it, at
/// most a second: the request that comes meanwhile is answered, and the answer says that the connection closes. One that
/// stays idle is closed at a moment when nothing has arrived on it.
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
    stop: impl Future<Output = Duration>,
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
    stop: impl Future<Output = Duration>,
) -> io::Result<()> {
    let own = Door::open(&app, listeners);
    let sweeping = app.connections.keep_sweeping(&app.limits);
    let serving = async {
        let mut adopted = HashMap::new();
        let left = {
            let mut stop = pin!(stop);
            loop {
                tokio::select! {
                    left = &mut stop => break left,
                    // Without anybody who could tell of more, the stop is all that is left to wait for.
                    Some(change) = intake.recv() => heed(&app, &mut adopted, change),
                }
            }
        };
        app.connections.stop(LINGER_MAX.min(left / LINGER_PART));
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
