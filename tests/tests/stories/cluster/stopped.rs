//! Processes that are stopped (`SIGSTOP`): one worker delays its own clients, a
//! primary nobody, and neither of them loses anything.

use std::time::{Duration, Instant};

use okdb_tests::load::Load;
use okdb_tests::process::{Process, Signal};
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::torture::{is_long, rounds};
use okdb_tests::wait::{SOON, wait_until};

fn worker_of(server: &Server, slot: usize) -> Process {
    server.wait_all_ready()[slot]
        .pid
        .and_then(Process::find)
        .expect("a ready slot has a worker")
}

fn stop(process: &Process) {
    process.signal(Signal::SIGSTOP);
    wait_until("a stopped process", SOON, || {
        Process::find(process.pid).is_some_and(|process| process.state == 'T')
    });
}

#[test]
fn a_stopped_worker_is_helped_out_and_replaced_in_the_end() {
    let timeout = rounds(5, 60).to_string();
    let place = Place::new();
    let mut server = Launch::at(&place.root())
        .args(&["--auto-types", "--worker-timeout", &timeout])
        .start();
    let stopped = worker_of(&server, 1);
    let neighbour = worker_of(&server, 0);
    stop(&stopped);
    // New connections only: those that were the stopped worker's wait with it.
    let load = Load::start(&server.addresses()[0], "stopped", 0, 8);
    wait_until("help from the other worker", SOON, || {
        server
            .log()
            .contains("the other workers answer for this slot")
    });
    load.wait_for_more(200);
    assert!(stopped.lives(), "it is given time");
    let limit = Duration::from_secs(if is_long() { 120 } else { 40 });
    wait_until("another worker in the slot", limit, || {
        let slot = &server.slots()[1];
        slot.state == "ready" && slot.pid != Some(stopped.pid)
    });
    load.wait_for_more(50);
    let outcome = load.finish();
    outcome.tally.expect_no_failure();
    outcome.expect_written(&mut server.client());
    assert!(neighbour.lives());
    server.stop();
}

#[test]
fn a_worker_that_goes_on_is_left_where_it_is() {
    let place = Place::new();
    let mut server = Launch::at(&place.root()).start();
    let stopped = worker_of(&server, 1);
    stop(&stopped);
    wait_until("help from the other worker", SOON, || {
        server
            .log()
            .contains("the other workers answer for this slot")
    });
    for _ in 0..20 {
        assert_eq!(server.fresh().get("/healthz").expect(200).worker(), 0);
    }
    stopped.signal(Signal::SIGCONT);
    let mut clients = server.client_per_worker(2);
    clients[1].get("/healthz").expect(200);
    assert!(worker_of(&server, 1).is(&stopped));
    server.stop();
}

#[test]
fn a_stopped_primary_is_not_noticed_and_blames_nobody_afterwards() {
    let place = Place::new();
    let mut server = Launch::at(&place.root())
        .args(&["--auto-types", "--worker-timeout", "2"])
        .start();
    let workers = [worker_of(&server, 0), worker_of(&server, 1)];
    let primary = Process::find(server.pid()).expect("a primary");
    let load = Load::start(&server.addresses()[0], "primary-stopped", 4, 4);
    load.wait_for_more(50);
    stop(&primary);
    // Longer than a silent worker would be allowed.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(5) {
        load.wait_for_more(20);
    }
    primary.signal(Signal::SIGCONT);
    load.wait_for_more(50);
    let outcome = load.finish();
    outcome.tally.expect_no_failure();
    outcome.expect_written(&mut server.client());
    for (slot, worker) in workers.iter().enumerate() {
        assert!(worker_of(&server, slot).is(worker), "slot {slot}");
    }
    server.stop();
}
