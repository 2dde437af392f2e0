//! Queues: what an operator says of a queue as a whole, to the whole fleet. It is kept in the database, so that it
//! outlives every process.
//!
//! A pause and a limit are conditions of the claim itself (`store/job/claim_unlimited.sql`), not of workers that may
//! not have heard of them.
//!
//! Invariants, each held by the test of that name:
//!
//! - `nothing_of_a_paused_queue_starts_and_all_of_it_runs_once_it_is_resumed`
//! - `of_a_limited_queue_no_more_jobs_run_than_may_whoever_asks_and_whoever_dies`

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::{
    client::Tenure,
    job::{NameError, check_queue},
    store::{Change, QueueRow, StoreError},
};

/// The most jobs that a limit may let run: it has a row for each.
const RUNNING_MAX: u32 = 10_000;
/// The most jobs that a limit may let wait.
const QUEUED_MAX: u64 = 10_000_000;

/// What a pause did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Paused {
    /// Since when the queue has been paused.
    pub paused_at: DateTime<Utc>,
    /// Whether it was paused before.
    pub was_paused: bool,
}

/// Which limits of a queue to change. Those that are not named stay as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use = "give it to `Tenure::limit_queue`"]
pub struct QueueLimits {
    max_running: Change<u32>,
    max_queued: Change<u64>,
}

impl QueueLimits {
    /// Changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many jobs of the queue run at once, on all workers together: 1 to 10,000, or `None` for no limit. Jobs
    /// that run already count, and go on.
    ///
    /// Claims of a queue with this limit wait for each other: some hundreds of batches a second.
    pub fn max_running(mut self, jobs: impl Into<Option<u32>>) -> Self {
        self.max_running = jobs.into().into();
        self
    }

    /// How many jobs may wait in the queue, those scheduled for later included: 1 to 10,000,000, or `None` for no
    /// limit. An enqueue beyond it is refused with [`EnqueueError::QueueFull`](crate::EnqueueError::QueueFull);
    /// retries, schedules and submissions are not.
    pub fn max_queued(mut self, jobs: impl Into<Option<u64>>) -> Self {
        self.max_queued = jobs.into().into();
        self
    }
}

/// The limits that a queue has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Limited {
    /// How many of its jobs may run at once; `None`: as many as there are slots.
    pub max_running: Option<i32>,
    /// How many of its jobs may wait; `None`: any number.
    pub max_queued: Option<i64>,
}

/// A queue's settings were not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueSettingsError {
    /// The queue's name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A limit that is none.
    #[error(
        "{what} is {value}, but must be 1 to {most}; \
         to let nothing start, pause the queue, and to take a limit away, set it to none"
    )]
    Limit {
        /// Which one.
        what: &'static str,
        /// What was given.
        value: u64,
        /// The most that may be given.
        most: u64,
    },
    /// Postgres gave no answer, or refused. Try again: it is safe to repeat.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Tenure {
    /// Every queue that has jobs, workers or settings, by name. Counts its jobs: a third of a second for each
    /// million.
    pub async fn queues(&self) -> Result<Vec<QueueRow>, StoreError> {
        self.store().list_queues().await
    }

    /// Pauses a queue, on all workers: from now on none of its jobs starts. What runs goes on, and what is enqueued
    /// waits. It holds until the queue is resumed, whatever is restarted meanwhile.
    pub async fn pause_queue(&self, queue: &str) -> Result<Paused, QueueSettingsError> {
        check_queue(queue)?;
        let (paused_at, was_paused) = self.store().pause_queue(queue).await?;
        self.queue().announce_settings().await;
        Ok(Paused { paused_at, was_paused })
    }

    /// Resumes a queue: its jobs start again within a second. `false`: it was not paused.
    pub async fn resume_queue(&self, queue: &str) -> Result<bool, QueueSettingsError> {
        check_queue(queue)?;
        let was_paused = self.store().resume_queue(queue).await?;
        self.queue().announce_settings().await;
        Ok(was_paused)
    }

    /// Limits a queue, on all workers and for all producers, and returns the limits that it now has. Workers know of it
    /// at once, producers within a second. Claims that are under way may exceed a new limit until as many jobs have
    /// ended.
    pub async fn limit_queue(&self, queue: &str, limits: QueueLimits) -> Result<Limited, QueueSettingsError> {
        check_queue(queue)?;
        let check = |what, value: Option<u64>, most| match value {
            Some(value) if value == 0 || value > most => Err(QueueSettingsError::Limit { what, value, most }),
            _ => Ok(()),
        };
        check("max_running", limits.max_running.value().map(u64::from), RUNNING_MAX.into())?;
        check("max_queued", limits.max_queued.value(), QUEUED_MAX)?;
        let (running, queued) =
            (limits.max_running.map(u32::cast_signed), limits.max_queued.map(u64::cast_signed));
        let (max_running, max_queued) = self.store().limit_queue(queue, running, queued).await?;
        self.queue().announce_settings().await;
        Ok(Limited { max_running, max_queued })
    }
}
