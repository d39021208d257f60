//! A store that was damaged by hand: `verify` says of each relation what is wrong with it.

use std::path::Path;

use heed::{CommitOrAbort, Database, EnvOpenOptions, RwTxn, types::Bytes};
use okdb_store::{Env, Problem};

use crate::{
    common::{Folder, bulk, open, put, register, remove, spec, verify, write},
    schemas::set_schema,
};

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
    refs: Table,
    ttl: Table,
    violations: Table,
}

/// Changes rows behind the store's back.
fn harm(root: &Path, harm: impl FnOnce(&Raw, &mut RwTxn<'_>)) {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.max_dbs(32).map_size(64 << 20);
    // SAFETY: nobody else has the environment open.
    #[allow(unsafe_code, reason = "damage has to be done by hand")]
    let env = unsafe { options.open(root.join("envs/default/1")) }.unwrap();
    let reader = env.read_txn().unwrap();
    let names = [
        "meta",
        "data",
        "index",
        "log",
        "log_type",
        "tomb",
        "dead",
        "refs",
        "ttl",
        "violations",
    ];
    let opened = env.open_databases_and_commit(reader, |opener, txn| {
        let tables = names.map(|name| {
            opener
                .open_database::<Bytes, Bytes>(txn, Some(name))
                .unwrap()
                .unwrap()
        });
        Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(tables))
    });
    let [
        meta,
        data,
        index,
        log,
        log_type,
        tomb,
        dead,
        refs,
        ttl,
        violations,
    ] = opened.unwrap().commit().unwrap();
    let raw = Raw {
        meta,
        data,
        index,
        log,
        log_type,
        tomb,
        dead,
        refs,
        ttl,
        violations,
    };
    let mut txn = env.write_txn().unwrap();
    harm(&raw, &mut txn);
    txn.commit().unwrap();
}

/// A small root, harmed, and what `verify` says of it.
fn problems_after(act: impl FnOnce(&Raw, &mut RwTxn<'_>)) -> Vec<Problem> {
    problems_of(records_and_indexes, act)
}

fn problems_of(make: impl FnOnce(&Env), act: impl FnOnce(&Raw, &mut RwTxn<'_>)) -> Vec<Problem> {
    let folder = Folder::new();
    {
        let store = open(&folder.root());
        let env = store.env("default").unwrap();
        make(&env);
        verify(&env);
    }
    harm(&folder.root(), act);
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    env.verify(&mut |_, _| {}).unwrap().problems
}

fn records_and_indexes(env: &Env) {
    register(env, "t", &[spec(&["u"], true), spec(&["g"], false)]);
    bulk(
        env,
        (0..6)
            .map(|n| put("t", &n.to_string(), &format!("{{\"u\":{n},\"g\":1}}")))
            .collect(),
    );
    write(env, put("t", "1", "{\"u\":1,\"g\":2}")).unwrap();
    write(env, remove("t", "5")).unwrap();
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

/// Types `p` and `c`: children refer to parents, one to nobody; one does not fit its schema; one expires.
fn relations(env: &Env) {
    register(env, "p", &[]);
    register(env, "c", &[]);
    let schema = r#"{"properties":{"n":{"type":"integer"},"to":{"type":"string","ref":{"type":"p","onDelete":"no_action"}}}}"#;
    set_schema(env, "c", schema, false).unwrap();
    for key in ["a", "b"] {
        write(env, put("p", key, "{}")).unwrap();
    }
    write(env, put("c", "1", r#"{"to":"a"}"#)).unwrap();
    write(env, put("c", "2", r#"{"to":"b"}"#)).unwrap();
    write(env, put("c", "3", r#"{"n":"x"}"#)).unwrap();
    let mut expiring = put("c", "4", "{}");
    expiring.ttl = Some(3_600_000);
    write(env, expiring).unwrap();
    write(env, remove("p", "b")).unwrap();
}

#[test]
fn references_that_are_not_known_or_not_there_are_found() {
    let problems = problems_of(relations, |raw, txn| {
        let (row_key, _) = rows(raw.refs, txn).remove(0);
        raw.refs.delete(txn, &row_key).unwrap();
        raw.refs
            .put(txn, &[0, 0, 9, 9, b'a', 0, b'1'], &[])
            .unwrap();
    });
    expect(
        &problems,
        "reference",
        "that it refers to p/a is not known there",
    );
    expect(&problems, "orphan", "a row of the unknown reference");
    let problems = problems_of(relations, |raw, txn| {
        let (row_key, _) = rows(raw.refs, txn).remove(0);
        let (head, _) = row_key.split_at(row_key.len() - 1);
        raw.refs.put(txn, &[head, b"3"].concat(), &[]).unwrap();
        raw.refs.put(txn, &[head, b"nobody"].concat(), &[]).unwrap();
        raw.refs.put(txn, b"short", &[]).unwrap();
    });
    expect(&problems, "reference", "3 rows of reference");
    expect(&problems, "reference", "is said to refer to");
    expect(&problems, "reference", "does not decode");
}

#[test]
fn violations_that_are_not_noted_or_do_not_exist_are_found() {
    let problems = problems_of(relations, |raw, txn| raw.violations.clear(txn).unwrap());
    expect(
        &problems,
        "violation",
        "refers to p/b, which does not exist, and that is not noted",
    );
    expect(
        &problems,
        "violation",
        "it does not fit the schema at \"/n\", and that is not noted",
    );
    let problems = problems_of(relations, |raw, txn| {
        for (row_key, row) in rows(raw.violations, txn) {
            // To records that are as they should be, to one that does not exist, and to a type without a schema.
            let (head, tail) = row_key.split_at(4);
            raw.violations
                .put(txn, &[head, b"4", &tail[1..]].concat(), &row)
                .unwrap();
            raw.violations
                .put(txn, &[head, b"9", &tail[1..]].concat(), &row)
                .unwrap();
            raw.violations
                .put(txn, &[&[0, 0, 0, 16], tail].concat(), &row)
                .unwrap();
            let text = String::from_utf8(row).unwrap();
            let row = text.replace("\"b\"]", "\"a\"]");
            raw.violations.put(txn, &row_key, row.as_bytes()).unwrap();
        }
    });
    expect(
        &problems,
        "violation",
        "it is said not to fit the schema at \"/n\", and does",
    );
    expect(&problems, "violation", "it is noted, and does not exist");
    expect(&problems, "violation", "it is said to refer to nothing");
    expect(
        &problems,
        "orphan",
        "a violation of a type without a schema",
    );
}

#[test]
fn expiries_out_of_place_are_found() {
    let problems = problems_of(relations, |raw, txn| raw.ttl.clear(txn).unwrap());
    expect(&problems, "ttl", "nobody would remove it then");
    let problems = problems_of(relations, |raw, txn| {
        let (mut row_key, _) = rows(raw.ttl, txn).remove(0);
        row_key[7] ^= 1;
        raw.ttl.put(txn, &row_key, &[]).unwrap();
        raw.ttl.put(txn, b"short", &[]).unwrap();
    });
    expect(&problems, "ttl", "it is said to expire at");
    expect(&problems, "ttl", "does not decode");
}

#[test]
fn notes_of_checks_that_nobody_makes_are_found() {
    let problems = problems_of(relations, |raw, txn| {
        raw.meta.put(txn, &[b'k', 0, 0, 0, 16], &[0; 8]).unwrap();
        raw.meta.put(txn, &[b'v', 0, 0, 9, 9], &[]).unwrap();
    });
    expect(&problems, "orphan", "progress of the unknown schema check");
    expect(
        &problems,
        "orphan",
        "a note on violations of the unknown type",
    );
}
