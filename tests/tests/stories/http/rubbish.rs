//! Whatever a client sends: never a 500, never the end of a worker, and the
//! code that the contract names.

use okdb_tests::http::{Client, Response};
use okdb_tests::server::{Launch, Place, Server};

pub(super) fn prepared(place: &Place) -> Server {
    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client
        .put(
            "/api/default/types/t",
            r#"{"indexes":[{"fields":["a"]},{"fields":["a","b"]}]}"#,
        )
        .expect(200);
    client
        .put("/api/default/types/t/k", r#"{"value":{"a":1,"b":"x"}}"#)
        .expect(201);
    server
}

/// Every worker is the one it was, and still serves.
pub(super) fn unharmed(server: &Server, before: &[Option<i32>]) {
    let now: Vec<Option<i32>> = server.slots().iter().map(|slot| slot.pid).collect();
    assert_eq!(now, before, "a worker was replaced\n{}", server.log());
    for mut client in server.client_per_worker(2) {
        client.get("/api/default/types/t/k").expect(200);
    }
}

pub(super) fn pids(server: &Server) -> Vec<Option<i32>> {
    server.slots().iter().map(|slot| slot.pid).collect()
}

fn call(client: &mut Client, method: &str, path: &str, body: &str) -> Response {
    let body = (!body.is_empty()).then_some(body.as_bytes());
    match client.call(method, path, &[], body) {
        Ok(answer) => answer,
        Err(error) => panic!("{method} {path}: {error}"),
    }
}

const T: &str = "/api/default/types/t";
const K: &str = "/api/default/types/t/k";
const QUERY: &str = "/api/default/types/t/query";
const TRANSACTION: &str = "/api/default/transaction";
const INDEXES: &str = "/api/default/indexes/t";

/// Method, path, body; the status and code that the contract names.
#[rustfmt::skip]
const WRONG: &[(&str, &str, &str, u16, &str)] = &[
    ("GET", "/", "", 404, "ROUTE_NOT_FOUND"),
    ("GET", "/api", "", 404, "ROUTE_NOT_FOUND"),
    ("GET", "/api/default/nothing", "", 404, "ROUTE_NOT_FOUND"),
    ("GET", "/api/none/types", "", 404, "ENV_NOT_FOUND"),
    ("GET", "/api/default/types/none", "", 404, "TYPE_NOT_REGISTERED"),
    ("GET", "/api/default/types/none/k", "", 404, "TYPE_NOT_REGISTERED"),
    ("GET", "/api/default/types/t/none", "", 404, "NOT_FOUND"),
    ("DELETE", "/api/default/types/t/none", "", 404, "NOT_FOUND"),
    ("PATCH", "/api/default/types/t/none", r#"{"patch":{}}"#, 404, "NOT_FOUND"),
    ("GET", "/api/default/indexes/t/none", "", 404, "INDEX_NOT_REGISTERED"),
    ("BREW", K, "", 405, "METHOD_NOT_ALLOWED"),
    ("POST", K, "{}", 405, "METHOD_NOT_ALLOWED"),
    ("DELETE", "/healthz", "", 405, "METHOD_NOT_ALLOWED"),
    ("GET", "/api/default/types/t?limit=0", "", 400, "INVALID_PARAMETER"),
    ("GET", "/api/default/types/t?limit=1001", "", 400, "INVALID_PARAMETER"),
    ("GET", "/api/default/types/t?limit=x", "", 400, "INVALID_PARAMETER"),
    ("GET", "/api/default/types/t?limit=99999999999999999999", "", 400, "INVALID_PARAMETER"),
    ("GET", "/api/default/types/t?nope=1", "", 400, "UNKNOWN_PARAMETER"),
    ("GET", "/api/default/types/t?cursor=zzz", "", 400, "INVALID_CURSOR"),
    ("GET", "/api/default/types/t/k?nope=1", "", 400, "UNKNOWN_PARAMETER"),
    ("GET", "/api/default/changelog?after=x", "", 400, "INVALID_PARAMETER"),
    ("GET", "/api/default/changelog?after=-1", "", 400, "INVALID_PARAMETER"),
    ("PUT", K, "", 400, "INVALID_JSON"),
    ("PUT", K, "{", 400, "INVALID_JSON"),
    ("PUT", K, "[]", 400, "INVALID_JSON"),
    ("PUT", K, r#"{"value":1}{"value":1}"#, 400, "INVALID_JSON"),
    ("PUT", K, r#"{"value":01}"#, 400, "INVALID_JSON"),
    ("PUT", K, r#"{"value":1.}"#, 400, "INVALID_JSON"),
    ("PUT", K, r#"{"value":NaN}"#, 400, "INVALID_JSON"),
    ("PUT", K, r#"{"value":'x'}"#, 400, "INVALID_JSON"),
    ("PUT", K, r#"{"value":"\ud800"}"#, 400, "INVALID_JSON"),
    ("PUT", K, r#"{"value":"\udc00\ud800"}"#, 400, "INVALID_JSON"),
    ("PUT", K, r#"{"value":{"a":1,"a":2}}"#, 400, "INVALID_JSON"),
    ("PUT", K, "{\"value\":{\"a\":1,\"\\u0061\":2}}", 400, "INVALID_JSON"),
    ("PUT", K, "{\"value\":\"a\nb\"}", 400, "INVALID_JSON"),
    ("PUT", K, r#"{"value":1,"value":2}"#, 400, "INVALID_JSON"),
    ("PUT", K, r#"{"value":1,"nope":2}"#, 400, "UNKNOWN_PARAMETER"),
    ("PUT", K, "{}", 400, "INVALID_PARAMETER"),
    ("POST", T, r#"{"key":"", "value":1}"#, 400, "INVALID_KEY"),
    ("POST", T, "{\"key\":\"a\\u0001\", \"value\":1}", 400, "INVALID_KEY"),
    ("POST", T, r#"{"key":"k", "value":1}"#, 409, "ALREADY_EXISTS"),
    ("POST", "/api/default/types", r#"{"name":"t"}"#, 409, "ALREADY_EXISTS"),
    ("POST", "/api/default/types", r#"{"name":"a b"}"#, 400, "INVALID_NAME"),
    ("POST", "/api/default/types", r#"{"name":""}"#, 400, "INVALID_NAME"),
    ("POST", "/api/envs", r#"{"name":"info"}"#, 400, "INVALID_NAME"),
    ("POST", "/api/envs", r#"{"name":"default"}"#, 409, "ALREADY_EXISTS"),
    ("PATCH", K, r#"{"patch":{"inc":{"b":1}}}"#, 400, "INVALID_PATCH"),
    ("PATCH", K, r#"{"patch":{"set":{"a.x":1}}}"#, 400, "INVALID_PATCH"),
    ("PATCH", K, r#"{"patch":{"nope":{}}}"#, 400, "INVALID_PATCH"),
    ("PATCH", K, r#"{"patch":{"inc":{"a":1e401}}}"#, 400, "INVALID_NUMBER"),
    ("POST", QUERY, r#"{"filter":{"a":{"$nope":1}}}"#, 400, "INVALID_FILTER"),
    ("POST", QUERY, r#"{"filter":{"$where":"1"}}"#, 400, "INVALID_FILTER"),
    ("POST", QUERY, r#"{"filter":{"b":{"$regex":"(?=x)"}}}"#, 400, "INVALID_FILTER"),
    ("POST", QUERY, r#"{"filter":{"b":{"$regex":"("}}}"#, 400, "INVALID_FILTER"),
    ("POST", QUERY, r#"{"filter":{"$and":[]}}"#, 400, "INVALID_FILTER"),
    ("POST", QUERY, r#"{"filter":[]}"#, 400, "INVALID_FILTER"),
    ("POST", QUERY, r#"{"index":"none"}"#, 404, "INDEX_NOT_REGISTERED"),
    ("POST", QUERY, r#"{"limit":1001}"#, 400, "INVALID_PARAMETER"),
    ("POST", QUERY, r#"{"cursor":"AAAA"}"#, 400, "INVALID_CURSOR"),
    ("POST", QUERY, r#"{"sort":7}"#, 400, "INVALID_PARAMETER"),
    ("POST", QUERY, r#"{"nope":7}"#, 400, "UNKNOWN_PARAMETER"),
    ("POST", INDEXES, r#"{"fields":[]}"#, 400, "INVALID_INDEX"),
    ("POST", INDEXES, r#"{"fields":["a", ""]}"#, 400, "INVALID_INDEX"),
    ("POST", INDEXES, r#"{"fields":["a"]}"#, 409, "ALREADY_EXISTS"),
    ("POST", TRANSACTION, r#"[{"action":"nope", "type":"t", "key":"k"}]"#, 400, "INVALID_PARAMETER"),
    ("POST", TRANSACTION, r#"[{"action":"put", "type":"t", "key":"k"}]"#, 400, "INVALID_PARAMETER"),
    ("POST", TRANSACTION, r#"[{"action":"put", "type":"none", "key":"k", "value":1}]"#, 404, "TYPE_NOT_REGISTERED"),
    ("POST", TRANSACTION, r#"[{"action":"update", "type":"t", "key":"none", "value":1}]"#, 404, "NOT_FOUND"),
    ("POST", TRANSACTION, r#"[{"action":"create", "type":"t", "key":"k", "value":1}]"#, 409, "ALREADY_EXISTS"),
    ("POST", TRANSACTION, "7", 400, "INVALID_JSON"),
    ("POST", "/api/default/import/none", "{\"key\":\"a\", \"value\":1}", 404, "TYPE_NOT_REGISTERED"),
];

#[test]
fn wrong_requests_get_their_code() {
    let place = Place::new();
    let server = prepared(&place);
    let before = pids(&server);
    let mut client = server.client();
    let mut wrong = Vec::new();
    for (method, path, body, status, code) in WRONG {
        let answer = call(&mut client, method, path, body);
        assert!(answer.worker() < 2);
        if (answer.status, answer.code().as_deref()) != (*status, Some(code)) {
            wrong.push(format!(
                "{method} {path} {body}\n  wanted {status} {code}, got {} {}",
                answer.status,
                answer.text()
            ));
        }
        if *status == 405 && answer.header("allow").is_none() {
            wrong.push(format!("{method} {path}: a 405 without Allow"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (method, path) in [("PUT", K), ("PATCH", K), ("POST", QUERY)] {
        client
            .call(method, path, &[("content-type", "text/plain")], Some(b"{}"))
            .expect("an answer")
            .expect_error(415, "UNSUPPORTED_MEDIA_TYPE");
    }
    unharmed(&server, &before);
}

#[test]
fn the_import_route_says_what_was_wrong_with_which_line() {
    let place = Place::new();
    let server = prepared(&place);
    let mut client = server.client();
    let lines = concat!(
        "\u{feff}{\"key\":\"bom\",\"value\":1}\r\n",
        "\n",
        "not json\n",
        "{\"key\":\"\",\"value\":1}\n",
        "{\"value\":1}\n",
        "   \n",
        "{\"key\":\"late\",\"value\":{\"a\":1,\"a\":2}}\n",
        "{\"key\":\"last\",\"value\":2}",
    );
    let answer = client
        .import("/api/default/import/t", lines)
        .expect(200)
        .json();
    assert_eq!(answer["imported"], 2, "{answer}");
    let failed: Vec<(u64, &str)> = answer["failed"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|failure| {
            let line = failure["line"].as_u64().expect("a line number");
            (line, failure["code"].as_str().expect("a code"))
        })
        .collect();
    let lines: Vec<u64> = failed.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [3, 4, 5, 7], "{answer}");
    assert_eq!(failed[0].1, "INVALID_JSON");
    assert_eq!(failed[1].1, "INVALID_KEY");
    assert_eq!(failed[3].1, "INVALID_JSON");
    client.get("/api/default/types/t/bom").expect(200);
    client.get("/api/default/types/t/last").expect(200);

    let bare = client
        .import(
            "/api/default/import/t?key=id",
            "{\"id\":\"a/b\",\"n\":1}\n{\"id\":12,\"n\":2}\n{\"n\":3}\n",
        )
        .expect(200)
        .json();
    assert_eq!(bare["imported"], 2, "{bare}");
    assert_eq!(bare["failed"][0]["line"], 3, "{bare}");
    let seen = client.get("/api/default/types/t/a%2Fb").expect(200).json();
    assert_eq!(seen["value"], serde_json::json!({"id":"a/b","n":1}));
    client.get("/api/default/types/t/12").expect(200);
}

#[test]
fn what_is_too_deep_or_too_large_is_refused_without_harm() {
    let place = Place::new();
    let server = prepared(&place);
    let before = pids(&server);
    let mut client = server.client();

    for depth in [200, 10_000, 1_000_000] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let deep = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            for body in [
                format!(r#"{{"value":{deep}}}"#),
                format!(r#"{{"value":{}"#, open.repeat(depth)),
            ] {
                let answer = call(&mut client, "PUT", K, &body);
                assert_eq!(answer.status, 400, "{depth} {open}: {answer:?}");
            }
            let filter = format!(r#"{{"filter":{{"a":{deep}}}}}"#);
            let answer = call(&mut client, "POST", "/api/default/types/t/query", &filter);
            assert_eq!(answer.status, 400, "{depth} {open}: {answer:?}");
        }
    }
    let nots = format!(
        r#"{{"filter":{{"a":{}1{}}}}}"#,
        r#"{"$not":"#.repeat(100),
        "}".repeat(100)
    );
    let answer = call(&mut client, "POST", "/api/default/types/t/query", &nots);
    answer.expect_error(400, "INVALID_FILTER");

    let large = format!(r#"{{"value":"{}"}}"#, "x".repeat(20 * 1024 * 1024));
    call(&mut server.client(), "PUT", K, &large).expect_error(413, "TOO_LARGE");
    let line = format!(
        "{{\"key\":\"a\",\"value\":\"{}\"}}\n",
        "x".repeat(20 * 1024 * 1024)
    );
    let answer = server.client().import("/api/default/import/t", &line);
    assert!(matches!(answer.status, 200 | 413), "{}", answer.status);
    client
        .get("/api/default/types/t/a")
        .expect_error(404, "NOT_FOUND");

    let long = "x".repeat(100_000);
    let answer = server.client().call("GET", &format!("/{long}"), &[], None);
    assert!(matches!(answer, Ok(answer) if matches!(answer.status, 414 | 431)));
    let answer = server.client().call("GET", K, &[("x-long", &long)], None);
    assert!(matches!(answer, Ok(answer) if answer.status == 431));

    let many: Vec<String> = (0..10_001)
        .map(|number| format!(r#"{{"action":"put","type":"t","key":"m{number}","value":1}}"#))
        .collect();
    let answer = call(
        &mut client,
        "POST",
        "/api/default/transaction",
        &format!("[{}]", many.join(",")),
    );
    assert!(matches!(answer.status, 400 | 413), "{answer:?}");
    client
        .get("/api/default/types/t/m0")
        .expect_error(404, "NOT_FOUND");
    unharmed(&server, &before);
}

#[test]
fn a_failed_transaction_leaves_no_trace() {
    let place = Place::new();
    let server = prepared(&place);
    let mut client = server.client();
    let clock = okdb_tests::oracle::clock(&mut client);
    let refused = client
        .post(
            "/api/default/transaction",
            r#"[{"action":"put","type":"t","key":"new","value":1},
                {"action":"remove","type":"t","key":"k"},
                {"action":"update","type":"t","key":"none","value":1}]"#,
        )
        .expect_error(404, "NOT_FOUND")
        .json();
    assert_eq!(refused["error"]["details"]["operation"], 2, "{refused}");
    for mut client in server.client_per_worker(2) {
        client
            .get("/api/default/types/t/new")
            .expect_error(404, "NOT_FOUND");
        client.get("/api/default/types/t/k").expect(200);
        assert_eq!(okdb_tests::oracle::clock(&mut client), clock);
    }
    okdb_tests::oracle::verify(&place.root());
}
