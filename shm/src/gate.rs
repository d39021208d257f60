//! The hard gate: several processes may serve one root only if a child process proves that it shares the
//! segment.
//!
//! The prover puts a random token into a cell of the segment and starts a child; the child finds its own
//! way to the segment, through `run/segment`, and answers by adding one. A sandbox, a mount namespace or a
//! file system that gives each process its own copy fails this, whatever else it promises.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use okdb_sys::reap::{self, Exit};
use okdb_sys::spawn::Spawn;
use okdb_sys::{Signal, host, process};

use crate::errors::AttachError;
use crate::layout::GateCell;
use crate::owner;
use crate::segment::{Identity, Segment};

/// How long the child may take. It starts, maps one file and adds one: milliseconds.
const CHILD_DEADLINE: Duration = Duration::from_secs(2);

/// Why the proof failed, or could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// The segment is this process's own memory.
    #[error("the segment is private to one process")]
    Private,
    /// Others are proving already.
    #[error("too many proofs run at once")]
    Busy,
    /// The child did not start.
    #[error("cannot start a child process: {0}")]
    Spawn(#[source] io::Error),
    /// The child did not end in time.
    #[error("the child process did not answer within {} s", CHILD_DEADLINE.as_secs())]
    Deadline,
    /// The child ended without an answer.
    #[error("the child process failed ({0})")]
    Child(Exit),
    /// The child says that it answered, but not here.
    #[error("a child process does not share the segment")]
    NotShared,
    /// The child found no segment.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Anything else.
    #[error("cannot watch the child process: {0}")]
    Io(#[from] io::Error),
}

/// Proves that a child process sees and advances a word of `segment`. `child` gets the token and says what
/// to start: a process that calls [`gate_child`] with it and exits with 0 if that succeeds.
///
/// # Errors
/// See [`GateError`]: after any of them, one process must serve alone.
pub fn prove_shared<'fd>(
    segment: &Segment,
    child: impl FnOnce(u64) -> Spawn<'fd>,
) -> Result<(), GateError> {
    if !segment.is_shared() {
        return Err(GateError::Private);
    }
    let me = owner::pack(process::Identity::current()?).map_err(io::Error::other)?;
    let cell = Claimed::take(&segment.tables().header.gate, me)?;
    let token = random_token()?;
    cell.cell.value.store(token, Ordering::Release);

    let child = child(token).start().map_err(GateError::Spawn)?;
    let in_time = child.identity.wait_end(CHILD_DEADLINE);
    if !matches!(in_time, Ok(true)) {
        // Not reaped yet, so the pid is still its own; if the signal fails, it ended by itself.
        let _ = child.identity.signal(Signal::Kill);
    }
    let exit = reap::wait(child.identity.pid)?;
    if !in_time? {
        return Err(GateError::Deadline);
    }
    if !exit.is_success() {
        return Err(GateError::Child(exit));
    }
    if cell.cell.value.load(Ordering::Acquire) != token.wrapping_add(1) {
        return Err(GateError::NotShared);
    }
    Ok(())
}

/// The child's side of [`prove_shared`]: attaches through `run/segment` and answers the token.
///
/// # Errors
/// [`GateError::Attach`] when there is no segment to attach to, [`GateError::NotShared`] when the one that
/// there is does not hold the token.
pub fn gate_child(run_dir: &Path, identity: &Identity, token: u64) -> Result<(), GateError> {
    let segment = Segment::attach(run_dir, identity)?;
    let answer = token.wrapping_add(1);
    let answered = segment.tables().header.gate.iter().any(|cell| {
        cell.value
            .compare_exchange(token, answer, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    });
    if answered {
        Ok(())
    } else {
        Err(GateError::NotShared)
    }
}

/// Even and not 0, so that it is neither an empty cell nor another proof's answer.
fn random_token() -> io::Result<u64> {
    loop {
        let token = u64::from_ne_bytes(host::random_bytes()?) & !1;
        if token != 0 {
            return Ok(token);
        }
    }
}

/// A cell for one proof; those of dead provers are taken over.
struct Claimed<'a> {
    cell: &'a GateCell,
    me: u64,
}

impl<'a> Claimed<'a> {
    fn take(cells: &'a [GateCell], me: u64) -> Result<Self, GateError> {
        let cell = cells
            .iter()
            .find(|cell| owner::claim(&cell.owner, me, owner::lives).is_ok())
            .ok_or(GateError::Busy)?;
        Ok(Self { cell, me })
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.cell.value.store(0, Ordering::Relaxed);
        owner::release(&self.cell.owner, self.me);
    }
}
