//! Limits: how many jobs a queue takes from producers.
//!
//! Counting a long queue for each new job would cost most when the database has the most to do. So a producer counts
//! now and then, and each count lets it through with a part of the room, to be used within a second. The nearer the
//! limit, the smaller the part, down to a job a count; a full queue is not counted again for a tenth of a second.
//!
//! Several producers at once may exceed a limit by a part of the room each, when they begin, and by one job each, when
//! the queue is full. The limit does not hold for jobs that arrive as messages, retries, schedules and redriven jobs:
//! these exist already, or the stream bounds them.
//!
//! Submissions that stand in the stream take room, too: those that a scan has read there, less the deliveries since
//! then, which the producer asks NATS for. Where NATS does not say, they take none: a lower bound refuses no job
//! wrongly.
//!
//! Invariants, each held by the test of that name:
//!
//! - `one_producer_never_exceeds_the_limit`
//! - `a_thousand_enqueues_at_once_fill_a_queue_to_its_limit`
//! - `batches_over_the_same_limited_queues_never_deadlock`
//! - `without_postgres_every_caller_of_a_limited_queue_is_answered_within_one_deadline`

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    sync::Notify,
    time::{timeout, timeout_at},
};

use crate::{
    enqueue::insert::EnqueueError,
    nats::{Nats, Unseen, waiting::left},
    observe::{metrics, repeats},
    store::{QueueLimit, Store, StoreError},
};

/// How long the limits that were read hold.
const LIMITS_LAST: Duration = Duration::from_secs(1);
/// How long a count holds.
const COUNT_LASTS: Duration = Duration::from_secs(1);
/// How long a queue counts as full.
const FULL_LASTS: Duration = Duration::from_millis(100);
/// How long to wait for the jobs on their way before the next count.
const LANDED_WITHIN: Duration = Duration::from_millis(20);
/// How long to wait for them in all. A job that has not landed by then may wait for another transaction.
const LANDED_MAX: Duration = Duration::from_millis(500);
/// How long a failed count holds: its error answers the callers that waited for it, and those that come just after.
const FAILURE_LASTS: Duration = Duration::from_millis(100);
/// How long NATS may take to say how many messages it has delivered.
const DELIVERIES_WITHIN: Duration = Duration::from_millis(500);
/// How long NATS is not asked after a denial: it logs an error for each request.
const DENIAL_LASTS: Duration = Duration::from_mins(10);
/// One count lets through this part of the room: a tenth.
const PART: u64 = 10;

/// A count of a queue with a limit.
#[derive(Debug, Clone, Copy)]
struct Counted {
    queued: u64,
    /// How many more jobs this count lets through.
    left: u64,
    /// The number of jobs that did not fit.
    too_many: Option<u64>,
    at: Instant,
}

/// A count's answer to new jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Admitted,
    Full { queued: u64 },
    CountAgain,
}

impl Counted {
    fn new(queued: u64, limit: u64, jobs: u64, at: Instant) -> Self {
        let room = limit.saturating_sub(queued);
        let fit = jobs <= room;
        let left = if fit { jobs.max(room / PART) } else { 0 };
        Self { queued, left, too_many: (!fit).then_some(jobs), at }
    }

    fn admit(&mut self, jobs: u64, now: Instant) -> Answer {
        let age = now.saturating_duration_since(self.at);
        if jobs <= self.left && age < COUNT_LASTS {
            self.left -= jobs;
            return Answer::Admitted;
        }
        let is_full = self.too_many.is_some_and(|too_many| jobs >= too_many) && age < FULL_LASTS;
        if is_full { Answer::Full { queued: self.queued } } else { Answer::CountAgain }
    }
}

#[derive(Debug, Default)]
struct Known {
    limits: HashMap<String, QueueLimit>,
    read_at: Option<Instant>,
    denied_at: Option<Instant>,
    queues: HashMap<String, Arc<OfQueue>>,
}

/// One process's view of a queue with a limit.
#[derive(Debug, Default)]
struct OfQueue {
    /// Held during a count: the callers that come meanwhile use its result.
    counted: tokio::sync::Mutex<LastCount>,
    /// Jobs that were admitted, and are not inserted yet: a count may not have seen them.
    on_their_way: AtomicU64,
    /// Notified whenever jobs have landed: their rows exist, or never will.
    landed: Notify,
}

/// The result of the last count.
#[derive(Debug, Default)]
struct LastCount {
    counted: Option<Counted>,
    failed: Option<(Instant, StoreError)>,
}

/// Admitted jobs. Dropped when their rows exist, or never will.
#[derive(Debug, Default)]
#[must_use = "the jobs are on their way until this is dropped"]
pub(crate) struct Admitted(Option<(Arc<OfQueue>, u64)>);

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Some((queue, jobs)) = &self.0 {
            queue.on_their_way.fetch_sub(*jobs, Ordering::AcqRel);
            queue.landed.notify_one();
        }
    }
}

/// The limits of all queues, as one process knows them. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    store: Store,
    nats: Nats,
    known: Arc<Mutex<Known>>,
}

impl Limits {
    pub(crate) fn new(store: Store, nats: Nats) -> Self {
        Self { store, nats, known: Arc::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits this number of jobs, all or none, and notes that they are on their way. Answers by `until`.
    pub(crate) async fn admit(
        &self,
        queue: &str,
        jobs: usize,
        until: Instant,
    ) -> Result<Admitted, EnqueueError> {
        let Some(of_queue) = self.in_time(until, self.limit(queue)).await? else {
            return Ok(Admitted::default());
        };
        let limit = of_queue.max_queued;
        let came_at = Instant::now();
        let jobs = jobs as u64;
        let of = self.known().queues.entry(queue.to_owned()).or_default().clone();
        let mut last = self.in_time(until, async { Ok(of.counted.lock().await) }).await?;
        let mut answer =
            last.counted.as_mut().map_or(Answer::CountAgain, |counted| counted.admit(jobs, Instant::now()));
        // A count failed while this caller waited; each of many callers would wait as long again.
        if answer == Answer::CountAgain
            && let Some((failed_at, error)) = &last.failed
            && (*failed_at >= came_at || failed_at.elapsed() < FAILURE_LASTS)
        {
            return Err(error.clone().into());
        }
        let landed_by = until.min(Instant::now() + LANDED_MAX);
        while answer == Answer::CountAgain {
            // Read before the count: jobs that are inserted meanwhile count twice rather than not at all.
            let on_their_way = of.on_their_way.load(Ordering::Acquire);
            let counted = self.in_time(until, self.store.count_queued(queue, limit.saturating_add(1))).await;
            let queued = match counted {
                // In this order: a submission that becomes a job in between counts once, or not at all.
                Ok(queued) => queued.saturating_add(self.standing(&of_queue, until).await),
                Err(error) => {
                    last.failed = Some((Instant::now(), error.clone()));
                    return Err(error.into());
                }
            };
            let taken = queued.saturating_add(on_their_way);
            let may_fit = taken.saturating_add(jobs) > limit && queued.saturating_add(jobs) <= limit;
            if may_fit && Instant::now() < landed_by {
                // There may be room: the count may have seen some of the jobs on their way.
                drop(timeout(LANDED_WITHIN, of.landed.notified()).await);
                continue;
            }
            let mut new = Counted::new(taken, limit, jobs, Instant::now());
            answer = match new.admit(jobs, new.at) {
                Answer::CountAgain => Answer::Full { queued },
                answer => answer,
            };
            *last = LastCount { counted: Some(new), failed: None };
        }
        match answer {
            Answer::Admitted => {
                of.on_their_way.fetch_add(jobs, Ordering::AcqRel);
                drop(last);
                Ok(Admitted(Some((of, jobs))))
            }
            Answer::Full { .. } | Answer::CountAgain => {
                let queued = last.counted.map_or(limit, |counted| counted.queued);
                metrics::refused_enqueue(queue, jobs);
                Err(EnqueueError::QueueFull { queue: queue.to_owned(), jobs, queued, max_queued: limit })
            }
        }
    }

    /// Runs a part of one call. All parts share one deadline.
    async fn in_time<T>(
        &self,
        until: Instant,
        part: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        timeout_at(until.into(), part).await.unwrap_or_else(|_| Err(self.store.no_answer().into()))
    }

    /// Returns how many submissions stand in the stream, at least.
    async fn standing(&self, of: &QueueLimit, until: Instant) -> u64 {
        let Some(standing) = of.standing.as_ref().filter(|standing| standing.messages > 0) else { return 0 };
        let is_denied = self.known().denied_at.is_some_and(|at| at.elapsed() < DENIAL_LASTS);
        if is_denied || !self.nats.is_connected() {
            return 0;
        }
        let until = until.min(Instant::now() + DELIVERIES_WITHIN);
        match timeout_at(until.into(), self.nats.delivered(&of.queue)).await {
            Ok(Ok(delivered)) => left(standing, &delivered),
            Ok(Err(why)) => {
                if matches!(why, Unseen::Denied(_)) {
                    self.known().denied_at = Some(Instant::now());
                }
                tracing::debug!(?why, "NATS did not say how much it has delivered; submissions take no room");
                0
            }
            Err(_) => 0,
        }
    }

    async fn limit(&self, queue: &str) -> Result<Option<QueueLimit>, StoreError> {
        let now = Instant::now();
        {
            let mut known = self.known();
            let is_new =
                known.read_at.is_some_and(|read_at| now.saturating_duration_since(read_at) < LIMITS_LAST);
            if is_new {
                return Ok(known.limits.get(queue).cloned());
            }
            // The first caller asks; once there was an answer, the others use it meanwhile.
            if known.read_at.is_some() {
                known.read_at = Some(now);
            }
        }
        let limits = match self.store.queue_limits().await {
            // Without the right to read limits, this producer has none.
            Err(error) if error.is_denied() => {
                tracing::debug!(%error, "the limits of queues were not read; this producer enqueues without limits");
                HashMap::new()
            }
            Err(error @ StoreError::Refused(_)) => {
                if let Some(left_out) = repeats::tell("limits", &error) {
                    tracing::warn!(%error, left_out,
                        "the limits of queues were not read; this producer goes on with those that it knows");
                }
                return Ok(self.known().limits.get(queue).cloned());
            }
            limits => limits?.into_iter().map(|of| (of.queue.clone(), of)).collect(),
        };
        let mut known = self.known();
        known.queues.retain(|queue, _| limits.contains_key(queue));
        (known.limits, known.read_at) = (limits, Some(now));
        Ok(known.limits.get(queue).cloned())
    }
}

#[cfg(test)]
mod tests;
