//! Several real processes on one segment, killed while they write to it.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use okdb_shm::{Identity, InFlight, Placement, Role, Segment};
use okdb_sys::reap::{self, Exit};
use okdb_sys::spawn::{Child, Spawn, take_inherited_fd};
use okdb_sys::{Signal, process};

const STREAM_FD: i32 = 30;

/// Stamps that a child gives before it is killed, at least.
const STAMPS: usize = 10_000;

fn start(run_dir: &Path, identity: &Identity, slot: u16) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let root = u128::from_be_bytes(identity.root);
    let child = Spawn::current_exe("okdb-shm-test")
        .args(["--exact", "the_childs_side", "--ignored"])
        .discard_stdout()
        .death_signal(Signal::Kill)
        .env("OKDB_TEST_RUN", run_dir)
        .env("OKDB_TEST_ROOT", format!("{root:032x}"))
        .env("OKDB_TEST_SLOT", slot.to_string())
        .pass_fd(theirs.as_fd(), STREAM_FD)
        .start()
        .unwrap();
    (child, ours)
}

/// Counts, stamps and publishes as fast as it can until it is killed.
#[test]
#[ignore = "the child's side of the others"]
fn the_childs_side() {
    let get = |name| std::env::var(name).unwrap();
    let root = u128::from_str_radix(&get("OKDB_TEST_ROOT"), 16).unwrap();
    let identity = Identity::of_root(root.to_be_bytes()).unwrap();
    let segment = Segment::attach(Path::new(&get("OKDB_TEST_RUN")), &identity).unwrap();
    let me = process::Identity::current().unwrap();
    let slot: u16 = get("OKDB_TEST_SLOT").parse().unwrap();
    let row = segment.claim_row(Role::Worker, Some(slot), me).unwrap();
    let mut stream = UnixStream::from(take_inherited_fd(STREAM_FD).unwrap());
    let env = segment.env(0).unwrap();
    loop {
        let _in_flight = InFlight::new(&row);
        let _lock = row.hold_write_lock(0, 1);
        // Wall clocks that disagree by slot, and stand still.
        let stamp = segment.hlc().now(u64::from(slot) * 1_000);
        env.publish(stamp);
        row.record_request(1, false);
        stream.write_all(&stamp.to_ne_bytes()).unwrap();
    }
}

#[test]
fn killed_processes_leave_unique_stamps_and_rows_for_their_heirs() {
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity::of_root(okdb_sys::host::random_bytes().unwrap()).unwrap();
    let segment = Segment::create(dir.path(), &identity, Placement::DevShm).unwrap();
    let mut seen = HashSet::new();
    let mut given = 0;
    for round in 1..=3 {
        let children = [0, 1].map(|slot| start(dir.path(), &identity, slot));
        for (child, mut stream) in children {
            let mut stamps = vec![0; STAMPS * size_of::<u64>()];
            stream.read_exact(&mut stamps).unwrap();
            child.identity.signal(Signal::Kill).unwrap();
            stream.read_to_end(&mut stamps).unwrap();
            let exit = reap::wait(child.identity.pid).unwrap();
            assert!(matches!(exit, Exit::Signal { number: 9, .. }), "{exit}");
            // A killed child leaves half a stamp at most, which chunks_exact leaves out.
            let mut last = 0;
            for stamp in stamps.chunks_exact(size_of::<u64>()) {
                let stamp = u64::from_ne_bytes(stamp.try_into().unwrap());
                assert!(stamp > last, "in each process they rise");
                last = stamp;
                assert!(seen.insert(stamp), "{stamp} was given twice");
                given += 1;
            }
        }
        // Dead owners still stand there, each in its slot's row, until somebody sweeps.
        let rows: Vec<_> = segment.rows().collect();
        assert_eq!(rows.len(), 2, "round {round}");
        assert!(
            rows.iter()
                .all(|row| row.owner.is_some_and(|o| !o.is_alive()))
        );
        if round == 2 {
            assert_eq!(segment.sweep(), 2);
            assert!(
                segment
                    .rows()
                    .all(|row| row.in_flight == 0 && row.write_locks.is_empty())
            );
        }
    }
    let last = *seen.iter().max().unwrap();
    assert!(segment.hlc().last() >= last);
    assert!(segment.env(0).unwrap().clock() >= last);
    assert!(segment.hlc().now(0) > last);
    let counted: u64 = segment.rows().map(|row| row.requests).sum();
    assert!(counted >= given, "counters outlive their owners");
    segment.remove(dir.path()).unwrap();
}
