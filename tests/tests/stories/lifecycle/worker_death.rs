//! A worker dies with SIGKILL: it is replaced, the others serve on, and the
//! connections that waited for it are answered.

use std::thread;
use std::time::Duration;

use okdb_tests::process::{Process, Signal, signal_pid};
use okdb_tests::server::{Launch, Place};
use okdb_tests::torture::rounds;
use okdb_tests::wait::{SOON, wait_for, wait_until};

#[test]
fn it_is_replaced_and_the_others_serve_meanwhile() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let mut clients = server.client_per_worker(2);
    clients[0].put("/api/default/types/t", "{}").expect(200);
    for round in 0..rounds(2, 20) {
        let before = server.wait_all_ready();
        let victim = before[1].pid.expect("a ready slot has a worker");
        signal_pid(victim, Signal::SIGKILL);
        let replaced = wait_for("a ready worker in slot 1", SOON, || {
            // All this while worker 0 reads and writes.
            let path = format!("/api/default/types/t/{round}");
            let written = clients[0].put(&path, r#"{"value":1}"#);
            assert!(matches!(written.status, 200 | 201), "{written:?}");
            clients[0].get(&path).expect(200);
            let slots = server.slots();
            let slot = slots.get(1).cloned()?;
            (slot.state == "ready" && slot.pid != Some(victim)).then_some(slot)
        });
        assert_eq!(replaced.restarts, before[1].restarts + 1);
        let untouched = &server.slots()[0];
        assert_eq!(untouched.pid, before[0].pid);
        assert_eq!(untouched.restarts, before[0].restarts);
        let mut back = server.client_per_worker(2);
        back[1]
            .get(&format!("/api/default/types/t/{round}"))
            .expect(200);
        if round % 3 == 2 {
            // Keep clear of the crash-loop guard in the long form.
            thread::sleep(Duration::from_secs(10));
        }
    }
}

#[test]
fn connections_queued_for_the_dead_slot_are_answered() {
    let place = Place::new();
    for _ in 0..rounds(2, 40) {
        // A new server each time: the deaths would soon be a crash loop.
        let server = Launch::at(&place.root()).start();
        let slots = server.wait_all_ready();
        let victim = slots[1].pid.and_then(Process::find).expect("ready");
        victim.signal(Signal::SIGKILL);
        // What it has accepted dies with it; what comes now is queued.
        wait_until("the worker's end", SOON, || !victim.lives());
        let callers: Vec<_> = (0..40)
            .map(|_| {
                let mut client = server.fresh().within(Duration::from_secs(10));
                thread::spawn(move || client.call("GET", "/healthz", &[], None))
            })
            .collect();
        for caller in callers {
            let answer = caller.join().expect("the caller ends");
            let answer = answer.expect("a connection that the kernel accepted is answered");
            assert_eq!(answer.status, 200);
        }
    }
}

#[test]
fn a_death_does_not_change_what_the_primary_is() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let slots = server.wait_all_ready();
    let before = server.status();
    signal_pid(slots[0].pid.expect("ready"), Signal::SIGABRT);
    let after = wait_for("the death in the status", SOON, || {
        let status = server.status();
        let slot = status["workers"].as_array()?.first()?.clone();
        (slot["restarts"] == 1 && slot["state"] == "ready").then_some(status)
    });
    assert_eq!(before["primary"]["pid"], after["primary"]["pid"]);
    assert_eq!(before["primary"]["pid"], i64::from(server.pid()));
    assert_eq!(before["mode"], "cluster");
    let exit = after["workers"][0]["lastExit"].to_string();
    assert!(
        exit.contains("ABRT") || exit.contains('6'),
        "how it ended is not told: {exit}"
    );
}
