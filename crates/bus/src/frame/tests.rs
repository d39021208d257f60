//! Tests of [`super`]: what comes back, and what any other bytes do.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use super::*;
use proptest::prelude::*;

fn key() -> Key {
    Key::new([1; 16], [2; SECRET_BYTES])
}

proptest! {
    #[test]
    fn a_poke_survives_its_datagram(
        env: u16, clock: u64, root: [u8; 16], secret: [u8; SECRET_BYTES],
    ) {
        let key = Key::new(root, secret);
        let frame = Frame { env, clock };
        prop_assert_eq!(Frame::decode(&frame.encode(&key), &key), Ok(frame));
    }

    #[test]
    fn any_changed_bit_is_noticed(env: u16, clock: u64, bit in 0..FRAME_BYTES * 8) {
        let mut bytes = Frame { env, clock }.encode(&key());
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Frame::decode(&bytes, &key()).is_err());
    }

    #[test]
    fn hostile_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        prop_assert!(Frame::decode(&bytes, &key()).is_err());
    }

    #[test]
    fn only_the_right_length_is_looked_at(cut in 0..FRAME_BYTES, more in 1usize..70_000) {
        let bytes = Frame { env: 0, clock: 0 }.encode(&key());
        prop_assert_eq!(Frame::decode(&bytes[..cut], &key()), Err(FrameError::Length));
        let mut longer = bytes.to_vec();
        longer.resize(FRAME_BYTES + more, 0);
        prop_assert_eq!(Frame::decode(&longer, &key()), Err(FrameError::Length));
    }
}

#[test]
fn each_misfit_has_its_reason() {
    let frame = Frame {
        env: 0x0201,
        clock: 7,
    };
    let bytes = frame.encode(&key());
    assert_eq!(bytes[..4], [1, 1, 1, 2]);
    assert_eq!(bytes[4..20], [1; 16]);
    assert_eq!(bytes[20..28], [7, 0, 0, 0, 0, 0, 0, 0]);

    let other_root = Key::new([3; 16], [2; SECRET_BYTES]);
    assert_eq!(Frame::decode(&bytes, &other_root), Err(FrameError::Root));
    let other_secret = Key::new([1; 16], [3; SECRET_BYTES]);
    assert_eq!(Frame::decode(&bytes, &other_secret), Err(FrameError::Mac));
    let mut newer = bytes;
    newer[0] = 2;
    assert_eq!(Frame::decode(&newer, &key()), Err(FrameError::Version(2)));
    // A kind of a later version, properly authenticated.
    let mut later = bytes;
    later[1] = 9;
    let mac = key().mac(&later[..BODY_BYTES]);
    later[BODY_BYTES..].copy_from_slice(&mac);
    assert_eq!(Frame::decode(&later, &key()), Err(FrameError::Kind(9)));
}

#[test]
fn a_key_does_not_show_its_secret() {
    assert_eq!(format!("{:?}", key()), "Key { .. }");
}
