//! Version guards: each form holds exactly, and no other form is ever ignored.

use crate::{client::Client, server::Server};

const K: &str = "/api/default/types/t/k";

fn put(client: &mut Client, headers: &[(&str, &str)], guard: &str) -> crate::client::Answer {
    client.call(
        "PUT",
        K,
        headers,
        format!("{{\"value\":1{guard}}}").as_bytes(),
    )
}

#[test]
fn a_guard_that_fails_tells_the_version_now() {
    let server = Server::with_type();
    let mut client = server.client();
    let error = put(&mut client, &[], ",\"ifVersion\":5").refused(412, "VERSION_MISMATCH");
    assert!(error["details"]["version"].is_null() && error["details"].get("version").is_some());
    put(&mut client, &[], ",\"ifVersion\":null").expect(201);
    let version = client.get(K).json()["version"].as_u64().unwrap();
    let error = put(&mut client, &[], ",\"ifVersion\":null").refused(412, "VERSION_MISMATCH");
    assert_eq!(error["details"]["version"], version);
    put(&mut client, &[("if-none-match", "*")], "").refused(412, "VERSION_MISMATCH");
    put(&mut client, &[], &format!(",\"ifVersion\":{}", version + 1))
        .refused(412, "VERSION_MISMATCH");
    put(
        &mut client,
        &[("if-match", &format!("\"{}\"", version + 1))],
        "",
    )
    .refused(412, "VERSION_MISMATCH");
    put(&mut client, &[("if-match", &format!("\"{version}\""))], "").expect(200);
    let version = client.get(K).json()["version"].as_u64().unwrap();
    put(&mut client, &[], &format!(",\"ifVersion\":{version}.0")).expect(200);
}

#[test]
fn both_guards_must_hold() {
    let server = Server::with_type();
    let mut client = server.client();
    let version = client.store("k", "0");
    let (right, wrong) = (format!("\"{version}\""), format!("\"{}\"", version + 9));
    put(
        &mut client,
        &[("if-match", &wrong)],
        &format!(",\"ifVersion\":{version}"),
    )
    .refused(412, "VERSION_MISMATCH");
    put(&mut client, &[("if-match", &right)], ",\"ifVersion\":99").refused(412, "VERSION_MISMATCH");
    put(&mut client, &[("if-match", &right)], ",\"ifVersion\":null")
        .refused(412, "VERSION_MISMATCH");
    put(
        &mut client,
        &[("if-match", &right), ("if-none-match", "*")],
        "",
    )
    .refused(412, "VERSION_MISMATCH");
    put(
        &mut client,
        &[("if-match", &right)],
        &format!(",\"ifVersion\":{version}"),
    )
    .expect(200);
    let gone = "/api/default/types/t/gone";
    let both = [("if-match", "\"1\""), ("if-none-match", "*")];
    client
        .call("PUT", gone, &both, b"{\"value\":1}")
        .refused(412, "VERSION_MISMATCH");
}

#[test]
fn guards_of_any_other_form_are_refused() {
    let server = Server::with_type();
    let mut client = server.client();
    let version = client.store("k", "0");
    for bad in [
        "\"\"",
        "\"1\"",
        "-1",
        "1.5",
        "18446744073709551616",
        "1e30",
        "true",
        "[]",
        "{}",
    ] {
        put(&mut client, &[], &format!(",\"ifVersion\":{bad}")).refused(400, "INVALID_PARAMETER");
        let patch = format!("{{\"patch\":{{\"set\":{{\"a\":1}}}},\"ifVersion\":{bad}}}");
        client.patch(K, &patch).refused(400, "INVALID_PARAMETER");
    }
    let strong = format!("\"{version}\"");
    let forms = [
        format!("W/{strong}"),
        format!("{strong}, \"1\""),
        version.to_string(),
        "*".into(),
        "\"0x1\"".into(),
        "\"01\"".into(),
        String::new(),
    ];
    for bad in &forms {
        for method in ["PUT", "DELETE"] {
            let body: &[u8] = if method == "PUT" {
                b"{\"value\":1}"
            } else {
                b""
            };
            client
                .call(method, K, &[("if-match", bad)], body)
                .refused(400, "INVALID_PARAMETER");
        }
    }
    for bad in [strong.as_str(), "\"*\"", "W/\"1\"", ""] {
        put(&mut client, &[("if-none-match", bad)], "").refused(400, "INVALID_PARAMETER");
    }
    put(
        &mut client,
        &[("if-match", &strong), ("if-match", &strong)],
        "",
    )
    .refused(400, "INVALID_PARAMETER");
    for bad in [
        "",
        "1.0",
        "-1",
        "+1",
        "\"1\"",
        "01",
        "x",
        "18446744073709551616",
    ] {
        client
            .delete(&format!(
                "{K}?ifVersion={}",
                bad.replace('+', "%2B").replace('"', "%22")
            ))
            .refused(400, "INVALID_PARAMETER");
    }
    client
        .delete(&format!("{K}?ifVersion=1&ifVersion=1"))
        .refused(400, "INVALID_PARAMETER");
    client
        .delete(&format!("{K}?ifversion=1"))
        .refused(400, "UNKNOWN_PARAMETER");
    let post = [("if-none-match", "*")];
    client
        .call("POST", "/api/default/types/t", &post, b"{\"value\":1}")
        .refused(400, "INVALID_PARAMETER");
    assert_eq!(
        client.get(K).json()["version"],
        version,
        "nothing was written"
    );
}

#[test]
fn deletes_and_patches_are_guarded_too() {
    let server = Server::with_type();
    let mut client = server.client();
    let version = client.store("k", "{\"n\":0}");
    client
        .delete(&format!("{K}?ifVersion={}", version + 1))
        .refused(412, "VERSION_MISMATCH");
    client
        .delete(&format!("{K}?ifVersion=null"))
        .refused(412, "VERSION_MISMATCH");
    client
        .patch(
            K,
            &format!(
                "{{\"patch\":{{\"inc\":{{\"n\":1}}}},\"ifVersion\":{}}}",
                version + 1
            ),
        )
        .refused(412, "VERSION_MISMATCH");
    let tag = format!("\"{version}\"");
    let headers = [
        ("content-type", "application/merge-patch+json"),
        ("if-match", tag.as_str()),
    ];
    client.call("PATCH", K, &headers, b"{\"n\":2}").expect(200);
    client
        .call("PATCH", K, &headers, b"{\"n\":3}")
        .refused(412, "VERSION_MISMATCH");
    let read = client.get(K).json();
    assert_eq!(read["value"]["n"], 2);
    client
        .delete(&format!("{K}?ifVersion={}", read["version"]))
        .expect(204);
    client
        .delete(&format!("{K}?ifVersion=null"))
        .refused(404, "NOT_FOUND");
    client
        .delete(&format!("{K}?ifVersion=3"))
        .refused(412, "VERSION_MISMATCH");
}

#[test]
fn a_known_version_is_not_sent_again() {
    let server = Server::with_type();
    let mut client = server.client();
    let version = client.store("k", "0");
    for known in [
        format!("\"{version}\""),
        format!("W/\"{version}\""),
        format!("\"1000\", W/\"{version}\""),
        "*".into(),
    ] {
        let answer = client
            .call("GET", K, &[("if-none-match", &known)], b"")
            .expect(304);
        assert_eq!(
            answer.header("etag"),
            Some(format!("\"{version}\"").as_str())
        );
        client
            .call("HEAD", K, &[("if-none-match", &known)], b"")
            .expect(304);
    }
    for other in ["\"1000\"", "junk", ""] {
        client
            .call("GET", K, &[("if-none-match", other)], b"")
            .expect(200);
    }
    client
        .call(
            "GET",
            "/api/default/types/t/none",
            &[("if-none-match", "*")],
            b"",
        )
        .refused(404, "NOT_FOUND");
}

#[test]
fn of_many_guarded_writers_each_version_has_one_winner() {
    let server = Server::with_type();
    server.client().store("k", "{\"n\":0}");
    let wins: usize = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = server.client();
                    let mut wins = 0;
                    for _ in 0..25 {
                        let read = client.get(K).json();
                        let next = read["value"]["n"].as_u64().unwrap() + 1;
                        let body = format!(
                            "{{\"value\":{{\"n\":{next}}},\"ifVersion\":{}}}",
                            read["version"]
                        );
                        match client.put(K, &body).status {
                            200 => wins += 1,
                            412 => {}
                            other => panic!("{other}"),
                        }
                    }
                    wins
                })
            })
            .collect();
        writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .sum()
    });
    assert_eq!(server.client().get(K).json()["value"]["n"], wins);
}
