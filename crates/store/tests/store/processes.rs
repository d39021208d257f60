//! The rules of LMDB under many processes, each with real ones: nothing lost, nothing seen half-done, whoever dies.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use fastrand::Rng;
use nix::sys::signal::Signal;
use okdb_query::{Filter, Sort};
use okdb_store::{
    Action, ChangesQuery, Env, Error, Expect, Guard, Hooks, IndexState, OpenError, Operation,
    Options, Outcome, Query, Role, StopFlag, Store, Write,
};

use crate::{
    children::{Actor, Cue, listen, say},
    common::{
        Chores, Folder, as_server, bulk, open, put, quick, register, remove, spec, value, verify,
        write,
    },
};

fn actor(part: &str, root: &Path) -> Actor {
    Actor::start("processes::play", part, root)
}

/// Not a test: where the other processes of these stories begin.
#[test]
fn play() {
    let Some(Cue { part, root }) = Cue::take() else {
        return;
    };
    match part.as_str() {
        "increments" => increments(&root),
        "batches" => batches(&root),
        "readers" => readers(&root),
        "opener" => opener(&root),
        "user" => user(&root),
        "watcher" => watcher(&root),
        "dies in step 1" => builder(&root, 1, false),
        "dies after step 1" => builder(&root, 1, true),
        "dies in step 2" => builder(&root, 2, false),
        "dies after step 2" => builder(&root, 2, true),
        "holds the lock" => in_the_lock(&root, Moment::Before),
        "dies before the commit" => in_the_lock(&root, Moment::Inside),
        "dies before it publishes" => in_the_lock(&root, Moment::After),
        other => panic!("no part {other:?}"),
    }
}

fn get(env: &Env, type_name: &str, key: &str) -> Option<(u64, String)> {
    let snapshot = env.snapshot().unwrap();
    let record = snapshot.get(type_name, key).unwrap()?;
    Some((record.version, record.value.to_owned()))
}

const INCREMENTS: u64 = 150;

/// Adds to a counter by its version, and puts records of its own; says each version.
fn increments(root: &Path) {
    let store = open(root);
    let env = store.env("default").unwrap();
    let me = std::process::id();
    for round in 0..INCREMENTS {
        loop {
            let (version, text) = get(&env, "t", "counter").unwrap();
            let next = text.parse::<u64>().unwrap() + 1;
            let guarded = Operation {
                guard: Guard {
                    version: Some(Expect::Version(version)),
                    header: None,
                },
                ..put("t", "counter", &next.to_string())
            };
            match write(&env, guarded) {
                Ok(written) => break say(&written.version.to_string()),
                Err(Error::VersionMismatch { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let own = put("t", &format!("{me} {round}"), &format!("{{\"g\":{round}}}"));
        say(&write(&env, own).unwrap().version.to_string());
    }
}

#[test]
fn processes_that_write_at_once_lose_nothing() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "t", &[spec(&["g"], false)]);
    write(&env, put("t", "counter", "0")).unwrap();
    let before = env.snapshot().unwrap().clock().unwrap();
    let mut actors: Vec<_> = (0..3)
        .map(|_| actor("increments", &folder.root()))
        .collect();
    let mut versions = BTreeSet::new();
    for actor in &mut actors {
        while let Some(version) = actor.hear() {
            let version: u64 = version.parse().unwrap();
            assert!(versions.insert(version), "{version} was given twice");
        }
    }
    for actor in actors {
        actor.finish();
    }
    let after = before + 3 * 2 * INCREMENTS;
    assert_eq!(versions, (before + 1..=after).collect());
    assert_eq!(env.snapshot().unwrap().clock().unwrap(), after);
    assert_eq!(
        get(&env, "t", "counter").unwrap().1,
        (3 * INCREMENTS).to_string()
    );
    verify(&env);
}

const BATCH: u64 = 5;

/// Writes transactions without end; says the number of each that is acknowledged.
fn batches(root: &Path) {
    let store = open(root);
    let env = store.env("default").unwrap();
    let first = get(&env, "t", "0").map_or(0, |(_, text)| text.parse::<u64>().unwrap());
    for number in first + 1.. {
        let mut operations: Vec<_> = (0..BATCH)
            .map(|place| put("t", &place.to_string(), &number.to_string()))
            .collect();
        operations.push(put(
            "u",
            &number.to_string(),
            &format!("{{\"g\":{}}}", number % 7),
        ));
        if number > 3 {
            operations.push(remove("u", &(number - 3).to_string()));
        }
        env.submit(Write::Transaction(operations)).wait().unwrap();
        say(&number.to_string());
    }
}

#[test]
fn a_killed_writer_leaves_whole_transactions() {
    let folder = Folder::new();
    let mut rng = Rng::with_seed(7);
    {
        let store = open(&folder.root());
        let env = store.env("default").unwrap();
        register(&env, "t", &[]);
        register(&env, "u", &[spec(&["g"], false), spec(&["g", "h"], false)]);
        bulk(
            &env,
            (0..BATCH)
                .map(|place| put("t", &place.to_string(), "0"))
                .collect(),
        );
    }
    let mut last = 0;
    for round in 0..30 {
        // In half of the rounds somebody else has the root open all the time.
        let beside = (round % 2 == 0).then(|| open(&folder.root()));
        let mut writer = actor("batches", &folder.root());
        for _ in 0..rng.u32(1..20) {
            last = writer.hear().unwrap().parse::<u64>().unwrap();
        }
        for _ in 0..rng.u32(..20_000) {
            std::hint::spin_loop();
        }
        writer.kill();
        while let Some(heard) = writer.hear() {
            last = heard.parse().unwrap();
        }
        let store = beside.unwrap_or_else(|| open(&folder.root()));
        store.repair().unwrap();
        let env = store.env("default").unwrap();
        verify(&env);
        let now = get(&env, "t", "0").unwrap().1.parse::<u64>().unwrap();
        assert!(
            now == last || now == last + 1,
            "{last} was acknowledged, {now} is there"
        );
        for place in 0..BATCH {
            assert_eq!(
                get(&env, "t", &place.to_string()).unwrap().1,
                now.to_string()
            );
        }
        let clock = env.snapshot().unwrap().clock().unwrap();
        let definitions = 4;
        let removed = now.saturating_sub(3);
        assert_eq!(
            clock,
            definitions + BATCH + now * (BATCH + 1) + removed,
            "gaps, or repeats"
        );
        last = now;
    }
}

/// Keeps snapshots until it is told otherwise.
fn readers(root: &Path) {
    let store = open(root);
    let env = store.env("default").unwrap();
    let snapshots: Vec<_> = (0..7).map(|_| env.snapshot().unwrap()).collect();
    say("reading");
    listen();
    drop(snapshots);
}

#[test]
fn dead_readers_make_room() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "t", &[]);
    // More than the reader table holds, if slots were lost.
    for _ in 0..3 {
        let mut reader = actor("readers", &folder.root());
        reader.expect("reading");
        assert_eq!(store.clear_stale_readers().unwrap(), 0);
        reader.kill();
        assert_eq!(store.clear_stale_readers().unwrap(), 7);
    }
    // Opening the root clears them too.
    let mut reader = actor("readers", &folder.root());
    reader.expect("reading");
    reader.kill();
    let mut opener = actor("opener", &folder.root());
    assert_eq!(opener.ask("library -"), "open 137438953472");
    assert_eq!(store.clear_stale_readers().unwrap(), 0);
    opener.finish();
}

#[test]
fn a_dead_reader_does_not_make_the_file_grow() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "t", &[]);
    let overwrite = |times: usize| {
        for _ in 0..times {
            let text = format!("\"{}\"", "x".repeat(300));
            bulk(
                &env,
                (0..200).map(|n| put("t", &n.to_string(), &text)).collect(),
            );
        }
    };
    let _chores = Chores::start(&store);
    overwrite(20);
    let mut reader = actor("readers", &folder.root());
    reader.expect("reading");
    reader.kill();
    store.clear_stale_readers().unwrap();
    let before = env.info().unwrap().bytes;
    overwrite(100);
    let after = env.info().unwrap().bytes;
    assert!(after < before * 4, "{before} became {after}");
}

/// Opens the root as it is told: `server|library|worker MAP_BYTES|-`, and says how that went.
fn opener(root: &Path) {
    let mut held = None;
    while let Some(told) = listen() {
        drop(held.take());
        let (role, map_size) = told.split_once(' ').unwrap();
        let options = Options {
            role: match role {
                "server" => Role::Server,
                "worker" => Role::Worker,
                _ => Role::Library,
            },
            map_size: map_size.parse().ok(),
            ..quick()
        };
        match Store::open(root, options) {
            Ok(store) => {
                say(&format!("open {}", store.map_bytes()));
                held = Some(store);
            }
            Err(OpenError::Locked { pid, .. }) => say(&format!("locked {pid:?}")),
            Err(OpenError::Option(_)) => say("option"),
            Err(error) => say(&format!("{error:?}")),
        }
    }
}

#[test]
fn a_second_server_is_told_who_serves() {
    let folder = Folder::new();
    let root = folder.root();
    let store = Store::open(&root, as_server()).unwrap();
    let segment = store.segment().path().unwrap().to_owned();
    let mut opener = actor("opener", &root);
    let me = format!("locked {:?}", Some(std::process::id()));
    for _ in 0..3 {
        assert_eq!(opener.ask("server -"), me);
    }
    // The first is as it was, and others may join.
    assert!(segment.exists());
    assert_eq!(
        opener.ask("worker -"),
        format!("open {}", store.map_bytes())
    );
    assert_eq!(
        opener.ask("library -"),
        format!("open {}", store.map_bytes())
    );
    let env = store.env("default").unwrap();
    register(&env, "t", &[]);
    write(&env, put("t", "k", "1")).unwrap();
    drop(env);
    drop(store);
    assert!(opener.ask("server -").starts_with("open"));
    match Store::open(&root, as_server()) {
        Err(OpenError::Locked { pid, .. }) => assert_eq!(pid, Some(opener.pid())),
        other => panic!("{:?}", other.err()),
    }
    // Killed: nothing that it leaves is in the way.
    opener.kill();
    let store = Store::open(&root, as_server()).unwrap();
    assert_eq!(
        get(&store.env("default").unwrap(), "t", "k").unwrap().1,
        "1"
    );
}

#[test]
fn the_map_size_is_one_for_all() {
    let folder = Folder::new();
    let root = folder.root();
    let sized = |bytes: u64| Options {
        map_size: Some(bytes),
        ..quick()
    };
    let store = Store::open(&root, sized(16 << 20)).unwrap();
    let mut opener = actor("opener", &root);
    assert_eq!(opener.ask("library -"), "open 16777216");
    assert_eq!(opener.ask("library 16777216"), "open 16777216");
    assert_eq!(opener.ask("library 33554432"), "option");
    assert_eq!(opener.ask("server 33554432"), "option");
    drop(store);
    assert_eq!(opener.ask("server 33554432"), "open 33554432");
    let store = open(&root);
    assert_eq!(store.map_bytes(), 32 << 20);
    drop(store);
    opener.finish();
    // A smaller one than the data needs still opens it.
    let store = Store::open(&root, sized(64 << 20)).unwrap();
    let env = store.env("default").unwrap();
    register(&env, "t", &[]);
    let text = format!("\"{}\"", "x".repeat(100_000));
    bulk(
        &env,
        (0..100).map(|n| put("t", &n.to_string(), &text)).collect(),
    );
    drop((store, env));
    let store = Store::open(&root, sized(4 << 20)).unwrap();
    let env = store.env("default").unwrap();
    assert_eq!(get(&env, "t", "99").unwrap().1, text);
    let refused = (0..30).find_map(|n| write(&env, put("t", &format!("new {n}"), &text)).err());
    assert!(matches!(refused, Some(Error::StorageFull(_))));
    write(&env, remove("t", "99")).unwrap();
    verify(&env);
}

#[test]
fn a_process_has_one_handle() {
    let folder = Folder::new();
    let root = folder.root();
    let store = Store::open(&root, as_server()).unwrap();
    let library = Options {
        role: Role::Library,
        ..quick()
    };
    assert!(matches!(
        Store::open(&root, library),
        Err(OpenError::Option(_))
    ));
    // The failed attempt cost no lock.
    let mut opener = actor("opener", &root);
    assert!(opener.ask("server -").starts_with("locked"));
    let env = store.env("default").unwrap();
    register(&env, "t", &[]);
    // While an environment is in use, so is the root.
    drop(store);
    assert_eq!(opener.ask("library 33554432"), "option");
    drop(env);
    assert_eq!(opener.ask("library 33554432"), "open 33554432");
    opener.finish();
}

/// Uses what it is told to: `put TYPE KEY VALUE` or `get TYPE KEY` or `find TYPE FIELD VALUE`.
fn user(root: &Path) {
    let store = open(root);
    let env = store.env("default").unwrap();
    say("ready");
    while let Some(told) = listen() {
        let words: Vec<_> = told.split(' ').collect();
        let outcome = match words[..] {
            ["put", type_name, key, text] => {
                write(&env, put(type_name, key, text)).map(|written| written.version.to_string())
            }
            ["get", type_name, key] => env
                .snapshot()
                .unwrap()
                .get(type_name, key)
                .map(|found| found.map_or("none", |record| record.value).to_owned()),
            ["find", type_name, field, text] => {
                let mut query = query(&format!("{{\"{field}\":{text}}}"));
                query.explain = true;
                env.query(type_name, &query)
                    .map(|page| format!("{} by {:?}", page.items.len(), page.plan.unwrap().index))
            }
            _ => panic!("{told:?}"),
        };
        match outcome {
            Ok(said) => say(&said),
            Err(Error::TypeNotRegistered { .. }) => say("no type"),
            Err(Error::UniqueConstraint { .. }) => say("unique"),
            Err(error) => say(&format!("{error:?}")),
        }
    }
}

fn query(filter: &str) -> Query {
    Query {
        filter: Filter::parse(&value(filter)).unwrap(),
        filter_text: filter.to_owned(),
        sort: Sort::default(),
        limit: 100_000,
        ..Query::default()
    }
}

#[test]
fn definitions_hold_at_once_in_every_process() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    let mut user = actor("user", &folder.root());
    user.expect("ready");
    for round in 0..60 {
        let name = format!("t{}", round % 3);
        assert_eq!(user.ask(&format!("get {name} k")), "no type");
        register(&env, &name, &[]);
        assert_eq!(user.ask(&format!("get {name} k")), "none");
        let version = user.ask(&format!("put {name} k {{\"g\":1}}"));
        assert_eq!(get(&env, &name, "k").unwrap().0.to_string(), version);

        // Dropped and made again between two looks of the other one: the old records are gone, the new rule holds.
        env.submit(Write::DropType { name: name.clone() })
            .wait()
            .unwrap();
        register(&env, &name, &[spec(&["g"], true)]);
        assert_eq!(user.ask(&format!("get {name} k")), "none");
        user.ask(&format!("put {name} k {{\"g\":1}}"));
        assert_eq!(user.ask(&format!("put {name} l {{\"g\":1}}")), "unique");
        assert_eq!(user.ask(&format!("find {name} g 1")), "1 by Some(\"g\")");

        env.submit(Write::DropIndex {
            type_name: name.clone(),
            name: "g".into(),
        })
        .wait()
        .unwrap();
        assert_eq!(user.ask(&format!("find {name} g 1")), "1 by None");
        user.ask(&format!("put {name} l {{\"g\":1}}"));
        env.submit(Write::DropType { name }).wait().unwrap();
    }
    user.finish();
    let chores = Chores::start(&store);
    while !settled(&env) {
        std::thread::yield_now();
    }
    drop(chores);
    verify(&env);
}

/// Whether nothing is being built; what is to be swept does not show.
fn settled(env: &Env) -> bool {
    let types = env.snapshot().unwrap().types().unwrap();
    types
        .iter()
        .flat_map(|info| &info.indexes)
        .all(|index| index.state != IndexState::Building)
}

const GROUPS: usize = 10;
const PER_GROUP: usize = 150;

/// Asks for a group again and again, and writes beside it; says how often it looked, and whatever it missed.
fn watcher(root: &Path) {
    let store = open(root);
    let env = store.env("default").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let listener = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            listen();
            stop.store(true, Ordering::Release);
        }
    });
    let mut rng = Rng::new();
    let me = std::process::id();
    let mut looks = 0;
    let mut used = 0;
    say("watching");
    while !stop.load(Ordering::Acquire) {
        let group = rng.usize(..GROUPS);
        let mut asked = query(&format!("{{\"g\":{group}}}"));
        asked.explain = true;
        let page = env.query("t", &asked).unwrap();
        if page.items.len() != PER_GROUP {
            say(&format!(
                "{} of {PER_GROUP} by {:?}",
                page.items.len(),
                page.plan
            ));
        }
        used += u32::from(page.plan.unwrap().index.is_some());
        looks += 1;
        let key = format!("{me} {}", rng.u8(..20));
        let own = format!("{{\"g\":{},\"h\":{}}}", 100 + rng.u8(..5), rng.u8(..5));
        match rng.u8(..3) {
            0 => drop(env.submit(Write::One(remove("t", &key))).wait()),
            _ => drop(write(&env, put("t", &key, &own)).unwrap()),
        }
    }
    listener.join().unwrap();
    say(&format!("looked {}", u32::from(looks > 0 && used > 0)));
}

fn groups(env: &Env) {
    register(env, "t", &[]);
    let records = (0..GROUPS * PER_GROUP).map(|n| {
        put(
            "t",
            &format!("{n:05}"),
            &format!("{{\"g\":{},\"h\":{n}}}", n % GROUPS),
        )
    });
    bulk(env, records.collect());
}

#[test]
fn no_process_is_served_a_half_built_index() {
    let folder = Folder::new();
    let store = Store::open(&folder.root(), as_server()).unwrap();
    let env = store.env("default").unwrap();
    groups(&env);
    let chores = Chores::start(&store);
    let mut watchers: Vec<_> = (0..2).map(|_| actor("watcher", &folder.root())).collect();
    for watcher in &mut watchers {
        watcher.expect("watching");
    }
    for round in 0..12 {
        let index = if round % 2 == 0 {
            spec(&["g"], false)
        } else {
            spec(&["g", "h"], false)
        };
        let name = index.name();
        let build = Write::RegisterIndex {
            type_name: "t".into(),
            spec: index,
            ensure: false,
        };
        env.submit(build).wait().unwrap();
        while !settled(&env) {
            std::thread::yield_now();
        }
        verify(&env);
        let type_name = "t".to_owned();
        env.submit(Write::DropIndex { type_name, name })
            .wait()
            .unwrap();
    }
    for mut watcher in watchers {
        watcher.tell("stop");
        watcher.expect("looked 1");
        watcher.finish();
    }
    drop(chores);
    verify(&env);
}

/// Ends the process in one of its batches.
struct DiesInBatch {
    /// Batches before it.
    left: AtomicU32,
    committed: bool,
}

impl Hooks for DiesInBatch {
    fn holding_write_lock(&self, _env_index: u16, batch: &mut dyn FnMut()) {
        let last = self.left.fetch_sub(1, Ordering::Relaxed) == 1;
        if last && !self.committed {
            std::process::abort();
        }
        batch();
        if last {
            std::process::abort();
        }
    }
}

/// Builds what there is to build, and dies in its batch number `batch`, before or after that is committed.
fn builder(root: &Path, batch: u32, committed: bool) {
    let options = Options {
        hooks: Arc::new(DiesInBatch {
            left: AtomicU32::new(batch),
            committed,
        }),
        ..as_server()
    };
    let store = Store::open(root, options).unwrap();
    store.run_chores(&StopFlag::new());
}

#[test]
fn a_build_survives_its_builder() {
    // More than two steps of a build can take.
    const RECORDS: usize = 4500;
    let folder = Folder::new();
    {
        let store = open(&folder.root());
        let env = store.env("default").unwrap();
        register(&env, "t", &[]);
        let record = |n| {
            put(
                "t",
                &format!("{n:05}"),
                &format!("{{\"g\":{},\"h\":{n}}}", n % 30),
            )
        };
        bulk(&env, (0..RECORDS).map(record).collect());
    }
    for (round, part) in [
        "dies in step 1",
        "dies after step 1",
        "dies in step 2",
        "dies after step 2",
    ]
    .into_iter()
    .enumerate()
    {
        let store = open(&folder.root());
        let env = store.env("default").unwrap();
        let name = format!("g~x{round}");
        let build = Write::RegisterIndex {
            type_name: "t".into(),
            spec: spec(&["g", &format!("x{round}")], false),
            ensure: false,
        };
        env.submit(build).wait().unwrap();
        let mut builder = actor(part, &folder.root());
        assert_eq!(builder.hear(), None);
        store.repair().unwrap();
        let state = || {
            let indexes = env.snapshot().unwrap().indexes("t").unwrap();
            let index = indexes.into_iter().find(|index| index.name == name);
            index.unwrap().state
        };
        assert_eq!(state(), IndexState::Building);
        verify(&env);
        let forced = Query {
            index: Some(name.clone()),
            ..query("{\"g\":3}")
        };
        let refused = env.query("t", &forced);
        assert!(matches!(refused, Err(Error::IndexNotRegistered { .. })));
        // Written behind and before where the build is.
        for key in ["00000", "04499", "09999"] {
            write(&env, put("t", key, "{\"g\":3}")).unwrap();
        }
        let chores = Chores::start(&store);
        while state() == IndexState::Building {
            std::thread::yield_now();
        }
        drop(chores);
        assert_eq!(
            env.query("t", &forced).unwrap().items.len(),
            RECORDS / 30 + 3
        );
        verify(&env);
    }
}

#[test]
fn the_published_clock_is_never_ahead() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "t", &[]);
    register(&env, "u", &[]);
    bulk(
        &env,
        (0..BATCH)
            .map(|place| put("t", &place.to_string(), "0"))
            .collect(),
    );
    write(&env, put("t", "counter", "0")).unwrap();
    let mut writers: Vec<_> = (0..2)
        .map(|_| actor("increments", &folder.root()))
        .collect();
    let row = store.segment().env(usize::from(env.index())).unwrap();
    let mut last = 0;
    let mut seen = BTreeSet::new();
    let mut cursor = 0;
    let mut done = false;
    while !done {
        done = writers.iter_mut().all(Actor::has_ended);
        let published = row.clock();
        let visible = env.snapshot().unwrap().clock().unwrap();
        assert!(
            published <= visible,
            "{published} is published, {visible} is there"
        );
        assert!(published >= last);
        last = published;
        // Whoever follows the log to the published clock misses nothing and sees nothing twice.
        let changes = env
            .changes(&ChangesQuery {
                after: cursor,
                before: Some(published),
                limit: 1000,
                ..ChangesQuery::default()
            })
            .unwrap();
        for change in &changes.changes {
            assert!(change.clock > cursor && change.clock <= published);
            assert!(seen.insert(change.clock));
        }
        cursor = changes.clock;
    }
    assert_eq!(last, 2 + BATCH + 1 + 2 * 2 * INCREMENTS);
    for writer in writers {
        writer.finish();
    }
    verify(&env);
}

/// Where in a write a process is when it stops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    Before,
    Inside,
    After,
}

struct StopsAt(Moment);

impl Hooks for StopsAt {
    fn holding_write_lock(&self, _env_index: u16, batch: &mut dyn FnMut()) {
        match self.0 {
            Moment::Before => {
                say("holding");
                listen();
                batch();
            }
            Moment::Inside => std::process::abort(),
            Moment::After => {
                batch();
                std::process::abort();
            }
        }
    }
}

fn in_the_lock(root: &Path, moment: Moment) {
    let options = Options {
        hooks: Arc::new(StopsAt(moment)),
        ..quick()
    };
    let store = Store::open(root, options).unwrap();
    let env = store.env("default").unwrap();
    write(&env, put("t", "k", "\"theirs\"")).unwrap();
    say("written");
}

#[test]
fn the_write_lock_outlives_nobody() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "t", &[]);
    write(&env, put("t", "k", "\"ours\"")).unwrap();
    let clock = env.snapshot().unwrap().clock().unwrap();
    let published = || {
        store
            .segment()
            .env(usize::from(env.index()))
            .unwrap()
            .clock()
    };

    // Stopped with the lock in hand: reads go on, a write waits, and gets its turn when the holder is killed.
    let mut holder = actor("holds the lock", &folder.root());
    holder.expect("holding");
    holder.signal(Signal::SIGSTOP);
    let pending = env.submit(Write::One(put("t", "l", "2")));
    assert_eq!(get(&env, "t", "k").unwrap().1, "\"ours\"");
    assert!(get(&env, "t", "l").is_none());
    holder.kill();
    match pending.wait().unwrap() {
        Outcome::Done(written) => assert_eq!(written.version, clock + 1),
        other => panic!("{other:?}"),
    }

    // Dead before its commit: nothing of it is there.
    let mut dead = actor("dies before the commit", &folder.root());
    assert_eq!(dead.hear(), None);
    store.repair().unwrap();
    assert_eq!(get(&env, "t", "k").unwrap().1, "\"ours\"");
    assert_eq!(published(), clock + 1);

    // Dead before it could publish: the commit stands, and repair makes it known.
    let mut dead = actor("dies before it publishes", &folder.root());
    assert_eq!(dead.hear(), None);
    assert_eq!(get(&env, "t", "k").unwrap().1, "\"theirs\"");
    store.repair().unwrap();
    assert_eq!(published(), clock + 2);
    write(
        &env,
        Operation {
            action: Action::Remove,
            ..put("t", "k", "")
        },
    )
    .unwrap();
    assert_eq!(published(), clock + 3);
    verify(&env);
}
