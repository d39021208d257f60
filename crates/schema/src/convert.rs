//! Values as the checker takes them: numbers become machine numbers.
//!
//! Integers from -2^63 to 2^64 - 1 stay exact, however they are spelled. Any other number is checked as the nearest
//! double; one beyond the range of doubles as the largest of its sign, one too close to zero as the smallest of
//! its sign. So nothing becomes infinite, and no number that is not zero becomes zero.

use okdb_query::{Number, Value};
use serde_json::{Map, Value as Json};

pub(crate) fn to_json(value: &Value<'_>) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Number(number) => Json::Number(to_number(number)),
        Value::String(text) => Json::String(text.as_ref().to_owned()),
        Value::Array(elements) => Json::Array(elements.iter().map(to_json).collect()),
        Value::Object(members) => {
            let members = members.iter();
            let members = members.map(|(name, value)| (name.as_ref().to_owned(), to_json(value)));
            Json::Object(members.collect::<Map<_, _>>())
        }
    }
}

fn to_number(number: &Number<'_>) -> serde_json::Number {
    // Most numbers are plain integers, or fractions that no integer equals.
    if let Ok(integer) = number.as_str().parse::<i64>() {
        return integer.into();
    }
    if let Some(integer) = number.to_i64() {
        return integer.into();
    }
    if let Some(integer) = number.to_u64() {
        return integer.into();
    }
    let double = number.as_str().parse::<f64>().unwrap_or(f64::NAN);
    let smallest = f64::from_bits(1);
    let double = if double == 0.0 {
        smallest.copysign(double)
    } else {
        double.clamp(f64::MIN, f64::MAX)
    };
    // Every JSON number is a text that parses as a double, so this is finite.
    serde_json::Number::from_f64(double).unwrap_or_else(|| 0.into())
}
