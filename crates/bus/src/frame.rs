//! The datagram. All numbers are little-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version, 1 |
//! | 1 | 1 | kind: 1 poke |
//! | 2 | 2 | index of the environment |
//! | 4 | 16 | identity of the root |
//! | 20 | 8 | clock |
//! | 28 | 16 | MAC: the first bytes of keyed BLAKE3 over all before |

use std::fmt;

/// Length of every datagram.
pub const FRAME_BYTES: usize = BODY_BYTES + MAC_BYTES;

/// Length of the root's secret.
pub const SECRET_BYTES: usize = 32;

const VERSION: u8 = 1;
const KIND_POKE: u8 = 1;
const MAC_BYTES: usize = 16;
const BODY_BYTES: usize = 28;

/// What makes a datagram ours: the root and its secret.
#[derive(Clone)]
pub struct Key {
    root: [u8; 16],
    secret: [u8; SECRET_BYTES],
}

impl Key {
    /// The key of `root`.
    #[must_use]
    pub fn new(root: [u8; 16], secret: [u8; SECRET_BYTES]) -> Self {
        Self { root, secret }
    }

    fn mac(&self, body: &[u8]) -> [u8; MAC_BYTES] {
        let hash = blake3::keyed_hash(&self.secret, body);
        let mut mac = [0; MAC_BYTES];
        for (to, from) in mac.iter_mut().zip(hash.as_bytes()) {
            *to = *from;
        }
        mac
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

/// A poke, as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Index of an environment that changed.
    pub env: u16,
    /// Its published clock at that moment.
    pub clock: u64,
}

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not as long as a frame is.
    #[error("wrong length")]
    Length,
    /// Another version of the frame.
    #[error("version {0}")]
    Version(u8),
    /// Another root's.
    #[error("another root")]
    Root,
    /// Made or changed by somebody who does not know the secret.
    #[error("wrong authentication code")]
    Mac,
    /// A kind that this version does not know.
    #[error("kind {0}")]
    Kind(u8),
}

impl Frame {
    /// The datagram.
    #[must_use]
    pub fn encode(&self, key: &Key) -> [u8; FRAME_BYTES] {
        let mut bytes = Vec::with_capacity(FRAME_BYTES);
        bytes.extend_from_slice(&[VERSION, KIND_POKE]);
        bytes.extend_from_slice(&self.env.to_le_bytes());
        bytes.extend_from_slice(&key.root);
        bytes.extend_from_slice(&self.clock.to_le_bytes());
        bytes.extend_from_slice(&key.mac(&bytes));
        let mut frame = [0; FRAME_BYTES];
        for (to, from) in frame.iter_mut().zip(bytes) {
            *to = from;
        }
        frame
    }

    /// The poke in a datagram. Cheap checks come first, so that noise costs little.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn decode(bytes: &[u8], key: &Key) -> Result<Self, FrameError> {
        let bytes: &[u8; FRAME_BYTES] = bytes.try_into().map_err(|_| FrameError::Length)?;
        let (body, mac) = bytes.split_at(BODY_BYTES);
        let mut rest = body;
        let version = u8::from_le_bytes(take(&mut rest)?);
        let kind = u8::from_le_bytes(take(&mut rest)?);
        let env = u16::from_le_bytes(take(&mut rest)?);
        let root: [u8; 16] = take(&mut rest)?;
        let clock = u64::from_le_bytes(take(&mut rest)?);
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        if root != key.root {
            return Err(FrameError::Root);
        }
        if !equal(mac, &key.mac(body)) {
            return Err(FrameError::Mac);
        }
        if kind != KIND_POKE {
            return Err(FrameError::Kind(kind));
        }
        Ok(Self { env, clock })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], FrameError> {
    let (field, after) = rest.split_first_chunk().ok_or(FrameError::Length)?;
    *rest = after;
    Ok(*field)
}

/// Takes as long whatever differs, so that nobody can guess a MAC byte by byte.
fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
}

#[cfg(test)]
#[path = "frame/tests.rs"]
mod tests;
