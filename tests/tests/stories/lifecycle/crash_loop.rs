//! A slot that keeps dying is given up, loudly; when all are, the primary ends
//! with a code of its own: a healthy-looking primary over no workers is the
//! worst outcome.

use std::time::{Duration, Instant};

use okdb_tests::process::{Process, Signal};
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::wait::{SOON, wait_for, wait_until};

const ALL_SLOTS_DEAD: i32 = 5;

/// Kills the worker of each of these slots as soon as there is one, until the
/// slot is dead or the primary has ended. How often it had to.
fn kill_until_dead(server: &mut Server, slots: &[usize]) -> usize {
    let mut kills = 0;
    let spared: Vec<Process> = server
        .wait_all_ready()
        .iter()
        .filter(|slot| !slots.contains(&slot.slot))
        .filter_map(|slot| Process::find(slot.pid?))
        .collect();
    wait_until("the guard", Duration::from_secs(30), || {
        let victims = server.workers();
        for worker in victims
            .iter()
            .filter(|worker| !spared.iter().any(|spared| spared.is(worker)))
        {
            worker.signal(Signal::SIGKILL);
            wait_until("the worker's end", SOON, || !worker.lives());
            kills += 1;
        }
        if server.try_exit().is_some() {
            return true;
        }
        !spared.is_empty()
            && server
                .slots()
                .iter()
                .filter(|slot| slots.contains(&slot.slot))
                .all(|slot| slot.state == "dead")
    });
    kills
}

#[test]
fn a_slot_that_dies_five_times_in_ten_seconds_is_given_up() {
    let place = Place::new();
    let mut server = Launch::plain(&place.root())
        .args(&["--workers", "3"])
        .start();
    let before = server.wait_all_ready();
    let kills = kill_until_dead(&mut server, &[1]);
    assert_eq!(kills, 5, "the guard is five deaths");

    let after = server.slots();
    assert_eq!(after.len(), 3, "a dead slot stays listed");
    assert_eq!(after[1].pid, None, "{after:?}");
    for slot in [0, 2] {
        assert_eq!(after[slot].pid, before[slot].pid);
        assert_eq!(after[slot].restarts, 0);
    }
    wait_until("a word about it", SOON, || {
        server.log().contains("slot given up")
    });
    // The longest backoff passes, and nothing comes.
    let begin = Instant::now();
    let pids = || -> Vec<i32> { server.workers().iter().map(|worker| worker.pid).collect() };
    let workers = pids();
    while begin.elapsed() < Duration::from_millis(4_500) {
        assert_eq!(pids(), workers, "a dead slot was started again");
        std::thread::sleep(Duration::from_millis(50));
    }
    server.stop();
}

#[test]
fn deaths_spread_over_slots_give_up_none_of_them() {
    let place = Place::new();
    let server = Launch::plain(&place.root())
        .args(&["--workers", "3"])
        .start();
    for _ in 0..2 {
        for slot in 0..3 {
            let slots = server.wait_all_ready();
            let worker = slots[slot].pid.and_then(Process::find).expect("ready");
            worker.signal(Signal::SIGKILL);
            wait_until("the worker's end", SOON, || !worker.lives());
            wait_for("another worker", SOON, || {
                let pid = server.slots().get(slot)?.pid?;
                (pid != worker.pid).then_some(())
            });
        }
    }
    let slots = server.wait_all_ready();
    assert!(slots.iter().all(|slot| slot.restarts == 2), "{slots:?}");
}

#[test]
fn when_every_slot_is_dead_the_primary_ends_with_its_own_code() {
    let place = Place::new();
    let mut server = Launch::at(&place.root()).start();
    kill_until_dead(&mut server, &[0, 1]);
    let status = server.wait_exit(SOON);
    assert_eq!(status.code(), Some(ALL_SLOTS_DEAD), "{}", server.log());
    server.wait_gone(SOON);
    Launch::at(&place.root()).start().stop();
}

#[test]
fn respawn_delays_double_from_a_quarter_of_a_second() {
    let place = Place::new();
    let server = Launch::at(&place.root()).start();
    let slots = server.wait_all_ready();
    let other = slots[0].pid;
    let mut worker = slots[1].pid.and_then(Process::find).expect("ready");
    for wanted in [250, 500, 1_000] {
        worker.signal(Signal::SIGKILL);
        let begin = Instant::now();
        let next = wait_for("a respawned worker", SOON, || {
            server
                .workers()
                .into_iter()
                .find(|next| Some(next.pid) != other && next.pid != worker.pid)
        });
        let waited = begin.elapsed();
        // Only the lower bound is a promise that a busy machine cannot break.
        let least = Duration::from_millis(wanted * 8 / 10);
        assert!(
            waited >= least,
            "respawned after {waited:?}, not {wanted} ms"
        );
        println!("{wanted} ms: respawned after {waited:?}");
        worker = next;
    }
}
