//! Records that expire: gone for every read from their instant on, swept or not, and never when they were renewed.

use std::time::{Duration, Instant, SystemTime};

use okdb_query::Filter;
use okdb_store::{
    Action, ChangesQuery, Env, Error, Expect, ExpiringQuery, Guard, IndexQuery, ListQuery,
    Operation, Query, ViolationKind, Write,
};

use crate::{
    common::{Chores, Folder, bulk, open, operation, put, register, spec, value, verify, write},
    schemas::{set_schema, violations},
};

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(now.unwrap().as_millis()).unwrap()
}

fn put_for(type_name: &str, key: &str, value: &str, ttl: u64) -> Operation {
    Operation {
        ttl: Some(ttl),
        ..put(type_name, key, value)
    }
}

/// Waits until the wall clock has passed a moment.
fn wait_past(ms: u64) {
    while now_ms() <= ms {
        std::thread::yield_now();
    }
}

/// Writes a record that is past its expiry when this returns.
fn expired(env: &Env, type_name: &str, key: &str, value: &str) {
    let written = write(env, put_for(type_name, key, value, 1)).unwrap();
    wait_past(written.expires_ms.unwrap());
}

fn count(env: &Env, type_name: &str, filter: &str) -> u64 {
    env.count(type_name, &Filter::parse(&value(filter)).unwrap())
        .unwrap()
}

#[test]
fn every_read_agrees_that_it_is_gone_before_anybody_sweeps() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "t", &[spec(&["g"], false), spec(&["u"], true)]);
    write(&env, put("t", "stays", r#"{"g":1,"u":1}"#)).unwrap();
    expired(&env, "t", "gone", r#"{"g":1,"u":2}"#);
    let snapshot = env.snapshot().unwrap();
    assert!(snapshot.get("t", "gone").unwrap().is_none());
    assert_eq!(snapshot.type_info("t").unwrap().count, 1);
    drop(snapshot);
    let list = ListQuery {
        limit: 10,
        ..ListQuery::default()
    };
    assert_eq!(env.list("t", &list).unwrap().items.len(), 1);
    for index in [None, Some("g"), Some("u")] {
        for filter in [r#"{"g":1}"#, r#"{"u":{"$gte":0}}"#, "{}"] {
            let query = Query {
                filter: Filter::parse(&value(filter)).unwrap(),
                index: index.map(str::to_owned),
                limit: 10,
                ..Query::default()
            };
            assert_eq!(
                env.query("t", &query).unwrap().items.len(),
                1,
                "{index:?} {filter}"
            );
        }
    }
    assert_eq!(
        (count(&env, "t", "{}"), count(&env, "t", r#"{"g":1}"#)),
        (1, 1)
    );
    let listed = IndexQuery {
        limit: 10,
        ..IndexQuery::default()
    };
    assert_eq!(env.index_list("t", "g", &listed).unwrap().items.len(), 1);
    assert_eq!(env.index_count("t", "g", &listed).unwrap(), 1);
    for consistent in [false, true] {
        let mut out = Vec::new();
        let mut export = env.export("t", consistent).unwrap();
        while export.next_chunk(&mut out, 1 << 20).unwrap() {}
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 1);
    }
    let expiring = ExpiringQuery {
        limit: 10,
        ..ExpiringQuery::default()
    };
    assert!(env.expiring(&expiring).unwrap().items.is_empty());
    assert!(env.has_expired().unwrap());
    verify(&env);
}

#[test]
fn a_write_that_meets_it_removes_it_first() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "t", &[spec(&["u"], true)]);
    // The same key: created anew, without the old expiry, and a guard sees no record.
    expired(&env, "t", "k", r#"{"u":1}"#);
    let guarded = Operation {
        guard: Guard {
            version: Some(Expect::Absent),
            header: None,
        },
        ..put("t", "k", r#"{"u":1}"#)
    };
    let written = write(&env, guarded).unwrap();
    assert!(written.created && written.expires_ms.is_none());
    verify(&env);
    // The same unique value.
    expired(&env, "t", "holder", r#"{"u":2}"#);
    write(&env, put("t", "heir", r#"{"u":2}"#)).unwrap();
    let changes = env
        .changes(&ChangesQuery {
            limit: 100,
            ..ChangesQuery::default()
        })
        .unwrap();
    let told: Vec<_> = changes
        .changes
        .iter()
        .map(|c| (c.key.as_str(), c.action))
        .collect();
    assert!(
        told.contains(&("holder", "remove")) && told.contains(&("heir", "put")),
        "{told:?}"
    );
    verify(&env);
    // What needs a record finds none.
    for action in [
        Action::Update("{}".into()),
        Action::Remove,
        Action::SetTtl(1000),
        Action::ClearTtl,
    ] {
        expired(&env, "t", "late", "{}");
        assert!(matches!(
            write(&env, operation("t", "late", action)),
            Err(Error::NotFound)
        ));
        verify(&env);
    }
    // In a transaction that fails, it is as it was: gone all the same.
    expired(&env, "t", "k2", "{}");
    let both = vec![
        put("t", "k2", r#"{"u":7}"#),
        operation("t", "none", Action::Remove),
    ];
    assert!(env.submit(Write::Transaction(both)).wait().is_err());
    assert!(env.snapshot().unwrap().get("t", "k2").unwrap().is_none());
    verify(&env);
}

#[test]
fn a_sweep_removes_each_once_and_tells_so() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "t", &[spec(&["n"], false)]);
    let records =
        (0..3000).map(|n| put_for("t", &format!("k{n:04}"), &format!(r#"{{"n":{n}}}"#), 1));
    bulk(&env, records.collect());
    bulk(
        &env,
        (0..10)
            .map(|n| put_for("t", &format!("s{n}"), "{}", 3_600_000))
            .collect(),
    );
    wait_past(now_ms() + 2);
    let clock = env.snapshot().unwrap().clock().unwrap();
    let chores = Chores::start(&store);
    while env.has_expired().unwrap() {
        std::thread::yield_now();
    }
    drop(chores);
    let changes = env
        .changes(&ChangesQuery {
            after: clock,
            limit: 10_000,
            ..ChangesQuery::default()
        })
        .unwrap();
    assert_eq!(changes.changes.len(), 3000);
    assert!(
        changes
            .changes
            .iter()
            .all(|change| change.action == "remove")
    );
    assert_eq!(env.snapshot().unwrap().type_info("t").unwrap().count, 10);
    assert_eq!(env.sweep().unwrap(), 0);
    verify(&env);
    // What is left is listed, the next to go first, page by page.
    let mut query = ExpiringQuery {
        limit: 3,
        type_name: Some("t".into()),
        cursor: None,
    };
    let mut keys = Vec::new();
    loop {
        let page = env.expiring(&query).unwrap();
        keys.extend(
            page.items
                .into_iter()
                .map(|item| (item.expires_at, item.key)),
        );
        query.cursor = page.cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    assert_eq!(keys.len(), 10);
    assert!(keys.is_sorted());
}

#[test]
fn a_renewal_always_wins() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "t", &[]);
    let chores = Chores::start(&store);
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut rounds = 0;
    let (mut renewed, mut late) = (0, 0);
    while rounds < 300 && Instant::now() < deadline {
        rounds += 1;
        let key = format!("k{rounds}");
        let written = write(&env, put_for("t", &key, "{}", 1 + rounds % 3)).unwrap();
        wait_past(written.expires_ms.unwrap() - 2);
        match write(&env, operation("t", &key, Action::SetTtl(3_600_000))) {
            Ok(again) => {
                renewed += 1;
                assert!(!again.created);
                wait_past(written.expires_ms.unwrap() + 1);
                env.sweep().unwrap();
                let snapshot = env.snapshot().unwrap();
                assert!(
                    snapshot.get("t", &key).unwrap().is_some(),
                    "lost after its renewal"
                );
            }
            Err(Error::NotFound) => {
                late += 1;
                assert!(now_ms() >= written.expires_ms.unwrap());
            }
            Err(other) => panic!("{other}"),
        }
    }
    drop(chores);
    assert!(renewed > 0, "{late} of {rounds} came too late");
    assert_eq!(
        env.snapshot().unwrap().type_info("t").unwrap().count,
        renewed
    );
    verify(&env);
}

#[test]
fn it_is_kept_by_a_plain_update_and_survives_a_restart() {
    let folder = Folder::new();
    {
        let store = open(&folder.root());
        let env = store.env("default").unwrap();
        register(&env, "t", &[]);
        let first = write(&env, put_for("t", "a", "1", 3_600_000)).unwrap();
        let second = write(&env, put("t", "a", "2")).unwrap();
        assert_eq!(first.expires_ms, second.expires_ms);
        let cleared = write(&env, operation("t", "a", Action::ClearTtl)).unwrap();
        assert!(cleared.version > second.version && cleared.expires_ms.is_none());
        write(&env, put_for("t", "b", "1", 50)).unwrap();
        write(&env, put_for("t", "c", "1", 3_600_000)).unwrap();
        for ttl in [0, 100 * 365 * 24 * 3600 * 1000 + 1, u64::MAX] {
            let refused = write(&env, put_for("t", "d", "1", ttl));
            assert!(matches!(refused, Err(Error::InvalidParameter(_))), "{ttl}");
        }
        verify(&env);
    }
    wait_past(now_ms() + 51);
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    let snapshot = env.snapshot().unwrap();
    assert!(
        snapshot
            .get("t", "a")
            .unwrap()
            .unwrap()
            .expires_ms
            .is_none()
    );
    assert!(snapshot.get("t", "b").unwrap().is_none());
    assert!(
        snapshot
            .get("t", "c")
            .unwrap()
            .unwrap()
            .expires_ms
            .is_some()
    );
    drop(snapshot);
    assert_eq!(env.sweep().unwrap(), 1);
    verify(&env);
}

#[test]
fn it_takes_along_lets_go_and_is_not_held_back() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "p", &[]);
    for (type_name, on_delete) in [
        ("along", "cascade"),
        ("free", "set_null"),
        ("held", "restrict"),
    ] {
        register(&env, type_name, &[]);
        let schema = format!(
            r#"{{"properties":{{"to":{{"type":["string","null"],"ref":{{"type":"p","onDelete":"{on_delete}"}}}}}}}}"#
        );
        set_schema(&env, type_name, &schema, true).unwrap();
    }
    let written = write(&env, put_for("p", "x", "{}", 300)).unwrap();
    for type_name in ["along", "free", "held"] {
        write(&env, put(type_name, "r", r#"{"to":"x"}"#)).unwrap();
    }
    wait_past(written.expires_ms.unwrap());
    // Nobody can refer to it any more; whoever tries finds it gone, and so does everybody else.
    assert!(matches!(
        write(&env, put("free", "new", r#"{"to":"x"}"#)),
        Err(Error::ForeignKeyViolation { .. })
    ));
    env.sweep().unwrap();
    let snapshot = env.snapshot().unwrap();
    assert!(snapshot.get("along", "r").unwrap().is_none());
    assert_eq!(
        snapshot.get("free", "r").unwrap().unwrap().value,
        r#"{"to":null}"#
    );
    assert_eq!(
        snapshot.get("held", "r").unwrap().unwrap().value,
        r#"{"to":"x"}"#
    );
    drop(snapshot);
    assert_eq!(
        violations(&env, Some(ViolationKind::Ref)),
        [["held".to_owned(), "r".to_owned(), "/to".to_owned()]]
    );
    verify(&env);
    write(&env, put("p", "x", "{}")).unwrap();
    assert!(violations(&env, None).is_empty());
    // One that refers and has expired itself holds nobody back.
    expired(&env, "held", "r2", r#"{"to":"x"}"#);
    write(&env, operation("held", "r", Action::Remove)).unwrap();
    write(&env, operation("p", "x", Action::Remove)).unwrap();
    verify(&env);
}

#[test]
fn a_dropped_type_takes_its_expiries_along() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "t", &[]);
    bulk(
        &env,
        (0..600)
            .map(|n| put_for("t", &n.to_string(), "{}", 1 + n % 2 * 3_600_000))
            .collect(),
    );
    env.submit(Write::DropType { name: "t".into() })
        .wait()
        .unwrap();
    register(&env, "t", &[]);
    write(&env, put_for("t", "new", "{}", 1)).unwrap();
    let chores = Chores::start(&store);
    let expiring = ExpiringQuery {
        limit: 10,
        ..ExpiringQuery::default()
    };
    while env.has_expired().unwrap() || env.info().unwrap().clock == 0 {
        std::thread::yield_now();
    }
    assert!(env.expiring(&expiring).unwrap().items.is_empty());
    drop(chores);
    verify(&env);
}
