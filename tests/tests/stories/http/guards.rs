//! Guards mean exactly what they say; whatever is no guard is refused, never
//! taken for "no guard".

use okdb_tests::http::{Client, Response};
use okdb_tests::server::{Launch, Place};

fn with(client: &mut Client, method: &str, header: (&str, &str), body: Option<&str>) -> Response {
    client
        .call(
            method,
            "/api/default/types/t/k",
            &[header],
            body.map(str::as_bytes),
        )
        .expect("an answer")
}

#[test]
fn what_is_no_version_is_refused_and_changes_nothing() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    let path = "/api/default/types/t/k";
    let version = client.put(path, r#"{"value":1}"#).expect(201).json()["version"].clone();

    for guard in [r#""""#, r#""1""#, "-1", "1.5", "true", "[]", "{}", "1e400"] {
        client
            .put(path, &format!(r#"{{"value":2,"ifVersion":{guard}}}"#))
            .expect_error(400, "INVALID_PARAMETER");
        client
            .patch(path, &format!(r#"{{"patch":{{}},"ifVersion":{guard}}}"#))
            .expect_error(400, "INVALID_PARAMETER");
        client
            .post(
                "/api/default/transaction",
                &format!(
                    r#"[{{"action":"put","type":"t","key":"k","value":2,"ifVersion":{guard}}}]"#
                ),
            )
            .expect_error(400, "INVALID_PARAMETER");
    }
    for guard in ["", "abc", "-1", "1.5", "%00"] {
        client
            .delete(&format!("{path}?ifVersion={guard}"))
            .expect_error(400, "INVALID_PARAMETER");
    }
    for header in [
        ("if-match", "5"),
        ("if-match", "W/\"5\""),
        ("if-match", "\"5\", \"6\""),
        ("if-match", "\"x\""),
        ("if-match", ""),
        ("if-none-match", "\"5\""),
    ] {
        let answer = with(&mut client, "PUT", header, Some(r#"{"value":2}"#));
        answer.expect_error(400, "INVALID_PARAMETER");
    }
    // A version that no record can have yet is a guard, and fails.
    for guard in ["9007199254740993", "18446744073709551615"] {
        client
            .put(path, &format!(r#"{{"value":2,"ifVersion":{guard}}}"#))
            .expect_error(412, "VERSION_MISMATCH");
    }
    client
        .put(path, r#"{"value":2,"ifVersion":null}"#)
        .expect_error(412, "VERSION_MISMATCH");
    let seen = client.get(path).expect(200).json();
    assert_eq!((&seen["value"], &seen["version"]), (&1.into(), &version));
}

#[test]
fn a_stale_guard_fails_even_for_the_same_content() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    let path = "/api/default/types/t/k";
    let first = client.put(path, r#"{"value":1}"#).expect(201).json()["version"].clone();
    let second = client.put(path, r#"{"value":1}"#).expect(200).json()["version"].clone();
    assert!(second.as_u64() > first.as_u64());
    let refused = client
        .put(path, &format!(r#"{{"value":1,"ifVersion":{first}}}"#))
        .expect_error(412, "VERSION_MISMATCH")
        .json();
    assert!(
        refused["error"]["details"]
            .to_string()
            .contains(&second.to_string()),
        "the current version is not told: {refused}"
    );
}

#[test]
fn a_version_is_not_given_again_after_delete_and_re_create() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    let path = "/api/default/types/t/k";
    let old = client.put(path, r#"{"value":1}"#).expect(201).json()["version"].clone();
    client.delete(path).expect(204);
    client.delete(path).expect_error(404, "NOT_FOUND");
    let new = client.put(path, r#"{"value":1}"#).expect(201).json()["version"].clone();
    assert!(new.as_u64() > old.as_u64());
    client
        .put(path, &format!(r#"{{"value":2,"ifVersion":{old}}}"#))
        .expect_error(412, "VERSION_MISMATCH");
}

#[test]
fn both_guards_must_hold() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    let path = "/api/default/types/t/k";
    let version = client.put(path, r#"{"value":1}"#).expect(201).json()["version"].clone();
    let right = format!(r#"{{"value":2,"ifVersion":{version}}}"#);
    let etag = format!("\"{version}\"");
    with(&mut client, "PUT", ("if-match", "\"999999\""), Some(&right))
        .expect_error(412, "VERSION_MISMATCH");
    with(&mut client, "PUT", ("if-none-match", "*"), Some(&right))
        .expect_error(412, "VERSION_MISMATCH");
    with(&mut client, "PUT", ("if-match", &etag), Some(&right)).expect(200);
}

#[test]
fn a_reader_with_the_current_version_is_told_so() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    client
        .put("/api/default/types/t/k", r#"{"value":1}"#)
        .expect(201);
    let read = client.get("/api/default/types/t/k").expect(200);
    let etag = read.header("etag").expect("an ETag").to_owned();
    assert_eq!(etag, format!("\"{}\"", read.json()["version"]));
    for header in [
        etag.clone(),
        format!("\"0\", {etag}"),
        format!("W/{etag}"),
        "*".to_owned(),
    ] {
        let answer = with(&mut client, "GET", ("if-none-match", &header), None);
        assert_eq!(answer.status, 304, "{header}: {answer:?}");
        assert!(answer.body.is_empty());
    }
    with(&mut client, "GET", ("if-none-match", "\"0\""), None).expect(200);
    let head = with(&mut client, "HEAD", ("accept", "*/*"), None).expect(200);
    assert_eq!(head.header("etag"), Some(etag.as_str()));
    assert!(head.body.is_empty());
}
