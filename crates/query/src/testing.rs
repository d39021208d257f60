//! Values for property tests: hostile strings, numbers in many spellings, small and deep containers.

use std::borrow::Cow;

use proptest::prelude::*;

use crate::json::Value;

/// Texts of numbers, many of them equal to one another in value.
pub(crate) fn number_text() -> impl Strategy<Value = String> {
    let spelled = (
        any::<bool>(),
        prop_oneof![
            Just("0".to_owned()),
            "[1-9][0-9]{0,3}",
            "[1-9]0{0,20}[0-9]{0,3}"
        ],
        prop_oneof![Just(String::new()), "\\.[0-9]{1,4}", "\\.0{1,20}[0-9]?"],
        prop_oneof![
            3 => Just(String::new()),
            3 => "[eE][+-]?[0-9]{1,2}",
            1 => "[eE][+-]?(255|256|257|65535|65536|1000000000000000)",
        ],
    )
        .prop_map(|(minus, whole, fraction, exponent)| {
            let sign = if minus { "-" } else { "" };
            format!("{sign}{whole}{fraction}{exponent}")
        });
    prop_oneof![
        4 => spelled,
        2 => (-12_i64..12).prop_map(|n| n.to_string()),
        1 => any::<i64>().prop_map(|n| n.to_string()),
        1 => "-?[1-9][0-9]{30,60}(\\.[0-9]{1,30})?",
    ]
}

pub(crate) fn number() -> impl Strategy<Value = Value<'static>> {
    number_text().prop_map(|text| Value::parse(&text).unwrap().into_owned())
}

/// Strings where zeros, escapes' own bytes and common prefixes abound.
pub(crate) fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[ab\u{0}]{0,4}",
        1 => "[\u{0}\u{1}\u{2}\u{ff}\"\\\\/\n]{0,6}",
        1 => "a{0,40}\u{0}{0,3}b?",
        1 => "[é€𝄞\u{ffff}\u{7f}]{0,3}",
        1 => any::<String>(),
    ]
}

pub(crate) fn scalar() -> impl Strategy<Value = Value<'static>> {
    prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::Bool),
        3 => number(),
        3 => text().prop_map(|text| Value::String(Cow::Owned(text))),
    ]
}

/// Objects of members whose names are made unique, in the order they were drawn.
pub(crate) fn object_of(
    name: impl Strategy<Value = String>,
    member: impl Strategy<Value = Value<'static>>,
    count_max: usize,
) -> impl Strategy<Value = Value<'static>> {
    prop::collection::vec((name, member), 0..=count_max).prop_map(|drawn| {
        let mut members: Vec<(Cow<'static, str>, Value<'static>)> = Vec::new();
        for (name, value) in drawn {
            if members.iter().all(|(other, _)| *other != name) {
                members.push((Cow::Owned(name), value));
            }
        }
        Value::Object(members)
    })
}

pub(crate) fn value() -> impl Strategy<Value = Value<'static>> {
    scalar().prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            object_of(text(), inner, 4),
        ]
    })
}

/// Two values that are more often related than chance would have it.
pub(crate) fn pair() -> impl Strategy<Value = (Value<'static>, Value<'static>)> {
    prop_oneof![
        3 => (value(), value()),
        1 => (number(), number()),
        1 => (text(), text()).prop_map(|(a, b)| {
            (Value::String(Cow::Owned(a)), Value::String(Cow::Owned(b)))
        }),
        1 => value().prop_map(|value| (shuffled(&value), value)),
        1 => (value(), value()).prop_map(|(a, b)| {
            (Value::Array(vec![a.clone()]), Value::Array(vec![a, b]))
        }),
        1 => (text(), value(), value()).prop_map(|(name, a, b)| {
            let name: Cow<'static, str> = Cow::Owned(name);
            (Value::Object(vec![(name.clone(), a)]), Value::Object(vec![(name, b)]))
        }),
    ]
}

/// An equal value with the members of all objects in reverse order.
fn shuffled(value: &Value<'static>) -> Value<'static> {
    match value {
        Value::Array(elements) => Value::Array(elements.iter().map(shuffled).collect()),
        Value::Object(members) => Value::Object(
            members
                .iter()
                .rev()
                .map(|(name, value)| (name.clone(), shuffled(value)))
                .collect(),
        ),
        other => other.clone(),
    }
}

/// Arrays, or objects, nested `depth` deep around a scalar.
pub(crate) fn nested(depth: usize, object: bool) -> String {
    let (open, close) = if object { ("{\"a\":", "}") } else { ("[", "]") };
    format!("{}1{}", open.repeat(depth), close.repeat(depth))
}

pub(crate) fn parse(text: &str) -> Value<'static> {
    Value::parse(text).unwrap().into_owned()
}
