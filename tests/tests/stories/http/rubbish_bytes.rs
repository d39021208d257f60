//! Bytes that are no HTTP, or nearly: any answer but a 5xx will do, or none,
//! and the workers live.

use std::io;
use std::time::Duration;

use okdb_tests::data::Random;
use okdb_tests::http::Response;
use okdb_tests::server::{Place, Server};
use okdb_tests::torture::rounds;

use super::rubbish::{pids, prepared, unharmed};

/// Sends bytes, ends the sending side by reading, and gives the first answer.
fn throw(server: &Server, bytes: &[u8]) -> io::Result<Response> {
    let mut client = server.client().within(Duration::from_millis(200));
    client.send_raw(bytes)?;
    client.receive(false)
}

#[track_caller]
fn harmless(server: &Server, bytes: &[u8]) {
    if let Ok(answer) = throw(server, bytes) {
        assert!(
            answer.status < 500,
            "{} for {:?}",
            answer.text(),
            String::from_utf8_lossy(bytes)
        );
    }
}

#[test]
fn broken_framing_is_refused() {
    let place = Place::new();
    let server = prepared(&place);
    let before = pids(&server);
    let put = "PUT /api/default/types/t/x HTTP/1.1\r\nhost: x\r\n";
    let cases: Vec<Vec<u8>> = vec![
        b"\r\n\r\n\r\n".to_vec(),
        b"\0\0\0\0".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"GET /api/default/types/t/k\r\n\r\n".to_vec(),
        b"GET http://other/api/default/types/t/k HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nhost x\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nhost: \x01\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        format!("{put}content-length: -1\r\n\r\n").into_bytes(),
        format!("{put}content-length: 99999999999999999999\r\n\r\n").into_bytes(),
        format!("{put}content-length: 11\r\ncontent-length: 12\r\n\r\n{{\"value\":1}}")
            .into_bytes(),
        format!("{put}content-length: 11\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n")
            .into_bytes(),
        format!("{put}transfer-encoding: chunked\r\n\r\nzz\r\n").into_bytes(),
        format!("{put}transfer-encoding: chunked\r\n\r\nffffffffffffffff1\r\n").into_bytes(),
        format!("{put}transfer-encoding: chunked\r\n\r\n5\r\n{{\"val").into_bytes(),
        format!("{put}transfer-encoding: gzip\r\n\r\n").into_bytes(),
        format!("{put}content-encoding: gzip\r\ncontent-length: 11\r\n\r\n{{\"value\":1}}")
            .into_bytes(),
        format!("{put}expect: 100-continue\r\ncontent-length: 11\r\n\r\n").into_bytes(),
        format!("{put}content-type: \x7f\r\ncontent-length: 2\r\n\r\n{{}}").into_bytes(),
        format!(
            "GET /healthz HTTP/1.1\r\nhost: x\r\n{}\r\n",
            "a: b\r\n".repeat(2_000)
        )
        .into_bytes(),
    ];
    for bytes in &cases {
        harmless(&server, bytes);
    }
    unharmed(&server, &before);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let place = Place::new();
    let server = prepared(&place);
    let mut client = server.client();
    let mut bytes = Vec::new();
    for number in 0..50 {
        let body = format!(r#"{{"value":{number}}}"#);
        bytes.extend_from_slice(
            format!(
                "PUT /api/default/types/t/p{number} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}\
                 GET /api/default/types/t/p{number} HTTP/1.1\r\nhost: x\r\n\r\n",
                body.len()
            )
            .as_bytes(),
        );
    }
    client.send_raw(&bytes).expect("it reads");
    for number in 0..50 {
        client.receive(false).expect("an answer").expect(201);
        let seen = client.receive(false).expect("an answer").expect(200).json();
        assert_eq!(seen["key"], format!("p{number}"));
        assert_eq!(seen["value"], number);
    }
}

#[test]
fn a_request_may_arrive_byte_by_byte() {
    let place = Place::new();
    let server = prepared(&place);
    let mut client = server.client();
    let request = "PUT /api/default/types/t/slow HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n\
                   4\r\n{\"va\r\n7\r\nlue\":1}\r\n0\r\n\r\n";
    for byte in request.as_bytes() {
        client.send_raw(&[*byte]).expect("it reads");
    }
    client.receive(false).expect("an answer").expect(201);
}

#[test]
fn random_bytes_harm_nobody() {
    let place = Place::new();
    let server = prepared(&place);
    let before = pids(&server);
    let mut random = Random::new("random bytes", 3);
    for _ in 0..rounds(40, 2_000) {
        let length = random.index(600);
        harmless(&server, &random.bytes(length));
    }
    unharmed(&server, &before);
}

/// Requests that are right, of which a few bytes are then changed.
#[test]
fn nearly_right_requests_harm_nobody() {
    let place = Place::new();
    let server = prepared(&place);
    let before = pids(&server);
    let mut random = Random::new("nearly right", 5);
    let bodies = [
        (
            "PUT",
            "/api/default/types/t/m",
            r#"{"value":{"a":1.5e3,"b":["x","\u00e9"]},"ifVersion":null}"#,
        ),
        (
            "PATCH",
            "/api/default/types/t/m",
            r#"{"patch":{"set":{"a.b":1},"inc":{"n":2},"append":{"l":[1]}}}"#,
        ),
        (
            "POST",
            "/api/default/types/t/query",
            r#"{"filter":{"a":{"$gte":1,"$in":[1,"x"]},"b":{"$regex":"^x"}},"sort":{"a":-1},"limit":5}"#,
        ),
        (
            "POST",
            "/api/default/types/t/count",
            r#"{"filter":{"$or":[{"a":1},{"b":{"$not":{"$size":2}}}]}}"#,
        ),
        (
            "POST",
            "/api/default/transaction",
            r#"[{"action":"put","type":"t","key":"q","value":[1]},{"action":"remove","type":"t","key":"q"}]"#,
        ),
        (
            "GET",
            "/api/default/indexes/t/a~b?prefix=%5B1%5D&limit=3",
            "",
        ),
        ("GET", "/api/default/changelog?after=0&type=t&limit=3", ""),
        (
            "GET",
            "/api/default/types/t?prefix=a&start=b&end=c&reverse=true&limit=3",
            "",
        ),
    ];
    for round in 0..rounds(400, 20_000) {
        let (method, path, body) = bodies[round % bodies.len()];
        let mut target = path.as_bytes().to_vec();
        let mut body = body.as_bytes().to_vec();
        for _ in 0..=random.index(3) {
            let bytes = if body.is_empty() || random.below(4) == 0 {
                &mut target
            } else {
                &mut body
            };
            let at = random.index(bytes.len());
            match random.below(3) {
                0 => bytes[at] = random.bytes(1)[0],
                1 => {
                    bytes.remove(at);
                }
                _ => bytes.insert(at, *random.pick(br#"{}[]",:$0-e\%&=?/"#)),
            }
        }
        let mut request = method.as_bytes().to_vec();
        request.push(b' ');
        request.extend_from_slice(&target);
        request.extend_from_slice(
            format!(
                " HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            )
            .as_bytes(),
        );
        request.extend_from_slice(&body);
        harmless(&server, &request);
    }
    // What was mutated may have been a good write; the store is whole anyhow.
    let _ = server
        .client()
        .put("/api/default/types/t/k", r#"{"value":1}"#);
    unharmed(&server, &before);
    okdb_tests::oracle::verify(&place.root());
}
