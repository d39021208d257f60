//! Strangers on the loopback address who send garbage to the bus: it is counted
//! and nothing else.

use std::fs;
use std::net::UdpSocket;

use okdb_tests::data::Random;
use okdb_tests::load::Load;
use okdb_tests::server::{Launch, Place, Server};
use okdb_tests::torture::rounds;
use okdb_tests::wait::{SOON, wait_until};

/// The loopback UDP ports of a process.
fn ports(pid: i32) -> Vec<u16> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).expect("a process");
    let sockets: Vec<String> = links
        .filter_map(|link| fs::read_link(link.ok()?.path()).ok())
        .filter_map(|link| {
            let name = link.to_string_lossy().into_owned();
            Some(name.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = fs::read_to_string("/proc/net/udp").expect("a table");
    let mut ports: Vec<u16> = table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            sockets
                .iter()
                .find(|inode| fields.get(9) == Some(&inode.as_str()))?;
            u16::from_str_radix(fields.get(1)?.split(':').nth(1)?, 16).ok()
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn everybodys_ports(server: &Server) -> Vec<u16> {
    let pids = server.processes().into_iter().map(|process| process.pid);
    pids.flat_map(ports).collect()
}

#[test]
fn garbage_for_the_bus_changes_nothing() {
    let datagrams = rounds(2_000, 200_000);
    let mut random = Random::new("hostile::bus", 3);
    let place = Place::new();
    let mut server = Launch::at(&place.root()).arg("--auto-types").start();
    let ports = everybodys_ports(&server);
    assert_eq!(ports.len(), 3, "a primary and two workers: {ports:?}");
    let load = Load::start(&server.addresses()[0], "hostile", 2, 2);
    load.wait_for_more(20);
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for _ in 0..datagrams {
        let length = match random.below(6) {
            0 => 0,
            1 => 65_507,
            // About as long as a frame.
            2..=3 => 40 + random.index(40),
            _ => random.index(2_000),
        };
        let bytes = random.bytes(length);
        // A full buffer drops it, which is as good.
        let _ = stranger.send_to(&bytes, ("127.0.0.1", *random.pick(&ports)));
    }
    load.wait_for_more(50);
    let outcome = load.finish();
    outcome.tally.expect_no_failure();
    outcome.expect_written(&mut server.client());
    let slots = server.slots();
    assert!(
        slots
            .iter()
            .all(|slot| slot.state == "ready" && slot.restarts == 0),
        "{slots:?}"
    );
    wait_until("a count of what was dropped", SOON, || {
        let status = server.status();
        status["bus"]["dropped"]
            .as_u64()
            .is_some_and(|dropped| dropped > 0)
    });
    server.stop();
}
