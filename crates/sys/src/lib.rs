//! Thin safe wrappers over the parts of Linux that okdb's processes lean on.
//!
//! Owns every `unsafe` call about processes, descriptors, locks and signals, so that the rooms above
//! can forbid it. Holds no policy: who is started, signalled or waited for is decided by the caller.
//!
//! | module | subject |
//! |---|---|
//! | [`process`] | who a process is (pid and start time), whether it lives, signalling it safely |
//! | [`spawn`] | fork and exec with inherited descriptors and a death signal; the child's side of it |
//! | [`reap`] | collecting the children that this process forked, one pid at a time |
//! | [`signals`] | signals as something that `poll(2)` can wait for |
//! | [`lock`] | whole-file and byte-range locks that belong to a descriptor |
//! | [`fd`] | flags of descriptors |
//! | [`passing`] | descriptors that travel to another process |
//! | [`exec`] | replacing the program of this process |
//! | [`host`] | clocks, cores, limits, memory, file systems, random bytes |

pub mod exec;
pub mod fd;
pub mod host;
pub mod lock;
pub mod passing;
pub mod process;
pub mod reap;
pub mod signals;
pub mod spawn;

pub use process::Identity;
pub use signals::Signal;
