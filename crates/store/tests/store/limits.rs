//! What is bounded is refused at its bound, whole, and in words.

use std::sync::Arc;

use okdb_store::{
    Action, Error, Guard, Hooks, IndexSpec, Limits, Operation, Options, Store, Write,
};

use crate::common::{Folder, open, put, quick, register, spec, verify, write};

#[test]
fn values_and_transactions_have_bounds() {
    let folder = Folder::new();
    let options = Options {
        limits: Limits {
            value_bytes: 1000,
            ..Limits::default()
        },
        ..quick()
    };
    let store = Store::open(&folder.root(), options).unwrap();
    let env = store.env("default").unwrap();
    register(&env, "t", &[]);
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    write(&env, put("t", "k", &text(1000))).unwrap();
    for operation in [put("t", "k", &text(1001)), put("t", "new", &text(1001))] {
        let refused = write(&env, operation).unwrap_err();
        assert!(
            matches!(refused, Error::TooLarge { limit: 1000, .. }),
            "{refused}"
        );
    }
    let many = (0..10_001).map(|n| put("t", &n.to_string(), "1")).collect();
    let refused = env.submit(Write::Transaction(many)).wait().unwrap_err();
    assert!(matches!(refused, Error::TooLarge { limit: 10_000, .. }));
    let most = (0..10_000).map(|n| put("t", &n.to_string(), "1")).collect();
    env.submit(Write::Transaction(most)).wait().unwrap();
    verify(&env);
}

#[test]
fn definitions_have_bounds() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    let field = |n: usize| format!("f{n}");
    let specs: Vec<_> = (0..65).map(|n| spec(&[&field(n)], false)).collect();
    let ask = |indexes: &[IndexSpec]| {
        env.submit(Write::RegisterType {
            name: "t".into(),
            indexes: indexes.to_vec(),
            schema: None,
            ensure: true,
        })
        .wait()
    };
    assert!(matches!(
        ask(&specs),
        Err(Error::TooLarge { limit: 64, .. })
    ));
    assert!(env.snapshot().unwrap().types().unwrap().is_empty());
    ask(&specs[..64]).unwrap();
    ask(&specs[..64]).unwrap();
    assert!(matches!(
        ask(&specs[64..]),
        Err(Error::TooLarge { limit: 64, .. })
    ));
    let fields = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    for bad in [
        spec(&fields, false),
        spec(&[], false),
        spec(&["a", "a"], false),
        spec(&["a~b"], false),
        spec(&["a..b"], false),
        spec(&[&"x".repeat(1001)], false),
    ] {
        let refused = ask(std::slice::from_ref(&bad)).unwrap_err();
        assert!(
            matches!(refused, Error::InvalidIndex(_)),
            "{bad:?}: {refused}"
        );
    }
    let twice = [spec(&["y"], false), spec(&["y"], true)];
    assert!(matches!(ask(&twice), Err(Error::InvalidIndex(_))));
}

#[test]
fn a_record_has_so_many_entries_and_no_more() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "t", &[spec(&["a", "b"], false)]);
    let list = |count: usize| {
        (0..count)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .join(",")
    };
    let doc = |a: usize, b: usize| format!("{{\"a\":[{}],\"b\":[{}]}}", list(a), list(b));
    write(&env, put("t", "most", &doc(100, 100))).unwrap();
    let refused = write(&env, put("t", "more", &doc(101, 100))).unwrap_err();
    assert!(matches!(refused, Error::InvalidIndex(_)));
    verify(&env);
}

#[test]
fn an_automatic_type_comes_with_its_record_or_not_at_all() {
    let folder = Folder::new();
    let options = Options {
        auto_types: true,
        limits: Limits {
            value_bytes: 100,
            ..Limits::default()
        },
        ..quick()
    };
    let store = Store::open(&folder.root(), options).unwrap();
    let env = store.env("default").unwrap();
    let guarded = Operation {
        guard: Guard {
            version: Some(okdb_store::Expect::Version(7)),
            header: None,
        },
        ..put("t", "k", "1")
    };
    let refused = [
        guarded,
        put("t", "k", &format!("\"{}\"", "x".repeat(100))),
        put("t", "", "1"),
        put("no/name", "k", "1"),
        Operation {
            action: Action::Remove,
            ..put("t", "k", "")
        },
    ];
    for operation in refused {
        write(&env, operation).unwrap_err();
        assert!(env.snapshot().unwrap().types().unwrap().is_empty());
    }
    write(&env, put("t", "k", "1")).unwrap();
    assert_eq!(env.snapshot().unwrap().type_info("t").unwrap().count, 1);
    verify(&env);
}

/// Lets each batch in only when it is told to.
struct Gate(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

impl Hooks for Gate {
    fn holding_write_lock(&self, _env_index: u16, batch: &mut dyn FnMut()) {
        self.0.lock().unwrap().recv().ok();
        batch();
    }
}

#[test]
fn a_full_queue_refuses_and_a_closed_store_too() {
    let folder = Folder::new();
    let (open_gate, gate) = std::sync::mpsc::channel();
    let options = Options {
        limits: Limits {
            queue_operations: 5,
            ..Limits::default()
        },
        hooks: Arc::new(Gate(std::sync::Mutex::new(gate))),
        auto_types: true,
        ..quick()
    };
    let store = Store::open(&folder.root(), options).unwrap();
    let env = store.env("default").unwrap();
    // One batch waits in the gate; behind it, so many and no more.
    let waiting: Vec<_> = (0..20)
        .map(|n| env.submit(Write::One(put("t", &n.to_string(), "1"))))
        .collect();
    drop(open_gate);
    let outcomes: Vec<_> = waiting.into_iter().map(okdb_store::Pending::wait).collect();
    let overloaded = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Err(Error::Overloaded)))
        .count();
    let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!(overloaded + done, outcomes.len());
    assert!(
        done >= 5 && overloaded >= 5,
        "{done} done, {overloaded} refused"
    );

    store.close();
    let late = env.submit(Write::One(put("t", "late", "1"))).wait();
    assert!(matches!(late, Err(Error::ShuttingDown)));
    assert_eq!(
        env.snapshot().unwrap().type_info("t").unwrap().count,
        done as u64
    );
}

/// Panics in the middle of the first batch.
struct Panics(std::sync::atomic::AtomicBool);

impl Hooks for Panics {
    fn holding_write_lock(&self, _env_index: u16, batch: &mut dyn FnMut()) {
        assert!(
            self.0.swap(true, std::sync::atomic::Ordering::Relaxed),
            "as planned"
        );
        batch();
    }
}

#[test]
fn a_panic_fails_its_batch_alone() {
    let folder = Folder::new();
    let options = Options {
        hooks: Arc::new(Panics(false.into())),
        auto_types: true,
        ..quick()
    };
    let store = Store::open(&folder.root(), options).unwrap();
    let env = store.env("default").unwrap();
    let failed = write(&env, put("t", "k", "1")).unwrap_err();
    assert!(matches!(failed, Error::Io(_)), "{failed:?}");
    assert_eq!(write(&env, put("t", "k", "1")).unwrap().version, 2);
    verify(&env);
}
