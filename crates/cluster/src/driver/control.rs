//! Orders to a server from other threads.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use crate::exit::ExitCode;

/// What a server can be told while it runs. The signals of the `okdb` command say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// End gracefully, and then with this code. A second one changes nothing.
    Stop(ExitCode),
    /// Read the configuration again and replace every worker.
    Reload,
    /// One worker more.
    AddWorker,
    /// One worker fewer.
    RemoveWorker,
}

/// Orders that may wait. Whoever gives more has lost count.
const ORDERS_MAX: usize = 1_024;

/// Gives orders to a server; any thread may hold one.
#[derive(Clone, Debug)]
pub struct Control {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    orders: Mutex<VecDeque<Order>>,
    wake: UnixStream,
}

impl Shared {
    fn orders(&self) -> std::sync::MutexGuard<'_, VecDeque<Order>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    /// Gives an order; it is carried out in turn. Without effect on a server that has ended, and when
    /// a thousand others wait.
    pub fn give(&self, order: Order) {
        let mut orders = self.shared.orders();
        if orders.len() < ORDERS_MAX {
            orders.push_back(order);
            // Who has a full socket is awake already; behind a closed one there is nobody any more.
            let _ = (&self.shared.wake).write(&[0]);
        }
    }

    /// Begins a graceful stop that ends with `code`.
    pub fn stop(&self, code: ExitCode) {
        self.give(Order::Stop(code));
    }
}

/// The end of who carries them out.
#[derive(Debug)]
pub struct Orders {
    shared: Arc<Shared>,
    wake: UnixStream,
}

impl Orders {
    /// What was ordered since the last call. Never blocks.
    pub fn take(&mut self) -> VecDeque<Order> {
        let mut bytes = [0; 64];
        while matches!(self.wake.read(&mut bytes), Ok(1..)) {}
        std::mem::take(&mut *self.shared.orders())
    }
}

impl AsRawFd for Orders {
    fn as_raw_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }
}

impl AsFd for Orders {
    /// Readable when [`Orders::take`] has something to tell.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// The two ends.
///
/// # Errors
/// When a socket pair cannot be made.
pub fn control() -> io::Result<(Control, Orders)> {
    let (wake, waker) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    waker.set_nonblocking(true)?;
    let shared = Arc::new(Shared {
        orders: Mutex::default(),
        wake: waker,
    });
    Ok((
        Control {
            shared: Arc::clone(&shared),
        },
        Orders { shared, wake },
    ))
}

#[cfg(test)]
mod tests {
    use super::{ORDERS_MAX, Order, control};
    use crate::exit::ExitCode;

    #[test]
    fn orders_are_taken_once_and_in_order() {
        let (handle, mut orders) = control().expect("pair");
        assert!(orders.take().is_empty());
        handle.give(Order::AddWorker);
        handle.clone().stop(ExitCode::RuntimeFailure);
        let taken: Vec<Order> = orders.take().into();
        assert_eq!(
            taken,
            [Order::AddWorker, Order::Stop(ExitCode::RuntimeFailure)]
        );
        assert!(orders.take().is_empty());
        drop(orders);
        handle.stop(ExitCode::Clean);
    }

    #[test]
    fn a_flood_is_bounded() {
        let (handle, mut orders) = control().expect("pair");
        for _ in 0..ORDERS_MAX * 2 {
            handle.give(Order::Reload);
        }
        assert_eq!(orders.take().len(), ORDERS_MAX);
    }
}
