//! One record at a time: what goes in comes out, and what cannot go in is refused.

use crate::server::{Server, Setup};

const T: &str = "/api/default/types/t";

#[test]
fn a_record_is_written_read_and_deleted() {
    let server = Server::with_type();
    let mut client = server.client();
    let path = format!("{T}/k");
    client.get(&path).refused(404, "NOT_FOUND");
    let created = client
        .put(&path, " { \"value\" : { \"a\" : [ 1 , 2 ] } } ")
        .expect(201)
        .json();
    assert_eq!(created["key"], "k");
    let version = created["version"].as_u64().unwrap();
    let read = client.get(&path).expect(200);
    assert_eq!(
        read.text(),
        format!("{{\"key\":\"k\",\"value\":{{\"a\":[1,2]}},\"version\":{version}}}")
    );
    assert_eq!(read.header("etag"), Some(format!("\"{version}\"").as_str()));
    assert_eq!(read.header("content-type"), Some("application/json"));
    let replaced = client.put(&path, "{\"value\":null}").expect(200);
    let next = replaced.json()["version"].as_u64().unwrap();
    assert!(next > version);
    assert_eq!(
        replaced.header("etag"),
        Some(format!("\"{next}\"").as_str())
    );
    let head = client.call("HEAD", &path, &[], b"").expect(200);
    assert_eq!(
        head.header("content-length"),
        Some(client.get(&path).body.len().to_string().as_str())
    );
    client.delete(&path).expect(204);
    client.delete(&path).refused(404, "NOT_FOUND");
    client.get(&path).refused(404, "NOT_FOUND");
    let again = client.store("k", "1");
    assert!(
        again > next + 1,
        "a version is not used twice, not after a removal either"
    );
}

#[test]
fn create_makes_keys_and_respects_those_given() {
    let server = Server::with_type();
    let mut client = server.client();
    let made = client.post(T, "{\"value\":{\"n\":1}}").expect(201);
    let key = made.json()["key"].as_str().unwrap().to_owned();
    assert_eq!(key.len(), 26);
    assert_eq!(made.header("location"), Some(format!("{T}/{key}").as_str()));
    client.get(&format!("{T}/{key}")).expect(200);
    let named = client
        .post(T, "{\"value\":1,\"key\":\"a/b c\"}")
        .expect(201);
    let location = named.header("location").unwrap().to_owned();
    assert_eq!(location, format!("{T}/a%2Fb%20c"));
    assert_eq!(client.get(&location).expect(200).json()["key"], "a/b c");
    client
        .post(T, "{\"value\":2,\"key\":\"a/b c\"}")
        .refused(409, "ALREADY_EXISTS");
    client
        .post(T, "{\"value\":2,\"key\":7}")
        .refused(400, "INVALID_PARAMETER");
    client
        .post(T, "{\"value\":2,\"key\":\"\"}")
        .refused(400, "INVALID_KEY");
    client
        .post(T, "{\"key\":\"x\"}")
        .refused(400, "INVALID_PARAMETER");
    let unknown = client
        .post(T, "{\"value\":2,\"tll\":1000}")
        .refused(400, "UNKNOWN_PARAMETER");
    assert_eq!(unknown["details"]["parameter"], "tll");
    assert!(unknown["message"].as_str().unwrap().contains("value, key"));
}

#[test]
fn numbers_come_back_as_they_went_in_on_every_path() {
    let numbers = [
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
        "-0.0e+00",
    ];
    let server = Server::with_type();
    let mut client = server.client();
    for (place, number) in numbers.iter().enumerate() {
        let value = format!("{{\"n\":{number},\"other\":0}}");
        let path = format!("{T}/put{place}");
        client
            .put(&path, &format!("{{\"value\":{value}}}"))
            .expect(201);
        assert!(
            client
                .get(&path)
                .text()
                .contains(&format!("\"value\":{value},")),
            "{number}"
        );
        client
            .patch(&path, "{\"patch\":{\"set\":{\"other\":1}}}")
            .expect(200);
        assert!(
            client
                .get(&path)
                .text()
                .contains(&format!("\"n\":{number},\"other\":1")),
            "{number}"
        );
        client
            .post(T, &format!("{{\"key\":\"post{place}\",\"value\":{value}}}"))
            .expect(201);
        let operation = format!(
            "[{{\"action\":\"put\",\"type\":\"t\",\"key\":\"txn{place}\",\"value\":{value}}}]"
        );
        client
            .post("/api/default/transaction", &operation)
            .expect(200);
        let line = format!("{{\"key\":\"import{place}\",\"value\":{value}}}");
        client
            .call("POST", "/api/default/import/t", &[], line.as_bytes())
            .expect(200);
        for way in ["post", "txn", "import"] {
            let read = client.get(&format!("{T}/{way}{place}"));
            assert!(
                read.text().contains(&format!("\"value\":{value},")),
                "{way} {number}"
            );
        }
        let listed = client.get(&format!("{T}?prefix=import{place}")).expect(200);
        assert!(listed.text().contains(&value), "{number}");
        let found = client.post(
            &format!("{T}/query"),
            &format!("{{\"filter\":{{\"n\":{number}}},\"limit\":1000}}"),
        );
        assert!(found.expect(200).text().contains(&value), "{number}");
    }
    let export = client.get("/api/default/export/t").expect(200);
    for number in numbers {
        assert!(
            export
                .text()
                .contains(&format!("\"n\":{number},\"other\":0}}")),
            "{number}"
        );
    }
    let counted = |client: &mut crate::client::Client, n: &str| {
        let answer = client.post(
            &format!("{T}/count"),
            &format!("{{\"filter\":{{\"n\":{n}}}}}"),
        );
        answer.expect(200).json()["count"].as_u64().unwrap()
    };
    assert_eq!(counted(&mut client, "9007199254740993"), 4);
    assert_eq!(counted(&mut client, "9007199254740992"), 0);
    assert_eq!(counted(&mut client, "10e-1"), 8, "1 and 1.0 are equal");
    assert_eq!(counted(&mut client, "0"), 8, "-0 is 0");
    client
        .put(&format!("{T}/far"), "{\"value\":1e10000000000000000}")
        .refused(400, "INVALID_NUMBER");
}

#[test]
fn keys_of_all_sorts_are_told_apart() {
    let server = Server::with_type();
    let mut client = server.client();
    let keys = [
        ("query", "query"),
        ("count", "count"),
        ("..", ".."),
        (".", "."),
        ("%2e%2E", ".."),
        ("a%2Fb", "a/b"),
        ("a+b", "a+b"),
        ("%20", " "),
        ("%22%5C", "\"\\"),
        ("%C3%A9", "é"),
        ("e%CC%81", "e\u{301}"),
        ("%F0%9F%A6%80", "🦀"),
        ("%7F", "\u{7f}"),
        ("key;v=1", "key;v=1"),
        ("%25", "%"),
        ("a%3Fb%23c", "a?b#c"),
    ];
    for (place, (segment, key)) in keys.iter().enumerate() {
        client.put(&format!("{T}/{segment}"), &format!("{{\"value\":{place}}}"));
        let read = client.get(&format!("{T}/{segment}")).expect(200).json();
        assert_eq!(
            (&read["key"], &read["value"]),
            (&(*key).into(), &place.into()),
            "{segment}"
        );
    }
    let (_, different) = client.get(T).expect(200).json()["items"]
        .as_array()
        .unwrap()
        .iter()
        .fold((String::new(), 0), |(last, count), item| {
            let key = item["key"].as_str().unwrap().to_owned();
            assert!(key > last);
            (key, count + 1)
        });
    assert_eq!(different, 15);
    client
        .put(&format!("{T}/{}", "k".repeat(400)), "{\"value\":1}")
        .expect(201);
    for bad in [
        "", "%", "%2", "%zz", "%FF", "%C3%28", "%00", "%0A", "%1f", "a%09b",
    ] {
        for method in ["GET", "PUT", "DELETE"] {
            let body: &[u8] = if method == "PUT" {
                b"{\"value\":1}"
            } else {
                b""
            };
            client
                .call(method, &format!("{T}/{bad}"), &[], body)
                .refused(400, "INVALID_KEY");
        }
    }
    client
        .get(&format!("{T}/{}", "k".repeat(401)))
        .refused(400, "INVALID_KEY");
    client
        .get(&format!("{T}/{}", "%C3%A9".repeat(201)))
        .refused(400, "INVALID_KEY");
}

#[test]
fn names_that_do_not_exist_are_named() {
    let server = Server::with_type();
    let mut client = server.client();
    let missing = client
        .get("/api/default/types/ghost/k")
        .refused(404, "TYPE_NOT_REGISTERED");
    let message = missing["message"].as_str().unwrap();
    assert!(
        message.ends_with("; register it with POST /api/default/types {\"name\":\"ghost\"}"),
        "{message}"
    );
    client
        .put("/api/default/types/ghost/k", "{\"value\":1}")
        .refused(404, "TYPE_NOT_REGISTERED");
    client
        .get("/api/nowhere/types/t/k")
        .refused(404, "ENV_NOT_FOUND");
    client
        .put("/api/default/types/~jobs/k", "{\"value\":1}")
        .refused(400, "INVALID_NAME");
    client
        .put("/api/default/types/a%20b/k", "{\"value\":1}")
        .refused(400, "INVALID_NAME");
    client
        .get("/api/default/record/t/k")
        .refused(404, "ROUTE_NOT_FOUND");
}

#[test]
fn with_auto_types_a_write_makes_the_type() {
    let server = Server::with(Setup {
        auto_types: true,
        ..Setup::default()
    });
    let mut client = server.client();
    client
        .get("/api/default/types/new/k")
        .refused(404, "TYPE_NOT_REGISTERED");
    client
        .put("/api/default/types/new/k", "{\"value\":1}")
        .expect(201);
    client.get("/api/default/types/new/k").expect(200);
    client
        .call(
            "POST",
            "/api/default/import/fresh",
            &[],
            b"{\"key\":\"k\",\"value\":1}",
        )
        .expect(200);
    client.get("/api/default/types/fresh/k").expect(200);
    client
        .put("/api/default/types/~new/k", "{\"value\":1}")
        .refused(400, "INVALID_NAME");
}

#[test]
fn json_that_is_not_i_json_is_refused_with_its_place() {
    let server = Server::with_type();
    let mut client = server.client();
    let path = format!("{T}/k");
    let bad: [&[u8]; 18] = [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{\"value\":}",
        b"{\"value\":01}",
        b"{\"value\":1.}",
        b"{\"value\":NaN}",
        b"{\"value\":1}}",
        b"{\"value\":1,}",
        b"{value:1}",
        b"{\"value\":\"\xff\"}",
        b"{\"value\":\"\\ud800\"}",
        b"{\"value\":\"\t\"}",
        b"{\"value\":{\"a\":1,\"a\":2}}",
        b"{\"value\":{\"a\":1,\"\\u0061\":2}}",
        b"{\"value\":1,\"value\":2}",
        b"\xef\xbb\xbf{\"value\":1}",
    ];
    for body in bad {
        let error = client
            .call("PUT", &path, &[], body)
            .refused(400, "INVALID_JSON");
        assert!(error["details"]["offset"].is_u64());
    }
    let nested = |depth: usize| format!("{{\"value\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    client.put(&path, &nested(128)).expect(201);
    for depth in [129, 1_000, 100_000] {
        client
            .put(&path, &nested(depth))
            .refused(400, "INVALID_JSON");
    }
    client.get(&path).expect(200);
}

#[test]
fn values_over_their_limit_are_too_large() {
    let mut setup = Setup {
        value_bytes: 1_000,
        ..Setup::default()
    };
    setup.limits.body_bytes = 5_000;
    let server = Server::with(setup);
    let mut client = server.client();
    client
        .post("/api/default/types", "{\"name\":\"t\"}")
        .expect(201);
    let of = |bytes: usize| format!("{{\"value\":\"{}\"}}", "x".repeat(bytes));
    client.put(&format!("{T}/k"), &of(998)).expect(201);
    client
        .put(&format!("{T}/k"), &of(999))
        .refused(413, "TOO_LARGE");
    let error = client
        .put(&format!("{T}/k"), &of(6_000))
        .refused(413, "TOO_LARGE");
    assert_eq!(error["details"]["limit"], 5_000);
    // Refused by its announcement and still answered, and the connection goes on.
    client
        .put(&format!("{T}/k"), &of(3_000_000))
        .refused(413, "TOO_LARGE");
    client.get(&format!("{T}/k")).expect(200);
    let line = format!(
        "{{\"key\":\"a\",\"value\":\"{}\"}}\n{{\"key\":\"b\",\"value\":1}}",
        "x".repeat(2_000)
    );
    let report = client
        .call("POST", "/api/default/import/t", &[], line.as_bytes())
        .expect(200)
        .json();
    assert_eq!(
        (&report["imported"], &report["failed"][0]["code"]),
        (&1.into(), &"TOO_LARGE".into())
    );
}

#[test]
fn large_values_take_the_way_beside_the_loop() {
    let server = Server::with_type();
    let mut client = server.client();
    let value = format!("\"{}\"", "é".repeat(3_000_000));
    client
        .put(&format!("{T}/big"), &format!("{{\"value\":{value}}}"))
        .expect(201);
    let read = client.get(&format!("{T}/big")).expect(200);
    assert!(read.text().contains(&value));
    let merge = format!("{{\"more\":{value}}}");
    let kind = [("content-type", "application/merge-patch+json")];
    client
        .call("PATCH", &format!("{T}/big"), &kind, merge.as_bytes())
        .expect(200);
    assert!(client.get(&format!("{T}/big")).text().contains(&merge));
}

#[test]
fn patches_of_all_three_kinds_apply() {
    let server = Server::with_type();
    let mut client = server.client();
    client.store(
        "k",
        "{\"n\":1,\"list\":[1],\"gone\":true,\"deep\":{\"a\":1}}",
    );
    let path = format!("{T}/k");
    client
        .patch(
            &path,
            "{\"patch\":{\"set\":{\"x.y\":[]},\"unset\":[\"gone\"],\"inc\":{\"n\":0.5},\"merge\":{\"deep\":{\"b\":2}},\"append\":{\"list\":[2,3]},\"pull\":{\"list\":[1]}}}",
        )
        .expect(200);
    let value = client.get(&path).json()["value"].take();
    assert_eq!(
        value,
        serde_json::json!({"n": 1.5, "list": [2, 3], "deep": {"a": 1, "b": 2}, "x": {"y": []}})
    );
    let merge = [(
        "content-type",
        "application/merge-patch+json; charset=UTF-8",
    )];
    client
        .call("PATCH", &path, &merge, b"{\"deep\":null,\"n\":2}")
        .expect(200);
    let pointer = [("content-type", "application/json-patch+json")];
    let operations =
        b"[{\"op\":\"test\",\"path\":\"/n\",\"value\":2},{\"op\":\"add\",\"path\":\"/list/-\",\"value\":4}]";
    client
        .call("PATCH", &path, &pointer, operations)
        .expect(200);
    let value = client.get(&path).json()["value"].take();
    assert_eq!(
        value,
        serde_json::json!({"n": 2, "list": [2, 3, 4], "x": {"y": []}})
    );

    client
        .patch(&path, "{\"patch\":{\"inc\":{\"list\":1}}}")
        .refused(400, "INVALID_PATCH");
    client
        .patch(&path, "{\"patch\":{\"frobnicate\":{}}}")
        .refused(400, "INVALID_PATCH");
    client
        .patch(&path, "{\"patch\":{\"inc\":{\"n\":1e500}}}")
        .refused(400, "INVALID_NUMBER");
    client
        .patch(&path, "{\"set\":{\"n\":1}}")
        .refused(400, "UNKNOWN_PARAMETER");
    client.patch(&path, "{}").refused(400, "INVALID_PARAMETER");
    client
        .call("PATCH", &path, &pointer, b"{}")
        .refused(400, "INVALID_PATCH");
    client
        .call(
            "PATCH",
            &path,
            &pointer,
            b"[{\"op\":\"test\",\"path\":\"/n\",\"value\":3}]",
        )
        .refused(400, "INVALID_PATCH");
    client
        .call("PATCH", &path, &merge, b"{\"a\":1,\"a\":2}")
        .refused(400, "INVALID_JSON");
    client
        .patch(&format!("{T}/none"), "{\"patch\":{\"set\":{\"n\":1}}}")
        .refused(404, "NOT_FOUND");
}

#[test]
fn bodies_of_other_media_types_are_not_guessed_at() {
    let server = Server::with_type();
    let mut client = server.client();
    let path = format!("{T}/k");
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/json; charset=latin1",
        "",
    ] {
        client
            .call("PUT", &path, &[("content-type", kind)], b"{\"value\":1}")
            .refused(415, "UNSUPPORTED_MEDIA_TYPE");
    }
    for kind in [
        "application/json",
        "Application/JSON; charset=\"utf-8\"",
        "application/json;charset=UTF-8;x=y",
    ] {
        client.call("PUT", &path, &[("content-type", kind)], b"{\"value\":1}");
    }
    client.get(&path).expect(200);
    let merge = [("content-type", "application/merge-patch+json")];
    client
        .call("PUT", &path, &merge, b"{\"value\":1}")
        .refused(415, "UNSUPPORTED_MEDIA_TYPE");
    client
        .call("DELETE", &path, &[], b"{\"ifVersion\":1}")
        .refused(400, "INVALID_PARAMETER");
    client.get(&path).expect(200);
}
