//! A second start must fail by name and leave the first one unharmed.
//! `SO_REUSEPORT` takes away the mutual exclusion that people rely on, and a
//! clean-up path is easily run by a process that never owned what it cleans.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use okdb_tests::http::Client;
use okdb_tests::process::Process;
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::wait::{SOON, wait_until};

const ROOT_LOCKED: i32 = 3;
const ADDRESS_IN_USE: i32 = 4;

/// What the second start must not touch: pids, files (by inode), the segment.
#[derive(Debug, PartialEq)]
struct Belongings {
    pids: Vec<i32>,
    files: Vec<(PathBuf, u64)>,
    segment: Vec<PathBuf>,
}

fn belongings(server: &Server, root: &Path) -> Belongings {
    let primary = Process::find(server.pid()).expect("the first server runs");
    let segment = primary.shared_memory();
    assert!(
        segment.iter().all(|path| path.exists()),
        "the segment is gone: {segment:?}"
    );
    let mut files: Vec<PathBuf> = ["okdb.lock", "format", "run/segment"]
        .iter()
        .map(|name| root.join(name))
        .collect();
    files.extend(segment.iter().cloned());
    let inode = |path: PathBuf| {
        let inode = fs::metadata(&path).expect("it exists").ino();
        (path, inode)
    };
    Belongings {
        pids: server
            .processes()
            .iter()
            .map(|process| process.pid)
            .collect(),
        files: files.into_iter().map(inode).collect(),
        segment,
    }
}

fn still_writes(client: &mut Client, key: &str) {
    let path = format!("/api/default/types/t/{key}");
    client.put(&path, r#"{"value":1}"#).expect(201);
    client.get(&path).expect(200);
}

#[test]
fn on_the_same_root_it_is_refused_and_names_the_holder() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    let before = belongings(&server, &place.root());
    let port = server.tcp().port();

    for (attempt, listen) in ["127.0.0.1:0".to_owned(), format!("127.0.0.1:{port}")]
        .into_iter()
        .enumerate()
    {
        let (code, words) = Launch::at(&place.root()).listen(listen).refused();
        assert_eq!(code, ROOT_LOCKED, "{words}");
        assert!(
            words.contains(&server.pid().to_string()),
            "the holder's pid {} is not named: {words}",
            server.pid()
        );
        assert_eq!(belongings(&server, &place.root()), before);
        still_writes(&mut client, &format!("same-root-{attempt}"));
        for mut client in server.client_per_worker(2) {
            client
                .get(&format!("/api/default/types/t/same-root-{attempt}"))
                .expect(200);
        }
    }
}

#[test]
fn on_the_same_port_it_is_refused_and_names_the_port() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    let before = belongings(&server, &place.root());
    let port = server.tcp().port();

    let listens = [format!("127.0.0.1:{port}"), format!("0.0.0.0:{port}")];
    for (attempt, listen) in listens.iter().enumerate() {
        let other = Place::new();
        let mut second = Launch::at(&other.root())
            .arg("--insecure-no-auth")
            .listen(listen)
            .spawn();
        // Fresh connections all the while: none may go astray.
        let mut fresh = server.fresh();
        let mut written = 0;
        wait_until("the second to give up", SOON, || {
            still_writes(&mut fresh, &format!("same-port-{attempt}-{written}"));
            written += 1;
            written >= 50 && second.try_exit().is_some()
        });
        let status = second.wait_exit(SOON);
        let words = second.log();
        assert_eq!(status.code(), Some(ADDRESS_IN_USE), "{listen}: {words}");
        assert!(words.contains(&port.to_string()), "{listen}: {words}");
        assert_eq!(belongings(&server, &place.root()), before);
        for number in 0..written {
            client
                .get(&format!(
                    "/api/default/types/t/same-port-{attempt}-{number}"
                ))
                .expect(200);
        }
    }
}

/// `[::]` means IPv6 alone: it takes no connection that was meant for the other.
#[test]
fn the_ipv6_wildcard_on_the_same_port_takes_nothing_away() {
    if std::net::TcpListener::bind("[::]:0").is_err() {
        println!("no IPv6 here");
        return;
    }
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    server
        .client()
        .put("/api/default/types/t", "{}")
        .expect(200);
    let other = Place::new();
    let mut second = Launch::at(&other.root())
        .arg("--insecure-no-auth")
        .listen(format!("[::]:{}", server.tcp().port()))
        .spawn();
    wait_until("an outcome", SOON, || {
        second.is_ready() || second.try_exit().is_some()
    });
    if let Some(status) = second.try_exit() {
        assert_eq!(status.code(), Some(ADDRESS_IN_USE), "{}", second.log());
    }
    let mut fresh = server.fresh();
    for number in 0..100 {
        still_writes(&mut fresh, &format!("k{number}"));
    }
}

#[test]
fn of_two_starts_at_the_same_instant_exactly_one_survives() {
    for _ in 0..okdb_tests::torture::rounds(4, 50) {
        let place = Place::new();
        let mut pair = [(); 2].map(|()| Launch::at(&place.root()).spawn());
        wait_until("one of the two gives up", SOON, || {
            pair.iter_mut().any(|server| server.try_exit().is_some())
        });
        let loser = usize::from(pair[0].try_exit().is_none());
        let status = pair[loser].wait_exit(SOON);
        assert_eq!(status.code(), Some(ROOT_LOCKED), "{}", pair[loser].log());
        let winner = &mut pair[1 - loser];
        winner.wait_ready();
        winner.fresh().get("/readyz").expect(200);
        winner.stop();
    }
}

#[test]
fn a_stopped_first_server_is_still_the_owner() {
    let place = Place::new();
    let mut server = Launch::at(&place.root()).start();
    server.signal_all(okdb_tests::process::Signal::SIGSTOP);
    let (code, words) = Launch::at(&place.root()).refused();
    server.signal_all(okdb_tests::process::Signal::SIGCONT);
    assert_eq!(code, ROOT_LOCKED, "{words}");
    server.fresh().get("/healthz").expect(200);
    server.stop();
}
