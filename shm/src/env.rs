//! An environment's row: its published clock and the generation of its files.

use std::fmt;
use std::sync::atomic::Ordering;

use crate::layout::EnvWords;
use crate::owner::ClaimError;

/// The row of one environment. A row belongs to one environment for as long as the segment lives; which
/// index an environment has is the store's durable decision.
#[derive(Clone, Copy)]
pub struct EnvRow<'a> {
    pub(crate) words: &'a EnvWords,
}

impl EnvRow<'_> {
    /// Makes this the row of the environment with `identity` (not 0), if it is free or its already.
    ///
    /// # Errors
    /// [`ClaimError::OtherEnv`] when it belongs to another one, [`ClaimError::Env`] for an identity of 0.
    pub fn claim(&self, identity: u64) -> Result<(), ClaimError> {
        if identity == 0 {
            return Err(ClaimError::Env);
        }
        match self
            .words
            .identity
            .compare_exchange(0, identity, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Ok(()),
            Err(owner) if owner == identity => Ok(()),
            Err(owner) => Err(ClaimError::OtherEnv(owner)),
        }
    }

    /// The environment whose row this is; `None` while it is free.
    #[must_use]
    pub fn identity(&self) -> Option<u64> {
        Some(self.words.identity.load(Ordering::Acquire)).filter(|&identity| identity != 0)
    }

    /// The latest published clock: a hint that is never ahead of what a new read transaction sees, but may
    /// lag behind it. 0 before the first.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.words.clock.load(Ordering::Acquire)
    }

    /// Publishes a clock whose commit is done. A lower one than the published changes nothing, so
    /// processes may publish in any order.
    pub fn publish(&self, clock: u64) {
        self.words.clock.fetch_max(clock, Ordering::AcqRel);
    }

    /// The generation of the environment's files; 0 before the first.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.words.generation.load(Ordering::Acquire)
    }

    /// Publishes a generation of the files. It never goes back.
    pub fn set_generation(&self, generation: u64) {
        self.words
            .generation
            .fetch_max(generation, Ordering::AcqRel);
    }
}

impl fmt::Debug for EnvRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvRow")
            .field("identity", &self.identity())
            .field("clock", &self.clock())
            .field("generation", &self.generation())
            .finish()
    }
}
