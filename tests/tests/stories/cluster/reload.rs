//! `SIGHUP`: the configuration is read again and every worker is replaced, while
//! clients notice nothing.

use std::fs;

use okdb_tests::load::Load;
use okdb_tests::process::{Signal, leaks_no_files, open_files};
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::torture::{Table, rounds};
use okdb_tests::wait::{SOON, wait_until};

const KEPT: usize = 6;
const FRESH: usize = 6;

fn pids(server: &Server) -> Vec<Option<i32>> {
    server.slots().iter().map(|slot| slot.pid).collect()
}

/// Waits until every slot is ready with another worker than before.
fn wait_for_others(server: &Server, before: &[Option<i32>]) {
    wait_until("a new worker in every slot", SOON, || {
        let slots = server.slots();
        slots.iter().all(|slot| slot.state == "ready")
            && slots.iter().all(|slot| !before.contains(&slot.pid))
    });
}

/// Waits until nobody but the slots' workers is left.
pub(super) fn wait_for_no_leavers(server: &Server) {
    wait_until("the end of the old workers", SOON, || {
        server.workers().len() == pids(server).iter().flatten().count()
    });
}

#[test]
fn rolling_reloads_under_load_fail_no_request() {
    let rounds = rounds(5, 100);
    let place = Place::new();
    let mut server = Launch::plain(&place.root())
        .args(&["--workers", "3", "--auto-types"])
        .start();
    let load = Load::start(&server.addresses()[0], "reload", KEPT, FRESH);
    load.wait_for_more(100);
    let files = open_files(server.pid());
    for _ in 0..rounds {
        let before = pids(&server);
        server.signal(Signal::SIGHUP);
        wait_for_others(&server, &before);
        load.wait_for_more(50);
    }
    let outcome = load.finish();
    outcome.tally.expect_no_failure();
    outcome.expect_written(&mut server.client());
    assert!(server.slots().iter().all(|slot| slot.restarts == 0));
    wait_for_no_leavers(&server);
    wait_until("no descriptor more than before", SOON, || {
        leaks_no_files(server.pid(), files)
    });
    let mut table = Table::new(
        "rolling reloads under load",
        &["", "reloads", "answered", "failed"],
    );
    table.row(
        "3 workers",
        &[rounds as u64, outcome.tally.answered, outcome.tally.failed],
    );
    table.print();
    server.stop();
}

#[test]
fn a_configuration_with_a_mistake_changes_nothing_and_a_good_one_takes_effect() {
    let place = Place::new();
    let file = place.path("okdb.json");
    fs::write(&file, r#"{"limits":{"bodyBytes":20000}}"#).expect("written");
    let mut server = Launch::plain(&place.root())
        .args(&["--workers", "2", "--auto-types", "--config"])
        .arg(&file)
        .start();
    let before = pids(&server);
    fs::write(&file, r#"{"limits":{"bodyByte":4096}}"#).expect("written");
    server.signal(Signal::SIGHUP);
    wait_until("the refusal", SOON, || {
        server.log().contains("reload refused")
    });
    assert!(server.log().contains("bodyByte"), "{}", server.log());
    assert_eq!(pids(&server), before);

    fs::write(
        &file,
        r#"{"limits":{"bodyBytes":4096},"http":{"workers":3}}"#,
    )
    .expect("written");
    server.signal(Signal::SIGHUP);
    wait_for_others(&server, &before);
    for mut client in server.client_per_worker(2) {
        let info = client.get("/api/info").expect(200).json();
        assert_eq!(info["limits"]["bodyBytes"], 4096);
    }
    server.stop();
}

#[test]
fn the_number_of_workers_follows_the_configuration() {
    let place = Place::new();
    let file = place.path("okdb.json");
    fs::write(&file, r#"{"http":{"workers":2}}"#).expect("written");
    let mut server = Launch::plain(&place.root())
        .arg("--config")
        .arg(&file)
        .start();
    for (count, ready) in [(4, 4), (1, 1), (3, 3)] {
        fs::write(&file, format!(r#"{{"http":{{"workers":{count}}}}}"#)).expect("written");
        server.signal(Signal::SIGHUP);
        wait_until("as many workers as configured", SOON, || {
            let slots = server.slots();
            slots.iter().filter(|slot| slot.state == "ready").count() == ready
        });
    }
    server.stop();
}

#[test]
fn a_single_process_reads_its_configuration_and_goes_on() {
    let place = Place::new();
    let mut server = Launch::plain(&place.root())
        .args(&["--workers", "1"])
        .start();
    for (signal, word) in [
        (Signal::SIGHUP, "reloaded"),
        (Signal::SIGTTIN, "refused"),
        (
            Signal::SIGUSR2,
            "refused: a single process cannot be upgraded",
        ),
    ] {
        server.signal(signal);
        wait_until(word, SOON, || server.log().contains(word));
        server.client().get("/healthz").expect(200);
    }
    server.stop();
}
