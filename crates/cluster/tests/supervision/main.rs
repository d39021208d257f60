//! The driver with real processes: each test is one incident.
//!
//! Workers are this test binary again (see [`worker`]), or small shell scripts. Nothing here waits for
//! time to pass: tests wait for events, with a patience that only a broken driver exhausts.

mod changes;
mod harness;
mod primary;
mod stories;
mod worker;

/// Not a test of its own: the entry point of the processes that the tests start.
#[test]
fn process_main() {
    match std::env::var(harness::ROLE) {
        Ok(role) if role == primary::ROLE => primary::run(),
        Ok(role) => worker::run(&role),
        Err(_) => {}
    }
}
