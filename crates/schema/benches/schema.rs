//! What the check of a record costs: `cargo bench -p okdb-schema`.
//!
//! Each line is the median, and the fastest, of many short runs. Without the `--bench` that `cargo bench`
//! passes (so under `cargo test --benches`) it is a smoke run: one pass each, numbers without meaning.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use okdb_query::Value;
use okdb_schema::{RefPath, Schema};

const SCHEMA: &str = r##"{
  "type": "object", "additionalProperties": false,
  "required": ["id", "customer", "status", "lines", "total", "currency", "created"],
  "$defs": {"address": {"type": "object", "required": ["street", "city", "country"], "properties": {
    "street": {"type": "string", "maxLength": 100}, "city": {"type": "string", "maxLength": 100},
    "zip": {"type": "string", "pattern": "^[0-9A-Z -]{3,10}$"}, "country": {"type": "string", "minLength": 2, "maxLength": 2}}}},
  "properties": {
    "id": {"type": "string", "pattern": "^o-[0-9]+$"},
    "customer": {"type": "string", "ref": {"type": "customers"}},
    "status": {"enum": ["new", "paid", "shipped", "closed"]},
    "currency": {"type": "string", "pattern": "^[A-Z]{3}$"},
    "total": {"type": "number", "minimum": 0}, "created": {"type": "integer", "minimum": 0},
    "note": {"type": ["string", "null"], "maxLength": 500}, "tags": {"type": "array", "uniqueItems": true, "items": {"type": "string"}},
    "billing": {"$ref": "#/$defs/address"}, "shipping": {"$ref": "#/$defs/address"},
    "lines": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["article", "count", "price"], "properties": {
      "article": {"type": "string", "ref": {"type": "articles"}}, "title": {"type": "string"},
      "count": {"type": "integer", "minimum": 1}, "price": {"type": "number", "multipleOf": 0.01}}}}
  }
}"##;

/// An order of 1 kB.
fn record() -> String {
    let lines: Vec<_> = (0..8)
        .map(|i| format!(r#"{{"article":"a-10{i}93","title":"A thing of kind {i}","count":{},"price":1{i}9.95}}"#, i + 1))
        .collect();
    format!(
        r#"{{"id":"o-39481","customer":"c-77123","status":"paid","currency":"EUR","total":418.60,"created":1764576000000,"note":null,"tags":["first","web","gift"],"billing":{{"street":"Carrer Major 5","city":"Andorra la Vella","zip":"AD500","country":"AD"}},"shipping":{{"street":"Long Street 1178, third floor","city":"Springfield","zip":"62701","country":"US"}},"lines":[{}]}}"#,
        lines.join(",")
    )
}

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
            .map(|_| time(passes, &mut work).as_nanos() / u128::from(passes))
            .collect();
        runs.sort_unstable();
        let (median, fastest) = (runs[runs.len() / 2], runs[0]);
        println!("{name:<52} {median:>10} ns/op  (fastest {fastest})");
    }
}

fn time(passes: u32, work: &mut impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..passes {
        work();
    }
    start.elapsed()
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
    let (Ok(schema), Ok(anything)) = (Schema::compile(SCHEMA), Schema::compile("true")) else {
        return;
    };
    let record = record();
    let wrong = record.replace("\"count\":3", "\"count\":\"3\"");
    println!(
        "record of {} bytes, {} failures; wrong one {}",
        record.len(),
        schema.check(&record, 10).len(),
        schema.check(&wrong, 10).len()
    );
    bench.run("Schema::compile", || {
        let _ = black_box(Schema::compile(black_box(SCHEMA)));
    });
    bench.run("part: Value::parse", || {
        let _ = black_box(Value::parse(black_box(&record)));
    });
    bench.run("parse, and check with the schema `true`", || {
        black_box(anything.check(black_box(&record), 10));
    });
    bench.run("Schema::check: a record that fits", || {
        black_box(schema.check(black_box(&record), 10));
    });
    bench.run("Schema::fits: a record that fits", || {
        black_box(schema.fits(black_box(&record)));
    });
    bench.run("Schema::check: one failure", || {
        black_box(schema.check(black_box(&wrong), 10));
    });
    references(&bench, &schema, &record);
    hostile(&bench);
}

fn references(bench: &Bench, schema: &Schema, record: &str) {
    let Ok(value) = Value::parse(record) else {
        return;
    };
    bench.run("RefPath::values: 1 and 8 references", || {
        for reference in schema.references() {
            black_box(reference.path.values(black_box(&value)));
        }
    });
    if let Ok(path) = RefPath::parse("/lines/*/article") {
        bench.run("RefPath::set_null: one of 8", || {
            let _ = black_box(path.set_null(black_box(record), "a-10393"));
        });
    }
}

/// How long it takes until a check gives up.
fn hostile(bench: &Bench) {
    let doubling =
        r##"{"properties":{"a":{"oneOf":[{"$ref":"#"},{"$ref":"#"},{"type":"null"}]}}}"##;
    let around = r#"{"unevaluatedProperties":false,"allOf":["#;
    let nested = format!(
        "{}{}{}",
        around.repeat(20),
        r##"{"properties":{"a":{"$ref":"#"}}}"##,
        "]}".repeat(20)
    );
    let record = format!("{}7{}", r#"{"a":"#.repeat(40), "}".repeat(40));
    for (name, schema) in [("oneOf", doubling), ("unevaluatedProperties", &nested)] {
        if let Ok(schema) = Schema::compile(schema) {
            let bench = Bench {
                runs: bench.runs.min(5),
                run_ns_min: 0,
            };
            bench.run(&format!("check that gives up: nested {name}"), || {
                black_box(schema.check(black_box(&record), 10));
            });
        }
    }
}
