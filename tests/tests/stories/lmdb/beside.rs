//! Commands that open the root beside a cluster that writes: `verify`, `export`,
//! `backup`, `status`, `doctor`. A second opener that closes a descriptor on
//! LMDB's lock file, or starts it anew, makes two writers of one; their clocks
//! would then repeat.

use std::collections::BTreeSet;
use std::thread;

use okdb_tests::command::{doctor, okdb};
use okdb_tests::data;
use okdb_tests::oracle;
use okdb_tests::server::{Launch, Place};
use okdb_tests::torture::rounds;
use okdb_tests::wait::Stop;

#[test]
fn tools_come_and_go_and_there_is_one_writer_at_a_time() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client
        .put("/api/default/types/t", r#"{"indexes":[{"fields":["n"]}]}"#)
        .expect(200);
    let before = oracle::clock(&mut client);
    let pids: BTreeSet<i32> = server
        .processes()
        .iter()
        .map(|process| process.pid)
        .collect();
    let root = place.root();
    let root = root.to_str().expect("UTF-8");
    let stop = Stop::default();

    let versions: Vec<u64> = thread::scope(|scope| {
        let _end = stop.at_end();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let mut client = server.client();
                let stop = &stop;
                scope.spawn(move || {
                    let mut versions = Vec::new();
                    for number in 0.. {
                        if stop.is_set() {
                            break;
                        }
                        let answer = client.put(
                            &format!("/api/default/types/t/{writer}-{}", number % 100),
                            &format!(r#"{{"value":{{"n":{number}}}}}"#),
                        );
                        assert!(answer.status < 300, "{answer:?}");
                        versions.push(answer.json()["version"].as_u64().expect("a version"));
                    }
                    versions
                })
            })
            .collect();
        for number in 0..rounds(4, 100) {
            let copy = place.path(&format!("copy-{number}"));
            let copy = copy.to_str().expect("UTF-8");
            oracle::verify(&place.root());
            let _ = okdb(["export", "t", "--root", root]).expect(0);
            let _ = okdb(["backup", "--root", root, copy]).expect(0);
            let status = okdb(["status", "--root", root, "--json"]).expect(0).json();
            assert!(
                status.to_string().contains(&server.pid().to_string()),
                "{status}"
            );
            doctor(&place.root(), &[]).expect(0);
            std::fs::remove_dir_all(copy).expect("it was made");
        }
        // And one that writes: an import straight into the files.
        let file = place.path("lines");
        std::fs::write(&file, "{\"key\":\"beside\",\"value\":{\"n\":-1}}\n").expect("writable");
        let file = file.to_str().expect("UTF-8");
        let _ = okdb(["import", "t", file, "--root", root]).expect(0);
        stop.set();
        writers
            .into_iter()
            .flat_map(|writer| writer.join().expect("the writer's own checks"))
            .collect()
    });

    // Every step of the clock was given once: to a put here, or to the import.
    let after = oracle::clock(&mut client);
    let mut given: BTreeSet<u64> = versions.iter().copied().collect();
    assert_eq!(given.len(), versions.len(), "two writes got one version");
    let beside = client.get("/api/default/types/t/beside").expect(200).json();
    given.insert(beside["version"].as_u64().expect("a version"));
    assert_eq!(given, (before + 1..=after).collect());
    let now: BTreeSet<i32> = server
        .processes()
        .iter()
        .map(|process| process.pid)
        .collect();
    assert_eq!(now, pids, "somebody died\n{}", server.log());
    oracle::verify(&place.root());
}

#[test]
fn a_tool_that_is_killed_leaves_the_cluster_whole() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client.put("/api/default/types/t", "{}").expect(200);
    let lines = data::lines((0..20_000).map(|number| (format!("k{number}"), number.to_string())));
    let file = place.path("lines");
    std::fs::write(&file, &lines).expect("writable");
    let mut random = data::Random::new("killed tool", 8);
    for _ in 0..rounds(4, 60) {
        let mut importing = std::process::Command::new(okdb_tests::binary::okdb())
            .args(["import", "t"])
            .arg(&file)
            .arg("--root")
            .arg(place.root())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("okdb starts");
        thread::sleep(std::time::Duration::from_micros(random.below(300_000)));
        let _ = importing.kill();
        let _ = importing.wait();
        let answer = client.put("/api/default/types/t/after", r#"{"value":1}"#);
        assert!(answer.status < 300, "{answer:?}");
        oracle::verify(&place.root());
    }
}
