//! Manage: what people and programs do to jobs from outside: wait, cancel, try again, redrive, purge.
//!
//! Everything here is safe to repeat, and says what it found instead when there was nothing to do.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_queued_job_is_cancelled_at_once_and_its_message_runs_nothing`
//! - `a_redriven_job_keeps_its_id_and_its_token_goes_on`

use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use crate::{
    client::Tenure,
    job::{JobId, NameError, Status, check_key, check_kind, check_queue},
    observe::metrics,
    store::{CancelAnswer, DeadCount, DeadFilter, DeadLetter, JobRow, StoreError},
};

/// The most jobs of one statement.
const JOBS_MAX: usize = 500;
/// How often a job is cancelled again that came back to life in between.
const REDRIVEN_MEANWHILE_MAX: usize = 5;
/// How often a waiting caller looks, at first and at most.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_SELDOM: Duration = Duration::from_millis(500);

/// What a cancellation did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cancelled {
    /// It was queued, and is cancelled.
    Cancelled,
    /// It runs. Its handler is told within a second; then the job is `cancelled`, unless it completes first.
    Asked {
        /// Who runs it.
        worker: String,
    },
    /// It has ended already.
    Finished {
        /// How.
        status: Status,
    },
    /// There is no such job.
    NotFound,
}

/// What cancelling many jobs did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CancelledMany {
    /// Queued jobs that are cancelled.
    pub cancelled: u64,
    /// Running jobs whose handlers are told.
    pub asked: u64,
}

/// What asking for another attempt did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Retried {
    /// It was waiting for its time, and is due now.
    Due,
    /// It was a dead letter, and is queued again: the same id, the token goes on, attempts start anew.
    Redriven,
    /// It waits for a worker, or runs: there is nothing to do.
    Live {
        /// Which of the two.
        status: Status,
    },
    /// It completed or was cancelled: a finished job is not run again. Enqueue a new one.
    Finished {
        /// How it ended.
        status: Status,
    },
    /// It was refused before it became a job, and would be again. Publish a corrected message.
    Refused,
    /// There is no such job.
    NotFound,
}

/// A wait that came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// There is no such job, or not any more.
    #[error("there is no job {0}")]
    NotFound(JobId),
    /// Postgres refused. (While it does not answer, the wait goes on.)
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A cancellation that was not tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManageError {
    /// A name that is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A unique key that is none.
    #[error("the unique key {key:?} {rule}")]
    Key {
        /// What was given.
        key: String,
        /// What may be given.
        rule: &'static str,
    },
    /// Postgres gave no answer, or refused. Try again: it is safe to repeat.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Tenure {
    /// Waits until a job has ended, and returns it, with its output if it completed.
    ///
    /// Looks in the database: after 10 ms, then less and less often, at least twice a second. Waits while
    /// Postgres is away. Put a limit on it with `tokio::time::timeout`.
    ///
    /// ```no_run
    /// # use tenure::{JobRequest, Tenure, Status};
    /// # async fn f(tenure: Tenure) -> Result<(), Box<dyn std::error::Error>> {
    /// let id = tenure.enqueue(JobRequest::new("texts", "count", "one two".into())).await?.id;
    /// let job = tenure.wait(id).await?;
    /// assert_eq!(job.status, Status::Completed);
    /// let words: u32 = serde_json::from_value(job.output.unwrap_or_default())?;
    /// # Ok(()) }
    /// ```
    ///
    /// Cancel safe.
    pub async fn wait(&self, job: JobId) -> Result<JobRow, WaitError> {
        let mut pause = LOOK_FIRST;
        loop {
            match self.store().standing(&[job]).await {
                Ok(standing) => match standing.first().copied().flatten() {
                    None => return Err(WaitError::NotFound(job)),
                    Some(status) if status.is_finished() => match self.store().show_job(job).await {
                        // It may have been redriven in between.
                        Ok(Some(job)) if job.status.is_finished() => return Ok(job),
                        Ok(Some(_)) => {}
                        Ok(None) => return Err(WaitError::NotFound(job)),
                        Err(error) if error.is_unavailable() => {}
                        Err(error) => return Err(error.into()),
                    },
                    Some(_) => {}
                },
                Err(error) if error.is_unavailable() => {}
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 3 / 2).min(LOOK_SELDOM);
        }
    }

    /// Cancels a job. A queued one is cancelled when this returns; of a running one it is asked, and its
    /// handler sees [`CancelReason::User`](crate::CancelReason::User) within a second, wherever it runs: by
    /// a NATS message, or without NATS with its next progress write; one that writes nothing, within 5 s.
    ///
    /// Cancel safe: dropped, the job was cancelled or was not.
    pub async fn cancel(&self, job: JobId) -> Result<Cancelled, StoreError> {
        let answers = self.cancel_many(&[job]).await?;
        Ok(answers.into_iter().next().unwrap_or(Cancelled::NotFound))
    }

    /// Cancels jobs, and says for each what happened. Cancel safe: what was not tried was not cancelled.
    pub async fn cancel_many(&self, jobs: &[JobId]) -> Result<Vec<Cancelled>, StoreError> {
        let mut all = Vec::with_capacity(jobs.len());
        for some in jobs.chunks(JOBS_MAX) {
            let mut answers = self.store().cancel(some).await?;
            self.announce(&answers);
            let mut standing = vec![];
            for _ in 0..REDRIVEN_MEANWHILE_MAX {
                if answers.len() == some.len() {
                    break;
                }
                standing = self.store().standing(some).await?;
                // Dead a moment ago, and redriven since.
                let again: Vec<_> = some
                    .iter()
                    .zip(&standing)
                    .filter(|(job, status)| {
                        status.is_some_and(|status| !status.is_finished()) && !answers.contains_key(job)
                    })
                    .map(|(job, _)| *job)
                    .collect();
                if again.is_empty() {
                    break;
                }
                let more = self.store().cancel(&again).await?;
                self.announce(&more);
                answers.extend(more);
            }
            for (i, job) in some.iter().enumerate() {
                all.push(match answers.get(job) {
                    Some(CancelAnswer::Cancelled) => Cancelled::Cancelled,
                    Some(CancelAnswer::Asked(worker)) => Cancelled::Asked { worker: worker.clone() },
                    None => match standing.get(i).copied().flatten() {
                        Some(status) => Cancelled::Finished { status },
                        None => Cancelled::NotFound,
                    },
                });
            }
        }
        Ok(all)
    }

    /// Cancels the job that holds a unique key (or a submission's `Tenure-Idempotency-Key`, or `Nats-Msg-Id`) in a
    /// queue. `None`: nobody holds it.
    pub async fn cancel_key(
        &self,
        queue: &str,
        key: &str,
    ) -> Result<Option<(JobId, Cancelled)>, ManageError> {
        check_queue(queue)?;
        check_key(key).map_err(|rule| ManageError::Key { key: key.into(), rule })?;
        let holders = self.store().held_keys(&[(queue.to_owned(), key.to_owned())]).await?;
        let Some(job) = holders.first().copied().flatten() else { return Ok(None) };
        Ok(Some((job, self.cancel(job).await?)))
    }

    /// Cancels every live job of a queue, or of one kind in it, that was there when this was called. A
    /// message that no worker has received yet (a submission) is no row yet, and is not cancelled.
    ///
    /// Cancel safe, in steps of 500 jobs: if it fails in between, those before are cancelled; call it again.
    pub async fn cancel_all(&self, queue: &str, kind: Option<&str>) -> Result<CancelledMany, ManageError> {
        check_queue(queue)?;
        kind.map(check_kind).transpose()?;
        let now = self.store().database_time().await?;
        let mut after = JobId(Uuid::nil());
        let mut done = CancelledMany::default();
        let page = i64::try_from(JOBS_MAX).unwrap_or(i64::MAX);
        loop {
            let jobs = self.store().live_jobs(queue, kind, after, page, now).await?;
            let Some(last) = jobs.last() else { return Ok(done) };
            after = *last;
            let answers = self.store().cancel(&jobs).await?;
            self.announce(&answers);
            let asked = answers.values().filter(|answer| matches!(answer, CancelAnswer::Asked(_))).count();
            done.asked += asked as u64;
            done.cancelled += (answers.len() - asked) as u64;
        }
    }

    /// Tells the workers of jobs that run, without waiting for it.
    fn announce(&self, answers: &std::collections::HashMap<JobId, CancelAnswer>) {
        let asked: Vec<_> = answers
            .iter()
            .filter(|(_, answer)| matches!(answer, CancelAnswer::Asked(_)))
            .map(|(job, _)| *job)
            .collect();
        metrics::cancelled("queued", answers.len() - asked.len());
        metrics::cancelled("running", asked.len());
        if !asked.is_empty() {
            let queue = self.queue().clone();
            self.publications().spawn(async move { queue.announce_cancelled(&asked).await });
        }
    }

    /// Has a job tried again now: one that waits for its time (a retry's backoff, a delay) becomes due, a
    /// dead letter is redriven. Cancel safe.
    pub async fn retry(&self, job: JobId) -> Result<Retried, StoreError> {
        let answers = self.retry_many(&[job]).await?;
        Ok(answers.into_iter().next().unwrap_or(Retried::NotFound))
    }

    /// [`Tenure::retry`] for many, and says for each what happened. Cancel safe: what was not tried was not changed.
    pub async fn retry_many(&self, jobs: &[JobId]) -> Result<Vec<Retried>, StoreError> {
        let mut all = Vec::with_capacity(jobs.len());
        for some in jobs.chunks(JOBS_MAX) {
            let due = self.store().run_now(some).await?;
            let others: Vec<_> = some.iter().copied().filter(|job| !due.contains(job)).collect();
            let mut redriven = self.redrive(&others).await?.into_iter();
            all.extend(some.iter().map(|job| {
                if due.contains(job) { Retried::Due } else { redriven.next().unwrap_or(Retried::NotFound) }
            }));
        }
        Ok(all)
    }

    /// Dead letters, the latest first, at most `limit`, without their payloads.
    pub async fn dead_letters(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadLetter>, StoreError> {
        self.store().dead_letters(filter, limit.into()).await
    }

    /// One dead letter, whole; `None` if there is none of this id.
    pub async fn dead_letter(&self, id: JobId) -> Result<Option<DeadLetter>, StoreError> {
        self.store().dead_letter(id).await
    }

    /// How many dead letters there are, by queue, kind and category.
    pub async fn dead_counts(&self) -> Result<Vec<DeadCount>, StoreError> {
        self.store().dead_counts().await
    }

    /// Puts dead jobs back in the queue, and says for each what happened. The same job goes back: the same
    /// id, payload and last checkpoint; its token goes on; attempts start anew. What its effects under
    /// [`JobContext::once`](crate::JobContext::once) did stays done. Cancel safe.
    pub async fn redrive(&self, jobs: &[JobId]) -> Result<Vec<Retried>, StoreError> {
        let mut all = Vec::with_capacity(jobs.len());
        for some in jobs.chunks(JOBS_MAX) {
            let redriven = self.store().redrive(some).await?;
            metrics::redriven(redriven.len());
            let standing =
                if redriven.len() < some.len() { self.store().standing(some).await? } else { vec![] };
            for (i, job) in some.iter().enumerate() {
                let status = standing.get(i).copied().flatten();
                all.push(match status {
                    _ if redriven.contains(job) => Retried::Redriven,
                    None => Retried::NotFound,
                    // Still dead: it has no payload.
                    Some(Status::Failed) => Retried::Refused,
                    Some(status) if status.is_finished() => Retried::Finished { status },
                    Some(status) => Retried::Live { status },
                });
            }
        }
        Ok(all)
    }

    /// Puts every dead job that the filter names back in the queue, the oldest first; returns how many.
    /// What was refused before it became a job stays. Cancel safe, in steps: call it again if it did not come
    /// to its end.
    pub async fn redrive_all(&self, filter: &DeadFilter) -> Result<u64, StoreError> {
        // One that dies again meanwhile is not met twice.
        let filter = filter.as_of(self.store().database_time().await?);
        let page = i64::try_from(JOBS_MAX).unwrap_or(i64::MAX);
        let mut total = 0;
        loop {
            let jobs = self.store().dead_ids(&filter, page).await?;
            if jobs.is_empty() {
                return Ok(total);
            }
            let redriven = self.store().redrive(&jobs).await?.len();
            metrics::redriven(redriven);
            total += redriven as u64;
        }
    }

    /// Removes the dead letters that the filter names, with their history and their unique keys; returns how
    /// many. Cancel safe, in steps: call it again if it did not come to its end.
    pub async fn purge_dead(&self, filter: &DeadFilter) -> Result<u64, StoreError> {
        let filter = &filter.as_of(self.store().database_time().await?);
        let page = i64::try_from(JOBS_MAX).unwrap_or(i64::MAX);
        let mut total = 0;
        loop {
            let gone = self.store().purge_dead(filter, page, None).await?;
            total += gone;
            if gone < JOBS_MAX as u64 {
                return Ok(total);
            }
        }
    }

    /// Removes these dead letters, with their history and their unique keys; returns how many there were. Cancel
    /// safe, in
    /// steps.
    pub async fn purge_dead_jobs(&self, jobs: &[JobId]) -> Result<u64, StoreError> {
        let mut total = 0;
        for some in jobs.chunks(JOBS_MAX) {
            let most = i64::try_from(some.len()).unwrap_or(i64::MAX);
            total += self.store().purge_dead(&DeadFilter::new(), most, Some(some)).await?;
        }
        Ok(total)
    }
}
