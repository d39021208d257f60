//! Workers without a descriptor left: they wait for one without burning time, and
//! go on by themselves.

use std::fs;
use std::io::ErrorKind;
use std::time::Duration;

use okdb_tests::http::Client;
use okdb_tests::process::open_files;
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::wait::{SOON, wait_until};

/// Processor time that a process has used, in ticks of a hundredth of a second.
fn ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |place: usize| fields[place].parse::<u64>().expect("a number");
    number(11) + number(12)
}

fn limit_files(pid: i32, files: usize) {
    let done = std::process::Command::new("prlimit")
        .args([
            "--pid".to_owned(),
            pid.to_string(),
            format!("--nofile={files}:{files}"),
        ])
        .status()
        .expect("prlimit");
    assert!(done.success());
}

fn pids(server: &Server) -> Vec<i32> {
    server.slots().iter().filter_map(|slot| slot.pid).collect()
}

#[test]
fn out_of_descriptors_nobody_spins_and_nobody_stays_deaf() {
    let place = Place::new();
    let mut server = Launch::at(&place.root()).arg("--auto-types").start();
    server
        .client()
        .put("/api/default/types/t/a", r#"{"value":1}"#)
        .expect(201);
    let workers = pids(&server);
    for pid in &workers {
        limit_files(*pid, open_files(*pid) + 8);
    }
    // More than both can take.
    let held: Vec<Client> = (0..60)
        .map(|_| {
            let mut client = Client::new(&server.addresses()[0]);
            client.connect().expect("the kernel accepts");
            client
        })
        .collect();
    wait_until("a word about it", SOON, || {
        server.log().contains("cannot accept connections")
    });
    let before: u64 = workers.iter().map(|pid| ticks(*pid)).sum();
    let begin = std::time::Instant::now();
    // How long is looked at, not how long something takes.
    std::thread::sleep(Duration::from_secs(2));
    let used: u64 = workers.iter().map(|pid| ticks(*pid)).sum::<u64>() - before;
    let passed = u64::try_from(begin.elapsed().as_millis() / 10).expect("short");
    assert!(
        used * 5 < passed,
        "{used} ticks of {passed}: somebody spins"
    );
    let complaints = server.log().matches("cannot accept connections").count();
    assert!(complaints < 12, "{complaints} lines about the same");

    // An idle connection may have been given up for a newer one, and who waited too long is turned away with words; nobody
    // waits for ever.
    for client in held {
        let mut client = client.within(Duration::from_secs(20));
        let answer = client.call("GET", "/healthz", &[], None);
        match answer {
            Ok(answer) => assert!(matches!(answer.status, 200 | 503), "{answer:?}"),
            Err(error) => assert_ne!(error.kind(), ErrorKind::WouldBlock, "left waiting"),
        }
    }
    // They are gone: whoever comes now is served.
    for _ in 0..20 {
        server.fresh().get("/healthz").expect(200);
    }
    server.client().get("/api/default/types/t/a").expect(200);
    assert_eq!(pids(&server), workers, "nobody died of it");
    server.stop();
}
