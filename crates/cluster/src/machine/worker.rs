//! One worker process, as the machine knows it: where it is heading, and by when.

use serde::{Deserialize, Serialize};

use super::{ABORT_GRACE_MS, Action, Kill, Limits, SUSPECT_MS, WorkerId};

/// Where a live worker is heading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Course {
    /// Starting or serving.
    Serving,
    /// Asked to leave, and killed if it is still there then.
    Draining { kill_at_ms: u64 },
    /// Leaves though nobody here has asked it to; its end is a death.
    Deserting { kill_at_ms: u64 },
    /// Sent `SIGABRT`.
    Hung { kill_at_ms: u64 },
    /// Sent `SIGKILL`; nothing more can be done. `asked`: it had been asked to leave before.
    Killed { asked: bool },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Worker {
    pub(super) id: WorkerId,
    pub(super) pid: u32,
    /// Of which reload its configuration is.
    pub(super) generation: u64,
    /// When the start deadline began. Moved on by [`Worker::forgive`].
    started_at_ms: u64,
    pub(super) ready_at_ms: Option<u64>,
    /// When its event loop last spoke. Moved on by [`Worker::forgive`].
    heard_at_ms: u64,
    pub(super) course: Course,
}

impl Worker {
    pub(super) fn new(id: WorkerId, pid: u32, generation: u64, now_ms: u64) -> Self {
        Self {
            id,
            pid,
            generation,
            started_at_ms: now_ms,
            ready_at_ms: None,
            heard_at_ms: now_ms,
            course: Course::Serving,
        }
    }

    /// It reports Ready; tells whether that is news.
    pub(super) fn ready(&mut self, now_ms: u64) -> bool {
        let news = self.course == Course::Serving && self.ready_at_ms.is_none();
        if news {
            self.ready_at_ms = Some(now_ms);
            self.heard_at_ms = now_ms;
        }
        news
    }

    pub(super) fn heard(&mut self, at_ms: u64) {
        self.heard_at_ms = self.heard_at_ms.max(at_ms);
    }

    /// Whether it was asked to leave, so that its end is no death.
    pub(super) fn asked(&self) -> bool {
        matches!(
            self.course,
            Course::Draining { .. } | Course::Killed { asked: true }
        )
    }

    pub(super) fn is_serving(&self) -> bool {
        self.course == Course::Serving && self.ready_at_ms.is_some()
    }

    /// Whether connections in its queue can be left to it.
    pub(super) fn is_responsive(&self, now_ms: u64) -> bool {
        self.is_serving() && now_ms < self.suspect_at_ms()
    }

    pub(super) fn suspect_at_ms(&self) -> u64 {
        self.heard_at_ms.saturating_add(SUSPECT_MS)
    }

    /// Asks it to leave within `grace_ms`; one that is leaving already, to be quicker about it.
    pub(super) fn leave(&mut self, grace_ms: u64, now_ms: u64, out: &mut Vec<Action>) {
        let by_ms = now_ms.saturating_add(grace_ms);
        let news = match self.course {
            Course::Serving | Course::Deserting { .. } => true,
            Course::Draining { kill_at_ms } => by_ms < kill_at_ms,
            Course::Hung { .. } | Course::Killed { .. } => false,
        };
        if news {
            self.course = Course::Draining { kill_at_ms: by_ms };
            out.push(Action::Drain {
                worker: self.id,
                grace_ms,
            });
            out.push(Action::SlotChanged { slot: self.id.slot });
        }
    }

    /// It says that it accepts no more. Whoever was asked to leave has been counted out already.
    pub(super) fn desert(&mut self, drain_timeout_ms: u64, now_ms: u64, out: &mut Vec<Action>) {
        if self.course == Course::Serving {
            self.course = Course::Deserting {
                kill_at_ms: now_ms
                    .saturating_add(drain_timeout_ms)
                    .saturating_add(ABORT_GRACE_MS),
            };
            out.push(Action::SlotChanged { slot: self.id.slot });
        }
    }

    pub(super) fn kill(&mut self, out: &mut Vec<Action>) {
        if !matches!(self.course, Course::Killed { .. }) {
            self.course = Course::Killed {
                asked: self.asked(),
            };
            out.push(Action::Signal {
                worker: self.id,
                kill: Kill::Kill,
            });
            out.push(Action::SlotChanged { slot: self.id.slot });
        }
    }

    /// Time that the primary itself missed is not held against it.
    pub(super) fn forgive(&mut self, gap_ms: u64) {
        self.started_at_ms = self.started_at_ms.saturating_add(gap_ms);
        self.heard_at_ms = self.heard_at_ms.saturating_add(gap_ms);
    }

    /// When the machine must act on this worker.
    pub(super) fn deadline_ms(&self, limits: &Limits) -> Option<u64> {
        match (self.course, self.ready_at_ms) {
            (Course::Serving, None) => {
                Some(self.started_at_ms.saturating_add(limits.start_deadline_ms))
            }
            (Course::Serving, Some(_)) => {
                Some(self.heard_at_ms.saturating_add(limits.worker_timeout_ms))
            }
            (
                Course::Draining { kill_at_ms }
                | Course::Deserting { kill_at_ms }
                | Course::Hung { kill_at_ms },
                _,
            ) => Some(kill_at_ms),
            (Course::Killed { .. }, _) => None,
        }
    }

    pub(super) fn tick(&mut self, limits: &Limits, now_ms: u64, out: &mut Vec<Action>) {
        if self.deadline_ms(limits).is_none_or(|at_ms| now_ms < at_ms) {
            return;
        }
        if self.is_serving() {
            self.course = Course::Hung {
                kill_at_ms: now_ms.saturating_add(ABORT_GRACE_MS),
            };
            out.push(Action::Signal {
                worker: self.id,
                kill: Kill::Abort,
            });
            out.push(Action::SlotChanged { slot: self.id.slot });
        } else {
            self.kill(out);
        }
    }
}
