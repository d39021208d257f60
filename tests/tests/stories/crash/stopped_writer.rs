//! A worker that is stopped (SIGSTOP) while it holds LMDB's write lock: reads
//! go on everywhere, the supervisor kills it after two seconds, and writes
//! resume. A stopped worker delays writes by seconds, never for good.

use std::thread;
use std::time::{Duration, Instant};

use okdb_tests::data;
use okdb_tests::oracle;
use okdb_tests::process::{Process, Signal};
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::torture::{Table, rounds};
use okdb_tests::wait::{SOON, wait_until};

/// How often a worker is stopped in search of a moment when it holds the lock.
const TRIES: usize = 40;

/// Stops worker 1 amid an import so that a write on worker 0 hangs; the stopped
/// process, or none if no try found it with the lock.
fn stop_with_the_lock(server: &Server, victim: Process, body: &str) -> bool {
    let mut loader = server.client_per_worker(2).remove(1);
    let mut writer = server.client_per_worker(2).remove(0);
    let head = format!(
        "POST /api/default/import/place HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    loader.send_raw(head.as_bytes()).expect("it reads");
    let body = body.to_owned();
    let importing = thread::spawn(move || {
        let _ = loader.send_raw(body.as_bytes());
        let _ = loader.receive(false);
    });
    let mut caught = false;
    for _ in 0..TRIES {
        if importing.is_finished() {
            break;
        }
        victim.signal(Signal::SIGSTOP);
        wait_until("the stop", SOON, || {
            Process::find(victim.pid).is_none_or(|now| now.state == 'T')
        });
        let mut impatient = writer.within(Duration::from_millis(300));
        let write = impatient.call(
            "PUT",
            "/api/default/types/probe/k",
            &[],
            Some(br#"{"value":1}"#),
        );
        if write.is_err() {
            caught = true;
            break;
        }
        victim.signal(Signal::SIGCONT);
        writer = impatient;
        thread::sleep(Duration::from_millis(3));
    }
    // The importing client waits for an answer that comes or is cut off.
    drop(importing);
    caught
}

#[test]
fn reads_go_on_and_writes_resume_after_two_seconds() {
    let mut table = Table::new(
        "worker stopped with the write lock",
        &["round", "caught", "writes back after ms"],
    );
    let body = data::lines((0..40_000).map(|number| (data::key(number), data::value(number, 1))));
    for round in 0..rounds(1, 10) {
        let place = Place::new();
        let server = Launch::at(&place.root()).start();
        let mut client = server.client_per_worker(2).remove(0);
        client.put("/api/default/types/place", "{}").expect(200);
        client.put("/api/default/types/probe", "{}").expect(200);
        let pid = server.wait_all_ready()[1].pid.expect("ready");
        let victim = Process::find(pid).expect("ready");
        let caught = stop_with_the_lock(&server, victim, &body);
        let begin = Instant::now();
        if caught {
            client.get("/api/default/types/probe/k");
            let mut reader = server.client_per_worker(1).remove(0);
            wait_until("writes to resume", Duration::from_secs(8), || {
                reader.get("/api/default/types/place?limit=1").expect(200);
                let write = client.call(
                    "PUT",
                    "/api/default/types/probe/k",
                    &[],
                    Some(br#"{"value":2}"#),
                );
                matches!(write, Ok(answer) if answer.status < 300)
            });
            assert!(!victim.lives(), "writes resumed, yet the holder lives");
        } else {
            victim.signal(Signal::SIGCONT);
        }
        let back = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        table.row(&round.to_string(), &[u64::from(caught), back]);
        let _ = server.wait_all_ready();
        oracle::verify(&place.root());
    }
    table.print();
}
