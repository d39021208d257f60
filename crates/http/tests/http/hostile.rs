//! What no client should send: none of it is a failure of ours, none of it ends the server.

use proptest::{prelude::*, test_runner::TestRunner};

use crate::server::{Server, Setup};

fn status_of(bytes: &[u8]) -> Option<u16> {
    std::str::from_utf8(bytes.get(9..12)?).ok()?.parse().ok()
}

/// Sends bytes on a connection of their own, says that no more follow, and reads all that comes back.
fn exchange(server: &Server, bytes: &[u8]) -> Vec<u8> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    stream
        .set_read_timeout(Some(std::time::Duration::from_secs(30)))
        .unwrap();
    // The server may refuse before it has read all.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn heads_that_are_none_get_a_bare_refusal() {
    let server = Server::start();
    let big = format!(
        "GET /healthz HTTP/1.1\r\nhost: t\r\nx: {}\r\n\r\n",
        "y".repeat(20_000)
    );
    let endless = format!("GET /healthz HTTP/1.1\r\nx: {}", "y".repeat(1_000_000));
    let many = format!("GET /healthz HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(1_000));
    let long = format!("GET /{} HTTP/1.1\r\nhost: t\r\n\r\n", "x".repeat(100_000));
    for (bytes, expected) in [
        (b"\r\n\r\nnonsense\r\n\r\n".as_slice(), 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: \x01\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400),
        (
            b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
            400,
        ),
        (
            b"POST / HTTP/1.1\r\ntransfer-encoding: nonsense\r\n\r\nab",
            400,
        ),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (big.as_bytes(), 431),
        (endless.as_bytes(), 431),
        (many.as_bytes(), 431),
        (long.as_bytes(), 431),
    ] {
        let answer = exchange(&server, bytes);
        assert_eq!(
            status_of(&answer),
            Some(expected),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    server.client().get("/healthz").expect(200);
}

#[test]
fn requests_are_never_smuggled() {
    let server = Server::with_type();
    let both = b"POST /api/default/import/t HTTP/1.1\r\nhost: t\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: t\r\n\r\n";
    let answer = String::from_utf8_lossy(&exchange(&server, both)).into_owned();
    assert!(answer.matches("HTTP/1.1").count() <= 2);
    for bytes in [
        b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n".as_slice(),
        b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}",
        b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"value\":1}\r\n0\r\n\r\n",
        b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: t\r\ncontent-length: 50\r\n\r\n{\"value\":1}",
    ] {
        let answer = exchange(&server, bytes);
        assert!(answer.is_empty() || status_of(&answer) == Some(400), "{}", String::from_utf8_lossy(&answer));
    }
    server
        .client()
        .get("/api/default/types/t/k")
        .refused(404, "NOT_FOUND");
}

#[test]
fn slow_heads_and_bodies_and_idle_connections_run_out_of_time() {
    let mut setup = Setup::default();
    setup.limits.header_timeout_ms = 200;
    setup.limits.body_timeout_ms = 200;
    setup.limits.idle_timeout_ms = 200;
    let server = Server::with(setup);
    let mut half = server.client();
    half.raw(b"GET /healthz HTTP/1.1\r\nx:").unwrap();
    assert_eq!(status_of(&half.rest()), Some(408));
    let mut silent = server.client();
    silent.open();
    assert_eq!(silent.rest(), b"");
    let mut idle = server.client();
    idle.get("/healthz").expect(200);
    assert_eq!(idle.rest(), b"");
    let mut body = server.client();
    body.raw(b"PUT /api/default/types/t/k HTTP/1.1\r\nhost: t\r\ncontent-length: 50\r\n\r\n{")
        .unwrap();
    body.read().unwrap().refused(408, "REQUEST_TIMEOUT");
    let mut preface = server.client();
    preface.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    // Settings, then a farewell, then the end.
    assert!(!preface.rest().is_empty());
}

#[test]
fn a_client_that_reads_nothing_is_dropped() {
    let mut setup = Setup::default();
    setup.limits.write_timeout_ms = 200;
    let server = Server::with(setup);
    let mut client = server.client();
    client
        .post("/api/default/types", "{\"name\":\"t\"}")
        .expect(201);
    client.store("k", &format!("\"{}\"", "x".repeat(10_000_000)));
    let mut deaf = server.client();
    deaf.raw(
        "GET /api/default/types/t/k HTTP/1.1\r\nhost: t\r\n\r\n"
            .repeat(3)
            .as_bytes(),
    )
    .unwrap();
    // Not a byte is read. Once the server has given up, it resets what is still sent to it.
    let ended = loop {
        if let Err(error) = deaf.raw(b"x") {
            break error.kind();
        }
    };
    assert!(
        [
            std::io::ErrorKind::ConnectionReset,
            std::io::ErrorKind::BrokenPipe
        ]
        .contains(&ended),
        "{ended:?}"
    );
    client.get("/healthz").expect(200);
}

#[test]
fn too_many_connections_wait_their_turn() {
    let mut setup = Setup::default();
    setup.limits.connections = 2;
    let server = Server::with(setup);
    let (mut first, mut second) = (server.client(), server.client());
    first.get("/healthz").expect(200);
    second.get("/healthz").expect(200);
    let mut third = server.client();
    third
        .raw(b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n")
        .unwrap();
    first.get("/healthz").expect(200);
    drop(first);
    third.read().unwrap().expect(200);
}

#[test]
fn an_idle_connection_makes_room_at_the_limit() {
    let mut setup = Setup::default();
    setup.limits.connections = 2;
    let server = Server::with(setup);
    let (mut first, mut second) = (server.client(), server.client());
    first.get("/healthz").expect(200);
    second.get("/healthz").expect(200);
    // Nobody leaves by himself, and one of them is busy.
    std::thread::scope(|scope| {
        let third = scope.spawn(|| server.client().get("/healthz").expect(200));
        while !third.is_finished() {
            second.get("/healthz").expect(200);
        }
    });
    assert_eq!(first.rest(), b"");
    second.get("/healthz").expect(200);
}

#[test]
fn bodies_all_together_are_bounded() {
    let mut setup = Setup::default();
    setup.limits.held_bytes = 100_000;
    let server = Server::with(setup);
    let mut client = server.client();
    client
        .post("/api/default/types", "{\"name\":\"t\"}")
        .expect(201);
    let body = |bytes: usize| format!("{{\"value\":\"{}\"}}", "x".repeat(bytes));
    client
        .put("/api/default/types/t/k", &body(90_000))
        .expect(201);
    let refused = client
        .put("/api/default/types/t/k", &body(200_000))
        .expect(503);
    assert_eq!(refused.json()["error"]["code"], "OVERLOADED");
    client
        .put("/api/default/types/t/k", &body(90_000))
        .expect(200);
}

#[test]
fn a_full_store_says_so_and_still_reads_and_deletes() {
    let server = Server::with(Setup {
        map_size: 8 << 20,
        ..Setup::default()
    });
    let mut client = server.client();
    client
        .post("/api/default/types", "{\"name\":\"t\"}")
        .expect(201);
    let value = format!("{{\"value\":\"{}\"}}", "x".repeat(200_000));
    let mut written = 0;
    let full = loop {
        let answer = client.put(&format!("/api/default/types/t/{written}"), &value);
        if answer.status != 201 {
            break answer;
        }
        written += 1;
        assert!(written < 1_000);
    };
    full.refused(507, "STORAGE_FULL");
    client.get("/api/default/types/t/0").expect(200);
    for n in 0..written {
        client
            .delete(&format!("/api/default/types/t/{n}"))
            .expect(204);
    }
}

/// Bytes that are close enough to a request to reach the code behind the parser.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let method = prop_oneof![
        Just("GET".to_owned()),
        Just("PUT".to_owned()),
        Just("POST".to_owned()),
        Just("PATCH".to_owned()),
        Just("DELETE".to_owned()),
        Just("HEAD".to_owned()),
        "[A-Z]{1,8}",
    ];
    let piece = prop_oneof![
        4 => Just("/api/default/types/t".to_owned()),
        1 => Just("/api/default/indexes/t".to_owned()),
        1 => Just("/api/default/import/t".to_owned()),
        1 => Just("/api/default/export/t".to_owned()),
        1 => Just("/api/default/transaction".to_owned()),
        1 => Just("/api/default/changelog".to_owned()),
        1 => Just("/api/envs".to_owned()),
        1 => Just("/query".to_owned()),
        1 => Just("/count".to_owned()),
        1 => Just("/n".to_owned()),
        1 => Just("?limit=5".to_owned()),
        1 => Just("?prefix=[%22a%22]".to_owned()),
        1 => Just("&reverse".to_owned()),
        1 => "[/?&=%a-zA-Z0-9~.\"\\[\\]]{0,12}",
    ];
    let header = prop_oneof![
        Just("content-type: application/json\r\n".to_owned()),
        Just("content-type: application/merge-patch+json\r\n".to_owned()),
        Just("content-type: application/json-patch+json\r\n".to_owned()),
        "if-(none-)?match: (\\*|\"[0-9]{1,3}\"|W/\"1\"|[ -~]{0,10})\r\n",
        "[a-z-]{1,12}: [ -~]{0,20}\r\n",
    ];
    let body = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200),
        "\\{\"(value|patch|filter|fields|operations|name|key|cursor|sort)\":[\\[\\]{}\",:a-z0-9$.-]{0,60}\\}"
            .prop_map(String::into_bytes),
        Just(b"{\"value\":{\"n\":1}}".to_vec()),
        Just(b"{\"patch\":{\"inc\":{\"n\":1}}}".to_vec()),
        Just(b"{\"filter\":{\"n\":{\"$gt\":0}},\"sort\":{\"n\":-1},\"limit\":3}".to_vec()),
        Just(b"[{\"action\":\"put\",\"type\":\"t\",\"key\":\"k\",\"value\":1}]".to_vec()),
        Just(b"[{\"op\":\"add\",\"path\":\"/n\",\"value\":1}]".to_vec()),
    ];
    let parts = (
        method,
        proptest::collection::vec(piece, 1..4),
        proptest::collection::vec(header, 0..3),
        body,
        0_u8..10,
    );
    parts.prop_map(|(method, pieces, headers, body, framing)| {
        let mut bytes = format!(
            "{method} {} HTTP/1.1\r\n{}",
            pieces.concat(),
            headers.concat()
        )
        .into_bytes();
        match framing {
            0 => bytes.extend_from_slice(b"\r\n"),
            1 => bytes.extend_from_slice(
                format!("content-length: {}\r\n\r\n", body.len() + 7).as_bytes(),
            ),
            2 => bytes.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n"),
            _ => bytes
                .extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes()),
        }
        bytes.extend_from_slice(&body);
        bytes
    })
}

#[test]
fn no_bytes_are_a_failure_of_ours() {
    let server = Server::with_type();
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 600,
        ..ProptestConfig::default()
    });
    let any = prop_oneof![1 => proptest::collection::vec(any::<u8>(), 0..400), 12 => request()];
    runner
        .run(&any, |bytes| {
            let answer = exchange(&server, &bytes);
            let status = status_of(&answer);
            prop_assert!(
                status.is_none_or(|status| status < 500),
                "{}",
                String::from_utf8_lossy(&answer)
            );
            Ok(())
        })
        .unwrap();
    server.client().get("/healthz").expect(200);
}
