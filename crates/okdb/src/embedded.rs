//! A server in a program of one's own: one process, or a cluster whose workers are copies of the program.
//!
//! The supervisor runs on a thread that lives exactly as long as the cluster: the system binds the death signal of a worker to
//! the *thread* that started it.

mod copy;
mod signals;

use std::{
    fmt,
    num::NonZeroU16,
    ops::Deref,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use okdb_cluster::{
    address::{Address, AddressError},
    driver::{Control, Order, Orders, control},
    exit::ExitCode,
    workers::WORKER_COUNT_MAX,
};
use okdb_store::{Durability, Store};
use okdb_sys::signals::Blocked;

pub use copy::serve_if_worker;

use crate::{
    Db,
    process::Telemetry,
    server::{self, Birth, Program, ServerConfig, ServerError, status::ClusterSnapshot},
};
use signals::Heeded;

/// Where a server listens if nothing else is said.
const LISTEN_DEFAULT: &str = "127.0.0.1:8484";

/// What a server shall be like. What is not said is as the `okdb` command has it, but for the number of workers: one.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let server = okdb::Server::builder(folder.path().join("data"))
///     .listen("127.0.0.1:0")
///     .start()?;
/// println!("serving on {}", server.urls().join(" "));
/// server.db().ensure_type("users")?.put("ada", &"Ada")?;
/// server.stop()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ServerBuilder {
    /// With an empty list of addresses: they are read at the start.
    config: ServerConfig,
    listen: Vec<String>,
    handle_signals: bool,
}

impl ServerBuilder {
    fn new(root: PathBuf) -> Self {
        Self {
            config: ServerConfig {
                root,
                listen: Vec::new(),
                workers: NonZeroU16::MIN,
                durability: None,
                map_size: None,
                segment_in_root: false,
                force_private_segment: std::env::var("OKDB_FORCE_SHM_FALLBACK")
                    .is_ok_and(|value| value == "1"),
                insecure_no_auth: false,
                auto_types: false,
                access_log: false,
                body_bytes: 16_842_752,
                value_bytes: 16 << 20,
                connections: 10_000,
                shutdown_grace_ms: 3_000,
                worker_timeout_ms: 30_000,
                drain_timeout_ms: 30_000,
                worker_log_arguments: Vec::new(),
                program: Program::default(),
            },
            listen: Vec::new(),
            handle_signals: false,
        }
    }

    /// One more address to listen on: `127.0.0.1:8484` (the default), `[::1]:0`, `unix:/path/to/socket`.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen.push(address.into());
        self
    }

    /// How many processes serve. One, the default, is this very process: nothing is started. More are copies of this
    /// program, for which `main` has to begin with [`serve_if_worker`]. 0 counts as 1, and more than 224 as 224.
    pub fn workers(mut self, count: u16) -> Self {
        let count = count.min(WORKER_COUNT_MAX);
        self.config.workers = NonZeroU16::new(count).unwrap_or(NonZeroU16::MIN);
        self
    }

    /// See [`crate::Builder::durability`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.config.durability = Some(durability);
        self
    }

    /// See [`crate::Builder::map_size`]. In bytes.
    pub fn map_size(mut self, bytes: u64) -> Self {
        self.config.map_size = Some(bytes);
        self
    }

    /// Puts the shared segment into the root, for where `/dev/shm` is not shared or too small.
    pub fn segment_in_root(mut self, on: bool) -> Self {
        self.config.segment_in_root = on;
        self
    }

    /// Registers an unknown type at the first write to it.
    pub fn auto_types(mut self, on: bool) -> Self {
        self.config.auto_types = on;
        self
    }

    /// Allows addresses that other hosts reach, though whoever reaches them may read and write everything.
    pub fn insecure_no_auth(mut self, on: bool) -> Self {
        self.config.insecure_no_auth = on;
        self
    }

    /// Whether each request leaves a line in the log.
    pub fn access_log(mut self, on: bool) -> Self {
        self.config.access_log = on;
        self
    }

    /// The largest request body, in bytes.
    pub fn body_bytes(mut self, bytes: usize) -> Self {
        self.config.body_bytes = bytes;
        self
    }

    /// The largest value, in bytes of compact JSON.
    pub fn value_bytes(mut self, bytes: usize) -> Self {
        self.config.value_bytes = bytes;
        self
    }

    /// Open connections of each worker.
    pub fn connections(mut self, count: usize) -> Self {
        self.config.connections = count;
        self
    }

    /// How long a stop may take.
    pub fn shutdown_grace(mut self, time: Duration) -> Self {
        self.config.shutdown_grace_ms = millis(time);
        self
    }

    /// How long a worker that is replaced or scaled away may take to finish.
    pub fn drain_timeout(mut self, time: Duration) -> Self {
        self.config.drain_timeout_ms = millis(time);
        self
    }

    /// How long a worker's event loop may be silent before it is killed.
    pub fn worker_timeout(mut self, time: Duration) -> Self {
        self.config.worker_timeout_ms = millis(time);
        self
    }

    /// Takes over signals of this process, which the library otherwise leaves alone: `TERM` and `INT` stop the server, `HUP`
    /// reloads it, `TTIN` and `TTOU` scale it. While none is running, `TERM` and `INT` end the process.
    pub fn handle_signals(mut self) -> Self {
        self.handle_signals = true;
        self
    }

    /// Starts the server and waits until it serves: every address, with all workers. Blocks, so an async program calls it
    /// where it may.
    ///
    /// The server opens the root; where this process has it open already, drop that [`Db`] first and use [`ServerHandle::db`].
    ///
    /// # Errors
    /// [`ServerError`]: why it did not come up. Nothing of it is left then.
    pub fn start(self) -> Result<Server, ServerError> {
        copy::check(self.config.workers)?;
        let config = self.config()?;
        let (control, orders) =
            control().map_err(ServerError::system("cannot make a socket pair"))?;
        let heeded = self
            .handle_signals
            .then(|| Heeded::new(&control))
            .transpose()
            .map_err(ServerError::system("cannot take signals over"))?;
        let (tell, told) = mpsc::channel();
        let latest = Latest::default();
        let news = Arc::clone(&latest);
        // The program's signals are for its own threads.
        let deaf = Blocked::all().map_err(ServerError::system("cannot block signals"))?;
        let thread = std::thread::Builder::new()
            .name("okdb-server".into())
            .spawn(move || {
                let _heeded = heeded;
                supervise(config, orders, &news, tell)
            });
        drop(deaf);
        let thread = thread.map_err(ServerError::system("cannot start the server's thread"))?;
        match told.recv() {
            Ok(up) => Ok(Server {
                handle: ServerHandle(Arc::new(Running {
                    snapshot: up.snapshot,
                    latest,
                    db: Db::of_server(up.store, up.telemetry),
                    control,
                })),
                thread: Some(thread),
            }),
            Err(mpsc::RecvError) => Err(match end(thread) {
                Ok(()) => ServerError::Ended(ExitCode::Clean),
                Err(error) => error,
            }),
        }
    }

    fn config(&self) -> Result<ServerConfig, ServerError> {
        let default = [LISTEN_DEFAULT.to_owned()];
        let listen = if self.listen.is_empty() {
            &default[..]
        } else {
            &self.listen
        };
        let listen = listen
            .iter()
            .map(|address| address.parse())
            .collect::<Result<Vec<Address>, AddressError>>()
            .map_err(|error| ServerError::Config(error.to_string()))?;
        Ok(ServerConfig {
            listen,
            ..self.config.clone()
        })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What the server's thread has to tell when every worker serves.
struct Up {
    store: Store,
    telemetry: Arc<Telemetry>,
    snapshot: ClusterSnapshot,
}

/// The server's thread, from its beginning to its end. Only a server that gets ready uses `tell`.
fn supervise(
    mut config: ServerConfig,
    orders: Orders,
    latest: &Latest,
    tell: mpsc::Sender<Up>,
) -> Result<ExitCode, ServerError> {
    let (store, telemetry) = server::open(&config, None)?;
    let same = config.clone();
    let (shared, hooks) = (store.clone(), Arc::clone(&telemetry));
    let latest = Arc::clone(latest);
    config.program = Program {
        // A reload replaces the workers and changes nothing else.
        read_again: Arc::new(move || Ok(same.clone())),
        ready: Arc::new(move |ready| {
            // Who started the server waits for this.
            let _ = tell.send(Up {
                store: shared.clone(),
                telemetry: Arc::clone(&hooks),
                snapshot: ready.snapshot.clone(),
            });
        }),
        changed: Arc::new(move |snapshot| {
            let snapshot = snapshot.clone();
            latest
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .replace(snapshot);
        }),
        ..Program::default()
    };
    let birth = Birth {
        orders: Some(orders),
        ..Birth::default()
    };
    server::serve(&config, &store, &telemetry, birth)
}

/// What the supervisor said of the cluster last; a single process never has anything new to say.
type Latest = Arc<Mutex<Option<ClusterSnapshot>>>;

/// A server that runs in this process, with its workers. Dropping it stops it, and waits for that.
#[derive(Debug)]
#[must_use = "a server stops when this is dropped"]
pub struct Server {
    handle: ServerHandle,
    thread: Option<JoinHandle<Result<ExitCode, ServerError>>>,
}

impl Server {
    /// A server for the root in this folder, which is made if there is none.
    pub fn builder(root: impl Into<PathBuf>) -> ServerBuilder {
        ServerBuilder::new(root.into())
    }

    /// What other threads can use.
    #[must_use]
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Stops it: workers finish the requests that they have, and what is left after the grace is killed. When it returns,
    /// no worker is left and every address is free.
    ///
    /// # Errors
    /// See [`Server::wait`].
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.handle.begin_stop();
        self.thread.take().map_or(Ok(()), end)
    }

    /// Waits until something stops it: [`ServerHandle::begin_stop`], a signal, or a failure.
    ///
    /// # Errors
    /// [`ServerError::Ended`] if it ended otherwise than it was asked to: that every slot was given up, for instance.
    pub fn wait(mut self) -> Result<(), ServerError> {
        self.thread.take().map_or(Ok(()), end)
    }
}

impl Deref for Server {
    type Target = ServerHandle;

    fn deref(&self) -> &ServerHandle {
        &self.handle
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.handle.begin_stop();
            if let Err(error) = end(thread) {
                tracing::error!(%error, "the server did not end well");
            }
        }
    }
}

fn end(thread: JoinHandle<Result<ExitCode, ServerError>>) -> Result<(), ServerError> {
    match thread.join() {
        Ok(Ok(ExitCode::Clean)) => Ok(()),
        Ok(Ok(code)) => Err(ServerError::Ended(code)),
        Ok(Err(error)) => Err(error),
        Err(_) => {
            tracing::error!("the server's thread ended with a panic");
            Err(ServerError::Ended(ExitCode::RuntimeFailure))
        }
    }
}

/// What can be asked of a running server, from any thread. Clones are of the same server.
#[derive(Clone)]
pub struct ServerHandle(Arc<Running>);

struct Running {
    /// As it got ready.
    snapshot: ClusterSnapshot,
    latest: Latest,
    db: Db,
    control: Control,
}

impl ServerHandle {
    /// The server's root, for this process's own reads and writes. They end with the server: what is written afterwards is
    /// refused, and as long as a clone lives, nobody else can serve the root.
    #[must_use]
    pub fn db(&self) -> Db {
        self.0.db.clone()
    }

    /// Where it listens, as a client would type it; port 0 has become the one that was picked.
    #[must_use]
    pub fn urls(&self) -> &[String] {
        &self.0.snapshot.listen
    }

    /// What the cluster looks like now: the same as `GET /api/cluster/status`.
    #[must_use]
    pub fn status(&self) -> serde_json::Value {
        let latest = self.0.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = latest.as_ref().unwrap_or(&self.0.snapshot);
        snapshot.to_json(self.0.db.store())
    }

    /// Replaces the workers one at a time, each by a new one that is ready before the old one finishes; slots that were given
    /// up start anew. Returns at once. Of no use to a single process.
    pub fn reload(&self) {
        self.0.control.give(Order::Reload);
    }

    /// Starts one worker more. Returns at once; a single process refuses it, with a line in the log.
    pub fn add_worker(&self) {
        self.0.control.give(Order::AddWorker);
    }

    /// Lets one worker finish and leave, but not the last one. Returns at once; a single process refuses it, with a line in
    /// the log.
    pub fn remove_worker(&self) {
        self.0.control.give(Order::RemoveWorker);
    }

    /// Begins to stop; [`Server::wait`] returns when that is done.
    pub fn begin_stop(&self) {
        self.0.control.stop(ExitCode::Clean);
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle")
            .field("root", &self.0.snapshot.root)
            .field("urls", &self.urls())
            .finish_non_exhaustive()
    }
}
