//! The shared segment left by a crash, deleted, cut, overwritten, replaced by
//! something else: rebuilt, or refused with its path; never believed blindly.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use okdb_tests::data::Random;
use okdb_tests::oracle;
use okdb_tests::process::Process;
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::torture::rounds;

fn segment_of(server: &Server) -> PathBuf {
    let primary = Process::find(server.pid()).expect("the server runs");
    let mut found = primary.shared_memory();
    assert_eq!(found.len(), 1, "one segment per root: {found:?}");
    found.remove(0)
}

/// The segments of the same root: the name up to its nonce.
fn siblings(segment: &Path) -> Vec<PathBuf> {
    let name = segment.file_name().and_then(|name| name.to_str());
    let prefix = name
        .and_then(|name| name.rsplit_once('-'))
        .map(|(root, _)| format!("{root}-"))
        .expect("a segment is named by root and nonce");
    let entries = fs::read_dir("/dev/shm").expect("/dev/shm is there");
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| entry.path())
        .collect()
}

/// Writes through every worker, and the clock must go on by exactly that.
fn clock_goes_on(server: &Server, last: u64) -> u64 {
    let mut clients = server.client_per_worker(2);
    assert!(
        oracle::clock(&mut clients[0]) >= last,
        "the clock stepped back"
    );
    clients[0].put("/api/default/types/t", "{}").expect(200);
    let before = oracle::clock(&mut clients[0]);
    for client in &mut clients {
        for _ in 0..5 {
            let answer = client.put("/api/default/types/t/k", r#"{"value":1}"#);
            assert!(matches!(answer.status, 200 | 201), "{answer:?}");
        }
    }
    let after = oracle::clock(&mut clients[1]);
    assert_eq!(after, before + 10);
    after
}

#[test]
fn a_clean_stop_leaves_none_and_a_crash_at_most_one() {
    let place = Place::new();
    let mut clock = 0;
    let mut known = PathBuf::new();
    for _ in 0..rounds(4, 20) {
        let mut server = Launch::at(&place.root()).start();
        known = segment_of(&server);
        assert_eq!(siblings(&known), [known.clone()], "they pile up");
        clock = clock_goes_on(&server, clock);
        server.kill_all();
    }
    let mut server = Launch::at(&place.root()).start();
    server.stop();
    let left = siblings(&known);
    assert!(left.is_empty(), "left after a clean stop: {left:?}");
}

#[test]
fn whatever_lies_there_is_replaced_or_refused_by_name() {
    type Spoil = fn(&Path, &Path);
    let cases: [(&str, Spoil); 9] = [
        ("deleted", |segment, _| {
            fs::remove_file(segment).expect("ours");
        }),
        ("cut to nothing", |segment, _| {
            fs::write(segment, b"").expect("ours");
        }),
        ("cut to 100 bytes", |segment, _| {
            let bytes = fs::read(segment).expect("ours");
            fs::write(segment, &bytes[..100]).expect("ours");
        }),
        ("random bytes", |segment, _| {
            let length = fs::metadata(segment).expect("ours").len();
            let length = usize::try_from(length).expect("a segment is small");
            let bytes = Random::new("segment", 7).bytes(length);
            fs::write(segment, bytes).expect("ours");
        }),
        ("all zeros", |segment, _| {
            let length = fs::metadata(segment).expect("ours").len();
            let length = usize::try_from(length).expect("a segment is small");
            fs::write(segment, vec![0; length]).expect("ours");
        }),
        ("another version", |segment, _| {
            let mut bytes = fs::read(segment).expect("ours");
            for byte in &mut bytes[8..16] {
                *byte ^= 0x55;
            }
            fs::write(segment, bytes).expect("ours");
        }),
        ("no permission", |segment, _| {
            fs::set_permissions(segment, fs::Permissions::from_mode(0o0)).expect("ours");
        }),
        ("a symlink", |segment, target| {
            fs::remove_file(segment).expect("ours");
            symlink(target, segment).expect("ours");
        }),
        ("a folder", |segment, _| {
            fs::remove_file(segment).expect("ours");
            fs::create_dir(segment).expect("ours");
        }),
    ];

    let place = Place::new();
    let target = place.path("innocent");
    fs::write(&target, b"do not touch").expect("writable");
    let mut clock = 0;
    for (name, spoil) in cases {
        let mut server = Launch::at(&place.root()).start();
        clock = clock_goes_on(&server, clock);
        let segment = segment_of(&server);
        server.kill_all();
        spoil(&segment, &target);

        let mut server = Launch::at(&place.root()).spawn();
        okdb_tests::wait::wait_until(name, okdb_tests::wait::SOON, || {
            server.is_ready() || server.try_exit().is_some()
        });
        if server.try_exit().is_some() {
            let log = server.log();
            let path = segment.to_string_lossy();
            assert!(
                log.contains(&*path),
                "{name}: refused without the path: {log}"
            );
        } else {
            server.wait_ready();
            clock = clock_goes_on(&server, clock);
            server.stop();
        }
        let innocent = fs::read(&target).expect("still there");
        assert_eq!(innocent, b"do not touch", "{name}");
        // For the refusals: clear the way as the message says.
        if segment.is_dir() {
            fs::remove_dir(&segment).expect("ours");
        } else if segment.symlink_metadata().is_ok() {
            fs::remove_file(&segment).expect("ours");
        }
    }
}

#[test]
fn the_name_of_the_segment_lost_or_garbled_is_written_anew() {
    let place = Place::new();
    let named = place.root().join("run/segment");
    let mut clock = 0;
    for garbage in [
        None,
        Some(&b""[..]),
        Some(b"\xff\x00garbage"),
        Some(b"/etc/passwd\n"),
    ] {
        let mut server = Launch::at(&place.root()).start();
        clock = clock_goes_on(&server, clock);
        let segment = segment_of(&server);
        server.kill_all();
        match garbage {
            None => fs::remove_file(&named).expect("it names the segment"),
            Some(bytes) => fs::write(&named, bytes).expect("it names the segment"),
        }
        let mut server = Launch::at(&place.root()).start();
        clock = clock_goes_on(&server, clock);
        let left = siblings(&segment);
        assert_eq!(left, [segment_of(&server)], "the old one is forgotten");
        server.stop();
    }
}

#[test]
fn it_can_live_in_the_root() {
    let place = Place::new();
    let mut server = Launch::at(&place.root()).arg("--segment-in-root").start();
    let primary = Process::find(server.pid()).expect("the server runs");
    assert_eq!(primary.shared_memory(), [] as [PathBuf; 0]);
    clock_goes_on(&server, 0);
    server.kill_all();
    let server = Launch::at(&place.root()).arg("--segment-in-root").start();
    clock_goes_on(&server, 1);
}
