//! `SIGTTIN` and `SIGTTOU`: workers come and go under load, and nobody's
//! connection is left in a queue.

use okdb_tests::load::Load;
use okdb_tests::process::{Signal, leaks_no_files, open_files};
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::torture::{Table, rounds};
use okdb_tests::wait::{SOON, wait_until};

use super::reload::wait_for_no_leavers;

fn ready(server: &Server) -> usize {
    let slots = server.slots();
    slots.iter().filter(|slot| slot.state == "ready").count()
}

#[test]
fn scaling_under_load_fails_no_request() {
    // Up by three and down again, so a step is one signal.
    let rounds = rounds(1, 17);
    let place = Place::new();
    let mut server = Launch::at(&place.root()).arg("--auto-types").start();
    let load = Load::start(&server.addresses()[0], "scale", 6, 6);
    load.wait_for_more(100);
    let mut steps = 0;
    let mut files = None;
    for _ in 0..rounds {
        for (signal, count) in [
            (Signal::SIGTTIN, 3),
            (Signal::SIGTTIN, 4),
            (Signal::SIGTTIN, 5),
            (Signal::SIGTTOU, 4),
            (Signal::SIGTTOU, 3),
            (Signal::SIGTTOU, 2),
        ] {
            server.signal(signal);
            wait_until("another number of workers", SOON, || {
                ready(&server) == count
            });
            load.wait_for_more(50);
            steps += 1;
        }
        wait_for_no_leavers(&server);
        // Slots that were scaled away keep their listeners, once made.
        let now = open_files(server.pid());
        let first = *files.get_or_insert(now);
        wait_until(
            "no descriptor more than after the first round",
            SOON,
            || leaks_no_files(server.pid(), first),
        );
    }
    let outcome = load.finish();
    outcome.tally.expect_no_failure();
    outcome.expect_written(&mut server.client());
    let mut table = Table::new("scaling under load", &["", "steps", "answered", "failed"]);
    table.row(
        "2 to 5 workers",
        &[steps, outcome.tally.answered, outcome.tally.failed],
    );
    table.print();
    server.stop();
}

#[test]
fn the_last_worker_stays_and_connections_for_the_others_are_answered() {
    let place = Place::new();
    let mut server = Launch::at(&place.root()).start();
    server.signal(Signal::SIGTTOU);
    wait_until("one worker", SOON, || ready(&server) == 1);
    server.signal(Signal::SIGTTOU);
    wait_until("the refusal", SOON, || {
        server.log().contains("it is the last worker")
    });
    assert_eq!(server.slots()[1].state, "decommissioned");
    // The kernel goes on to choose the empty slot's listener for half of them.
    for _ in 0..40 {
        let answer = server.fresh().get("/healthz").expect(200);
        assert_eq!(answer.worker(), 0);
    }
    // Whoever fills the slot again has its listeners for itself.
    server.signal(Signal::SIGTTIN);
    wait_until("two workers", SOON, || ready(&server) == 2);
    let mut clients = server.client_per_worker(2);
    clients[1].get("/healthz").expect(200);
    server.stop();
}
