//! Jobs: waiting for them, and cancelling, retrying, redriving and purging them from outside.
//!
//! Every call is safe to repeat, and returns what it found if there was nothing to do.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_queued_job_is_cancelled_at_once_and_its_message_runs_nothing`
//! - `a_redriven_job_keeps_its_id_and_its_token_goes_on`

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::{
    client::{
        Tenure,
        enqueue::{Enqueued, JobRequest},
    },
    codec::job::{CodecError, Codecs, Part, misfit},
    enqueue::insert::EnqueueError,
    job::{JobId, NameError, Status, check_key, check_kind, check_queue, duration::written},
    observe::metrics,
    store::{CancelAnswer, DeadCount, DeadFilter, DeadLetter, JobFilter, JobRow, StoreError},
    watch::store::JobUpdate,
};

/// The most jobs in one statement.
const JOBS_MAX: usize = 500;
/// The most jobs that are selected at once to be cancelled.
const SELECTED_MAX: i64 = 100_000;
/// The most attempts to cancel a job that is redriven meanwhile.
const REDRIVEN_MEANWHILE_MAX: usize = 5;
/// The pause before a job that has ended is read again, while Postgres is away.
const LOOK_SELDOM: Duration = Duration::from_millis(500);

/// The result of [`Tenure::cancel`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
#[non_exhaustive]
pub enum CancelOutcome {
    /// The job was queued, and is cancelled now.
    Cancelled,
    /// The job is running. Its handler is asked to stop within a second; then the job is `cancelled`, unless it
    /// completes first.
    Asked {
        /// The worker that runs it.
        worker: String,
    },
    /// The job has already ended.
    Finished {
        /// How it ended.
        status: Status,
    },
    /// There is no such job.
    NotFound,
}

/// The result of [`Tenure::cancel_all`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CancelCounts {
    /// How many queued jobs were cancelled.
    pub cancelled: u64,
    /// How many running jobs were asked to stop.
    pub asked: u64,
}

/// The result of [`Tenure::retry`] or [`Tenure::redrive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RetryOutcome {
    /// The job was waiting for its time, and is due now.
    Due,
    /// The job was a dead letter, and is queued again: same id, the token goes on, attempts count from zero.
    Redriven,
    /// The job waits for a worker or is running: there is nothing to do.
    Live {
        /// `Queued` or `Processing`.
        status: Status,
    },
    /// The job completed or was cancelled: a finished job does not run again. Enqueue a new one.
    Finished {
        /// How it ended.
        status: Status,
    },
    /// The submission was refused before it became a job, and would be refused again. Publish a corrected one.
    Refused,
    /// There is no such job.
    NotFound,
}

/// Why [`Tenure::run_again`] enqueued nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunAgainError {
    /// There is no such job, or no longer.
    #[error("there is no job {0}")]
    NotFound(JobId),
    /// The job is a dead letter.
    #[error("job {0} is a dead letter: redrive it, and it keeps its history (`tenure jobs retry {0}`)")]
    Dead(JobId),
    /// The job has not ended.
    #[error("job {job} is {status}; it runs again only after its end")]
    Live {
        /// The job.
        job: JobId,
        /// `Queued` or `Processing`.
        status: Status,
    },
    /// The new job was not enqueued.
    #[error(transparent)]
    Enqueue(#[from] EnqueueError),
    /// Postgres did not answer, or refused. Nothing was enqueued.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why [`Tenure::wait`] or [`Tenure::wait_for`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The job has not ended in time, or Postgres did not say so. The job goes on: wait again.
    #[error("job {job} has not ended within {}; it goes on, wait again for its end", written(*.timeout))]
    TimedOut {
        /// The job.
        job: JobId,
        /// How long the call waited.
        timeout: Duration,
    },
    /// There is no such job, or no longer. Not from [`Tenure::wait`].
    #[error("there is no job {0}")]
    NotFound(JobId),
    /// The job was live when the wait began, and is gone: it has completed, and its kind keeps no history
    /// ([`KindOptions::no_history`](crate::KindOptions::no_history)).
    #[error("job {0} has ended, and left nothing to return: its kind keeps no history")]
    NoHistory(JobId),
    /// The job is a dead letter. Only from [`Tenure::wait_for`].
    #[error("job {job} failed: {last_error}")]
    Failed {
        /// The job.
        job: JobId,
        /// The error of its last attempt.
        last_error: String,
    },
    /// The job was cancelled. Only from [`Tenure::wait_for`].
    #[error("job {0} was cancelled")]
    Cancelled(JobId),
    /// The job completed with an output of another type. Only from [`Tenure::wait_for`].
    #[error("the output of job {job} does not fit the type that the caller waits for: {error}")]
    Output {
        /// The job.
        job: JobId,
        /// Why the output does not fit.
        #[source]
        error: serde_json::Error,
    },
    /// The job completed, and this process cannot open its output. Only from [`Tenure::wait_for`].
    #[error("the output of job {job} cannot be opened: {error}")]
    Sealed {
        /// The job.
        job: JobId,
        /// Why it was not opened.
        #[source]
        error: CodecError,
    },
    /// Postgres refused. (While Postgres does not answer, the wait goes on.)
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why [`Tenure::cancel_key`] or [`Tenure::cancel_all`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActionError {
    /// The name of the queue or the kind is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The unique key is invalid.
    #[error("the unique key {key:?} {rule}")]
    Key {
        /// The key.
        key: String,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// Postgres did not answer, or refused. Try again: the call is safe to repeat.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns the output of a job that has ended.
pub(super) fn output_of<T: DeserializeOwned>(ended: &JobUpdate, codecs: &Codecs) -> Result<T, WaitError> {
    let job = ended.id;
    match ended.status {
        Status::Failed => {
            Err(WaitError::Failed { job, last_error: ended.last_error.clone().unwrap_or_default() })
        }
        Status::Cancelled => Err(WaitError::Cancelled(job)),
        _ => {
            let output = ended.output.as_deref().map_or("null", RawValue::get);
            let opened = codecs.open_of(&ended.kind, Part::Output, output);
            let opened = opened.map_err(|error| WaitError::Sealed { job, error })?;
            let is_sealed = opened.is_some();
            serde_json::from_str(opened.as_deref().unwrap_or(output)).map_err(|error| {
                let hidden = |error| serde::de::Error::custom(misfit(&error, true));
                WaitError::Output { job, error: if is_sealed { hidden(error) } else { error } }
            })
        }
    }
}

impl Tenure {
    /// Waits until a job has ended, at most for `timeout`, and returns it as [`Tenure::job`] does: `None` at once if
    /// there is no such job. A job enqueued in a transaction exists once that has committed. [`Tenure::wait_for`]
    /// returns the output.
    ///
    /// The worker that ends the job tells this process over NATS; the job is then looked up. Without NATS, or if that
    /// message is lost, this process looks by itself: soon, then less often, at least twice a second. All waits of a
    /// process share these statements. Goes on waiting while Postgres is away. `Duration::MAX` is no limit.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`WaitError::TimedOut`]; [`WaitError::NoHistory`] if the job ended meanwhile and its kind keeps no history (if
    /// it ended before, there is no such job); [`WaitError::Store`] if Postgres refused.
    pub async fn wait(&self, job: JobId, timeout: Duration) -> Result<Option<JobRow>, WaitError> {
        let ended = async {
            loop {
                match self.watches().watch(job).ended().await {
                    Ok(_) => {}
                    Err(WaitError::NotFound(_)) => return Ok(None),
                    Err(error) => return Err(error),
                }
                match self.store().show_job(job).await {
                    Ok(Some(job)) if job.status.is_finished() => return Ok(Some(job)),
                    // A redrive may have come in between.
                    Ok(Some(_)) => {}
                    Ok(None) => return Ok(None),
                    Err(error) if error.is_unavailable() => tokio::time::sleep(LOOK_SELDOM).await,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        tokio::time::timeout(timeout, ended).await.map_err(|_| WaitError::TimedOut { job, timeout })?
    }

    /// Waits until a job has completed, at most for `timeout`, and returns its output. A job without one has the output
    /// `null`, which is a `()` or a `None`. Waits as [`Tenure::wait`] does. To enqueue and wait, see [`Tenure::call`].
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tenure::{JobRequest, Tenure};
    /// # async fn f(tenure: Tenure) -> Result<(), Box<dyn std::error::Error>> {
    /// let id = tenure.enqueue(JobRequest::new("texts", "count", "one two".into())).await?.id;
    /// let words: u32 = tenure.wait_for(id, Duration::from_secs(5)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// Any [`WaitError`]: the job failed, was cancelled, has not ended in time or does not exist, its kind keeps no
    /// history, its output has another type, or Postgres refused.
    pub async fn wait_for<T: DeserializeOwned>(&self, job: JobId, timeout: Duration) -> Result<T, WaitError> {
        let ended = self.watches().watch(job).ended();
        let late = |_| WaitError::TimedOut { job, timeout };
        output_of(&*tokio::time::timeout(timeout, ended).await.map_err(late)??, self.codecs())
    }

    /// Cancels a job. A queued job is cancelled when this returns. A running job is asked to stop: its handler sees
    /// [`CancelReason::User`](crate::handlers::CancelReason::User) within a second, on any worker, by a NATS message.
    /// Without NATS the handler sees it with its next progress write, or within 5 s if it writes nothing.
    ///
    /// Cancel safe: if the future is dropped, the job was either cancelled or not.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer, and the job may be cancelled, or it refused. The call is safe to
    /// repeat.
    pub async fn cancel(&self, job: JobId) -> Result<CancelOutcome, StoreError> {
        let answers = self.cancel_many(&[job]).await?;
        Ok(answers.into_iter().next().unwrap_or(CancelOutcome::NotFound))
    }

    /// Cancels jobs, and returns the result for each, in order. Cancel safe: jobs that it did not reach were not
    /// cancelled.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer, or refused. Some of the jobs may be cancelled; the call is safe to
    /// repeat.
    pub async fn cancel_many(&self, jobs: &[JobId]) -> Result<Vec<CancelOutcome>, StoreError> {
        let mut all = Vec::with_capacity(jobs.len());
        for some in jobs.chunks(JOBS_MAX) {
            let mut answers = self.store().cancel(some, Some(self.actor())).await?;
            self.announce(&answers);
            let mut statuses = vec![];
            for _ in 0..REDRIVEN_MEANWHILE_MAX {
                if answers.len() == some.len() {
                    break;
                }
                let ended: Vec<_> = some.iter().filter(|job| !answers.contains_key(job)).copied().collect();
                self.store().keep_cancelled(&ended, self.actor()).await?;
                statuses = self.store().statuses(some).await?;
                // These were dead a moment ago, and were redriven since.
                let again: Vec<_> = some
                    .iter()
                    .zip(&statuses)
                    .filter(|(job, status)| {
                        status.is_some_and(|status| !status.is_finished()) && !answers.contains_key(job)
                    })
                    .map(|(job, _)| *job)
                    .collect();
                if again.is_empty() {
                    break;
                }
                let more = self.store().cancel(&again, Some(self.actor())).await?;
                self.announce(&more);
                answers.extend(more);
            }
            for (i, job) in some.iter().enumerate() {
                all.push(match answers.get(job) {
                    Some(CancelAnswer::Cancelled) => CancelOutcome::Cancelled,
                    Some(CancelAnswer::Asked(worker)) => CancelOutcome::Asked { worker: worker.clone() },
                    None => match statuses.get(i).copied().flatten() {
                        Some(status) => CancelOutcome::Finished { status },
                        None => CancelOutcome::NotFound,
                    },
                });
            }
        }
        Ok(all)
    }

    /// Cancels the job that holds a unique key (or a submission's `Tenure-Idempotency-Key`, or `Nats-Msg-Id`) in a
    /// queue. `None`: no job holds it.
    ///
    /// Cancel safe: if the future is dropped, the job was either cancelled or not.
    ///
    /// # Errors
    ///
    /// [`ActionError::Name`] and [`ActionError::Key`] for an invalid queue or key; [`ActionError::Store`] as in
    /// [`Tenure::cancel`].
    pub async fn cancel_key(
        &self,
        queue: &str,
        key: &str,
    ) -> Result<Option<(JobId, CancelOutcome)>, ActionError> {
        check_queue(queue)?;
        check_key(key).map_err(|rule| ActionError::Key { key: key.into(), rule })?;
        let holders = self.store().held_keys(&[(queue.to_owned(), key.to_owned())]).await?;
        let Some(job) = holders.first().copied().flatten() else { return Ok(None) };
        Ok(Some((job, self.cancel(job).await?)))
    }

    /// Cancels every job of a queue, or of one kind in it, that was live when this was called. A submission that
    /// no worker has received yet has no row, and is not cancelled; one that a worker receives during the call may be.
    ///
    /// Cancel safe, in steps of 500 jobs: if a step fails, the jobs of earlier steps stay cancelled; call it again.
    ///
    /// # Errors
    ///
    /// [`ActionError::Name`] for an invalid queue or kind; [`ActionError::Store`] if Postgres did not answer, or
    /// refused.
    pub async fn cancel_all(&self, queue: &str, kind: Option<&str>) -> Result<CancelCounts, ActionError> {
        check_queue(queue)?;
        kind.map(check_kind).transpose()?;
        let now = self.store().database_time().await?;
        let mut after = JobId(Uuid::nil());
        let mut done = CancelCounts::default();
        let page = i64::try_from(JOBS_MAX).unwrap_or(i64::MAX);
        loop {
            let jobs = self.store().live_jobs(queue, kind, after, page, now).await?;
            let Some(last) = jobs.last() else { return Ok(done) };
            after = *last;
            self.cancel_step(&jobs, &mut done).await?;
        }
    }

    /// Cancels every live job that the filter selects and that was there when this was called, the newest first: of a
    /// customer whose jobs have a [tag](JobFilter::tag), for example.
    ///
    /// Cancel safe, in steps of 500 jobs: if a step fails, the jobs of earlier steps stay cancelled; call it again.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused.
    pub async fn cancel_matching(&self, filter: &JobFilter) -> Result<CancelCounts, StoreError> {
        let mut filter = filter.clone();
        let mut done = CancelCounts::default();
        loop {
            // Each selection reads the live jobs once.
            let jobs = self.store().cancellable(&filter, SELECTED_MAX).await?;
            for some in jobs.chunks(JOBS_MAX) {
                self.cancel_step(some, &mut done).await?;
            }
            match jobs.last() {
                Some(last) if i64::try_from(jobs.len()) == Ok(SELECTED_MAX) => filter = filter.before(*last),
                _ => return Ok(done),
            }
        }
    }

    /// Cancels at most 500 jobs, and counts them.
    async fn cancel_step(&self, jobs: &[JobId], done: &mut CancelCounts) -> Result<(), StoreError> {
        let answers = self.store().cancel(jobs, Some(self.actor())).await?;
        self.announce(&answers);
        let asked = answers.values().filter(|answer| matches!(answer, CancelAnswer::Asked(_))).count();
        done.asked += asked as u64;
        done.cancelled += (answers.len() - asked) as u64;
        Ok(())
    }

    /// Announces the running jobs among them to their workers, without waiting for it.
    fn announce(&self, answers: &std::collections::HashMap<JobId, CancelAnswer>) {
        let asked: Vec<_> = answers
            .iter()
            .filter(|(_, answer)| matches!(answer, CancelAnswer::Asked(_)))
            .map(|(job, _)| *job)
            .collect();
        metrics::cancelled("queued", answers.len() - asked.len());
        metrics::cancelled("running", asked.len());
        if !asked.is_empty() {
            let nats = self.nats().clone();
            self.publications().spawn(async move { nats.announce_cancelled(&asked).await });
        }
    }

    /// Retries a job now: makes a job due that waits for its time (a retry's backoff, a delay), and redrives a dead
    /// letter. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer, and the change may have happened, or it refused. The call is safe to
    /// repeat.
    pub async fn retry(&self, job: JobId) -> Result<RetryOutcome, StoreError> {
        let answers = self.retry_many(&[job]).await?;
        Ok(answers.into_iter().next().unwrap_or(RetryOutcome::NotFound))
    }

    /// Retries many jobs as [`Tenure::retry`] does, and returns the result for each, in order. Cancel safe: jobs that
    /// it did not reach were not changed.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer, or refused. Some of the jobs may be changed; the call is safe to
    /// repeat.
    pub async fn retry_many(&self, jobs: &[JobId]) -> Result<Vec<RetryOutcome>, StoreError> {
        let mut all = Vec::with_capacity(jobs.len());
        for some in jobs.chunks(JOBS_MAX) {
            let due = self.store().run_now(some, Some(self.actor())).await?;
            let others: Vec<_> = some.iter().copied().filter(|job| !due.contains(job)).collect();
            let mut redriven = self.redrive(&others).await?.into_iter();
            all.extend(some.iter().map(|job| {
                if due.contains(job) {
                    RetryOutcome::Due
                } else {
                    redriven.next().unwrap_or(RetryOutcome::NotFound)
                }
            }));
        }
        Ok(all)
    }

    /// Enqueues a job that has completed or was cancelled anew: another job of the same queue, kind, payload, tags and
    /// number of attempts, without the old one's delay, lane, unique key and group. A job that has failed is not run
    /// again but redriven ([`Tenure::retry`]), so that it keeps its history.
    ///
    /// Not idempotent: each call enqueues a job. Cancel safe, as [`Tenure::enqueue`] is.
    ///
    /// # Errors
    ///
    /// [`RunAgainError`]: the job is not there, or has not ended, or cannot be enqueued, such as into a full queue, or
    /// into one that requires a lane: enqueue it anew there, with its lane.
    pub async fn run_again(&self, job: JobId) -> Result<Enqueued, RunAgainError> {
        self.run_again_keyed(job, None).await
    }

    /// [`Tenure::run_again`] with a unique key for the new job.
    #[doc(hidden)]
    pub async fn run_again_keyed(&self, job: JobId, key: Option<String>) -> Result<Enqueued, RunAgainError> {
        let row = self.job(job).await?.ok_or(RunAgainError::NotFound(job))?;
        match row.status {
            Status::Completed | Status::Cancelled => {}
            Status::Failed => return Err(RunAgainError::Dead(job)),
            status => return Err(RunAgainError::Live { job, status }),
        }
        let payload = row.payload_json().map_or("null", RawValue::get);
        let mut request = JobRequest::from_row(&row.queue, &row.kind, payload).max_attempts(row.max_attempts);
        if let Some(key) = key {
            request = request.unique_key(key);
        }
        request = row.tags.iter().fold(request, JobRequest::tag);
        Ok(self.enqueue(request).await?)
    }

    /// Returns at most `limit` dead letters, the latest first, without their payloads.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn dead_letters(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadLetter>, StoreError> {
        self.store().dead_letters(filter, limit.into()).await
    }

    /// Returns the whole dead letter with this id; `None` if no dead letter has it.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn dead_letter(&self, id: JobId) -> Result<Option<DeadLetter>, StoreError> {
        self.store().dead_letter(id).await
    }

    /// Returns the number of dead letters by queue, kind and category.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn dead_counts(&self) -> Result<Vec<DeadCount>, StoreError> {
        self.store().dead_counts().await
    }

    /// Redrives dead letters: queues them again, and returns the result for each, in order. A job keeps its id,
    /// payload and last checkpoint; its token goes on; its attempts count from zero. Effects under
    /// [`JobContext::once`](crate::JobContext::once) are not repeated. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer, or refused. Some of the jobs may be queued again; the call is safe to
    /// repeat.
    pub async fn redrive(&self, jobs: &[JobId]) -> Result<Vec<RetryOutcome>, StoreError> {
        let mut all = Vec::with_capacity(jobs.len());
        for some in jobs.chunks(JOBS_MAX) {
            let redriven = self.store().redrive(some, self.actor()).await?;
            metrics::redriven(redriven.len());
            let statuses =
                if redriven.len() < some.len() { self.store().statuses(some).await? } else { vec![] };
            for (i, job) in some.iter().enumerate() {
                let status = statuses.get(i).copied().flatten();
                all.push(match status {
                    _ if redriven.contains(job) => RetryOutcome::Redriven,
                    None => RetryOutcome::NotFound,
                    // Still dead: it has no payload.
                    Some(Status::Failed) => RetryOutcome::Refused,
                    Some(status) if status.is_finished() => RetryOutcome::Finished { status },
                    Some(status) => RetryOutcome::Live { status },
                });
            }
        }
        Ok(all)
    }

    /// Redrives every dead letter that the filter matches, the oldest first; returns how many. Submissions that were
    /// refused before they became jobs stay. Cancel safe, in steps: call it again if it did not finish.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer, or refused. The jobs of earlier steps are queued again; call it again.
    pub async fn redrive_all(&self, filter: &DeadFilter) -> Result<u64, StoreError> {
        // A job that dies again meanwhile is not redriven twice.
        let filter = filter.as_of(self.store().database_time().await?);
        let page = i64::try_from(JOBS_MAX).unwrap_or(i64::MAX);
        let mut total = 0;
        loop {
            let jobs = self.store().dead_ids(&filter, page).await?;
            if jobs.is_empty() {
                return Ok(total);
            }
            let redriven = self.store().redrive(&jobs, self.actor()).await?.len();
            metrics::redriven(redriven);
            total += redriven as u64;
        }
    }

    /// Removes the dead letters that the filter matches, with their history and their unique keys; returns how
    /// many. Cancel safe, in steps: call it again if it did not finish.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer, or refused. What earlier steps removed is gone; call it again.
    pub async fn purge_dead(&self, filter: &DeadFilter) -> Result<u64, StoreError> {
        let filter = &filter.as_of(self.store().database_time().await?);
        let page = i64::try_from(JOBS_MAX).unwrap_or(i64::MAX);
        let mut total = 0;
        loop {
            let gone = self.store().purge_dead(filter, page, None, self.actor()).await?;
            total += gone;
            if gone < JOBS_MAX as u64 {
                return Ok(total);
            }
        }
    }

    /// Removes these dead letters, with their history and their unique keys; returns how many it removed. Cancel
    /// safe, in steps.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer, or refused. What earlier steps removed is gone; call it again.
    pub async fn purge_dead_jobs(&self, jobs: &[JobId]) -> Result<u64, StoreError> {
        let mut total = 0;
        for some in jobs.chunks(JOBS_MAX) {
            let most = i64::try_from(some.len()).unwrap_or(i64::MAX);
            total += self.store().purge_dead(&DeadFilter::new(), most, Some(some), self.actor()).await?;
        }
        Ok(total)
    }
}
