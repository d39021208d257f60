//! What every story needs: a folder for a root, short ways to write and read, background work that ends with its test.

use std::{
    path::{Path, PathBuf},
    thread::JoinHandle,
};

use okdb_query::Value;
use okdb_store::{
    Action, Durability, Env, Error, Guard, IndexSpec, Operation, Options, Outcome, Role, StopFlag,
    Store, Write, Written,
};

/// A folder that goes with the test.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Where a root can be made.
    pub(crate) fn root(&self) -> PathBuf {
        self.0.path().join("root")
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Options that leave nothing in `/dev/shm` and wait for no disk.
pub(crate) fn quick() -> Options {
    Options {
        durability: Some(Durability::Fast),
        segment_in_root: true,
        ..Options::default()
    }
}

/// Opens a root as a library would, without waiting for disks.
pub(crate) fn open(root: &Path) -> Store {
    Store::open(root, quick()).unwrap()
}

/// Background work, until it is dropped.
pub(crate) struct Chores {
    store: Store,
    stop: StopFlag,
    thread: Option<JoinHandle<()>>,
}

impl Chores {
    pub(crate) fn start(store: &Store) -> Self {
        let stop = StopFlag::new();
        let thread = std::thread::spawn({
            let (store, stop) = (store.clone(), stop.clone());
            move || store.run_chores(&stop)
        });
        Self {
            store: store.clone(),
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Chores {
    fn drop(&mut self) {
        self.stop.stop();
        self.store.wake_chores();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "chores panicked");
        }
    }
}

pub(crate) fn operation(type_name: &str, key: &str, action: Action) -> Operation {
    Operation {
        type_name: type_name.to_owned(),
        key: key.to_owned(),
        guard: Guard::default(),
        ttl: None,
        action,
    }
}

pub(crate) fn put(type_name: &str, key: &str, value: &str) -> Operation {
    operation(type_name, key, Action::Put(value.to_owned()))
}

pub(crate) fn remove(type_name: &str, key: &str) -> Operation {
    operation(type_name, key, Action::Remove)
}

/// Runs one operation.
pub(crate) fn write(env: &Env, operation: Operation) -> Result<Written, Error> {
    match env.submit(Write::One(operation)).wait()? {
        Outcome::Done(written) => Ok(written),
        other => panic!("one operation, and {other:?}"),
    }
}

/// Runs operations that stand or fall alone; each must stand.
pub(crate) fn bulk(env: &Env, operations: Vec<Operation>) {
    match env.submit(Write::Bulk(operations)).wait().unwrap() {
        Outcome::Bulk { results, .. } => {
            for result in results {
                result.unwrap();
            }
        }
        other => panic!("bulk, and {other:?}"),
    }
}

pub(crate) fn spec(fields: &[&str], unique: bool) -> IndexSpec {
    IndexSpec {
        fields: fields.iter().map(|&field| field.to_owned()).collect(),
        unique,
    }
}

pub(crate) fn register(env: &Env, type_name: &str, indexes: &[IndexSpec]) {
    env.submit(Write::RegisterType {
        name: type_name.to_owned(),
        indexes: indexes.to_vec(),
        schema: None,
        ensure: true,
    })
    .wait()
    .unwrap();
}

/// Panics with what is wrong, if anything is.
pub(crate) fn verify(env: &Env) {
    let report = env.verify(&mut |_, _| {}).unwrap();
    assert!(
        report.problems.is_empty(),
        "{:?}: {:#?}",
        env.name(),
        &report.problems[..report.problems.len().min(10)]
    );
}

pub(crate) fn value(text: &str) -> Value<'static> {
    Value::parse(text).unwrap().into_owned()
}

/// What a server would open a root with, in tests.
pub(crate) fn as_server() -> Options {
    Options {
        role: Role::Server,
        ..quick()
    }
}
