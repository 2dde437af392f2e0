//! Queues: an operator's settings of a whole queue, for all workers and producers. The database keeps them, so that
//! they outlive every process.
//!
//! The claim itself checks a pause and a limit (`store/job/parts/claim_unlimited.sql`): a worker may not have heard of
//! them.
//!
//! Invariants, each held by the test of that name:
//!
//! - `no_job_of_a_paused_queue_starts_and_all_run_once_it_is_resumed`
//! - `a_limited_queue_runs_at_most_max_running_jobs_whichever_worker_claims_or_dies`

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::{
    client::Tenure,
    job::{NameError, check_queue, events::QueueEvents},
    store::{Change, QueueRow, StoreError},
};

/// The highest `max_running`: a limit has a row for each job.
const RUNNING_MAX: u32 = 10_000;
/// The highest `max_queued`.
const QUEUED_MAX: u64 = 10_000_000;

/// The result of [`Tenure::pause_queue`] or [`Tenure::resume_queue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PauseOutcome {
    /// Since when the queue is paused; `None`: it is active.
    pub paused_at: Option<DateTime<Utc>>,
    /// Whether it was paused before.
    pub was_paused: bool,
}

/// A queue without a trace of its own, as a mistyped one is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "queue {queue:?} is unknown: it has no worker, job, message or schedule{}",
    if *asked_nats { "" } else { ", and NATS does not say whether it has messages of it" }
)]
pub struct UnknownQueue {
    queue: String,
    asked_nats: bool,
}

/// The limits of a queue to change. Limits that are not set stay as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use = "give it to `Tenure::limit_queue`"]
pub struct QueueLimits {
    max_running: Change<u32>,
    max_queued: Change<u64>,
}

impl QueueLimits {
    /// Changes no limit yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many jobs of the queue may run at once, on all workers together: 1 to 10,000, or `None` for no limit.
    /// Running jobs count, and go on.
    ///
    /// A claim of a queue with this limit looks at each of its slots, and waits for no other claim.
    pub fn max_running(mut self, jobs: impl Into<Option<u32>>) -> Self {
        self.max_running = jobs.into().into();
        self
    }

    /// Sets how many jobs may wait in the queue, those scheduled for later included: 1 to 10,000,000, or `None` for
    /// no limit. An enqueue beyond it fails with [`EnqueueError::QueueFull`](crate::EnqueueError::QueueFull);
    /// retries, schedules and submissions do not. Submissions take room, as far as a scan has read them in the stream.
    pub fn max_queued(mut self, jobs: impl Into<Option<u64>>) -> Self {
        self.max_queued = jobs.into().into();
        self
    }
}

/// The limits of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CurrentLimits {
    /// How many of its jobs may run at once; `None`: as many as there are slots.
    pub max_running: Option<u32>,
    /// How many of its jobs may wait; `None`: any number.
    pub max_queued: Option<u64>,
}

/// Why a queue's settings were not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueSettingsError {
    /// The queue's name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A limit is out of range.
    #[error(
        "{what} is {value}, but must be 1 to {most}; \
         to start no jobs, pause the queue"
    )]
    Limit {
        /// The limit's name.
        what: &'static str,
        /// The given value.
        value: u64,
        /// The highest value.
        most: u64,
    },
    /// Postgres did not answer, or refused. Try again: the call is safe to repeat.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Tenure {
    /// Returns every queue that has jobs, workers or settings, by name. Counts the jobs: a third of a second for each
    /// million.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn queues(&self) -> Result<Vec<QueueRow>, StoreError> {
        self.store().list_queues(None).await
    }

    /// Pauses a queue on all workers: from now on none of its jobs starts. Running jobs go on, and new ones wait. The
    /// pause lasts until the queue is resumed, across restarts.
    ///
    /// Cancel safe: the queue is paused or not. Workers also read the pause by themselves, so that it holds if the
    /// call is dropped before it announces it.
    ///
    /// # Errors
    ///
    /// [`QueueSettingsError::Name`] for an invalid name; [`QueueSettingsError::Store`] if Postgres did not answer, or
    /// refused.
    pub async fn pause_queue(&self, queue: &str) -> Result<PauseOutcome, QueueSettingsError> {
        check_queue(queue)?;
        let (paused_at, was_paused) = self.store().pause_queue(queue, self.actor()).await?;
        self.nats().announce_settings().await;
        Ok(PauseOutcome { paused_at: Some(paused_at), was_paused })
    }

    /// Resumes a queue: its jobs start again within a second.
    ///
    /// Cancel safe, as [`Tenure::pause_queue`] is.
    ///
    /// # Errors
    ///
    /// Those of [`Tenure::pause_queue`].
    pub async fn resume_queue(&self, queue: &str) -> Result<PauseOutcome, QueueSettingsError> {
        check_queue(queue)?;
        let was_paused = self.store().resume_queue(queue, self.actor()).await?;
        self.nats().announce_settings().await;
        Ok(PauseOutcome { paused_at: None, was_paused })
    }

    /// Sets what workers publish of a queue's jobs on plain NATS subjects, for any program that subscribes: see
    /// [`QueueEvents`]. The messages are hints. They are not stored, and a subscriber that is away misses them:
    /// [`Tenure::ends_since`] misses none. An end that a worker did not write itself (a cancellation of a queued job, a
    /// dead letter that recovery made) is not published.
    ///
    /// Workers hear of a change within a second. Publishing costs a worker 1 to 2 µs a message.
    ///
    /// Cancel safe, as [`Tenure::pause_queue`] is.
    ///
    /// # Errors
    ///
    /// Those of [`Tenure::pause_queue`].
    pub async fn set_events(&self, queue: &str, events: QueueEvents) -> Result<(), QueueSettingsError> {
        check_queue(queue)?;
        self.store().set_events(queue, events, self.actor()).await?;
        self.nats().announce_settings().await;
        Ok(())
    }

    /// Looks for a trace of a queue: its consumer or a message in NATS, or a job, a worker, a setting or a schedule in
    /// Postgres. Counts jobs as [`Tenure::queues`] does.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub async fn known_queue(&self, queue: &str) -> Result<Result<(), UnknownQueue>, QueueSettingsError> {
        check_queue(queue)?;
        let in_nats = self.nats().knows(queue).await;
        let is_known = in_nats == Some(true)
            || self.queues().await?.iter().any(|known| known.queue == queue)
            || self.store().list_schedules(None).await?.iter().any(|schedule| schedule.queue == queue);
        let unknown = || UnknownQueue { queue: queue.to_owned(), asked_nats: in_nats.is_some() };
        Ok(if is_known { Ok(()) } else { Err(unknown()) })
    }

    /// Limits a queue for all workers and producers, and returns the limits that it now has. Workers hear of a change
    /// at once, producers within a second. Claims under way may exceed a new limit until as many jobs have ended.
    ///
    /// Cancel safe, as [`Tenure::pause_queue`] is.
    ///
    /// # Errors
    ///
    /// Those of [`Tenure::pause_queue`]; [`QueueSettingsError::Limit`] for a value out of range. No limit is then
    /// changed.
    pub async fn limit_queue(
        &self,
        queue: &str,
        limits: QueueLimits,
    ) -> Result<CurrentLimits, QueueSettingsError> {
        check_queue(queue)?;
        let check = |what, value: Option<u64>, most| match value {
            Some(value) if value == 0 || value > most => Err(QueueSettingsError::Limit { what, value, most }),
            _ => Ok(()),
        };
        check("max_running", limits.max_running.value().map(u64::from), RUNNING_MAX.into())?;
        check("max_queued", limits.max_queued.value(), QUEUED_MAX)?;
        let QueueLimits { max_running, max_queued } = limits;
        let (max_running, max_queued) =
            self.store().limit_queue(queue, max_running, max_queued, self.actor()).await?;
        self.nats().announce_settings().await;
        Ok(CurrentLimits { max_running, max_queued })
    }
}
