//! Reloading, scaling, and connections that change hands.

use std::net::{SocketAddr, TcpStream};

use okdb_cluster::driver::Order;
use okdb_cluster::machine::SlotState;
use okdb_sys::Signal;

use crate::harness::{Cluster, Script};
use crate::stories::ask;
use crate::worker;

const GOOD: Script = Script::Role(worker::GOOD);

/// Enough connections for each of a few slots to get some.
fn connect_many(addr: SocketAddr) -> Vec<TcpStream> {
    (0..40)
        .map(|_| TcpStream::connect(addr).expect("connect"))
        .collect()
}

#[test]
fn a_reload_replaces_every_worker_and_drops_nobody() {
    let mut cluster = Cluster::start(&[GOOD, GOOD]);
    cluster.wait_ready();
    let old = [cluster.pid(0), cluster.pid(1)];
    cluster.order(Order::Reload);
    let mut clients = connect_many(cluster.addr);
    for slot in 0..2 {
        cluster.wait_all(&[slot], |status| {
            status.state == SlotState::Ready
                && status.pid != Some(old[usize::from(slot)])
                && status.leaving.is_empty()
        });
        clients.extend(connect_many(cluster.addr));
    }
    for client in &mut clients {
        ask(client);
    }
    for slot in 0..2 {
        assert_eq!(cluster.slots[&slot].restarts, 0, "a reload is no restart");
    }
    let deaths = cluster
        .heard
        .iter()
        .filter(|news| matches!(news, crate::harness::News::Death { .. }));
    assert_eq!(deaths.count(), 0);
}

#[test]
fn what_arrives_for_a_slot_that_was_given_up_is_answered_by_the_others() {
    let mut cluster = Cluster::start(&[GOOD, Script::Sh("exit 1")]);
    cluster.wait_state(1, SlotState::Dead);
    cluster.wait_ready();
    let mut clients = connect_many(cluster.addr);
    for client in &mut clients {
        assert_eq!(ask(client), cluster.pid(0));
    }
}

#[test]
fn what_waits_for_a_stopped_worker_is_answered_by_the_others() {
    let mut cluster = Cluster::start(&[GOOD, GOOD]);
    cluster.wait_ready();
    let stopped = cluster.pid(1);
    cluster.signal(1, Signal::Stop);
    let process = okdb_sys::Identity::of(stopped).expect("a process");
    while process.state() != Some('T') {
        std::thread::yield_now();
    }
    let mut clients = connect_many(cluster.addr);
    for client in &mut clients {
        assert_eq!(ask(client), cluster.pid(0));
    }
    cluster.signal(1, Signal::Cont);
    assert_eq!(cluster.pid(1), stopped, "it was not replaced");
}

#[test]
fn workers_come_and_go_and_no_queue_is_left_alone() {
    let mut cluster = Cluster::start(&[GOOD, GOOD]);
    cluster.wait_ready();
    cluster.order(Order::AddWorker);
    cluster.wait_state(2, SlotState::Ready);
    cluster.order(Order::RemoveWorker);
    cluster.order(Order::RemoveWorker);
    let mut clients = connect_many(cluster.addr);
    cluster.wait_all(&[1, 2], |status| {
        status.state == SlotState::Decommissioned && status.leaving.is_empty()
    });
    clients.extend(connect_many(cluster.addr));
    for client in &mut clients {
        ask(client);
    }
    // The last one stays.
    cluster.order(Order::RemoveWorker);
    cluster.order(Order::AddWorker);
    cluster.wait_state(1, SlotState::Ready);
    assert_eq!(cluster.slots[&0].state, SlotState::Ready);
    for client in &mut connect_many(cluster.addr) {
        ask(client);
    }
}
