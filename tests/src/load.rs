//! Clients that count: what they asked, what they were answered, and what they
//! were promised. They run beside a story and never stop at a failure; the story
//! decides which failures are allowed.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::http::{Address, Client};
use crate::wait::{SOON, Stop, wait_until};

/// A pause between the requests of one client, so that a story's own work gets
/// its share of a small machine.
const PAUSE: Duration = Duration::from_millis(1);
/// Failures that are kept as text.
const EXAMPLES_MAX: usize = 10;
/// The type that the clients write to.
pub const KIND: &str = "load";

/// What came of the requests.
#[derive(Debug, Default)]
pub struct Tally {
    /// Answered as they should be.
    pub answered: u64,
    /// Answered otherwise.
    pub refused: u64,
    /// Not answered: no connection, a reset, an early end, a time-out.
    pub failed: u64,
    /// Some of those, in words.
    pub examples: Vec<String>,
}

impl Tally {
    fn note(&mut self, asked: &str, result: &io::Result<u16>) {
        let example = match result {
            Ok(200 | 201) => {
                self.answered += 1;
                return;
            }
            Ok(status) => {
                self.refused += 1;
                format!("{asked}: {status}")
            }
            Err(error) => {
                self.failed += 1;
                format!("{asked}: {error}")
            }
        };
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(example);
        }
    }

    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.refused += other.refused;
        self.failed += other.failed;
        self.examples.extend(other.examples);
        self.examples.truncate(EXAMPLES_MAX);
    }

    /// Ends the story unless every request was answered as it should be.
    #[track_caller]
    pub fn expect_no_failure(&self) {
        assert!(
            self.refused == 0 && self.failed == 0 && self.answered > 0,
            "{self:#?}"
        );
    }
}

/// What is known of a counter that one client writes: 1, 2, 3, ...
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    /// The last number that was acknowledged.
    pub acknowledged: u64,
    /// The last number that was sent.
    pub sent: u64,
}

/// Running clients.
pub struct Load {
    stop: Arc<Stop>,
    answered: Arc<AtomicU64>,
    clients: Vec<JoinHandle<(String, Written, Tally)>>,
}

/// What became of it all.
pub struct Outcome {
    /// What came of the requests.
    pub tally: Tally,
    /// Key by key, what was promised.
    pub written: BTreeMap<String, Written>,
}

impl Load {
    /// Starts `kept` clients that keep their connection and `fresh` ones that make
    /// a new one for each request. Each in turn writes its counter and reads it
    /// back, through whichever worker it is connected to; `name` sets its
    /// counters apart from those of earlier loads.
    #[must_use]
    pub fn start(address: &Address, name: &str, kept: usize, fresh: usize) -> Self {
        let (stop, answered) = (Arc::new(Stop::default()), Arc::new(AtomicU64::new(0)));
        let clients = (0..kept + fresh).map(|number| {
            let client = if number < kept {
                Client::new(address)
            } else {
                Client::fresh(address)
            };
            let key = format!("{name}-{number}");
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            thread::Builder::new()
                .name(format!("client-{number}"))
                .spawn(move || run(client, key, &stop, &answered))
                .expect("a thread starts")
        });
        Self {
            clients: clients.collect(),
            stop,
            answered,
        }
    }

    /// How many requests have been answered so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Waits until `more` further requests have been answered.
    #[track_caller]
    pub fn wait_for_more(&self, more: u64) {
        let wanted = self.answered() + more;
        wait_until("answers", SOON, || self.answered() >= wanted);
    }

    /// Lets the clients finish the request that they are at.
    #[must_use]
    pub fn finish(self) -> Outcome {
        self.stop.set();
        let mut outcome = Outcome {
            tally: Tally::default(),
            written: BTreeMap::new(),
        };
        for client in self.clients {
            let (key, written, tally) = client.join().expect("a client does not panic");
            outcome.tally.add(tally);
            outcome.written.insert(key, written);
        }
        outcome
    }
}

fn run(
    mut client: Client,
    key: String,
    stop: &Stop,
    answered: &AtomicU64,
) -> (String, Written, Tally) {
    let path = format!("/api/default/types/{KIND}/{key}");
    let (mut written, mut tally) = (Written::default(), Tally::default());
    while !stop.is_set() {
        written.sent += 1;
        let body = format!(r#"{{"value":{}}}"#, written.sent);
        let put = client
            .call("PUT", &path, &[], Some(body.as_bytes()))
            .map(|answer| answer.status);
        tally.note("PUT", &put);
        if matches!(put, Ok(200 | 201)) {
            written.acknowledged = written.sent;
            answered.fetch_add(1, Ordering::Relaxed);
        }
        let get = client.call("GET", &path, &[], None);
        if let Ok(answer) = &get
            && answer.status == 200
        {
            let seen = answer.json()["value"].as_u64().unwrap_or_default();
            let allowed = written.acknowledged..=written.sent;
            assert!(
                allowed.contains(&seen),
                "{key}: {seen} is not in {allowed:?}"
            );
            answered.fetch_add(1, Ordering::Relaxed);
        }
        let get = get.map(|answer| match answer.status {
            // Nothing has been promised yet.
            404 if written.acknowledged == 0 => 200,
            status => status,
        });
        tally.note("GET", &get);
        thread::sleep(PAUSE);
    }
    (key, written, tally)
}

impl Outcome {
    /// Ends the story unless every counter stands at what was acknowledged, or at
    /// a write whose answer was lost.
    #[track_caller]
    pub fn expect_written(&self, client: &mut Client) {
        for (key, written) in &self.written {
            let answer = client.get(&format!("/api/default/types/{KIND}/{key}"));
            if answer.status == 404 {
                assert_eq!(written.acknowledged, 0, "{key} is gone");
                continue;
            }
            let value = answer.expect(200).json()["value"].as_u64();
            let value = value.expect("a number");
            let allowed = written.acknowledged..=written.sent;
            assert!(
                allowed.contains(&value),
                "{key}: {value} is not in {allowed:?}"
            );
        }
    }
}
