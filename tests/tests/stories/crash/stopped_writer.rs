//! A worker that is stopped (SIGSTOP) while it holds LMDB's write lock: reads
//! go on everywhere, the supervisor kills it after two seconds, and writes
//! resume. A stopped worker delays writes by seconds, never for good.

use std::thread;
use std::time::{Duration, Instant};

use okdb_tests::data;
use okdb_tests::http::Client;
use okdb_tests::oracle;
use okdb_tests::process::{Process, Signal};
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::torture::{Table, rounds};
use okdb_tests::wait::{SOON, Stop, promised, wait_until};

/// How long a stopped worker may keep the lock.
const HELD_SECONDS: u64 = 2;

/// How long to look for a moment when the worker holds the lock.
const SEARCH: Duration = Duration::from_secs(20);

/// How long another worker's write may hang before the lock must be held.
const HANGS: Duration = Duration::from_millis(300);

/// Has worker 1 import without pause, until its connection is lost.
fn keep_importing(mut client: Client, body: &str, stop: &Stop) {
    while !stop.is_set() {
        let kind = [("content-type", "application/x-ndjson")];
        let path = "/api/default/import/place";
        if client
            .call("POST", path, &kind, Some(body.as_bytes()))
            .is_err()
        {
            return;
        }
    }
}

/// Stops the worker again and again, until a write by another worker hangs.
fn stopped_with_the_lock(victim: Process, writer: &mut Client) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < SEARCH && victim.lives() {
        victim.signal(Signal::SIGSTOP);
        wait_until("the stop", SOON, || {
            Process::find(victim.pid).is_none_or(|now| now.state == 'T')
        });
        let write = writer.call(
            "PUT",
            "/api/default/types/probe/k",
            &[],
            Some(br#"{"value":1}"#),
        );
        if write.is_err() {
            return true;
        }
        victim.signal(Signal::SIGCONT);
        // Not in step with the import's own rhythm.
        thread::sleep(Duration::from_micros(u64::from(
            begin.elapsed().subsec_micros() % 5_000,
        )));
    }
    false
}

#[test]
fn reads_go_on_and_writes_resume_after_two_seconds() {
    let mut table = Table::new(
        "worker stopped with the write lock",
        &["round", "caught", "writes back after ms"],
    );
    let body = data::lines((0..20_000).map(|number| (data::key(number), data::value(number, 1))));
    for round in 0..rounds(1, 10) {
        let place = Place::new();
        let server = Launch::at(&place.root()).start();
        let [mut reader, importer] = clients(&server);
        let [writer, _] = clients(&server);
        let mut writer = writer.within(HANGS);
        reader.put("/api/default/types/place", "{}").expect(200);
        reader.put("/api/default/types/probe", "{}").expect(200);
        let pid = server.wait_all_ready()[1].pid.expect("ready");
        let victim = Process::find(pid).expect("ready");
        let stop = Stop::default();
        let (caught, back) = thread::scope(|scope| {
            let _end = stop.at_end();
            scope.spawn(|| keep_importing(importer, &body, &stop));
            let caught = stopped_with_the_lock(victim, &mut writer);
            stop.set();
            let begin = Instant::now();
            if caught {
                wait_until("writes to resume", promised(HELD_SECONDS), || {
                    reader.get("/api/default/types/place?limit=1").expect(200);
                    let write = writer.call(
                        "PUT",
                        "/api/default/types/probe/k",
                        &[],
                        Some(br#"{"value":2}"#),
                    );
                    matches!(write, Ok(answer) if answer.status < 300)
                });
                // The lock is free a moment before the process is gone.
                wait_until("the end of the holder", SOON, || !victim.lives());
            }
            victim.signal(Signal::SIGCONT);
            (caught, begin.elapsed())
        });
        let back = u64::try_from(back.as_millis()).unwrap_or(u64::MAX);
        table.row(&round.to_string(), &[u64::from(caught), back]);
        let _ = server.wait_all_ready();
        oracle::verify(&place.root());
    }
    table.print();
}

fn clients(server: &Server) -> [Client; 2] {
    let clients = server.client_per_worker(2);
    clients
        .try_into()
        .unwrap_or_else(|_| unreachable!("two were asked for"))
}
