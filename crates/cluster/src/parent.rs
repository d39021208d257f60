//! The worker's side of primary death: a watchdog that no busy event loop can hold up.
//!
//! Three signs tell a worker that its primary is gone: the death signal (set at spawn), the end of the
//! supervision socket, and a parent that is not the one it started with. This thread looks at the last
//! two. It reads nothing from the socket; that is the event loop's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use okdb_sys::process::parent_pid;

use crate::exit::ExitCode;

/// How often the parent's pid is looked at. The end of the socket is noticed at once. Milliseconds.
pub const WATCH_INTERVAL_MS: u16 = 250;

/// How long a worker may go on after its primary's death, to finish the requests it has.
pub const ORPHAN_GRACE: Duration = Duration::from_secs(3);

/// What a worker ends with that could not finish within [`ORPHAN_GRACE`].
pub const ORPHAN_EXIT_CODE: ExitCode = ExitCode::RuntimeFailure;

/// A running watchdog. It ends with the process, not with this value.
#[derive(Debug)]
pub struct Watch(());

impl Watch {
    /// Starts the thread `parent-watch`.
    ///
    /// `ipc` is a duplicate of the supervision socket, `parent` the pid of the primary as the worker was
    /// told it. (The pid seen at start would do only if the primary could not have died before.) When
    /// the primary is gone, `on_gone` is called once, on a thread of its own, to begin the graceful end.
    /// A process that is still there [`ORPHAN_GRACE`] later is ended with [`ORPHAN_EXIT_CODE`], whatever
    /// its other threads do, `on_gone` included.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(
        ipc: OwnedFd,
        parent: u32,
        on_gone: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_with(ipc, parent, on_gone, || {
            thread::sleep(ORPHAN_GRACE);
            // Not even a log line first: the log's lock or its pipe may be what everybody is stuck at.
            end_process();
        })
    }

    fn start_with(
        ipc: OwnedFd,
        parent: u32,
        on_gone: impl FnOnce() + Send + 'static,
        after: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        thread::Builder::new()
            .name("parent-watch".into())
            .spawn(move || {
                wait_for_end(&ipc, parent);
                // If no thread can be had, the death signal still begins the graceful end.
                let _ = thread::Builder::new()
                    .name("parent-gone".into())
                    .spawn(on_gone);
                after();
            })?;
        Ok(Self(()))
    }
}

#[allow(
    clippy::exit,
    reason = "the event loop may be stuck for good; nobody else is left to end this process"
)]
fn end_process() {
    std::process::exit(i32::from(ORPHAN_EXIT_CODE.number()));
}

fn wait_for_end(ipc: &OwnedFd, parent: u32) {
    while parent_pid() == parent {
        // No event is asked for, so unread messages wake nobody; a hang-up is always reported.
        let mut fds = [PollFd::new(ipc.as_fd(), PollFlags::empty())];
        match poll(&mut fds, PollTimeout::from(WATCH_INTERVAL_MS)) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return,
            Err(error) => {
                // Without the socket the pid still tells.
                tracing::warn!(%error, "cannot watch the supervision socket");
                thread::sleep(Duration::from_millis(u64::from(WATCH_INTERVAL_MS)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Watch;
    use okdb_sys::process::parent_pid;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::{Receiver, TryRecvError, channel};
    use std::time::Duration;

    fn watch(ipc: UnixStream, parent: u32) -> Receiver<&'static str> {
        let (told, news) = channel();
        let later = told.clone();
        Watch::start_with(
            ipc.into(),
            parent,
            move || told.send("gone").expect("send"),
            move || later.send("over").expect("send"),
        )
        .expect("thread");
        news
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn the_end_of_the_socket_is_noticed_once_and_then_comes_the_end() {
        let (ours, mut theirs) = UnixStream::pair().expect("pair");
        theirs
            .write_all(b"unread messages are no news")
            .expect("write");
        let news = watch(ours, parent_pid());
        assert_eq!(news.try_recv(), Err(TryRecvError::Empty));
        drop(theirs);
        let mut told = [news.recv_timeout(PATIENCE), news.recv_timeout(PATIENCE)];
        told.sort_unstable_by_key(|news| news.unwrap_or_default());
        assert_eq!(told, [Ok("gone"), Ok("over")]);
        assert!(news.recv_timeout(PATIENCE).is_err(), "each was told once");
    }

    #[test]
    fn another_parent_is_noticed_though_the_socket_lives() {
        let (ours, _theirs) = UnixStream::pair().expect("pair");
        let news = watch(ours, parent_pid().wrapping_add(1));
        assert!(news.recv_timeout(PATIENCE).is_ok());
    }
}
