//! Stopping a driver from another thread.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use crate::exit::ExitCode;

/// Stops the server it belongs to; any thread may hold one.
#[derive(Clone, Debug)]
pub struct StopHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    code: OnceLock<ExitCode>,
    wake: UnixStream,
}

impl StopHandle {
    /// Begins a graceful stop that ends with `code`, unless another call has done so. Without effect on a
    /// driver that has ended.
    pub fn stop(&self, code: ExitCode) {
        if self.shared.code.set(code).is_ok() {
            // It can only fail when the driver is gone: this is the first byte in an empty socket.
            let _ = (&self.shared.wake).write(&[0]);
        }
    }
}

/// The driver's end.
#[derive(Debug)]
pub(super) struct StopReceiver {
    shared: Arc<Shared>,
    wake: UnixStream,
}

impl StopReceiver {
    /// The request, if one has come since the last call.
    pub(super) fn take(&mut self) -> Option<ExitCode> {
        match self.wake.read(&mut [0; 1]) {
            Ok(1) => self.shared.code.get().copied(),
            _ => None,
        }
    }
}

impl AsFd for StopReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

pub(super) fn pair() -> io::Result<(StopHandle, StopReceiver)> {
    let (wake, waker) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    waker.set_nonblocking(true)?;
    let shared = Arc::new(Shared {
        code: OnceLock::new(),
        wake: waker,
    });
    Ok((
        StopHandle {
            shared: Arc::clone(&shared),
        },
        StopReceiver { shared, wake },
    ))
}

#[cfg(test)]
mod tests {
    use super::pair;
    use crate::exit::ExitCode;

    #[test]
    fn a_stop_is_taken_once_and_the_first_code_stays() {
        let (handle, mut receiver) = pair().expect("pair");
        assert_eq!(receiver.take(), None);
        handle.stop(ExitCode::RuntimeFailure);
        handle.clone().stop(ExitCode::Clean);
        assert_eq!(receiver.take(), Some(ExitCode::RuntimeFailure));
        assert_eq!(receiver.take(), None);
        drop(receiver);
        handle.stop(ExitCode::Clean);
    }
}
