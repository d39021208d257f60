//! A full disk: the write is refused with 507, nobody dies, reads go on, and
//! writes resume by themselves when there is room. Stores have met SIGBUS here,
//! and half-written state.
//!
//! The disk is a small tmpfs in a mount namespace; where the kernel does not
//! allow one, the stories say so and end.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use okdb_tests::command::okdb;
use okdb_tests::http::Client;
use okdb_tests::oracle;
use okdb_tests::server::{Launch, Place, Server};

/// Mounts a small disk on its first argument, puts ballast on it, runs the rest.
const SMALL_DISK: &str = r#"
mount -t tmpfs -o size=24m none "$0" &&
head -c 8388608 /dev/zero > "$0/ballast" &&
exec "$@"
"#;

/// The same with a disk that is full from the beginning.
const FULL_DISK: &str = r#"
mount -t tmpfs -o size=1m none "$0" &&
head -c 2097152 /dev/zero > "$0/ballast" 2>/dev/null
exec "$@"
"#;

/// The same with a `/dev/shm` that holds next to nothing.
const FULL_SHARED_MEMORY: &str = r#"mount -t tmpfs -o size=4k none /dev/shm && exec "$@""#;

fn namespaces_work() -> bool {
    let tried = Command::new("unshare")
        .args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"])
        .output();
    let works = tried.is_ok_and(|tried| tried.status.success());
    if !works {
        println!("no mount namespaces here: not told");
    }
    works
}

fn disk(place: &Place) -> String {
    let disk = place.path("disk");
    fs::create_dir(&disk).expect("writable");
    disk.to_str().expect("UTF-8").to_owned()
}

/// The server's view of a path, from outside its namespace.
fn inside(server: &Server, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{path}", server.pid()))
}

fn put(client: &mut Client, number: usize) -> bool {
    let answer = client.put(
        &format!("/api/default/types/t/k{number:05}"),
        &format!(r#"{{"value":{{"n":{number},"pad":"{number:0>4000}"}}}}"#),
    );
    if answer.status >= 300 {
        answer.expect_error(507, "STORAGE_FULL");
        return false;
    }
    true
}

#[test]
fn writes_are_refused_nobody_dies_and_room_heals_it() {
    if !namespaces_work() {
        return;
    }
    for durability in ["strict", "fast"] {
        let place = Place::new();
        let disk = disk(&place);
        let root = format!("{disk}/root");
        let server = Launch::through(
            &["unshare", "-rm", "sh", "-c", SMALL_DISK, &disk],
            &PathBuf::from(&root),
        )
        .args(&["--durability", durability])
        .start();
        let before: Vec<i32> = server.workers().iter().map(|worker| worker.pid).collect();
        let mut clients = server.client_per_worker(2);
        clients[0]
            .put("/api/default/types/t", r#"{"indexes":[{"fields":["n"]}]}"#)
            .expect(200);
        // Full is where each worker refuses, twice: a page freed by the last write
        // may still let one in.
        let (mut kept, mut refusals) = (0, 0);
        while refusals < 4 {
            if put(&mut clients[refusals % 2], kept) {
                (kept, refusals) = (kept + 1, 0);
            } else {
                refusals += 1;
            }
            assert!(kept < 100_000, "24 MiB never fill");
        }
        println!("{durability}: full with {kept} records");
        assert!(kept > 500, "full with {kept} records");
        for client in &mut clients {
            client.get("/api/default/types/t/k00000").expect(200);
            let count = client.post("/api/default/types/t/count", "{}").expect(200);
            assert_eq!(count.json()["count"], kept);
        }

        fs::remove_file(inside(&server, &format!("{disk}/ballast"))).expect("there is ballast");
        for client in &mut clients {
            assert!(put(client, kept), "no room although there is");
            kept += 1;
        }
        let found = oracle::records(&mut clients[0], "t");
        assert_eq!(found.len(), kept);
        for number in 0..kept {
            assert_eq!(found[&format!("k{number:05}")].value["n"], number);
        }
        oracle::verify_beside(server.pid(), &root);
        let now: Vec<i32> = server.workers().iter().map(|worker| worker.pid).collect();
        assert_eq!(now, before, "a worker died\n{}", server.log());
    }
}

#[test]
fn a_start_on_a_full_disk_is_refused_in_plain_words() {
    if !namespaces_work() {
        return;
    }
    let place = Place::new();
    let disk = disk(&place);
    let root = PathBuf::from(format!("{disk}/root"));
    let wrapper = ["unshare", "-rm", "sh", "-c", FULL_DISK, &disk];
    let (code, words) = Launch::through(&wrapper, &root).refused();
    assert_eq!(code, 1, "{words}");
    let lower = words.to_lowercase();
    assert!(lower.contains("space") || lower.contains("full"), "{words}");
    assert!(words.contains(&disk), "{words}");
}

#[test]
fn full_shared_memory_is_told_and_kills_nobody() {
    if !namespaces_work() {
        return;
    }
    let place = Place::new();
    let mut server = Launch::through(
        &["unshare", "-rm", "sh", "-c", FULL_SHARED_MEMORY, "okdb"],
        &place.root(),
    )
    .spawn();
    okdb_tests::wait::wait_until("an outcome", okdb_tests::wait::SOON, || {
        server.is_ready() || server.try_exit().is_some()
    });
    if let Some(status) = server.try_exit() {
        assert_eq!(status.code(), Some(1), "{}", server.log());
        assert!(server.log().contains("/dev/shm"), "{}", server.log());
    } else {
        server.wait_ready();
        assert_eq!(server.status()["mode"], "single", "{}", server.log());
        server.stop();
    }
    // Elsewhere the same root opens as if nothing had been.
    Launch::at(&place.root()).start().stop();
    let root = place.root();
    let _ = okdb(["verify", "--root", root.to_str().expect("UTF-8")]).expect(0);
}
