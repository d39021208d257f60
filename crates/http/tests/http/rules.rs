//! Schemas, references, violations and expiries over HTTP.

use serde_json::json;

use crate::server::Server;

const S: &str = "/api/default/schemas/t";
const T: &str = "/api/default/types/t";

#[test]
fn a_schema_is_set_read_obeyed_and_dropped() {
    let server = Server::with_type();
    let mut client = server.client();
    client.store("old", "{\"n\":\"x\"}");
    client.get(S).refused(404, "NOT_FOUND");
    client.delete(S).refused(404, "NOT_FOUND");
    let body = "{\"schema\":{\"properties\":{\"n\":{\"type\":\"integer\"}}}}";
    let set = client.put(S, body).expect(200).json();
    assert_eq!(
        (&set["enforce"], &set["state"]),
        (&json!(true), &json!("ready"))
    );
    assert_eq!(client.get(S).expect(200).json(), set);
    let types = client.get("/api/default/types").expect(200).json();
    assert_eq!(types["types"][0]["schema"], set["schema"]);
    let refused = client
        .put(&format!("{T}/new"), "{\"value\":{\"n\":1.5}}")
        .refused(422, "SCHEMA_VIOLATION");
    assert_eq!(refused["details"]["violations"][0]["path"], "/n");
    let operation = "[{\"action\":\"put\",\"type\":\"t\",\"key\":\"k\",\"value\":{\"n\":\"y\"}}]";
    client
        .post("/api/default/transaction", operation)
        .refused(422, "SCHEMA_VIOLATION");
    client
        .put(&format!("{T}/new"), "{\"value\":{\"n\":1}}")
        .expect(201);
    for (bad, code) in [
        ("{}", "INVALID_PARAMETER"),
        ("{\"schema\":3}", "INVALID_SCHEMA"),
        ("{\"schema\":{\"type\":\"odd\"}}", "INVALID_SCHEMA"),
        ("{\"schema\":{},\"enforce\":1}", "INVALID_PARAMETER"),
        ("{\"schema\":{},\"more\":1}", "UNKNOWN_PARAMETER"),
        (
            "{\"schema\":{\"properties\":{\"a\":{\"type\":\"string\",\"ref\":{\"type\":\"t\",\"onDelete\":\"set_null\"}}}}}",
            "INVALID_SCHEMA",
        ),
    ] {
        client.put(S, bad).refused(400, code);
    }
    client
        .put("/api/default/schemas/none", body)
        .refused(404, "TYPE_NOT_REGISTERED");
    client
        .put("/api/default/types/t2", "{\"enforce\":false}")
        .refused(400, "INVALID_PARAMETER");
    client.delete(S).expect(204);
    client
        .put(&format!("{T}/new"), "{\"value\":{\"n\":\"z\"}}")
        .expect(200);
}

#[test]
fn violations_are_listed_by_kind_and_type() {
    let server = Server::with_type();
    let mut client = server.client();
    client.store("a", "{\"n\":1,\"u\":1}");
    client.store("b", "{\"n\":\"x\",\"u\":2,\"to\":\"nobody\"}");
    let schema = "{\"schema\":{\"properties\":{\"n\":{\"type\":\"integer\"},\"to\":{\"ref\":{\"type\":\"t\"}}}},\"enforce\":false}";
    client.put(S, schema).expect(200);
    let all = client.get("/api/default/violations").expect(200).json();
    let found = all["violations"].as_array().unwrap();
    assert_eq!(found.len(), 2, "{all}");
    for (kind, path) in [("schema", "/n"), ("ref", "/to")] {
        let page = client
            .get(&format!(
                "/api/default/violations?kind={kind}&type=t&limit=1"
            ))
            .expect(200)
            .json();
        let one = &page["violations"][0];
        assert_eq!((&one["kind"], &one["type"]), (&json!(kind), &json!("t")));
        assert_eq!((&one["key"], &one["path"]), (&json!("b"), &json!(path)));
        assert!(one["detectedAt"].as_u64().unwrap() > 0 && one["detail"].is_string());
        assert_eq!(page["cursor"], json!(null));
    }
    let first = client
        .get("/api/default/violations?limit=1")
        .expect(200)
        .json();
    let cursor = first["cursor"].as_str().unwrap();
    let second = client
        .get(&format!("/api/default/violations?limit=1&cursor={cursor}"))
        .expect(200)
        .json();
    assert_ne!(first["violations"], second["violations"]);
    client
        .get(&format!("/api/default/violations?kind=ref&cursor={cursor}"))
        .refused(400, "INVALID_CURSOR");
    client
        .get("/api/default/violations?kind=odd")
        .refused(400, "INVALID_PARAMETER");
    client
        .get("/api/default/violations?type=none")
        .refused(404, "TYPE_NOT_REGISTERED");
    client
        .put(&format!("{T}/b"), "{\"value\":{\"n\":2,\"to\":\"a\"}}")
        .expect(200);
    let none = client.get("/api/default/violations").expect(200).json();
    assert_eq!(none, json!({"violations": [], "cursor": null}));
    client
        .delete(&format!("{T}/a"))
        .refused(409, "FOREIGN_KEY_RESTRICTED");
    let refused = client
        .put(&format!("{T}/c"), "{\"value\":{\"to\":\"zz\"}}")
        .refused(409, "FOREIGN_KEY_VIOLATION");
    assert_eq!(
        refused["details"],
        json!({"path": "/to", "type": "t", "key": "zz"})
    );
}

#[test]
fn expiries_are_set_read_listed_and_cleared() {
    let server = Server::with_type();
    let mut client = server.client();
    client.store("stays", "1");
    let ttl = |key: &str| format!("/api/default/ttl/t/{key}");
    client.get(&ttl("stays")).refused(404, "NOT_FOUND");
    client.get(&ttl("none")).refused(404, "NOT_FOUND");
    client
        .put(&ttl("none"), "{\"ttl\":1000}")
        .refused(404, "NOT_FOUND");
    client.delete(&ttl("none")).refused(404, "NOT_FOUND");
    for bad in [
        "0",
        "-1",
        "\"x\"",
        "1e20",
        "null",
        "1.5",
        "3153600000001",
        "[]",
    ] {
        let value = format!("{{\"value\":1,\"ttl\":{bad}}}");
        client
            .put(&format!("{T}/k"), &value)
            .refused(400, "INVALID_PARAMETER");
        client.post(T, &value).refused(400, "INVALID_PARAMETER");
        let body = format!("{{\"ttl\":{bad}}}");
        client
            .put(&ttl("stays"), &body)
            .refused(400, "INVALID_PARAMETER");
    }
    client
        .put(&ttl("stays"), "{}")
        .refused(400, "INVALID_PARAMETER");
    client
        .put(&format!("{T}/k"), "{\"value\":1,\"ttl\":60000}")
        .expect(201);
    let record = client.get(&format!("{T}/k")).expect(200).json();
    let remaining = record["ttl"]["remainingMs"].as_u64().unwrap();
    assert!((1..=60_000).contains(&remaining), "{record}");
    let set = client
        .put(&ttl("k"), "{\"ttl\":3600000}")
        .expect(200)
        .json();
    assert!(set["expiresAt"].as_u64() > record["ttl"]["expiresAt"].as_u64());
    let again = client.get(&format!("{T}/k")).expect(200).json();
    assert!(again["version"].as_u64() > record["version"].as_u64());
    client.put(&format!("{T}/k"), "{\"value\":2}").expect(200);
    let kept = client.get(&ttl("k")).expect(200).json();
    assert_eq!(kept["expiresAt"], set["expiresAt"]);
    let list = client
        .get("/api/default/ttl?type=t&limit=5")
        .expect(200)
        .json();
    assert_eq!(list["items"][0]["key"], "k");
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    let operations = "[{\"action\":\"clearTtl\",\"type\":\"t\",\"key\":\"k\"},{\"action\":\"setTtl\",\"type\":\"t\",\"key\":\"stays\",\"ttl\":50000},{\"action\":\"create\",\"type\":\"t\",\"key\":\"n\",\"value\":1,\"ttl\":50000}]";
    client
        .post("/api/default/transaction", operations)
        .expect(200);
    client.get(&ttl("k")).refused(404, "NOT_FOUND");
    client.get(&ttl("stays")).expect(200);
    client.get(&ttl("n")).expect(200);
    client.delete(&ttl("stays")).expect(204);
    client.get(&ttl("stays")).refused(404, "NOT_FOUND");
    assert_eq!(
        client.post("/api/default/ttl/sweep", "").expect(200).json(),
        json!({"swept": 0})
    );
}
