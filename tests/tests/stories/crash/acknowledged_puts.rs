//! Many small writes in flight at once, so that they share commits, and then a
//! power cut: each counter stands at what was acknowledged, or at the one write
//! whose answer was lost; never lower, never anything else.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use okdb_tests::data::Random;
use okdb_tests::oracle;
use okdb_tests::server::{Launch, Place};
use okdb_tests::torture::{Table, rounds};
use okdb_tests::wait::{SOON, Stop, wait_until};

const WRITERS: usize = 16;

/// What one writer knows when it ends.
struct Last {
    acknowledged: u64,
    version: u64,
    sent: u64,
}

fn story(durability: &str) {
    let rounds = rounds(3, 40);
    let mut random = Random::new("acknowledged_puts", 11);
    let place = Place::new();
    let mut lasts: Vec<Last> = (0..WRITERS)
        .map(|_| Last {
            acknowledged: 0,
            version: 0,
            sent: 0,
        })
        .collect();
    let (mut total, mut unanswered_there) = (0, 0);
    let mut top = 0;
    for _ in 0..rounds {
        let mut server = Launch::at(&place.root())
            .args(&["--durability", durability, "--auto-types"])
            .start();
        let mut client = server.client();
        let clock = oracle::clock(&mut client);
        assert!(clock >= top, "the clock stepped back from {top} to {clock}");

        let done = AtomicUsize::new(0);
        let stop = Stop::default();
        let kill_after = 50 + random.index(500);
        thread::scope(|scope| {
            let _end = stop.at_end();
            for (writer, last) in lasts.iter_mut().enumerate() {
                let mut client = server.client();
                let (done, stop) = (&done, &stop);
                scope.spawn(move || {
                    while !stop.is_set() {
                        let number = last.sent + 1;
                        last.sent = number;
                        let body = format!(r#"{{"value":{number}}}"#);
                        let path = format!("/api/default/types/counter/{writer}");
                        let Ok(answer) = client.call("PUT", &path, &[], Some(body.as_bytes()))
                        else {
                            return;
                        };
                        if answer.status == 503 {
                            return;
                        }
                        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
                        let version = answer.json()["version"].as_u64().expect("a version");
                        assert!(version > last.version, "{version} after {}", last.version);
                        last.version = version;
                        last.acknowledged = number;
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            wait_until("writes", SOON, || done.load(Ordering::SeqCst) >= kill_after);
            thread::sleep(Duration::from_micros(random.below(3_000)));
            server.kill_all();
        });
        total += done.load(Ordering::SeqCst);

        let server = Launch::at(&place.root())
            .args(&["--durability", durability])
            .start();
        oracle::verify(&place.root());
        let mut client = server.client();
        top = oracle::clock(&mut client);
        let found = oracle::records(&mut client, "counter");
        for (writer, last) in lasts.iter_mut().enumerate() {
            let Some(record) = found.get(&writer.to_string()) else {
                assert_eq!(last.acknowledged, 0, "counter {writer} is gone");
                last.sent = 0;
                continue;
            };
            let value = record.value.as_u64().expect("a number");
            if value == last.acknowledged {
                assert_eq!(record.version, last.version);
            } else {
                assert_eq!(value, last.sent, "counter {writer}");
                assert!(record.version > last.version);
                unanswered_there += 1;
            }
            assert!(record.version <= top);
            last.acknowledged = value;
            last.version = record.version;
            last.sent = value;
        }
    }
    let mut table = Table::new(
        &format!("{WRITERS} writers, {rounds} power cuts"),
        &["durability", "puts acknowledged", "unanswered, there"],
    );
    table.row(durability, &[total as u64, unanswered_there]);
    table.print();
}

#[test]
fn strict_loses_none_to_a_power_cut_of_the_processes() {
    story("strict");
}

#[test]
fn a_process_crash_loses_nothing_in_fast_mode_either() {
    story("fast");
}
