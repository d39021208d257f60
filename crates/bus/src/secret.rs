//! What tells this root's datagrams from a stranger's.

use std::ffi::OsString;

use crate::frame::SECRET_BYTES;

/// The environment variable that replaces the secret which the root keeps. All processes of the root must agree: those
/// that do not hear each other's changes on their ticks only, and count what they drop.
pub const VARIABLE: &str = "OKDB_BUS_SECRET";

/// Separates what is derived here from anything else that may be derived from the same text.
const CONTEXT: &str = "okdb bus: datagram authentication, from OKDB_BUS_SECRET";

/// The secret for [`crate::Bus::open`]: from [`VARIABLE`] where that is set and not empty, else `kept`, the root's own.
#[must_use]
pub fn from_env(kept: [u8; SECRET_BYTES]) -> [u8; SECRET_BYTES] {
    chosen(std::env::var_os(VARIABLE), kept)
}

fn chosen(given: Option<OsString>, kept: [u8; SECRET_BYTES]) -> [u8; SECRET_BYTES] {
    match given {
        Some(text) if !text.is_empty() => blake3::derive_key(CONTEXT, text.as_encoded_bytes()),
        _ => kept,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_replaces_what_is_kept() {
        let kept = [3; SECRET_BYTES];
        assert_eq!(chosen(None, kept), kept);
        assert_eq!(chosen(Some(OsString::new()), kept), kept);
        let [a, b, again] = ["a", "b", "a"].map(|text| chosen(Some(text.into()), kept));
        assert_eq!(a, again);
        assert!(a != b && a != kept);
        assert_eq!(a, chosen(Some("a".into()), [4; SECRET_BYTES]));
    }
}
