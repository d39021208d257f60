//! Whole files pass; whatever is done to one, the check neither panics nor lets through what LMDB would trip over.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{fs, path::PathBuf};

use proptest::prelude::*;

use super::check;
use crate::{Durability, lmdb};

/// An environment with deep trees, overflow rows and free pages.
fn environment() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (env, tables) = lmdb::open_env(folder.path(), 16 << 20, Durability::Fast).unwrap();
    for round in 0..4_u32 {
        let mut txn = env.write_txn().unwrap();
        for key in 0..600_u32 {
            let row = vec![b'x'; (key as usize * 37 + round as usize) % 700];
            tables.data.put(&mut txn, &key.to_be_bytes(), &row).unwrap();
            let long = [&key.to_be_bytes()[..], &[b'k'; 200]].concat();
            tables.index.put(&mut txn, &long, &[]).unwrap();
        }
        let large = vec![b'y'; 20_000];
        tables.data.put(&mut txn, b"large", &large).unwrap();
        txn.commit().unwrap();
        let mut txn = env.write_txn().unwrap();
        for key in 100..300_u32 {
            tables.data.delete(&mut txn, &key.to_be_bytes()).unwrap();
        }
        txn.commit().unwrap();
    }
    env.force_sync().unwrap();
    drop(env);
    let path = folder.path().join("data.mdb");
    (folder, path)
}

#[test]
fn whole_files_pass() {
    let (folder, path) = environment();
    assert_eq!(check(&path), Ok(()));
    assert_eq!(check(&folder.path().join("none")), Ok(()));
    let empty = folder.path().join("empty");
    fs::write(&empty, []).unwrap();
    assert_eq!(check(&empty), Ok(()));
}

#[test]
fn what_passes_can_be_read_and_what_does_not_says_why() {
    let (folder, path) = environment();
    let whole = fs::read(&path).unwrap();
    let dir = folder.path().to_owned();
    let pages = whole.len() / 4096;
    let damage = (
        prop::collection::vec((0..pages, 0..4096_usize, any::<u8>()), 1..4),
        prop::option::weighted(0.3, (0..pages, 0..pages)),
        prop::option::weighted(0.1, 0..whole.len()),
    );
    let mut config = ProptestConfig::with_cases(256);
    config.failure_persistence = None;
    let mut runner = prop::test_runner::TestRunner::new(config);
    let result = runner.run(&damage, |(bytes, copied, cut)| {
        let mut file = whole.clone();
        for (page, at, byte) in bytes {
            // Half of the damage goes to headers and node tables, where it matters most.
            let at = if byte % 2 == 0 { at % 64 } else { at };
            file[page * 4096 + at] = byte;
        }
        if let Some((from, to)) = copied {
            file.copy_within(from * 4096..(from + 1) * 4096, to * 4096);
        }
        if let Some(cut) = cut {
            file.truncate(cut);
        }
        fs::write(&path, &file).unwrap();
        if check(&path).is_ok() && !file.is_empty() {
            read_everything(&dir);
        }
        Ok(())
    });
    result.unwrap();
}

/// Reads every row, and writes: if the check was wrong, this ends the test's process.
fn read_everything(dir: &std::path::Path) {
    let Ok((env, tables)) = lmdb::open_env(dir, 16 << 20, Durability::Fast) else {
        return;
    };
    let mut txn = env.write_txn().unwrap();
    let mut keys = Vec::new();
    for row in tables.data.iter(&txn).unwrap() {
        keys.push(row.unwrap().0.to_vec());
    }
    for row in tables.index.iter(&txn).unwrap() {
        row.unwrap();
    }
    for key in keys.iter().step_by(7) {
        tables.data.put(&mut txn, key, &[b'z'; 300]).unwrap();
    }
    txn.abort();
}

#[test]
fn a_file_cut_short_is_refused() {
    let (_folder, path) = environment();
    let whole = fs::read(&path).unwrap();
    for bytes in [1, 100, 4096, 8192, whole.len() / 2] {
        fs::write(&path, &whole[..bytes]).unwrap();
        assert!(check(&path).is_err(), "{bytes} bytes");
    }
    fs::write(&path, vec![0; whole.len()]).unwrap();
    assert!(check(&path).is_err(), "zeros");
}
