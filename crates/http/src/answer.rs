//! Building answers: JSON text, entity tags, and pages of records.

use std::{fmt::Write as _, time::SystemTime};

use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, ETAG, HeaderValue},
};
use okdb_query::write_string;
use okdb_store::{Item, Page, Record, Written};
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

/// The text of one record, with room for exactly it when the key needs no escapes and it does not expire.
pub(crate) fn record(key: &str, record: &Record<'_>) -> String {
    const FRAME_BYTES: usize = "{\"key\":\"\",\"value\":,\"version\":}".len();
    let Record { value, version, .. } = *record;
    let digits = version.checked_ilog10().map_or(1, |log| log as usize + 1);
    let mut text = String::with_capacity(FRAME_BYTES + key.len() + value.len() + digits);
    write_record(key, value, version, &mut text);
    if let Some(expires_ms) = record.expires_ms {
        text.push_str(",\"ttl\":");
        write_ttl(expires_ms, &mut text);
    }
    text.push('}');
    text
}

/// Appends `{"expiresAt":…,"remainingMs":…}`.
pub(crate) fn write_ttl(expires_ms: u64, out: &mut String) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now_ms = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
    let remaining_ms = expires_ms.saturating_sub(now_ms);
    let _ = write!(
        out,
        "{{\"expiresAt\":{expires_ms},\"remainingMs\":{remaining_ms}}}"
    );
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
    use okdb_store::Record;

    use super::{etag, record};

    fn of(value: &str, version: u64, expires_ms: Option<u64>) -> Record<'_> {
        Record {
            version,
            hlc: 0,
            created_ms: 0,
            expires_ms,
            value,
        }
    }

    #[test]
    fn a_record_fills_its_room_exactly() {
        for version in [0, 1, 9, 10, 12_345, u64::MAX] {
            let text = record("k/1", &of("{\"a\":1}", version, None));
            assert_eq!(
                text,
                format!("{{\"key\":\"k/1\",\"value\":{{\"a\":1}},\"version\":{version}}}")
            );
            assert_eq!(text.len(), text.capacity());
        }
        assert_eq!(
            record("a\"b", &of("1", 2, None)),
            "{\"key\":\"a\\\"b\",\"value\":1,\"version\":2}"
        );
        assert_eq!(
            record("k", &of("1", 2, Some(3))),
            "{\"key\":\"k\",\"value\":1,\"version\":2,\"ttl\":{\"expiresAt\":3,\"remainingMs\":0}}"
        );
        assert_eq!(etag(u64::MAX), "\"18446744073709551615\"");
    }
}
