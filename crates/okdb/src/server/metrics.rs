//! `/metrics`: the whole cluster in Prometheus' text format 0.0.4, whichever worker is asked.
//!
//! Counters come from the segment's scoreboard and outlive the processes that count; they start anew with the segment, when
//! everything has been stopped. The table below is the contract: `docs/metrics.md`, the alert rules and the dashboard
//! name nothing else.

use std::fmt::Write as _;

use okdb_shm::{
    BATCH_BUCKETS, LATENCY_BUCKETS, ScoreRow, Segment, SlotState, batch_bucket_max,
    latency_bucket_max_us,
};
use okdb_store::{EnvInfo, Store};
use okdb_sys::{Identity, host::monotonic_ms};

use super::status::ClusterSnapshot;

/// One family.
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: fn(&Scene, &mut Samples<'_>),
}

/// What the figures are read from, at one moment.
pub(crate) struct Scene {
    now_ms: u64,
    uptime_ms: u64,
    version: String,
    /// With owners that live.
    rows: Vec<ScoreRow>,
    /// Every slot that was ever used, with what its workers did.
    slots: Vec<(u16, okdb_shm::SlotRow, Option<ScoreRow>)>,
    stale_readers: u64,
    envs: Vec<EnvInfo>,
}

impl Scene {
    fn new(store: &Store, snapshot: &ClusterSnapshot) -> Self {
        let segment: &Segment = store.segment();
        let now_ms = monotonic_ms();
        Self {
            now_ms,
            uptime_ms: now_ms.saturating_sub(snapshot.started_ms),
            version: snapshot.version.clone(),
            // Each owner is looked up once.
            rows: segment
                .rows()
                .map(|mut row| {
                    row.owner = row.owner.filter(Identity::is_alive);
                    row
                })
                .collect(),
            slots: segment
                .slots()
                .map(|(slot, row)| (slot, row, segment.slot_figures(slot)))
                .collect(),
            stale_readers: segment.stale_readers(),
            // An environment that cannot be read is missing; the log tells why.
            envs: store.envs().unwrap_or_else(|error| {
                tracing::warn!(%error, "metrics without environments");
                Vec::new()
            }),
        }
    }

    fn total(&self, read: fn(&ScoreRow) -> u64) -> u64 {
        self.rows.iter().map(read).sum()
    }

    fn living(&self) -> impl Iterator<Item = &ScoreRow> {
        self.rows.iter().filter(|row| row.owner.is_some())
    }

    /// An environment's name; of one that this process cannot read, its number in the segment.
    fn env_name(&self, index: u16) -> String {
        let env = self.envs.iter().find(|env| env.index == index);
        env.map_or_else(|| index.to_string(), |env| env.name.clone())
    }

    /// The counters of each slot; of a single process, which has none, its own as slot 0.
    fn by_slot(&self) -> impl Iterator<Item = (u16, &ScoreRow)> {
        let single = self.slots.is_empty().then_some(&self.rows);
        let single = single
            .into_iter()
            .flatten()
            .filter_map(|row| Some((row.slot?, row)));
        let slots = self.slots.iter();
        slots
            .filter_map(|(slot, _, figures)| Some((*slot, figures.as_ref()?)))
            .chain(single)
    }
}

/// Writes the samples of one family.
pub(crate) struct Samples<'a> {
    name: &'static str,
    text: &'a mut String,
}

impl Samples<'_> {
    fn one(&mut self, value: impl Into<Number>) {
        self.labelled("", &[], value);
    }

    fn of(&mut self, labels: &[(&str, &str)], value: impl Into<Number>) {
        self.labelled("", labels, value);
    }

    fn labelled(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Into<Number>) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        for (place, (label, text)) in labels.iter().enumerate() {
            self.text.push(if place == 0 { '{' } else { ',' });
            self.text.push_str(label);
            self.text.push_str("=\"");
            for character in text.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    character => self.text.push(character),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let Number(number) = value.into();
        self.text.push(' ');
        self.text.push_str(&number);
        self.text.push('\n');
    }

    /// A histogram from counts that are not cumulative; `bound` is the upper end of a bucket as text.
    fn histogram(&mut self, counts: &[u64], bound: impl Fn(usize) -> Option<String>, sum: Number) {
        let mut count: u64 = 0;
        for (bucket, more) in counts.iter().enumerate() {
            count = count.saturating_add(*more);
            let bound = bound(bucket).unwrap_or_else(|| "+Inf".into());
            self.labelled("_bucket", &[("le", &bound)], count);
        }
        self.labelled("_sum", &[], sum);
        self.labelled("_count", &[], count);
    }
}

/// A number as it is written.
pub(crate) struct Number(String);

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self(number.to_string())
    }
}

/// Thousandths as a decimal fraction, exact.
fn milli(thousandths: u64) -> Number {
    Number(format!(
        "{}.{:03}",
        thousandths / 1_000,
        thousandths % 1_000
    ))
}

/// Millionths as a decimal fraction, exact.
fn micro(millionths: u64) -> Number {
    Number(format!(
        "{}.{:06}",
        millionths / 1_000_000,
        millionths % 1_000_000
    ))
}

fn per_slot(scene: &Scene, out: &mut Samples<'_>, read: fn(&Scene, &ScoreRow) -> Number) {
    for (slot, row) in scene.by_slot() {
        out.of(&[("slot", &slot.to_string())], read(scene, row));
    }
}

/// The same of slots whose worker lives.
fn per_living_slot(scene: &Scene, out: &mut Samples<'_>, read: fn(&Scene, &ScoreRow) -> Number) {
    let living = scene.by_slot().filter(|(_, row)| row.owner.is_some());
    for (slot, row) in living {
        out.of(&[("slot", &slot.to_string())], read(scene, row));
    }
}

fn per_env(scene: &Scene, out: &mut Samples<'_>, read: fn(&EnvInfo) -> u64) {
    for env in &scene.envs {
        out.of(&[("env", &env.name)], read(env));
    }
}

/// Counts of equal names, in the order in which they are first met.
fn counted(names: impl Iterator<Item = &'static str>) -> Vec<(&'static str, u64)> {
    let mut counts: Vec<(&str, u64)> = Vec::new();
    for name in names {
        match counts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    counts
}

macro_rules! metrics {
    ($($name:literal $kind:ident $help:literal $samples:expr;)+) => {
        /// Every family, in the order in which it is written.
        pub(crate) static METRICS: &[Metric] = &[$(Metric {
            name: concat!("okdb_", $name),
            kind: stringify!($kind),
            help: $help,
            samples: $samples,
        }),+];
    };
}

metrics! {
    "up" gauge "1: somebody answers." |_, out| out.one(1);
    "build_info" gauge "1, labelled with the program's version."
        |scene, out| out.of(&[("version", &scene.version)], 1);
    "uptime_seconds" gauge "How long the server as a whole has been up."
        |scene, out| out.one(milli(scene.uptime_ms));
    "workers" gauge "Slots by state; each state that a slot can be in is told."
        |scene, out| for state in SlotState::ALL {
            let count = scene.slots.iter().filter(|(_, row, _)| row.state == state).count();
            out.of(&[("state", state.name())], count as u64);
        };
    "worker_restarts_total" counter "Workers started because another one had died, by slot."
        |scene, out| for (slot, row, _) in &scene.slots {
            out.of(&[("slot", &slot.to_string())], row.restarts);
        };
    "processes" gauge "Living processes of the root, by role."
        |scene, out| for (role, count) in counted(scene.living().map(|row| row.role.name())) {
            out.of(&[("role", role)], count);
        };
    "requests_total" counter "Requests answered, by slot."
        |scene, out| per_slot(scene, out, |_, row| row.requests.into());
    "request_errors_total" counter "Requests of these that failed by our fault, by slot."
        |scene, out| per_slot(scene, out, |_, row| row.errors.into());
    "request_duration_seconds" histogram "From a request's parsed head to the end of its answer."
        |scene, out| {
            let counts: [u64; LATENCY_BUCKETS] = std::array::from_fn(|bucket| {
                scene.rows.iter().map(|row| row.latency.get(bucket).copied().unwrap_or(0)).sum()
            });
            let bound = |bucket| latency_bucket_max_us(bucket).map(|us| micro(us).0);
            out.histogram(&counts, bound, micro(scene.total(|row| row.latency_total_us)));
        };
    "requests_in_flight" gauge "Requests that are being answered."
        |scene, out| out.one(scene.living().map(|row| row.in_flight).sum::<u64>());
    "connections_open" gauge "Open client connections."
        |scene, out| out.one(scene.living().map(|row| row.connections).sum::<u64>());
    "received_bytes_total" counter "Bytes of request bodies."
        |scene, out| out.one(scene.total(|row| row.bytes_in));
    "sent_bytes_total" counter "Bytes of answers' bodies."
        |scene, out| out.one(scene.total(|row| row.bytes_out));
    "commits_total" counter "Commits of the store."
        |scene, out| out.one(scene.total(|row| row.commits));
    "operations_total" counter "Writes in these commits."
        |scene, out| out.one(scene.total(|row| row.operations));
    "syncs_total" counter "Commits of these that waited for the disk."
        |scene, out| out.one(scene.total(|row| row.syncs));
    "commit_operations" histogram "Writes that share one commit."
        |scene, out| {
            let counts: [u64; BATCH_BUCKETS] = std::array::from_fn(|bucket| {
                scene.rows.iter().map(|row| row.batches.get(bucket).copied().unwrap_or(0)).sum()
            });
            let bound = |bucket| batch_bucket_max(bucket).map(|operations| operations.to_string());
            out.histogram(&counts, bound, scene.total(|row| row.operations).into());
        };
    "write_lock_held_seconds" gauge "How long a living process has held an environment's write lock; nothing where nobody does."
        |scene, out| for row in scene.living() {
            let pid = row.owner.map_or(0, |owner| owner.pid).to_string();
            for held in &row.write_locks {
                let labels = [("pid", pid.as_str()), ("role", row.role.name()), ("env", &scene.env_name(held.env))];
                out.of(&labels, milli(scene.now_ms.saturating_sub(held.since_ms)));
            }
        };
    "event_loop_lag_seconds" gauge "How late a worker's event loop woke up last, by slot."
        |scene, out| per_living_slot(scene, out, |_, row| micro(row.loop_lag_us));
    "heartbeat_age_seconds" gauge "How long ago a worker's event loop gave its last sign of life, by slot."
        |scene, out| per_living_slot(scene, out, |scene, row| milli(scene.now_ms.saturating_sub(row.heartbeat_ms)));
    "resident_bytes" gauge "Resident memory of a slot's workers; pages that they share count in each."
        |scene, out| per_living_slot(scene, out, |_, row| row.rss_bytes.into());
    "pokes_sent_total" counter "Datagrams of the bus that were sent."
        |scene, out| out.one(scene.total(|row| row.pokes_sent));
    "pokes_received_total" counter "Valid datagrams of the bus that were received."
        |scene, out| out.one(scene.total(|row| row.pokes_received));
    "pokes_skipped_total" counter "Datagrams of the bus that were not sent, because the peer had not looked since an earlier one."
        |scene, out| out.one(scene.total(|row| row.pokes_skipped));
    "bus_dropped_total" counter "Datagrams that failed a check, and so came from a stranger."
        |scene, out| out.one(scene.total(|row| row.bus_dropped));
    "stale_readers_total" counter "Reader slots of dead processes that were cleared."
        |scene, out| out.one(scene.stale_readers);
    "readers" gauge "Reader slots of the store that have been in use at a time, by environment."
        |scene, out| per_env(scene, out, |env| env.readers);
    "map_used_bytes" gauge "Bytes in pages of live data, by environment."
        |scene, out| per_env(scene, out, |env| env.bytes.saturating_sub(env.reclaimable));
    "map_size_bytes" gauge "Bytes that an environment can grow to."
        |scene, out| per_env(scene, out, |env| env.map_size);
    "file_bytes" gauge "Bytes of an environment's data file."
        |scene, out| per_env(scene, out, |env| env.bytes);
    "clock" gauge "An environment's clock: one more at each change."
        |scene, out| per_env(scene, out, |env| env.clock);
}

/// The body of `/metrics`.
pub(crate) fn render(store: &Store, snapshot: &ClusterSnapshot) -> String {
    render_scene(&Scene::new(store, snapshot))
}

fn render_scene(scene: &Scene) -> String {
    let mut text = String::with_capacity(16 * 1_024);
    for metric in METRICS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {} {}", metric.name, metric.help);
        let _ = writeln!(text, "# TYPE {} {}", metric.name, metric.kind);
        (metric.samples)(
            scene,
            &mut Samples {
                name: metric.name,
                text: &mut text,
            },
        );
    }
    text
}

#[cfg(test)]
#[path = "metrics/tests.rs"]
mod tests;
