//! Tests of [`super`]: what comes back, and what hostile bytes do.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use super::*;
use crate::message::{ToPrimary, ToWorker};
use proptest::prelude::*;

fn to_primary() -> impl Strategy<Value = ToPrimary> {
    prop_oneof![
        (any::<u32>(), any::<u16>()).prop_map(|(pid, slot)| ToPrimary::Hello { pid, slot }),
        Just(ToPrimary::Ready),
        any::<u64>().prop_map(|at_ms| ToPrimary::Heartbeat { at_ms }),
        Just(ToPrimary::Bye),
    ]
}

fn to_worker() -> impl Strategy<Value = ToWorker> {
    // Sizes around what one packet and two packets hold.
    let text = prop_oneof![
        any::<String>(),
        (0usize..40).prop_map(|n| "x".repeat(PACKET_BYTES_MAX - 20 + n)),
        (0usize..40).prop_map(|n| "\u{2028}\n".repeat((2 * PACKET_BYTES_MAX - 40) / 4 + n)),
    ];
    prop_oneof![
        text.clone().prop_map(ToWorker::Config),
        any::<u64>().prop_map(|deadline_ms| ToWorker::Drain { deadline_ms }),
        text.prop_map(ToWorker::Snapshot),
    ]
}

fn greeted<M: DeserializeOwned>(from: Side) -> Decoder<M> {
    let mut decoder = Decoder::new(from);
    assert!(decoder.push(&greeting(from)).unwrap().is_none());
    decoder
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn messages_to_the_primary_come_back(messages in proptest::collection::vec(to_primary(), 0..8)) {
        let mut decoder = greeted(Side::Worker);
        for message in messages {
            let packets = encode(&message).unwrap();
            prop_assert_eq!(packets.len(), 1);
            prop_assert_eq!(decoder.push(&packets[0]).unwrap(), Some(message));
        }
    }

    #[test]
    fn messages_to_a_worker_come_back(messages in proptest::collection::vec(to_worker(), 0..4)) {
        let mut decoder = greeted(Side::Primary);
        for message in messages {
            let mut packets = encode(&message).unwrap();
            prop_assert!(packets.iter().all(|packet| packet.len() <= PACKET_BYTES_MAX));
            let last = packets.pop().unwrap();
            for packet in packets {
                prop_assert_eq!(decoder.push(&packet).unwrap(), None);
            }
            prop_assert_eq!(decoder.push(&last).unwrap(), Some(message));
        }
    }

    #[test]
    fn hostile_packets_are_errors_or_messages(
        packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..8),
        greet: bool,
    ) {
        let mut decoder = Decoder::<ToWorker>::new(Side::Primary);
        if greet {
            decoder = greeted(Side::Primary);
        }
        for mut packet in packets {
            // Mostly a plausible first byte, so that the encoding gets its share.
            if let Some(first) = packet.first_mut() {
                *first %= 3;
            }
            if decoder.push(&packet).is_err() {
                break;
            }
        }
    }

    #[test]
    fn a_changed_packet_never_panics(message in to_worker(), at: prop::sample::Index, byte: u8) {
        let mut decoder = greeted::<ToWorker>(Side::Primary);
        for mut packet in encode(&message).unwrap() {
            let at = at.index(packet.len());
            packet[at] = byte;
            if decoder.push(&packet).is_err() {
                break;
            }
        }
    }
}

#[test]
fn the_first_packet_must_be_the_right_greeting() {
    let mut decoder = Decoder::<ToPrimary>::new(Side::Worker);
    assert_eq!(
        decoder.push(&greeting(Side::Primary)),
        Err(WireError::Greeting)
    );
    let hello = &encode(&ToPrimary::Bye).unwrap()[0];
    assert_eq!(decoder.push(hello), Err(WireError::Greeting));
    assert_eq!(decoder.push(b""), Err(WireError::Greeting));
    let mut longer = greeting(Side::Worker);
    longer.push(0);
    assert_eq!(decoder.push(&longer), Err(WireError::Greeting));
    let mut newer = greeting(Side::Worker);
    newer[8] += 1;
    assert_eq!(decoder.push(&newer), Err(WireError::Version(PROTOCOL + 1)));
    assert_eq!(decoder.push(&greeting(Side::Worker)), Ok(None));
}

#[test]
fn a_length_that_lies_costs_no_memory() {
    let mut decoder = greeted::<ToWorker>(Side::Primary);
    // A text (variant 0) that claims 2^63 bytes.
    let mut packet = vec![LAST, 0, 253];
    packet.extend_from_slice(&(1u64 << 63).to_le_bytes());
    assert_eq!(decoder.push(&packet), Err(WireError::Malformed));
}

#[test]
fn what_is_left_over_is_malformed() {
    let mut packet = encode(&ToPrimary::Ready).unwrap().remove(0);
    packet.push(0);
    let mut decoder = greeted::<ToPrimary>(Side::Worker);
    assert_eq!(decoder.push(&packet), Err(WireError::Malformed));
}

#[test]
fn messages_have_a_largest_size_on_both_sides() {
    let fits = ToWorker::Snapshot("x".repeat(MESSAGE_BYTES_MAX - 16));
    let mut decoder = greeted::<ToWorker>(Side::Primary);
    let mut got = None;
    for packet in encode(&fits).unwrap() {
        got = decoder.push(&packet).unwrap();
    }
    assert!(got == Some(fits));

    let over = ToWorker::Snapshot("x".repeat(MESSAGE_BYTES_MAX));
    assert_eq!(encode(&over), Err(WireError::TooLarge));

    let mut piece = vec![0; PACKET_BYTES_MAX];
    piece[0] = MORE;
    let pushed = (0..=MESSAGE_BYTES_MAX / (PACKET_BYTES_MAX - 1))
        .map(|_| decoder.push(&piece))
        .find(Result::is_err);
    assert_eq!(pushed, Some(Err(WireError::TooLarge)));
    let mut decoder = greeted::<ToWorker>(Side::Primary);
    assert_eq!(decoder.push(&[MORE]), Err(WireError::Malformed));
    piece.push(0);
    assert_eq!(decoder.push(&piece), Err(WireError::Malformed));
}
