//! Percent-encoding, as paths and queries use it.

use std::borrow::Cow;

/// Decodes one path segment; `None` for a bad escape or bad UTF-8.
pub(crate) fn decode(text: &str) -> Option<Cow<'_, str>> {
    if text.contains('%') {
        decode_bytes(text, false).map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(text))
    }
}

/// Decodes a name or value of a query, where `+` is a space; `None` for a bad escape or bad UTF-8.
pub(crate) fn decode_form(text: &str) -> Option<Cow<'_, str>> {
    if text.contains(['%', '+']) {
        decode_bytes(text, true).map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(text))
    }
}

fn decode_bytes(text: &str, plus_is_space: bool) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let (high, low) = (hex(bytes.next()?)?, hex(bytes.next()?)?);
                out.push(high << 4 | low);
            }
            b'+' if plus_is_space => out.push(b' '),
            _ => out.push(byte),
        }
    }
    String::from_utf8(out).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

/// Appends a text as one path segment.
pub(crate) fn encode(text: &str, out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            for nibble in [byte >> 4, byte & 15] {
                out.push(char::from(
                    DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0'),
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{decode, decode_form, encode};

    #[test]
    fn bad_escapes_are_refused() {
        for text in ["%", "%2", "%zz", "a%f", "%ff", "%C3%28", "%+1", "% 1"] {
            assert_eq!(decode(text), None, "{text:?}");
            assert_eq!(decode_form(text), None, "{text:?}");
        }
        assert_eq!(decode("a+b%2fc%2F").as_deref(), Some("a+b/c/"));
        assert_eq!(decode_form("a+b%2B").as_deref(), Some("a b+"));
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes(text in any::<String>()) {
            let mut encoded = String::new();
            encode(&text, &mut encoded);
            prop_assert!(encoded.is_ascii() && !encoded.contains('/'));
            prop_assert_eq!(decode(&encoded), Some(text.as_str().into()));
            prop_assert_eq!(decode_form(&encoded), Some(text.as_str().into()));
        }

        #[test]
        fn decoding_never_panics(text in any::<String>()) {
            let _ = (decode(&text), decode_form(&text));
        }
    }
}
