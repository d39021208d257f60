//! An index is being built, in the background, while writes go on: a query may
//! never be short, whatever is killed meanwhile, and a half-built index is never
//! used. Some stores served the half of it; others lost what was written during
//! the build.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use okdb_tests::data::{self, Random};
use okdb_tests::http::{Address, Client};
use okdb_tests::oracle;
use okdb_tests::process::{Signal, signal_pid};
use okdb_tests::server::{Launch, ORPHAN_SECONDS, Place, Server};
use okdb_tests::torture::is_long;
use okdb_tests::wait::{SOON, Stop, promised, wait_for, wait_until};

/// Documents that nobody touches during the story, in `GROUPS` groups.
const STABLE_SHORT: usize = 20_000;
const STABLE_LONG: usize = 100_000;
const GROUPS: usize = 10;
/// Insertions that are there when the build begins.
const WRITES_BEFORE: usize = 20;
/// The group that writers add to and take from.
const MOVING: usize = GROUPS;

fn load(server: &Server, stable: usize) {
    let mut client = server.client();
    client.put("/api/default/types/doc", "{}").expect(200);
    let numbers: Vec<usize> = (0..stable).collect();
    for chunk in numbers.chunks(5_000) {
        let lines = data::lines(chunk.iter().map(|number| {
            let group = number % GROUPS;
            (
                format!("stable-{number:06}"),
                format!(r#"{{"group":{group},"pad":"{number:0>120}"}}"#),
            )
        }));
        client.import("/api/default/import/doc", &lines).expect(200);
    }
}

/// What writers have done to the moving group.
#[derive(Default)]
struct Moving {
    stop: Stop,
    /// Insertions that were sent, and those that were answered.
    sent: AtomicUsize,
    answered: AtomicUsize,
}

/// Inserts, updates, moves away and deletes, on one worker, until told to stop
/// or until its connection is lost.
fn write(address: &Address, writer: usize, moving: &Moving) {
    let mut client = Client::new(address);
    for number in 0.. {
        let stopped = moving.stop.is_set();
        if stopped || write_once(&mut client, writer, number, moving).is_none() {
            return;
        }
    }
}

fn write_once(client: &mut Client, writer: usize, number: usize, moving: &Moving) -> Option<()> {
    let mut call = |method: &str, path: &str, body: Option<&str>| {
        let answer = client
            .call(method, path, &[], body.map(str::as_bytes))
            .ok()?;
        if answer.status == 503 {
            return None;
        }
        assert!(answer.status < 300, "{method} {path}: {answer:?}");
        Some(())
    };
    let path = |name: &str| format!("/api/default/types/doc/{name}-{writer}-{number:06}");
    let grouped = |group: usize| format!(r#"{{"value":{{"group":{group}}}}}"#);
    // One that stays in the moving group, and is counted.
    let stays = path("stays");
    moving.sent.fetch_add(1, Ordering::SeqCst);
    call("PUT", &stays, Some(&grouped(MOVING)))?;
    moving.answered.fetch_add(1, Ordering::SeqCst);
    // One that passes through groups that nobody counts, and goes.
    let goes = path("goes");
    call("PUT", &goes, Some(&grouped(100)))?;
    call("PATCH", &goes, Some(r#"{"patch":{"set":{"group":101}}}"#))?;
    call("PUT", &stays, Some(&grouped(MOVING)))?;
    call("DELETE", &goes, None)
}

/// Counts groups on one connection, forever comparing with what must be there.
fn read(address: &Address, stable: usize, moving: &Moving, floor: usize, seed: u64) -> usize {
    let mut client = Client::new(address);
    let mut random = Random::new("index reader", seed);
    let mut looks = 0;
    while !moving.stop.is_set() {
        let group = random.index(GROUPS + 1);
        let least = floor + moving.answered.load(Ordering::SeqCst);
        let filter = format!(r#"{{"filter":{{"group":{group}}}}}"#);
        let Ok(answer) = client.call(
            "POST",
            "/api/default/types/doc/count",
            &[],
            Some(filter.as_bytes()),
        ) else {
            break;
        };
        if answer.status == 503 {
            break;
        }
        let most = floor + moving.sent.load(Ordering::SeqCst);
        let count = answer.expect(200).json()["count"]
            .as_u64()
            .expect("a count");
        let count = usize::try_from(count).expect("small");
        if group == MOVING {
            assert!(count >= least, "short: {count} of at least {least}");
            assert!(count <= most, "too many: {count} of at most {most}");
        } else {
            assert_eq!(count, stable / GROUPS, "group {group}");
        }
        looks += 1;
    }
    looks
}

fn state(client: &mut Client) -> Option<String> {
    let listed = client.get("/api/default/indexes/doc").expect(200).json();
    let indexes = listed["indexes"].as_array()?;
    let index = indexes.iter().find(|index| index["name"] == "group")?;
    Some(index["state"].as_str()?.to_owned())
}

/// Every group through the index, entry by entry, against a scan by pages.
fn index_equals_scan(client: &mut Client) {
    let scanned = oracle::records(client, "doc");
    for group in 0..=MOVING {
        let wanted = scanned
            .values()
            .filter(|record| record.value["group"] == group)
            .count();
        let path = format!("/api/default/indexes/doc/group/count?prefix=%5B{group}%5D");
        assert_eq!(
            client.get(&path).expect(200).json()["count"],
            wanted,
            "group {group}"
        );
    }
    let plan = client
        .post(
            "/api/default/types/doc/query",
            r#"{"filter":{"group":3},"explain":true,"limit":1}"#,
        )
        .expect(200)
        .json();
    assert_eq!(plan["plan"]["index"], "group", "{plan}");
}

/// Writers and readers on both workers while an index is built; `disturb` runs
/// when the build has begun, and may replace the server.
fn story(disturb: impl FnOnce(&mut Server, &Place)) {
    let stable = if is_long() { STABLE_LONG } else { STABLE_SHORT };
    let place = Place::new();
    let mut server = Launch::at(&place.root())
        .args(&["--durability", "fast"])
        .start();
    load(&server, stable);
    let moving = Moving::default();
    let address = server.addresses()[0].clone();
    let looks: usize = thread::scope(|scope| {
        let _end = moving.stop.at_end();
        for writer in 0..2 {
            let (address, moving) = (&address, &moving);
            scope.spawn(move || write(address, writer, moving));
        }
        let readers: Vec<_> = (0..4)
            .map(|seed| {
                let (address, moving) = (&address, &moving);
                scope.spawn(move || read(address, stable, moving, 0, seed))
            })
            .collect();
        wait_until("writers under way", SOON, || {
            moving.answered.load(Ordering::SeqCst) >= WRITES_BEFORE
        });
        // Sent and not waited for: the answer may come only after the build.
        let mut asking = server.client();
        let body = r#"{"fields":["group"]}"#;
        let request = format!(
            "POST /api/default/indexes/doc HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        asking.send_raw(request.as_bytes()).expect("it reads");
        let mut client = server.client();
        let seen = wait_for("the index", SOON, || state(&mut client));
        println!("disturbed in state {seen}");
        disturb(&mut server, &place);
        let mut client = server.client();
        wait_for("the index is ready", SOON * 3, || {
            (state(&mut client)? == "ready").then_some(())
        });
        moving.stop.set();
        readers
            .into_iter()
            .map(|reader| reader.join().expect("the reader's own checks"))
            .sum()
    });
    println!(
        "{looks} looks, {} insertions",
        moving.answered.load(Ordering::SeqCst)
    );
    index_equals_scan(&mut server.client());
    oracle::verify(&place.root());
}

#[test]
fn a_build_under_writes_is_never_short() {
    story(|_, _| {});
}

#[test]
fn a_build_survives_the_death_of_a_worker() {
    story(|server, _| {
        let slots = server.wait_all_ready();
        signal_pid(slots[1].pid.expect("ready"), Signal::SIGKILL);
        let _ = server.wait_all_ready();
    });
}

#[test]
fn a_build_survives_the_death_of_the_primary() {
    story(|server, place| {
        server.kill_primary();
        server.wait_gone(promised(ORPHAN_SECONDS));
        *server = Launch::at(&place.root()).start();
    });
}

#[test]
fn a_build_survives_a_power_cut_of_the_processes() {
    story(|server, place| {
        server.kill_all();
        *server = Launch::at(&place.root()).start();
        // What serves before the build is done must not be short either.
        let moving = Moving::default();
        let address = server.addresses()[0].clone();
        let mut client = server.client();
        let answer = client.post(
            "/api/default/types/doc/count",
            &format!(r#"{{"filter":{{"group":{MOVING}}}}}"#),
        );
        let floor = answer.expect(200).json()["count"]
            .as_u64()
            .expect("a count");
        let floor = usize::try_from(floor).expect("small");
        let stable = if is_long() { STABLE_LONG } else { STABLE_SHORT };
        thread::scope(|scope| {
            let _end = moving.stop.at_end();
            let reader = scope.spawn(|| read(&address, stable, &moving, floor, 9));
            wait_for("the index is ready", SOON * 3, || {
                (state(&mut client)? == "ready").then_some(())
            });
            moving.stop.set();
            reader.join().expect("the reader's own checks");
        });
    });
}
