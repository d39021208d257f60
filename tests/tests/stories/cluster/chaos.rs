//! Random deaths under mixed load: whatever was acknowledged is there afterwards,
//! the store is whole, and nothing is left behind by anybody.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use okdb_tests::data::Random;
use okdb_tests::load::{Load, Outcome, Tally};
use okdb_tests::oracle;
use okdb_tests::process::{Process, Signal, leaks_no_files, open_files};
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::torture::{Table, rounds};
use okdb_tests::wait::{SOON, wait_until};

const WORKERS: usize = 4;
/// Four deaths of a slot within ten seconds are no crash loop.
const BETWEEN_DEATHS_OF_A_SLOT: Duration = Duration::from_millis(2_600);

fn launch(place: &Place) -> Server {
    Launch::plain(&place.root())
        .args(&["--workers", "4", "--auto-types", "--durability", "fast"])
        .start()
}

/// What the segments of this root are called in `/dev/shm`.
fn segments(place: &Place) -> Vec<PathBuf> {
    let pointer = fs::read_to_string(place.root().join("run/segment")).unwrap_or_default();
    let name = pointer
        .split_whitespace()
        .find(|word| word.contains("okdb-"));
    let Some(root) = name.and_then(|name| name.split("okdb-").nth(1)?.split('-').next()) else {
        return Vec::new();
    };
    let all = fs::read_dir("/dev/shm").expect("a folder");
    all.filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().contains(root))
        .collect()
}

/// Waits until a slot is ready, with a worker.
fn worker_of(server: &Server, slot: usize) -> Process {
    let mut found = None;
    wait_until("a ready slot", SOON, || {
        let slots = server.slots();
        found = slots
            .get(slot)
            .filter(|slot| slot.state == "ready")
            .and_then(|slot| Process::find(slot.pid?));
        found.is_some()
    });
    found.expect("just found")
}

/// Ends a load, and asks for everything that was ever acknowledged: a later crash may not undo what an earlier one left.
fn settle(so_far: &mut Vec<Outcome>, load: Load, server: &Server) {
    so_far.push(load.finish());
    let mut client = server.client();
    for outcome in so_far {
        outcome.expect_written(&mut client);
    }
}

fn sum(outcomes: &[Outcome], of: impl Fn(&Tally) -> u64) -> u64 {
    outcomes.iter().map(|outcome| of(&outcome.tally)).sum()
}

fn expect_no_wrong_answer(outcomes: &[Outcome]) {
    for outcome in outcomes {
        let tally = &outcome.tally;
        assert_eq!(
            tally.refused, 0,
            "a death is no excuse for a wrong answer: {tally:?}"
        );
    }
}

/// The most places that the reader table of the environment `default` has had in use at a time.
fn readers(server: &Server) -> u64 {
    let text = server.fresh().get("/metrics").expect(200).text();
    let value = text
        .lines()
        .find(|line| line.starts_with("okdb_readers{") && line.contains("\"default\""))
        .and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no okdb_readers in {text}"))
}

#[test]
fn workers_that_die_at_random_lose_nothing_and_leave_nothing() {
    let kills = rounds(8, 500);
    let mut random = Random::new("chaos::workers", 1);
    let place = Place::new();
    let mut server = launch(&place);
    let load = Load::start(&server.addresses()[0], "workers", 6, 6);
    load.wait_for_more(100);
    let files = open_files(server.pid());
    let readers_before = readers(&server);
    let mut last_death: HashMap<usize, Instant> = HashMap::new();
    for _ in 0..kills {
        let slot = random.index(WORKERS);
        if let Some(died) = last_death.get(&slot) {
            // Not for synchronisation: the guard counts deaths by the clock.
            thread::sleep(BETWEEN_DEATHS_OF_A_SLOT.saturating_sub(died.elapsed()));
        }
        let worker = worker_of(&server, slot);
        load.wait_for_more(random.below(40));
        worker.signal(Signal::SIGKILL);
        last_death.insert(slot, Instant::now());
    }
    wait_until("a successor of every dead worker", SOON, || {
        let slots = server.slots();
        let restarts: u64 = slots.iter().map(|slot| slot.restarts).sum();
        restarts == kills as u64 && slots.iter().all(|slot| slot.state == "ready")
    });
    let mut outcomes = Vec::new();
    settle(&mut outcomes, load, &server);
    expect_no_wrong_answer(&outcomes);
    wait_until("as many descriptors as before", SOON, || {
        leaks_no_files(server.pid(), files)
    });
    // Each dead worker's places are free again, or every death would add one at least.
    let readers_after = readers(&server);
    assert!(
        readers_after <= readers_before + kills as u64 / 2,
        "{readers_before}, then {readers_after} places for readers"
    );
    server.stop();
    oracle::verify(&place.root());
    assert_eq!(
        segments(&place),
        Vec::<PathBuf>::new(),
        "a segment was left"
    );
    let mut table = Table::new(
        "workers killed at random",
        &[
            "",
            "kills",
            "answered",
            "connections lost",
            "readers before",
            "after",
        ],
    );
    let answered = sum(&outcomes, |tally| tally.answered);
    let failed = sum(&outcomes, |tally| tally.failed);
    table.row(
        "4 workers",
        &[
            kills as u64,
            answered,
            failed,
            readers_before,
            readers_after,
        ],
    );
    table.print();
}

fn restarts_after(name: &str, rounds: usize, kill: fn(&mut Server)) {
    let mut random = Random::new("chaos::restarts", 2);
    let place = Place::new();
    let mut outcomes = Vec::new();
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        let begin = Instant::now();
        let server = launch(&place);
        slowest = slowest.max(begin.elapsed());
        assert!(segments(&place).len() <= 1, "a segment was left");
        let load = Load::start(&server.addresses()[0], &format!("{name}-{round}"), 4, 4);
        load.wait_for_more(20 + random.below(100));
        let family = server.processes();
        let mut server = server;
        kill(&mut server);
        wait_until("the end of every process", Duration::from_secs(5), || {
            family.iter().all(|process| !process.lives())
        });
        let next = launch(&place);
        settle(&mut outcomes, load, &next);
        let mut next = next;
        next.stop();
        oracle::verify(&place.root());
    }
    expect_no_wrong_answer(&outcomes);
    let mut table = Table::new(
        &format!("{name} killed"),
        &[
            "",
            "kills",
            "answered",
            "connections lost",
            "slowest start ms",
        ],
    );
    let slowest = u64::try_from(slowest.as_millis()).unwrap_or(u64::MAX);
    table.row(
        "4 workers",
        &[
            rounds as u64,
            sum(&outcomes, |tally| tally.answered),
            sum(&outcomes, |tally| tally.failed),
            slowest,
        ],
    );
    table.print();
}

#[test]
fn a_primary_that_dies_at_random_loses_nothing_and_leaves_nobody() {
    restarts_after("primary", rounds(2, 50), Server::kill_primary);
}

#[test]
fn everything_that_dies_at_once_loses_nothing() {
    restarts_after("everything", rounds(1, 20), Server::kill_all);
}
