//! Metrics: tenure's counters, gauges and histograms, through the [`metrics`](https://docs.rs/metrics) facade.
//!
//! There are three ways to read them, each to be set up before the worker starts:
//!
//! - With the feature `http` and `TENURE_LISTEN`, the worker itself serves them to Prometheus.
//! - With the same feature, [`install`] records them, and your own server answers with [`Metrics::render`].
//! - A recorder of your own records them among your program's. Give it [`BUCKETS`]: without buckets Prometheus's
//!   recorder makes summaries, in which the shipped dashboard and alerts find nothing.
//!
//! ```
//! # #[cfg(feature = "http")] {
//! use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
//!
//! let mut builder = PrometheusBuilder::new();
//! for (name, buckets) in tenure::metrics::BUCKETS {
//!     builder = builder.set_buckets_for_metric(Matcher::Full(name.into()), buckets).expect("there are buckets");
//! }
//! # }
//! ```

#[cfg(feature = "http")]
mod recorder;

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock, PoisonError, RwLock},
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, Label, SharedString, counter, gauge, histogram};

#[cfg(feature = "http")]
pub use self::recorder::{InstallError, Metrics, install};
use crate::{
    job::attempt::{AttemptOutcome, Category, Reason, RecoveryPath},
    observe::rates::QueueRates,
};

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Counter,
    Gauge,
    Histogram,
}

/// Bounds from a claim's round trip to a job of hours.
const SECONDS: [f64; 16] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0, 3_600.0,
    21_600.0,
];
const ITEMS: [f64; 8] = [1.0, 2.0, 4.0, 16.0, 64.0, 256.0, 512.0, 1_024.0];

/// Each histogram, and the upper bounds of its buckets. The shipped dashboard and alerts need these bounds.
pub const BUCKETS: [(&str, &[f64]); 6] = [
    ("tenure_job_wait_seconds", &SECONDS),
    ("tenure_job_run_seconds", &SECONDS),
    ("tenure_pickup_seconds", &SECONDS),
    ("tenure_reset_to_running_seconds", &SECONDS),
    ("tenure_slot_idle_seconds", &SECONDS),
    ("tenure_batch_size", &ITEMS),
];

/// Every metric, and its help text. A test compares the list with the code, the docs, the dashboard and the alerts.
pub(crate) const METRICS: [(&str, Type, &str); 57] = {
    use Type::{Counter, Gauge, Histogram};
    [
        ("tenure_jobs_enqueued_total", Counter, "Jobs created; duplicates by unique key do not count."),
        ("tenure_enqueues_refused_total", Counter, "Enqueues refused because the queue is full."),
        ("tenure_deliveries_total", Counter, "Jobs in messages that NATS delivered."),
        ("tenure_redeliveries_total", Counter, "Jobs in messages that NATS redelivered."),
        ("tenure_claims_total", Counter, "Claims, by the database's answer."),
        ("tenure_attempts_total", Counter, "Attempts that ended, by outcome."),
        ("tenure_tagged_attempts_total", Counter, "Attempts that ended, by the tags of their jobs."),
        ("tenure_lacked_keys_total", Counter, "Jobs put off by a worker that lacks a key."),
        ("tenure_dead_letters_total", Counter, "Jobs and messages that became dead letters."),
        ("tenure_refused_writes_total", Counter, "Stale writes that the fencing token stopped."),
        ("tenure_recoveries_total", Counter, "Jobs reset, released or republished."),
        ("tenure_published_total", Counter, "Jobs whose message was published."),
        ("tenure_terminated_messages_total", Counter, "Messages that will never become a job."),
        ("tenure_blocked_handlers_total", Counter, "Handlers that kept their thread for over a second."),
        ("tenure_cut_off_jobs_total", Counter, "Handlers stopped because their worker could not write."),
        ("tenure_cancellations_total", Counter, "Cancellations, of queued or running jobs."),
        ("tenure_redriven_total", Counter, "Dead letters that went back to the queue."),
        ("tenure_purged_total", Counter, "Rows that retention removed."),
        ("tenure_schedule_ticks_total", Counter, "Ticks of schedules that were due."),
        ("tenure_hook_failures_total", Counter, "Events that a hook of the program did not handle."),
        ("tenure_panics_total", Counter, "Panics of tenure's internal tasks."),
        ("tenure_database_errors_total", Counter, "Database calls that failed."),
        (
            "tenure_gateway_requests_total",
            Counter,
            "Requests of workers and producers over the worker protocol.",
        ),
        ("tenure_job_wait_seconds", Histogram, "Queue latency: from due until claimed."),
        ("tenure_job_run_seconds", Histogram, "How long attempts ran."),
        ("tenure_pickup_seconds", Histogram, "From delivery until the handler starts."),
        ("tenure_reset_to_running_seconds", Histogram, "From a reset until the job runs again."),
        ("tenure_slot_idle_seconds", Histogram, "How long a free slot waited for a job."),
        ("tenure_batch_size", Histogram, "Items in one statement."),
        ("tenure_active_jobs", Gauge, "Jobs that run on this worker."),
        ("tenure_slots", Gauge, "Jobs that may run on this worker at once."),
        ("tenure_slots_free", Gauge, "Jobs of the queue that could start on this worker now."),
        ("tenure_postgres_up", Gauge, "1 while this worker reaches Postgres."),
        ("tenure_nats_up", Gauge, "1 while this worker reaches NATS."),
        ("tenure_ready", Gauge, "1 while this worker takes jobs."),
        ("tenure_draining", Gauge, "1 while this worker shuts down."),
        ("tenure_build_info", Gauge, "Always 1."),
        ("tenure_queue_jobs", Gauge, "Live jobs of the fleet: due, scheduled, processing; and submissions."),
        ("tenure_queue_held", Gauge, "Jobs of the queue that their lanes hold, due ones and later ones."),
        ("tenure_lanes_waiting", Gauge, "Lanes of the queue that hold a job whose time has come."),
        ("tenure_queue_oldest_due_seconds", Gauge, "How long the oldest due job or submission has waited."),
        ("tenure_queue_paused", Gauge, "1 while the queue is paused."),
        ("tenure_queue_max_running", Gauge, "How many jobs of the queue may run at once in the fleet."),
        ("tenure_queue_max_queued", Gauge, "How many jobs may be queued in the queue."),
        ("tenure_unserved_jobs", Gauge, "Jobs and submissions that no live worker runs."),
        ("tenure_put_off_jobs", Gauge, "Jobs that workers without their kind have put off."),
        (
            "tenure_kind_quarantined",
            Gauge,
            "1 while the kind is in quarantine: most of its attempts have failed.",
        ),
        ("tenure_misnamed_messages", Gauge, "Messages whose subject names no valid queue or kind."),
        (
            "tenure_findings",
            Gauge,
            "What `tenure doctor` finds wrong by this check, as the last scan saw it.",
        ),
        ("tenure_relay_lag_seconds", Gauge, "How long a due job has waited to be published."),
        ("tenure_dead_jobs", Gauge, "Dead letters in the database."),
        ("tenure_dead_group_jobs", Gauge, "Dead letters of the last hour whose errors read alike."),
        ("tenure_workers", Gauge, "Workers alive, by their rows in Postgres."),
        ("tenure_stats_age_seconds", Gauge, "How long ago the fleet was measured."),
        (
            "tenure_scanner_held_back",
            Gauge,
            "1 while a grace or the breaker keeps the scanner from resetting.",
        ),
        ("tenure_nats_pending", Gauge, "Messages of the queue that NATS has not delivered yet."),
        ("tenure_nats_unacknowledged", Gauge, "Messages delivered and not acknowledged."),
    ]
};

/// The most names of queues, and of kinds, that have series of their own in one process. A series lasts until its
/// process ends, and any client of NATS may make names up.
pub(crate) const NAMES_MAX: usize = 2_000;
/// The label of the names that came later.
pub(crate) const OTHER: &str = "other";

/// The names that are labels: the first ones that this process met, and those that it serves.
#[derive(Debug, Default)]
struct Names(RwLock<HashSet<Arc<str>>>);

static QUEUES: LazyLock<Names> = LazyLock::new(Names::default);
static KINDS: LazyLock<Names> = LazyLock::new(Names::default);

impl Names {
    /// Returns the label of a name: itself, or [`OTHER`].
    fn label(&self, name: &str) -> SharedString {
        self.within(NAMES_MAX, name)
    }

    /// Returns the label of a name that this process serves: always itself.
    fn own(&self, name: &str) -> SharedString {
        self.within(usize::MAX, name)
    }

    fn within(&self, most: usize, name: &str) -> SharedString {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = known.get(name) {
            return name.clone().into();
        }
        let has_room = known.len() < most;
        drop(known);
        if has_room {
            let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
            // Others may have come meanwhile.
            if known.len() < most {
                let name: Arc<str> = name.into();
                known.insert(name.clone());
                return name.into();
            }
        }
        OTHER.into()
    }
}

/// Whether a queue has series of its own.
pub(crate) fn has_series(queue: &str) -> bool {
    &*QUEUES.label(queue) == queue
}

/// Counts jobs that an enqueue created; duplicates by unique key do not count.
pub(crate) fn enqueued(queue: &str, jobs: usize) {
    counter!("tenure_jobs_enqueued_total", "queue" => QUEUES.label(queue)).increment(jobs as u64);
}

/// Counts enqueues that a full queue refused.
pub(crate) fn refused_enqueue(queue: &str, jobs: u64) {
    counter!("tenure_enqueues_refused_total", "queue" => QUEUES.label(queue)).increment(jobs);
}

/// Counts claims, by the database's answer.
pub(crate) fn claims(result: &'static str, n: usize) {
    counter!("tenure_claims_total", "result" => result).increment(n as u64);
}

/// The metrics of every job of one queue, looked up once.
#[derive(Debug)]
pub(crate) struct QueueMeasures {
    pub(crate) deliveries: Counter,
    pub(crate) redeliveries: Counter,
    pub(crate) wait: Histogram,
    pub(crate) pickup: Histogram,
    pub(crate) reset_to_running: Histogram,
    pub(crate) slot_idle: Histogram,
    pub(crate) rates: QueueRates,
}

impl QueueMeasures {
    pub(crate) fn new(queue: &str) -> Self {
        Self::of(&QUEUES.label(queue))
    }

    /// Of a queue that this process serves.
    pub(crate) fn served(queue: &str) -> Self {
        Self::of(&QUEUES.own(queue))
    }

    fn of(queue: &SharedString) -> Self {
        let queue = || queue.clone();
        Self {
            deliveries: counter!("tenure_deliveries_total", "queue" => queue()),
            redeliveries: counter!("tenure_redeliveries_total", "queue" => queue()),
            wait: histogram!("tenure_job_wait_seconds", "queue" => queue()),
            pickup: histogram!("tenure_pickup_seconds", "queue" => queue()),
            reset_to_running: histogram!("tenure_reset_to_running_seconds", "queue" => queue()),
            slot_idle: histogram!("tenure_slot_idle_seconds", "queue" => queue()),
            rates: QueueRates::default(),
        }
    }
}

/// The metrics of every completion of one kind, looked up once.
#[derive(Debug)]
pub(crate) struct KindMeasures {
    completions: Counter,
    ran: Histogram,
}

impl KindMeasures {
    /// Of a kind that this process has a handler for.
    pub(crate) fn new(kind: &str) -> Self {
        let kind = || KINDS.own(kind);
        Self {
            completions: counter!("tenure_attempts_total", "kind" => kind(), "outcome" => "completed"),
            ran: histogram!("tenure_job_run_seconds", "kind" => kind(), "outcome" => "completed"),
        }
    }
}

/// Counts and times an attempt that ended.
pub(crate) fn settled(kind: &str, outcome: AttemptOutcome, ran: Duration, measures: Option<&KindMeasures>) {
    if let Some(measures) = measures.filter(|_| outcome == AttemptOutcome::Completed) {
        measures.completions.increment(1);
        measures.ran.record(ran);
        return;
    }
    let (kind, outcome) = (|| KINDS.label(kind), outcome.as_str());
    counter!("tenure_attempts_total", "kind" => kind(), "outcome" => outcome).increment(1);
    histogram!("tenure_job_run_seconds", "kind" => kind(), "outcome" => outcome).record(ran);
}

/// Counts an attempt of a job with a tag.
pub(crate) fn tagged(key: &str, value: &str, kind: &str, outcome: AttemptOutcome) {
    counter!(
        "tenure_tagged_attempts_total",
        "tag" => key.to_owned(), "value" => value.to_owned(), "kind" => KINDS.label(kind),
        "outcome" => outcome.as_str()
    )
    .increment(1);
}

/// Counts an attempt whose worker was lost.
pub(crate) fn lost(kind: &str) {
    counter!("tenure_attempts_total", "kind" => KINDS.label(kind), "outcome" => AttemptOutcome::Lost.as_str())
        .increment(1);
}

/// Counts a job that a worker put off, because it could not open what the job carries.
pub(crate) fn lacked_key(kind: &str) {
    counter!("tenure_lacked_keys_total", "kind" => KINDS.label(kind)).increment(1);
}

/// Counts a job or message that became a dead letter.
pub(crate) fn died(category: Category) {
    counter!("tenure_dead_letters_total", "category" => category.as_str()).increment(1);
}

/// Counts jobs that were reset, released or republished, by path and reason.
pub(crate) fn recovered(path: RecoveryPath, reason: Reason, jobs: usize) {
    counter!("tenure_recoveries_total", "path" => path.as_str(), "reason" => reason.as_str())
        .increment(jobs as u64);
}

/// Counts a write of a worker that no longer owned the job.
pub(crate) fn refused_write(write: &'static str) {
    counter!("tenure_refused_writes_total", "write" => write).increment(1);
}

/// Counts a request to the gateway. `result` is `ok`, or the code of its error.
pub(crate) fn gateway_request(request: &'static str, result: &'static str) {
    counter!("tenure_gateway_requests_total", "request" => request, "result" => result).increment(1);
}

/// Counts messages published for jobs that exist.
pub(crate) fn published(messages: usize) {
    counter!("tenure_published_total").increment(messages as u64);
}

/// Counts an event that a hook did not handle, because it was dropped or the hook panicked.
pub(crate) fn hook_failed(hook: &'static str, why: &'static str) {
    counter!("tenure_hook_failures_total", "hook" => hook, "why" => why).increment(1);
}

/// Counts a panic of an internal task.
pub(crate) fn panicked(task: &'static str) {
    counter!("tenure_panics_total", "task" => task).increment(1);
}

/// Counts a message that will never become a job, by reason.
pub(crate) fn terminated(reason: &'static str) {
    counter!("tenure_terminated_messages_total", "reason" => reason).increment(1);
}

/// Counts a handler that kept its thread for longer than a second.
pub(crate) fn blocked(kind: &str) {
    counter!("tenure_blocked_handlers_total", "kind" => KINDS.label(kind)).increment(1);
}

/// Counts a handler that its worker stopped because it could not write for too long.
pub(crate) fn cut_off(kind: &str) {
    counter!("tenure_cut_off_jobs_total", "kind" => KINDS.label(kind)).increment(1);
}

/// Counts cancellations, by whether the jobs were queued or running.
pub(crate) fn cancelled(of: &'static str, jobs: usize) {
    counter!("tenure_cancellations_total", "of" => of).increment(jobs as u64);
}

/// Counts dead letters that went back to the queue.
pub(crate) fn redriven(jobs: usize) {
    counter!("tenure_redriven_total").increment(jobs as u64);
}

/// Counts rows that retention removed.
pub(crate) fn purged(of: &'static str, rows: u64) {
    counter!("tenure_purged_total", "of" => of).increment(rows);
}

/// Counts ticks of schedules: each enqueued a job, or was missed and skipped.
pub(crate) fn ticked(result: &'static str, ticks: usize) {
    counter!("tenure_schedule_ticks_total", "result" => result).increment(ticks as u64);
}

/// Counts a database call that failed, by the class of Postgres's error, or by the way in which no answer came.
pub(crate) fn database_error(class: &str) {
    counter!("tenure_database_errors_total", "class" => class.to_owned()).increment(1);
}

/// Records the number of items in one statement.
#[expect(clippy::cast_precision_loss, reason = "a batch has a thousand items")]
pub(crate) fn batch(of: &'static str, items: usize) {
    histogram!("tenure_batch_size", "of" => of).record(items as f64);
}

/// The gauges of one tenure, which tenure sets by itself. In a process of several cells, each series has the label
/// `cell`.
#[doc(hidden)]
#[derive(Debug, Clone, Default)]
pub struct Gauges {
    cell: Option<String>,
}

impl Gauges {
    /// For the cell of this name, or for the only one.
    pub fn new(cell: Option<&str>) -> Self {
        Self { cell: cell.map(str::to_owned) }
    }

    fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        let cell = self.cell.as_ref().map(|cell| ("cell", cell.as_str()));
        let labels = labels.iter().copied().chain(cell);
        let labels: Vec<_> = labels.map(|(label, is)| Label::new(label, is.to_owned())).collect();
        gauge!(name, labels)
    }

    /// Sets whether this worker is ready, and whether it is shutting down.
    pub(crate) fn worker(&self, is_ready: bool, is_draining: bool) {
        self.gauge("tenure_ready", &[]).set(f64::from(u8::from(is_ready)));
        self.gauge("tenure_draining", &[]).set(f64::from(u8::from(is_draining)));
        self.gauge("tenure_build_info", &[("version", env!("CARGO_PKG_VERSION"))]).set(1.0);
    }

    /// Sets whether this process reaches each server.
    pub fn servers(&self, postgres_up: bool, nats_up: bool) {
        self.gauge("tenure_postgres_up", &[]).set(f64::from(u8::from(postgres_up)));
        self.gauge("tenure_nats_up", &[]).set(f64::from(u8::from(nats_up)));
    }

    /// Sets how many jobs of a queue run on this worker, how many may, and how many more could start now.
    #[expect(clippy::cast_precision_loss, reason = "a worker has fewer slots than 2^52")]
    pub(crate) fn slots(&self, queue: &str, active: usize, slots: usize, free: usize) {
        self.gauge("tenure_slots_free", &[("queue", queue)]).set(free as f64);
        self.gauge("tenure_active_jobs", &[("queue", queue)]).set(active as f64);
        self.gauge("tenure_slots", &[("queue", queue)]).set(slots as f64);
    }

    /// Sets the measurements of a queue by the last scan. The number of submissions is NaN while it is not known.
    #[expect(clippy::cast_precision_loss, reason = "jobs are fewer than 2^52")]
    pub(crate) fn queue(
        &self,
        queue: &str,
        [due, scheduled, processing]: [i64; 3],
        submitted: Option<i64>,
        oldest_due_s: f64,
        is_paused: bool,
    ) {
        self.gauge("tenure_queue_jobs", &[("queue", queue), ("state", "submitted")])
            .set(submitted.map_or(f64::NAN, |submitted| submitted as f64));
        for (state, jobs) in [("due", due), ("scheduled", scheduled), ("processing", processing)] {
            self.gauge("tenure_queue_jobs", &[("queue", queue), ("state", state)]).set(jobs as f64);
        }
        self.gauge("tenure_queue_oldest_due_seconds", &[("queue", queue)]).set(oldest_due_s);
        self.gauge("tenure_queue_paused", &[("queue", queue)]).set(f64::from(u8::from(is_paused)));
    }

    /// Sets how many jobs the lanes of a queue hold, and how many of its lanes hold one that is due.
    #[expect(clippy::cast_precision_loss, reason = "jobs are fewer than 2^52")]
    pub(crate) fn lanes(&self, queue: &str, held: i64, waiting: i64) {
        self.gauge("tenure_queue_held", &[("queue", queue)]).set(held as f64);
        self.gauge("tenure_lanes_waiting", &[("queue", queue)]).set(waiting as f64);
    }

    /// Sets the limits of a queue; infinite: none.
    #[expect(clippy::cast_precision_loss, reason = "limits are smaller than 2^52")]
    pub(crate) fn limits(&self, queue: &str, max_running: Option<i32>, max_queued: Option<i64>) {
        self.gauge("tenure_queue_max_running", &[("queue", queue)])
            .set(max_running.map_or(f64::INFINITY, f64::from));
        self.gauge("tenure_queue_max_queued", &[("queue", queue)])
            .set(max_queued.map_or(f64::INFINITY, |most| most as f64));
    }

    /// Sets how many jobs of a kind wait because workers that do not know the kind got them.
    #[expect(clippy::cast_precision_loss, reason = "jobs are fewer than 2^52")]
    pub(crate) fn put_off(&self, queue: &str, kind: &str, jobs: i64) {
        self.gauge("tenure_put_off_jobs", &[("queue", queue), ("kind", kind)]).set(jobs as f64);
    }

    /// Sets how many dead letters of the last hour a group has.
    #[expect(clippy::cast_precision_loss, reason = "rows are fewer than 2^52")]
    pub(crate) fn dead_group(&self, queue: &str, kind: &str, category: &str, group: &str, jobs: i64) {
        let labels = [("queue", queue), ("kind", kind), ("category", category), ("group", group)];
        self.gauge("tenure_dead_group_jobs", &labels).set(jobs as f64);
    }

    /// Sets whether a kind is in quarantine.
    pub(crate) fn quarantine(&self, kind: &str, is_quarantined: bool) {
        self.gauge("tenure_kind_quarantined", &[("kind", kind)]).set(f64::from(u8::from(is_quarantined)));
    }

    /// Sets how much is wrong by a check of doctor.
    pub(crate) fn findings(&self, check: &'static str, found: u32) {
        self.gauge("tenure_findings", &[("check", check)]).set(f64::from(found));
    }

    /// Sets how many messages of the stream no worker can read.
    #[expect(clippy::cast_precision_loss, reason = "messages are fewer than 2^52")]
    pub(crate) fn misnamed(&self, messages: i64) {
        self.gauge("tenure_misnamed_messages", &[]).set(messages as f64);
    }

    /// Sets how many jobs and submissions of a kind wait that no live worker runs.
    #[expect(clippy::cast_precision_loss, reason = "jobs are fewer than 2^52")]
    pub(crate) fn unserved(&self, queue: &str, kind: &str, waiting: i64) {
        self.gauge("tenure_unserved_jobs", &[("queue", queue), ("kind", kind)]).set(waiting as f64);
    }

    /// Sets the measurements of the fleet by the last scan.
    #[expect(clippy::cast_precision_loss, reason = "rows are fewer than 2^52")]
    pub(crate) fn fleet(&self, relay_lag_s: f64, dead: i64, workers: i64, is_held_back: bool) {
        self.gauge("tenure_relay_lag_seconds", &[]).set(relay_lag_s);
        self.gauge("tenure_dead_jobs", &[]).set(dead as f64);
        self.gauge("tenure_workers", &[]).set(workers as f64);
        self.gauge("tenure_scanner_held_back", &[]).set(f64::from(u8::from(is_held_back)));
    }

    /// Sets how long ago the fleet was measured.
    pub(crate) fn measured(&self, age_s: f64) {
        self.gauge("tenure_stats_age_seconds", &[]).set(age_s);
    }

    /// Sets the numbers of a queue's messages that NATS reports.
    #[expect(clippy::cast_precision_loss, reason = "messages are fewer than 2^52")]
    pub(crate) fn messages(&self, queue: &str, pending: u64, unacknowledged: u64) {
        self.gauge("tenure_nats_pending", &[("queue", queue)]).set(pending as f64);
        self.gauge("tenure_nats_unacknowledged", &[("queue", queue)]).set(unacknowledged as f64);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;
    use crate::proof::Counts;

    fn read(path: &str) -> String {
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
    }

    /// Returns the metrics that a text names; the series of a histogram by the histogram's name.
    fn named(text: &str) -> BTreeSet<String> {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let names = text.match_indices("tenure_").filter_map(|(at, _)| {
            let before = text[..at].chars().next_back();
            let name: String = text[at..].chars().take_while(|c| is_name(*c)).collect();
            // Not a path, a role of Postgres, or an alert's own name.
            (!before.is_some_and(|c| is_name(c) || c == '-' || c == '.')).then_some(name)
        });
        let histograms: Vec<_> = METRICS.iter().filter(|(_, of, _)| *of == Type::Histogram).collect();
        names
            .map(|name| {
                let part_of = |own: &str| {
                    ["_bucket", "_sum", "_count"].iter().any(|part| name == format!("{own}{part}"))
                };
                histograms
                    .iter()
                    .find(|(own, ..)| part_of(own))
                    .map_or(name.clone(), |(own, ..)| (*own).into())
            })
            .collect()
    }

    fn known() -> BTreeSet<String> {
        METRICS.iter().map(|(name, ..)| (*name).to_owned()).collect()
    }

    /// Strangers may make up more names than a recorder has room for.
    #[test]
    fn made_up_names_count_as_other_and_a_served_one_keeps_its_series() {
        let (counts, names, made_up) = (Counts::default(), Names::default(), 10_000_usize);
        let _guard = counts.record();
        let count = |kind| counter!("attempts", "kind" => kind).increment(1);
        count(names.own("served first"));
        for n in 0..made_up {
            count(names.label(&format!("made-up-{n}")));
        }
        count(names.own("served late"));
        count(names.label("served late"));
        let of = |kind: &str| counts.of(&format!("attempts{{kind={kind}}}"));
        // All names but the late one.
        let others = made_up + 1 - NAMES_MAX;
        assert_eq!((of("served first"), of("served late"), of(OTHER)), (1, 2, others as u64));
        assert_eq!((0..made_up).map(|n| of(&format!("made-up-{n}"))).sum::<u64>(), NAMES_MAX as u64 - 1);
        assert_eq!(names.0.read().unwrap().len(), NAMES_MAX + 1);
    }

    #[test]
    fn every_counter_of_a_queue_or_kind_takes_a_bounded_label() {
        let code = read("src/observe/metrics.rs");
        let (counters, _) = code.split_once("pub struct Gauges").unwrap();
        for (label, names) in [("queue", "QUEUES.label(queue)"), ("kind", "KINDS.label(kind)")] {
            let given: Vec<_> = counters.split(&format!("\"{label}\" => ")).skip(1).collect();
            assert!(given.len() > 5, "{label}");
            for given in given {
                // `queue()` and `kind()` return a label that was looked up once.
                let is_bounded = given.starts_with(names) || given.starts_with(&format!("{label}()"));
                assert!(is_bounded, "{label}: {}", given.lines().next().unwrap());
            }
        }
    }

    #[test]
    fn every_metric_that_the_dashboard_and_the_alerts_name_exists() {
        for path in ["deploy/grafana/tenure.json", "deploy/prometheus/alerts.yaml"] {
            let unknown: Vec<_> = named(&read(path)).difference(&known()).cloned().collect();
            assert!(unknown.is_empty(), "{path} names {unknown:?}");
        }
    }

    #[test]
    fn every_histogram_has_buckets() {
        let histograms = METRICS.iter().filter(|(_, of, _)| *of == Type::Histogram).map(|(name, ..)| *name);
        assert_eq!(
            BUCKETS.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(),
            histograms.collect::<BTreeSet<_>>()
        );
        for (name, buckets) in BUCKETS {
            assert!(buckets.is_sorted() && !buckets.is_empty(), "{name}");
        }
    }

    #[test]
    fn every_alert_leads_to_its_section_of_the_docs() {
        let (alerts, docs) = (read("deploy/prometheus/alerts.yaml"), read("docs/metrics.md"));
        let names: Vec<_> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
        assert!(names.len() > 20);
        for name in names {
            assert!(docs.contains(&format!("\n### {name}\n")), "{name} has no section");
            assert!(
                alerts.contains(&format!("docs/metrics.md#{}\n", name.to_lowercase())),
                "{name} leads elsewhere"
            );
        }
    }

    #[test]
    fn every_metric_is_in_the_docs_the_dashboard_or_the_alerts_and_in_the_code() {
        let docs = read("docs/metrics.md");
        let shown = named(&(read("deploy/grafana/tenure.json") + &read("deploy/prometheus/alerts.yaml")));
        let code = read("src/observe/metrics.rs");
        let (_, code) = code.split_once("];\n    };").or_else(|| code.split_once("]\n};")).unwrap();
        let (code, _) = code.split_once("#[cfg(test)]").unwrap();
        for (name, of, _) in METRICS {
            let rows = docs.matches(&format!("| `{name}` |")).count();
            assert_eq!(rows, 1, "{name} has a row in docs/metrics.md");
            assert!(shown.contains(name), "{name} is shown nowhere");
            assert!(code.contains(&format!("\"{name}\"")), "{name} is never set");
            assert_eq!(name.ends_with("_total"), of == Type::Counter, "{name}");
        }
        assert!(named(&docs).is_subset(&known()), "{:?}", named(&docs).difference(&known()));
        assert!(named(code).is_subset(&known()), "{:?}", named(code).difference(&known()));
    }
}
