//! Several operations, all or none.

use serde_json::json;

use crate::server::Server;

const PATH: &str = "/api/default/transaction";

#[test]
fn all_operations_apply_in_order() {
    let server = Server::with_type();
    let mut client = server.client();
    client.store("there", "{\"n\":1}");
    client.store("gone", "1");
    let body = json!({"operations": [
        {"action": "create", "type": "t", "key": "new", "value": {"a": 1}},
        {"action": "update", "type": "t", "key": "new", "value": {"a": 2}},
        {"action": "patch", "type": "t", "key": "there", "patch": {"inc": {"n": 5}}},
        {"action": "put", "type": "t", "key": "put", "value": [], "ifVersion": null},
        {"action": "remove", "type": "t", "key": "gone"},
    ]});
    let done = client.post(PATH, &body.to_string()).expect(200).json();
    let results = done["results"].as_array().unwrap();
    assert_eq!(results.len(), 5);
    assert_eq!(done["clock"], results[4]["version"]);
    let versions: Vec<_> = results
        .iter()
        .map(|result| result["version"].as_u64().unwrap())
        .collect();
    assert!(versions.is_sorted());
    assert_eq!(
        client.get("/api/default/types/t/new").json()["value"],
        json!({"a": 2})
    );
    assert_eq!(
        client.get("/api/default/types/t/there").json()["value"],
        json!({"n": 6})
    );
    client
        .get("/api/default/types/t/gone")
        .refused(404, "NOT_FOUND");
    client
        .post(
            PATH,
            "[{\"action\":\"put\",\"type\":\"t\",\"key\":\"bare\",\"value\":1}]",
        )
        .expect(200);
}

#[test]
fn one_failure_undoes_all_and_names_itself() {
    let server = Server::with_type();
    let mut client = server.client();
    client.store("there", "1");
    let put = json!({"action": "put", "type": "t", "key": "first", "value": 1});
    for (bad, status, code) in [
        (
            json!({"action": "create", "type": "t", "key": "there", "value": 1}),
            409,
            "ALREADY_EXISTS",
        ),
        (
            json!({"action": "update", "type": "t", "key": "none", "value": 1}),
            404,
            "NOT_FOUND",
        ),
        (
            json!({"action": "remove", "type": "t", "key": "none"}),
            404,
            "NOT_FOUND",
        ),
        (
            json!({"action": "put", "type": "none", "key": "k", "value": 1}),
            404,
            "TYPE_NOT_REGISTERED",
        ),
        (
            json!({"action": "put", "type": "t", "key": "there", "value": 1, "ifVersion": 1}),
            412,
            "VERSION_MISMATCH",
        ),
        (
            json!({"action": "put", "type": "t", "key": "", "value": 1}),
            400,
            "INVALID_KEY",
        ),
        (
            json!({"action": "patch", "type": "t", "key": "there", "patch": {"inc": {"a": 1}}}),
            400,
            "INVALID_PATCH",
        ),
        (
            json!({"action": "setTtl", "type": "t", "key": "there", "ttl": 0}),
            400,
            "INVALID_PARAMETER",
        ),
        (
            json!({"action": "enqueue", "jobType": "x", "payload": {}}),
            400,
            "INVALID_PARAMETER",
        ),
    ] {
        let error = client
            .post(PATH, &json!([put, bad]).to_string())
            .refused(status, code);
        assert_eq!(error["details"]["operation"], 1, "{error}");
    }
    client
        .get("/api/default/types/t/first")
        .refused(404, "NOT_FOUND");
    client.post(PATH, "{}").refused(400, "INVALID_PARAMETER");
    client
        .post(PATH, "{\"operations\":[],\"x\":1}")
        .refused(400, "UNKNOWN_PARAMETER");
    client
        .post(
            PATH,
            "[{\"action\":\"remove\",\"type\":\"t\",\"key\":\"k\",]",
        )
        .refused(400, "INVALID_JSON");
    client
        .call("POST", PATH, &[("content-type", "text/csv")], b"[]")
        .refused(415, "UNSUPPORTED_MEDIA_TYPE");
    let many: Vec<_> = (0..10_001)
        .map(|n| json!({"action": "put", "type": "t", "key": n.to_string(), "value": n}))
        .collect();
    client
        .post(PATH, &json!(many).to_string())
        .refused(413, "TOO_LARGE");
    client.post(PATH, &json!(many[1..]).to_string()).expect(200);
}

#[test]
fn transfers_keep_their_sum_in_every_view() {
    let server = Server::with_type();
    let mut client = server.client();
    for account in 0..4 {
        client.store(&format!("a{account}"), "{\"n\":100}");
    }
    std::thread::scope(|scope| {
        for worker in 0..3_usize {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client();
                for round in 0..30 {
                    let (from, to) = ((worker + round) % 4, (worker + round * 3 + 1) % 4);
                    let body = json!([
                        {"action": "patch", "type": "t", "key": format!("a{from}"), "patch": {"inc": {"n": -1}}},
                        {"action": "patch", "type": "t", "key": format!("a{to}"), "patch": {"inc": {"n": 1}}},
                    ]);
                    client.post(PATH, &body.to_string()).expect(200);
                }
            });
        }
        let mut client = server.client();
        for _ in 0..30 {
            let page = client.get("/api/default/types/t").expect(200).json();
            let sum: i64 = page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["value"]["n"].as_i64().unwrap())
                .sum();
            assert_eq!(sum, 400);
        }
    });
}
