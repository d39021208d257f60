//! The proof of the gate, with a real child process: this test binary, started again.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fs;
use std::path::Path;

use okdb_shm::gate::{GateError, gate_child, prove_shared};
use okdb_shm::{Identity, Placement, Segment};
use okdb_sys::reap::Exit;
use okdb_sys::spawn::Spawn;

fn identity() -> Identity {
    Identity::of_root(okdb_sys::host::random_bytes().unwrap()).unwrap()
}

/// A child that answers `token` through `run_dir`.
fn child<'fd>(run_dir: &Path, identity: &Identity, token: u64) -> Spawn<'fd> {
    let root = u128::from_be_bytes(identity.root);
    Spawn::current_exe("okdb-gate-test")
        .args(["--exact", "the_childs_side", "--ignored"])
        .discard_stdout()
        .env("OKDB_GATE_RUN", run_dir)
        .env("OKDB_GATE_ROOT", format!("{root:032x}"))
        .env("OKDB_GATE_TOKEN", token.to_string())
}

#[test]
#[ignore = "the child's side of the others"]
fn the_childs_side() {
    let get = |name| std::env::var(name).unwrap();
    let root = u128::from_str_radix(&get("OKDB_GATE_ROOT"), 16).unwrap();
    let identity = Identity::of_root(root.to_be_bytes()).unwrap();
    let token = get("OKDB_GATE_TOKEN").parse().unwrap();
    gate_child(Path::new(&get("OKDB_GATE_RUN")), &identity, token).unwrap();
}

#[test]
fn a_child_shares_the_segment() {
    for placement in [Placement::DevShm, Placement::InRoot] {
        let dir = tempfile::tempdir().unwrap();
        let identity = identity();
        let segment = Segment::create(dir.path(), &identity, placement).unwrap();
        // More often than there are cells: each proof gives its own back.
        for _ in 0..10 {
            prove_shared(&segment, |token| child(dir.path(), &identity, token)).unwrap();
        }
        segment.remove(dir.path()).unwrap();
    }
}

#[test]
fn a_child_that_finds_another_segment_fails_the_proof() {
    let dir = tempfile::tempdir().unwrap();
    let identity = identity();
    let old = Segment::create(dir.path(), &identity, Placement::DevShm).unwrap();
    let new = Segment::create(dir.path(), &identity, Placement::DevShm).unwrap();
    let error = prove_shared(&old, |token| child(dir.path(), &identity, token)).unwrap_err();
    assert!(matches!(error, GateError::Child(Exit::Code(_))), "{error}");
    prove_shared(&new, |token| child(dir.path(), &identity, token)).unwrap();
    new.remove(dir.path()).unwrap();
}

#[test]
fn a_child_that_answers_somewhere_else_fails_the_proof() {
    let dir = tempfile::tempdir().unwrap();
    let identity = identity();
    let segment = Segment::create(dir.path(), &identity, Placement::DevShm).unwrap();
    // It exits with 0, as if all were well, but nothing has changed here.
    let error = prove_shared(&segment, |_| Spawn::new("/bin/true")).unwrap_err();
    assert!(matches!(error, GateError::NotShared), "{error}");
    let error = prove_shared(&segment, |_| Spawn::new("/nonexistent")).unwrap_err();
    assert!(matches!(error, GateError::Spawn(_)), "{error}");
    segment.remove(dir.path()).unwrap();
}

#[test]
fn a_child_that_hangs_is_killed_at_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let segment = Segment::create(dir.path(), &identity(), Placement::DevShm).unwrap();
    let error = prove_shared(&segment, |_| Spawn::new("/bin/sleep").arg("1000")).unwrap_err();
    assert!(matches!(error, GateError::Deadline), "{error}");
    segment.remove(dir.path()).unwrap();
}

#[test]
fn a_child_without_a_segment_fails_the_proof() {
    let dir = tempfile::tempdir().unwrap();
    let identity = identity();
    let segment = Segment::create(dir.path(), &identity, Placement::DevShm).unwrap();
    fs::remove_file(dir.path().join("segment")).unwrap();
    let error = prove_shared(&segment, |token| child(dir.path(), &identity, token)).unwrap_err();
    assert!(matches!(error, GateError::Child(_)), "{error}");
    let error = gate_child(dir.path(), &identity, 2).unwrap_err();
    assert!(matches!(error, GateError::Attach(_)), "{error}");
    segment.remove(dir.path()).unwrap();
}

#[test]
fn private_memory_is_refused_at_once() {
    let segment = Segment::private(&identity()).unwrap();
    let error = prove_shared(&segment, |_| panic!("no child is needed")).unwrap_err();
    assert!(matches!(error, GateError::Private), "{error}");
}
