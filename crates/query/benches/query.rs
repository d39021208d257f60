//! What the paths that every request takes cost: `cargo bench -p okdb-query`.
//!
//! Each line is the median, and the fastest, of many short runs. Without the `--bench` that `cargo bench`
//! passes (so under `cargo test --benches`) it is a smoke run: one pass each, numbers without meaning.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use okdb_query::{
    Envelope, Filter, Patch, Path, Select, Sort, Value, compact, encode, index_values, sort_value,
};

/// A record of 200 bytes.
const RECORD: &str = r#"{"id":3041563,"name":"Andorra la Vella","country":"AD","admin1":"07","lat":42.50779,"lon":1.52109,"population":20430,"timezone":"Europe/Andorra","tags":["capital","city"],"area":{"km2":12,"hilly":true}}"#;

struct Bench {
    runs: usize,
    run_ns_min: u128,
}

impl Bench {
    fn run(&self, name: &str, mut work: impl FnMut()) {
        // As many passes in a run as keep the clock's own cost out of it.
        let mut passes = 1_u32;
        while self.run_ns_min > 0 && time(passes, &mut work).as_nanos() < self.run_ns_min {
            passes *= 2;
        }
        let mut runs: Vec<u128> = (0..self.runs)
            .map(|_| time(passes, &mut work).as_nanos() * 10 / u128::from(passes))
            .collect();
        runs.sort_unstable();
        let tenths = |value: u128| format!("{}.{}", value / 10, value % 10);
        let (median, fastest) = (tenths(runs[runs.len() / 2]), tenths(runs[0]));
        println!("{name:<44} {median:>10} ns/op  (fastest {fastest})");
    }
}

fn time(passes: u32, work: &mut impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..passes {
        work();
    }
    start.elapsed()
}

fn value(text: &str) -> Value<'static> {
    Value::parse(text).map_or(Value::Null, Value::into_owned)
}

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let bench = if full {
        Bench {
            runs: 101,
            run_ns_min: 1_000_000,
        }
    } else {
        Bench {
            runs: 1,
            run_ns_min: 0,
        }
    };
    texts(&bench);
    fields(&bench);
    queries(&bench);
}

fn texts(bench: &Bench) {
    println!("record of {} bytes", RECORD.len());
    let pretty = RECORD.replace(',', ",\n  ").replace(':', ": ");
    let body = format!("{{\"value\":{RECORD},\"ttl\":60000}}");
    let long = format!("{{\"text\":\"{}\"}}", "lorem ipsum dolor ".repeat(1_000));
    let wide: Vec<_> = (0..1_000).map(|i| format!("\"field_{i}\":{i}")).collect();
    let wide = format!("{{{}}}", wide.join(","));
    let mut out = String::new();
    for (name, text) in [
        ("compact: record", RECORD),
        ("compact: record with whitespace", &pretty),
        ("compact: one string of 18 kB", &long),
        ("compact: object of 1,000 members", &wide),
    ] {
        bench.run(name, || {
            out.clear();
            let _ = black_box(compact(black_box(text.as_bytes()), &mut out));
        });
    }
    bench.run("Envelope::parse: body of a PUT", || {
        let _ = black_box(Envelope::parse(black_box(body.as_bytes())));
    });
    bench.run("Value::parse: record", || {
        let _ = black_box(Value::parse(black_box(RECORD)));
    });
    let record = value(RECORD);
    bench.run("Value::write: record", || {
        out.clear();
        black_box(&record).write(&mut out);
    });
}

fn fields(bench: &Bench) {
    let record = value(RECORD);
    let path = |text: &str| Path::parse(text).ok();
    let (Some(country), Some(km2), Some(tags)) = (path("country"), path("area.km2"), path("tags"))
    else {
        return;
    };
    let mut key = Vec::new();
    for (name, path) in [
        ("scalar", &country),
        ("nested number", &km2),
        ("array", &tags),
    ] {
        bench.run(&format!("index_values: {name}"), || {
            black_box(index_values(black_box(&record), path));
        });
        bench.run(&format!("sort_value: {name}"), || {
            black_box(sort_value(black_box(&record), path, false));
        });
    }
    for (name, path) in [("string", &country), ("number", &km2)] {
        let found = sort_value(&record, path, false);
        bench.run(&format!("encode::component: {name}"), || {
            key.clear();
            black_box(encode::component(black_box(found), 480, &mut key));
        });
    }
}

fn queries(bench: &Bench) {
    let record = value(RECORD);
    for (name, text) in [
        ("equality", r#"{"country":"AD"}"#),
        (
            "two ranges",
            r#"{"population":{"$gte":1000,"$lt":50000},"lat":{"$gt":0}}"#,
        ),
        ("element and nested", r#"{"tags":"city","area.hilly":true}"#),
        (
            "$in of five",
            r#"{"country":{"$in":["DE","FR","ES","AD","IT"]}}"#,
        ),
        ("$regex", r#"{"name":{"$regex":"^And.*Vella$"}}"#),
    ] {
        let Ok(filter) = Filter::parse(&value(text)) else {
            continue;
        };
        bench.run(&format!("Filter::matches: {name}"), || {
            black_box(filter.matches(black_box(&record)));
        });
    }
    if let Ok(sort) = Sort::parse(&value(r#"{"country":1,"population":-1}"#)) {
        bench.run("Sort::keys: two fields", || {
            black_box(sort.keys(black_box(&record)));
        });
        let keys = sort.keys(&record);
        bench.run("Sort::compare: two equal fields", || {
            black_box(sort.compare(black_box(&keys), &keys));
        });
    }
    if let Ok(select) = Select::parse(&value(r#"["name","area.km2"]"#)) {
        bench.run("Select::apply: two paths", || {
            black_box(select.apply(black_box(&record)));
        });
    }
    let patch = r#"{"set":{"name":"x"},"inc":{"population":1}}"#;
    if let Ok(patch) = Patch::parse_document(&value(patch)) {
        bench.run("Patch::apply: set and inc", || {
            let _ = black_box(patch.apply(black_box(&record)));
        });
    }
}
