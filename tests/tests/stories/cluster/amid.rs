//! The primary dies amid a change: a reload, a change of the number of workers,
//! the check of an upgrade or its hand-over. There are more processes than slots
//! then, and none of them may outlive it.

use std::time::Duration;

use okdb_tests::data::Random;
use okdb_tests::http::Client;
use okdb_tests::load::{KIND, Load, Outcome};
use okdb_tests::oracle;
use okdb_tests::process::{Process, Signal};
use okdb_tests::server::{Launch, ORPHAN_SECONDS, Place, Server};
use okdb_tests::torture::{Table, rounds};
use okdb_tests::wait::{SOON, promised, wait_until};

const WORKERS: usize = 2;

/// A change, how it is asked for, and by what it is seen to have begun.
struct Change {
    name: &'static str,
    signal: Signal,
    /// Of something that does not pass: what is over between two looks would be waited for in vain.
    has_begun: fn(&Server) -> bool,
}

const CHANGES: [Change; 6] = [
    Change {
        name: "reload, asked for",
        signal: Signal::SIGHUP,
        has_begun: |_| true,
    },
    Change {
        name: "reload, begun",
        signal: Signal::SIGHUP,
        has_begun: |server| server.log().contains("reloading"),
    },
    Change {
        name: "one more",
        signal: Signal::SIGTTIN,
        has_begun: |server| server.workers().len() > WORKERS,
    },
    Change {
        name: "one fewer",
        signal: Signal::SIGTTOU,
        has_begun: |server| server.log().contains("one worker fewer"),
    },
    Change {
        name: "upgrade, checked",
        signal: Signal::SIGUSR2,
        has_begun: |server| server.log().contains("checking whether"),
    },
    Change {
        name: "upgrade, handed over",
        signal: Signal::SIGUSR2,
        has_begun: |server| server.log().contains("handing over"),
    },
];

fn launch(place: &Place) -> Server {
    Launch::at(&place.root())
        .args(&["--auto-types", "--durability", "fast"])
        .start()
}

/// A request whose body does not come: its worker, told to leave, waits for the drain's whole time.
fn unfinished(mut client: Client) -> Client {
    let head = format!(
        "PUT /api/default/types/{KIND}/half HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{"
    );
    client.send_raw(head.as_bytes()).expect("the server reads");
    client
}

#[test]
fn a_primary_killed_amid_a_change_leaves_nobody_and_loses_nothing() {
    let rounds = rounds(1, 20);
    let mut random = Random::new("amid::change", 7);
    let mut table = Table::new(
        "primary killed amid a change",
        &["", "kills", "processes at once"],
    );
    for change in &CHANGES {
        let place = Place::new();
        let (mut promises, mut most): (Vec<Outcome>, usize) = (Vec::new(), 0);
        let mut server = launch(&place);
        for round in 0..rounds {
            let name = format!("amid-{round}");
            let load = Load::start(&server.addresses()[0], &name, 3, 3);
            load.wait_for_more(20);
            server.signal(change.signal);
            wait_until(change.name, SOON, || (change.has_begun)(&server));
            // Not for synchronisation: at another moment of the change each time.
            std::thread::sleep(Duration::from_micros(random.below(20_000)));
            most = most.max(server.processes().len());
            server.kill_primary();
            server.wait_gone(promised(ORPHAN_SECONDS));
            server = launch(&place);
            promises.push(load.finish());
            // What earlier servers have promised holds, too.
            for outcome in &promises {
                assert_eq!(outcome.tally.refused, 0, "{:?}", outcome.tally);
                outcome.expect_written(&mut server.client());
            }
        }
        server.stop();
        oracle::verify(&place.root());
        table.row(change.name, &[rounds as u64, most as u64]);
    }
    table.print();
}

#[test]
fn workers_that_drain_do_not_outlive_the_primary() {
    let place = Place::new();
    for signal in [Signal::SIGHUP, Signal::SIGTTOU] {
        let mut server = launch(&place);
        let old = server.workers();
        let held: Vec<Client> = server
            .client_per_worker(WORKERS)
            .into_iter()
            .map(unfinished)
            .collect();
        server.signal(signal);
        wait_until("a worker that leaves", SOON, || {
            if signal == Signal::SIGTTOU {
                return server.log().contains("one worker fewer");
            }
            let now = server.slots();
            now.iter().all(|slot| {
                slot.state == "ready" && old.iter().all(|old| slot.pid != Some(old.pid))
            })
        });
        assert!(
            old.iter().all(Process::lives),
            "they have requests to finish"
        );
        server.kill_primary();
        server.wait_gone(promised(ORPHAN_SECONDS));
        drop(held);
    }
    launch(&place).stop();
}

#[test]
fn deaths_that_a_stopped_primary_could_not_see_are_made_good_when_it_goes_on() {
    let place = Place::new();
    let mut server = launch(&place);
    let slots = server.wait_all_ready();
    let victim = slots[1].pid.and_then(Process::find).expect("ready");
    let primary = Process::find(server.pid()).expect("a primary");
    primary.signal(Signal::SIGSTOP);
    wait_until("a stopped process", SOON, || {
        Process::find(primary.pid).is_some_and(|process| process.state == 'T')
    });
    victim.signal(Signal::SIGKILL);
    wait_until("the worker's end", SOON, || !victim.lives());
    // The connections that the kernel gives to the dead worker's listener wait; none is turned away.
    let load = Load::start(&server.addresses()[0], "unseen", 0, 12);
    load.wait_for_more(1);
    primary.signal(Signal::SIGCONT);
    let slots = server.wait_all_ready();
    assert_ne!(slots[1].pid, Some(victim.pid));
    assert_eq!(slots[1].restarts, 1, "{slots:?}");
    load.wait_for_more(50);
    let outcome = load.finish();
    outcome.tally.expect_no_failure();
    outcome.expect_written(&mut server.client());
    server.stop();
}
