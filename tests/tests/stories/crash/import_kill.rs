//! A large import through a cluster, interrupted by SIGKILL at random moments:
//! of the importing worker, of the primary, of everything at once.
//!
//! After each restart: `verify` is clean; each acknowledged batch is whole, with
//! the versions that were answered; a transaction without an answer is there
//! whole or not at all; and the versions given since the last look are exactly
//! the clock's steps, none skipped, none given twice.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use okdb_tests::data::Random;
use okdb_tests::oracle;
use okdb_tests::process::{Process, Signal, signal_pid};
use okdb_tests::server::{Launch, ORPHAN_SECONDS, Place, Server};
use okdb_tests::torture::{Table, is_long, rounds};
use okdb_tests::wait::{SOON, promised, wait_until};

use super::import::{Attempt, BATCH_RECORDS, Counts, Import, Round, Route, TYPE};

/// Records in the short form, and in the long one: as many as the world has cities.
const RECORDS_SHORT: usize = 20_000;
const RECORDS_LONG: usize = 171_075;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Worker,
    Primary,
    Everything,
}

const VICTIMS: [Victim; 3] = [Victim::Worker, Victim::Primary, Victim::Everything];

#[test]
fn an_import_survives_every_kill() {
    let records = if is_long() {
        RECORDS_LONG
    } else {
        RECORDS_SHORT
    };
    let rounds = rounds(6, 50);
    let mut random = Random::new("import_kill", 20_260_101);
    let place = Place::new();
    let mut server = Launch::at(&place.root()).start();
    let mut client = server.client();
    client
        .put(
            &format!("/api/default/types/{TYPE}"),
            r#"{"indexes":[{"fields":["country"]},{"fields":["country","name"]},{"fields":["tags"]}]}"#,
        )
        .expect(200);

    let mut import = Import::new(records);
    let mut clock = oracle::clock(&mut client);
    let mut totals = [Counts::default(); VICTIMS.len()];
    let mut slowest = [Duration::ZERO; VICTIMS.len()];
    for round in 0..rounds {
        let which = round % VICTIMS.len();
        let (attempts, recovery) = one_round(
            &mut server,
            &place,
            &import,
            VICTIMS[which],
            &mut random,
            records / BATCH_RECORDS / rounds,
        );
        slowest[which] = slowest[which].max(recovery);

        oracle::verify(&place.root());
        let mut client = server.client();
        clock = oracle::clock_has_no_gap(&mut client, TYPE, clock);
        let found = oracle::records(&mut client, TYPE);
        totals[which].add(import.check(&attempts, &found));
        import.refill();
    }

    let mut table = Table::new(
        &format!(
            "import of {records} records, {rounds} kills; {} written at the end, clock {clock}",
            import.written()
        ),
        &[
            "killed",
            "batches acknowledged",
            "unanswered: whole",
            "absent",
            "in part (import)",
            "refused",
            "slowest recovery ms",
        ],
    );
    for (which, victim) in VICTIMS.iter().enumerate() {
        let counts = totals[which];
        table.row(
            &format!("{victim:?}"),
            &[
                counts.acknowledged,
                counts.unknown_applied,
                counts.unknown_absent,
                counts.unknown_partial,
                counts.refused,
                u64::try_from(slowest[which].as_millis()).unwrap_or(u64::MAX),
            ],
        );
    }
    table.print();
    server.stop();
    oracle::verify(&place.root());
}

/// Imports on three connections until a random moment, kills, and waits until a
/// whole cluster serves again; the attempts, and how long that took. `share` is the
/// number of batches of which the rounds together make about one pass.
fn one_round(
    server: &mut Server,
    place: &Place,
    import: &Import,
    victim: Victim,
    random: &mut Random,
    share: usize,
) -> (Vec<Attempt>, Duration) {
    let round = Round::default();
    let address = server.addresses()[0].clone();
    let kill_after = random.index(2 * share.max(1)) + 1;
    let kill_delay = Duration::from_micros(random.below(20_000));
    thread::scope(|scope| {
        let _end = round.stop.at_end();
        let importers: Vec<_> = [Route::Transaction, Route::Import, Route::Transaction]
            .into_iter()
            .map(|route| {
                let (address, round) = (&address, &round);
                scope.spawn(move || import.send(address, route, round))
            })
            .collect();
        wait_until("batches to be acknowledged", SOON, || {
            round.acknowledged.load(Ordering::SeqCst) >= kill_after
                || importers.iter().all(thread::ScopedJoinHandle::is_finished)
        });
        thread::sleep(kill_delay);
        let begin = Instant::now();
        match victim {
            Victim::Worker => {
                let slot = round.worker.load(Ordering::SeqCst);
                let pid = server.slots()[slot].pid.expect("it answered");
                let killed = Process::find(pid).expect("it answered");
                signal_pid(pid, Signal::SIGKILL);
                wait_until("the worker's end", SOON, || !killed.lives());
                let _ = server.wait_all_ready();
            }
            Victim::Primary => {
                server.kill_primary();
                server.wait_gone(promised(ORPHAN_SECONDS));
            }
            Victim::Everything => server.kill_all(),
        }
        round.stop.set();
        let attempts = importers
            .into_iter()
            .flat_map(|importer| importer.join().expect("the importer's own checks"))
            .collect();
        if victim != Victim::Worker {
            *server = Launch::at(&place.root()).start();
        }
        (attempts, begin.elapsed())
    })
}
