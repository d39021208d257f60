//! Where work goes that may touch more than a few records: a few threads beside the event loop, with a bounded queue.
//!
//! The runtime owns the threads and ends those that are idle; this counts who may use them.

use std::{cell::Cell, rc::Rc, sync::Arc};

use tokio::sync::Semaphore;

use crate::problem::Problem;

/// The worker's bounded pool. Cheap to clone; belongs to one loop.
#[derive(Clone)]
pub(crate) struct Pool {
    running: Arc<Semaphore>,
    waiting: Rc<Cell<usize>>,
    waiting_max: usize,
}

/// Counts one caller that waits, however its wait ends.
struct Waiting<'p>(&'p Cell<usize>);

impl<'p> Waiting<'p> {
    fn new(count: &'p Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Pool {
    /// A pool that runs `running_max` jobs at a time and lets `waiting_max` more wait.
    pub(crate) fn new(running_max: usize, waiting_max: usize) -> Self {
        Self {
            running: Arc::new(Semaphore::new(running_max.clamp(1, Semaphore::MAX_PERMITS))),
            waiting: Rc::default(),
            waiting_max,
        }
    }

    /// Runs `work` off the loop, or refuses it when too many wait.
    ///
    /// A caller that goes away does not stop work that has begun; its place in the pool is taken until it ends.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        if self.running.available_permits() == 0 && self.waiting.get() >= self.waiting_max {
            return Err(Problem::overloaded());
        }
        self.run_in_turn(work).await
    }

    /// Runs `work` off the loop once it is its turn. For what has been admitted already.
    pub(crate) async fn run_in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let permit = {
            let _waiting = Waiting::new(&self.waiting);
            Arc::clone(&self.running).acquire_owned().await
        };
        let permit = permit.map_err(|closed| Problem::internal(&closed))?;
        let work = move || {
            let answer = work();
            drop(permit);
            answer
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|failed| Problem::internal(&failed))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

    use std::sync::mpsc;

    use super::Pool;
    use crate::codes::Code;

    #[tokio::test(flavor = "current_thread")]
    async fn refuses_beyond_its_queue_and_recovers() {
        let pool = Pool::new(1, 1);
        let (release, gate) = mpsc::channel::<()>();
        let blocked = pool.run(move || gate.recv().is_ok());
        let mut blocked = Box::pin(blocked);
        assert!(futures_poll(&mut blocked).is_pending());
        let mut second = Box::pin(pool.run(|| 2));
        assert!(futures_poll(&mut second).is_pending());
        let refused = pool.run(|| 3).await.unwrap_err();
        assert_eq!(refused.code(), Code::Overloaded);
        release.send(()).unwrap();
        assert!(blocked.await.unwrap());
        assert_eq!(second.await.unwrap(), 2);
        assert_eq!(pool.run(|| 4).await.unwrap(), 4);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_panic_is_one_callers_problem() {
        let pool = Pool::new(1, 0);
        let failed = pool.run(|| assert_eq!(1, 2)).await.unwrap_err();
        assert_eq!(failed.code(), Code::Internal);
        assert_eq!(pool.run(|| 1).await.unwrap(), 1);
    }

    fn futures_poll<F: Future + Unpin>(future: &mut F) -> std::task::Poll<F::Output> {
        std::pin::Pin::new(future)
            .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    }
}
