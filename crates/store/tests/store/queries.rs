//! Queries against what a reader with all records in hand would answer: with indexes, without, and page by page while
//! records vanish.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use fastrand::Rng;
use okdb_query::{Filter, Path, Sort, Value, compare, index_values};
use okdb_store::{Env, Error, IndexQuery, IndexSpec, ListQuery, Operation, Page, Query, Write};

use crate::common::{Folder, bulk, open, put, register, remove, spec, value, verify, write};

const ROUNDS: u64 = 30;
const RECORDS: usize = 70;
const QUERIES: usize = 40;

fn indexes() -> Vec<IndexSpec> {
    [
        &["a"][..],
        &["b"],
        &["a", "b"],
        &["c.d", "a"],
        &["e.f"],
        &["b", "c.d", "a"],
    ]
    .iter()
    .map(|fields| spec(fields, false))
    .collect()
}

type Records = BTreeMap<String, Value<'static>>;

/// Runs `round` for each seed, or for `OKDB_SEED` alone.
fn rounds(round: impl Fn(u64) + std::panic::RefUnwindSafe) {
    if let Ok(seed) = std::env::var("OKDB_SEED") {
        return round(seed.parse().unwrap());
    }
    for seed in 0..ROUNDS {
        if let Err(panic) = std::panic::catch_unwind(|| round(seed)) {
            eprintln!("the round of OKDB_SEED={seed} failed");
            std::panic::resume_unwind(panic);
        }
    }
}

fn scalar(rng: &mut Rng) -> String {
    let long = |tail: &str| format!("\"{}{tail}\"", "long".repeat(60));
    match rng.u8(..16) {
        0 => "null".into(),
        1 => "true".into(),
        2 => "false".into(),
        3 => ["1", "1.0", "1e0", "10e-1"][rng.usize(..4)].into(),
        4 => "12345678901234567890.10".into(),
        5 => [
            "\"\"",
            "\"a\"",
            "\"b\"",
            "\"ab\"",
            "\"a\\u0000\"",
            "\"a\\u0000b\"",
        ][rng.usize(..6)]
        .into(),
        6..9 => long(&rng.u8(..4).to_string()),
        9 => format!("{{\"x\":{},\"y\":2}}", rng.u8(..2)),
        10 => format!("{{\"y\":2,\"x\":{}}}", rng.u8(..2)),
        11 => long(&"z".repeat(rng.usize(..60))),
        _ => (rng.i8(-3..6)).to_string(),
    }
}

fn any_value(rng: &mut Rng) -> String {
    match rng.u8(..6) {
        0 => {
            let count = rng.usize(..4);
            let elements: Vec<_> = (0..count).map(|_| any_value(rng)).collect();
            format!("[{}]", elements.join(","))
        }
        _ => scalar(rng),
    }
}

/// A document; a flat one has no arrays, so that indexes keep an order that sorts can use.
fn document(rng: &mut Rng, flat: bool) -> String {
    if flat {
        let (a, b, c, e) = (scalar(rng), scalar(rng), scalar(rng), scalar(rng));
        return match rng.u8(..5) {
            0 => format!("{{\"b\":{b}}}"),
            1 => format!("{{\"a\":{a},\"e\":{{\"f\":{e}}}}}"),
            _ => format!("{{\"a\":{a},\"b\":{b},\"c\":{{\"d\":{c}}}}}"),
        };
    }
    let mut members = Vec::new();
    for name in ["a", "b"] {
        if rng.u8(..6) > 0 {
            members.push(format!("\"{name}\":{}", any_value(rng)));
        }
    }
    match rng.u8(..4) {
        0 => members.push(format!("\"c\":{}", any_value(rng))),
        1 => {}
        _ => members.push(format!("\"c\":{{\"d\":{}}}", any_value(rng))),
    }
    match rng.u8(..4) {
        0 => members.push(format!("\"e\":{{\"f\":{}}}", any_value(rng))),
        1 => {}
        _ => {
            let elements: Vec<_> = (0..rng.usize(..3))
                .map(|_| match rng.u8(..4) {
                    0 => scalar(rng),
                    1 => "{\"g\":1}".to_owned(),
                    _ => format!("{{\"f\":{}}}", any_value(rng)),
                })
                .collect();
            members.push(format!("\"e\":[{}]", elements.join(",")));
        }
    }
    format!("{{{}}}", members.join(","))
}

fn field(rng: &mut Rng) -> &'static str {
    ["a", "b", "c.d", "e.f"][rng.usize(..4)]
}

fn test(rng: &mut Rng) -> String {
    let range = |rng: &mut Rng| ["$gt", "$gte", "$lt", "$lte"][rng.usize(..4)];
    match rng.u8(..12) {
        0..4 => any_value(rng),
        4 | 5 => format!("{{\"{}\":{}}}", range(rng), scalar(rng)),
        6 => format!("{{\"$gte\":{},\"$lt\":{}}}", scalar(rng), scalar(rng)),
        7 => format!("{{\"$gt\":{},\"$lte\":{}}}", scalar(rng), scalar(rng)),
        8 => {
            let values: Vec<_> = (0..rng.usize(..4)).map(|_| any_value(rng)).collect();
            format!("{{\"$in\":[{}]}}", values.join(","))
        }
        9 => format!("{{\"$ne\":{}}}", scalar(rng)),
        10 => format!("{{\"$exists\":{}}}", rng.bool()),
        _ => format!("{{\"$elemMatch\":{{\"{}\":{}}}}}", range(rng), scalar(rng)),
    }
}

fn filter(rng: &mut Rng) -> String {
    let mut members = Vec::new();
    let mut free = vec!["a", "b", "c.d", "e.f"];
    for _ in 0..rng.usize(..4) {
        let name = free.remove(rng.usize(..free.len()));
        members.push(format!("\"{name}\":{}", test(rng)));
    }
    if rng.u8(..6) == 0 {
        let (x, y) = (test(rng), test(rng));
        let (f, g) = (field(rng), field(rng));
        members.push(format!("\"$or\":[{{\"{f}\":{x}}},{{\"{g}\":{y}}}]"));
    }
    format!("{{{}}}", members.join(","))
}

fn sort(rng: &mut Rng) -> String {
    let text = match rng.u8(..8) {
        0 => "{\"a\":1}",
        1 => "{\"a\":-1}",
        2 => "{\"b\":1}",
        3 => "{\"a\":1,\"b\":1}",
        4 => "{\"a\":-1,\"b\":-1}",
        5 => "{\"c.d\":1,\"a\":-1}",
        _ => "{}",
    };
    text.to_owned()
}

/// Two types with the same records, one of them with indexes.
fn fill(env: &Env, rng: &mut Rng) -> Records {
    let mut records = Records::new();
    register(env, "plain", &[]);
    register(env, "indexed", &indexes());
    let mut operations = Vec::new();
    let flat = rng.bool();
    for _ in 0..RECORDS + RECORDS / 3 {
        // Some keys are written twice.
        let key = format!("k{:02}", rng.usize(..RECORDS));
        let text = document(rng, flat);
        for type_name in ["plain", "indexed"] {
            operations.push(put(type_name, &key, &text));
        }
        records.insert(key, value(&text));
    }
    bulk(env, operations);
    records
}

fn query(filter: &str, sort: &str, limit: usize) -> Query {
    Query {
        filter: Filter::parse(&value(filter)).unwrap(),
        filter_text: filter.to_owned(),
        sort: Sort::parse(&value(sort)).unwrap(),
        limit,
        ..Query::default()
    }
}

/// The keys that match, in order.
fn expected(records: &Records, query: &Query) -> Vec<String> {
    let mut found: Vec<_> = records
        .iter()
        .filter(|(_, doc)| query.filter.matches(doc))
        .map(|(key, doc)| (query.sort.keys(doc), key.clone()))
        .collect();
    found.sort_by(|(a, a_key), (b, b_key)| query.sort.compare(a, b).then_with(|| a_key.cmp(b_key)));
    found.into_iter().map(|(_, key)| key).collect()
}

fn keys(page: &Page) -> Vec<String> {
    page.items.iter().map(|item| item.key.clone()).collect()
}

#[test]
fn indexes_change_the_work_and_never_the_answer() {
    rounds(|seed| {
        let mut rng = Rng::with_seed(seed);
        let folder = Folder::new();
        let store = open(&folder.root());
        let env = store.env("default").unwrap();
        let records = fill(&env, &mut rng);
        for _ in 0..QUERIES {
            let (filter, sort) = (filter(&mut rng), sort(&mut rng));
            let mut query = query(&filter, &sort, 1000);
            query.explain = true;
            if rng.u8(..4) == 0 {
                query.index = Some("a~b".into());
            }
            let expected = expected(&records, &query);
            let indexed = env.query("indexed", &query).unwrap();
            assert_eq!(
                keys(&indexed),
                expected,
                "{filter} by {sort}: {:?}",
                indexed.plan
            );
            assert_eq!(indexed.cursor, None);
            query.index = None;
            let plain = env.query("plain", &query).unwrap();
            assert_eq!(keys(&plain), expected, "{filter} by {sort}");
            for type_name in ["plain", "indexed"] {
                let count = env.count(type_name, &query.filter).unwrap();
                assert_eq!(count, expected.len() as u64, "{filter} in {type_name}");
            }
        }
    });
}

#[test]
fn cursors_go_on_behind_anchors_that_are_gone() {
    rounds(|seed| {
        let mut rng = Rng::with_seed(seed ^ 0xc0de);
        let folder = Folder::new();
        let store = open(&folder.root());
        let env = store.env("default").unwrap();
        let mut records = fill(&env, &mut rng);
        for _ in 0..8 {
            let (filter, sort) = (filter(&mut rng), sort(&mut rng));
            let type_name = ["plain", "indexed"][rng.usize(..2)];
            let mut query = query(&filter, &sort, rng.usize(1..6));
            let expected = expected(&records, &query);
            let mut found = Vec::new();
            let mut gone = Vec::new();
            loop {
                let page = env.query(type_name, &query).unwrap();
                assert!(page.items.len() <= query.limit);
                found.extend(keys(&page));
                // The anchor vanishes, and perhaps somebody else; a newcomer before the anchor does not show.
                let mut victims: Vec<String> = page
                    .items
                    .last()
                    .map(|item| item.key.clone())
                    .into_iter()
                    .collect();
                if rng.bool() && !records.is_empty() {
                    victims.extend(records.keys().nth(rng.usize(..records.len())).cloned());
                }
                for victim in victims {
                    if records.remove(&victim).is_some() {
                        write(&env, remove("plain", &victim)).unwrap();
                        write(&env, remove("indexed", &victim)).unwrap();
                        gone.push(victim);
                    }
                }
                query.cursor = page.cursor;
                if query.cursor.is_none() {
                    break;
                }
            }
            // What was removed may be missing, and nothing else; the order is that of the whole answer.
            let left: Vec<_> = expected
                .into_iter()
                .filter(|key| !gone.contains(key) || found.contains(key))
                .collect();
            assert_eq!(found, left, "{filter} by {sort} in {type_name}");
            if records.len() < 10 {
                break;
            }
        }
        verify(&env);
    });
}

/// Every tuple of values that a document has for an index, in order.
fn tuples<'v>(doc: &'v Value<'_>, spec: &IndexSpec) -> Vec<Vec<&'v Value<'v>>> {
    let mut tuples: Vec<Vec<&Value<'_>>> = vec![Vec::new()];
    for field in &spec.fields {
        let path = Path::parse(field).unwrap();
        let values = index_values(doc, &path).values;
        tuples = tuples
            .iter()
            .flat_map(|head| {
                values.iter().map(move |value| {
                    let mut tuple = head.clone();
                    tuple.push(*value);
                    tuple
                })
            })
            .collect();
    }
    tuples.sort_by(|a, b| compare_tuples(a, b));
    tuples
}

fn compare_tuples(a: &[&Value<'_>], b: &[&Value<'_>]) -> Ordering {
    let places = a.iter().zip(b).map(|(a, b)| compare(a, b));
    places.fold(Ordering::Equal, Ordering::then)
}

/// The keys that an index listing shows, each at its first tuple between the bounds.
fn expected_listing(records: &Records, spec: &IndexSpec, query: &IndexQuery) -> Vec<String> {
    let bound = |bound: &[Value<'static>], tuple: &[&Value<'_>]| {
        compare_tuples(tuple, &bound.iter().collect::<Vec<_>>())
    };
    let mut found = Vec::new();
    for (key, doc) in records {
        let mut inside: Vec<_> = tuples(doc, spec)
            .into_iter()
            .filter(|tuple| {
                bound(&query.prefix, tuple).is_eq()
                    && bound(&query.start, tuple).is_ge()
                    && bound(&query.end, tuple).is_le()
            })
            .collect();
        if query.reverse {
            inside.reverse();
        }
        if let Some(tuple) = inside.into_iter().next() {
            found.push((tuple, key.clone()));
        }
    }
    found.sort_by(|(a, a_key), (b, b_key)| {
        let order = compare_tuples(a, b);
        let order = if query.reverse {
            order.reverse()
        } else {
            order
        };
        order.then_with(|| a_key.cmp(b_key))
    });
    found.into_iter().map(|(_, key)| key).collect()
}

#[test]
fn index_listings_agree_with_a_sorted_list() {
    rounds(|seed| {
        let mut rng = Rng::with_seed(seed ^ 0xfeed);
        let folder = Folder::new();
        let store = open(&folder.root());
        let env = store.env("default").unwrap();
        let records = fill(&env, &mut rng);
        let specs = indexes();
        for _ in 0..QUERIES {
            let spec = &specs[rng.usize(..specs.len())];
            let bound = |rng: &mut Rng| -> Vec<Value<'static>> {
                let length = rng.usize(..=spec.fields.len());
                (0..length).map(|_| value(&scalar(rng))).collect()
            };
            let mut query = IndexQuery {
                reverse: rng.bool(),
                limit: 1000,
                ..IndexQuery::default()
            };
            if rng.bool() {
                query.start = bound(&mut rng);
                query.end = bound(&mut rng);
            }
            if rng.u8(..3) == 0 {
                query.prefix = bound(&mut rng);
            }
            let expected = expected_listing(&records, spec, &query);
            let count = env.index_count("indexed", &spec.name(), &query).unwrap();
            assert_eq!(count, expected.len() as u64, "{query:?} of {spec:?}");
            query.limit = if rng.bool() { 1000 } else { rng.usize(1..5) };
            let mut found = Vec::new();
            loop {
                let page = env.index_list("indexed", &spec.name(), &query).unwrap();
                found.extend(keys(&page));
                query.cursor = page.cursor;
                if query.cursor.is_none() {
                    break;
                }
            }
            assert_eq!(found, expected, "{query:?} of {spec:?}");
        }
    });
}

#[test]
fn lists_agree_with_a_range_of_keys() {
    rounds(|seed| {
        let mut rng = Rng::with_seed(seed ^ 0x1157);
        let folder = Folder::new();
        let store = open(&folder.root());
        let env = store.env("default").unwrap();
        register(&env, "plain", &[]);
        let alphabet = [
            "a",
            "b",
            "ab",
            "\u{7f}",
            "é",
            "\u{10ffff}",
            "~",
            "aa",
            "b\u{7f}",
        ];
        let word = |rng: &mut Rng| -> String {
            (0..rng.usize(1..4))
                .map(|_| alphabet[rng.usize(..alphabet.len())])
                .collect()
        };
        let all: BTreeSet<String> = (0..60).map(|_| word(&mut rng)).collect();
        bulk(
            &env,
            all.iter().map(|key| put("plain", key, "{}")).collect(),
        );
        for _ in 0..QUERIES {
            let maybe = |rng: &mut Rng| rng.bool().then(|| word(rng));
            let mut query = ListQuery {
                prefix: maybe(&mut rng),
                start: maybe(&mut rng),
                end: maybe(&mut rng),
                reverse: rng.bool(),
                limit: rng.usize(1..30),
                cursor: None,
            };
            let mut expected: Vec<_> = all
                .iter()
                .filter(|key| {
                    query
                        .prefix
                        .as_ref()
                        .is_none_or(|prefix| key.starts_with(prefix))
                })
                .filter(|key| query.start.as_ref().is_none_or(|start| *key >= start))
                .filter(|key| query.end.as_ref().is_none_or(|end| *key <= end))
                .cloned()
                .collect();
            if query.reverse {
                expected.reverse();
            }
            let mut found = Vec::new();
            loop {
                let page = env.list("plain", &query).unwrap();
                found.extend(keys(&page));
                query.cursor = page.cursor;
                if query.cursor.is_none() {
                    break;
                }
            }
            assert_eq!(found, expected, "{query:?}");
        }
    });
}

#[test]
fn an_equality_looks_at_matching_entries_only() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(
        &env,
        "city",
        &[spec(&["country"], false), spec(&["country", "name"], false)],
    );
    let operations: Vec<Operation> = (0..2000)
        .map(|n| {
            let text = format!(
                "{{\"country\":\"c{}\",\"name\":\"n{n:04}\",\"size\":{n}}}",
                n % 100
            );
            put("city", &format!("{n:05}"), &text)
        })
        .collect();
    bulk(&env, operations);
    let explained = |filter: &str, sort: &str, limit: usize| {
        let mut query = query(filter, sort, limit);
        query.explain = true;
        let page = env.query("city", &query).unwrap();
        (page.items.len(), page.plan.unwrap())
    };

    let (found, plan) = explained("{\"country\":\"c7\"}", "{}", 100);
    assert_eq!(
        (found, plan.entries, plan.records, plan.sorted),
        (20, 20, 20, false),
        "{plan:?}"
    );
    assert_eq!(plan.index.as_deref(), Some("country"));

    let (found, plan) = explained("{\"country\":\"c7\"}", "{\"name\":-1}", 5);
    assert_eq!(plan.index.as_deref(), Some("country~name"));
    assert!(found == 5 && plan.entries <= 6 && !plan.sorted, "{plan:?}");

    let (found, plan) = explained("{\"country\":\"c7\",\"name\":\"n0107\"}", "{}", 5);
    assert_eq!((found, plan.entries, plan.records), (1, 1, 1));
    assert_eq!(plan.index.as_deref(), Some("country~name"));

    let (found, plan) = explained(
        "{\"country\":\"c7\",\"name\":{\"$gte\":\"n1900\"}}",
        "{}",
        5,
    );
    assert_eq!((found, plan.entries, plan.records), (1, 1, 1));

    let (found, plan) = explained("{\"country\":{\"$in\":[\"c7\",\"c9\"]}}", "{}", 100);
    assert_eq!(
        (found, plan.entries, plan.records),
        (40, 40, 40),
        "{plan:?}"
    );

    let (found, plan) = explained("{\"size\":7}", "{}", 5);
    assert_eq!((found, plan.index, plan.records), (1, None, 2000));
}

#[test]
fn long_strings_are_indexed_whole() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    let specs = [
        spec(&["s"], true),
        spec(&["s", "t"], false),
        spec(&["l"], false),
    ];
    register(&env, "x", &specs);
    let a = |count: usize, tail: &str| format!("{}{tail}", "a".repeat(count));
    let doc = |s: &str| format!("{{\"s\":\"{s}\",\"t\":\"b\"}}");
    let one = |filter: &str| keys(&env.query("x", &query(filter, "{}", 10)).unwrap());
    let by_s = |s: &str| one(&format!("{{\"s\":\"{s}\"}}"));

    for (key, s) in [("1", a(600, "1")), ("2", a(600, "2")), ("3", a(480, ""))] {
        write(&env, put("x", key, &doc(&s))).unwrap();
    }
    let strings: Vec<_> = (0..500)
        .map(|n| format!("\"{:04}{}\"", n, "x".repeat(508)))
        .collect();
    let list = format!("{{\"l\":[{}]}}", strings.join(","));
    write(&env, put("x", "list", &list)).unwrap();
    assert_eq!(one(&format!("{{\"l\":{}}}", strings[250])), ["list"]);
    assert_eq!(
        one(&format!("{{\"l\":\"0250{}\"}}", "x".repeat(507))),
        [""; 0]
    );

    assert_eq!(by_s(&a(600, "1")), ["1"]);
    assert_eq!(by_s(&a(600, "2")), ["2"]);
    assert_eq!(by_s(&a(480, "")), ["3"]);
    assert_eq!(by_s(&a(600, "")), [""; 0]);
    let between = format!(
        "{{\"s\":{{\"$gt\":\"{}\",\"$lt\":\"{}\"}}}}",
        a(600, "1"),
        a(600, "3")
    );
    assert_eq!(one(&between), ["2"]);
    let sorted = env
        .query("x", &query("{\"s\":{\"$exists\":true}}", "{\"s\":-1}", 10))
        .unwrap();
    assert_eq!(keys(&sorted), ["2", "1", "3"]);

    // Unique: only the exact duplicate is refused, and it names the holder.
    for s in [a(600, "1"), a(600, "2"), a(480, "")] {
        match write(&env, put("x", "dup", &doc(&s))) {
            Err(Error::UniqueConstraint { index, key }) => {
                assert_eq!((index.as_str(), by_s(&s)), ("s", vec![key]));
            }
            other => panic!("{other:?}"),
        }
    }
    write(&env, put("x", "4", &doc(&a(600, "")))).unwrap();

    // Long to short to long, and away: no stale hits.
    for s in ["short", &a(700, "")] {
        write(&env, put("x", "1", &doc(s))).unwrap();
        assert_eq!(by_s(&a(600, "1")), [""; 0]);
        assert_eq!(by_s(s), ["1"]);
    }
    write(&env, put("x", "5", &doc(&a(600, "1")))).unwrap();
    for key in ["1", "2", "3", "4", "5", "list"] {
        write(&env, remove("x", key)).unwrap();
    }
    assert_eq!(one("{\"s\":{\"$exists\":true}}"), [""; 0]);
    let index_left = env.index_count("x", "s~t", &IndexQuery::default()).unwrap();
    assert_eq!(index_left, 0);
    verify(&env);
}

#[test]
fn components_do_not_run_into_one_another() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "x", &[spec(&["a", "b"], true)]);
    let pairs = [
        ("\"a\"", "\"b\""),
        ("\"ab\"", "\"\""),
        ("\"\"", "\"ab\""),
        ("\"a\\u0000\"", "\"b\""),
        ("\"a\"", "\"\\u0000b\""),
        ("\"a\\u0000b\"", "\"\""),
    ];
    for (key, (a, b)) in pairs.iter().enumerate() {
        write(
            &env,
            put("x", &key.to_string(), &format!("{{\"a\":{a},\"b\":{b}}}")),
        )
        .unwrap();
    }
    for (key, (a, b)) in pairs.iter().enumerate() {
        let page = env
            .query("x", &query(&format!("{{\"a\":{a},\"b\":{b}}}"), "{}", 10))
            .unwrap();
        assert_eq!(keys(&page), [key.to_string()]);
    }
    // Not present, or null: not held to be unique.
    for key in ["n1", "n2"] {
        write(&env, put("x", key, "{\"a\":\"a\",\"b\":null}")).unwrap();
        write(&env, put("x", &format!("{key}m"), "{\"a\":\"a\"}")).unwrap();
    }
    verify(&env);
}

#[test]
fn cursors_of_other_requests_are_refused() {
    let folder = Folder::new();
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    register(&env, "x", &[]);
    bulk(
        &env,
        (0..10).map(|n| put("x", &n.to_string(), "{}")).collect(),
    );
    let mut first = query("{}", "{}", 3);
    let cursor = env.query("x", &first).unwrap().cursor;
    let mut other = query("{\"a\":null}", "{}", 3);
    other.cursor.clone_from(&cursor);
    assert!(matches!(env.query("x", &other), Err(Error::InvalidCursor)));
    let list = ListQuery {
        limit: 3,
        cursor: cursor.clone(),
        ..ListQuery::default()
    };
    assert!(matches!(env.list("x", &list), Err(Error::InvalidCursor)));
    // Of the same name, yet another type.
    env.submit(Write::DropType { name: "x".into() })
        .wait()
        .unwrap();
    register(&env, "x", &[]);
    first.cursor = cursor;
    assert!(matches!(env.query("x", &first), Err(Error::InvalidCursor)));
}
