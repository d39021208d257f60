//! Signals and orders as streams for an event loop.

use std::{
    io,
    os::{fd::AsFd, unix::net::UnixStream as StdUnixStream},
};

use okdb_cluster::driver::{Order, Orders};
use okdb_sys::{Signal, signals::Signals};
use tokio::{io::Interest, net::UnixStream};

/// Something with a socket that is readable when it has news.
pub(crate) trait Source: AsFd {
    type News;

    /// What has arrived; never waits.
    fn take(&mut self) -> Vec<Self::News>;
}

impl Source for Signals {
    type News = Signal;

    fn take(&mut self) -> Vec<Signal> {
        self.drain()
    }
}

impl Source for Orders {
    type News = Order;

    fn take(&mut self) -> Vec<Order> {
        Self::take(self).into()
    }
}

/// News that can be awaited.
pub(crate) struct Arrivals<S> {
    source: S,
    /// A duplicate of the socket that tells of them; only its readiness is used.
    socket: UnixStream,
}

impl<S: Source> Arrivals<S> {
    pub(crate) fn new(source: S) -> io::Result<Self> {
        let socket = StdUnixStream::from(source.as_fd().try_clone_to_owned()?);
        socket.set_nonblocking(true)?;
        Ok(Self {
            source,
            socket: UnixStream::from_std(socket)?,
        })
    }

    /// What has arrived; waits for something.
    pub(crate) async fn next(&mut self) -> io::Result<Vec<S::News>> {
        loop {
            self.socket.readable().await?;
            let source = &mut self.source;
            let arrived = self.socket.try_io(Interest::READABLE, || {
                let arrived = source.take();
                if arrived.is_empty() {
                    Err(io::ErrorKind::WouldBlock.into())
                } else {
                    Ok(arrived)
                }
            });
            match arrived {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                arrived => return arrived,
            }
        }
    }

    /// The same of a source that there may not be: without one, nothing ever arrives.
    pub(crate) async fn next_of(arrivals: &mut Option<Self>) -> io::Result<Vec<S::News>> {
        match arrivals {
            Some(arrivals) => arrivals.next().await,
            None => std::future::pending().await,
        }
    }
}
