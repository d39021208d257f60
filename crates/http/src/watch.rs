//! What is known of each connection, and the one timer that ends those that hold resources for nothing.
//!
//! Reads, writes and requests note the time in plain cells, so a request pays for no timer of its own. One task looks
//! at all connections every half second, and asleep it costs nothing while there are none.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::{Poll, Waker},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::limits::HttpLimits;

/// How often connections are looked at: the precision of their timeouts.
const SWEEP: Duration = Duration::from_millis(500);

/// What is to become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Go on.
    Stay,
    /// Close it as soon as no request is under way; an HTTP/2 peer is told so.
    Close,
    /// A request head took too long: say so and close.
    HeadTimeout,
    /// Drop it: the peer does not read.
    Drop,
}

/// One connection, as its driver, its socket and the sweep share it.
#[derive(Debug)]
pub(crate) struct Watch {
    clock: Rc<Clock>,
    /// Requests that are being answered.
    in_flight: Cell<u32>,
    /// When it last ended a request or took bytes of an answer, by the coarse clock.
    idle_since_ms: Cell<u64>,
    /// When the first byte of a request head arrived that is not complete; only where heads come one by one.
    head_since_ms: Cell<Option<u64>>,
    /// Since when the socket takes no more bytes.
    blocked_since_ms: Cell<Option<u64>>,
    /// Whether requests come side by side (HTTP/2), so that a peer can be told to leave while it is being answered.
    multiplexed: Cell<bool>,
    /// Whether such a peer has been told.
    told: Cell<bool>,
    verdict: Cell<Verdict>,
    waker: RefCell<Option<Waker>>,
}

/// Milliseconds since the server began, as of the last sweep or request.
#[derive(Debug)]
struct Clock {
    began: Instant,
    now_ms: Cell<u64>,
}

impl Clock {
    fn tick(&self) -> u64 {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.now_ms.set(now);
        now
    }
}

impl Watch {
    /// Bytes came in. `heads` tells whether they can only belong to a request head while nothing is in flight.
    pub(crate) fn heard(&self, heads: bool) {
        if heads && self.in_flight.get() == 0 && self.head_since_ms.get().is_none() {
            self.head_since_ms.set(Some(self.clock.now_ms.get()));
        }
    }

    /// The peer speaks HTTP/2: what it sent so far was no request head.
    pub(crate) fn multiplex(&self) {
        self.multiplexed.set(true);
        self.head_since_ms.set(None);
    }

    /// The socket took bytes.
    pub(crate) fn wrote(&self) {
        self.blocked_since_ms.set(None);
        // An answer may still be on its way after its request has ended.
        self.idle_since_ms.set(self.clock.now_ms.get());
    }

    /// The socket took nothing.
    pub(crate) fn blocked(&self) {
        if self.blocked_since_ms.get().is_none() {
            self.blocked_since_ms.set(Some(self.clock.now_ms.get()));
        }
    }

    /// A request begins to be answered.
    pub(crate) fn begin(&self) {
        self.head_since_ms.set(None);
        self.in_flight.set(self.in_flight.get().saturating_add(1));
    }

    /// A request has been answered.
    pub(crate) fn end(&self) {
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
        self.idle_since_ms.set(self.clock.now_ms.get());
    }

    /// Notes whom to wake when the verdict changes.
    pub(crate) fn wake_with(&self, waker: &Waker) {
        let mut known = self.waker.borrow_mut();
        if known.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }

    /// Takes what the sweep decided.
    pub(crate) fn take_verdict(&self) -> Verdict {
        self.verdict.replace(Verdict::Stay)
    }

    /// Waits until the sweep has decided against the connection.
    pub(crate) async fn judged(&self) {
        std::future::poll_fn(|context| {
            self.wake_with(context.waker());
            if self.take_verdict() == Verdict::Stay {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
    }

    /// Whether the socket took all it was given.
    pub(crate) fn writable(&self) -> bool {
        self.blocked_since_ms.get().is_none()
    }

    /// Decides, and wakes the connection's driver.
    fn decide(&self, verdict: Verdict) {
        self.verdict.set(verdict);
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// What is due at `now_ms`; `stopping_since_ms` shortens the patience with idle connections.
    fn judge(&self, limits: &HttpLimits, now_ms: u64, stopping_since_ms: Option<u64>) -> Verdict {
        let passed = |since_ms: u64, limit_ms: u64| now_ms.saturating_sub(since_ms) >= limit_ms;
        let lingered = stopping_since_ms.is_some_and(|since| passed(since, limits.linger_ms));
        if let Some(since) = self.blocked_since_ms.get() {
            if passed(since, limits.write_timeout_ms) {
                Verdict::Drop
            } else {
                Verdict::Stay
            }
        } else if stopping_since_ms.is_some() && self.multiplexed.get() && !self.told.replace(true)
        {
            Verdict::Close
        } else if self.in_flight.get() > 0 {
            Verdict::Stay
        } else if let Some(since) = self.head_since_ms.get() {
            // A head that is half there at a stop gets the linger from its own first byte, no more.
            let limit = if lingered {
                limits.linger_ms
            } else {
                limits.header_timeout_ms
            };
            if passed(since, limit) {
                Verdict::HeadTimeout
            } else {
                Verdict::Stay
            }
        } else if passed(
            self.idle_since_ms.get(),
            if lingered {
                limits.linger_ms
            } else {
                limits.idle_timeout_ms
            },
        ) {
            Verdict::Close
        } else {
            Verdict::Stay
        }
    }
}

/// All connections of a server.
#[derive(Debug)]
pub(crate) struct Connections {
    clock: Rc<Clock>,
    open: RefCell<Vec<Rc<Watch>>>,
    stopping_since_ms: Cell<Option<u64>>,
    changed: Notify,
}

/// Keeps a connection listed; forgets it when dropped.
pub(crate) struct Listed {
    connections: Rc<Connections>,
    pub(crate) watch: Rc<Watch>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut open = self.connections.open.borrow_mut();
        if let Some(place) = open.iter().position(|watch| Rc::ptr_eq(watch, &self.watch)) {
            open.swap_remove(place);
        }
        drop(open);
        self.connections.changed.notify_waiters();
    }
}

impl Connections {
    /// No connections yet.
    pub(crate) fn new() -> Self {
        Self {
            clock: Rc::new(Clock {
                began: Instant::now(),
                now_ms: Cell::new(0),
            }),
            open: RefCell::default(),
            stopping_since_ms: Cell::new(None),
            changed: Notify::new(),
        }
    }

    /// Lists a new connection.
    pub(crate) fn list(self: &Rc<Self>) -> Listed {
        let now_ms = self.clock.tick();
        let watch = Rc::new(Watch {
            clock: Rc::clone(&self.clock),
            in_flight: Cell::new(0),
            idle_since_ms: Cell::new(now_ms),
            head_since_ms: Cell::new(None),
            blocked_since_ms: Cell::new(None),
            multiplexed: Cell::new(false),
            told: Cell::new(false),
            verdict: Cell::new(Verdict::Stay),
            waker: RefCell::default(),
        });
        self.open.borrow_mut().push(Rc::clone(&watch));
        self.changed.notify_waiters();
        Listed {
            connections: Rc::clone(self),
            watch,
        }
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.open.borrow().len()
    }

    /// Waits until `count` holds of the number of open connections.
    pub(crate) async fn until(&self, holds: impl Fn(usize) -> bool) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if holds(self.count()) {
                return;
            }
            changed.await;
        }
    }

    /// Whether the server is stopping.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping_since_ms.get().is_some()
    }

    /// From now on idle connections are closed after a short linger, and each answer says that its connection closes.
    pub(crate) fn stop(&self) {
        if !self.stopping() {
            self.stopping_since_ms.set(Some(self.clock.tick()));
        }
    }

    /// Looks at every connection.
    pub(crate) fn sweep(&self, limits: &HttpLimits) {
        let now_ms = self.clock.tick();
        let stopping_since_ms = self.stopping_since_ms.get();
        for watch in self.open.borrow().iter() {
            let verdict = watch.judge(limits, now_ms, stopping_since_ms);
            if verdict != Verdict::Stay {
                watch.decide(verdict);
            }
        }
    }

    /// Sweeps until dropped, while there are connections.
    pub(crate) async fn keep_sweeping(&self, limits: &HttpLimits) {
        loop {
            self.until(|count| count > 0).await;
            tokio::time::sleep(SWEEP.min(Duration::from_millis(limits.linger_ms.max(1)))).await;
            self.sweep(limits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(connections: &Connections, watch: &Watch, now_ms: u64) -> Verdict {
        watch.judge(
            &HttpLimits::default(),
            now_ms,
            connections.stopping_since_ms.get(),
        )
    }

    #[test]
    fn each_kind_of_waiting_has_its_own_patience() {
        let connections = Rc::new(Connections::new());
        let listed = connections.list();
        let watch = &listed.watch;
        assert_eq!(verdict(&connections, watch, 74_000), Verdict::Stay);
        assert_eq!(verdict(&connections, watch, 76_000), Verdict::Close);
        watch.heard(true);
        assert_eq!(verdict(&connections, watch, 9_000), Verdict::Stay);
        assert_eq!(verdict(&connections, watch, 11_000), Verdict::HeadTimeout);
        watch.begin();
        assert_eq!(verdict(&connections, watch, 10_000_000), Verdict::Stay);
        watch.blocked();
        assert_eq!(verdict(&connections, watch, 29_000), Verdict::Stay);
        assert_eq!(verdict(&connections, watch, 31_000), Verdict::Drop);
        watch.wrote();
        watch.end();
        assert_eq!(verdict(&connections, watch, 1_000), Verdict::Stay);
    }

    #[test]
    fn a_stop_waits_for_answers_and_lingers_for_the_rest() {
        let connections = Rc::new(Connections::new());
        let (busy, idle, half) = (connections.list(), connections.list(), connections.list());
        busy.watch.begin();
        half.watch.heard(true);
        connections.stop();
        assert_eq!(verdict(&connections, &idle.watch, 100), Verdict::Stay);
        assert_eq!(verdict(&connections, &idle.watch, 1_000), Verdict::Close);
        assert_eq!(verdict(&connections, &busy.watch, 1_000), Verdict::Stay);
        assert_eq!(
            verdict(&connections, &half.watch, 1_000),
            Verdict::HeadTimeout
        );
        drop(idle);
        assert_eq!(connections.count(), 2);
    }
}
