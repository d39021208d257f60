//! Building answers: JSON text, entity tags, and pages of records.

use std::fmt::Write as _;

use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, ETAG, HeaderValue},
};
use okdb_query::write_string;
use okdb_store::{Item, Page, Written};
use serde::Serialize;

use crate::{body::Body, problem::Problem};

/// An answer of JSON text.
pub(crate) fn json(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::full(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer of something that serde writes.
pub(crate) fn serialized(
    status: StatusCode,
    value: &impl Serialize,
) -> Result<Response<Body>, Problem> {
    let text = serde_json::to_string(value).map_err(|error| Problem::internal(&error))?;
    Ok(json(status, text))
}

/// An answer of a list under its name.
pub(crate) fn listed(name: &str, list: &impl Serialize) -> Result<Response<Body>, Problem> {
    let list = serde_json::to_string(list).map_err(|error| Problem::internal(&error))?;
    Ok(json(StatusCode::OK, format!("{{\"{name}\":{list}}}")))
}

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// The entity tag of a version.
pub(crate) fn etag(version: u64) -> HeaderValue {
    let mut text = String::with_capacity(22);
    // Writing to a string does not fail.
    let _ = write!(text, "\"{version}\"");
    HeaderValue::from_maybe_shared(bytes::Bytes::from(text))
        .unwrap_or_else(|_| HeaderValue::from_static("\"0\""))
}

/// The answer to the write of one record.
pub(crate) fn written(status: StatusCode, written: &Written) -> Response<Body> {
    let mut text = String::with_capacity(40 + written.key.len());
    write_written(written, &mut text);
    let mut response = json(status, text);
    response.headers_mut().insert(ETAG, etag(written.version));
    response
}

/// Appends `{"key":…,"version":…}`.
pub(crate) fn write_written(written: &Written, out: &mut String) {
    out.push_str("{\"key\":");
    write_string(&written.key, out);
    let _ = write!(out, ",\"version\":{}}}", written.version);
}

/// The text of one record, with room for exactly it when the key needs no escapes.
pub(crate) fn record(key: &str, value: &str, version: u64) -> String {
    const FRAME_BYTES: usize = "{\"key\":\"\",\"value\":,\"version\":}".len();
    let digits = version.checked_ilog10().map_or(1, |log| log as usize + 1);
    let mut text = String::with_capacity(FRAME_BYTES + key.len() + value.len() + digits);
    write_record(key, value, version, &mut text);
    text.push('}');
    text
}

/// Appends `{"key":…,"value":…,"version":…` without the closing brace.
fn write_record(key: &str, value: &str, version: u64, out: &mut String) {
    out.push_str("{\"key\":");
    write_string(key, out);
    out.push_str(",\"value\":");
    out.push_str(value);
    let _ = write!(out, ",\"version\":{version}");
}

/// The text of a page of records.
pub(crate) fn page(page: &Page) -> Result<String, Problem> {
    let bytes = |item: &Item| {
        let index_key = item.index_key.as_ref().map_or(0, String::len);
        64 + item.key.len() + item.value.len() + index_key
    };
    let mut text = String::with_capacity(64 + page.items.iter().map(bytes).sum::<usize>());
    text.push_str("{\"items\":[");
    for (place, item) in page.items.iter().enumerate() {
        if place > 0 {
            text.push(',');
        }
        write_record(&item.key, &item.value, item.version, &mut text);
        if let Some(index_key) = &item.index_key {
            text.push_str(",\"indexKey\":");
            text.push_str(index_key);
        }
        text.push('}');
    }
    text.push_str("],\"cursor\":");
    match &page.cursor {
        Some(cursor) => write_string(cursor, &mut text),
        None => text.push_str("null"),
    }
    if let Some(plan) = &page.plan {
        text.push_str(",\"plan\":");
        text.push_str(&serde_json::to_string(plan).map_err(|error| Problem::internal(&error))?);
    }
    text.push('}');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{etag, record};

    #[test]
    fn a_record_fills_its_room_exactly() {
        for version in [0, 1, 9, 10, 12_345, u64::MAX] {
            let text = record("k/1", "{\"a\":1}", version);
            assert_eq!(
                text,
                format!("{{\"key\":\"k/1\",\"value\":{{\"a\":1}},\"version\":{version}}}")
            );
            assert_eq!(text.len(), text.capacity());
        }
        assert_eq!(
            record("a\"b", "1", 2),
            "{\"key\":\"a\\\"b\",\"value\":1,\"version\":2}"
        );
        assert_eq!(etag(u64::MAX), "\"18446744073709551615\"");
    }
}
