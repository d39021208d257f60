//! Hot copies, and folders that are no roots.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
};

use okdb_store::{OpenError, Options, Role, Store};

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
