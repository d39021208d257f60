//! What a running primary is told: by signals, and by other threads.

use std::collections::VecDeque;

use okdb_sys::Signal;
use okdb_sys::host::monotonic;
use okdb_sys::signals::Signals;

use super::Observer;
use super::control::{Order, Orders};
use super::supervision::Supervision;
use crate::exit::ExitCode;
use crate::machine::Event;
use crate::spawner::Spawner;

impl<S: Spawner, O: Observer> Supervision<'_, S, O> {
    /// What was asked while the server was still being prepared.
    pub(super) fn take_early(&mut self) -> Early {
        Early {
            signals: self
                .signals
                .as_mut()
                .map(Signals::drain)
                .unwrap_or_default(),
            orders: self.orders.as_mut().map(Orders::take).unwrap_or_default(),
        }
    }

    /// Does it now that there are workers.
    pub(super) fn heed_early(&mut self, early: Early) {
        self.heed(&early.signals);
        self.obey(early.orders);
    }

    /// Acts on the signals that have come; tells whether a child may have ended.
    pub(super) fn take_signals(&mut self) -> bool {
        let signals = self
            .signals
            .as_mut()
            .map(Signals::drain)
            .unwrap_or_default();
        self.heed(&signals);
        signals.contains(&Signal::Chld)
    }

    fn heed(&mut self, signals: &[Signal]) {
        // TERM and INT together are one request: whoever sends both means one stop.
        if let Some(signal) = signals.iter().copied().find(|signal| is_stop(*signal)) {
            tracing::info!(%signal, "stopping");
            self.request_stop(ExitCode::Clean);
        }
        for signal in signals {
            match signal {
                Signal::Hup => self.reload(),
                Signal::Ttin => self.feed(Event::AddWorker),
                Signal::Ttou => self.feed(Event::RemoveWorker),
                Signal::Usr1 => self.observer.on_reopen_logs(),
                Signal::Usr2 => self.begin_upgrade(),
                _ => {}
            }
        }
    }

    pub(super) fn take_orders(&mut self) {
        let orders = self.orders.as_mut().map(Orders::take).unwrap_or_default();
        self.obey(orders);
    }

    fn obey(&mut self, orders: VecDeque<Order>) {
        for order in orders {
            match order {
                // Whoever means it twice has a signal for it.
                Order::Stop(_) if self.machine.is_stopping() => {}
                Order::Stop(code) => self.request_stop(code),
                Order::Reload => self.reload(),
                Order::AddWorker => self.feed(Event::AddWorker),
                Order::RemoveWorker => self.feed(Event::RemoveWorker),
            }
        }
    }

    fn request_stop(&mut self, code: ExitCode) {
        self.feed(Event::StopRequested {
            grace_ms: self.options.shutdown_grace_ms,
            code,
        });
    }

    fn reload(&mut self) {
        if self.machine.is_stopping() {
            return;
        }
        // The manager waits for the end of the reload, also of one that comes to nothing. Before the server is ready it has
        // not begun to listen to such news.
        if self.machine.has_been_ready() {
            self.notifier.reloading(monotonic().unwrap_or_default());
        }
        let fresh = match self.observer.on_reload() {
            Ok(fresh) => fresh,
            Err(reason) => {
                tracing::error!(reason, "reload refused: nothing has changed");
                self.tell_ready("reload refused, see the log");
                return;
            }
        };
        tracing::info!("reloading");
        self.options = fresh.options;
        self.feed(Event::ReloadRequested {
            limits: fresh.options.limits,
        });
        if let Some(wanted) = fresh.workers {
            self.scale_to(wanted);
        }
    }

    pub(super) fn scale_to(&mut self, wanted: u16) {
        loop {
            let now = self.machine.wanted();
            self.feed(match now.cmp(&wanted) {
                std::cmp::Ordering::Less => Event::AddWorker,
                std::cmp::Ordering::Greater => Event::RemoveWorker,
                std::cmp::Ordering::Equal => return,
            });
            if self.machine.wanted() == now {
                // It was refused, and said why.
                return;
            }
        }
    }

    pub(super) fn reloaded(&mut self, failed: Option<u16>) {
        match failed {
            None => tracing::info!("reloaded"),
            Some(slot) => {
                let reason = self.roster.last_reason(slot).unwrap_or("unknown");
                tracing::error!(
                    slot,
                    reason,
                    "reload given up: a new worker did not get ready; from this slot on the old workers serve on"
                );
            }
        }
        let line = self.status_line();
        self.tell_ready(&line);
    }

    /// The reload is over, if the manager was told of one.
    fn tell_ready(&self, status: &str) {
        if self.machine.has_been_ready() {
            self.notifier.ready(status);
        }
    }
}

/// What was asked before the run began.
pub(super) struct Early {
    signals: Vec<Signal>,
    orders: VecDeque<Order>,
}

impl Early {
    /// With which code to stop, if that is among it.
    pub(super) fn stop(&self) -> Option<ExitCode> {
        let ordered = self.orders.iter().find_map(|order| match order {
            Order::Stop(code) => Some(*code),
            Order::Reload | Order::AddWorker | Order::RemoveWorker => None,
        });
        let signalled = self.signals.iter().copied().any(is_stop);
        ordered.or(signalled.then_some(ExitCode::Clean))
    }
}

pub(super) fn is_stop(signal: Signal) -> bool {
    matches!(signal, Signal::Term | Signal::Int)
}
