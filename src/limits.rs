//! Limits: how many jobs a queue takes from producers.
//!
//! Counting a long queue for each new job would cost most when the database has the most to do. So a producer counts
//! now and then: what it found leaves it a part of the room, to be used within a second. The nearer the limit, the
//! smaller the part, down to a job a count; and a queue that is full is not counted again for a tenth of a second.
//!
//! Several producers at once may exceed a limit by a part of the room each, when they begin, and by one job each, when
//! it is full. Jobs that arrive as messages, retries, schedules and redriven jobs are not counted against it: those
//! jobs exist already, or the stream bounds them.
//!
//! Invariants, each held by the test of that name:
//!
//! - `one_producer_never_exceeds_the_limit`
//! - `a_thousand_enqueues_at_once_fill_a_queue_to_its_limit`

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{sync::Notify, time::timeout};

use crate::{
    insert::EnqueueError,
    metrics,
    store::{Store, StoreError},
};

/// How long the limits themselves are believed.
const LIMITS_LAST: Duration = Duration::from_secs(1);
/// How long a count is.
const COUNT_LASTS: Duration = Duration::from_secs(1);
/// How long a queue is believed to be full.
const FULL_LASTS: Duration = Duration::from_millis(100);
/// How long to wait for those on their way before the next count.
const LANDED_WITHIN: Duration = Duration::from_millis(20);
/// What part of the room one count lets through.
const PART: u64 = 10;

/// What is known of a queue with a limit.
#[derive(Debug, Clone, Copy)]
struct Counted {
    queued: u64,
    /// How many more jobs this count lets through.
    left: u64,
    /// So many at once were too many.
    too_many: Option<u64>,
    at: Instant,
}

/// What a count means for so many new jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Admitted,
    Full { queued: u64 },
    CountAnew,
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
        if is_full { Answer::Full { queued: self.queued } } else { Answer::CountAnew }
    }
}

#[derive(Debug, Default)]
struct Known {
    limits: HashMap<String, u64>,
    read_at: Option<Instant>,
    queues: HashMap<String, Arc<OfQueue>>,
}

/// What is known of a queue with a limit.
#[derive(Debug, Default)]
struct OfQueue {
    /// Held while it is counted: whoever comes meanwhile goes by that count.
    counted: tokio::sync::Mutex<Option<Counted>>,
    /// Let through, and not inserted yet: no count need have seen them.
    on_their_way: AtomicU64,
    /// Told of each that no longer is on its way.
    landed: Notify,
}

/// Jobs that were let through. Dropped when their rows are there, or will not be.
#[derive(Debug, Default)]
#[must_use = "it counts until it is dropped"]
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
    known: Arc<Mutex<Known>>,
}

impl Limits {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, known: Arc::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether so many jobs may be enqueued, and notes that they are.
    pub(crate) async fn admit(&self, queue: &str, jobs: usize) -> Result<Admitted, EnqueueError> {
        let Some(limit) = self.limit(queue).await? else { return Ok(Admitted::default()) };
        let jobs = jobs as u64;
        let of = self.known().queues.entry(queue.to_owned()).or_default().clone();
        let mut counted = of.counted.lock().await;
        let mut answer =
            counted.as_mut().map_or(Answer::CountAnew, |counted| counted.admit(jobs, Instant::now()));
        while answer == Answer::CountAnew {
            // Before the count: what is inserted meanwhile is counted twice rather than not at all.
            let on_their_way = of.on_their_way.load(Ordering::Acquire);
            let queued = self.store.count_queued(queue, limit.saturating_add(1)).await?;
            let taken = queued.saturating_add(on_their_way);
            if taken.saturating_add(jobs) > limit && queued.saturating_add(jobs) <= limit {
                // There may be room, once it is known which of those on their way were counted.
                drop(timeout(LANDED_WITHIN, of.landed.notified()).await);
                continue;
            }
            let mut new = Counted::new(taken, limit, jobs, Instant::now());
            answer = match new.admit(jobs, new.at) {
                Answer::CountAnew => Answer::Full { queued },
                answer => answer,
            };
            *counted = Some(new);
        }
        match answer {
            Answer::Admitted => {
                of.on_their_way.fetch_add(jobs, Ordering::AcqRel);
                drop(counted);
                Ok(Admitted(Some((of, jobs))))
            }
            Answer::Full { .. } | Answer::CountAnew => {
                let queued = counted.map_or(limit, |counted| counted.queued);
                metrics::refused_enqueue(queue, jobs);
                Err(EnqueueError::QueueFull { queue: queue.to_owned(), jobs, queued, max_queued: limit })
            }
        }
    }

    async fn limit(&self, queue: &str) -> Result<Option<u64>, StoreError> {
        let now = Instant::now();
        {
            let mut known = self.known();
            let is_new =
                known.read_at.is_some_and(|read_at| now.saturating_duration_since(read_at) < LIMITS_LAST);
            if is_new {
                return Ok(known.limits.get(queue).copied());
            }
            // Whoever comes first asks; with the first answer there, the others go by what was known.
            if known.read_at.is_some() {
                known.read_at = Some(now);
            }
        }
        let limits = match self.store.queue_limits().await {
            // No right to read them: then there are none for this producer.
            Err(StoreError::Refused(error)) => {
                tracing::debug!(%error, "limits of queues cannot be read");
                HashMap::new()
            }
            limits => limits?.into_iter().collect(),
        };
        let mut known = self.known();
        known.queues.retain(|queue, _| limits.contains_key(queue));
        (known.limits, known.read_at) = (limits, Some(now));
        Ok(known.limits.get(queue).copied())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A queue that somebody else drains, and a producer that wants more than fits.
        #[test]
        fn one_producer_never_exceeds_the_limit(
            limit in 1..200_u64,
            steps in prop::collection::vec((1..20_u64, 0..30_u64, 0..300_u64), 1..200),
        ) {
            let mut now = Instant::now();
            let mut queued = 0_u64;
            let mut counted: Option<Counted> = None;
            for (jobs, drained, passed_ms) in steps {
                now += Duration::from_millis(passed_ms);
                queued = queued.saturating_sub(drained);
                let answer = counted.as_mut().map_or(Answer::CountAnew, |counted| counted.admit(jobs, now));
                let answer = if answer == Answer::CountAnew {
                    let mut new = Counted::new(queued, limit, jobs, now);
                    let answer = new.admit(jobs, now);
                    counted = Some(new);
                    answer
                } else {
                    answer
                };
                if answer == Answer::Admitted {
                    queued += jobs;
                }
                prop_assert!(queued <= limit, "{queued} of {limit}");
            }
        }
    }

    #[test]
    fn a_queue_is_counted_the_more_often_the_less_room_it_has() {
        let now = Instant::now();
        let mut counts = 0;
        let mut queued = 0;
        let mut counted = Counted::new(0, 10_000, 1, now);
        while queued < 10_000 {
            match counted.admit(1, now) {
                Answer::Admitted => queued += 1,
                Answer::Full { .. } | Answer::CountAnew => {
                    counted = Counted::new(queued, 10_000, 1, now);
                    counts += 1;
                }
            }
        }
        assert!((50..100).contains(&counts), "{counts}");
        assert_eq!(Counted::new(queued, 10_000, 1, now).admit(1, now), Answer::Full { queued: 10_000 });
        let later = now + FULL_LASTS;
        assert_eq!(Counted::new(queued, 10_000, 1, now).admit(1, later), Answer::CountAnew);
    }
}
