//! System routes and environments.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

use crate::{
    client::Client,
    server::{Log, Server, Setup},
};

#[test]
fn health_information_and_status_are_told() {
    let server = Server::with_type();
    let mut client = server.client();
    assert_eq!(client.get("/healthz").expect(200).text(), "ok\n");
    assert_eq!(client.get("/readyz").expect(200).text(), "ready\n");
    let info = client.get("/api/info").expect(200).json();
    assert_eq!(
        (&info["name"], &info["version"]),
        (&"okdb".into(), &"1.2.3".into())
    );
    assert_eq!(info["root"], server.store.identity());
    assert_eq!(info["durability"], "fast");
    assert_eq!(info["limits"]["valueBytes"], 16 * 1024 * 1024);
    assert_eq!(info["envs"][0]["name"], "default");
    assert!(info["envs"][0]["clock"].as_u64().unwrap() > 0 && info["uptimeMs"].is_u64());
    assert_eq!(
        client.get("/api/cluster/status").expect(200).json(),
        json!({"mode": "single"})
    );
    let document = client.get("/api/openapi.json").expect(200).json();
    assert_eq!(document["openapi"], "3.1.0");
    let docs = client.get("/docs").expect(200);
    assert_eq!(
        docs.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert!(docs.text().starts_with("<!doctype html>"));
    let length = docs.body.len().to_string();
    assert_eq!(
        client
            .call("HEAD", "/docs", &[], b"")
            .expect(200)
            .header("content-length"),
        Some(length.as_str())
    );
}

#[test]
fn metrics_are_in_the_format_of_their_reader() {
    let server = Server::start();
    let metrics = server.client().get("/metrics").expect(200);
    assert_eq!(
        metrics.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    assert_eq!(metrics.text(), "okdb_up 1\n");
}

#[test]
fn bytes_of_bodies_and_connections_are_counted() {
    let mut server = Server::with_type();
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    let put = "{\"value\":1}";
    let mut client = server.client();
    let before = count(&server.counts.bytes_in);
    client.put("/api/default/types/t/k", put).expect(201);
    client.get("/api/default/types/t/k").expect(200);
    assert_eq!(count(&server.counts.bytes_in) - before, put.len() as u64);
    let lines = "{\"key\":\"a\",\"value\":1}\n".repeat(1_000);
    let import = client.call("POST", "/api/default/import/t", &[], lines.as_bytes());
    import.expect(200);
    let expected = (put.len() + lines.len()) as u64;
    assert_eq!(count(&server.counts.bytes_in) - before, expected);
    assert!(count(&server.counts.opened) > count(&server.counts.closed));
    client.close();
    server.join();
    assert_eq!(count(&server.counts.opened), count(&server.counts.closed));
}

#[test]
fn a_unix_socket_serves_the_same() {
    let server = Server::start();
    let mut client = Client::unix(&server.unix);
    client.get("/healthz").expect(200);
    client
        .post("/api/default/types", "{\"name\":\"t\"}")
        .expect(201);
}

#[test]
fn environments_are_apart() {
    let server = Server::with_type();
    let mut client = server.client();
    let made = client
        .post(
            "/api/envs",
            "{\"name\":\"other\",\"durability\":\"balanced\"}",
        )
        .expect(201);
    assert_eq!(made.header("location"), Some("/api/envs/other"));
    let made = made.json();
    assert_eq!(
        (&made["name"], &made["durability"]),
        (&"other".into(), &"balanced".into())
    );
    assert!(made["bytes"].is_u64() && made["reclaimable"].is_u64() && made["clock"].is_u64());
    client
        .post("/api/envs", "{\"name\":\"other\"}")
        .refused(409, "ALREADY_EXISTS");
    client
        .get("/api/other/types/t/k")
        .refused(404, "TYPE_NOT_REGISTERED");
    client
        .post("/api/other/types", "{\"name\":\"t\"}")
        .expect(201);
    client
        .put("/api/other/types/t/k", "{\"value\":1}")
        .expect(201);
    client
        .get("/api/default/types/t/k")
        .refused(404, "NOT_FOUND");
    assert_eq!(
        client.get("/api/envs/other").expect(200).json()["name"],
        "other"
    );
    client.get("/api/envs/none").refused(404, "ENV_NOT_FOUND");
    let listed = client.get("/api/envs").expect(200).json();
    let names: Vec<_> = listed["envs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|env| env["name"].clone())
        .collect();
    assert_eq!(names, ["default", "other"]);
    for name in [
        "",
        "info",
        "events",
        "openapi.json",
        "a b",
        "~x",
        "_x",
        &"x".repeat(65),
    ] {
        client
            .post("/api/envs", &json!({"name": name}).to_string())
            .refused(400, "INVALID_NAME");
    }
    client
        .post("/api/envs", "{\"name\":\"x\",\"durability\":\"eventual\"}")
        .refused(400, "INVALID_PARAMETER");
    client
        .delete("/api/envs/other")
        .refused(405, "METHOD_NOT_ALLOWED");
}

#[test]
fn requests_are_known_by_their_id() {
    let server = Server::start();
    let mut client = server.client();
    let given = client
        .call("GET", "/none", &[("x-request-id", "abc-123_~")], b"")
        .expect(404);
    assert_eq!(given.header("x-request-id"), Some("abc-123_~"));
    for strange in ["", "a b", "a\"b", "a,b", &"x".repeat(65)] {
        let answer = client
            .call("GET", "/none", &[("x-request-id", strange)], b"")
            .expect(404);
        assert_eq!(
            answer.header("x-request-id").map(str::len),
            Some(26),
            "{strange:?}"
        );
    }
    assert_eq!(
        client.get("/healthz").expect(200).header("x-request-id"),
        None
    );
}

#[test]
fn methods_that_a_path_lacks_are_refused_with_those_it_has() {
    let server = Server::start();
    let mut client = server.client();
    for (method, path, allow) in [
        ("DELETE", "/healthz", "GET, HEAD"),
        ("PUT", "/api/envs", "GET, HEAD, POST"),
        ("OPTIONS", "/api/default/types", "GET, HEAD, POST"),
        (
            "POST",
            "/api/default/types/t/k",
            "DELETE, GET, HEAD, PATCH, PUT",
        ),
        ("TRACE", "/api/default/transaction", "POST"),
        ("BREW", "/docs", "GET, HEAD"),
    ] {
        let answer = client.call(method, path, &[], b"").expect(405);
        assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
        answer.refused(405, "METHOD_NOT_ALLOWED");
    }
    for path in [
        "/",
        "/api",
        "/api/",
        "/api/default",
        "/metrics/",
        "/api/default/nothing/here",
        "//healthz",
    ] {
        client.get(path).refused(404, "ROUTE_NOT_FOUND");
    }
    let long = format!("/api/default/types/t?prefix={}", "x".repeat(9_000));
    client.get(&long).refused(414, "URI_TOO_LONG");
}

#[test]
fn each_request_leaves_a_line_where_that_is_asked_for() {
    let log = Log::default();
    let mut server = Server::with(Setup {
        log: Some(log.clone()),
        ..Setup::default()
    });
    server
        .client()
        .get("/healthz?x")
        .refused(400, "UNKNOWN_PARAMETER");
    server
        .client()
        .post("/api/default/types", "{\"name\":\"t\"}")
        .expect(201);
    server.join();
    let text = log.text();
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.contains("okdb::access"))
        .collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[0].contains("method=GET path=\"/healthz?x\" status=400 micros="),
        "{text}"
    );
    assert!(
        lines[1].contains("method=POST path=\"/api/default/types\" status=201"),
        "{text}"
    );
}
