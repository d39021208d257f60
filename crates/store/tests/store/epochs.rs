//! The host goes down while environments are open: what each durability promises about it afterwards.
//!
//! Power cannot be cut here. A process that dies without closing, and a next one that is told of another boot, stand in for
//! it; what a lost cache would do to the files of a `fast` environment is done to them by hand.

use std::{fs, path::Path};

use fastrand::Rng;
use okdb_store::{Durability, OpenError, Options, Role, Store};

use crate::{
    children::{Actor, Cue, say},
    common::{Folder, bulk, put, quick, register, remove, spec, verify, write},
};

const JUMP: u64 = 1 << 32;

fn on_boot(boot: u8) -> Options {
    Options {
        boot: Some([boot; 16]),
        ..quick()
    }
}

/// Not a test: where a process writes, and dies with the host. Its part is the boot that it lives in, and the durability.
#[test]
fn play() {
    let Some(Cue { part, root }) = Cue::take() else {
        return;
    };
    let (boot, durability) = part.split_once(' ').unwrap();
    let options = Options {
        durability: durability.parse().ok(),
        ..on_boot(boot.parse().unwrap())
    };
    let store = Store::open(&root, options).unwrap();
    for name in store.env_names().unwrap() {
        let env = store.env(&name).unwrap();
        register(&env, "t", &[spec(&["g"], false), spec(&["g", "h"], true)]);
        bulk(&env, (0..400).map(record).collect());
        bulk(
            &env,
            (0..100).map(|n| remove("t", &format!("{n:04}"))).collect(),
        );
    }
    say("written");
    std::process::abort();
}

fn record(n: usize) -> okdb_store::Operation {
    let text = format!(
        "{{\"g\":{},\"h\":{n},\"text\":\"{}\"}}",
        n % 9,
        "x".repeat(n)
    );
    put("t", &format!("{n:04}"), &text)
}

/// Lets a process use every environment and go down with the host.
fn power_cut(root: &Path, boot: u8) {
    power_cut_in(root, boot, "fast");
}

fn power_cut_in(root: &Path, boot: u8, durability: &str) {
    let mut actor = Actor::start("epochs::play", &format!("{boot} {durability}"), root);
    actor.expect("written");
    while actor.hear().is_some() {}
}

fn clock(store: &Store, env: &str) -> u64 {
    store.env(env).unwrap().snapshot().unwrap().clock().unwrap()
}

#[test]
fn clocks_jump_where_commits_may_be_undone() {
    let folder = Folder::new();
    let root = folder.root();
    let modes = [Durability::Strict, Durability::Balanced, Durability::Fast];
    {
        let store = Store::open(&root, on_boot(1)).unwrap();
        for mode in modes {
            store.create_env(&mode.to_string(), Some(mode)).unwrap();
        }
    }
    power_cut(&root, 1);

    // The process died, the host did not: nothing is lost, nothing jumps.
    let before = {
        let store = Store::open(&root, on_boot(1)).unwrap();
        modes.map(|mode| clock(&store, &mode.to_string()))
    };
    assert!(before.iter().all(|clock| *clock < JUMP));

    // It ended well on boot 1 just now, so boot 2 has nothing to fear.
    {
        let store = Store::open(&root, on_boot(2)).unwrap();
        assert_eq!(modes.map(|mode| clock(&store, &mode.to_string())), before);
    }
    power_cut(&root, 2);
    let store = Store::open(&root, on_boot(3)).unwrap();
    let strict = clock(&store, "strict");
    for mode in modes {
        let name = mode.to_string();
        let env = store.env(&name).unwrap();
        assert_eq!(env.durability(), mode);
        let jump = if mode == Durability::Strict { 0 } else { JUMP };
        assert_eq!(clock(&store, &name), strict + jump, "{name}");
        let version = write(&env, put("t", "new", "{\"g\":1}")).unwrap().version;
        assert_eq!(version, strict + jump + 1);
        assert_eq!(
            store
                .segment()
                .env(usize::from(env.index()))
                .unwrap()
                .clock(),
            version
        );
        verify(&env);
    }
    drop(store);

    // Who never opened an environment cannot have ended it well: it jumps when it is opened on the boot after.
    power_cut(&root, 4);
    drop(Store::open(&root, on_boot(4)).unwrap());
    let store = Store::open(&root, on_boot(5)).unwrap();
    assert!(clock(&store, "balanced") > 2 * JUMP);
    assert!(clock(&store, "strict") < JUMP);
}

#[test]
fn hybrid_clocks_do_not_step_back() {
    let folder = Folder::new();
    let root = folder.root();
    power_cut_first(&root);
    let store = Store::open(&root, on_boot(2)).unwrap();
    let env = store.env("default").unwrap();
    let hlc = |key: &str| env.snapshot().unwrap().get("t", key).unwrap().unwrap().hlc;
    let last = hlc("0399");
    write(&env, put("t", "new", "{\"g\":1}")).unwrap();
    assert!(hlc("new") > last);
}

fn power_cut_first(root: &Path) {
    drop(Store::open(root, on_boot(1)).unwrap());
    power_cut(root, 1);
}

#[test]
fn damaged_fast_environments_are_refused() {
    let folder = Folder::new();
    let root = folder.root();
    power_cut_first(&root);
    let data = root.join("envs/default/1/data.mdb");
    let whole = fs::read(&data).unwrap();
    let system = root.join("system/data.mdb");
    let system_whole = fs::read(&system).unwrap();
    let pages = whole.len() / 4096;
    let mut rng = Rng::with_seed(11);
    let (mut refused, mut served) = (0, 0);
    for round in 0..150 {
        let mut file = whole.clone();
        match round % 5 {
            // A page of something else, as when a write did not reach the disk.
            0 => {
                let (from, to) = (rng.usize(..pages), rng.usize(..pages));
                file.copy_within(from * 4096..(from + 1) * 4096, to * 4096);
            }
            1 => {
                let page = rng.usize(..pages);
                file[page * 4096..(page + 1) * 4096].fill(0);
            }
            2 => file.truncate(rng.usize(..whole.len())),
            _ => {
                for _ in 0..rng.usize(1..8) {
                    let at = rng.usize(..pages) * 4096
                        + rng.usize(..if round % 5 == 3 { 64 } else { 4096 });
                    file[at] = rng.u8(..);
                }
            }
        }
        fs::write(&data, &file).unwrap();
        let role = if round % 2 == 0 {
            Role::Server
        } else {
            Role::Library
        };
        let options = Options { role, ..on_boot(2) };
        match Store::open(&root, options) {
            Ok(store) => {
                served += 1;
                let env = store.env("default").unwrap();
                verify(&env);
                write(&env, put("t", "new", "{}")).unwrap();
            }
            Err(OpenError::Damaged { reason, .. }) => {
                refused += 1;
                assert!(reason.contains("restore a backup"), "{reason}");
            }
            Err(other) => panic!("{other:?}"),
        }
        // As it was before the boot.
        fs::write(&system, &system_whole).unwrap();
    }
    assert!(
        refused > 60 && served > 0,
        "{refused} refused, {served} served"
    );
    fs::write(&data, &whole).unwrap();
    let store = Store::open(&root, on_boot(2)).unwrap();
    verify(&store.env("default").unwrap());
}

#[test]
fn a_refusal_does_not_wear_off() {
    let folder = Folder::new();
    let root = folder.root();
    power_cut_first(&root);
    let data = root.join("envs/default/1/data.mdb");
    let whole = fs::read(&data).unwrap();
    fs::write(&data, &whole[..whole.len() / 2]).unwrap();
    for boot in [2, 2, 3] {
        let refused = Store::open(&root, on_boot(boot));
        assert!(matches!(refused, Err(OpenError::Damaged { .. })));
    }
    // The backup that the message asks for.
    fs::write(&data, &whole).unwrap();
    let store = Store::open(&root, on_boot(3)).unwrap();
    assert!(clock(&store, "default") > JUMP);
}

#[test]
fn what_was_fast_stays_suspect_until_a_clean_end() {
    let folder = Folder::new();
    let root = folder.root();
    power_cut_first(&root);
    // Killed, not cut: on the same boot, it goes on in another mode, and then the host goes down.
    power_cut_in(&root, 1, "balanced");
    let data = root.join("envs/default/1/data.mdb");
    let whole = fs::read(&data).unwrap();
    fs::write(&data, &whole[..whole.len() / 2]).unwrap();
    let balanced = || Options {
        durability: None,
        ..on_boot(2)
    };
    let refused = Store::open(&root, balanced());
    assert!(matches!(refused, Err(OpenError::Damaged { .. })));
    fs::write(&data, &whole).unwrap();
    let store = Store::open(&root, balanced()).unwrap();
    assert_eq!(
        store.env("default").unwrap().durability(),
        Durability::Balanced
    );
    verify(&store.env("default").unwrap());
}
