//! Races between clients of different workers: a guard has one winner, a unique
//! value one owner, a sum stays what it was.

use std::sync::Barrier;
use std::thread;

use serde_json::Value;

use okdb_tests::data::Random;
use okdb_tests::http::Client;
use okdb_tests::oracle;
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::torture::rounds;

const CONTENDERS: usize = 16;

fn prepared(place: &Place, body: &str) -> Server {
    let server = Launch::at(&place.root()).start();
    server
        .client()
        .put("/api/default/types/t", body)
        .expect(200);
    server
}

/// Runs `act` on as many connections at once, spread over the workers.
fn contend<T: Send>(server: &Server, act: impl Fn(usize, &mut Client) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(CONTENDERS);
    thread::scope(|scope| {
        let running: Vec<_> = (0..CONTENDERS)
            .map(|number| {
                let mut client = server.client();
                let (start, act) = (&start, &act);
                scope.spawn(move || {
                    client.get("/healthz").expect(200);
                    start.wait();
                    act(number, &mut client)
                })
            })
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("the contender's own checks"))
            .collect()
    })
}

#[test]
fn a_guarded_counter_counts_exactly_the_answers_that_said_yes() {
    let place = Place::new();
    let server = prepared(&place, "{}");
    let path = "/api/default/types/t/counter";
    server.client().put(path, r#"{"value":0}"#).expect(201);
    let tries = rounds(25, 400);
    let won: usize = contend(&server, |number, client| {
        let mut won = 0;
        for _ in 0..tries {
            let seen = client.get(path).expect(200).json();
            let next = seen["value"].as_u64().expect("a number") + 1;
            let version = seen["version"].as_u64().expect("a version");
            // Both spellings of the guard, by turns.
            let answer = if number % 2 == 0 {
                let body = format!(r#"{{"value":{next},"ifVersion":{version}}}"#);
                client.put(path, &body)
            } else {
                let etag = format!("\"{version}\"");
                let body = format!(r#"{{"value":{next}}}"#);
                client
                    .call("PUT", path, &[("if-match", &etag)], Some(body.as_bytes()))
                    .expect("an answer")
            };
            if answer.status == 200 {
                won += 1;
                continue;
            }
            let lost = answer.expect_error(412, "VERSION_MISMATCH").json();
            let current = lost["error"]["details"].to_string();
            assert!(
                current.contains(|digit: char| digit.is_ascii_digit()),
                "{lost}"
            );
        }
        won
    })
    .into_iter()
    .sum();
    let last = server.client().get(path).expect(200).json();
    assert_eq!(last["value"], won);
    assert!(won > 0);
}

#[test]
fn of_many_creators_of_one_key_one_succeeds() {
    let place = Place::new();
    let server = prepared(&place, "{}");
    for round in 0..rounds(10, 200) {
        let key = format!("k{round}");
        let path = format!("/api/default/types/t/{key}");
        let answers = contend(&server, |number, client| {
            let body = format!(r#"{{"value":{number}}}"#);
            match number % 4 {
                0 => client.put(&path, &format!(r#"{{"value":{number},"ifVersion":null}}"#)),
                1 => client
                    .call(
                        "PUT",
                        &path,
                        &[("if-none-match", "*")],
                        Some(body.as_bytes()),
                    )
                    .expect("an answer"),
                2 => client.post(
                    "/api/default/types/t",
                    &format!(r#"{{"key":"{key}","value":{number}}}"#),
                ),
                _ => client.post(
                    "/api/default/transaction",
                    &format!(
                        r#"[{{"action":"create","type":"t","key":"{key}","value":{number}}}]"#
                    ),
                ),
            }
        });
        let winners: Vec<usize> = answers
            .iter()
            .enumerate()
            .filter(|(_, answer)| answer.status < 300)
            .map(|(number, _)| number)
            .collect();
        assert_eq!(winners.len(), 1, "{answers:?}");
        for answer in answers.iter().filter(|answer| answer.status >= 300) {
            assert!(matches!(answer.status, 409 | 412), "{answer:?}");
        }
        let stored = server.client().get(&path).expect(200).json();
        assert_eq!(stored["value"], winners[0]);
    }
}

#[test]
fn a_guarded_delete_and_a_guarded_put_do_not_both_win() {
    let place = Place::new();
    let server = prepared(&place, "{}");
    let path = "/api/default/types/t/k";
    for _ in 0..rounds(10, 200) {
        let made = server.client().put(path, r#"{"value":0}"#).json();
        let version = made["version"].as_u64().expect("a version");
        let answers = contend(&server, |number, client| {
            if number % 2 == 0 {
                client.delete(&format!("{path}?ifVersion={version}"))
            } else {
                client.put(
                    path,
                    &format!(r#"{{"value":{number},"ifVersion":{version}}}"#),
                )
            }
        });
        let winners = answers.iter().filter(|answer| answer.status < 300).count();
        assert_eq!(winners, 1, "{answers:?}");
    }
}

#[test]
fn a_unique_value_has_one_owner() {
    let place = Place::new();
    let server = prepared(&place, r#"{"indexes":[{"fields":["mail"],"unique":true}]}"#);
    for round in 0..rounds(10, 200) {
        let answers = contend(&server, |number, client| {
            let value = format!(r#"{{"mail":"m{round}","number":{number}}}"#);
            if number % 2 == 0 {
                client.put(
                    &format!("/api/default/types/t/r{round}-{number}"),
                    &format!(r#"{{"value":{value}}}"#),
                )
            } else {
                client.post(
                    "/api/default/transaction",
                    &format!(
                        r#"[{{"action":"put","type":"t","key":"r{round}-{number}","value":{value}}}]"#
                    ),
                )
            }
        });
        let winners = answers.iter().filter(|answer| answer.status < 300).count();
        assert_eq!(winners, 1, "{answers:?}");
        for answer in answers.into_iter().filter(|answer| answer.status >= 300) {
            answer.expect_error(409, "UNIQUE_CONSTRAINT");
        }
    }
    oracle::verify(&place.root());
}

const ACCOUNTS: usize = 10;
const EACH: i64 = 1_000;
const SUM: i64 = 10 * EACH;

fn sum_of_accounts(client: &mut Client) -> i64 {
    let lines = client
        .get("/api/default/export/t?consistent=true")
        .expect(200)
        .text();
    lines
        .lines()
        .map(|line| {
            let record: Value = serde_json::from_str(line).expect("NDJSON");
            record["value"]["amount"].as_i64().expect("an amount")
        })
        .sum()
}

#[test]
fn transfers_keep_the_sum_in_every_snapshot() {
    let place = Place::new();
    let server = prepared(&place, "{}");
    for account in 0..ACCOUNTS {
        server
            .client()
            .put(
                &format!("/api/default/types/t/{account}"),
                &format!(r#"{{"value":{{"amount":{EACH}}}}}"#),
            )
            .expect(201);
    }
    let before = oracle::clock(&mut server.client());
    let tries = rounds(25, 500);
    let done: u64 = contend(&server, |number, client| {
        let mut random = Random::new("transfers", number as u64);
        let mut done = 0;
        for _ in 0..tries {
            if number < 3 {
                assert_eq!(sum_of_accounts(client), SUM);
                continue;
            }
            let from = random.index(ACCOUNTS);
            let to = (from + 1 + random.index(ACCOUNTS - 1)) % ACCOUNTS;
            let mut side = |account: usize, sign: i64, amount: i64| {
                let path = format!("/api/default/types/t/{account}");
                let seen = client.get(&path).expect(200).json();
                let new = seen["value"]["amount"].as_i64().expect("an amount") + sign * amount;
                format!(
                    r#"{{"action":"put","type":"t","key":"{account}","value":{{"amount":{new}}},"ifVersion":{}}}"#,
                    seen["version"]
                )
            };
            let amount = 1 + i64::try_from(random.below(50)).expect("small");
            let body = format!("[{},{}]", side(from, -1, amount), side(to, 1, amount));
            let answer = client.post("/api/default/transaction", &body);
            if answer.status == 200 {
                done += 1;
                continue;
            }
            let refused = answer.expect_error(412, "VERSION_MISMATCH").json();
            let operation = &refused["error"]["details"]["operation"];
            assert!(operation == 0 || operation == 1, "{refused}");
        }
        done
    })
    .into_iter()
    .sum();
    let mut client = server.client();
    assert_eq!(sum_of_accounts(&mut client), SUM);
    // Two steps of the clock for each transfer, none for those refused.
    assert_eq!(oracle::clock(&mut client), before + 2 * done);
    assert!(done > 0);
}
