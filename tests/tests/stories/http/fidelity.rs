//! Numbers, keys and text come back as they went in, on every path: stores have
//! rounded large integers, normalised names and re-spelled what they kept.

use serde_json::Value;

use okdb_tests::command::okdb;
use okdb_tests::http::{Client, Response, segment};
use okdb_tests::server::{Launch, Place};

/// Values, each compact JSON, that careless handling alters.
const VALUES: [&str; 34] = [
    "9007199254740993",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775809",
    "123456789012345678901234567890",
    "117.63331139400017",
    "-8.990567403888024e-203",
    "9007199254740991.0",
    "0.1234567890123456789",
    "1e400",
    "1E-400",
    "1.0",
    "1",
    "-0",
    "-0.0",
    "1e0",
    "10E-1",
    "12345678901234567890.10",
    r#""""#,
    r#""plain""#,
    r#""Zürich""#,
    "\"Zu\u{308}rich\"",
    r#""\u0041\u00e9\u2028""#,
    "\"\u{2028}\u{2029}\u{7f}\u{feff}\"",
    r#""\ud83c\udfd9 🏙️ 𝔊""#,
    r#""\u0000\u001f\/\b\f\n\r\t\"\\""#,
    r#""a\nb\r\nc""#,
    "null",
    "true",
    "false",
    "[]",
    "{}",
    r#"[1,[2,[3,[]]],{"a":null}]"#,
    r#"{"b":1,"a":2,"":3,"é":4,"\u00e9x":5,"__proto__":6,"$set":7,"a.b":8}"#,
];

/// Keys that are easy to confuse, to split, to normalise or to mistake for a route.
const KEYS: [&str; 24] = [
    "plain",
    "query",
    "count",
    "a/b",
    "/",
    "//",
    ".",
    "..",
    "../../etc/passwd",
    "a b",
    " leading",
    "trailing ",
    "100%",
    "a%2Fb",
    "a?b#c&d=e",
    "+",
    "Zürich",
    "Zu\u{308}rich",
    "𝔊🏙️",
    "quote\"back\\slash'",
    "\u{2028}\u{a0}\u{200b}",
    "~tilde",
    "{\"json\":1}",
    "<script>",
];

fn escaped(text: &str) -> String {
    serde_json::to_string(text).expect("a string is JSON")
}

#[track_caller]
fn holds(answer: &Response, wanted: &str) {
    let text = answer.text();
    assert!(text.contains(wanted), "{wanted} is not in {text}");
}

/// A document that was taken apart and put together again has the same text,
/// though an escape may be spelled otherwise; no digit of a number changes.
#[track_caller]
fn keeps(answer: &Response, member: &str, value: &str) {
    if value.contains('\\') {
        let wanted: Value = serde_json::from_str(value).expect("JSON");
        let document = answer.json();
        assert!(find(&document, member) == Some(&wanted), "{document}");
    } else {
        holds(answer, &format!(r#""{member}":{value}"#));
    }
}

/// The first member of that name, however deep.
fn find<'a>(within: &'a Value, member: &str) -> Option<&'a Value> {
    match within {
        Value::Object(members) => members
            .get(member)
            .or_else(|| members.values().find_map(|value| find(value, member))),
        Value::Array(items) => items.iter().find_map(|item| find(item, member)),
        _ => None,
    }
}

/// Reads the record by every route that shows values, on this connection.
fn read_everywhere(client: &mut Client, kind: &str, key: &str, value: &str) {
    let whole = format!(r#""value":{value}"#);
    let path = format!("/api/default/types/{kind}/{}", segment(key));
    let one = client.get(&path).expect(200);
    holds(&one, &whole);
    holds(&one, &format!(r#""key":{}"#, escaped(key)));
    holds(
        &client
            .get(&format!("/api/default/types/{kind}?limit=1000"))
            .expect(200),
        &whole,
    );
    let query = client.post(
        &format!("/api/default/types/{kind}/query"),
        r#"{"limit":1000}"#,
    );
    holds(&query.expect(200), &whole);
    holds(
        &client
            .get(&format!("/api/default/export/{kind}"))
            .expect(200),
        &whole,
    );
    holds(
        &client
            .get(&format!("/api/default/export/{kind}?consistent=true"))
            .expect(200),
        &whole,
    );
}

#[test]
fn values_come_back_as_they_went_in() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut clients = server.client_per_worker(2);
    for (number, value) in VALUES.iter().enumerate() {
        let kind = format!("value-{number}");
        let types = format!("/api/default/types/{kind}");
        clients[0].put(&types, "{}").expect(200);
        let wrapped = format!(r#"{{"v":{value},"other":1}}"#);
        // By each route that writes, each under a key of its own.
        clients[0]
            .put(
                &format!("{types}/put"),
                &format!(r#"{{ "value" : {value} }}"#),
            )
            .expect(201);
        clients[0]
            .post(&types, &format!(r#"{{"key":"post","value":{value}}}"#))
            .expect(201);
        clients[1]
            .post(
                "/api/default/transaction",
                &format!(r#"[{{"action":"put","type":"{kind}","key":"txn","value":{value}}}]"#),
            )
            .expect(200);
        clients[1]
            .import(
                &format!("/api/default/import/{kind}"),
                &format!("{{\"key\":\"import\",\"value\":{value}}}\r\n"),
            )
            .expect(200);
        for key in ["put", "post", "txn", "import"] {
            read_everywhere(&mut clients[number % 2], &kind, key, value);
        }
        // A change of another member leaves it alone, by every kind of patch.
        let path = format!("{types}/patched");
        clients[0]
            .put(&path, &format!(r#"{{"value":{wrapped}}}"#))
            .expect(201);
        clients[1]
            .patch(&path, r#"{"patch":{"set":{"other":2},"inc":{"count":1}}}"#)
            .expect(200);
        keeps(&clients[0].get(&path).expect(200), "v", value);
        for (kind, body) in [
            ("application/merge-patch+json", r#"{"other":3}"#),
            (
                "application/json-patch+json",
                r#"[{"op":"replace","path":"/other","value":4}]"#,
            ),
        ] {
            clients[0]
                .call(
                    "PATCH",
                    &path,
                    &[("content-type", kind)],
                    Some(body.as_bytes()),
                )
                .expect("an answer")
                .expect(200);
            keeps(&clients[1].get(&path).expect(200), "v", value);
        }
        // Through an index, and by selection.
        let indexed = clients[0].post(
            &format!("/api/default/indexes/{kind}"),
            r#"{"fields":["v"]}"#,
        );
        assert_eq!(indexed.expect(201).json()["state"], "ready");
        let listed = clients[1]
            .get(&format!("/api/default/indexes/{kind}/v"))
            .expect(200);
        keeps(&listed, "v", value);
        let selected = clients[1].post(
            &format!("{types}/query"),
            r#"{"filter":{"other":4},"select":["v"]}"#,
        );
        keeps(&selected.expect(200), "v", value);
    }
}

#[test]
fn keys_come_back_as_they_went_in() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut clients = server.client_per_worker(2);
    let longest = "ж".repeat(200);
    let mut keys = KEYS.to_vec();
    keys.push(&longest);
    for kind in ["put", "post", "txn", "import"] {
        clients[0]
            .put(&format!("/api/default/types/{kind}"), "{}")
            .expect(200);
    }
    for (number, key) in keys.iter().enumerate() {
        let text = escaped(key);
        clients[0]
            .put(
                &format!("/api/default/types/put/{}", segment(key)),
                &format!(r#"{{"value":{number}}}"#),
            )
            .expect(201);
        let posted = clients[1]
            .post(
                "/api/default/types/post",
                &format!(r#"{{"key":{text},"value":{number}}}"#),
            )
            .expect(201);
        assert_eq!(posted.json()["key"], *key);
        let location = posted.header("location").expect("a Location").to_owned();
        assert_eq!(clients[0].get(&location).expect(200).json()["key"], *key);
        clients[0]
            .post(
                "/api/default/transaction",
                &format!(r#"[{{"action":"put","type":"txn","key":{text},"value":{number}}}]"#),
            )
            .expect(200);
        clients[1]
            .import(
                "/api/default/import/import",
                &format!("{{\"key\":{text},\"value\":{number}}}\n"),
            )
            .expect(200);
        for kind in ["put", "post", "txn", "import"] {
            let path = format!("/api/default/types/{kind}/{}", segment(key));
            for client in &mut clients {
                let seen = client.get(&path).expect(200).json();
                assert_eq!(seen["key"], *key);
                assert_eq!(seen["value"], number);
            }
        }
    }
    // No two of them are one, and each is in the lists, the export and the log.
    for kind in ["put", "post", "txn", "import"] {
        let client = &mut clients[0];
        let found = okdb_tests::oracle::records(client, kind);
        let mut wanted: Vec<String> = keys.iter().map(ToString::to_string).collect();
        wanted.sort();
        assert_eq!(found.keys().cloned().collect::<Vec<_>>(), wanted);
        let exported = client
            .get(&format!("/api/default/export/{kind}"))
            .expect(200)
            .text();
        assert_eq!(exported.lines().count(), keys.len(), "a key broke a line");
        let (changes, _) = okdb_tests::oracle::changes(client, 0);
        let mut logged: Vec<String> = changes
            .into_iter()
            .filter(|change| change.kind == kind && change.action == "put")
            .map(|change| change.key)
            .collect();
        logged.sort();
        assert_eq!(logged, wanted);
    }
    for (path, code) in [
        ("a%ZZ", "INVALID_KEY"),
        ("%FF", "INVALID_KEY"),
        ("%C3%28", "INVALID_KEY"),
        ("%00", "INVALID_KEY"),
        ("%1F", "INVALID_KEY"),
        (&"x".repeat(401), "INVALID_KEY"),
        ("", "INVALID_KEY"),
    ] {
        let answer = clients[0].put(&format!("/api/default/types/put/{path}"), r#"{"value":1}"#);
        let known = answer.code();
        assert!(
            answer.status == 400 && known.as_deref() == Some(code)
                || path.is_empty() && (answer.status == 404 || answer.status == 405),
            "{path:?}: {answer:?}"
        );
    }
}

#[test]
fn export_and_import_by_command_alter_nothing() {
    let place = Place::new();
    let mut server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/from", "{}").expect(200);
    client.put("/api/default/types/to", "{}").expect(200);
    for (number, value) in VALUES.iter().enumerate() {
        let key = format!("{number:02}{}", KEYS[number % KEYS.len()]);
        client
            .put(
                &format!("/api/default/types/from/{}", segment(&key)),
                &format!(r#"{{"value":{value}}}"#),
            )
            .expect(201);
    }
    let url = format!("http://{}", server.tcp());
    let root = place.root();
    let root = root.to_str().expect("UTF-8");
    let by_url = okdb(["export", "from", "--url", &url]).expect(0);
    // Beside the running cluster, straight from the files.
    let by_root = okdb(["export", "from", "--root", root]).expect(0);
    assert_eq!(by_url.stdout, by_root.stdout);
    assert_eq!(by_url.stdout.lines().count(), VALUES.len());
    for value in VALUES {
        let wanted = format!(r#""value":{value}"#);
        assert!(by_url.stdout.contains(&wanted), "{wanted} is lost");
    }

    let file = place.path("export.ndjson");
    std::fs::write(&file, &by_url.stdout).expect("writable");
    let file = file.to_str().expect("UTF-8");
    let _ = okdb(["import", "to", file, "--url", &url]).expect(0);
    let back = okdb(["export", "to", "--url", &url]).expect(0);
    assert_eq!(back.stdout, by_url.stdout);
    server.stop();

    // And with no server at all.
    let _ = okdb(["import", "to", file, "--root", root]).expect(0);
    let back = okdb(["export", "to", "--root", root]).expect(0);
    assert_eq!(back.stdout, by_url.stdout);
    okdb_tests::oracle::verify(&place.root());
}

#[test]
fn equal_numbers_are_equal_and_neighbours_are_not() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client
        .put(
            "/api/default/types/t",
            r#"{"indexes":[{"fields":["n"],"unique":true}]}"#,
        )
        .expect(200);
    let values = [
        ("low", "9007199254740992"),
        ("high", "9007199254740993"),
        ("one", "1"),
        ("tiny", "1e-400"),
        ("huge", "1e400"),
        ("below", "-9223372036854775809"),
    ];
    for (key, n) in values {
        client
            .put(
                &format!("/api/default/types/t/{key}"),
                &format!(r#"{{"value":{{"n":{n}}}}}"#),
            )
            .expect(201);
    }
    for same in [
        "1.0",
        "1e0",
        "10E-1",
        "0.1e1",
        "1.000000000000000000000000000",
    ] {
        client
            .put(
                "/api/default/types/t/other",
                &format!(r#"{{"value":{{"n":{same}}}}}"#),
            )
            .expect_error(409, "UNIQUE_CONSTRAINT");
        for index in ["", r#","index":"n""#] {
            let found = client.post(
                "/api/default/types/t/query",
                &format!(r#"{{"filter":{{"n":{same}}}{index}}}"#),
            );
            let found = found.expect(200).json();
            assert_eq!(found["items"].as_array().map(Vec::len), Some(1), "{found}");
            assert_eq!(found["items"][0]["key"], "one");
        }
    }
    // The values stay out of the answers: this client's own numbers are 64 bits.
    for (key, n) in values {
        let found = client.post(
            "/api/default/types/t/query",
            &format!(r#"{{"filter":{{"n":{n}}},"select":["none"]}}"#),
        );
        let found = found.expect(200).json();
        assert_eq!(
            found["items"].as_array().map(Vec::len),
            Some(1),
            "{n}: {found}"
        );
        assert_eq!(found["items"][0]["key"], key);
    }
    let sorted = client
        .post(
            "/api/default/types/t/query",
            r#"{"sort":{"n":1},"select":["none"]}"#,
        )
        .expect(200)
        .json();
    let order: Vec<&str> = sorted["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| item["key"].as_str().expect("a key"))
        .collect();
    assert_eq!(order, ["below", "tiny", "one", "low", "high", "huge"]);
}
