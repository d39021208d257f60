//! A backup of a root that is being served and written to: one moment of it,
//! whole, and a root of its own. Copies made through files rather than through
//! LMDB drop the locks of those who serve.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::json;

use okdb_tests::command::okdb;
use okdb_tests::oracle;
use okdb_tests::server::{Launch, Place};
use okdb_tests::torture::rounds;
use okdb_tests::wait::{SOON, Stop, wait_until};

/// Each transaction writes the same number to this many records.
const TOGETHER: usize = 20;

#[test]
fn a_hot_copy_is_one_moment_and_serves() {
    let place = Place::new();
    let mut server = Launch::at(&place.root()).start();
    server
        .client()
        .put("/api/default/types/t", r#"{"indexes":[{"fields":["n"]}]}"#)
        .expect(200);
    let root = place.root();
    let stop = Stop::default();
    let written = AtomicUsize::new(0);
    let moments = thread::scope(|scope| {
        let _end = stop.at_end();
        for mut client in server.client_per_worker(2) {
            let (stop, written) = (&stop, &written);
            scope.spawn(move || {
                while !stop.is_set() {
                    let number = written.load(Ordering::SeqCst) + 1;
                    let puts: Vec<String> = (0..TOGETHER)
                        .map(|key| {
                            format!(r#"{{"action":"put","type":"t","key":"k{key}","value":{{"n":{number}}}}}"#)
                        })
                        .collect();
                    client
                        .post("/api/default/transaction", &format!("[{}]", puts.join(",")))
                        .expect(200);
                    written.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let moments: Vec<_> = (0..rounds(3, 20))
            .map(|number| {
                let goal = written.load(Ordering::SeqCst) + 5;
                wait_until("writes", SOON, || written.load(Ordering::SeqCst) >= goal);
                let before = oracle::clock(&mut server.client());
                let target = place.path(&format!("copy-{number}"));
                let paths = [root.to_str(), target.to_str()].map(|path| path.expect("UTF-8"));
                let _ = okdb(["backup", "--root", paths[0], paths[1]]).expect(0);
                let after = oracle::clock(&mut server.client());
                (target, before, after)
            })
            .collect();
        stop.set();
        moments
    });
    server.stop();

    for (copy, before, after) in moments {
        oracle::verify(&copy);
        let mut twin = Launch::at(&copy).start();
        let mut client = twin.client();
        let clock = oracle::clock(&mut client);
        assert!(
            (before..=after).contains(&clock),
            "{before} <= {clock} <= {after}"
        );
        let records = oracle::records(&mut client, "t");
        assert_eq!(records.len(), TOGETHER);
        let mut values: Vec<String> = records
            .values()
            .map(|record| record.value.to_string())
            .collect();
        values.dedup();
        assert_eq!(
            values.len(),
            1,
            "half a transaction in a backup: {values:?}"
        );
        client
            .put("/api/default/types/t/new", r#"{"value":{"n":0}}"#)
            .expect(201);
        twin.stop();
        oracle::verify(&copy);
    }
}

#[test]
fn a_backup_refuses_to_overwrite() {
    let place = Place::new();
    let mut server = Launch::at(&place.root()).start();
    server
        .client()
        .put("/api/default/types/t", "{}")
        .expect(200);
    let copy = place.path("copy");
    std::fs::create_dir(&copy).expect("writable");
    std::fs::write(copy.join("mine"), b"precious").expect("writable");
    let root = place.root();
    let paths = [root.to_str(), copy.to_str()].map(|path| path.expect("UTF-8"));
    let done = okdb(["backup", "--root", paths[0], paths[1]]);
    assert_ne!(done.code, 0, "{}{}", done.stdout, done.stderr);
    assert_eq!(
        std::fs::read(copy.join("mine")).expect("there"),
        b"precious"
    );
    server.stop();
    let _ = okdb(["verify", "--root", paths[0]]).expect(0);
}

#[test]
fn a_root_that_is_none_is_no_backup() {
    let place = Place::new();
    let (from, to) = (place.path("nothing"), place.path("copy"));
    let paths = [from.to_str(), to.to_str()].map(|path| path.expect("UTF-8"));
    let done = okdb(["backup", "--root", paths[0], paths[1]]);
    assert!(matches!(done.code, 1 | 2), "{done:?}");
    assert!(done.stderr.contains(paths[0]), "{done:?}");
    assert!(!from.exists(), "a tool made a root");
    assert_eq!(
        json!(to.exists()),
        json!(false),
        "a failed backup leaves a copy"
    );
}
