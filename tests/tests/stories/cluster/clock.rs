//! An administrator steps the wall clock: nobody is taken for hung, nobody waits
//! for an hour, and nothing that was written is out of order.

use std::time::Duration;

use okdb_tests::clock::StepClock;
use okdb_tests::load::Load;
use okdb_tests::process::{Process, Signal};
use okdb_tests::server::{Launch, Place};
use okdb_tests::wait::{SOON, wait_until};

#[test]
fn a_stepped_clock_kills_nobody_and_delays_nobody() {
    let place = Place::new();
    let folder = place.path("clock");
    std::fs::create_dir(&folder).expect("a folder");
    let clock = StepClock::in_folder(&folder);
    let launch = Launch::at(&place.root()).args(&["--auto-types", "--worker-timeout", "3"]);
    let mut server = clock
        .variables()
        .into_iter()
        .fold(launch, |launch, (name, value)| launch.env(name, value))
        .start();
    let workers: Vec<Option<i32>> = server
        .wait_all_ready()
        .iter()
        .map(|slot| slot.pid)
        .collect();
    let load = Load::start(&server.addresses()[0], "clock", 3, 3);
    load.wait_for_more(50);
    let uptime = |server: &okdb_tests::server::Server| {
        server.status()["primary"]["uptimeMs"]
            .as_u64()
            .expect("a number")
    };
    for step in [3_600, -3_600, 0] {
        clock.step_to(step);
        // Longer than a worker may be silent, had it been.
        let until = uptime(&server) + 3_500;
        wait_until("some seconds of uptime", SOON, || uptime(&server) > until);
        load.wait_for_more(50);
        let pids: Vec<Option<i32>> = server.slots().iter().map(|slot| slot.pid).collect();
        assert_eq!(pids, workers, "after a step to {step} s");
    }
    // A delay of a quarter of a second stays one, whatever the clock says meanwhile.
    clock.step_to(-3_600);
    let victim = workers[1].and_then(Process::find).expect("a worker");
    victim.signal(Signal::SIGKILL);
    clock.step_to(-7_200);
    wait_until("its successor", Duration::from_secs(10), || {
        let slot = &server.slots()[1];
        slot.state == "ready" && slot.pid != Some(victim.pid)
    });
    load.wait_for_more(50);
    let outcome = load.finish();
    assert_eq!(outcome.tally.refused, 0, "{:?}", outcome.tally);
    outcome.expect_written(&mut server.client());
    server.stop();
    okdb_tests::oracle::verify(&place.root());
}
