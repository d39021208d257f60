//! What a reply promises is a property of the root: recorded, obeyed by every process, changed by one that is alone.

use okdb_store::{Durability, OpenError, Options, Store};

use crate::common::{Folder, put, write};

fn options(durability: Option<Durability>) -> Options {
    Options {
        durability,
        segment_in_root: true,
        ..Options::default()
    }
}

#[test]
fn a_lone_start_changes_it_and_the_root_remembers() {
    let folder = Folder::new();
    let mut clock = 0;
    for (wanted, expected) in [
        (None, Durability::Strict),
        (Some(Durability::Fast), Durability::Fast),
        (None, Durability::Fast),
        (Some(Durability::Strict), Durability::Strict),
        (Some(Durability::Balanced), Durability::Balanced),
        (None, Durability::Balanced),
        (Some(Durability::Strict), Durability::Strict),
        (None, Durability::Strict),
    ] {
        let store = Store::open(&folder.root(), options(wanted)).unwrap();
        let env = store.env("default").unwrap();
        assert_eq!(env.durability(), expected, "{wanted:?}");
        let register = okdb_store::Write::RegisterType {
            name: "t".into(),
            indexes: Vec::new(),
            schema: None,
            ensure: true,
        };
        env.submit(register).wait().unwrap();
        let written = write(&env, put("t", "k", "1")).unwrap();
        assert!(
            written.version > clock && written.version < 1 << 32,
            "no clock jumps over a clean end"
        );
        clock = written.version;
    }
}

#[test]
fn an_environment_of_its_own_mind_keeps_it() {
    let folder = Folder::new();
    {
        let store = Store::open(&folder.root(), options(Some(Durability::Fast))).unwrap();
        store
            .create_env("ledger", Some(Durability::Strict))
            .unwrap();
        store.create_env("cache", None).unwrap();
    }
    let store = Store::open(&folder.root(), options(Some(Durability::Balanced))).unwrap();
    let durability = |name: &str| store.env(name).unwrap().durability();
    assert_eq!(durability("ledger"), Durability::Strict);
    assert_eq!(durability("cache"), Durability::Balanced);
    assert_eq!(durability("default"), Durability::Balanced);
}

#[test]
fn it_cannot_be_changed_under_others() {
    let folder = Folder::new();
    let first = Store::open(&folder.root(), options(None)).unwrap();
    // The locks are a process's and a handle's alike: this open is not alone.
    let second = Store::open(&folder.root(), options(Some(Durability::Fast)));
    assert!(
        matches!(second, Err(OpenError::Option(_))),
        "{:?}",
        second.err()
    );
    assert_eq!(
        first.env("default").unwrap().durability(),
        Durability::Strict
    );
}
