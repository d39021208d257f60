//! What one worker has acknowledged, every worker knows at once: types, indexes,
//! rules, records, and their disappearance. Stores with a schema cache per
//! process answered the next call as if nothing had been created.

use okdb_tests::http::Client;
use okdb_tests::server::{Launch, Place};
use okdb_tests::torture::rounds;

const UNKNOWN_TYPE: (u16, &str) = (404, "TYPE_NOT_REGISTERED");

/// Runs `look` on each worker by kept connections, then on fresh ones.
fn everywhere(clients: &mut [Client], fresh: &mut Client, look: impl Fn(&mut Client)) {
    for client in clients {
        look(client);
    }
    for _ in 0..2 {
        look(fresh);
    }
}

#[test]
fn types_indexes_and_records_are_known_to_every_worker_at_once() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut clients = server.client_per_worker(2);
    let mut fresh = server.fresh();
    for round in 0..rounds(20, 300) {
        let kind = format!("kind-{round}");
        let types = format!("/api/default/types/{kind}");
        let maker = round % 2;

        clients[maker]
            .post("/api/default/types", &format!(r#"{{"name":"{kind}"}}"#))
            .expect(201);
        everywhere(&mut clients, &mut fresh, |client| {
            client.get(&types).expect(200);
            client
                .get(&format!("{types}/none"))
                .expect_error(404, "NOT_FOUND");
            client
                .post("/api/default/types", &format!(r#"{{"name":"{kind}"}}"#))
                .expect_error(409, "ALREADY_EXISTS");
        });

        let version = clients[maker]
            .put(&format!("{types}/a"), r#"{"value":{"n":1}}"#)
            .expect(201)
            .json()["version"]
            .clone();
        everywhere(&mut clients, &mut fresh, |client| {
            let seen = client.get(&format!("{types}/a")).expect(200).json();
            assert_eq!(seen["version"], version);
        });

        let index = clients[maker]
            .post(
                &format!("/api/default/indexes/{kind}"),
                r#"{"fields":["n"]}"#,
            )
            .expect(201)
            .json();
        assert_eq!(index["state"], "ready", "an index over one record: {index}");
        everywhere(&mut clients, &mut fresh, |client| {
            let found = client
                .post(
                    &format!("{types}/query"),
                    r#"{"filter":{"n":1},"index":"n","explain":true}"#,
                )
                .expect(200)
                .json();
            assert_eq!(found["items"][0]["key"], "a", "{found}");
            assert_eq!(found["plan"]["index"], "n", "{found}");
        });

        clients[maker]
            .delete(&format!("/api/default/indexes/{kind}/n"))
            .expect(204);
        everywhere(&mut clients, &mut fresh, |client| {
            client
                .get(&format!("/api/default/indexes/{kind}/n"))
                .expect_error(404, "INDEX_NOT_REGISTERED");
            client
                .post(
                    &format!("{types}/query"),
                    r#"{"filter":{"n":1},"index":"n"}"#,
                )
                .expect_error(404, "INDEX_NOT_REGISTERED");
        });

        clients[maker].delete(&types).expect(204);
        everywhere(&mut clients, &mut fresh, |client| {
            client
                .get(&format!("{types}/a"))
                .expect_error(UNKNOWN_TYPE.0, UNKNOWN_TYPE.1);
            client
                .put(&format!("{types}/b"), r#"{"value":1}"#)
                .expect_error(UNKNOWN_TYPE.0, UNKNOWN_TYPE.1);
        });

        // The same name again is another type: nothing of the old one shows.
        clients[1 - maker].put(&types, "{}").expect(200);
        everywhere(&mut clients, &mut fresh, |client| {
            client
                .get(&format!("{types}/a"))
                .expect_error(404, "NOT_FOUND");
            let listed = client.get(&types).expect(200).json();
            assert_eq!(listed["items"], serde_json::json!([]));
        });
        let again = clients[maker]
            .put(&format!("{types}/a"), r#"{"value":2}"#)
            .expect(201)
            .json();
        assert!(
            again["version"].as_u64() > version.as_u64(),
            "a version came back"
        );
        clients[maker].delete(&types).expect(204);
    }
}

#[test]
fn a_new_unique_rule_is_enforced_by_every_worker_at_once() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut clients = server.client_per_worker(2);
    let mut fresh = server.fresh();
    for round in 0..rounds(20, 300) {
        let kind = format!("kind-{round}");
        let types = format!("/api/default/types/{kind}");
        clients[0].put(&types, "{}").expect(200);
        clients[1]
            .put(&format!("{types}/first"), r#"{"value":{"mail":"a@b"}}"#)
            .expect(201);
        let index = clients[round % 2]
            .post(
                &format!("/api/default/indexes/{kind}"),
                r#"{"fields":["mail"],"unique":true}"#,
            )
            .expect(201)
            .json();
        assert_eq!(index["state"], "ready", "{index}");
        everywhere(&mut clients, &mut fresh, |client| {
            client
                .put(&format!("{types}/second"), r#"{"value":{"mail":"a@b"}}"#)
                .expect_error(409, "UNIQUE_CONSTRAINT");
        });
        clients[round % 2]
            .delete(&format!("/api/default/indexes/{kind}/mail"))
            .expect(204);
        everywhere(&mut clients, &mut fresh, |client| {
            let answer = client.put(&format!("{types}/second"), r#"{"value":{"mail":"a@b"}}"#);
            assert!(answer.status < 300, "{answer:?}");
        });
    }
}

#[test]
fn a_unique_index_over_duplicates_fails_and_reports_them() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    for key in ["a", "b"] {
        client
            .put(
                &format!("/api/default/types/t/{key}"),
                r#"{"value":{"u":7}}"#,
            )
            .expect(201);
    }
    let refused = client
        .post(
            "/api/default/indexes/t",
            r#"{"fields":["u"],"unique":true}"#,
        )
        .expect_error(409, "UNIQUE_CONSTRAINT");
    let text = refused.text();
    assert!(text.contains(r#""a""#) && text.contains(r#""b""#), "{text}");
    let listed = client.get("/api/default/indexes/t").expect(200).json();
    assert_eq!(
        listed["indexes"],
        serde_json::json!([]),
        "a failed index stays"
    );
}

#[test]
fn a_record_read_after_its_acknowledgement_is_never_older() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut clients = server.client_per_worker(2);
    clients[0].put("/api/default/types/t", "{}").expect(200);
    for number in 0..rounds(400, 20_000) {
        let body = format!(r#"{{"value":{number}}}"#);
        let written = clients[number % 2].put("/api/default/types/t/k", &body);
        assert!(written.status < 300, "{written:?}");
        let version = written.json()["version"].clone();
        let seen = clients[1 - number % 2]
            .get("/api/default/types/t/k")
            .expect(200)
            .json();
        assert_eq!(seen["version"], version);
        assert_eq!(seen["value"], number);
    }
}
