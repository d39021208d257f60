//! A map or a disk with no room left: writes are refused and leave nothing, reads and deletes go on, and all is well again
//! once there is room.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use okdb_store::{ChangesQuery, Env, Error, Full, Operation, Options, Outcome, Store, Write};

use crate::{
    children::{Actor, Cue, listen, say},
    common::{Chores, Folder, bulk, open, put, quick, register, remove, spec, verify, write},
};

/// Longer than anything takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn small_map(root: &Path, bytes: u64) -> Store {
    let options = Options {
        map_size: Some(bytes),
        // Removals are not kept, so that as much fits in the end as at first.
        log_retention: Duration::ZERO,
        ..quick()
    };
    Store::open(root, options).unwrap()
}

fn document(n: usize) -> String {
    format!("{{\"n\":{n},\"text\":\"{}\"}}", "x".repeat(n % 900))
}

fn key(n: usize) -> String {
    format!("{:06}", n * 7919 % 1_000_000)
}

fn is_full(error: &Error) -> bool {
    match error {
        Error::StorageFull(_) => true,
        Error::Operation { source, .. } => is_full(source),
        _ => false,
    }
}

/// Puts records until one is refused; tells how many there are.
fn fill(env: &Env, from: usize) -> usize {
    for n in from.. {
        match write(env, put("t", &key(n), &document(n))) {
            Ok(_) => {}
            Err(error) if is_full(&error) => return n,
            Err(error) => panic!("{error:?}"),
        }
    }
    unreachable!("storage without end")
}

fn count(env: &Env) -> usize {
    let info = env.snapshot().unwrap().type_info("t").unwrap();
    usize::try_from(info.count).unwrap()
}

#[test]
fn a_full_map_refuses_serves_and_heals() {
    for bytes in [4 << 20, 8 << 20] {
        let folder = Folder::new();
        let store = small_map(&folder.root(), bytes);
        let env = store.env("default").unwrap();
        register(&env, "t", &[spec(&["n"], true), spec(&["text"], false)]);
        let chores = Chores::start(&store);
        let filled = fill(&env, 0);
        assert!(filled > 500, "{filled} records in {bytes} bytes");
        assert_eq!(count(&env), filled);
        let clock = env.snapshot().unwrap().clock().unwrap();

        // Whatever the form, a write is refused whole: no record, no entry, no change, no clock.
        let large = format!("\"{}\"", "y".repeat(400_000));
        let two = vec![put("t", "first", "{}"), put("t", "second", &large)];
        let refused = env.submit(Write::Transaction(two)).wait();
        assert!(is_full(&refused.unwrap_err()));
        assert!(is_full(
            &write(&env, put("t", "large", &large)).unwrap_err()
        ));
        assert!(is_full(
            &write(&env, put("t", &key(1), &large)).unwrap_err()
        ));
        assert_eq!(env.snapshot().unwrap().clock().unwrap(), clock);
        let after = env
            .changes(&ChangesQuery {
                after: clock,
                limit: 10,
                ..ChangesQuery::default()
            })
            .unwrap();
        assert!(after.changes.is_empty());
        verify(&env);

        // Reads go on.
        let snapshot = env.snapshot().unwrap();
        for n in (0..filled).step_by(97) {
            let record = snapshot.get("t", &key(n)).unwrap().unwrap();
            assert_eq!(record.value, document(n));
        }
        drop(snapshot);

        // A delete waits behind puts that do not fit, in one queue, and is not refused with them.
        let pending: Vec<_> = (0..50)
            .map(|n| {
                let operation = if n % 5 == 0 {
                    remove("t", &key(n))
                } else {
                    put("t", &format!("new {n}"), &large)
                };
                env.submit(Write::One(operation))
            })
            .collect();
        for (n, pending) in pending.into_iter().enumerate() {
            match pending.wait() {
                Ok(_) => assert_eq!(n % 5, 0),
                Err(error) => assert!(n % 5 > 0 && is_full(&error), "{n}: {error:?}"),
            }
        }
        for n in (0..50).filter(|n| n % 5 > 0) {
            write(&env, remove("t", &key(n))).unwrap();
        }
        // Half of them go, many at a time.
        let victims: Vec<Operation> = (50..filled / 2).map(|n| remove("t", &key(n))).collect();
        for victims in chunks(victims, 250) {
            bulk(&env, victims);
        }
        verify(&env);

        // There is room again, without a restart, and it fills and empties as before.
        for round in 1..4 {
            forgotten(&env);
            let next = fill(&env, filled * round * 2);
            assert!(
                next > filled * round * 2 + filled / 8,
                "round {round}: {next}"
            );
            let victims: Vec<_> = (filled * round * 2..next)
                .map(|n| remove("t", &key(n)))
                .collect();
            for victims in chunks(victims, 250) {
                bulk(&env, victims);
            }
        }
        verify(&env);
        drop(chores);
        drop((store, env));
        let store = open(&folder.root());
        let env = store.env("default").unwrap();
        assert_eq!(count(&env), filled - filled / 2);
        verify(&env);
    }
}

/// Waits until the log tells of no removal.
fn forgotten(env: &Env) {
    let mut query = ChangesQuery {
        limit: 100_000,
        ..ChangesQuery::default()
    };
    loop {
        match env.changes(&query) {
            Ok(found) if found.changes.iter().all(|change| change.action != "remove") => return,
            Ok(_) => std::thread::yield_now(),
            Err(Error::ChangelogTruncated { oldest }) => query.after = oldest,
            Err(error) => panic!("{error}"),
        }
    }
}

fn chunks(mut operations: Vec<Operation>, length: usize) -> Vec<Vec<Operation>> {
    let mut chunks = Vec::new();
    while !operations.is_empty() {
        let rest = operations.split_off(operations.len().min(length));
        chunks.push(std::mem::replace(&mut operations, rest));
    }
    chunks
}

#[test]
fn a_bulk_on_a_full_map_keeps_what_fits() {
    let folder = Folder::new();
    let store = small_map(&folder.root(), 4 << 20);
    let env = store.env("default").unwrap();
    register(&env, "t", &[spec(&["n"], false)]);
    let filled = fill(&env, 0);
    // Deletes all over the tree, too many for the pages that are kept for them at once, with puts in between.
    let operations: Vec<_> = (0..filled)
        .map(|n| {
            if n % 10 == 0 {
                put(
                    "t",
                    &format!("new {n}"),
                    &format!("\"{}\"", "z".repeat(300_000)),
                )
            } else {
                remove("t", &key(n))
            }
        })
        .collect();
    let Outcome::Bulk { results, clock } = env.submit(Write::Bulk(operations)).wait().unwrap()
    else {
        panic!("not a bulk");
    };
    assert_eq!(results.len(), filled);
    for (n, result) in results.iter().enumerate() {
        match result {
            Ok(written) => assert!(written.version <= clock),
            Err(error) => assert!(n % 10 == 0 && is_full(error), "{n}: {error:?}"),
        }
    }
    assert_eq!(env.snapshot().unwrap().clock().unwrap(), clock);
    verify(&env);
}

fn actor(part: &str, root: &Path) -> Actor {
    Actor::start("full::play", part, root)
}

/// Not a test: where the other process of these stories begins.
#[test]
fn play() {
    let Some(Cue { part, root }) = Cue::take() else {
        return;
    };
    if part == "file system of its own" && mount(&root).is_err() {
        return say("cannot mount");
    }
    if part == "bounded files" {
        // A file that would grow past this is refused, as it is by a full disk; the signal that comes with it is ignored.
        use nix::sys::{
            resource::{Resource, setrlimit},
            signal::{SigHandler, Signal},
        };
        // SAFETY: ignoring a signal runs no handler.
        #[allow(unsafe_code, reason = "the only way to ignore a signal")]
        unsafe { nix::sys::signal::signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, 12 << 20, 12 << 20).unwrap();
    }
    fill_the_disk(&root.join("root"), &part);
    say("done");
    listen();
}

/// A file system of 12 MiB that this process alone sees.
fn mount(at: &Path) -> nix::Result<()> {
    use nix::mount::{MsFlags, mount};
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
    mount(
        Some("okdb"),
        at,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("size=12m"),
    )
}

fn fill_the_disk(root: &Path, part: &str) {
    let options = || Options {
        segment_in_root: false,
        log_retention: Duration::ZERO,
        ..quick()
    };
    let ballast = root.with_extension("ballast");
    std::fs::write(&ballast, vec![0; 100_000]).unwrap();
    let store = Store::open(root, options()).unwrap();
    let env = store.env("default").unwrap();
    register(&env, "t", &[spec(&["n"], true), spec(&["text"], false)]);
    let chores = Chores::start(&store);
    let filled = fill(&env, 0);
    assert!(filled > 1000);
    assert_eq!(count(&env), filled);
    match write(
        &env,
        put("t", "large", &format!("\"{}\"", "y".repeat(900_000))),
    ) {
        Err(Error::StorageFull(Full::Disk | Full::DiskKept)) => {}
        other => panic!("{part}: {other:?}"),
    }
    verify(&env);
    {
        let snapshot = env.snapshot().unwrap();
        for n in (0..filled).step_by(31) {
            assert_eq!(
                snapshot.get("t", &key(n)).unwrap().unwrap().value,
                document(n)
            );
        }
    }
    // Each delete needs pages before it frees any.
    for n in 0..filled / 4 {
        write(&env, remove("t", &key(n))).unwrap_or_else(|error| panic!("{n}: {error}"));
    }
    let victims: Vec<_> = (filled / 4..filled / 2)
        .map(|n| remove("t", &key(n)))
        .collect();
    for victims in chunks(victims, 250) {
        bulk(&env, victims);
    }
    verify(&env);
    forgotten(&env);
    // The room comes back as background work, which reads and so keeps pages, gets out of the way.
    let (mut next, deadline) = (filled * 2, Instant::now() + PATIENCE);
    while next <= filled * 2 + filled / 8 {
        assert!(Instant::now() < deadline, "{next} of {filled}");
        next = fill(&env, next);
    }
    drop(chores);
    drop((store, env));
    // A start needs a few bytes. It says so when there are none.
    if let Err(error) = Store::open(root, options()) {
        assert!(error.to_string().contains("no room"), "{error}");
    }
    std::fs::remove_file(ballast).unwrap();
    let store = Store::open(root, options()).unwrap();
    let env = store.env("default").unwrap();
    assert_eq!(count(&env), filled - filled / 2 + next - filled * 2);
    verify(&env);
}

#[test]
fn a_full_disk_refuses_serves_and_heals() {
    let folder = Folder::new();
    let mut alone = actor("file system of its own", folder.path());
    match alone.hear().as_deref() {
        Some("done") => alone.finish(),
        Some("cannot mount") => {
            eprintln!("SKIPPED: a file system of its own needs the right to mount");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_may_not_grow_is_a_full_disk() {
    let folder = Folder::new();
    let mut alone = actor("bounded files", folder.path());
    alone.expect("done");
    alone.finish();
}
