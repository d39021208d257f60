//! What the machine is told, and what it answers: events in, actions out.

use serde::{Deserialize, Serialize};

use super::{Limits, SLOT_COUNT_MAX, WorkerExit};
use crate::exit::ExitCode;

/// One incarnation of a slot. Incarnations count from 1 and are never reused, so a late event about a worker that has
/// been replaced is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkerId {
    /// The slot, from 0.
    pub slot: u16,
    /// Which worker of that slot.
    pub incarnation: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The process runs. Answers [`Action::Spawn`].
    Spawned {
        /// Which worker.
        worker: WorkerId,
        /// Its pid.
        pid: u32,
    },
    /// The process could not be made. Answers [`Action::Spawn`]; counts as a death.
    SpawnFailed {
        /// Which worker.
        worker: WorkerId,
        /// Whether the host is short of descriptors, memory or processes. That says nothing about the slot, which is not
        /// given up for it.
        starved: bool,
    },
    /// The worker accepts connections.
    Ready {
        /// Which worker.
        worker: WorkerId,
    },
    /// The worker accepts no more, though nobody here has asked it to leave: somebody has sent it a signal.
    Leaving {
        /// Which worker.
        worker: WorkerId,
    },
    /// The worker's event loop turns.
    Heartbeat {
        /// Which worker.
        worker: WorkerId,
        /// When it said so, by the machine's clock: the news may have waited to be read.
        at_ms: u64,
    },
    /// A worker that was sent `SIGABRT` is in state T: it cannot act on it.
    FoundStopped {
        /// Which worker.
        worker: WorkerId,
    },
    /// The worker was reaped.
    Exited {
        /// Which worker.
        worker: WorkerId,
        /// How it ended.
        exit: WorkerExit,
    },
    /// The server shall stop. The first request drains the workers; a second one kills them at once.
    StopRequested {
        /// How long the workers get before `SIGKILL`. Milliseconds.
        grace_ms: u64,
        /// What the server ends with if all goes well. The first code that is not `Clean` is kept.
        code: ExitCode,
    },
    /// Every worker shall be replaced by a new one, one slot at a time, and slots that were given up shall start anew.
    ReloadRequested {
        /// The limits from now on.
        limits: Limits,
    },
    /// One worker more.
    AddWorker,
    /// One worker fewer.
    RemoveWorker,
    /// Time has passed.
    Tick,
}

/// Why something was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The server is stopping.
    Stopping,
    /// There are [`SLOT_COUNT_MAX`] slots.
    TooMany,
    /// No worker that lives would be left.
    LastWorker,
    /// A process is being made for the slot at this very moment.
    Busy,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stopping => f.write_str("the server is stopping"),
            Self::TooMany => write!(f, "there are {SLOT_COUNT_MAX} slots, the most that can be"),
            Self::LastWorker => f.write_str("it is the last worker"),
            Self::Busy => f.write_str("a worker is just being started; try again"),
        }
    }
}

/// A signal that the machine may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// `SIGABRT`: end with a core dump. The driver answers with [`Event::FoundStopped`] if that cannot work.
    Abort,
    /// `SIGKILL`.
    Kill,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start a process for this worker; answer with `Spawned` or `SpawnFailed`.
    Spawn {
        /// Which worker.
        worker: WorkerId,
    },
    /// Ask the worker to finish what it has and leave. May come again, with less time.
    Drain {
        /// Which worker.
        worker: WorkerId,
        /// How long it has until it is killed. Milliseconds.
        grace_ms: u64,
    },
    /// Send the worker a signal.
    Signal {
        /// Which worker.
        worker: WorkerId,
        /// Which signal.
        kill: Kill,
    },
    /// A worker ended that was not asked to (or could not be made).
    ReportDeath {
        /// Which worker.
        worker: WorkerId,
        /// Its pid, unless it was never made.
        pid: Option<u32>,
        /// How it ended.
        exit: WorkerExit,
    },
    /// The slot is given up: its worker died too often.
    ReportDead {
        /// Which slot.
        slot: u16,
    },
    /// Nobody answers the slot's connections: every other worker shall.
    Orphan {
        /// Which slot.
        slot: u16,
    },
    /// The slot's own worker answers again: the others shall let go.
    Reclaim {
        /// Which slot.
        slot: u16,
    },
    /// A reload has ended. `failed` is the slot whose new worker did not get ready; it and those after it keep the
    /// worker that they had.
    ReportReloaded {
        /// Which slot stood in the way, if one did.
        failed: Option<u16>,
    },
    /// A worker was added to this slot.
    ReportAdded {
        /// Which slot.
        slot: u16,
    },
    /// This slot's worker leaves, and gets no successor.
    ReportRemoved {
        /// Which slot.
        slot: u16,
    },
    /// A worker cannot be added or removed.
    Refuse {
        /// Why not.
        refusal: Refusal,
    },
    /// Every slot is ready or given up, and at least one is ready. Comes once at most.
    ReportReady,
    /// The stop has begun. Comes once at most.
    ReportStopping,
    /// Every slot was given up, but workers of old are still finishing what they have: the server shall stop, with
    /// [`ExitCode::AllSlotsDead`]. Answer with [`Event::StopRequested`].
    StopAllDead,
    /// What [`super::Machine::view`] says of the slot has changed.
    SlotChanged {
        /// Which slot.
        slot: u16,
    },
    /// All is over; end with this code. Comes once at most, and nothing after it.
    Finished {
        /// The code.
        code: ExitCode,
    },
}
