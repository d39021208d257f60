//! Orders that come before the last one is done: reloads, scaling and upgrades
//! over one another. Whatever their order, clients notice nothing, and in the end
//! there is one worker in each slot that is wanted.

use std::time::{Duration, Instant};

use okdb_tests::data::Random;
use okdb_tests::load::Load;
use okdb_tests::oracle;
use okdb_tests::process::{Process, Signal, leaks_no_files, open_files};
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::torture::{Table, rounds};
use okdb_tests::wait::{SOON, wait_until};

use super::reload::wait_for_no_leavers;

/// Orders a round, before the cluster may come to rest.
const ORDERS: usize = 12;
/// More than anything here takes, so that it ends nothing early.
const PATIENCE: Duration = Duration::from_secs(60);

const ORDERED: [(Signal, &str); 4] = [
    (Signal::SIGHUP, "reload"),
    (Signal::SIGTTIN, "one more"),
    (Signal::SIGTTOU, "one fewer"),
    (Signal::SIGUSR2, "upgrade"),
];

fn launch(place: &Place) -> Server {
    Launch::plain(&place.root())
        .args(&["--workers", "3", "--auto-types", "--durability", "fast"])
        .start()
}

/// How many slots somebody shall fill; none is in between, dead, or without its worker.
fn at_rest(server: &Server) -> Option<usize> {
    let slots = server.slots();
    let settled = slots.iter().all(|slot| match slot.state.as_str() {
        "ready" => slot.pid.and_then(Process::find).is_some(),
        "decommissioned" => true,
        _ => false,
    });
    let filled = slots.iter().filter(|slot| slot.state == "ready").count();
    (settled && server.workers().len() == filled).then_some(filled)
}

fn wait_for_rest(server: &Server) -> usize {
    let mut filled = None;
    wait_until("a cluster at rest", PATIENCE, || {
        filled = at_rest(server);
        filled.is_some()
    });
    filled.expect("just seen")
}

/// Waits until everything that was ordered so far has been acted upon and come to an end. A signal that the program between
/// two others has not heard yet leaves no trace that one could wait for; but it is heard together with a later one.
fn wait_for_all_orders(server: &Server) -> usize {
    let _ = wait_for_rest(server);
    let heard = || server.log().matches(" reloading").count();
    let before = heard();
    server.signal(Signal::SIGHUP);
    wait_until("the last order", SOON, || heard() > before);
    wait_for_rest(server)
}

/// Brings the cluster to that many workers, one order at a time.
fn scale_to(server: &Server, wanted: usize) {
    loop {
        let now = wait_for_rest(server);
        let signal = match now.cmp(&wanted) {
            std::cmp::Ordering::Less => Signal::SIGTTIN,
            std::cmp::Ordering::Greater => Signal::SIGTTOU,
            std::cmp::Ordering::Equal => return,
        };
        server.signal(signal);
        wait_until("another number of workers", SOON, || {
            at_rest(server).is_some_and(|filled| filled != now)
        });
    }
}

#[test]
fn orders_over_one_another_fail_no_request() {
    let rounds = rounds(2, 60);
    let mut random = Random::new("overlapping::orders", 5);
    let place = Place::new();
    let mut server = launch(&place);
    let me = Process::find(server.pid()).expect("a primary");
    let load = Load::start(&server.addresses()[0], "orders", 6, 6);
    load.wait_for_more(100);
    let (mut given, mut files) = (0, None);
    for _ in 0..rounds {
        let mut said = Vec::new();
        for _ in 0..ORDERS {
            let (signal, word) = *random.pick(&ORDERED);
            server.signal(signal);
            said.push(word);
            given += 1;
            // Into whatever the last one has begun, at another place each time.
            load.wait_for_more(random.below(30));
        }
        let filled = wait_for_all_orders(&server);
        assert!(filled >= 1, "nobody is left after {said:?}");
        assert!(me.lives(), "the primary is another one after {said:?}");
        // The same number of slots has been made or been handed over by then.
        scale_to(&server, 3);
        wait_for_no_leavers(&server);
        load.wait_for_more(50);
        let slots = server.slots();
        assert!(slots.iter().all(|slot| slot.restarts == 0), "{slots:?}");
        let wanted = slots.len();
        let now = open_files(server.pid());
        // A slot that was scaled away keeps its listener: what is compared is per slot.
        if let Some((before, slots_before)) = files
            && wanted == slots_before
        {
            wait_until("no descriptor more than before", SOON, || {
                leaks_no_files(server.pid(), before)
            });
        } else {
            files = Some((now, wanted));
        }
    }
    let outcome = load.finish();
    outcome.tally.expect_no_failure();
    outcome.expect_written(&mut server.client());
    server.stop();
    oracle::verify(&place.root());
    let mut table = Table::new(
        "orders over one another, under load",
        &["", "orders", "answered", "failed"],
    );
    table.row(
        "3 workers, more or fewer",
        &[given, outcome.tally.answered, outcome.tally.failed],
    );
    table.print();
}

/// One thing that happens to a cluster: an order, or a violent death.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Order(Signal),
    Kill,
    Stop,
}

/// Five deaths of a slot within this time are a crash loop.
const GUARD: Duration = Duration::from_secs(10);
/// Deaths within that time over all slots, so few that none is given up, even if a stopped holder of the write lock is
/// killed on top.
const KILLS_MAX: usize = 3;

fn any_of(random: &mut Random, of: &[Process]) -> Option<Process> {
    (!of.is_empty()).then(|| *random.pick(of))
}

fn ready_workers(server: &Server) -> Vec<Process> {
    let slots = server.slots().into_iter();
    slots
        .filter(|slot| slot.state == "ready")
        .filter_map(|slot| Process::find(slot.pid?))
        .collect()
}

#[test]
fn deaths_amid_orders_lose_no_acknowledged_write() {
    let rounds = rounds(2, 60);
    let mut random = Random::new("overlapping::deaths", 6);
    let place = Place::new();
    let mut server = launch(&place);
    let me = Process::find(server.pid()).expect("a primary");
    let load = Load::start(&server.addresses()[0], "deaths", 6, 6);
    load.wait_for_more(100);
    let (mut kills, mut stops) = (Vec::<Instant>::new(), 0_u64);
    for _ in 0..rounds {
        let mut blows = Vec::new();
        let mut stopped: Option<Process> = None;
        for _ in 0..ORDERS {
            let recent = kills.iter().filter(|kill| kill.elapsed() < GUARD).count();
            let blow = match random.below(4) {
                0 if recent < KILLS_MAX => Blow::Kill,
                1 if stopped.is_none() => Blow::Stop,
                _ => Blow::Order(random.pick(&ORDERED).0),
            };
            blows.push(blow);
            // A stopped worker shall not become the only one, or clients would rightly wait for it.
            if matches!(blow, Blow::Kill | Blow::Order(Signal::SIGTTOU))
                && let Some(worker) = stopped.take()
            {
                worker.signal(Signal::SIGCONT);
            }
            match blow {
                Blow::Order(signal) => server.signal(signal),
                Blow::Kill => {
                    // The new one, the old one that drains, or the check of an upgrade.
                    if let Some(victim) = any_of(&mut random, &server.workers()) {
                        victim.signal(Signal::SIGKILL);
                        kills.push(Instant::now());
                    }
                }
                Blow::Stop => {
                    let ready = ready_workers(&server);
                    if ready.len() > 1 {
                        stopped = any_of(&mut random, &ready);
                        stops += 1;
                    }
                    if let Some(worker) = stopped {
                        worker.signal(Signal::SIGSTOP);
                    }
                }
            }
            load.wait_for_more(random.below(15));
        }
        if let Some(worker) = stopped {
            worker.signal(Signal::SIGCONT);
        }
        let filled = wait_for_all_orders(&server);
        assert!(filled >= 1, "nobody is left after {blows:?}");
        assert!(me.lives(), "the primary is another one after {blows:?}");
        scale_to(&server, 3);
        load.wait_for_more(50);
    }
    let outcome = load.finish();
    assert_eq!(
        outcome.tally.refused, 0,
        "a death is no excuse for a wrong answer: {:?}",
        outcome.tally
    );
    outcome.expect_written(&mut server.client());
    wait_for_no_leavers(&server);
    server.stop();
    oracle::verify(&place.root());
    let mut table = Table::new(
        "deaths amid orders",
        &["", "kills", "stops", "answered", "connections lost"],
    );
    let tally = outcome.tally;
    table.row(
        "3 workers",
        &[kills.len() as u64, stops, tally.answered, tally.failed],
    );
    table.print();
}
