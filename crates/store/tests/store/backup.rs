//! Hot copies, folders that are no roots, and what `verify` says of each thing that can be wrong.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use heed::{CommitOrAbort, Database, EnvOpenOptions, RwTxn, types::Bytes};
use okdb_store::{OpenError, Options, Problem, Role, Store};

use crate::common::{Folder, bulk, open, put, quick, register, remove, spec, verify, write};

#[test]
fn a_copy_made_under_writes_is_a_whole_root() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let other = store.create_env("other", None).unwrap();
    let env = store.env("default").unwrap();
    for env in [&env, &other] {
        register(env, "t", &[spec(&["n"], true), spec(&["g"], false)]);
        bulk(env, (0..500).map(record).collect());
    }
    let copy = folder.path().join("copy");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 500.. {
                bulk(&env, vec![record(n), remove("t", &key(n - 500))]);
                write(&other, record(n)).unwrap();
                if stop.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        scope.spawn(|| {
            for n in 0..100 {
                store.create_env(&format!("late{n}"), None).unwrap();
                if stop.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        let mut heard = (0, 0);
        let bytes = store
            .backup(&copy, &mut |done, steps| heard = (done, steps))
            .unwrap();
        assert!(bytes > 100_000);
        assert!(heard.0 == heard.1 && heard.0 >= 3, "{heard:?}");
        stop.store(true, Ordering::Release);
    });
    let copied = Store::open(
        &copy,
        Options {
            role: Role::Server,
            ..quick()
        },
    )
    .unwrap();
    assert_eq!(copied.identity(), store.identity());
    assert_eq!(copied.secret(), store.secret());
    for name in copied.env_names().unwrap() {
        verify(&copied.env(&name).unwrap());
    }
    let copied_env = copied.env("default").unwrap();
    assert_eq!(
        copied_env.snapshot().unwrap().type_info("t").unwrap().count,
        500
    );
    write(&copied_env, put("t", "new", "{}")).unwrap();

    let again = store.backup(&copy, &mut |_, _| {});
    assert!(matches!(again, Err(OpenError::NotARoot { .. })));
}

fn key(n: usize) -> String {
    format!("{n:05}")
}

fn record(n: usize) -> okdb_store::Operation {
    put(
        "t",
        &key(n),
        &format!(
            "{{\"n\":{n},\"g\":{},\"x\":\"{}\"}}",
            n % 7,
            "x".repeat(n % 300)
        ),
    )
}

#[test]
fn a_copy_that_was_cut_short_is_no_root() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let copy = folder.path().join("copy");
    store.backup(&copy, &mut |_, _| {}).unwrap();
    fs::remove_file(copy.join("format")).unwrap();
    let tool = Options {
        role: Role::Tool,
        ..quick()
    };
    assert!(matches!(
        Store::open(&copy, tool),
        Err(OpenError::NotARoot { .. })
    ));
}

#[test]
fn only_roots_are_opened_as_roots() {
    let folder = Folder::new();
    let root = folder.root();
    let as_tool = || Options {
        role: Role::Tool,
        ..quick()
    };
    let missing = Store::open(&root, as_tool());
    assert!(
        matches!(missing, Err(OpenError::Io { .. })),
        "a tool makes none"
    );
    assert!(!root.exists());

    fs::create_dir(&root).unwrap();
    assert!(matches!(
        Store::open(&root, as_tool()),
        Err(OpenError::NotARoot { .. })
    ));
    fs::write(root.join("photos"), "").unwrap();
    match Store::open(&root, quick()) {
        Err(OpenError::NotARoot { reason, .. }) => assert!(reason.contains("photos")),
        other => panic!("{:?}", other.err()),
    }
    assert_eq!(fs::read_dir(&root).unwrap().count(), 1, "left as it was");
    fs::remove_file(root.join("photos")).unwrap();
    // What a file system of its own has from the start is fine, and so is what a cut-short start left.
    fs::create_dir(root.join("lost+found")).unwrap();
    fs::create_dir(root.join("run")).unwrap();
    drop(open(&root));

    let next = okdb_store::FORMAT_VERSION + 1;
    let newer_text = format!("okdb storage format {next}\n");
    for (text, newer) in [(newer_text.as_str(), true), ("something else", false)] {
        fs::write(root.join("format"), text).unwrap();
        for options in [quick(), as_tool()] {
            match Store::open(&root, options) {
                Err(OpenError::FormatTooNew {
                    found, supported, ..
                }) => {
                    assert!(newer && found == next && supported + 1 == next);
                }
                Err(OpenError::NotARoot { .. }) => assert!(!newer),
                other => panic!("{:?}", other.err()),
            }
        }
    }
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(
        Store::open(&file, quick()),
        Err(OpenError::NotARoot { .. })
    ));
}

#[test]
fn files_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let store = open(&folder.root());
    let mut due = vec![folder.root()];
    while let Some(path) = due.pop() {
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        if path.is_dir() {
            assert_eq!(mode, 0o700, "{path:?}");
            due.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else {
            assert_eq!(mode, 0o600, "{path:?}");
        }
    }
    drop(store);
}

type Table = Database<'static, Bytes, Bytes>;

/// The tables of an environment, for one who means harm.
struct Raw {
    meta: Table,
    data: Table,
    index: Table,
    log: Table,
    log_type: Table,
    tomb: Table,
    dead: Table,
}

/// Changes rows behind the store's back.
fn harm(root: &Path, harm: impl FnOnce(&Raw, &mut RwTxn<'_>)) {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.max_dbs(32).map_size(64 << 20);
    // SAFETY: nobody else has the environment open.
    #[allow(unsafe_code, reason = "damage has to be done by hand")]
    let env = unsafe { options.open(root.join("envs/default/1")) }.unwrap();
    let reader = env.read_txn().unwrap();
    let names = ["meta", "data", "index", "log", "log_type", "tomb", "dead"];
    let opened = env.open_databases_and_commit(reader, |opener, txn| {
        let tables = names.map(|name| {
            opener
                .open_database::<Bytes, Bytes>(txn, Some(name))
                .unwrap()
                .unwrap()
        });
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(tables))
    });
    let [meta, data, index, log, log_type, tomb, dead] = opened.unwrap().commit().unwrap();
    let raw = Raw {
        meta,
        data,
        index,
        log,
        log_type,
        tomb,
        dead,
    };
    let mut txn = env.write_txn().unwrap();
    harm(&raw, &mut txn);
    txn.commit().unwrap();
}

/// A small root, harmed, and what `verify` says of it.
fn problems_after(act: impl FnOnce(&Raw, &mut RwTxn<'_>)) -> Vec<Problem> {
    let folder = Folder::new();
    {
        let store = open(&folder.root());
        let env = store.env("default").unwrap();
        register(&env, "t", &[spec(&["u"], true), spec(&["g"], false)]);
        bulk(
            &env,
            (0..6)
                .map(|n| put("t", &n.to_string(), &format!("{{\"u\":{n},\"g\":1}}")))
                .collect(),
        );
        write(&env, put("t", "1", "{\"u\":1,\"g\":2}")).unwrap();
        write(&env, remove("t", "5")).unwrap();
        verify(&env);
    }
    harm(&folder.root(), act);
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    env.verify(&mut |_, _| {}).unwrap().problems
}

fn expect(problems: &[Problem], kind: &str, words: &str) {
    assert!(
        problems
            .iter()
            .any(|problem| problem.kind == kind && problem.detail.contains(words)),
        "no {kind} problem says {words:?}: {problems:#?}"
    );
}

/// The row key of a record of the only type.
fn place(raw: &Raw, txn: &RwTxn<'_>, key: &str) -> Vec<u8> {
    let last = raw.data.last(txn).unwrap().unwrap().0;
    [&last[..4], key.as_bytes()].concat()
}

fn rows(table: Table, txn: &RwTxn<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    table
        .iter(txn)
        .unwrap()
        .map(|row| row.map(|(key, row)| (key.to_vec(), row.to_vec())).unwrap())
        .collect()
}

#[test]
fn a_missing_record_is_found_from_every_side() {
    let problems = problems_after(|raw, txn| {
        let place = place(raw, txn, "2");
        raw.data.delete(txn, &place).unwrap();
    });
    expect(&problems, "count", "5 records are counted, 4 exist");
    expect(&problems, "index", "it does not exist");
    expect(&problems, "dead", "superseded");
}

#[test]
fn a_garbled_record_is_found() {
    let problems = problems_after(|raw, txn| {
        let place = place(raw, txn, "2");
        raw.data.put(txn, &place, b"short").unwrap();
    });
    expect(&problems, "record", "does not decode");
    let problems = problems_after(|raw, txn| {
        let place = place(raw, txn, "2");
        let mut row = raw.data.get(txn, &place).unwrap().unwrap().to_vec();
        row.truncate(row.len() - 1);
        raw.data.put(txn, &place, &row).unwrap();
    });
    expect(&problems, "record", "does not parse");
}

#[test]
fn a_value_without_its_entries_is_found() {
    let problems = problems_after(|raw, txn| {
        let place = place(raw, txn, "2");
        let row = raw.data.get(txn, &place).unwrap().unwrap();
        let row = [&row[..24], b"{\"u\":2,\"g\":7}"].concat();
        raw.data.put(txn, &place, &row).unwrap();
    });
    expect(&problems, "index", "an entry is missing in index g");
    expect(
        &problems,
        "index",
        "index g has 5 entries; its records have 5, of which 1 are missing",
    );
}

#[test]
fn a_missing_and_a_needless_entry_are_found() {
    let problems = problems_after(|raw, txn| {
        let first = raw.index.first(txn).unwrap().unwrap().0.to_vec();
        raw.index.delete(txn, &first).unwrap();
    });
    expect(&problems, "index", "an entry is missing in index u");
    let problems = problems_after(|raw, txn| {
        let last = raw.index.last(txn).unwrap().unwrap().0.to_vec();
        let (head, _) = last.split_at(last.len() - 1);
        raw.index.put(txn, &[head, b"0"].concat(), &[]).unwrap();
        raw.index
            .put(txn, &[head, b"nobody"].concat(), &[])
            .unwrap();
    });
    expect(
        &problems,
        "index",
        "index g has 7 entries; its records have 5",
    );
    expect(&problems, "index", "it does not exist");
}

#[test]
fn a_broken_promise_of_uniqueness_is_found() {
    let problems = problems_after(|raw, txn| {
        let place = place(raw, txn, "2");
        let row = raw.data.get(txn, &place).unwrap().unwrap();
        let row = [&row[..24], b"{\"u\":3,\"g\":1}"].concat();
        raw.data.put(txn, &place, &row).unwrap();
        let entries = rows(raw.index, txn);
        let (of_three, _) = entries
            .iter()
            .find(|(entry, _)| entry.ends_with(b"3"))
            .unwrap();
        let (head, _) = of_three.split_at(of_three.len() - 1);
        raw.index.put(txn, &[head, b"2"].concat(), &[]).unwrap();
    });
    expect(&problems, "index", "unique index u holds its value for");
}

#[test]
fn entries_of_nobody_are_found() {
    let problems = problems_after(|raw, txn| {
        raw.data.put(txn, &[0, 0, 9, 9, b'k'], &[0; 26]).unwrap();
        raw.index.put(txn, &[0, 0, 9, 8, 0x10, b'k'], &[]).unwrap();
        raw.meta.put(txn, &[b'c', 0, 0, 9, 9], &[0; 8]).unwrap();
        raw.meta.put(txn, &[b'b', 0, 0, 9, 8], &[0; 8]).unwrap();
    });
    expect(&problems, "orphan", "a record of no type");
    expect(&problems, "orphan", "an entry of the unknown index");
    expect(&problems, "orphan", "a count of the unknown type");
    expect(&problems, "orphan", "progress of the unknown build");
}

#[test]
fn a_log_with_holes_is_found() {
    let problems = problems_after(|raw, txn| {
        let (clock, _) = rows(raw.log, txn).remove(5);
        raw.log.delete(txn, &clock).unwrap();
    });
    expect(&problems, "log", "no log entry at its clock");
    expect(&problems, "log", "entries by clock");
    let problems = problems_after(|raw, txn| {
        let (key, _) = rows(raw.log_type, txn).remove(5);
        raw.log_type.delete(txn, &key).unwrap();
    });
    expect(&problems, "log", "is missing in the type's part of the log");
    let problems = problems_after(|raw, txn| {
        let all = rows(raw.log, txn);
        raw.log.put(txn, &all[3].0, &all[4].1).unwrap();
        raw.log.put(txn, &all[5].0, b"short").unwrap();
    });
    expect(&problems, "log", "is another one's");
    expect(&problems, "log", "does not decode");
}

#[test]
fn tombstones_out_of_place_are_found() {
    let problems = problems_after(|raw, txn| {
        let place = place(raw, txn, "2");
        raw.tomb.put(txn, &place, &3_u64.to_be_bytes()).unwrap();
    });
    expect(&problems, "tombstone", "the record exists");
    let problems = problems_after(|raw, txn| {
        let place = place(raw, txn, "9");
        raw.tomb.put(txn, &place, &3_u64.to_be_bytes()).unwrap();
    });
    expect(&problems, "log", "is another one's");
}

#[test]
fn clocks_and_counts_out_of_step_are_found() {
    let problems = problems_after(|raw, txn| {
        let mut state = raw.meta.get(txn, b"state").unwrap().unwrap().to_vec();
        // The clock one back.
        state[7] -= 1;
        raw.meta.put(txn, b"state", &state).unwrap();
    });
    expect(&problems, "clock", "is ahead of clock");
    let problems = problems_after(|raw, txn| {
        let mut state = raw.meta.get(txn, b"state").unwrap().unwrap().to_vec();
        // The HLC, and the next id.
        state[16..24].fill(0);
        state[48..52].fill(0);
        raw.meta.put(txn, b"state", &state).unwrap();
    });
    expect(&problems, "clock", "its HLC is ahead");
    expect(&problems, "catalog", "would be given again");
    let problems = problems_after(|raw, txn| {
        let counts = rows(raw.meta, txn);
        let (key, _) = counts.iter().find(|(key, _)| key[0] == b'c').unwrap();
        raw.meta.put(txn, key, &77_u64.to_be_bytes()).unwrap();
    });
    expect(&problems, "count", "77 records are counted, 5 exist");
}

#[test]
fn wrong_notes_of_dead_entries_are_found() {
    let problems = problems_after(|raw, txn| {
        raw.dead.clear(txn).unwrap();
    });
    expect(
        &problems,
        "dead",
        "0 superseded entries are noted, 2 are counted",
    );
    let problems = problems_after(|raw, txn| {
        let (by, mut row) = rows(raw.dead, txn).remove(0);
        let (clock, _) = rows(raw.log, txn).pop().unwrap();
        row[..8].copy_from_slice(&clock);
        raw.dead.put(txn, &by, &row).unwrap();
    });
    expect(&problems, "dead", "claims to have superseded it");
}

#[test]
fn a_garbled_definition_is_told_of() {
    // Opening reads no definition, so that verify can be asked.
    let problems = problems_after(|raw, txn| {
        let (key, row) = rows(raw.data, txn).remove(0);
        raw.data.put(txn, &key, &row[..30]).unwrap();
    });
    expect(&problems, "catalog", "catalog row");
}
