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
/// A connection that has been idle this long is taken apart: its buffers, which are most of what it costs, go. One that
/// is used again costs the microsecond that it takes to make them anew.
const PARK_MS: u64 = 1_000;
/// A connection that has been idle for less than this is not closed to make room for others.
const EVICT_MS: u64 = 1_000;

/// What is to become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Go on.
    Stay,
    /// Free what it holds between requests.
    Park,
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
    /// The body of the latest request, if it had one.
    upload: RefCell<Option<Rc<Upload>>>,
    /// Whether nothing is held for it: it is fresh, or was parked.
    parked: Cell<bool>,
    /// Whether it was told to make room since its last request.
    evicted: Cell<bool>,
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
        if heads && self.is_between_requests() && self.head_since_ms.get().is_none() {
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
    pub(crate) fn begin(&self, upload: Option<Rc<Upload>>) {
        self.upload.replace(upload);
        self.evicted.set(false);
        self.head_since_ms.set(None);
        self.in_flight.set(self.in_flight.get().saturating_add(1));
    }

    /// A request has been answered.
    pub(crate) fn end(&self) {
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
        self.idle_since_ms.set(self.clock.now_ms.get());
    }

    /// Whether the last request was answered and has been read whole, so that what comes next is a head.
    fn is_between_requests(&self) -> bool {
        let read = |upload: &Rc<Upload>| upload.whole.get();
        self.in_flight.get() == 0 && self.upload.borrow().as_ref().is_none_or(read)
    }

    /// Whether nothing of a request or an answer is under way in either direction, as far as bytes have been taken from the
    /// socket. Only of a peer that sends one request after the other.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.multiplexed.get()
            && self.is_between_requests()
            && !self.is_in_head()
            && self.blocked_since_ms.get().is_none()
    }

    /// Whether every request that has begun was answered, and no other has begun.
    pub(crate) fn is_answered(&self) -> bool {
        self.in_flight.get() == 0 && !self.is_in_head()
    }

    /// Whether a request's head has begun to come in.
    pub(crate) fn is_in_head(&self) -> bool {
        self.head_since_ms.get().is_some()
    }

    /// Whether it is closed to make room for others.
    pub(crate) fn is_evicted(&self) -> bool {
        self.evicted.get()
    }

    /// Notes whether anything is held for the connection.
    pub(crate) fn park(&self, parked: bool) {
        self.parked.set(parked);
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
    pub(crate) async fn judged(&self) -> Verdict {
        std::future::poll_fn(|context| {
            self.wake_with(context.waker());
            match self.take_verdict() {
                Verdict::Stay | Verdict::Park => Poll::Pending,
                verdict => Poll::Ready(verdict),
            }
        })
        .await
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

    /// What is due at `now_ms`; a stop shortens the patience with idle connections.
    fn judge(&self, limits: &HttpLimits, now_ms: u64, stop: Option<Stopping>) -> Verdict {
        let passed = |since_ms: u64, limit_ms: u64| now_ms.saturating_sub(since_ms) >= limit_ms;
        let lingered = stop.filter(|stop| passed(stop.since_ms, stop.linger_ms));
        let patience = |limit_ms: u64| lingered.map_or(limit_ms, |stop| stop.linger_ms);
        if let Some(since) = self.blocked_since_ms.get() {
            if passed(since, limits.write_timeout_ms) {
                Verdict::Drop
            } else {
                Verdict::Stay
            }
        } else if stop.is_some() && self.multiplexed.get() && !self.told.replace(true) {
            Verdict::Close
        } else if self.in_flight.get() > 0 {
            Verdict::Stay
        } else if let Some(since) = self.head_since_ms.get() {
            // A head that is half there at a stop gets the linger from its own first byte, no more.
            if passed(since, patience(limits.header_timeout_ms)) {
                Verdict::HeadTimeout
            } else {
                Verdict::Stay
            }
        } else if passed(self.idle_since_ms.get(), patience(limits.idle_timeout_ms)) {
            Verdict::Close
        } else if !self.parked.get() && self.is_quiet() && passed(self.idle_since_ms.get(), PARK_MS)
        {
            Verdict::Park
        } else {
            Verdict::Stay
        }
    }

    /// Since when it has been idle, for one that can be closed to make room.
    fn idle_since(&self) -> Option<u64> {
        (!self.evicted.get() && self.is_quiet()).then(|| self.idle_since_ms.get())
    }
}

/// What has come of a request's body.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    /// Bytes that were read for the request.
    pub(crate) bytes: Cell<u64>,
    /// Whether its end was read.
    pub(crate) whole: Cell<bool>,
}

/// A stop under way.
#[derive(Clone, Copy, Debug)]
struct Stopping {
    since_ms: u64,
    /// How long connections without a request are kept.
    linger_ms: u64,
}

/// All connections of a server.
#[derive(Debug)]
pub(crate) struct Connections {
    clock: Rc<Clock>,
    open: RefCell<Vec<Rc<Watch>>>,
    stopping: Cell<Option<Stopping>>,
    stopped: Notify,
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
            stopping: Cell::new(None),
            stopped: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// Lists a new connection.
    pub(crate) fn list(self: &Rc<Self>) -> Listed {
        let now_ms = self.clock.tick();
        let watch = Rc::new(Watch {
            clock: Rc::clone(&self.clock),
            in_flight: Cell::new(0),
            upload: RefCell::default(),
            parked: Cell::new(true),
            evicted: Cell::new(false),
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
        self.stopping.get().is_some()
    }

    /// From now on idle connections are closed after `linger`, and each answer says that its connection closes.
    pub(crate) fn stop(&self, linger: Duration) {
        if !self.stopping() {
            self.stopping.set(Some(Stopping {
                since_ms: self.clock.tick(),
                linger_ms: u64::try_from(linger.as_millis()).unwrap_or(u64::MAX),
            }));
            self.stopped.notify_waiters();
        }
    }

    /// Looks at every connection.
    pub(crate) fn sweep(&self, limits: &HttpLimits) {
        let now_ms = self.clock.tick();
        let stopping = self.stopping.get();
        for watch in self.open.borrow().iter() {
            let verdict = watch.judge(limits, now_ms, stopping);
            if verdict != Verdict::Stay {
                watch.decide(verdict);
            }
        }
    }

    /// Closes connections that have been idle for long, the longest first, to make room for at most `count` others.
    /// Tells how many.
    pub(crate) fn evict(&self, count: usize) -> usize {
        self.evict_at(self.clock.tick(), count)
    }

    fn evict_at(&self, now_ms: u64, count: usize) -> usize {
        let open = self.open.borrow();
        let mut idle: Vec<_> = open
            .iter()
            .filter_map(|watch| Some((watch.idle_since()?, watch)))
            .filter(|(since_ms, _)| now_ms.saturating_sub(*since_ms) >= EVICT_MS)
            .collect();
        if idle.len() > count {
            idle.select_nth_unstable_by_key(count, |(since_ms, _)| *since_ms);
            idle.truncate(count);
        }
        for (_, watch) in &idle {
            watch.evicted.set(true);
            watch.decide(Verdict::Close);
        }
        idle.len()
    }

    /// Sweeps until dropped, while there are connections.
    pub(crate) async fn keep_sweeping(&self, limits: &HttpLimits) {
        loop {
            self.until(|count| count > 0).await;
            let period = self.stopping.get().map_or(SWEEP, |stop| {
                SWEEP.min(Duration::from_millis(stop.linger_ms / 2 + 1))
            });
            tokio::select! {
                () = tokio::time::sleep(period) => {}
                () = self.stopped.notified() => {}
            }
            self.sweep(limits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(connections: &Connections, watch: &Watch, now_ms: u64) -> Verdict {
        watch.judge(&HttpLimits::default(), now_ms, connections.stopping.get())
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
        watch.begin(None);
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
        busy.watch.begin(None);
        half.watch.heard(true);
        connections.stop(Duration::from_millis(500));
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

    #[test]
    fn what_is_idle_is_parked_once_and_never_with_a_body_under_way() {
        let connections = Rc::new(Connections::new());
        let listed = connections.list();
        let watch = &listed.watch;
        assert_eq!(verdict(&connections, watch, 5_000), Verdict::Stay);
        watch.park(false);
        assert_eq!(verdict(&connections, watch, 5_000), Verdict::Park);
        let upload = Rc::new(Upload::default());
        watch.begin(Some(Rc::clone(&upload)));
        assert_eq!(verdict(&connections, watch, 5_000), Verdict::Stay);
        watch.end();
        // Its answer was sent, its body is still coming: that is not a head.
        watch.heard(true);
        assert!(!watch.is_quiet());
        assert_eq!(verdict(&connections, watch, 20_000), Verdict::Stay);
        upload.whole.set(true);
        assert!(watch.is_quiet());
        assert_eq!(verdict(&connections, watch, 20_000), Verdict::Park);
        watch.heard(true);
        assert!(!watch.is_quiet());
    }

    #[test]
    fn those_that_are_idle_longest_make_room() {
        use Verdict::{Close, Stay};
        let connections = Rc::new(Connections::new());
        let listed: Vec<_> = (0..5).map(|_| connections.list()).collect();
        assert_eq!(connections.evict(9), 0, "none is idle for long");
        for (place, listed) in listed.iter().enumerate() {
            listed.watch.idle_since_ms.set(5_000 - place as u64);
        }
        listed[4].watch.begin(None);
        assert_eq!(connections.evict_at(10_000, 2), 2);
        let verdicts: Vec<_> = listed
            .iter()
            .map(|listed| listed.watch.take_verdict())
            .collect();
        assert_eq!(verdicts, [Stay, Stay, Close, Close, Stay]);
        assert_eq!(connections.evict_at(10_000, 9), 2);
    }
}
