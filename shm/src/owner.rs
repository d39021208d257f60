//! Ownership of a row: one word that names one incarnation of one process, taken by compare-and-swap.
//!
//! Pid and start time fit into one word together, so a claim is a single step and needs no lock. Since no
//! two processes of a boot share both, a word that names a dead process can only ever be replaced, never
//! come to life again: there is no ABA problem. A process killed between any two instructions leaves the
//! row owned by a dead process, which the next claimer takes over.

use std::sync::atomic::Ordering;

use okdb_sys::process;

use crate::word::Word;

/// Linux bounds pids below 2^22 on 64-bit machines.
const PID_BITS: u32 = 22;

const PID_MASK: u64 = (1 << PID_BITS) - 1;

/// Why a row could not be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Every row that would do belongs to a living process.
    #[error("every row of the shared segment belongs to a living process")]
    Full,
    /// The row belongs to this living process.
    #[error("process {0} holds it")]
    Held(u32),
    /// No such slot.
    #[error("slot {0} is out of range")]
    Slot(u16),
    /// No such environment row, or an identity of 0.
    #[error("not an environment row, or its identity is 0")]
    Env,
    /// The row belongs to another environment, with this identity.
    #[error("the row belongs to environment {0:#018x}")]
    OtherEnv(u64),
    /// The process's pid or start time is beyond what Linux hands out.
    #[error("not a process identity")]
    Process,
}

/// The word for `identity`; never 0.
pub(crate) fn pack(identity: process::Identity) -> Result<u64, ClaimError> {
    let pid = u64::from(identity.pid);
    let start = identity.start_time;
    if pid == 0 || pid > PID_MASK || start > u64::MAX >> PID_BITS {
        return Err(ClaimError::Process);
    }
    Ok(start << PID_BITS | pid)
}

/// The process that `word` names; `None` for a free row.
pub(crate) fn unpack(word: u64) -> Option<process::Identity> {
    let pid = u32::try_from(word & PID_MASK).ok().filter(|&pid| pid > 0)?;
    Some(process::Identity {
        pid,
        start_time: word >> PID_BITS,
    })
}

/// Whether the process that `word` names lives. A word that names nobody is free for the taking.
pub(crate) fn lives(word: u64) -> bool {
    unpack(word).is_some_and(|identity| identity.is_alive())
}

/// Makes `me` the owner unless a living process owns the row; that one's word is the error.
pub(crate) fn claim<W: Word>(owner: &W, me: u64, alive: impl Fn(u64) -> bool) -> Result<(), u64> {
    let mut current = owner.load(Ordering::Acquire);
    loop {
        if current != 0 && alive(current) {
            return Err(current);
        }
        // Acquire, to see what the last owner wrote; release, so that who finds us here sees what we saw.
        match owner.compare_exchange(current, me, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(()),
            Err(newer) => current = newer,
        }
    }
}

/// Frees the row if `me` owns it. Whatever was written to it before is seen by the next owner.
pub(crate) fn release<W: Word>(owner: &W, me: u64) {
    // Not owning it any more means that somebody took us for dead, and then it is theirs.
    let _ = owner.compare_exchange(me, 0, Ordering::Release, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU64;

    proptest! {
        #[test]
        fn an_identity_survives_its_word(pid in 1..1u32 << PID_BITS, start_time in 0..1u64 << 42) {
            let identity = process::Identity { pid, start_time };
            let word = pack(identity).unwrap();
            prop_assert_ne!(word, 0);
            prop_assert_eq!(unpack(word), Some(identity));
        }

        #[test]
        fn any_word_can_be_read(word: u64) {
            if let Some(identity) = unpack(word) {
                prop_assert_eq!(pack(identity), Ok(word));
            }
        }
    }

    #[test]
    fn impossible_identities_are_refused() {
        for (pid, start_time) in [(0, 1), (1 << PID_BITS, 1), (1, 1 << 42)] {
            let identity = process::Identity { pid, start_time };
            assert_eq!(pack(identity), Err(ClaimError::Process));
        }
        assert_eq!(unpack(0), None);
    }

    #[test]
    fn only_the_dead_and_the_gone_make_room() {
        let row = AtomicU64::new(0);
        assert_eq!(claim(&row, 7, |_| true), Ok(()));
        assert_eq!(claim(&row, 8, |_| true), Err(7));
        assert_eq!(claim(&row, 8, |owner| owner != 7), Ok(()));
        release(&row, 7);
        assert_eq!(row.load(Ordering::Relaxed), 8, "not 7's any more");
        release(&row, 8);
        assert_eq!(row.load(Ordering::Relaxed), 0);
    }
}
