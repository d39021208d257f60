//! Opaque cursors: a position and a seal that binds it to the request that it came from.
//!
//! A cursor is base64url of a 16-byte MAC and the position. The MAC covers the environment and everything that makes the
//! request what it is, under the root's secret: any process of the root accepts it, and a foreign or altered one is refused.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::Error;

const MAC_BYTES: usize = 16;

/// The key of one environment's cursors.
pub(crate) struct CursorKey([u8; 32]);

/// What a cursor belongs to: the parts of a request that must be the same on the next page.
pub(crate) struct Request(blake3::Hasher);

impl CursorKey {
    pub(crate) fn new(secret: &[u8; 32], env: &str) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(secret);
        hasher.update(b"okdb cursor ");
        hasher.update(env.as_bytes());
        Self(*hasher.finalize().as_bytes())
    }

    /// Starts the description of a request.
    pub(crate) fn request(&self, route: &str) -> Request {
        Request(blake3::Hasher::new_keyed(&self.0)).part(route)
    }
}

impl Request {
    /// Adds a part. Lengths go in too, so that parts cannot run into one another.
    pub(crate) fn part(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    fn mac(&self, position: &[u8]) -> [u8; MAC_BYTES] {
        let mut hasher = self.0.clone();
        hasher.update(position);
        let mut mac = [0; MAC_BYTES];
        mac.copy_from_slice(&hasher.finalize().as_bytes()[..MAC_BYTES]);
        mac
    }

    pub(crate) fn seal(&self, position: &str) -> String {
        let mut bytes = self.mac(position.as_bytes()).to_vec();
        bytes.extend_from_slice(position.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    pub(crate) fn open(&self, cursor: &str) -> Result<String, Error> {
        let bytes = URL_SAFE_NO_PAD
            .decode(cursor)
            .map_err(|_| Error::InvalidCursor)?;
        match bytes.split_first_chunk::<MAC_BYTES>() {
            Some((mac, position)) if *mac == self.mac(position) => {
                String::from_utf8(position.to_vec()).map_err(|_| Error::InvalidCursor)
            }
            _ => Err(Error::InvalidCursor),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
    use super::*;

    #[test]
    fn a_cursor_opens_for_its_own_request_only() {
        let key = CursorKey::new(&[7; 32], "default");
        let cursor = key.request("list").part("users").seal("[1,\"k\"]");
        assert_eq!(
            key.request("list").part("users").open(&cursor).unwrap(),
            "[1,\"k\"]"
        );
        let foreign = [
            key.request("list").part("user").part("s"),
            key.request("query").part("users"),
            CursorKey::new(&[8; 32], "default")
                .request("list")
                .part("users"),
            CursorKey::new(&[7; 32], "other")
                .request("list")
                .part("users"),
        ];
        for request in foreign {
            assert!(matches!(request.open(&cursor), Err(Error::InvalidCursor)));
        }
        for bad in ["", "x", "!!!", &cursor[1..], &format!("{cursor}A")] {
            assert!(
                key.request("list").part("users").open(bad).is_err(),
                "{bad:?}"
            );
        }
    }
}
