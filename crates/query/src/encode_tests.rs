//! The laws of the encoding: order, equality, delimiting, and what cutting may and may not lose.

use std::cmp::Ordering;

use proptest::prelude::*;

use super::*;
use crate::{
    compare,
    testing::{nested, number_text, pair, parse, value},
};

const UNCUT: usize = usize::MAX;

fn encode(value: &Value<'_>, cut: usize) -> (Vec<u8>, bool) {
    let mut out = vec![0xAB];
    let was_cut = component(value, cut, &mut out);
    assert_eq!(out.remove(0), 0xAB);
    (out, was_cut)
}

fn row(values: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for value in values {
        component(&parse(value), UNCUT, &mut out);
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn order_is_the_values_order((a, b) in pair()) {
        let (left, right) = (encode(&a, UNCUT).0, encode(&b, UNCUT).0);
        prop_assert_eq!(left.cmp(&right), compare(&a, &b));
    }

    #[test]
    fn components_delimit_themselves(a in value(), b in value(), cut in 16_usize..60) {
        for cut in [cut, UNCUT] {
            let (first, was_cut) = encode(&a, cut);
            prop_assert_eq!(is_cut(&first), was_cut);
            prop_assert!(first.len() <= cut);
            let mut both = first.clone();
            component(&b, cut, &mut both);
            prop_assert_eq!(component_len(&both), Some(first.len()));
            prop_assert_eq!(component_len(&first), Some(first.len()));
            for end in 0..first.len() {
                prop_assert_eq!(component_len(&first[..end]), None);
            }
        }
    }

    #[test]
    fn rows_sort_as_lists(rows in prop::collection::vec(prop::collection::vec(value(), 2), 2)) {
        let encoded: Vec<Vec<u8>> = rows.iter().map(|row| {
            let mut out = Vec::new();
            for value in row { component(value, UNCUT, &mut out); }
            out
        }).collect();
        let expected = compare(&rows[0][0], &rows[1][0])
            .then_with(|| compare(&rows[0][1], &rows[1][1]));
        prop_assert_eq!(encoded[0].cmp(&encoded[1]), expected);
    }

    #[test]
    fn cutting_never_contradicts_the_order((a, b) in pair(), cut in 16_usize..40) {
        let ((left, left_cut), (right, right_cut)) = (encode(&a, cut), encode(&b, cut));
        let order = left.cmp(&right);
        if order == Ordering::Equal && left_cut && right_cut {
            return Ok(());
        }
        prop_assert_eq!(order, compare(&a, &b), "{:?} {:?}", left, right);
    }

    #[test]
    fn an_uncut_component_is_the_same_under_any_bound(a in value(), cut in 16_usize..80) {
        let (full, _) = encode(&a, UNCUT);
        let (bounded, was_cut) = encode(&a, cut);
        prop_assert_eq!(was_cut, full.len() > cut);
        if !was_cut {
            prop_assert_eq!(full, bounded);
        }
    }

    #[test]
    fn long_numbers_cut_in_order(
        digits in "[1-9][0-9]{20,30}",
        tails in ("[0-9]{0,4}", "[0-9]{0,4}"),
        minus in any::<bool>(),
    ) {
        let sign = if minus { "-" } else { "" };
        let a = format!("{sign}0.{digits}{}", tails.0);
        let b = format!("{sign}0.{digits}{}", tails.1);
        let (a, b) = (parse(&a), parse(&b));
        let ((left, left_cut), (right, right_cut)) = (encode(&a, 16), encode(&b, 16));
        let order = left.cmp(&right);
        if !(order == Ordering::Equal && left_cut && right_cut) {
            prop_assert_eq!(order, compare(&a, &b));
        }
    }

    #[test]
    fn hostile_bytes_have_a_length_or_none(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Some(length) = component_len(&bytes) {
            prop_assert!(length <= bytes.len());
            let _ = is_cut(&bytes[..length]);
        }
        let _ = is_cut(&bytes);
    }

    #[test]
    fn spellings_of_one_number_encode_alike(text in number_text()) {
        let spelled = parse(&text);
        let padded = if text.contains(['e', 'E']) {
            text.clone()
        } else if text.contains('.') {
            format!("{text}00e0")
        } else {
            format!("{text}.000E+0")
        };
        prop_assert_eq!(encode(&spelled, UNCUT), encode(&parse(&padded), UNCUT));
    }
}

#[test]
fn neighbours_do_not_collide() {
    assert_ne!(row(&[r#""a""#, r#""b""#]), row(&[r#""ab""#, r#""""#]));
    assert_ne!(
        row(&[r#""a\u0000""#, r#""b""#]),
        row(&[r#""a""#, r#""\u0000b""#])
    );
    for spelling in ["1", "1.0", "1e0", "10e-1", "0.1E+1"] {
        assert_eq!(row(&[spelling]), row(&["1"]));
    }
    assert_eq!(row(&["-0"]), row(&["0e5"]));
    assert!(row(&["9007199254740992"]) < row(&["9007199254740993"]));
}

#[test]
fn a_small_integer_takes_five_bytes() {
    assert_eq!(row(&["42"]), [0x20, 0xA1, 0x02, 0x2D, 0x01]);
    assert_eq!(row(&["-42"]), [0x20, 0x5E, 0xFD, 0xD2, 0xFE]);
    assert_eq!(row(&["0"]), [0x20, 0x80]);
}

#[test]
fn long_strings_keep_a_fixed_prefix() {
    let long = |end: &str| parse(&format!("\"{}{end}\"", "a".repeat(600)));
    let (one, cut_one) = encode(&long("1"), 480);
    let (two, cut_two) = encode(&long("2"), 480);
    assert!(cut_one && cut_two);
    assert_eq!(one, two);
    assert_eq!(one.len(), 480);
    let (exact, was_cut) = encode(&parse(&format!("\"{}\"", "a".repeat(477))), 480);
    assert!(!was_cut);
    assert!(exact < one);
}

#[test]
fn a_cut_never_splits_an_escape() {
    for zeros in 0..40 {
        let text = format!("\"{}\\u0000b\"", "a".repeat(zeros));
        let (bytes, _) = encode(&parse(&text), 16);
        assert_eq!(component_len(&bytes), Some(bytes.len()));
    }
}

#[test]
fn work_is_bounded_by_the_cut() {
    let zeros = "\\u0000".repeat(1_000);
    let deep = format!("{}\"{zeros}\"{}", "[".repeat(128), "]".repeat(128));
    let (bytes, was_cut) = encode(&parse(&deep), 500);
    assert!(was_cut && bytes.len() <= 500);
    let (bytes, _) = encode(&parse(&nested(128, false)), UNCUT);
    assert!(bytes.len() < 20_000);
}

#[test]
fn brackets_hold_their_values() {
    for text in ["null", "1", "-1e9", "\"x\"", "{}", "[]", "false", "true"] {
        let value = parse(text);
        let (first, past) = bracket(&value);
        let (bytes, _) = encode(&value, UNCUT);
        assert!((first..past).contains(&bytes[0]), "{text}");
        assert!(first > 0 && past <= 0xFE);
    }
    assert_eq!(bracket(&parse("false")), bracket(&parse("true")));
}
