//! A worker that somebody sends `SIGTERM`, past the supervisor: it drains, and
//! nobody's connection waits for it meanwhile.

use okdb_tests::load::Load;
use okdb_tests::process::{Process, Signal};
use okdb_tests::server::{Launch, Place};
use okdb_tests::wait::{SOON, wait_until};

#[test]
fn while_it_finishes_the_others_answer_its_queue() {
    let place = Place::new();
    let mut server = Launch::at(&place.root()).arg("--auto-types").start();
    let mut clients = server.client_per_worker(2);
    let worker = server.slots()[1]
        .pid
        .and_then(Process::find)
        .expect("ready");
    // A request that keeps it from leaving.
    clients[1]
        .send_raw(b"PUT /api/default/types/t/slow HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{\"val")
        .expect("sent");
    let load = Load::start(&server.addresses()[0], "sent-away", 0, 6);
    load.wait_for_more(50);
    worker.signal(Signal::SIGTERM);
    wait_until("a draining slot", SOON, || {
        server.slots()[1].state == "draining"
    });
    load.wait_for_more(200);
    assert!(worker.lives(), "it has a request to finish");
    let outcome = load.finish();
    outcome.tally.expect_no_failure();
    clients[1].send_raw(b"ue\":1}").expect("sent");
    let answer = clients[1].receive(false).expect("an answer");
    assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    wait_until("its successor", SOON, || {
        let slot = &server.slots()[1];
        slot.state == "ready" && slot.pid != Some(worker.pid)
    });
    server.stop();
}
