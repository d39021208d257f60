//! References: what they refuse, and what the end of a record does to those that refer to it.

use okdb_query::Value;
use okdb_store::{Action, Env, Error, ViolationKind, Write};

use crate::{
    common::{Chores, Folder, bulk, open, operation, put, register, remove, verify, write},
    schemas::{set_schema, violations, wait_checked},
};

fn refers(target: &str, on_delete: &str) -> String {
    format!(
        r#"{{"properties":{{"to":{{"type":["string","null"],"ref":{{"type":"{target}","onDelete":"{on_delete}"}}}}}}}}"#
    )
}

fn to(key: &str) -> String {
    format!(r#"{{"to":"{key}"}}"#)
}

fn keys(env: &Env, type_name: &str) -> Vec<String> {
    let query = okdb_store::ListQuery {
        limit: 1000,
        ..okdb_store::ListQuery::default()
    };
    let page = env.list(type_name, &query).unwrap();
    page.items.into_iter().map(|item| item.key).collect()
}

fn value_of(env: &Env, type_name: &str, key: &str) -> String {
    let snapshot = env.snapshot().unwrap();
    snapshot
        .get(type_name, key)
        .unwrap()
        .unwrap()
        .value
        .to_owned()
}

/// Types `parents` and `children`, with parents `a` and `b`, and a child of `a`.
fn family(env: &Env, on_delete: &str) {
    register(env, "parents", &[]);
    register(env, "children", &[]);
    set_schema(env, "children", &refers("parents", on_delete), true).unwrap();
    for key in ["a", "b"] {
        write(env, put("parents", key, "{}")).unwrap();
    }
    write(env, put("children", "c", &to("a"))).unwrap();
}

#[test]
fn a_target_must_exist() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    family(&env, "restrict");
    match write(&env, put("children", "d", &to("nobody"))) {
        Err(Error::ForeignKeyViolation {
            path,
            type_name,
            key,
        }) => {
            assert_eq!(
                (path.as_str(), type_name.as_str(), key.as_str()),
                ("/to", "parents", "nobody")
            );
        }
        other => panic!("{other:?}"),
    }
    for fine in ["{}", r#"{"to":null}"#] {
        write(&env, put("children", "d", fine)).unwrap();
    }
    // A string that is no key names nobody either.
    let odd = to(&"x".repeat(500));
    assert!(matches!(
        write(&env, put("children", "d", &odd)),
        Err(Error::ForeignKeyViolation { .. })
    ));
    let patch =
        okdb_query::Patch::parse_document(&crate::common::value(r#"{"set":{"to":"zz"}}"#)).unwrap();
    let refused = write(&env, operation("children", "c", Action::Patch(patch)));
    assert!(matches!(refused, Err(Error::ForeignKeyViolation { .. })));
    // In a transaction, what came before counts.
    let both = vec![
        put("parents", "new", "{}"),
        put("children", "e", &to("new")),
    ];
    env.submit(Write::Transaction(both)).wait().unwrap();
    let gone = vec![
        remove("children", "e"),
        remove("parents", "new"),
        put("children", "e", &to("new")),
    ];
    assert!(matches!(
        env.submit(Write::Transaction(gone)).wait(),
        Err(Error::Operation { index: 2, .. })
    ));
    assert_eq!(value_of(&env, "children", "e"), to("new"));
    verify(&env);
}

#[test]
fn restrict_holds_back_until_nobody_refers() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    family(&env, "restrict");
    match write(&env, remove("parents", "a")) {
        Err(Error::ForeignKeyRestricted { type_name, key }) => {
            assert_eq!((type_name.as_str(), key.as_str()), ("children", "c"));
        }
        other => panic!("{other:?}"),
    }
    let refused = env
        .submit(Write::DropType {
            name: "parents".into(),
        })
        .wait();
    assert!(matches!(refused, Err(Error::ForeignKeyRestricted { .. })));
    write(&env, put("children", "c", &to("b"))).unwrap();
    write(&env, remove("parents", "a")).unwrap();
    assert!(write(&env, remove("parents", "b")).is_err());
    verify(&env);
    write(&env, remove("children", "c")).unwrap();
    write(&env, remove("parents", "b")).unwrap();
    env.submit(Write::DropType {
        name: "parents".into(),
    })
    .wait()
    .unwrap();
    assert!(matches!(
        write(&env, put("children", "c", &to("b"))),
        Err(Error::ForeignKeyViolation { .. })
    ));
    verify(&env);
}

#[test]
fn cascade_takes_along_and_set_null_lets_go() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    family(&env, "cascade");
    register(&env, "pets", &[crate::common::spec(&["to"], false)]);
    set_schema(&env, "pets", &refers("children", "set_null"), true).unwrap();
    write(&env, put("pets", "rex", r#"{"to":"c","weight":1.50}"#)).unwrap();
    let clock = env.snapshot().unwrap().clock().unwrap();
    let removed = write(&env, remove("parents", "a")).unwrap();
    assert!(keys(&env, "children").is_empty());
    assert_eq!(
        value_of(&env, "pets", "rex"),
        r#"{"to":null,"weight":1.50}"#
    );
    let changes = env
        .changes(&okdb_store::ChangesQuery {
            after: clock,
            limit: 100,
            ..Default::default()
        })
        .unwrap();
    let told: Vec<_> = changes
        .changes
        .iter()
        .map(|c| (c.type_name.as_str(), c.action))
        .collect();
    assert_eq!(
        told,
        [
            ("pets", "put"),
            ("children", "remove"),
            ("parents", "remove")
        ]
    );
    assert_eq!(removed.version, changes.clock, "its own removal comes last");
    let query = okdb_store::IndexQuery {
        prefix: vec![Value::Null],
        limit: 10,
        ..Default::default()
    };
    assert_eq!(env.index_list("pets", "to", &query).unwrap().items.len(), 1);
    verify(&env);
}

#[test]
fn who_goes_along_holds_nobody_back() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    family(&env, "cascade");
    // A child may not be deleted while a grandchild refers to it; but this one goes with the parent too.
    register(&env, "grandchildren", &[]);
    let both = r#"{"properties":{
        "to":{"type":"string","ref":{"type":"children","onDelete":"restrict"}},
        "root":{"type":"string","ref":{"type":"parents","onDelete":"cascade"}}}}"#;
    let both = crate::common::value(both).to_json();
    set_schema(&env, "grandchildren", &both, true).unwrap();
    write(&env, put("grandchildren", "g", r#"{"to":"c","root":"a"}"#)).unwrap();
    assert!(matches!(
        write(&env, remove("children", "c")),
        Err(Error::ForeignKeyRestricted { .. })
    ));
    write(&env, remove("parents", "a")).unwrap();
    assert!(keys(&env, "children").is_empty() && keys(&env, "grandchildren").is_empty());
    // Without that way, the whole removal is refused, and nothing of it has happened.
    write(&env, put("children", "c", &to("b"))).unwrap();
    write(&env, put("parents", "other", "{}")).unwrap();
    write(
        &env,
        put("grandchildren", "g", r#"{"to":"c","root":"other"}"#),
    )
    .unwrap();
    let clock = env.snapshot().unwrap().clock().unwrap();
    assert!(matches!(
        write(&env, remove("parents", "b")),
        Err(Error::ForeignKeyRestricted { .. })
    ));
    assert_eq!(env.snapshot().unwrap().clock().unwrap(), clock);
    verify(&env);
}

#[test]
fn no_action_leaves_a_violation_that_goes_when_it_is_cured() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    family(&env, "no_action");
    let dangling = vec![["children".to_owned(), "c".to_owned(), "/to".to_owned()]];
    for cure in 0..4 {
        write(&env, remove("parents", "a")).unwrap();
        assert_eq!(violations(&env, Some(ViolationKind::Ref)), dangling);
        verify(&env);
        // Other changes are still possible, and do not hide it.
        let kept = format!(r#"{{"to":"a","n":{cure}}}"#);
        write(&env, put("children", "c", &kept)).unwrap();
        assert_eq!(violations(&env, None), dangling);
        verify(&env);
        match cure {
            0 => drop(write(&env, put("parents", "a", "{}")).unwrap()),
            1 => drop(write(&env, put("children", "c", &to("b"))).unwrap()),
            2 => drop(write(&env, put("children", "c", r#"{"to":null}"#)).unwrap()),
            _ => drop(write(&env, remove("children", "c")).unwrap()),
        }
        assert!(violations(&env, None).is_empty(), "cure {cure}");
        verify(&env);
        write(&env, put("parents", "a", "{}")).unwrap();
        write(&env, put("children", "c", &to("a"))).unwrap();
    }
}

#[test]
fn cycles_end_and_chains_may_be_long() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "nodes", &[]);
    set_schema(&env, "nodes", &refers("nodes", "cascade"), true).unwrap();
    // One that refers to itself, and three in a ring.
    write(&env, put("nodes", "self", &to("self"))).unwrap();
    write(&env, put("nodes", "r0", "{}")).unwrap();
    write(&env, put("nodes", "r1", &to("r0"))).unwrap();
    write(&env, put("nodes", "r2", &to("r1"))).unwrap();
    write(&env, put("nodes", "r0", &to("r2"))).unwrap();
    verify(&env);
    write(&env, remove("nodes", "self")).unwrap();
    write(&env, remove("nodes", "r1")).unwrap();
    assert!(keys(&env, "nodes").is_empty());
    verify(&env);
    let chain: Vec<_> = (0..50_000)
        .map(|n| match n {
            0 => put("nodes", "n0", "{}"),
            n => put("nodes", &format!("n{n}"), &to(&format!("n{}", n - 1))),
        })
        .collect();
    bulk(&env, chain);
    assert_eq!(
        env.snapshot().unwrap().type_info("nodes").unwrap().count,
        50_000
    );
    write(&env, remove("nodes", "n0")).unwrap();
    assert_eq!(env.snapshot().unwrap().type_info("nodes").unwrap().count, 0);
    verify(&env);
    // A ring that is restricted is held by those outside of it alone.
    set_schema(&env, "nodes", &refers("nodes", "restrict"), true).unwrap();
    write(&env, put("nodes", "x", &to("x"))).unwrap();
    write(&env, remove("nodes", "x")).unwrap();
    verify(&env);
}

#[test]
fn a_late_schema_finds_out_who_refers_to_whom() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "parents", &[]);
    register(&env, "children", &[]);
    bulk(
        &env,
        (0..100)
            .map(|n| put("parents", &format!("p{n}"), "{}"))
            .collect(),
    );
    let children = (0..3000).map(|n| {
        put(
            "children",
            &format!("c{n:04}"),
            &to(&format!("p{}", n % 101)),
        )
    });
    bulk(&env, children.collect());
    set_schema(&env, "children", &refers("parents", "cascade"), true).unwrap();
    let chores = Chores::start(&store);
    wait_checked(&env, "children");
    assert_eq!(violations(&env, Some(ViolationKind::Ref)).len(), 3000 / 101);
    verify(&env);
    // Known now: a new target cures, an old one takes its own along.
    write(&env, put("parents", "p100", "{}")).unwrap();
    assert!(violations(&env, None).is_empty());
    write(&env, remove("parents", "p7")).unwrap();
    let left = env.snapshot().unwrap().type_info("children").unwrap().count;
    assert_eq!(left, 3000 - 30);
    verify(&env);
    // Another action for the same reference needs no new look at it, another target does.
    set_schema(&env, "children", &refers("parents", "restrict"), true).unwrap();
    wait_checked(&env, "children");
    assert!(write(&env, remove("parents", "p8")).is_err());
    set_schema(&env, "children", &refers("children", "restrict"), true).unwrap();
    wait_checked(&env, "children");
    assert_eq!(violations(&env, None).len() as u64, left);
    write(&env, remove("parents", "p8")).unwrap();
    env.submit(Write::DropSchema {
        type_name: "children".into(),
    })
    .wait()
    .unwrap();
    verify(&env);
    drop(chores);
}

#[test]
fn elements_of_arrays_and_nested_members_refer_too() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "users", &[]);
    register(&env, "posts", &[]);
    let schema = r#"{"properties":{"meta":{"properties":{"likes":{"type":"array","items":{"type":["string","null"],"ref":{"type":"users","onDelete":"set_null"}}}}}}}"#;
    set_schema(&env, "posts", schema, true).unwrap();
    for key in ["u1", "u2"] {
        write(&env, put("users", key, "{}")).unwrap();
    }
    write(
        &env,
        put("posts", "p", r#"{"meta":{"likes":["u1","u2","u1"]}}"#),
    )
    .unwrap();
    match write(&env, put("posts", "q", r#"{"meta":{"likes":["u1","zz"]}}"#)) {
        Err(Error::ForeignKeyViolation { path, .. }) => assert_eq!(path, "/meta/likes/1"),
        other => panic!("{other:?}"),
    }
    verify(&env);
    write(&env, remove("users", "u1")).unwrap();
    assert_eq!(
        value_of(&env, "posts", "p"),
        r#"{"meta":{"likes":[null,"u2",null]}}"#
    );
    verify(&env);
}
