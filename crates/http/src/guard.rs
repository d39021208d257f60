//! Version guards: `ifVersion`, `If-Match` and `If-None-Match`.
//!
//! On writes each has exactly the forms that the contract names, and any other is refused: a guard that is misread is a
//! lost update. On GET, `If-None-Match` only saves bytes, so it follows HTTP with its lists and weak tags.

use hyper::{
    HeaderMap,
    header::{IF_MATCH, IF_NONE_MATCH},
};
use okdb_query::{Envelope, Value};
use okdb_store::{Expect, Guard};

use crate::{
    problem::Problem,
    request::{Call, decimal},
};

/// The guard of a write: `given` is its `ifVersion`, the rest is in its headers.
///
/// # Errors
/// `INVALID_PARAMETER` for any form but `If-Match: "n"` and `If-None-Match: *`.
pub(crate) fn of_write(call: &Call, given: Option<Expect>) -> Result<Guard, Problem> {
    let must_match = match call.header(&IF_MATCH)? {
        None => None,
        Some(text) => Some(Expect::Version(tag(text).ok_or_else(|| {
            Problem::parameter(format!(
                "If-Match: {text:?} is not one strong tag such as \"7\""
            ))
        })?)),
    };
    let must_lack = match call.header(&IF_NONE_MATCH)? {
        None => None,
        Some("*") => Some(Expect::Absent),
        Some(text) => {
            return Err(Problem::parameter(format!(
                "If-None-Match: {text:?} does not guard a write; only * does"
            )));
        }
    };
    Ok(match (must_match, must_lack) {
        (Some(_), Some(_)) => {
            // A record with a version that must not exist: whatever `ifVersion` says, this cannot hold.
            Guard {
                version: must_match,
                header: must_lack,
            }
        }
        (header, None) | (None, header) => Guard {
            version: given,
            header,
        },
    })
}

/// Refuses header guards where they have no meaning, rather than ignoring them.
pub(crate) fn none_in_headers(call: &Call) -> Result<(), Problem> {
    for name in [IF_MATCH, IF_NONE_MATCH] {
        if call.head.headers.contains_key(&name) {
            return Err(Problem::parameter(format!(
                "{name} does not apply to this route"
            )));
        }
    }
    Ok(())
}

/// `ifVersion` in a body: an integer, or null for a record that must not exist.
pub(crate) fn in_body(envelope: &Envelope) -> Result<Option<Expect>, Problem> {
    let Some(text) = envelope.get("ifVersion") else {
        return Ok(None);
    };
    let value = Value::parse(text).map_err(|error| Problem::json("ifVersion", &error))?;
    if value.is_null() {
        return Ok(Some(Expect::Absent));
    }
    let version = value.as_number().and_then(okdb_query::Number::to_u64);
    let expect = version.map(|version| Some(Expect::Version(version)));
    expect.ok_or_else(|| wrong(text))
}

/// `ifVersion` in a query: plain digits, or `null`.
pub(crate) fn in_query(call: &Call) -> Result<Option<Expect>, Problem> {
    match call.parameter("ifVersion") {
        None => Ok(None),
        Some("null") => Ok(Some(Expect::Absent)),
        Some(text) => match decimal(text) {
            Some(version) => Ok(Some(Expect::Version(version))),
            None => Err(wrong(text)),
        },
    }
}

fn wrong(text: &str) -> Problem {
    let shown: String = text.chars().take(64).collect();
    Problem::parameter(format!("ifVersion: {shown} is neither a version nor null"))
}

/// The version in a strong entity tag as this server writes them.
fn tag(text: &str) -> Option<u64> {
    decimal(text.strip_prefix('"')?.strip_suffix('"')?)
}

/// Whether a GET's `If-None-Match` names this version, so that there is nothing to send.
pub(crate) fn is_known(headers: &HeaderMap, version: u64) -> bool {
    let mut values = headers.get_all(IF_NONE_MATCH).iter();
    values.any(|value| {
        value
            .to_str()
            .is_ok_and(|text| text.trim() == "*" || lists(text, version))
    })
}

/// Whether a list of entity tags holds the version, weak or strong.
fn lists(mut text: &str, version: u64) -> bool {
    loop {
        text = text.trim_start_matches([' ', '\t', ',']);
        let opaque = text.strip_prefix("W/").unwrap_or(text);
        // A tag may hold commas, so it is its quotes that end it. What is no tag ends the list.
        let Some((tag, rest)) = opaque
            .strip_prefix('"')
            .and_then(|open| open.split_once('"'))
        else {
            return false;
        };
        if decimal(tag) == Some(version) {
            return true;
        }
        text = rest;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

    use super::*;

    #[test]
    fn lists_of_tags_are_compared_weakly() {
        for text in [
            "\"7\"",
            "W/\"7\"",
            "\"a,b\", \"7\"",
            " \"1\" ,W/\"x\",, W/\"7\"",
            "\"1\",\"7\",junk",
        ] {
            assert!(lists(text, 7), "{text}");
        }
        for text in [
            "",
            "7",
            "\"70\"",
            "\"07\"",
            "junk,\"7\"",
            "\"7",
            "w/\"7\"",
            "\"1\"",
        ] {
            assert!(!lists(text, 7), "{text}");
        }
    }

    #[test]
    fn a_body_guard_is_an_exact_integer_or_null() {
        let read = |text: &str| {
            in_body(&Envelope::parse(format!("{{\"ifVersion\":{text}}}").as_bytes()).unwrap())
        };
        assert_eq!(read("3").unwrap(), Some(Expect::Version(3)));
        assert_eq!(read("3.0").unwrap(), Some(Expect::Version(3)));
        assert_eq!(
            read("18446744073709551615").unwrap(),
            Some(Expect::Version(u64::MAX))
        );
        assert_eq!(
            read("9007199254740993").unwrap(),
            Some(Expect::Version(9_007_199_254_740_993))
        );
        assert_eq!(read("null").unwrap(), Some(Expect::Absent));
        for text in [
            "\"\"",
            "\"1\"",
            "-1",
            "1.5",
            "18446744073709551616",
            "true",
            "[]",
            "{}",
            "1e400",
        ] {
            assert_eq!(
                read(text).unwrap_err().code(),
                crate::codes::Code::InvalidParameter,
                "{text}"
            );
        }
    }
}
