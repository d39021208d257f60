//! Random histories against a plain map: same outcomes, same errors, same change log, and a store that verifies.
//!
//! Each history has a seed; a failure names it, and `OKDB_SEED=n` runs that one alone.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use okdb_query::{Patch, Value, compare};
use okdb_store::{
    Action, ChangesQuery, Env, Error, Expect, Guard, IndexSpec, IndexState, Operation, Outcome,
    Write, Written,
};

use crate::common::{Chores, Folder, open, spec, value, verify};

const HISTORIES: u64 = 40;
const STEPS: usize = 120;
const TYPES: [&str; 3] = ["alpha", "beta", "gamma-2"];

#[test]
fn random_histories_agree_with_a_plain_map() {
    if let Ok(seed) = std::env::var("OKDB_SEED") {
        return history(seed.parse().unwrap());
    }
    for seed in 0..HISTORIES {
        let run = std::panic::catch_unwind(|| history(seed));
        if let Err(panic) = run {
            eprintln!("the history of OKDB_SEED={seed} failed");
            std::panic::resume_unwind(panic);
        }
    }
}

/// The change that the log shows of a record or a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Logged {
    clock: u64,
    action: &'static str,
    txn: Option<u64>,
}

#[derive(Clone, Default)]
struct Type {
    indexes: BTreeMap<String, (IndexSpec, bool)>,
    records: BTreeMap<String, (u64, String)>,
    log: BTreeMap<String, Logged>,
}

#[derive(Clone, Default)]
struct Model {
    clock: u64,
    types: BTreeMap<String, Type>,
    /// Changes of definitions, by type and index name.
    definitions: BTreeMap<(String, String), Logged>,
    /// First clock of the transaction under way.
    txn: Option<u64>,
}

impl Model {
    fn tick(&mut self, action: &'static str) -> Logged {
        self.clock += 1;
        Logged {
            clock: self.clock,
            action,
            txn: self.txn,
        }
    }

    fn operation(&mut self, operation: &Operation) -> Result<Written, String> {
        let Some(found) = self.types.get(&operation.type_name) else {
            return Err("TypeNotRegistered".into());
        };
        if operation.key.is_empty() || operation.key.len() > 400 || operation.key.contains('\n') {
            return Err("InvalidKey".into());
        }
        let old = found.records.get(&operation.key).cloned();
        let version = old.as_ref().map(|(version, _)| *version);
        for expect in [operation.guard.version, operation.guard.header] {
            let holds = match expect {
                None => true,
                Some(Expect::Absent) => version.is_none(),
                Some(Expect::Version(wanted)) => version == Some(wanted),
            };
            if !holds {
                return Err(format!("VersionMismatch {version:?}"));
            }
        }
        let text = match (&operation.action, &old) {
            (Action::Create(_), Some(_)) => return Err("AlreadyExists".into()),
            (Action::Update(_) | Action::Patch(_) | Action::Remove, None) => {
                return Err("NotFound".into());
            }
            (Action::Put(text) | Action::Create(text) | Action::Update(text), _) => {
                Some(text.clone())
            }
            (Action::Patch(patch), Some((_, old))) => match patch.apply(&value(old)) {
                Ok(text) => Some(text),
                Err(_) => return Err("Patch".into()),
            },
            (Action::Remove, Some(_)) => None,
            (Action::SetTtl(_) | Action::ClearTtl, _) => unreachable!("not among the model's"),
        };
        if let Some(text) = &text
            && let Some(index) = found.conflict(&operation.key, text)
        {
            return Err(format!("UniqueConstraint {index}"));
        }
        let action = if text.is_some() { "put" } else { "remove" };
        let logged = self.tick(action);
        let clock = logged.clock;
        let found = self.types.get_mut(&operation.type_name).unwrap();
        found.log.insert(operation.key.clone(), logged);
        match text {
            Some(text) => found.records.insert(operation.key.clone(), (clock, text)),
            None => found.records.remove(&operation.key),
        };
        Ok(Written {
            key: operation.key.clone(),
            version: clock,
            created: old.is_none(),
            expires_ms: None,
        })
    }

    fn transaction(&mut self, operations: &[Operation]) -> Result<Vec<Written>, String> {
        let mut inner = self.clone();
        inner.txn = Some(self.clock + 1);
        let mut results = Vec::new();
        for (place, operation) in operations.iter().enumerate() {
            match inner.operation(operation) {
                Ok(written) => results.push(written),
                Err(error) => return Err(format!("Operation {place}: {error}")),
            }
        }
        inner.txn = None;
        *self = inner;
        Ok(results)
    }

    fn register_type(
        &mut self,
        name: &str,
        indexes: &[IndexSpec],
        ensure: bool,
    ) -> Result<(), String> {
        if let Some(found) = self.types.get(name) {
            if !ensure {
                return Err("AlreadyExists".into());
            }
            for spec in indexes {
                let other = found.indexes.get(&spec.name());
                if other.is_some_and(|(known, _)| known != spec) {
                    return Err("AlreadyExists".into());
                }
            }
        } else {
            let logged = self.tick("type_register");
            self.definitions
                .insert((name.into(), String::new()), logged);
            self.types.insert(name.into(), Type::default());
        }
        for spec in indexes {
            self.register_index(name, spec, true)?;
        }
        Ok(())
    }

    fn register_index(
        &mut self,
        type_name: &str,
        spec: &IndexSpec,
        ensure: bool,
    ) -> Result<(), String> {
        let Some(found) = self.types.get(type_name) else {
            return Err("TypeNotRegistered".into());
        };
        if let Some((known, _)) = found.indexes.get(&spec.name()) {
            return if ensure && known == spec {
                Ok(())
            } else {
                Err("AlreadyExists".into())
            };
        }
        let works = !spec.unique || !found.has_duplicates(spec);
        let logged = self.tick("index_register");
        self.definitions
            .insert((type_name.into(), spec.name()), logged);
        let found = self.types.get_mut(type_name).unwrap();
        found.indexes.insert(spec.name(), (spec.clone(), works));
        Ok(())
    }

    fn drop_index(&mut self, type_name: &str, name: &str) -> Result<(), String> {
        let Some(found) = self.types.get_mut(type_name) else {
            return Err("TypeNotRegistered".into());
        };
        if found.indexes.remove(name).is_none() {
            return Err("IndexNotRegistered".into());
        }
        let logged = self.tick("index_drop");
        self.definitions
            .insert((type_name.into(), name.into()), logged);
        Ok(())
    }

    fn drop_type(&mut self, name: &str) -> Result<(), String> {
        let Some(found) = self.types.remove(name) else {
            return Err("TypeNotRegistered".into());
        };
        for index in found.indexes.keys() {
            let logged = self.tick("index_drop");
            self.definitions
                .insert((name.into(), index.clone()), logged);
        }
        let logged = self.tick("type_drop");
        self.definitions
            .insert((name.into(), String::new()), logged);
        Ok(())
    }

    fn check(&self, env: &Env) {
        let snapshot = env.snapshot().unwrap();
        assert_eq!(snapshot.clock().unwrap(), self.clock);
        let types = snapshot.types().unwrap();
        let names: Vec<_> = types.iter().map(|info| info.name.as_str()).collect();
        assert_eq!(names, self.types.keys().collect::<Vec<_>>());
        for info in types {
            let found = &self.types[&info.name];
            assert_eq!(info.count, found.records.len() as u64);
            let indexes: Vec<_> = info
                .indexes
                .iter()
                .map(|index| index.name.as_str())
                .collect();
            assert_eq!(indexes, found.indexes.keys().collect::<Vec<_>>());
            for (key, (version, text)) in &found.records {
                let record = snapshot.get(&info.name, key).unwrap().unwrap();
                assert_eq!((record.version, record.value), (*version, text.as_str()));
            }
        }
        drop(snapshot);
        self.check_changes(env, 0);
        self.check_changes(env, self.clock / 2);
    }

    /// The log shows exactly the latest change of each record and definition, in clock order.
    fn check_changes(&self, env: &Env, after: u64) {
        let mut expected: BTreeMap<u64, (String, String, Logged)> = BTreeMap::new();
        for ((type_name, index), logged) in &self.definitions {
            expected.insert(
                logged.clock,
                (type_name.clone(), index.clone(), logged.clone()),
            );
        }
        for (name, found) in &self.types {
            for (key, logged) in &found.log {
                expected.insert(logged.clock, (name.clone(), key.clone(), logged.clone()));
            }
        }
        for type_name in [None, Some("alpha"), Some("beta")] {
            if type_name.is_some_and(|name| !self.types.contains_key(name)) {
                continue;
            }
            let expected: Vec<_> = expected
                .range(after + 1..)
                .map(|(_, change)| change.clone())
                .filter(|(name, ..)| type_name.is_none_or(|wanted| name == wanted))
                .collect();
            let mut found = Vec::new();
            let mut query = ChangesQuery {
                after,
                type_name: type_name.map(str::to_owned),
                limit: 7,
                ..ChangesQuery::default()
            };
            loop {
                let page = env.changes(&query).unwrap();
                let full = page.changes.len() == query.limit;
                found.extend(page.changes.into_iter().map(|change| {
                    let logged = Logged {
                        clock: change.clock,
                        action: change.action,
                        txn: change.txn,
                    };
                    (change.type_name, change.key, logged)
                }));
                query.after = page.clock;
                if !full {
                    break;
                }
            }
            assert_eq!(query.after, self.clock);
            assert_eq!(found, expected);
        }
    }
}

impl Type {
    /// The first unique index, by name, that refuses this value under this key.
    fn conflict(&self, key: &str, text: &str) -> Option<&str> {
        let doc = value(text);
        let refuses = |(spec, works): &&(IndexSpec, bool)| {
            let mine = tuples(&doc, spec);
            let others = self.records.iter().filter(|(other, _)| *other != key);
            *works
                && spec.unique
                && others.into_iter().any(|(_, (_, text))| {
                    let theirs = value(text);
                    meet(&mine, &tuples(&theirs, spec))
                })
        };
        self.indexes
            .iter()
            .find(|(_, index)| refuses(index))
            .map(|(name, _)| name.as_str())
    }

    fn has_duplicates(&self, spec: &IndexSpec) -> bool {
        let docs: Vec<_> = self.records.values().map(|(_, text)| value(text)).collect();
        docs.iter().enumerate().any(|(place, a)| {
            docs[place + 1..]
                .iter()
                .any(|b| meet(&tuples(a, spec), &tuples(b, spec)))
        })
    }
}

/// Whether two lists share a tuple.
fn meet(a: &[Vec<Value<'_>>], b: &[Vec<Value<'_>>]) -> bool {
    let same =
        |a: &[Value<'_>], b: &[Value<'_>]| a.iter().zip(b).all(|(a, b)| compare(a, b).is_eq());
    a.iter().any(|a| b.iter().any(|b| same(a, b)))
}

/// The tuples of present, non-null values that a document has for an index.
fn tuples(doc: &Value<'static>, spec: &IndexSpec) -> Vec<Vec<Value<'static>>> {
    let mut tuples = vec![Vec::new()];
    for field in &spec.fields {
        let mut longer = Vec::new();
        for value in values_at(doc, field) {
            for tuple in &tuples {
                let mut tuple: Vec<Value<'static>> = tuple.clone();
                tuple.push(value.clone());
                longer.push(tuple);
            }
        }
        tuples = longer;
    }
    tuples
}

/// Non-null values at a dotted path, through objects, the elements of a last array taken one by one.
fn values_at(doc: &Value<'static>, field: &str) -> Vec<Value<'static>> {
    let mut at = doc;
    for part in field.split('.') {
        match at.get(part) {
            Some(member) => at = member,
            None => return Vec::new(),
        }
    }
    let list = match at {
        Value::Array(list) => list.clone(),
        other => vec![other.clone()],
    };
    list.into_iter().filter(|value| !value.is_null()).collect()
}

/// An error as far as the model knows it.
fn kind(error: &Error) -> String {
    match error {
        Error::VersionMismatch { current } => format!("VersionMismatch {current:?}"),
        Error::UniqueConstraint { index, .. } => format!("UniqueConstraint {index}"),
        Error::Operation { index, source } => format!("Operation {index}: {}", kind(source)),
        other => {
            let text = format!("{other:?}");
            let end = text
                .find(|c: char| !c.is_alphanumeric())
                .unwrap_or(text.len());
            text[..end].to_owned()
        }
    }
}

fn random_value(rng: &mut Rng) -> String {
    let a = match rng.u8(..12) {
        0 => "null".to_owned(),
        1 => format!("[{},{}]", rng.u8(..20), rng.u8(..20)),
        2 => "[]".to_owned(),
        3 => format!("{}.0", rng.u8(..40)),
        4 => format!("\"{}\"", "long ".repeat(50) + &rng.u8(..6).to_string()),
        _ => rng.u8(..40).to_string(),
    };
    let b = rng.u8(..30);
    let n = rng.u8(..50);
    match rng.u8(..4) {
        0 => format!("{{\"a\":{a},\"n\":{{\"x\":\"x{n}\"}}}}"),
        1 => format!("{{\"b\":{b},\"n\":{{\"x\":{n}}}}}"),
        2 => format!("{{\"a\":{a},\"b\":\"b{b}\"}}"),
        _ => format!("{{\"a\":{a},\"b\":{b},\"n\":{{\"x\":[{n},\"y\"]}}}}"),
    }
}

fn random_patch(rng: &mut Rng) -> Patch {
    let text = match rng.u8(..4) {
        0 => format!("{{\"set\":{{\"a\":{}}}}}", rng.u8(..40)),
        1 => "{\"inc\":{\"b\":1}}".to_owned(),
        2 => format!("{{\"append\":{{\"a\":[{}]}}}}", rng.u8(..20)),
        _ => "{\"unset\":[\"n.x\"]}".to_owned(),
    };
    Patch::parse_document(&value(&text)).unwrap()
}

fn random_operation(rng: &mut Rng, model: &Model) -> Operation {
    let type_name = TYPES[rng.usize(..TYPES.len())];
    let key = match rng.u8(..60) {
        0 => String::new(),
        1 => "k\nk".to_owned(),
        2 => "k".repeat(401),
        3 => "k".repeat(400),
        _ => format!("key {}", rng.u8(..25)),
    };
    let version = model
        .types
        .get(type_name)
        .and_then(|found| found.records.get(&key))
        .map(|(version, _)| *version);
    let expect = |rng: &mut Rng| match rng.u8(..10) {
        0 => Some(Expect::Absent),
        1 => Some(Expect::Version(rng.u64(..model.clock + 2))),
        2 | 3 => Some(version.map_or(Expect::Absent, Expect::Version)),
        _ => None,
    };
    let guard = Guard {
        version: expect(rng),
        header: expect(rng),
    };
    let action = match rng.u8(..10) {
        0..4 => Action::Put(random_value(rng)),
        4 => Action::Create(random_value(rng)),
        5 | 6 => Action::Update(random_value(rng)),
        7 => Action::Patch(random_patch(rng)),
        _ => Action::Remove,
    };
    Operation {
        type_name: type_name.to_owned(),
        key,
        guard,
        ttl: None,
        action,
    }
}

fn random_spec(rng: &mut Rng) -> IndexSpec {
    let fields: &[&str] = match rng.u8(..6) {
        0 => &["a"],
        1 => &["b"],
        2 => &["n.x"],
        3 => &["a", "b"],
        4 => &["b", "n.x"],
        _ => &["n.x", "a", "b"],
    };
    spec(fields, rng.u8(..3) == 0)
}

/// A write and what the model says of it.
enum Step {
    One(Result<Written, String>),
    Transaction(Result<Vec<Written>, String>),
    Bulk(Vec<Result<Written, String>>),
    Definition(Result<(), String>),
}

fn step(rng: &mut Rng, model: &mut Model) -> (Write, Step) {
    let name = TYPES[rng.usize(..TYPES.len())].to_owned();
    match rng.u8(..40) {
        0..3 => {
            let indexes: Vec<_> = (0..rng.usize(..3)).map(|_| random_spec(rng)).collect();
            let ensure = rng.bool();
            let names: BTreeSet<_> = indexes.iter().map(IndexSpec::name).collect();
            let result = if names.len() < indexes.len() {
                Err("InvalidIndex".to_owned())
            } else {
                model.register_type(&name, &indexes, ensure)
            };
            let write = Write::RegisterType {
                name,
                indexes,
                schema: None,
                ensure,
            };
            (write, Step::Definition(result))
        }
        3 => {
            let result = model.drop_type(&name);
            (Write::DropType { name }, Step::Definition(result))
        }
        4 | 5 => {
            let (spec, ensure) = (random_spec(rng), rng.bool());
            let result = model.register_index(&name, &spec, ensure);
            let write = Write::RegisterIndex {
                type_name: name,
                spec,
                ensure,
            };
            (write, Step::Definition(result))
        }
        6 => {
            let index = random_spec(rng).name();
            let result = model.drop_index(&name, &index);
            let write = Write::DropIndex {
                type_name: name,
                name: index,
            };
            (write, Step::Definition(result))
        }
        7..10 => {
            let operations: Vec<_> = (0..rng.usize(..6))
                .map(|_| random_operation(rng, model))
                .collect();
            let result = model.transaction(&operations);
            (Write::Transaction(operations), Step::Transaction(result))
        }
        10..14 => {
            let operations: Vec<_> = (0..rng.usize(..12))
                .map(|_| random_operation(rng, model))
                .collect();
            let results = operations.iter().map(|one| model.operation(one)).collect();
            (Write::Bulk(operations), Step::Bulk(results))
        }
        _ => {
            let operation = random_operation(rng, model);
            let result = model.operation(&operation);
            (Write::One(operation), Step::One(result))
        }
    }
}

fn compare_outcome(expected: Step, outcome: Result<Outcome, Error>) {
    let kinds = |result: Result<Written, Error>| result.map_err(|error| kind(&error));
    let refused = match (expected, outcome) {
        (Step::One(expected), Ok(Outcome::Done(written))) => {
            return assert_eq!(Ok(written), expected);
        }
        (Step::Transaction(expected), Ok(Outcome::Transaction { results, .. })) => {
            return assert_eq!(Ok(results), expected);
        }
        (Step::Bulk(expected), Ok(Outcome::Bulk { results, .. })) => {
            let results: Vec<_> = results.into_iter().map(kinds).collect();
            return assert_eq!(results, expected);
        }
        (Step::Definition(Ok(())), Ok(_)) => return,
        (Step::One(result), Err(error)) => (result.err(), error),
        (Step::Transaction(result), Err(error)) => (result.err(), error),
        (Step::Definition(result), Err(error)) => (result.err(), error),
        (_, outcome) => panic!("an outcome of another kind: {outcome:?}"),
    };
    assert_eq!(Some(kind(&refused.1)), refused.0);
}

/// Waits until no index is being built, and checks how the builds ended.
fn settle(env: &Env, model: &Model) {
    loop {
        let types = env.snapshot().unwrap().types().unwrap();
        let indexes = || types.iter().flat_map(|info| &info.indexes);
        if indexes().any(|index| index.state == IndexState::Building) {
            std::thread::yield_now();
            continue;
        }
        for info in &types {
            for index in &info.indexes {
                let (_, works) = model.types[&info.name].indexes[&index.name];
                let ready = index.state == IndexState::Ready;
                assert_eq!(ready, works, "{}: {index:?}", info.name);
            }
        }
        return;
    }
}

fn history(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let folder = Folder::new();
    let mut store = open(&folder.root());
    let mut chores = Chores::start(&store);
    let mut env = store.env("default").unwrap();
    let mut model = Model::default();
    for name in &TYPES[..2] {
        let result = model.register_type(name, &[], true);
        let write = Write::RegisterType {
            name: (*name).to_owned(),
            indexes: Vec::new(),
            schema: None,
            ensure: true,
        };
        compare_outcome(Step::Definition(result), env.submit(write).wait());
    }
    for _ in 0..STEPS {
        // Several at once, so that they share a transaction.
        let mut pending = Vec::new();
        for _ in 0..rng.usize(1..6) {
            let (write, expected) = step(&mut rng, &mut model);
            let defines = matches!(expected, Step::Definition(_));
            pending.push((env.submit(write), expected));
            // What a unique index refuses while it is being built depends on how far it is.
            if defines {
                break;
            }
        }
        for (outcome, expected) in pending {
            compare_outcome(expected, outcome.wait());
        }
        settle(&env, &model);
        match rng.u8(..20) {
            0 => {
                verify(&env);
                model.check(&env);
            }
            1 => {
                drop((chores, env));
                drop(store);
                store = open(&folder.root());
                chores = Chores::start(&store);
                env = store.env("default").unwrap();
            }
            _ => {}
        }
    }
    verify(&env);
    model.check(&env);
    drop((chores, env));
    drop(store);
    let store = open(&folder.root());
    let env = store.env("default").unwrap();
    verify(&env);
    model.check(&env);
}
