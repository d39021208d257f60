//! Types and value indexes.

use serde_json::{Value, json};

use crate::{client::Client, server::Server};

const I: &str = "/api/default/indexes/t";

fn cities(server: &Server) -> Client {
    let mut client = server.client();
    for (key, value) in [
        (
            "paris",
            "{\"country\":\"FR\",\"name\":\"Paris\",\"people\":2100000}",
        ),
        (
            "lyon",
            "{\"country\":\"FR\",\"name\":\"Lyon\",\"people\":520000}",
        ),
        (
            "rome",
            "{\"country\":\"IT\",\"name\":\"Rome\",\"people\":2700000}",
        ),
        ("lost", "{\"name\":\"Lost\"}"),
    ] {
        client.store(key, value);
    }
    client
}

fn keys(page: &Value) -> Vec<&str> {
    page["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["key"].as_str().unwrap())
        .collect()
}

#[test]
fn types_are_registered_ensured_listed_and_dropped() {
    let server = Server::start();
    let mut client = server.client();
    let made = client
        .post(
            "/api/default/types",
            "{\"name\":\"users\",\"indexes\":[{\"fields\":[\"email\"],\"unique\":true}]}",
        )
        .expect(201)
        .json();
    assert_eq!(
        (&made["name"], &made["count"]),
        (&"users".into(), &0.into())
    );
    assert_eq!(made["indexes"][0]["name"], "email");
    assert_eq!(made["indexes"][0]["state"], "ready");
    client
        .post("/api/default/types", "{\"name\":\"users\"}")
        .refused(409, "ALREADY_EXISTS");
    for name in ["", "a b", "/", ".x", "é", &"x".repeat(129), "~jobs"] {
        let body = json!({"name": name}).to_string();
        client
            .post("/api/default/types", &body)
            .refused(400, "INVALID_NAME");
    }
    client
        .post("/api/default/types", "{}")
        .refused(400, "INVALID_PARAMETER");
    client
        .post("/api/default/types", "{\"name\":3}")
        .refused(400, "INVALID_PARAMETER");
    client
        .post("/api/default/types", "{\"name\":\"x\",\"scheme\":{}}")
        .refused(400, "UNKNOWN_PARAMETER");
    client
        .call("PUT", "/api/default/types/plain", &[], b"")
        .expect(200);
    let ensured = client
        .put(
            "/api/default/types/users",
            "{\"indexes\":[{\"fields\":[\"email\"],\"unique\":true},{\"fields\":[\"a\",\"b.c\"]}]}",
        )
        .expect(200)
        .json();
    let names: Vec<_> = ensured["indexes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|index| index["name"].clone())
        .collect();
    assert_eq!(names, ["a~b.c", "email"]);
    let types = client.get("/api/default/types").expect(200).json();
    let names: Vec<_> = types["types"]
        .as_array()
        .unwrap()
        .iter()
        .map(|info| info["name"].clone())
        .collect();
    assert_eq!(names, ["plain", "users"]);
    client
        .put(
            "/api/default/types/users/1",
            "{\"value\":{\"email\":\"a@b\"}}",
        )
        .expect(201);
    let error = client
        .put(
            "/api/default/types/users/2",
            "{\"value\":{\"email\":\"a@b\"}}",
        )
        .refused(409, "UNIQUE_CONSTRAINT");
    assert_eq!(error["details"], json!({"index": "email", "key": "1"}));
    client
        .put("/api/default/types/users/2", "{\"value\":{\"email\":null}}")
        .expect(201);
    client
        .put("/api/default/types/users/3", "{\"value\":{}}")
        .expect(201);
    client.delete("/api/default/types/users").expect(204);
    client
        .get("/api/default/types/users/1")
        .refused(404, "TYPE_NOT_REGISTERED");
    client
        .delete("/api/default/types/users")
        .refused(404, "TYPE_NOT_REGISTERED");
    client
        .call("PUT", "/api/default/types/users", &[], b"")
        .expect(200);
    client
        .get("/api/default/types/users/1")
        .refused(404, "NOT_FOUND");
}

#[test]
fn an_index_is_ready_when_a_small_type_asks_for_it() {
    let server = Server::with_type();
    let mut client = cities(&server);
    let made = client
        .post(I, "{\"fields\":[\"country\",\"name\"]}")
        .expect(201)
        .json();
    assert_eq!(
        made,
        json!({"name": "country~name", "fields": ["country", "name"], "unique": false, "kind": "value", "state": "ready", "progress": 1.0})
    );
    client
        .post(I, "{\"fields\":[\"country\",\"name\"]}")
        .refused(409, "ALREADY_EXISTS");
    let page = client
        .get(&format!("{I}/country~name?prefix=%5B%22FR%22%5D"))
        .expect(200)
        .json();
    assert_eq!(keys(&page), ["lyon", "paris"]);
    assert_eq!(page["items"][0]["indexKey"], json!(["FR", "Lyon"]));
    assert_eq!(page["items"][0]["value"]["people"], 520_000);
    let page = client
        .get(&format!(
            "{I}/country~name?start=[%22FR%22,%22M%22]&reverse&limit=1"
        ))
        .expect(200)
        .json();
    assert_eq!(keys(&page), ["rome"]);
    let cursor = page["cursor"].as_str().unwrap();
    let page = client
        .get(&format!(
            "{I}/country~name?start=[%22FR%22,%22M%22]&reverse&limit=1&cursor={cursor}"
        ))
        .expect(200)
        .json();
    assert_eq!(keys(&page), ["paris"]);
    client
        .get(&format!("{I}/country~name?reverse&limit=1&cursor={cursor}"))
        .refused(400, "INVALID_CURSOR");
    let count = client
        .get(&format!("{I}/country~name/count?prefix=[%22FR%22]"))
        .expect(200)
        .json();
    assert_eq!(count["count"], 2);
    let explained = client
        .post(
            "/api/default/types/t/query",
            "{\"filter\":{\"country\":\"FR\"},\"sort\":{\"name\":1},\"explain\":true}",
        )
        .expect(200)
        .json();
    assert_eq!(
        (&explained["plan"]["index"], &explained["plan"]["entries"]),
        (&"country~name".into(), &2.into())
    );
    let listed = client.get(I).expect(200).json();
    assert_eq!(listed["indexes"], json!([made]));
    client.delete(&format!("{I}/country~name")).expect(204);
    client
        .delete(&format!("{I}/country~name"))
        .refused(404, "INDEX_NOT_REGISTERED");
    client
        .get(&format!("{I}/country~name"))
        .refused(404, "INDEX_NOT_REGISTERED");
    client
        .get("/api/default/indexes/none")
        .refused(404, "TYPE_NOT_REGISTERED");
}

#[test]
fn bad_ranges_and_definitions_are_refused() {
    let server = Server::with_type();
    let mut client = cities(&server);
    client.post(I, "{\"fields\":[\"country\"]}").expect(201);
    for (bad, code) in [
        ("prefix=FR", "INVALID_JSON"),
        ("prefix=%22FR%22", "INVALID_PARAMETER"),
        ("start={}", "INVALID_PARAMETER"),
        ("end=[1", "INVALID_JSON"),
        ("start=[1,1,1,1,1,1]", "INVALID_PARAMETER"),
        ("box=1", "UNKNOWN_PARAMETER"),
    ] {
        client.get(&format!("{I}/country?{bad}")).refused(400, code);
    }
    client
        .get(&format!("{I}/country/count?limit=3"))
        .refused(400, "UNKNOWN_PARAMETER");
    for bad in [
        "{\"fields\":[]}",
        "{\"fields\":\"a\"}",
        "{\"fields\":[1]}",
        "{\"fields\":[\"a..b\"]}",
        "{\"fields\":[\"\"]}",
        "{\"fields\":[\"a\"],\"kind\":\"geo\"}",
        "{\"fields\":[\"a\",\"a\"]}",
    ] {
        client.post(I, bad).refused(400, "INVALID_INDEX");
    }
    client
        .post(I, "{\"fields\":[\"a\"],\"precision\":3}")
        .refused(400, "UNKNOWN_PARAMETER");
    client
        .post(I, "{\"fields\":[\"a\"],\"unique\":\"yes\"}")
        .refused(400, "INVALID_PARAMETER");
    client
        .post(I, "{\"unique\":true}")
        .refused(400, "INVALID_PARAMETER");
}

#[test]
fn a_unique_index_over_duplicates_fails_and_leaves_nothing() {
    let server = Server::with_type();
    let mut client = cities(&server);
    let error = client
        .post(I, "{\"fields\":[\"country\"],\"unique\":true}")
        .refused(409, "UNIQUE_CONSTRAINT");
    assert_eq!(error["details"]["index"], "country");
    let pair = error["details"]["duplicates"][0].as_array().unwrap();
    assert_eq!(pair.len(), 2);
    assert!(pair.contains(&"paris".into()) && pair.contains(&"lyon".into()));
    assert_eq!(client.get(I).expect(200).json()["indexes"], json!([]));
    client
        .post(I, "{\"fields\":[\"name\"],\"unique\":true}")
        .expect(201);
    let error = client
        .put(
            "/api/default/types/t",
            "{\"indexes\":[{\"fields\":[\"country\"],\"unique\":true}]}",
        )
        .refused(409, "UNIQUE_CONSTRAINT");
    assert!(
        !error["details"]["duplicates"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    let listed = client.get(I).expect(200).json();
    assert_eq!(listed["indexes"].as_array().unwrap().len(), 1);
}
