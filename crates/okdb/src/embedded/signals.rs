//! Signals of a program that has asked its server to heed them.
//!
//! What handles them is there once a process, and for good: a signal that nobody waits for any more must not be lost. So
//! while no server runs, `TERM` and `INT` end the process, as they would have done before.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use okdb_cluster::{
    driver::{Control, Order},
    exit::ExitCode,
};
use okdb_sys::{
    Signal,
    signals::{Blocked, Signals},
};

use crate::server::{Arrivals, worker::runtime};

const SIGNALS: [Signal; 5] = [
    Signal::Term,
    Signal::Int,
    Signal::Hup,
    Signal::Ttin,
    Signal::Ttou,
];

/// Whom to tell.
static SERVERS: Mutex<Servers> = Mutex::new(Servers {
    listening: false,
    running: Vec::new(),
});

struct Servers {
    /// Whether the thread that hears signals was started.
    listening: bool,
    running: Vec<Arc<Control>>,
}

fn servers() -> MutexGuard<'static, Servers> {
    SERVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server that is told of signals, until this is dropped.
pub(super) struct Heeded(Arc<Control>);

impl Heeded {
    pub(super) fn new(control: &Control) -> io::Result<Self> {
        let mut servers = servers();
        if !servers.listening {
            let signals = Signals::install(&SIGNALS)?;
            let deaf = Blocked::all()?;
            std::thread::Builder::new()
                .name("okdb-signals".into())
                .spawn(move || {
                    let Err(error) = listen(signals);
                    tracing::error!(%error, "signals are no longer heard");
                })?;
            drop(deaf);
            servers.listening = true;
        }
        let control = Arc::new(control.clone());
        servers.running.push(Arc::clone(&control));
        Ok(Self(control))
    }
}

impl Drop for Heeded {
    fn drop(&mut self) {
        let mut servers = servers();
        servers
            .running
            .retain(|running| !Arc::ptr_eq(running, &self.0));
    }
}

fn listen(signals: Signals) -> io::Result<std::convert::Infallible> {
    runtime()?.block_on(async {
        let mut arrivals = Arrivals::new(signals)?;
        loop {
            for signal in arrivals.next().await? {
                heed(signal);
            }
        }
    })
}

fn heed(signal: Signal) {
    let order = match signal {
        Signal::Hup => Order::Reload,
        Signal::Ttin => Order::AddWorker,
        Signal::Ttou => Order::RemoveWorker,
        _ => Order::Stop(ExitCode::Clean),
    };
    let running = servers().running.clone();
    if running.is_empty() && matches!(order, Order::Stop(_)) {
        end_process(signal);
    }
    for control in running {
        control.give(order);
    }
}

#[allow(
    clippy::exit,
    reason = "the signal would have ended the process, had its server not taken it over"
)]
fn end_process(signal: Signal) -> ! {
    std::process::exit(128 + signal.number());
}
