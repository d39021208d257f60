//! Others who see the same files through another container: with another
//! `/dev/shm` they cannot share the segment, with other pids they cannot tell
//! who lives. They must refuse, or do no harm.

use std::process::Command;

use okdb_tests::command::{Done, okdb_through};
use okdb_tests::oracle;
use okdb_tests::server::{Launch, Place, Server};

const OWN_SHARED_MEMORY: [&str; 5] = [
    "unshare",
    "-rm",
    "sh",
    "-c",
    r#"mount -t tmpfs none /dev/shm && exec "$0" "$@""#,
];
const OWN_PIDS: [&str; 3] = ["unshare", "-rpf", "--mount-proc"];

fn works(wrapper: &[&str]) -> bool {
    let mut command = Command::new(wrapper[0]);
    let tried = command.args(&wrapper[1..]).arg("true").output();
    let works = tried.is_ok_and(|tried| tried.status.success());
    if !works {
        println!("no such namespaces here: not told");
    }
    works
}

fn serving(place: &Place) -> Server {
    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    client
        .put("/api/default/types/t/k", r#"{"value":0}"#)
        .expect(201);
    server
}

/// Every worker still writes, each step of the clock is given once, and the
/// processes are the ones that they were.
fn unharmed(server: &Server, pids: &[i32]) {
    let mut clients = server.client_per_worker(2);
    let before = oracle::clock(&mut clients[0]);
    for round in 0..5 {
        for client in &mut clients {
            client
                .put("/api/default/types/t/k", &format!(r#"{{"value":{round}}}"#))
                .expect(200);
        }
    }
    assert_eq!(oracle::clock(&mut clients[1]), before + 10);
    assert_eq!(pids_of(server), pids, "{}", server.log());
    let slots = server.wait_all_ready();
    assert!(slots.iter().all(|slot| slot.restarts == 0), "{slots:?}");
}

fn pids_of(server: &Server) -> Vec<i32> {
    server
        .processes()
        .iter()
        .map(|process| process.pid)
        .collect()
}

fn tools(wrapper: &[&str], place: &Place) -> Vec<Done> {
    let root = place.root();
    let root = root.to_str().expect("UTF-8");
    [
        vec!["export", "t", "--root", root],
        vec!["verify", "--root", root],
        vec!["doctor", "--root", root],
    ]
    .into_iter()
    .map(|arguments| okdb_through(wrapper, arguments))
    .collect()
}

#[test]
fn without_the_same_shared_memory_nobody_joins() {
    if !works(&OWN_SHARED_MEMORY) {
        return;
    }
    let place = Place::new();
    let server = serving(&place);
    let pids = pids_of(&server);
    let (code, words) = Launch::through(&OWN_SHARED_MEMORY, &place.root()).refused();
    assert_eq!(code, 3, "{words}");
    for done in tools(&OWN_SHARED_MEMORY, &place) {
        assert_eq!(done.code, 1, "{done:?}");
        let words = format!("{}{}", done.stdout, done.stderr);
        assert!(
            words.contains("segment") || words.contains("shared memory"),
            "{done:?}"
        );
    }
    unharmed(&server, &pids);
    oracle::verify(&place.root());
}

#[test]
fn with_other_pids_nobody_is_taken_for_dead() {
    if !works(&OWN_PIDS) {
        return;
    }
    let place = Place::new();
    let server = serving(&place);
    let pids = pids_of(&server);
    let (code, words) = Launch::through(&OWN_PIDS, &place.root()).refused();
    assert_eq!(code, 3, "{words}");
    unharmed(&server, &pids);
    for done in tools(&OWN_PIDS, &place) {
        // Refused or done; what counts is that the server does not feel it.
        assert!(matches!(done.code, 0 | 1), "{done:?}");
        unharmed(&server, &pids);
    }
    oracle::verify(&place.root());
}
