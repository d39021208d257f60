//! What the store costs beside bare LMDB, as medians of ratios over interleaved pairs.
//!
//! `cargo bench -p okdb-store` measures at full size; with `--test` at a size that only shows that it
//! works; words such as `gets` or `import` choose what to measure. Ratios say more than rates: both sides of a pair meet the same disk and the same neighbours.

#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a failed step ends the measurement; rates are for people"
)]

use std::{
    hint::black_box,
    path::Path,
    time::{Duration, Instant},
};

use heed::{Database, EnvFlags, EnvOpenOptions, WithoutTls, types::Bytes};
use okdb_query::{Filter, Value};
use okdb_store::{
    Action, Durability, Env, Guard, IndexSpec, Operation, Options, Outcome, Query, Store, Write,
};

type Raw = (heed::Env<WithoutTls>, Database<'static, Bytes, Bytes>);

struct Size {
    records: usize,
    pairs: usize,
    gets: usize,
    puts: usize,
}

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--test");
    let size = if smoke {
        Size {
            records: 2_000,
            pairs: 2,
            gets: 500,
            puts: 500,
        }
    } else {
        Size {
            records: 200_000,
            pairs: 15,
            gets: 200_000,
            puts: 20_000,
        }
    };
    let folder = tempfile::tempdir().unwrap();
    // Words on the command line choose what to measure.
    let words: Vec<_> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let wanted = |what: &str| words.is_empty() || words.iter().any(|word| what.contains(word));
    if wanted("gets") {
        gets(folder.path(), &size);
    }
    if wanted("queries") {
        queries(folder.path(), &size);
    }
    for durability in [Durability::Fast, Durability::Strict] {
        for batch in [1, 16, 64, 256, 1000] {
            if wanted(&format!("puts {durability}")) {
                puts(folder.path(), &size, durability, batch);
            }
        }
        if wanted(&format!("import {durability}")) {
            import(folder.path(), &size, durability);
        }
    }
}

fn open(path: &Path, durability: Durability) -> Store {
    let options = Options {
        durability: Some(durability),
        segment_in_root: true,
        ..Options::default()
    };
    Store::open(path, options).unwrap()
}

fn raw(path: &Path, durability: Durability) -> Raw {
    std::fs::create_dir_all(path).unwrap();
    let flags = match durability {
        Durability::Fast => EnvFlags::NO_SYNC,
        _ => EnvFlags::empty(),
    };
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(128 << 30).max_dbs(4).max_readers(1024);
    // SAFETY: the flags are the store's own.
    #[allow(unsafe_code, reason = "the yardstick is bare LMDB")]
    unsafe {
        options.flags(flags | EnvFlags::NO_READ_AHEAD)
    };
    // SAFETY: nobody else has the folder open.
    #[allow(unsafe_code, reason = "the yardstick is bare LMDB")]
    let env = unsafe { options.open(path) }.unwrap();
    let writer = env.write_txn().unwrap();
    let made = env.create_databases_and_commit(writer, |opener, txn| {
        let table = opener.create_database::<Bytes, Bytes>(txn, Some("data"))?;
        Ok::<_, heed::Error>(heed::CommitOrAbort::<_, ()>::Commit((table,)))
    });
    let (table,) = made.unwrap().commit().unwrap();
    (env, table)
}

/// A document of about 200 bytes.
fn document(n: usize) -> String {
    format!(
        "{{\"id\":{n},\"group\":\"g{}\",\"name\":\"name of {n}\",\"text\":\"{}\"}}",
        n % 1000,
        "x".repeat(140)
    )
}

fn key(n: usize) -> String {
    format!("key:{n:08}")
}

fn put(n: usize, value: String) -> Operation {
    Operation {
        type_name: "t".into(),
        key: key(n),
        guard: Guard::default(),
        ttl: None,
        action: Action::Put(value),
    }
}

fn bulk(env: &Env, operations: Vec<Operation>) {
    match env.submit(Write::Bulk(operations)).wait().unwrap() {
        Outcome::Bulk { results, .. } => assert!(results.iter().all(Result::is_ok)),
        other => panic!("{other:?}"),
    }
}

fn register(env: &Env, indexes: Vec<IndexSpec>) {
    let name = "t".to_owned();
    let write = Write::RegisterType {
        name,
        indexes,
        schema: None,
        ensure: true,
    };
    env.submit(write).wait().unwrap();
}

fn fill(env: &Env, records: usize) {
    for first in (0..records).step_by(1000) {
        let chunk = first..records.min(first + 1000);
        bulk(env, chunk.map(|n| put(n, document(n))).collect());
    }
}

/// Numbers below `bound` that jump about.
fn scattered(bound: usize) -> impl Iterator<Item = usize> {
    let mut rng = fastrand::Rng::with_seed(1);
    std::iter::repeat_with(move || rng.usize(..bound))
}

fn timed(run: impl FnOnce()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

/// Prints the medians of both sides' cost of one step, and of the ratios of pairs.
fn report(what: &str, steps: usize, pairs: &[(Duration, Duration)]) {
    let median = |values: Vec<f64>| {
        let mut values = values;
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let per_step = |time: Duration| time.as_secs_f64() * 1e9 / steps as f64;
    let raw = median(pairs.iter().map(|(raw, _)| per_step(*raw)).collect());
    let ours = median(pairs.iter().map(|(_, ours)| per_step(*ours)).collect());
    let ratio = pairs
        .iter()
        .map(|(raw, ours)| ours.as_secs_f64() / raw.as_secs_f64());
    let ratio = median(ratio.collect());
    println!(
        "{what:<34} heed {raw:>9.0} ns  store {ours:>9.0} ns ({:>8.0}/s)  ratio {ratio:.2}",
        1e9 / ours
    );
}

fn gets(folder: &Path, size: &Size) {
    let store = open(&folder.join("gets"), Durability::Fast);
    let env = store.env("default").unwrap();
    register(&env, Vec::new());
    fill(&env, size.records);
    let (raw, table) = raw(&folder.join("raw gets"), Durability::Fast);
    let mut txn = raw.write_txn().unwrap();
    for n in 0..size.records {
        let row = [&[0; 24], document(n).as_bytes()].concat();
        let place = [&[0, 0, 0, 16], key(n).as_bytes()].concat();
        table.put(&mut txn, &place, &row).unwrap();
    }
    txn.commit().unwrap();
    let keys: Vec<_> = scattered(size.records).take(size.gets).map(key).collect();
    let places: Vec<_> = keys
        .iter()
        .map(|key| [&[0, 0, 0, 16], key.as_bytes()].concat())
        .collect();
    let pairs: Vec<_> = (0..size.pairs)
        .map(|_| {
            let bare = timed(|| {
                for place in &places {
                    let txn = raw.read_txn().unwrap();
                    black_box(table.get(&txn, place).unwrap().unwrap());
                }
            });
            let ours = timed(|| {
                for key in &keys {
                    let snapshot = env.snapshot().unwrap();
                    black_box(snapshot.get("t", key).unwrap().unwrap());
                }
            });
            (bare, ours)
        })
        .collect();
    report("get, its read transaction included", size.gets, &pairs);
}

fn queries(folder: &Path, size: &Size) {
    let store = open(&folder.join("queries"), Durability::Fast);
    let env = store.env("default").unwrap();
    let index = IndexSpec {
        fields: vec!["group".into()],
        unique: false,
    };
    register(&env, vec![index]);
    fill(&env, size.records);
    let matches = size.records / 1000;
    let queries = 200;
    let texts: Vec<_> = (0..queries)
        .map(|n| format!("{{\"group\":\"g{}\"}}", n * 7 % 1000))
        .collect();
    // The yardstick is the same number of gets, each with a read transaction of its own.
    let keys: Vec<_> = scattered(size.records)
        .take(queries * matches)
        .map(key)
        .collect();
    let pairs: Vec<_> = (0..size.pairs)
        .map(|_| {
            let gets = timed(|| {
                for key in &keys {
                    let snapshot = env.snapshot().unwrap();
                    black_box(snapshot.get("t", key).unwrap().unwrap());
                }
            });
            let found = timed(|| {
                for text in &texts {
                    let query = Query {
                        filter: Filter::parse(&Value::parse(text).unwrap()).unwrap(),
                        filter_text: text.clone(),
                        limit: 1000,
                        ..Query::default()
                    };
                    let page = env.query("t", &query).unwrap();
                    assert_eq!(page.items.len(), matches);
                }
            });
            (gets, found)
        })
        .collect();
    report("equality query, a record (to gets)", keys.len(), &pairs);
}

fn puts(folder: &Path, size: &Size, durability: Durability, batch: usize) {
    let name = format!("puts {durability} {batch}");
    let store = open(&folder.join(&name), durability);
    let env = store.env("default").unwrap();
    register(&env, Vec::new());
    fill(&env, size.records);
    let (raw, table) = raw(&folder.join(format!("raw {name}")), durability);
    let mut txn = raw.write_txn().unwrap();
    for n in 0..size.records {
        table
            .put(&mut txn, key(n).as_bytes(), document(n).as_bytes())
            .unwrap();
    }
    txn.commit().unwrap();
    // Each commit of a strict environment waits for the disk: fewer of them tell as much.
    let puts = match durability {
        Durability::Strict => size.puts.min(batch * 40),
        _ => size.puts,
    };
    let mut numbers = scattered(size.records);
    let pairs: Vec<_> = (0..size.pairs)
        .map(|_| {
            let chosen: Vec<_> = numbers.by_ref().take(puts).collect();
            let bare = timed(|| {
                for chunk in chosen.chunks(batch) {
                    let mut txn = raw.write_txn().unwrap();
                    for n in chunk {
                        table
                            .put(&mut txn, key(*n).as_bytes(), document(*n).as_bytes())
                            .unwrap();
                    }
                    txn.commit().unwrap();
                }
            });
            let ours = timed(|| {
                for chunk in chosen.chunks(batch) {
                    bulk(&env, chunk.iter().map(|n| put(*n, document(*n))).collect());
                }
            });
            (bare, ours)
        })
        .collect();
    report(
        &format!("overwrite, {durability}, {batch} a commit"),
        puts,
        &pairs,
    );
    drop((env, store));
    std::fs::remove_dir_all(folder.join(&name)).unwrap();
}

/// New records of about 110 bytes in chunks of 1,000, a few chunks under way.
fn import(folder: &Path, size: &Size, durability: Durability) {
    let small = |n: usize| {
        format!(
            "{{\"name\":\"Place {n}\",\"country\":\"c{}\",\"lat\":\"{}.123\",\"lng\":\"{}.456\",\"id\":{n}}}",
            n % 250,
            n % 90,
            n % 180
        )
    };
    let records = size.records;
    let mut pairs = Vec::new();
    for pair in 0..size.pairs.min(5) {
        let name = format!("import {durability} {pair}");
        let documents: Vec<_> = (0..records).map(small).collect();
        let (raw, table) = raw(&folder.join(format!("raw {name}")), durability);
        let bare = timed(|| {
            for (chunk, texts) in documents.chunks(1000).enumerate() {
                let mut txn = raw.write_txn().unwrap();
                for (n, text) in texts.iter().enumerate() {
                    let key = key(chunk * 1000 + n);
                    table
                        .put(&mut txn, key.as_bytes(), text.as_bytes())
                        .unwrap();
                }
                txn.commit().unwrap();
            }
        });
        drop(raw);
        let store = open(&folder.join(&name), durability);
        let env = store.env("default").unwrap();
        register(&env, Vec::new());
        let ours = timed(|| {
            let mut pending = std::collections::VecDeque::new();
            let mut documents = documents.into_iter().enumerate();
            loop {
                let chunk: Vec<_> = documents
                    .by_ref()
                    .take(1000)
                    .map(|(n, text)| put(n, text))
                    .collect();
                if chunk.is_empty() {
                    break;
                }
                pending.push_back(env.submit(Write::Bulk(chunk)));
                if pending.len() == 4 {
                    pending.pop_front().unwrap().wait().unwrap();
                }
            }
            for chunk in pending {
                chunk.wait().unwrap();
            }
        });
        pairs.push((bare, ours));
        drop((env, store));
        std::fs::remove_dir_all(folder.join(&name)).unwrap();
        std::fs::remove_dir_all(folder.join(format!("raw {name}"))).unwrap();
    }
    report(&format!("import, {durability}"), records, &pairs);
}
