//! A model of an import that is interrupted: which write of each record was
//! acknowledged, which may have happened, and what the server must show.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use okdb_tests::data;
use okdb_tests::http::{Address, Client};
use okdb_tests::oracle::Record;
use okdb_tests::wait::Stop;

/// Records in a batch: one transaction, or one chunk of an import.
pub(crate) const BATCH_RECORDS: usize = 250;

/// The type that the records go into.
pub(crate) const TYPE: &str = "place";

/// How a batch travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// `POST /transaction`: all or nothing.
    Transaction,
    /// `POST /import/{type}`: each record by itself.
    Import,
}

/// What became of one attempt to write one batch.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    batch: usize,
    number: u64,
    route: Route,
    outcome: Outcome,
}

#[derive(Clone, Debug)]
enum Outcome {
    /// Answered; with the versions, where the route tells them.
    Acknowledged(Vec<(String, u64)>),
    /// The answer was lost.
    Unknown,
    /// Refused because the server was ending.
    Refused,
}

/// What the checks after a round counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Batches whose answer came.
    pub(crate) acknowledged: u64,
    /// Batches whose answer was lost, but which are there, whole.
    pub(crate) unknown_applied: u64,
    /// Batches whose answer was lost, and of which there is nothing.
    pub(crate) unknown_absent: u64,
    /// Imports whose answer was lost and which are there in part.
    pub(crate) unknown_partial: u64,
    /// Batches that were refused by a server on its way out.
    pub(crate) refused: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.unknown_applied += other.unknown_applied;
        self.unknown_absent += other.unknown_absent;
        self.unknown_partial += other.unknown_partial;
        self.refused += other.refused;
    }
}

/// The import as a whole, across rounds.
pub(crate) struct Import {
    records: usize,
    /// Batches still to send in this pass.
    queue: Mutex<Vec<usize>>,
    attempts: AtomicU64,
    /// The attempt that each record shows; absent: none yet.
    shown: BTreeMap<usize, u64>,
}

impl Import {
    /// An import of that many records.
    pub(crate) fn new(records: usize) -> Self {
        let import = Self {
            records,
            queue: Mutex::new(Vec::new()),
            attempts: AtomicU64::new(0),
            shown: BTreeMap::new(),
        };
        import.refill();
        import
    }

    /// Starts another pass over all batches where the last one is done.
    pub(crate) fn refill(&self) {
        let mut queue = self.queue.lock().expect("no importer panicked");
        if queue.is_empty() {
            *queue = (0..self.records.div_ceil(BATCH_RECORDS)).rev().collect();
        }
    }

    /// How many records have been written at least once.
    pub(crate) fn written(&self) -> usize {
        self.shown.len()
    }

    fn members(&self, batch: usize) -> std::ops::Range<usize> {
        let first = batch * BATCH_RECORDS;
        first..self.records.min(first + BATCH_RECORDS)
    }

    /// Sends batches on one connection until told to stop, until there are no
    /// more, or until an answer is lost. `last_worker` learns who answers.
    pub(crate) fn send(&self, address: &Address, route: Route, round: &Round) -> Vec<Attempt> {
        let mut client = Client::new(address);
        let mut attempts = Vec::new();
        while !round.stop.is_set() {
            let Some(batch) = self.queue.lock().expect("no importer panicked").pop() else {
                break;
            };
            let number = self.attempts.fetch_add(1, Ordering::SeqCst) + 1;
            let outcome = self.send_batch(&mut client, batch, number, route, round);
            let lost = !matches!(outcome, Outcome::Acknowledged(_));
            attempts.push(Attempt {
                batch,
                number,
                route,
                outcome,
            });
            if lost {
                break;
            }
        }
        attempts
    }

    fn send_batch(
        &self,
        client: &mut Client,
        batch: usize,
        number: u64,
        route: Route,
        round: &Round,
    ) -> Outcome {
        let (path, kind, body) = match route {
            Route::Transaction => (
                "/api/default/transaction".to_owned(),
                "application/json",
                self.transaction(batch, number),
            ),
            Route::Import => (
                format!("/api/default/import/{TYPE}"),
                "application/x-ndjson",
                self.lines(batch, number),
            ),
        };
        let headers = [("content-type", kind)];
        let Ok(answer) = client.call("POST", &path, &headers, Some(body.as_bytes())) else {
            return Outcome::Unknown;
        };
        if answer.status == 503 {
            return Outcome::Refused;
        }
        round.worker.store(answer.worker(), Ordering::SeqCst);
        let answer = answer.expect(200).json();
        let versions = match route {
            Route::Transaction => answer["results"]
                .as_array()
                .expect("a transaction has results")
                .iter()
                .map(|result| {
                    let key = result["key"].as_str().expect("a key").to_owned();
                    (key, result["version"].as_u64().expect("a version"))
                })
                .collect(),
            Route::Import => {
                assert_eq!(answer["imported"], self.members(batch).len(), "{answer}");
                assert_eq!(answer["failed"], serde_json::json!([]), "{answer}");
                Vec::new()
            }
        };
        round.acknowledged.fetch_add(1, Ordering::SeqCst);
        Outcome::Acknowledged(versions)
    }

    fn transaction(&self, batch: usize, number: u64) -> String {
        let operations: Vec<String> = self
            .members(batch)
            .map(|record| {
                format!(
                    r#"{{"action":"put","type":"{TYPE}","key":"{}","value":{}}}"#,
                    data::key(record),
                    data::value(record, number)
                )
            })
            .collect();
        format!(r#"{{"operations":[{}]}}"#, operations.join(","))
    }

    fn lines(&self, batch: usize, number: u64) -> String {
        data::lines(
            self.members(batch)
                .map(|record| (data::key(record), data::value(record, number))),
        )
    }

    /// Compares what the server shows with what it acknowledged; what was lost
    /// is queued again.
    pub(crate) fn check(
        &mut self,
        attempts: &[Attempt],
        found: &BTreeMap<String, Record>,
    ) -> Counts {
        let mut counts = Counts::default();
        for attempt in attempts {
            let members: Vec<usize> = self.members(attempt.batch).collect();
            let applied = members
                .iter()
                .filter(|record| shown_attempt(found, **record) == Some(attempt.number))
                .count();
            let whole = applied == members.len();
            match (&attempt.outcome, attempt.route) {
                (Outcome::Acknowledged(versions), _) => {
                    assert!(
                        whole,
                        "acknowledged, yet {applied} of {} are there: {attempt:?}",
                        members.len()
                    );
                    for (key, version) in versions {
                        assert_eq!(found[key].version, *version, "version of {key}");
                    }
                    counts.acknowledged += 1;
                }
                (Outcome::Refused, _) => {
                    assert_eq!(applied, 0, "refused, yet there: {attempt:?}");
                    counts.refused += 1;
                }
                (Outcome::Unknown, _) if whole => counts.unknown_applied += 1,
                (Outcome::Unknown, _) if applied == 0 => counts.unknown_absent += 1,
                (Outcome::Unknown, Route::Import) => counts.unknown_partial += 1,
                (Outcome::Unknown, Route::Transaction) => {
                    panic!(
                        "half a transaction, {applied} of {}: {attempt:?}",
                        members.len()
                    )
                }
            }
            if !whole {
                self.queue
                    .lock()
                    .expect("no importer panicked")
                    .push(attempt.batch);
            }
            for record in members {
                if shown_attempt(found, record) == Some(attempt.number) {
                    self.shown.insert(record, attempt.number);
                }
            }
        }
        self.compare(found);
        counts
    }

    /// Each record is, to the last character, one of the writes that may be.
    fn compare(&self, found: &BTreeMap<String, Record>) {
        assert_eq!(
            found.len(),
            self.shown.len(),
            "records there, records written"
        );
        for (record, attempt) in &self.shown {
            let key = data::key(*record);
            let wanted = data::value(*record, *attempt);
            let wanted: serde_json::Value = serde_json::from_str(&wanted).expect("JSON");
            assert_eq!(
                found.get(&key).map(|found| &found.value),
                Some(&wanted),
                "{key}"
            );
        }
    }
}

fn shown_attempt(found: &BTreeMap<String, Record>, record: usize) -> Option<u64> {
    found.get(&data::key(record))?.value["attempt"].as_u64()
}

/// What the importers of a round and their killer share.
#[derive(Default)]
pub(crate) struct Round {
    /// Set when no more batches are to be sent.
    pub(crate) stop: Stop,
    /// Batches acknowledged in this round.
    pub(crate) acknowledged: AtomicUsize,
    /// The slot that answered last.
    pub(crate) worker: AtomicUsize,
}
