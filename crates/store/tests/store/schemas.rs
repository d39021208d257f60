//! Schemas: what they refuse, what they record, and what happens to records that were there before.

use okdb_store::{
    Action, Env, Error, Outcome, SchemaSpec, SchemaState, ViolationKind, ViolationsQuery, Write,
};

use crate::common::{Chores, Folder, bulk, open, operation, put, register, remove, verify, write};

pub(crate) fn set_schema(
    env: &Env,
    type_name: &str,
    text: &str,
    enforce: bool,
) -> Result<(), Error> {
    let write = Write::SetSchema {
        type_name: type_name.to_owned(),
        schema: SchemaSpec {
            text: text.to_owned(),
            enforce,
        },
    };
    match env.submit(write).wait()? {
        Outcome::Schema(info) => assert_eq!(info.enforce, enforce),
        other => panic!("a schema, and {other:?}"),
    }
    Ok(())
}

/// Waits for the check of older records; somebody has to do the background work.
pub(crate) fn wait_checked(env: &Env, type_name: &str) {
    loop {
        let info = env.snapshot().unwrap().schema(type_name).unwrap().unwrap();
        if info.state == SchemaState::Ready {
            return;
        }
        std::thread::yield_now();
    }
}

/// Type, key and path of all violations, page by page.
pub(crate) fn violations(env: &Env, kind: Option<ViolationKind>) -> Vec<[String; 3]> {
    let mut all = Vec::new();
    let mut query = ViolationsQuery {
        kind,
        limit: 3,
        ..ViolationsQuery::default()
    };
    loop {
        let page = env.violations(&query).unwrap();
        assert!(page.violations.len() <= 3);
        all.extend(
            page.violations
                .into_iter()
                .map(|one| [one.type_name, one.key, one.path]),
        );
        match page.cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => return all,
        }
    }
}

fn triple(type_name: &str, key: &str, path: &str) -> [String; 3] {
    [type_name.to_owned(), key.to_owned(), path.to_owned()]
}

const PERSON: &str = r#"{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0}}}"#;

#[test]
fn an_enforced_schema_names_every_failing_place_and_changes_nothing() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "people", &[]);
    set_schema(&env, "people", PERSON, true).unwrap();
    write(&env, put("people", "ann", r#"{"name":"Ann","age":3}"#)).unwrap();
    let clock = env.snapshot().unwrap().clock().unwrap();
    for action in [
        Action::Put(r#"{"name":1,"age":-1}"#.into()),
        Action::Update(r#"{"name":1,"age":-1}"#.into()),
    ] {
        let refused = write(&env, operation("people", "ann", action)).unwrap_err();
        let Error::SchemaViolation { failures } = refused else {
            panic!("{refused:?}");
        };
        let mut paths: Vec<_> = failures.iter().map(|[path, _]| path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["/age", "/name"]);
    }
    let patch = okdb_query::Patch::parse_document(&crate::common::value(r#"{"unset":["name"]}"#));
    let refused = write(
        &env,
        operation("people", "ann", Action::Patch(patch.unwrap())),
    );
    assert!(matches!(refused, Err(Error::SchemaViolation { .. })));
    assert_eq!(env.snapshot().unwrap().clock().unwrap(), clock);
    // One that fails takes all others of its transaction with it.
    let both = vec![
        put("people", "bob", r#"{"name":"Bob"}"#),
        put("people", "cid", "{}"),
    ];
    match env.submit(Write::Transaction(both)).wait() {
        Err(Error::Operation { index: 1, source }) => {
            assert!(matches!(*source, Error::SchemaViolation { .. }));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(env.snapshot().unwrap().clock().unwrap(), clock);
    for (bad, why) in [
        ("1", "a number"),
        (r#"{"type":"strange"}"#, "no type"),
        (r#"{"$ref":"http://example.org/x"}"#, "elsewhere"),
    ] {
        assert!(
            matches!(
                set_schema(&env, "people", bad, true),
                Err(Error::InvalidSchema { .. })
            ),
            "{why}"
        );
    }
    assert_eq!(env.snapshot().unwrap().clock().unwrap(), clock);
    verify(&env);
}

#[test]
fn what_was_there_before_is_looked_at_and_what_is_cured_is_forgotten() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "people", &[]);
    let records = (0..5000).map(|n| {
        let value = if n % 1000 == 7 {
            r#"{"age":"old"}"#
        } else {
            r#"{"name":"N"}"#
        };
        put("people", &format!("p{n:04}"), value)
    });
    bulk(&env, records.collect());
    set_schema(&env, "people", PERSON, true).unwrap();
    assert!(violations(&env, None).is_empty(), "nobody has looked yet");
    // Writes obey it at once, and what the check has still to see may be cured meanwhile.
    write(&env, put("people", "p0007", r#"{"name":"Cured"}"#)).unwrap();
    assert!(write(&env, put("people", "new", "{}")).is_err());
    verify(&env);
    let chores = Chores::start(&store);
    wait_checked(&env, "people");
    let expected: Vec<_> = (1..5)
        .flat_map(|n| {
            let key = format!("p{n}007");
            [triple("people", &key, ""), triple("people", &key, "/age")]
        })
        .collect();
    let mut found = violations(&env, Some(ViolationKind::Schema));
    found.sort();
    assert_eq!(found, expected);
    verify(&env);
    write(&env, put("people", "p1007", r#"{"name":"Cured"}"#)).unwrap();
    write(&env, remove("people", "p2007")).unwrap();
    let left = violations(&env, None);
    assert_eq!(left.len(), 4, "{left:?}");
    verify(&env);
    // Without a schema nothing is violated; the rows go in the background.
    env.submit(Write::DropSchema {
        type_name: "people".into(),
    })
    .wait()
    .unwrap();
    assert!(violations(&env, None).is_empty());
    verify(&env);
    // And a laxer one judges anew.
    set_schema(
        &env,
        "people",
        r#"{"properties":{"age":{"type":"string"}}}"#,
        true,
    )
    .unwrap();
    wait_checked(&env, "people");
    assert!(violations(&env, None).is_empty());
    drop(chores);
    verify(&env);
}

#[test]
fn without_enforcement_what_does_not_fit_is_recorded_until_it_is_cured() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "people", &[]);
    set_schema(&env, "people", PERSON, false).unwrap();
    write(&env, put("people", "ann", r#"{"name":"Ann","age":-2}"#)).unwrap();
    write(&env, put("people", "bob", "{}")).unwrap();
    assert_eq!(
        violations(&env, None),
        [triple("people", "ann", "/age"), triple("people", "bob", "")]
    );
    let first = env
        .violations(&ViolationsQuery {
            limit: 1,
            ..ViolationsQuery::default()
        })
        .unwrap();
    write(&env, put("people", "ann", r#"{"name":"Anna","age":-2}"#)).unwrap();
    let again = env
        .violations(&ViolationsQuery {
            limit: 1,
            ..ViolationsQuery::default()
        })
        .unwrap();
    assert_eq!(first.violations, again.violations, "it has not been away");
    verify(&env);
    write(&env, put("people", "ann", r#"{"name":"Ann","age":2}"#)).unwrap();
    write(&env, remove("people", "bob")).unwrap();
    assert!(violations(&env, None).is_empty());
    verify(&env);
    // The type goes with all it has.
    write(&env, put("people", "cid", "{}")).unwrap();
    env.submit(Write::DropType {
        name: "people".into(),
    })
    .wait()
    .unwrap();
    assert!(violations(&env, None).is_empty());
    verify(&env);
    let changes = env
        .changes(&okdb_store::ChangesQuery {
            limit: 100,
            ..Default::default()
        })
        .unwrap();
    let actions: Vec<_> = changes.changes.iter().map(|change| change.action).collect();
    assert!(actions.contains(&"schema_drop"), "{actions:?}");
}

#[test]
fn the_definition_is_known_to_every_process_at_once() {
    let folder = Folder::new();
    let one = open(&folder.root());
    let env = one.env("default").unwrap();
    register(&env, "people", &[]);
    set_schema(&env, "people", PERSON, true).unwrap();
    let changes = env
        .changes(&okdb_store::ChangesQuery {
            limit: 100,
            ..Default::default()
        })
        .unwrap();
    let last = changes.changes.last().unwrap();
    assert_eq!(
        (last.action, last.type_name.as_str(), last.key.as_str()),
        ("schema_set", "people", "")
    );
    let clock = changes.clock;
    // The same once more is no change.
    set_schema(&env, "people", PERSON, true).unwrap();
    assert_eq!(env.snapshot().unwrap().clock().unwrap(), clock);
    drop((env, one));
    let again = open(&folder.root());
    let env = again.env("default").unwrap();
    assert!(matches!(
        write(&env, put("people", "x", "{}")),
        Err(Error::SchemaViolation { .. })
    ));
    let info = env.snapshot().unwrap().schema("people").unwrap().unwrap();
    assert_eq!(info.schema.get(), PERSON);
    verify(&env);
}
