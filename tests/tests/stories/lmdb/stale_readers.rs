//! Readers that never read on, and readers that were killed: their slots come
//! back, and the file does not grow without end. Killed workers have filled the
//! reader table until every read failed; an idle viewer has pinned old pages
//! until the disk was full.

use std::fs;
use std::path::{Path, PathBuf};

use okdb_tests::data;
use okdb_tests::http::Client;
use okdb_tests::oracle;
use okdb_tests::process::{Signal, signal_pid};
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::torture::rounds;

const RECORDS: usize = 500;
const PAD: usize = 20_000;

fn load(server: &Server) {
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    overwrite(&mut client, 0);
}

fn overwrite(client: &mut Client, generation: usize) {
    let pad = format!("{generation:0>PAD$}");
    for first in (0..RECORDS).step_by(100) {
        let lines = data::lines(
            (first..first + 100).map(|number| (format!("k{number:04}"), format!("\"{pad}\""))),
        );
        client.import("/api/default/import/t", &lines).expect(200);
    }
}

/// Starts exports on this worker's connections, and reads none of them.
fn unread_exports(server: &Server, worker: usize, count: usize) -> Vec<Client> {
    let mut held = Vec::new();
    while held.len() < count {
        let mut client = server.client();
        if client.get("/healthz").expect(200).worker() != worker {
            continue;
        }
        client
            .send_raw(b"GET /api/default/export/t HTTP/1.1\r\nhost: x\r\n\r\n")
            .expect("it reads");
        held.push(client);
    }
    held
}

fn data_bytes(root: &Path) -> u64 {
    fn walk(path: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.file_name().is_some_and(|name| name == "data.mdb") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root.join("envs/default"), &mut found);
    assert_eq!(found.len(), 1, "one generation: {found:?}");
    fs::metadata(&found[0]).expect("it was listed").len()
}

#[test]
fn workers_killed_amid_exports_give_their_slots_back() {
    let place = Place::new();
    let server = Launch::at(&place.root())
        .args(&["--durability", "fast"])
        .start();
    load(&server);
    // Far more readers in sum than a table of 126 or of 1024 would bear.
    for round in 0..rounds(3, 40) {
        let slots = server.wait_all_ready();
        let held = unread_exports(&server, 1, 40);
        signal_pid(slots[1].pid.expect("ready"), Signal::SIGKILL);
        let _ = server.wait_all_ready();
        for mut client in server.client_per_worker(2) {
            client.get("/api/default/types/t/k0000").expect(200);
            client.get("/api/default/export/t").expect(200);
            let answer = client.put(
                "/api/default/types/t/new",
                &format!(r#"{{"value":{round}}}"#),
            );
            assert!(answer.status < 300, "{answer:?}");
        }
        drop(held);
        if round % 3 == 2 {
            // Keep clear of the crash-loop guard in the long form.
            std::thread::sleep(std::time::Duration::from_secs(8));
        }
    }
    oracle::verify(&place.root());
}

#[test]
fn readers_that_do_not_read_pin_no_pages() {
    let place = Place::new();
    let server = Launch::at(&place.root())
        .args(&["--durability", "fast"])
        .start();
    load(&server);
    let mut client = server.client();
    for generation in 1..6 {
        overwrite(&mut client, generation);
    }
    let before = data_bytes(&place.root());
    let mut held = unread_exports(&server, 0, 2);
    held.extend(unread_exports(&server, 1, 2));
    // A page whose cursor is kept for later.
    let page = client
        .get("/api/default/types/t?limit=10")
        .expect(200)
        .json();
    for generation in 6..rounds(46, 400) {
        overwrite(&mut client, generation);
    }
    let after = data_bytes(&place.root());
    assert!(after <= 3 * before, "from {before} to {after} bytes");

    // The stalled clients go on, and get each record once.
    for mut client in held {
        let lines = client.receive(false).expect("the rest").expect(200).text();
        let mut keys: Vec<String> = lines
            .lines()
            .map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).expect("NDJSON");
                line["key"].as_str().expect("a key").to_owned()
            })
            .collect();
        assert_eq!(keys.len(), RECORDS);
        keys.dedup();
        assert_eq!(keys.len(), RECORDS);
    }
    let cursor = page["cursor"].as_str().expect("there is more");
    let next = client
        .get(&format!("/api/default/types/t?limit=10&cursor={cursor}"))
        .expect(200)
        .json();
    assert_eq!(next["items"][0]["key"], "k0010");
}

#[test]
fn a_stopped_worker_amid_exports_pins_no_more_than_itself() {
    let place = Place::new();
    let server = Launch::at(&place.root())
        .args(&["--durability", "fast"])
        .start();
    load(&server);
    let mut client = server.client_per_worker(1).remove(0);
    let slots = server.wait_all_ready();
    let _held = unread_exports(&server, 1, 4);
    let stopped = slots[1].pid.expect("ready");
    signal_pid(stopped, Signal::SIGSTOP);
    for generation in 1..10 {
        overwrite(&mut client, generation);
        client.get("/api/default/types/t/k0000").expect(200);
    }
    signal_pid(stopped, Signal::SIGCONT);
    oracle::verify(&place.root());
}
