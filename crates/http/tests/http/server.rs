//! A server in this process: one thread for its event loop, one for the store's background work.

use std::{
    cell::Cell,
    net::{SocketAddr, TcpListener},
    path::Path,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use okdb_http::{Finished, Host, HttpLimits, Intake, Listener, Serving, serve};
use okdb_store::{Durability, Options, StopFlag, Store};
use tokio::sync::{mpsc, oneshot};

use crate::client::Client;

/// How a server is set up.
pub struct Setup {
    pub limits: HttpLimits,
    pub auto_types: bool,
    pub value_bytes: usize,
    pub map_size: u64,
    /// How long a stop may take, as the server is told; it is held to that on demand.
    pub drain: Duration,
    /// Whether what is left is dropped when that time is over.
    pub hold_to_it: bool,
    /// Where the log goes, with a line for each request.
    pub log: Option<Log>,
}

/// A log kept in memory.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            limits: HttpLimits::default(),
            auto_types: false,
            value_bytes: 16 * 1024 * 1024,
            map_size: 1 << 30,
            drain: Duration::from_secs(1),
            hold_to_it: false,
            log: None,
        }
    }
}

/// What a server's host has counted.
#[derive(Default)]
pub struct Counts {
    pub started: AtomicU64,
    pub finished: AtomicU64,
    pub failed: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes: AtomicU64,
    pub opened: AtomicU64,
    pub closed: AtomicU64,
}

/// A running server. Dropping it stops it.
pub struct Server {
    pub address: SocketAddr,
    pub unix: std::path::PathBuf,
    pub store: Store,
    pub counts: Arc<Counts>,
    /// Listeners that come and go.
    pub intake: mpsc::UnboundedSender<Intake>,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<()>>,
    chores: Option<(StopFlag, JoinHandle<()>)>,
    _root: tempfile::TempDir,
}

struct TestHost {
    began: Instant,
    counts: Arc<Counts>,
    in_flight: Cell<i64>,
}

impl Host for TestHost {
    fn worker(&self) -> u32 {
        3
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn version(&self) -> String {
        "1.2.3".into()
    }

    fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    fn cluster_status(&self) -> String {
        "{\"mode\":\"single\"}".into()
    }

    fn metrics(&self) -> String {
        "okdb_up 1\n".into()
    }

    fn connection_opened(&self) {
        self.counts.opened.fetch_add(1, Ordering::SeqCst);
    }

    fn connection_closed(&self) {
        self.counts.closed.fetch_add(1, Ordering::SeqCst);
    }

    fn request_started(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
        self.counts.started.fetch_add(1, Ordering::SeqCst);
    }

    fn request_finished(&self, finished: &Finished) {
        self.in_flight.set(self.in_flight.get() - 1);
        assert!(self.in_flight.get() >= 0);
        self.counts
            .bytes_in
            .fetch_add(finished.bytes_in, Ordering::SeqCst);
        self.counts
            .bytes
            .fetch_add(finished.bytes, Ordering::SeqCst);
        self.counts
            .failed
            .fetch_add(u64::from(finished.failed), Ordering::SeqCst);
        self.counts.finished.fetch_add(1, Ordering::SeqCst);
    }
}

impl Server {
    pub fn start() -> Self {
        Self::with(Setup::default())
    }

    /// A server whose default environment has the type `t`.
    pub fn with_type() -> Self {
        let server = Self::start();
        server
            .client()
            .post("/api/default/types", "{\"name\":\"t\"}")
            .expect(201);
        server
    }

    pub fn with(setup: Setup) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut options = Options {
            durability: Some(Durability::Fast),
            map_size: Some(setup.map_size),
            auto_types: setup.auto_types,
            segment_in_root: true,
            ..Options::default()
        };
        options.limits.value_bytes = setup.value_bytes;
        let store = Store::open(&root.path().join("root"), options).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let unix = root.path().join("socket");
        let listeners = vec![Listener::Tcp(tcp), Listener::Unix(bind(&unix))];
        let counts = Arc::new(Counts::default());
        let (stop, stopped) = oneshot::channel();
        let (intake, changes) = mpsc::unbounded_channel();
        let serving = std::thread::spawn({
            let (store, counts) = (store.clone(), Arc::clone(&counts));
            move || {
                let _logging = setup.log.clone().map(|log| {
                    let subscriber = tracing_subscriber::fmt()
                        .with_ansi(false)
                        .with_writer(move || log.clone())
                        .finish();
                    tracing::subscriber::set_default(subscriber)
                });
                let host = Rc::new(TestHost {
                    began: Instant::now(),
                    counts,
                    in_flight: Cell::new(0),
                });
                let serving = Serving {
                    store,
                    host,
                    limits: setup.limits,
                    auto_types: setup.auto_types,
                    access_log: setup.log.is_some(),
                };
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                let began = tokio::sync::Notify::new();
                let stop = async {
                    let _ = stopped.await;
                    began.notify_one();
                    setup.drain
                };
                let over = async {
                    began.notified().await;
                    if !setup.hold_to_it {
                        std::future::pending::<()>().await;
                    }
                    tokio::time::sleep(setup.drain).await;
                };
                runtime.block_on(async {
                    tokio::select! {
                        served = serve(listeners, changes, serving, stop) => served.unwrap(),
                        () = over => {}
                    }
                });
            }
        });
        let flag = StopFlag::new();
        let chores = std::thread::spawn({
            let (store, flag) = (store.clone(), flag.clone());
            move || store.run_chores(&flag)
        });
        Self {
            address,
            unix,
            store,
            counts,
            intake,
            stop: Some(stop),
            serving: Some(serving),
            chores: Some((flag, chores)),
            _root: root,
        }
    }

    /// A client with a connection of its own.
    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Tells the server to stop, without waiting.
    pub fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until the server has stopped.
    pub fn join(&mut self) {
        self.begin_stop();
        if let Some(serving) = self.serving.take() {
            serving.join().unwrap();
        }
    }
}

fn bind(path: &Path) -> std::os::unix::net::UnixListener {
    std::os::unix::net::UnixListener::bind(path).unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.begin_stop();
        if let Some((flag, chores)) = self.chores.take() {
            flag.stop();
            self.store.wake_chores();
            let _ = chores.join();
        }
        let served = self.serving.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(
                !matches!(served, Some(Err(_))),
                "the server's thread panicked"
            );
            let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
            assert_eq!(
                count(&self.counts.started),
                count(&self.counts.finished),
                "every request that began must be counted as ended"
            );
            assert_eq!(
                count(&self.counts.opened),
                count(&self.counts.closed),
                "every connection that was opened must be counted as closed"
            );
        }
    }
}
