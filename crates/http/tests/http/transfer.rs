//! Import and export.

use crate::server::{Server, Setup};

#[test]
fn lines_of_all_shapes_are_imported_and_bad_ones_reported() {
    let server = Server::with_type();
    let mut client = server.client();
    let body = "\u{feff}{\"key\":\"a\",\"value\":1}\r\n\r\n   \n{\"key\":\"b\",\"value\":{\"x\":\"\\u0041\"}}\nnonsense\n{\"key\":\"\",\"value\":1}\n{\"key\":\"c\",\"value\":3}";
    for kind in ["application/x-ndjson", "application/json"] {
        let answer = client.call(
            "POST",
            "/api/default/import/t",
            &[("content-type", kind)],
            body.as_bytes(),
        );
        let report = answer.expect(200).json();
        assert_eq!(
            (&report["imported"], &report["failedCount"]),
            (&3.into(), &2.into())
        );
        let failed: Vec<_> = report["failed"]
            .as_array()
            .unwrap()
            .iter()
            .map(|failure| {
                (
                    failure["line"].as_u64().unwrap(),
                    failure["code"].as_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(failed, [(5, "INVALID_JSON"), (6, "INVALID_KEY")]);
        assert!(report["clock"].as_u64().unwrap() > 0);
    }
    assert!(
        client
            .get("/api/default/types/t/b")
            .text()
            .contains("{\"x\":\"\\u0041\"}")
    );
    let empty = client
        .call("POST", "/api/default/import/t", &[], b"")
        .expect(200)
        .json();
    assert_eq!(empty["imported"], 0);
    client
        .call(
            "POST",
            "/api/default/import/t",
            &[("content-type", "text/csv")],
            b"a",
        )
        .refused(415, "UNSUPPORTED_MEDIA_TYPE");
    client
        .call("POST", "/api/default/import/none", &[], b"{}")
        .refused(404, "TYPE_NOT_REGISTERED");
    client
        .call("POST", "/api/default/import/t?key=", &[], b"{}")
        .refused(400, "INVALID_PARAMETER");
    client
        .call("POST", "/api/default/import/t?mode=x", &[], b"{}")
        .refused(400, "UNKNOWN_PARAMETER");
}

#[test]
fn bare_documents_are_keyed_by_a_field() {
    let server = Server::with_type();
    let mut client = server.client();
    let report = client
        .call(
            "POST",
            "/api/default/import/t?key=id",
            &[],
            b"{\"id\":7,\"n\":1}\n{\"id\":\"x\"}\n{\"n\":2}",
        )
        .expect(200)
        .json();
    assert_eq!(
        (&report["imported"], &report["failed"][0]["line"]),
        (&2.into(), &3.into())
    );
    assert!(
        client
            .get("/api/default/types/t/7")
            .text()
            .contains("\"value\":{\"id\":7,\"n\":1}")
    );
}

#[test]
fn failures_beyond_a_thousand_are_counted_only() {
    let server = Server::with_type();
    let body = "x\n".repeat(2_500);
    let report = server
        .client()
        .call("POST", "/api/default/import/t", &[], body.as_bytes())
        .expect(200)
        .json();
    assert_eq!(report["failed"].as_array().unwrap().len(), 1_000);
    assert_eq!(report["failedCount"], 2_500);
}

#[test]
fn what_is_exported_imports_as_the_same() {
    let server = Server::with_type();
    let mut client = server.client();
    let lines: String = (0..5_000)
        .map(|n| {
            format!(
                "{{\"key\":\"k{n:05}\",\"value\":{{\"n\":{n}.0,\"text\":\"{}\"}}}}\n",
                "é".repeat(n % 50)
            )
        })
        .collect();
    let report = client
        .call("POST", "/api/default/import/t", &[], lines.as_bytes())
        .expect(200)
        .json();
    assert_eq!(report["imported"], 5_000);
    for query in ["", "?consistent", "?consistent=true", "?consistent=false"] {
        let export = client
            .get(&format!("/api/default/export/t{query}"))
            .expect(200);
        assert_eq!(export.header("content-type"), Some("application/x-ndjson"));
        assert_eq!(export.header("transfer-encoding"), Some("chunked"));
        assert!(
            export.text() == lines,
            "an export differs from what was imported"
        );
    }
    client
        .get("/api/default/export/t?consistent=maybe")
        .refused(400, "INVALID_PARAMETER");
    client
        .get("/api/default/export/none")
        .refused(404, "TYPE_NOT_REGISTERED");
    client
        .call("HEAD", "/api/default/export/t", &[], b"")
        .expect(200);
    client.get("/api/default/types/t/k00000").expect(200);
}

#[test]
fn a_client_that_leaves_an_import_leaves_whole_records() {
    let server = Server::with_type();
    let mut client = server.client();
    client
        .raw(b"POST /api/default/import/t HTTP/1.1\r\nhost: t\r\ncontent-length: 100000000\r\n\r\n")
        .unwrap();
    let line = |n: usize| format!("{{\"key\":\"k{n:06}\",\"value\":{{\"n\":{n}}}}}\n");
    let lines: String = (0..30_000).map(line).collect();
    client.raw(lines.as_bytes()).unwrap();
    client.raw(b"{\"key\":\"half").unwrap();
    client.close();
    let mut other = server.client();
    // Chunks are committed in order, so what is there is a prefix.
    let mut last = 0;
    loop {
        let count = other.post("/api/default/types/t/count", "{}").json()["count"]
            .as_u64()
            .unwrap();
        if count >= 29_000 {
            break;
        }
        assert!(count >= last);
        last = count;
        std::thread::yield_now();
    }
    other
        .get("/api/default/types/t/half")
        .refused(404, "NOT_FOUND");
    let report = server
        .store
        .env("default")
        .unwrap()
        .verify(&mut |_, _| {})
        .unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn a_client_that_does_not_read_an_export_holds_nothing_up() {
    let mut setup = Setup::default();
    setup.limits.heavy_running = 1;
    setup.limits.transfers = 2;
    let server = Server::with(setup);
    let mut client = server.client();
    client
        .post("/api/default/types", "{\"name\":\"t\"}")
        .expect(201);
    let big = format!("{{\"value\":\"{}\"}}", "x".repeat(1_000_000));
    for n in 0..30 {
        client
            .put(&format!("/api/default/types/t/{n}"), &big)
            .expect(201);
    }
    let mut slow: Vec<_> = (0..2).map(|_| server.client()).collect();
    for client in &mut slow {
        client
            .raw(b"GET /api/default/export/t HTTP/1.1\r\nhost: t\r\n\r\n")
            .unwrap();
        let mut first = [0; 15];
        std::io::Read::read_exact(client.open(), &mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK");
    }
    assert_eq!(
        client
            .post("/api/default/types/t/count", "{}")
            .expect(200)
            .json()["count"],
        30
    );
    let refused = client.get("/api/default/export/t").expect(503);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.json()["error"]["code"], "OVERLOADED");
    for client in &mut slow {
        client.close();
    }
    // Their places come free when the server notices.
    while client.get("/api/default/export/t?consistent").status != 200 {
        std::thread::yield_now();
    }
}

#[test]
fn an_export_of_one_moment_is_cut_off_in_time() {
    let mut setup = Setup::default();
    setup.limits.consistent_export_ms = 100;
    setup.limits.transfers = 1;
    let server = Server::with(setup);
    let mut client = server.client();
    client
        .post("/api/default/types", "{\"name\":\"t\"}")
        .expect(201);
    let big = format!("{{\"value\":\"{}\"}}", "x".repeat(1_000_000));
    for n in 0..60 {
        client
            .put(&format!("/api/default/types/t/{n}"), &big)
            .expect(201);
    }
    let mut slow = server.client();
    slow.raw(b"GET /api/default/export/t?consistent HTTP/1.1\r\nhost: t\r\n\r\n")
        .unwrap();
    let mut whole = vec![0; 15];
    std::io::Read::read_exact(slow.open(), &mut whole).unwrap();
    assert_eq!(whole, b"HTTP/1.1 200 OK");
    // Nothing more is read until its place is free: until it was cut off.
    let mut refused = 0;
    while client.get("/api/default/export/t").status == 503 {
        refused += 1;
        std::thread::yield_now();
    }
    whole.extend(slow.rest());
    assert!(
        !whole.ends_with(b"0\r\n\r\n"),
        "a cut export must not look complete"
    );
    assert!(whole.len() < 60_000_000);
    assert_eq!(
        server
            .counts
            .failed
            .load(std::sync::atomic::Ordering::SeqCst),
        1 + refused
    );
}
