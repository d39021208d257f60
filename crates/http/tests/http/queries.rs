//! Lists, queries, counts and the change log.

use serde_json::{Value, json};

use crate::{client::Client, server::Server};

const T: &str = "/api/default/types/t";

fn filled(server: &Server, count: usize) -> Client {
    let mut client = server.client();
    let lines: String = (0..count)
        .map(|n| {
            format!(
                "{{\"key\":\"k{n:04}\",\"value\":{{\"n\":{n},\"odd\":{},\"tags\":[\"a{}\",\"b\"]}}}}\n",
                n % 2 == 1,
                n % 3
            )
        })
        .collect();
    let report = client
        .call("POST", "/api/default/import/t", &[], lines.as_bytes())
        .expect(200)
        .json();
    assert_eq!(report["imported"], count);
    client
}

fn keys(page: &Value) -> Vec<String> {
    page["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["key"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn lists_are_paged_in_key_order() {
    let server = Server::with_type();
    let mut client = filled(&server, 130);
    let first = client.get(T).expect(200).json();
    assert_eq!(keys(&first).len(), 50);
    assert_eq!(first["items"][0]["value"]["n"], 0);
    assert!(first["items"][0]["version"].is_u64());
    let mut seen = keys(&first);
    let mut cursor = first["cursor"].clone();
    while let Some(text) = cursor.as_str() {
        let page = client
            .get(&format!("{T}?cursor={}", encode(text)))
            .expect(200)
            .json();
        seen.extend(keys(&page));
        cursor = page["cursor"].clone();
    }
    assert_eq!(
        seen,
        (0..130).map(|n| format!("k{n:04}")).collect::<Vec<_>>()
    );
    let page = client
        .get(&format!("{T}?start=k0010&end=k0020&reverse&limit=5"))
        .expect(200)
        .json();
    assert_eq!(keys(&page), ["k0020", "k0019", "k0018", "k0017", "k0016"]);
    let page = client
        .get(&format!("{T}?prefix=k012&reverse=false"))
        .expect(200)
        .json();
    assert_eq!(keys(&page).len(), 10);
    assert_eq!(page["cursor"], Value::Null);
    assert_eq!(
        keys(&client.get(&format!("{T}?start=x")).expect(200).json()).len(),
        0
    );
}

fn encode(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[test]
fn a_cursor_outlives_its_anchor_and_serves_nothing_else() {
    let server = Server::with_type();
    let mut client = filled(&server, 20);
    let page = client.get(&format!("{T}?limit=5")).expect(200).json();
    let cursor = encode(page["cursor"].as_str().unwrap());
    client.delete(&format!("{T}/k0004")).expect(204);
    client.delete(&format!("{T}/k0005")).expect(204);
    let page = client
        .get(&format!("{T}?limit=5&cursor={cursor}"))
        .expect(200)
        .json();
    assert_eq!(keys(&page)[0], "k0006");
    client
        .get(&format!("{T}?limit=5&reverse&cursor={cursor}"))
        .refused(400, "INVALID_CURSOR");
    client
        .get(&format!("{T}?limit=5&prefix=k&cursor={cursor}"))
        .refused(400, "INVALID_CURSOR");
    for bad in ["", "x", "%00", "AAAA", &"A".repeat(3_000)] {
        client
            .get(&format!("{T}?limit=5&cursor={bad}"))
            .refused(400, "INVALID_CURSOR");
    }
    let body = json!({"cursor": page["cursor"]}).to_string();
    client
        .post(&format!("{T}/query"), &body)
        .refused(400, "INVALID_CURSOR");
}

#[test]
fn bad_pages_are_refused_with_what_is_wrong() {
    let server = Server::with_type();
    let mut client = server.client();
    for bad in [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=1.0",
        "limit=x",
        "limit=",
        "reverse=1",
        "limit=5&limit=5",
        "prefix=%FF",
    ] {
        client
            .get(&format!("{T}?{bad}"))
            .refused(400, "INVALID_PARAMETER");
    }
    let error = client
        .get(&format!("{T}?offset=3"))
        .refused(400, "UNKNOWN_PARAMETER");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("prefix, start, end, reverse, limit, cursor")
    );
    client
        .get(&format!("{T}/k?fields=a"))
        .refused(400, "UNKNOWN_PARAMETER");
    for bad in [
        "{\"limit\":0}",
        "{\"limit\":1001}",
        "{\"limit\":\"5\"}",
        "{\"limit\":1.5}",
        "{\"explain\":1}",
        "{\"index\":3}",
        "{\"cursor\":3}",
        "{\"sort\":{\"a\":2}}",
        "{\"sort\":[]x}",
        "{\"select\":\"a\"}",
        "{\"select\":[1]}",
    ] {
        let answer = client.post(&format!("{T}/query"), bad);
        let code = if bad.contains("[]x") {
            "INVALID_JSON"
        } else {
            "INVALID_PARAMETER"
        };
        answer.refused(400, code);
    }
    client
        .post(&format!("{T}/query"), "{\"skip\":3}")
        .refused(400, "UNKNOWN_PARAMETER");
    client
        .post(&format!("{T}/count"), "{\"limit\":3}")
        .refused(400, "UNKNOWN_PARAMETER");
}

#[test]
fn queries_filter_sort_select_and_explain() {
    let server = Server::with_type();
    let mut client = filled(&server, 60);
    let mut query = |body: Value| {
        client
            .post(&format!("{T}/query"), &body.to_string())
            .expect(200)
            .json()
    };
    let page = query(
        json!({"filter": {"odd": true, "n": {"$gte": 50}}, "sort": {"n": -1}, "select": ["n"], "limit": 3, "explain": true}),
    );
    assert_eq!(keys(&page), ["k0059", "k0057", "k0055"]);
    assert_eq!(page["items"][0]["value"], json!({"n": 59}));
    assert_eq!(
        (&page["plan"]["index"], &page["plan"]["sorted"]),
        (&Value::Null, &true.into())
    );
    let next = query(
        json!({"filter": {"odd": true, "n": {"$gte": 50}}, "sort": {"n": -1}, "select": ["n"], "limit": 3, "explain": true, "cursor": page["cursor"]}),
    );
    assert_eq!(keys(&next), ["k0053", "k0051"]);
    assert_eq!(
        keys(&query(
            json!({"sort": [["odd", -1], ["n", 1]], "limit": 2, "cursor": null})
        )),
        ["k0001", "k0003"]
    );
    assert_eq!(
        keys(&query(json!({"filter": {"tags": "a2"}, "limit": 1000}))).len(),
        20
    );
    assert_eq!(query(json!({})).get("plan"), None);
    let error = client
        .post(
            &format!("{T}/query"),
            "{\"filter\":{\"a.b\":{\"$near\":1}}}",
        )
        .refused(400, "INVALID_FILTER");
    assert!(
        error["message"].as_str().unwrap().contains("$near"),
        "{error}"
    );
    client
        .post(&format!("{T}/query"), "{\"filter\":[]}")
        .refused(400, "INVALID_FILTER");
    client
        .post(
            &format!("{T}/count"),
            "{\"filter\":{\"a\":{\"$regex\":\"(?=x)\"}}}",
        )
        .refused(400, "INVALID_FILTER");
    client
        .post(&format!("{T}/query"), "{\"index\":\"none\"}")
        .refused(404, "INDEX_NOT_REGISTERED");
    let count = |answer: crate::client::Answer| answer.expect(200).json()["count"].as_u64();
    assert_eq!(
        count(client.post(&format!("{T}/count"), "{\"filter\":{\"odd\":true}}")),
        Some(30)
    );
    assert_eq!(count(client.post(&format!("{T}/count"), "{}")), Some(60));
    assert_eq!(
        count(client.call("POST", &format!("{T}/count"), &[], b"")),
        Some(60)
    );
}

#[test]
fn the_change_log_tells_what_differs() {
    let server = Server::with_type();
    let mut client = server.client();
    let first = client.store("a", "1");
    let second = client.store("b", "1");
    let last = client.store("a", "2");
    let all = client
        .get("/api/default/changelog?type=t")
        .expect(200)
        .json();
    let told: Vec<_> = all["changes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|change| change["action"] == "put")
        .map(|change| {
            (
                change["key"].as_str().unwrap(),
                change["clock"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(told, [("b", second), ("a", last)], "each record once");
    assert!(all["clock"].as_u64().unwrap() >= last);
    let since = client
        .get(&format!("/api/default/changelog?after={second}"))
        .expect(200)
        .json();
    assert_eq!(since["changes"].as_array().unwrap().len(), 1);
    let between = client
        .get(&format!(
            "/api/default/changelog?after={first}&before={second}&limit=1"
        ))
        .expect(200)
        .json();
    assert_eq!(between["changes"][0]["clock"], second);
    for bad in [
        "after=-1",
        "after=x",
        "before=1.5",
        "limit=0",
        "after=1e3",
        "after=18446744073709551616",
    ] {
        client
            .get(&format!("/api/default/changelog?{bad}"))
            .refused(400, "INVALID_PARAMETER");
    }
    client
        .get("/api/default/changelog?since=3")
        .refused(400, "UNKNOWN_PARAMETER");
}
