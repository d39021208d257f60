//! Numbers as the checker takes them, and whole values for what is not a hot path.
//!
//! Integers from -2^63 to 2^64 - 1 stay exact, however they are spelled. Any other number is compared as the nearest
//! double; one beyond the range of doubles as the largest of its sign, one too close to zero as the smallest of
//! its sign. So nothing becomes infinite, and no number that is not zero becomes zero.

use okdb_query::{Number, Value};
use serde_json::{Map, Value as Json};

/// A number as far as the checker can tell numbers apart: equal numbers are equal machines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Machine {
    Signed(i64),
    /// Too large for `Signed`.
    Unsigned(u64),
    /// Neither; finite and not zero.
    Double(f64),
}

impl Machine {
    pub(crate) fn of(number: &Number<'_>) -> Self {
        // Most numbers are plain integers, or fractions that no integer equals.
        if let Ok(integer) = number.as_str().parse() {
            return Self::Signed(integer);
        }
        if let Some(integer) = number.to_i64() {
            return Self::Signed(integer);
        }
        if let Some(integer) = number.to_u64() {
            return Self::Unsigned(integer);
        }
        // Every JSON number is a text that parses as a double.
        let double = number.as_str().parse::<f64>().unwrap_or(f64::MAX);
        if double == 0.0 {
            let smallest = f64::from_bits(1);
            return Self::Double(smallest.copysign(double));
        }
        Self::Double(double.clamp(f64::MIN, f64::MAX))
    }

    pub(crate) fn of_json(number: &serde_json::Number) -> Option<Self> {
        let signed = number.as_i64().map(Self::Signed);
        let unsigned = || number.as_u64().map(Self::Unsigned);
        let double = || number.as_f64().map(Self::Double);
        signed.or_else(unsigned).or_else(double)
    }

    pub(crate) fn to_json(self) -> serde_json::Number {
        match self {
            Self::Signed(integer) => integer.into(),
            Self::Unsigned(integer) => integer.into(),
            // Finite, so there always is a number.
            Self::Double(double) => {
                serde_json::Number::from_f64(double).unwrap_or_else(|| i64::MAX.into())
            }
        }
    }
}

/// Whether the number is a whole one, exactly, whatever its size and spelling.
pub(crate) fn is_whole(number: &Number<'_>) -> bool {
    let text = number.as_str().trim_start_matches('-');
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    // How many places behind the point the last digit that counts stands; negative: before the point.
    let places = if fraction.is_empty() {
        let digits = whole.trim_end_matches('0');
        if digits.is_empty() {
            return true;
        }
        -(length(whole) - length(digits))
    } else {
        length(fraction)
    };
    // The exponent is bounded far within 64 bits by the parser.
    exponent
        .parse::<i64>()
        .is_ok_and(|exponent| exponent >= places)
}

fn length(digits: &str) -> i64 {
    i64::try_from(digits.len()).unwrap_or(i64::MAX)
}

pub(crate) fn to_json(value: &Value<'_>) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Number(number) => Json::Number(Machine::of(number).to_json()),
        Value::String(text) => Json::String(text.as_ref().to_owned()),
        Value::Array(elements) => Json::Array(elements.iter().map(to_json).collect()),
        Value::Object(members) => {
            let members = members.iter();
            let members = members.map(|(name, value)| (name.as_ref().to_owned(), to_json(value)));
            Json::Object(members.collect::<Map<_, _>>())
        }
    }
}

/// Whether a value of a record equals one of a schema.
pub(crate) fn equals(value: &Value<'_>, other: &Json) -> bool {
    match (value, other) {
        (Value::Null, Json::Null) => true,
        (Value::Bool(value), Json::Bool(other)) => value == other,
        (Value::Number(value), Json::Number(other)) => {
            Some(Machine::of(value)) == Machine::of_json(other)
        }
        (Value::String(value), Json::String(other)) => value == other,
        (Value::Array(values), Json::Array(others)) => {
            let mut pairs = values.iter().zip(others);
            values.len() == others.len() && pairs.all(|(value, other)| equals(value, other))
        }
        (Value::Object(members), Json::Object(others)) => {
            let held = |(name, value): &(_, Value<'_>)| {
                let name: &str = std::borrow::Borrow::borrow(name);
                others.get(name).is_some_and(|other| equals(value, other))
            };
            members.len() == others.len() && members.iter().all(held)
        }
        _ => false,
    }
}
