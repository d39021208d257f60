//! Why a segment is not attached to, or not created: each reason in the words that an operator reads.

use std::io;
use std::path::{Path, PathBuf};

use crate::layout::SEGMENT_BYTES;

/// Why the segment that `run/segment` names is outdated. Whoever holds the root alone replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StaleReason {
    /// `run/segment` is not understood.
    #[error("its contents are not understood")]
    Pointer,
    /// The file has another size.
    #[error("its size is {0} bytes, expected {SEGMENT_BYTES}")]
    Size(u64),
    /// The file holds something else.
    #[error("it does not hold a segment")]
    Magic,
    /// Another version of okdb made it.
    #[error("its layout version is {0}")]
    Layout(u64),
    /// The static part is damaged.
    #[error("its header is damaged")]
    Checksum,
    /// It belongs to another root.
    #[error("it belongs to another root")]
    Root,
    /// It is from before the host was started.
    #[error("it is from another boot")]
    Boot,
    /// It belongs to the root that this one was copied from.
    #[error("it belongs to another copy of this root")]
    Place,
    /// The file was replaced by another segment.
    #[error("its nonce is not the one that run/segment names")]
    Nonce,
}

/// Why a file is not taken for ours. Nobody touches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignReason {
    /// A symbolic link.
    #[error("it is a symbolic link")]
    Symlink,
    /// A directory, socket, device or the like, or a file with several names.
    #[error("it is not a regular file with one name")]
    NotRegular,
    /// Another user's file.
    #[error("it belongs to user {0}")]
    Owner(u32),
    /// Permissions that let others in, or shut its owner out.
    #[error("its mode is {0:o}, expected 600")]
    Mode(u32),
    /// Its processes live in another pid or time namespace, so that nobody could tell who of them lives.
    #[error(
        "it was made in another pid or time namespace; processes that share a root must share these"
    )]
    Namespace,
}

/// Why no segment was attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// There is no `run/segment`, or not the file that it names: perhaps that was made in a container with
    /// a `/dev/shm` of its own.
    #[error("the shared segment {} does not exist here", .path.display())]
    Missing {
        /// What is missing.
        path: PathBuf,
    },
    /// There is one, but it is outdated.
    #[error("the shared segment {} is outdated: {reason}", .path.display())]
    Stale {
        /// What is outdated.
        path: PathBuf,
        /// Why.
        reason: StaleReason,
    },
    /// There is something that is not ours.
    #[error("{} is not a segment of this root: {reason}", .path.display())]
    Foreign {
        /// What is in the way.
        path: PathBuf,
        /// Why it is not ours.
        reason: ForeignReason,
    },
    /// The user may not open it.
    #[error("no permission to open the shared segment {}", .path.display())]
    Denied {
        /// What was refused.
        path: PathBuf,
    },
    /// Anything else.
    #[error("cannot attach to the shared segment {}: {source}", .path.display())]
    Io {
        /// What failed.
        path: PathBuf,
        /// How.
        source: io::Error,
    },
}

/// Why no segment was created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// No room for it.
    #[error("no room for the shared segment of {SEGMENT_BYTES} bytes at {}", .path.display())]
    Full {
        /// The file that did not fit.
        path: PathBuf,
    },
    /// The user may not create it.
    #[error("no permission to create the shared segment {}", .path.display())]
    Denied {
        /// What was refused.
        path: PathBuf,
    },
    /// Anything else.
    #[error("cannot create the shared segment {}: {source}", .path.display())]
    Io {
        /// What failed.
        path: PathBuf,
        /// How.
        source: io::Error,
    },
}

impl CreateError {
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path },
            io::ErrorKind::PermissionDenied => Self::Denied { path },
            _ => Self::Io { path, source },
        }
    }
}

impl AttachError {
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::NotFound => Self::Missing { path },
            io::ErrorKind::PermissionDenied => Self::Denied { path },
            // What O_NOFOLLOW answers for a link.
            _ if source.raw_os_error() == Some(nix::libc::ELOOP) => Self::Foreign {
                path,
                reason: ForeignReason::Symlink,
            },
            // A directory opened for writing, a socket, a device without a driver.
            io::ErrorKind::IsADirectory => Self::Foreign {
                path,
                reason: ForeignReason::NotRegular,
            },
            _ if source.raw_os_error() == Some(nix::libc::ENXIO) => Self::Foreign {
                path,
                reason: ForeignReason::NotRegular,
            },
            _ => Self::Io { path, source },
        }
    }
}
