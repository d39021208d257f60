//! Numbers as text, compared by exact decimal value.

use std::{borrow::Cow, cmp::Ordering, fmt};

use super::decimal::Decimal;

/// A JSON number: its text, never converted.
///
/// Equality and order are those of the exact decimal value, whatever the spelling: `1`, `1.0` and
/// `10e-1` are equal, `-0` equals `0`, and `9007199254740992` differs from `9007199254740993`.
#[derive(Clone)]
pub struct Number<'a>(Cow<'a, str>);

impl<'a> Number<'a> {
    /// Wraps a text that the scanner, or an own formatter, has made sure is a number.
    pub(crate) fn from_checked(text: impl Into<Cow<'a, str>>) -> Self {
        Self(text.into())
    }

    /// The number as it was spelled.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value, if it is an integer that fits, however it is spelled (`1e2` is 100).
    #[must_use]
    pub fn to_i64(&self) -> Option<i64> {
        let decimal = Decimal::of(self);
        let magnitude = i128::from(decimal.to_u64()?);
        i64::try_from(if decimal.negative {
            -magnitude
        } else {
            magnitude
        })
        .ok()
    }

    /// The value, if it is a natural number that fits, however it is spelled.
    #[must_use]
    pub fn to_u64(&self) -> Option<u64> {
        let decimal = Decimal::of(self);
        decimal.to_u64().filter(|_| !decimal.negative)
    }

    /// The same number, independent of the text it was read from.
    #[must_use]
    pub fn into_owned(self) -> Number<'static> {
        Number(Cow::Owned(self.0.into_owned()))
    }

    /// The value of a plain integer short enough for an `i64`: most numbers, without the general case.
    fn short_integer(&self) -> Option<i64> {
        let (digits, negative) = match self.0.as_bytes() {
            [b'-', digits @ ..] => (digits, true),
            digits => (digits, false),
        };
        if digits.len() > 18 {
            return None;
        }
        let mut sum = 0_i64;
        for byte in digits {
            if !byte.is_ascii_digit() {
                return None;
            }
            sum = sum * 10 + i64::from(byte - b'0');
        }
        Some(if negative { -sum } else { sum })
    }
}

impl From<i64> for Number<'static> {
    fn from(value: i64) -> Self {
        Self(Cow::Owned(value.to_string()))
    }
}

impl From<u64> for Number<'static> {
    fn from(value: u64) -> Self {
        Self(Cow::Owned(value.to_string()))
    }
}

impl Ord for Number<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.short_integer(), other.short_integer()) {
            (Some(left), Some(right)) => left.cmp(&right),
            _ => Decimal::of(self).compare(&Decimal::of(other)),
        }
    }
}

impl PartialOrd for Number<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Number<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Number<'_> {}

impl fmt::Debug for Number<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Number<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
