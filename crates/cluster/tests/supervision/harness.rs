//! A driver on a thread, scripted workers, and the news of what happens.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use okdb_cluster::address::Address;
use okdb_cluster::driver::{Control, Driver, Fresh, Observer, Options, Order, control};
use okdb_cluster::exit::ExitCode;
use okdb_cluster::listen::Listeners;
use okdb_cluster::machine::{SlotState, WorkerExit};
use okdb_cluster::spawner::{Launch, Spawner, pass};
use okdb_cluster::status::SlotStatus;
use okdb_sys::Signal;
use okdb_sys::signals::Signals;
use okdb_sys::spawn::{Child, Spawn};

/// The environment variable that makes this binary a worker or a primary.
pub(crate) const ROLE: &str = "OKDB_CLUSTER_TEST_ROLE";
pub(crate) const SLOT: &str = "OKDB_CLUSTER_TEST_SLOT";
pub(crate) const PARENT: &str = "OKDB_CLUSTER_TEST_PARENT";

/// Longer than anything takes on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What a slot runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Script {
    /// This binary in a role of [`crate::worker`].
    Role(&'static str),
    /// A shell script.
    Sh(&'static str),
    /// Nothing: the spawn fails.
    Unspawnable,
}

/// The command line and environment of this binary in `role`.
pub(crate) fn this_binary<'fd>(role: &str) -> Spawn<'fd> {
    Spawn::current_exe("okdb-test")
        .args(["process_main", "--exact", "--nocapture"])
        .env(ROLE, role)
        .env(PARENT, std::process::id().to_string())
}

pub(crate) struct ScriptSpawner(pub(crate) Vec<Script>);

impl Spawner for ScriptSpawner {
    fn spawn(&mut self, launch: &Launch<'_>) -> io::Result<Child> {
        let slot = launch.worker.slot;
        let spawn = match self.0[usize::from(slot) % self.0.len()] {
            Script::Role(role) => this_binary(role)
                .env(SLOT, slot.to_string())
                .discard_stdout(),
            Script::Sh(script) => Spawn::new("/bin/sh").args(["-c", script].map(OsString::from)),
            Script::Unspawnable => return Err(io::Error::other("scripted to fail")),
        };
        pass(spawn, launch).start()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Ready,
    Changed(SlotStatus),
    Death {
        slot: u16,
        pid: u32,
        exit: WorkerExit,
    },
    Stopping,
    Finished(ExitCode),
}

struct Reporter(Sender<News>);

impl Reporter {
    fn tell(&self, news: News) {
        // A test that has seen enough hangs up.
        let _ = self.0.send(news);
    }
}

impl Observer for Reporter {
    fn config(&mut self, slot: u16) -> String {
        format!("config-of-{slot}")
    }

    fn snapshot(&mut self, slots: &[SlotStatus]) -> String {
        let states: Vec<String> = slots
            .iter()
            .map(|slot| format!("{:?}", slot.state))
            .collect();
        states.join(",")
    }

    fn status_line(&mut self, _slots: &[SlotStatus]) -> String {
        String::new()
    }

    fn on_reload(&mut self) -> Result<Fresh, String> {
        Ok(Fresh {
            options: Options::default(),
            workers: None,
        })
    }

    fn on_reopen_logs(&mut self) {}

    fn on_ready(&mut self) {
        self.tell(News::Ready);
    }

    fn on_slot_changed(&mut self, slot: &SlotStatus) {
        self.tell(News::Changed(slot.clone()));
    }

    fn on_worker_death(&mut self, slot: u16, pid: u32, exit: WorkerExit) {
        self.tell(News::Death { slot, pid, exit });
    }

    fn on_stop(&mut self) {
        self.tell(News::Stopping);
    }
}

/// A running driver. Dropping it stops the driver and waits for it.
pub(crate) struct Cluster {
    pub(crate) addr: SocketAddr,
    news: Receiver<News>,
    /// The latest status of each slot.
    pub(crate) slots: HashMap<u16, SlotStatus>,
    /// Everything heard so far.
    pub(crate) heard: Vec<News>,
    control: Control,
    thread: Option<JoinHandle<()>>,
}

impl Cluster {
    pub(crate) fn start(scripts: &[Script]) -> Self {
        Self::start_with(scripts, Options::default())
    }

    pub(crate) fn start_with(scripts: &[Script], options: Options) -> Self {
        Self::prepare(scripts, options, |_| ())
    }

    /// A cluster on whose driver `first` is done before it runs.
    pub(crate) fn prepare(
        scripts: &[Script],
        options: Options,
        first: impl FnOnce(&Control),
    ) -> Self {
        let slots = u16::try_from(scripts.len())
            .ok()
            .and_then(NonZeroU16::new)
            .expect("slots");
        let wish: Address = "127.0.0.1:0".parse().expect("an address");
        let listeners = Listeners::bind(&[wish], slots).expect("bind");
        let addr = tcp_addr(&listeners);
        let signals = Signals::install(&[Signal::Chld]).expect("signals");
        let (control, orders) = control().expect("control");
        let driver = Driver::new(listeners, Some(signals), options).obey(orders);
        first(&control);
        let (sender, news) = channel();
        let mut spawner = ScriptSpawner(scripts.to_vec());
        let thread = std::thread::spawn(move || {
            let mut reporter = Reporter(sender);
            let code = driver.run(&mut spawner, &mut reporter);
            reporter.tell(News::Finished(code));
        });
        let slots = HashMap::new();
        Self {
            addr,
            news,
            slots,
            heard: Vec::new(),
            control,
            thread: Some(thread),
        }
    }

    /// Reads news until `wanted` finds what it looks for.
    pub(crate) fn wait<T>(&mut self, mut wanted: impl FnMut(&News) -> Option<T>) -> T {
        loop {
            let news = match self.news.recv_timeout(PATIENCE) {
                Ok(news) => news,
                Err(error) => panic!("{error} after {:#?}", self.heard),
            };
            if let News::Changed(status) = &news {
                self.slots.insert(status.slot, status.clone());
            }
            self.heard.push(news.clone());
            if let Some(found) = wanted(&news) {
                return found;
            }
        }
    }

    pub(crate) fn wait_ready(&mut self) {
        self.wait(|news| (*news == News::Ready).then_some(()));
    }

    pub(crate) fn wait_state(&mut self, slot: u16, state: SlotState) -> SlotStatus {
        self.wait(|news| match news {
            News::Changed(status) if status.slot == slot && status.state == state => {
                Some(status.clone())
            }
            _ => None,
        })
    }

    pub(crate) fn wait_death(&mut self, slot: u16) -> WorkerExit {
        self.wait(|news| match news {
            News::Death {
                slot: dead, exit, ..
            } if *dead == slot => Some(*exit),
            _ => None,
        })
    }

    pub(crate) fn wait_finished(&mut self) -> ExitCode {
        self.wait(|news| match news {
            News::Finished(code) => Some(*code),
            _ => None,
        })
    }

    pub(crate) fn pid(&self, slot: u16) -> u32 {
        self.slots[&slot].pid.expect("a worker")
    }

    pub(crate) fn signal(&self, slot: u16, signal: Signal) {
        let process = okdb_sys::Identity::of(self.pid(slot)).expect("a process");
        process.signal(signal).expect("signal");
    }

    pub(crate) fn order(&self, order: Order) {
        self.control.give(order);
    }

    /// Waits until the statuses of these slots are as `wanted`.
    pub(crate) fn wait_all(&mut self, slots: &[u16], wanted: impl Fn(&SlotStatus) -> bool) {
        loop {
            let told = |slot: &u16| self.slots.get(slot).is_some_and(&wanted);
            if slots.iter().all(told) {
                return;
            }
            self.wait(|news| matches!(news, News::Changed(_)).then_some(()));
        }
    }

    pub(crate) fn stop(&self) {
        self.control.stop(ExitCode::Clean);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "the driver panicked"
            );
        }
    }
}

pub(crate) fn tcp_addr(listeners: &Listeners) -> SocketAddr {
    match listeners.addresses().next() {
        Some(Address::Tcp(addr)) => *addr,
        other => panic!("no TCP address: {other:?}"),
    }
}
