//! What a primary hands to the program that it goes on as: the state of all slots, and the numbers of the descriptors
//! that stay open.
//!
//! An upgrade in place replaces the program of the primary under its pid (`execve`), so that the workers remain its
//! children and every listener stays open. All else is made anew from this state. It travels as JSON: a later version
//! may add fields, and one that changes what is there raises [`VERSION`], which the check before the upgrade compares.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use okdb_ipc::PeerState;
use okdb_sys::spawn::take_inherited_fd;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::driver::Talk;
use crate::machine::{Machine, WorkerId};
use crate::status::LastExit;

/// The version of the state. Programs that do not share one cannot follow each other without a restart.
pub const VERSION: u32 = 1;

/// What the check of a program ends with when it could go on. Not 0, which any program may end with.
pub const CHECK_PASSED: u8 = 86;

/// Why a state cannot be gone on from.
#[derive(Debug, Error)]
pub enum ResumeError {
    /// It is not one, or one of another version.
    #[error("the state that was handed over is not understood: {0}")]
    Malformed(String),
    /// A descriptor is not there.
    #[error("a descriptor that was handed over is missing: {0}")]
    Descriptor(#[from] io::Error),
}

/// Everything that is handed over. The machine is borrowed by who gives it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Handover<M> {
    pub(crate) version: u32,
    /// Of the supervision messages that the workers speak.
    pub(crate) protocol: u32,
    pub(crate) machine: M,
    pub(crate) bound: Vec<HandedAddress>,
    pub(crate) processes: Vec<HandedProcess>,
    pub(crate) exits: Vec<HandedExit>,
}

/// An address and its listeners.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HandedAddress {
    pub(crate) address: String,
    pub(crate) sockets: HandedSockets,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum HandedSockets {
    PerSlot(Vec<RawFd>),
    Unix { fd: RawFd, file: (u64, u64) },
    Given(RawFd),
}

/// A worker process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HandedProcess {
    pub(crate) worker: WorkerId,
    pub(crate) pid: u32,
    pub(crate) start_time: u64,
    pub(crate) started_at: u64,
    pub(crate) talk: Talk,
    pub(crate) ipc: Option<(RawFd, PeerState)>,
    pub(crate) stderr: Option<RawFd>,
    pub(crate) tail: Vec<String>,
}

/// How the last worker of a slot ended.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HandedExit {
    pub(crate) slot: u16,
    pub(crate) last_exit: LastExit,
    pub(crate) last_stderr: Vec<String>,
}

impl Handover<&Machine> {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Plain data with text keys: it always serialises; nothing is a state that is refused.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl Handover<Machine> {
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, ResumeError> {
        let handover: Self = serde_json::from_slice(bytes)
            .map_err(|error| ResumeError::Malformed(error.to_string()))?;
        if handover.version == VERSION {
            Ok(handover)
        } else {
            Err(ResumeError::Malformed(format!(
                "it has version {}, this program knows {VERSION}",
                handover.version
            )))
        }
    }
}

/// Takes over a descriptor by the number that it had before.
pub(crate) fn take(number: RawFd) -> io::Result<OwnedFd> {
    take_inherited_fd(number)
}

/// What has to stay open while the program is replaced, and what the next one needs to know.
#[derive(Debug)]
pub struct Parcel<'fd> {
    /// The state, for [`crate::driver::Driver::resume`].
    pub state: Vec<u8>,
    /// The descriptors that keep their numbers.
    pub descriptors: Vec<BorrowedFd<'fd>>,
}
