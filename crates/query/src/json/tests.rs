//! What is accepted as JSON, what is refused, and that nothing is altered on the way through.

use std::cmp::Ordering;

use proptest::prelude::*;

use super::{decimal::add, *};
use crate::testing::{nested, number_text, parse, value};

fn compacted(text: &str) -> Result<String, JsonError> {
    let mut out = String::from("before");
    let result = compact(text.as_bytes(), &mut out);
    assert!(out.starts_with("before"));
    if result.is_err() {
        assert_eq!(out, "before");
    }
    result.map(|()| out.split_off(6))
}

/// All three readers agree on what is JSON; the answer is the compact text.
fn read(text: &str) -> Result<String, JsonError> {
    let compact = compacted(text);
    let parsed = Value::parse(text);
    match (&compact, &parsed) {
        (Ok(compact), Ok(value)) => {
            assert_eq!(&Value::parse(compact).unwrap(), value);
            assert_eq!(&parse(&value.to_json()), value);
        }
        (Err(a), Err(b)) => assert_eq!(a, b),
        _ => panic!("readers disagree on {text:?}: {compact:?} {parsed:?}"),
    }
    match Envelope::parse(text.as_bytes()) {
        Ok(envelope) if matches!(&parsed, Err(error) if error.kind == JsonErrorKind::TooDeep) => {
            // The envelope is one level of its own.
            assert!(
                envelope
                    .members()
                    .all(|(_, text)| Value::parse(text).is_ok())
            );
        }
        Ok(envelope) => {
            let value = parsed.as_ref().unwrap().as_object().unwrap();
            assert_eq!(envelope.members().count(), value.len());
            for ((name, text), (expected_name, expected)) in envelope.members().zip(value) {
                assert_eq!(name, expected_name);
                assert_eq!(&Value::parse(text).unwrap(), expected);
                assert_eq!(envelope.get(name), Some(text));
                assert_eq!(compacted(text).unwrap(), text);
            }
        }
        Err(error) if error.kind == JsonErrorKind::NotAnObject => {
            assert!(parsed.is_ok_and(|value| value.as_object().is_none()));
        }
        Err(error) if error.kind == JsonErrorKind::TooDeep => {
            assert!(parsed.is_err_and(|error| error.kind == JsonErrorKind::TooDeep));
        }
        Err(error) => assert_eq!(Err(error), parsed.map(drop)),
    }
    compact
}

fn refused(text: &str) -> (JsonErrorKind, usize) {
    let error = read(text).expect_err(text);
    (error.kind, error.offset)
}

#[test]
fn whitespace_goes_and_spelling_stays() {
    for (text, expected) in [
        (
            " {\t\"a\" :\r\n[ 1 , 2.50 ,-0.0,1E+2 ] } \n",
            r#"{"a":[1,2.50,-0.0,1E+2]}"#,
        ),
        (r#"" a\u0041\/\n b ""#, r#"" a\u0041\/\n b ""#),
        ("[ ]", "[]"),
        ("{ }", "{}"),
        (" null ", "null"),
        ("[true,\n false]", "[true,false]"),
        ("12345678901234567890.10", "12345678901234567890.10"),
        (
            r#"{"a b" : { "c" : [ { } , [ ] ] } }"#,
            r#"{"a b":{"c":[{},[]]}}"#,
        ),
    ] {
        assert_eq!(read(text).unwrap(), expected);
    }
}

#[test]
fn refusals_say_what_and_where() {
    use JsonErrorKind::*;
    for (text, kind, offset) in [
        ("", UnexpectedEnd, 0),
        ("  ", UnexpectedEnd, 2),
        ("nul", UnexpectedEnd, 3),
        ("nulL", UnexpectedByte, 3),
        ("[1,]", UnexpectedByte, 3),
        ("[1 2]", UnexpectedByte, 3),
        ("{\"a\":1,}", UnexpectedByte, 7),
        ("{a:1}", UnexpectedByte, 1),
        ("{\"a\" 1}", UnexpectedByte, 5),
        ("1 1", TrailingData, 2),
        ("\u{feff}1", UnexpectedByte, 0),
        ("01", InvalidNumber, 0),
        ("-", UnexpectedEnd, 1),
        ("-a", InvalidNumber, 1),
        ("1.", UnexpectedEnd, 2),
        ("[1.]", InvalidNumber, 3),
        ("1e", UnexpectedEnd, 2),
        ("1e+x", InvalidNumber, 3),
        (".5", UnexpectedByte, 0),
        ("+1", UnexpectedByte, 0),
        ("NaN", UnexpectedByte, 0),
        ("1e1000000000000001", NumberRange, 0),
        ("[0e-99999999999999999999999]", NumberRange, 1),
        ("\"a", UnexpectedEnd, 2),
        ("\"a\tb\"", ControlCharacter, 2),
        ("\"\u{0}\"", ControlCharacter, 1),
        (r#""\x""#, InvalidEscape, 1),
        (r#""\u12g4""#, InvalidEscape, 5),
        (r#""\u12"#, UnexpectedEnd, 5),
        (r#""\"#, UnexpectedEnd, 2),
        (r#""\ud800""#, LoneSurrogate, 1),
        (r#""\ud800\u0041""#, LoneSurrogate, 1),
        (r#""a\udc00\ud800""#, LoneSurrogate, 2),
        (r#"{"a":1,"b":2,"a":3}"#, DuplicateName, 13),
        (r#"{"a":1,"\u0061":3}"#, DuplicateName, 7),
        (r#"[{"a":{"b":1,"b":2}}]"#, DuplicateName, 13),
    ] {
        assert_eq!(refused(text), (kind, offset), "{text}");
    }
    let mut out = String::new();
    let error = compact(b"[\"\xff\"]", &mut out).unwrap_err();
    assert_eq!((error.kind, error.offset), (InvalidUtf8, 2));
    assert_eq!(error.to_string(), "invalid UTF-8 at byte 2");
    assert_eq!(Envelope::parse(b" [1]").unwrap_err().kind, NotAnObject);
}

#[test]
fn surrogate_pairs_and_escapes_decode() {
    let value = parse(r#""\ud834\udd1e\u00e9\b\f\n\r\t\"\\\/é""#);
    assert_eq!(value.as_str(), Some("𝄞é\u{8}\u{c}\n\r\t\"\\/é"));
    assert_eq!(
        parse("\"\u{1}\\u001f\"".replace('\u{1}', "").as_str()).to_json(),
        "\"\\u001f\""
    );
    assert_eq!(parse(r#""\ufffe""#).as_str(), Some("\u{fffe}"));
}

#[test]
fn large_objects_find_their_duplicates() {
    for count in [15, 16, 17, 18, 200] {
        let members: Vec<String> = (0..count).map(|i| format!("\"name_{i}_x\":{i}")).collect();
        read(&format!("{{{}}}", members.join(","))).unwrap();
        for twin in [0, count / 2, count - 1] {
            let body = members.join(",");
            let text = format!("{{{body},\"name_{twin}_x\":0,\"name_0_x\":1}}");
            assert_eq!(
                refused(&text),
                (JsonErrorKind::DuplicateName, body.len() + 2),
                "{count}"
            );
        }
    }
    // Inner objects do not see the names of outer ones.
    read(r#"{"a":{"a":{"a":1}},"b":{"a":1}}"#).unwrap();
}

#[test]
fn nesting_is_bounded_and_deep_values_are_handled() {
    let deepest = std::thread::Builder::new()
        .stack_size(256 * 1024)
        .spawn(|| {
            for object in [false, true] {
                read(&nested(DEPTH_MAX, object)).unwrap();
                let value = parse(&nested(DEPTH_MAX, object));
                assert_eq!(value.cmp(&value.clone().into_owned()), Ordering::Equal);
                drop(value);
                assert_eq!(
                    refused(&nested(DEPTH_MAX + 1, object)).0,
                    JsonErrorKind::TooDeep
                );
                assert_eq!(
                    refused(&nested(1_000_000, object)).0,
                    JsonErrorKind::TooDeep
                );
            }
        });
    deepest.unwrap().join().unwrap();
}

#[test]
fn an_envelope_holds_the_deepest_value() {
    let envelope =
        |depth| Envelope::parse(format!("{{\"value\":{}}}", nested(depth, false)).as_bytes());
    assert_eq!(
        envelope(DEPTH_MAX).unwrap().get("value"),
        Some(nested(DEPTH_MAX, false).as_str())
    );
    assert_eq!(
        envelope(DEPTH_MAX + 1).unwrap_err().kind,
        JsonErrorKind::TooDeep
    );
}

#[test]
fn envelopes_keep_members_as_text() {
    let envelope =
        Envelope::parse(b" { \"value\" : { \"n\" : 1.00 } , \"\\u0074tl\": 5 } ").unwrap();
    assert_eq!(envelope.get("value"), Some("{\"n\":1.00}"));
    assert_eq!(envelope.get("ttl"), Some("5"));
    assert_eq!(envelope.get("tt"), None);
    assert_eq!(Envelope::parse(b"{}").unwrap().members().count(), 0);
}

#[test]
fn numbers_compare_by_value() {
    let ascending = [
        "-1e400",
        "-9223372036854775809",
        "-9223372036854775808",
        "-10",
        "-9.5",
        "-1e-400",
        "0",
        "1e-400",
        "1E-399",
        "0.1",
        "0.1234567890123456789",
        "1",
        "1.0000000000000000000001",
        "2",
        "10",
        "9007199254740992",
        "9007199254740993",
        "18446744073709551615",
        "18446744073709551616",
        "123456789012345678901234567890",
        "1e400",
        "1e1000000000000000",
    ];
    for (i, a) in ascending.iter().enumerate() {
        for (j, b) in ascending.iter().enumerate() {
            assert_eq!(parse(a).cmp(&parse(b)), i.cmp(&j), "{a} {b}");
        }
    }
    for equal in [
        "100", "1e2", "100.00", "0.1e3", "1000e-1", "1E+2", "100e-0", "0.001e5",
    ] {
        assert_eq!(parse(equal), parse("100"), "{equal}");
    }
    for zero in ["0", "-0", "0.000", "0e7", "-0.0e-9"] {
        assert_eq!(parse(zero), parse("0"), "{zero}");
    }
}

#[test]
fn integers_convert_by_value() {
    let number = |text: &str| parse(text).as_number().unwrap().clone();
    for (text, signed, unsigned) in [
        ("0", Some(0), Some(0)),
        ("-0.0", Some(0), Some(0)),
        ("1e2", Some(100), Some(100)),
        ("1.50e1", Some(15), Some(15)),
        ("1.5", None, None),
        ("-7", Some(-7), None),
        (
            "9223372036854775807",
            Some(i64::MAX),
            Some(9_223_372_036_854_775_807),
        ),
        ("-9223372036854775808", Some(i64::MIN), None),
        ("-9223372036854775809", None, None),
        ("18446744073709551615", None, Some(u64::MAX)),
        ("18446744073709551616", None, None),
        ("1e30", None, None),
        ("1e-1000000000000000", None, None),
        ("1e1000000000000000", None, None),
    ] {
        assert_eq!(number(text).to_i64(), signed, "{text}");
        assert_eq!(number(text).to_u64(), unsigned, "{text}");
    }
    assert_eq!(Number::from(-5_i64).as_str(), "-5");
    assert_eq!(Number::from(u64::MAX).to_u64(), Some(u64::MAX));
}

#[test]
fn sums_are_exact() {
    let sum = |a: &str, b: &str| {
        let (a, b) = (parse(a), parse(b));
        add(a.as_number().unwrap(), b.as_number().unwrap()).map(|sum| sum.as_str().to_owned())
    };
    let ten_to_100 = format!("1{}", "0".repeat(100));
    for (a, b, expected) in [
        ("0.1", "0.2", "0.3"),
        ("1", "-1", "0"),
        ("1.10", "1", "2.1"),
        ("-0", "0", "0"),
        ("0", "5.0", "5"),
        ("9", "1", "10"),
        ("-9.99", "-0.01", "-10"),
        ("1", "-1000", "-999"),
        ("1000", "-0.001", "999.999"),
        ("9007199254740993", "1", "9007199254740994"),
        ("9223372036854775807", "1", "9223372036854775808"),
        ("1e3", "5e-3", "1000.005"),
        ("1e-10", "0", "0.0000000001"),
        ("1e-300", "0", "1e-300"),
        ("1.5e300", "0", "1.5e300"),
        ("-2.5e-300", "0", "-2.5e-300"),
        ("1e20", "0", "100000000000000000000"),
    ] {
        assert_eq!(sum(a, b).as_deref(), Some(expected), "{a} + {b}");
        assert_eq!(sum(b, a).as_deref(), Some(expected), "{b} + {a}");
    }
    assert_eq!(sum(&"9".repeat(100), "1").unwrap(), "1e100");
    assert_eq!(sum(&ten_to_100, "1").unwrap().len(), 101);
    assert_eq!(sum("1e400", "1e-400").unwrap().len(), 802);
    for refused in [
        "1e401",
        "-10e400",
        "1e-401",
        &"1".repeat(101),
        "1e1000000000000000",
    ] {
        assert_eq!(sum(refused, "1"), None);
        assert_eq!(sum("0", refused), None);
    }
}

/// What `serde_json` makes of a text, or nothing if we refuse the text for a reason it does not know.
fn reference(text: &str) -> Option<Result<serde_json::Value, serde_json::Error>> {
    let ours = Value::parse(text).map_err(|error| error.kind);
    match ours {
        Err(JsonErrorKind::DuplicateName | JsonErrorKind::NumberRange | JsonErrorKind::TooDeep) => {
            None
        }
        _ => Some(serde_json::from_str(text)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn values_survive_writing(value in value()) {
        let text = value.to_json();
        prop_assert_eq!(&read(&text).unwrap(), &text);
        prop_assert_eq!(parse(&text).to_json(), text.clone());
        prop_assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok()
            // It refuses numbers beyond f64.
            || text.contains(['e', 'E']));
    }

    #[test]
    fn pretty_text_compacts(value in value()) {
        let text = value.to_json();
        let spaced = spaced(&text);
        prop_assert_eq!(read(&spaced).unwrap(), text);
    }

    #[test]
    fn near_json_is_judged_as_serde_json_does(text in "[\\[\\]{},:\"\\\\ua01.eE+\\- tn\n]{0,12}") {
        let ours = read(&text).is_ok();
        if let Some(theirs) = reference(&text) {
            let out_of_range = theirs.as_ref().is_err_and(|e| e.to_string().contains("out of range"));
            prop_assert!(ours == theirs.is_ok() || out_of_range, "{}", text);
        }
    }

    #[test]
    fn damaged_json_is_judged_as_serde_json_does(
        value in value(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut bytes = value.to_json().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let mut out = String::new();
        let ours = compact(&bytes, &mut out);
        let Ok(text) = std::str::from_utf8(&bytes) else {
            prop_assert_eq!(ours.unwrap_err().kind, JsonErrorKind::InvalidUtf8);
            return Ok(());
        };
        prop_assert_eq!(read(text).is_ok(), ours.is_ok());
        if let Some(theirs) = reference(text) {
            let out_of_range = theirs.as_ref().is_err_and(|e| e.to_string().contains("out of range"));
            prop_assert!(ours.is_ok() == theirs.is_ok() || out_of_range, "{}", text);
        }
    }

    #[test]
    fn hostile_bytes_are_only_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let _ = compact(&bytes, &mut String::new());
        let _ = Envelope::parse(&bytes);
    }

    #[test]
    fn order_of_numbers_is_that_of_floats_where_those_tell_them_apart(
        a in number_text(), b in number_text(),
    ) {
        let floats = (a.parse::<f64>().unwrap(), b.parse::<f64>().unwrap());
        let order = parse(&a).cmp(&parse(&b));
        prop_assert_eq!(order.reverse(), parse(&b).cmp(&parse(&a)));
        if floats.0 < floats.1 {
            prop_assert_eq!(order, Ordering::Less);
        } else if floats.0 > floats.1 {
            prop_assert_eq!(order, Ordering::Greater);
        }
    }

    #[test]
    fn sums_agree_with_scaled_integers(a in -10_i128.pow(15)..10_i128.pow(15), b in -10_i128.pow(15)..10_i128.pow(15), scales in (0_u32..9, 0_u32..9)) {
        let (left, right) = (parse(&format!("{a}e-{}", scales.0)), parse(&format!("{b}e-{}", scales.1)));
        let sum = add(left.as_number().unwrap(), right.as_number().unwrap()).unwrap();
        let scaled = a * 10_i128.pow(9 - scales.0) + b * 10_i128.pow(9 - scales.1);
        prop_assert_eq!(Value::Number(sum.clone()), parse(&format!("{scaled}e-9")));
        prop_assert_eq!(&compacted(sum.as_str()).unwrap(), sum.as_str());
    }
}

/// The same JSON with whitespace wherever it may stand.
fn spaced(text: &str) -> String {
    let mut out = String::from("\r\n");
    let (mut in_string, mut escaped) = (false, false);
    for c in text.chars() {
        let structural = !in_string && "[]{},:".contains(c);
        if structural {
            out.push_str(" \t");
        }
        out.push(c);
        if structural {
            out.push_str("\n ");
        }
        if c == '"' && !escaped {
            in_string = !in_string;
        }
        escaped = in_string && c == '\\' && !escaped;
    }
    out.push('\n');
    out
}
