//! Context: the calls of a running job. Progress, checkpoints, and (`effects`) writes that a stale worker cannot make.
//!
//! Not here: work that is recorded (`steps::run`), what a job waits for (`groups::run`).

mod effects;

use std::{
    future::Future,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use crate::{
    codec::job::{Codecs, Part},
    job::{JobError, JobId, causes, claim::FencingToken, duration::written, sizes::stored_bytes, unstorable},
    run::{
        heartbeat::Heartbeat,
        running::{CancelReason, OnWriteLoss, RunningJob},
    },
    steps::run::Recorder,
    store::{ProgressWrite, Store, StoreError},
};

/// The interval at which a report that waits for its write checks whether it still must wait.
const OVERDUE_LOOK: Duration = Duration::from_millis(500);

/// A call of the context that failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ContextError {
    /// This worker no longer owns the job: it was silent for too long, recovery reset it, and it may be running
    /// elsewhere. Stop. Nothing was written, and nothing will be.
    #[error(
        "job {job} is no longer owned under fencing token {token}: recovery reset it, and it may run elsewhere. \
         Stop the handler"
    )]
    Lost {
        /// The job.
        job: JobId,
        /// The token that is no longer current.
        token: FencingToken,
    },
    /// The attempt has ended: its handler returned or was dropped, or [`JobContext::complete_in`] completed the job.
    /// A task that the handler left behind still uses this context. Nothing was written, and nothing will be: await
    /// such a task before the handler returns.
    #[error(
        "the attempt of job {job} under fencing token {token} has ended; nothing was written. Await every task that \
         uses its context before the handler returns"
    )]
    Ended {
        /// The job.
        job: JobId,
        /// The token of the attempt that has ended.
        token: FencingToken,
    },
    /// No write succeeded for 80 % of `stale_after`: another worker may reset the job soon. Stop. If this worker
    /// still owns the job when Postgres is back, it releases the job: the attempt is not charged.
    #[error(
        "job {job}: no write under fencing token {token} succeeded for too long, and another worker may reset the \
         job. Stop the handler"
    )]
    CutOff {
        /// The job.
        job: JobId,
        /// Its token.
        token: FencingToken,
    },
    /// A transaction at REPEATABLE READ or SERIALIZABLE was rolled back: the job's row has changed since its snapshot
    /// (by progress or a cancellation), or, under SERIALIZABLE, another row did.
    #[error(
        "the transaction of job {job} conflicts with another change; nothing was committed. Return the error to \
         retry the job; call `ctx.lock_job(&mut tx)` first in a transaction that `complete_in` will commit"
    )]
    Conflict {
        /// The job.
        job: JobId,
    },
    /// A transaction at REPEATABLE READ or SERIALIZABLE took too long, and was rolled back: while it runs, no worker
    /// can reset the job.
    #[error(
        "the transaction took longer than {}, a quarter of the kind's stale_after; nothing was committed. \
         Make it shorter, use READ COMMITTED, or raise stale_after",
        written(*.limit)
    )]
    TooLong {
        /// The longest that it may take.
        limit: Duration,
    },
    /// The job sleeps, or waits for an event or for jobs of its own. Not a failure: return the error, and the attempt
    /// ends without a charge. The job runs again when that has come.
    #[error("the job {}; return the error from the handler", suspended_for(awaits.as_deref(), *left))]
    Suspended {
        /// What was left of the sleep, or of the wait, when this was returned. [`WITHOUT_END`]: a wait without an end.
        left: Duration,
        /// When it was returned. Another time of day does not move it.
        since: Instant,
        /// The name of the event or of the step that it waits for; `None`: it sleeps.
        awaits: Option<String>,
    },
    /// Postgres did not answer. This worker may still own the job: return the error, and the attempt is not
    /// charged unless the job was in fact lost.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How long a job waits that waits without an end: some 12,000 years. Postgres can add it to a time.
pub const WITHOUT_END: Duration = Duration::from_secs(400_000_000_000);

fn suspended_for(awaits: Option<&str>, left: Duration) -> String {
    match awaits {
        None => format!("sleeps for {}", written(left)),
        Some(name) if left >= WITHOUT_END => format!("waits for {name:?}"),
        Some(name) => format!("waits for {name:?}, at most for {}", written(left)),
    }
}

/// A running job, as its handler sees it. Cheap to clone.
pub struct JobContext<S = ()> {
    pub(crate) job: Arc<RunningJob>,
    pub(crate) state: Arc<S>,
    pub(crate) store: Store,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) recorder: Recorder,
    pub(crate) checkpoint_bytes_max: usize,
    pub(crate) payload_bytes_max: usize,
    pub(crate) codecs: Codecs,
}

impl<S> Clone for JobContext<S> {
    fn clone(&self) -> Self {
        Self {
            job: self.job.clone(),
            state: self.state.clone(),
            store: self.store.clone(),
            heartbeat: self.heartbeat.clone(),
            recorder: self.recorder.clone(),
            checkpoint_bytes_max: self.checkpoint_bytes_max,
            payload_bytes_max: self.payload_bytes_max,
            codecs: self.codecs.clone(),
        }
    }
}

impl<S> std::fmt::Debug for JobContext<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobContext")
            .field("job", &self.id())
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

impl<S> JobContext<S> {
    /// The job's id.
    pub fn id(&self) -> JobId {
        self.job.key.job
    }

    /// The job's queue.
    pub fn queue(&self) -> &str {
        &self.job.claim.queue
    }

    /// The job's kind.
    pub fn kind(&self) -> &str {
        &self.job.claim.kind
    }

    /// The number of this attempt; 1 is the first.
    pub fn attempt(&self) -> u32 {
        self.job.claim.attempt
    }

    /// The most attempts that the job may have.
    pub fn max_attempts(&self) -> u32 {
        self.job.claim.max_attempts
    }

    /// The fencing token, which is greater than that of every earlier attempt. Pass it to systems outside
    /// Postgres that can refuse lower tokens.
    pub fn token(&self) -> FencingToken {
        self.job.key.token
    }

    /// The id of this claim, which no other attempt of any job has.
    ///
    /// With [`JobContext::id`] and [`JobContext::token`] it names the attempt to the functions of the schema, such as
    /// `tenure.once` and `tenure.complete`: for code that writes to Postgres through another driver than sqlx, or in
    /// another program. The worker expects from this call on that the job may be completed there; what the handler
    /// then returns changes nothing.
    pub fn claim_id(&self) -> Uuid {
        self.job.has_effects.store(true, Ordering::Release);
        self.job.knows_claim.store(true, Ordering::Release);
        self.job.key.claim
    }

    /// The state from [`WorkerBuilder::state`](crate::WorkerBuilder::state).
    pub fn state(&self) -> &S {
        &self.state
    }

    /// The enqueuer's W3C `traceparent`.
    pub fn trace_context(&self) -> Option<&str> {
        self.job.claim.trace_context.as_deref()
    }

    /// Returns the checkpoint that an earlier attempt saved with [`JobContext::save_checkpoint`].
    ///
    /// Returns `None` if no attempt saved one, or if it does not fit the type, as one that an older version wrote.
    pub fn checkpoint<T: DeserializeOwned>(&self) -> Option<T> {
        self.raw_checkpoint().and_then(|text| serde_json::from_str(text).ok())
    }

    /// Reports progress, which is the job's heartbeat: recovery resets a job that is silent for longer than
    /// `stale_after` (default 5 min). `percent` is clamped to 0 to 100.
    ///
    /// Returns at once. The worker writes the latest reports of all its jobs together, at most once per
    /// `flush_every` (default 1 s). The call waits for the next write only if the last successful one is older than
    /// half of `stale_after`.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`ContextError::Lost`], [`ContextError::Ended`] and [`ContextError::CutOff`]: stop the handler.
    pub async fn progress(&self, stage: &str, percent: f32, message: &str) -> Result<(), ContextError> {
        let percent = if percent.is_nan() { None } else { Some(percent.clamp(0.0, 100.0)) };
        self.report(Some(stage.into()), percent, Some(message.into()), None).await
    }

    /// Saves a checkpoint with the next progress write, in the same statement. The next attempt reads it with
    /// [`JobContext::checkpoint`]. It is a heartbeat, too, and follows the rules of [`JobContext::progress`].
    ///
    /// Cancel safe: the next write saves the checkpoint, even if the future is dropped.
    ///
    /// # Errors
    ///
    /// A permanent [`JobError`] if the value cannot be stored or has more bytes than
    /// [`Config::checkpoint_bytes_max`](crate::Config::checkpoint_bytes_max); otherwise an error of
    /// [`JobContext::progress`] inside a [`JobError`].
    pub async fn save_checkpoint<T: Serialize>(&self, checkpoint: &T) -> Result<(), JobError> {
        let text = serde_json::to_string(checkpoint).map_err(|error| {
            JobError::permanent(format!("the checkpoint cannot be serialized to JSON: {error}"))
        })?;
        let text = self.storable_checkpoint(text)?;
        self.report(None, None, None, Some(text)).await?;
        Ok(())
    }

    /// Returns the checkpoint as text, not as a value, which would round its numbers.
    fn storable_checkpoint(&self, text: String) -> Result<String, JobError> {
        let refused = |why: &str| JobError::permanent(format!("the checkpoint cannot be stored: {why}"));
        let value = serde_json::from_str(&text).map_err(|error| refused(&error.to_string()))?;
        if let Some(why) = unstorable(&value) {
            return Err(refused(why));
        }
        let text = self.seal(Part::Checkpoint, "the checkpoint", text)?;
        let (bytes, bytes_max) = (stored_bytes(&text), self.checkpoint_bytes_max);
        if bytes > bytes_max {
            return Err(refused(&format!(
                "it has {bytes} bytes, but at most {bytes_max} are allowed; save the position and store results \
                 elsewhere, or raise TENURE_CHECKPOINT_BYTES_MAX"
            )));
        }
        Ok(text)
    }

    async fn report(
        &self,
        stage: Option<String>,
        percent: Option<f32>,
        message: Option<String>,
        checkpoint: Option<String>,
    ) -> Result<(), ContextError> {
        self.check_owned("progress").await?;
        let write = ProgressWrite { key: self.job.key, stage, percent, message, checkpoint };
        Heartbeat::report(&self.job, write);
        let overdue = |job: &RunningJob| {
            let pulse = job.pulse();
            let held = pulse.held_until.is_some_and(|until| until > Instant::now());
            !held && pulse.written_at.elapsed() > job.rules.stale_after / 2
        };
        if self.job.rules.on_write_loss == OnWriteLoss::Cancel && overdue(&self.job) {
            while overdue(&self.job) && !self.job.is_ending() {
                let written = self.job.writes.notified();
                self.heartbeat.hurry();
                tokio::select! {
                    () = written => {}
                    () = self.job.cancellation.cancelled() => break,
                    () = tokio::time::sleep(OVERDUE_LOOK) => {}
                }
            }
        }
        self.check_owned("progress").await
    }

    /// [`JobContext::progress`] and [`JobContext::save_checkpoint`] in one call that never waits.
    #[cfg(any(feature = "internals", test))]
    #[doc(hidden)]
    pub fn report_now(
        &self,
        stage: Option<String>,
        percent: Option<f32>,
        message: Option<String>,
        checkpoint: Option<String>,
    ) -> Result<(), JobError> {
        if self.job.is_lost() {
            return Err(self.lost().into());
        }
        if self.job.is_ending() {
            return Err(self.ended("progress").into());
        }
        // A report with a refused checkpoint still is a heartbeat.
        let (checkpoint, refused) = match checkpoint.map(|text| self.storable_checkpoint(text)).transpose() {
            Ok(checkpoint) => (checkpoint, None),
            Err(refused) => (None, Some(refused)),
        };
        let message = message.or_else(|| refused.as_ref().map(JobError::text));
        Heartbeat::report(
            &self.job,
            ProgressWrite { key: self.job.key, stage, percent, message, checkpoint },
        );
        refused.map_or(Ok(()), Err)
    }

    /// The checkpoint of an earlier attempt, as JSON text.
    pub fn raw_checkpoint(&self) -> Option<&str> {
        self.job.claim.checkpoint.as_deref()
    }

    /// The payload as it was enqueued, before any layer.
    pub fn raw_payload(&self) -> &str {
        &self.job.claim.payload
    }

    /// Completes with the reason when the handler should stop. Never completes otherwise.
    ///
    /// Cancel safe.
    pub fn cancelled(&self) -> impl Future<Output = CancelReason> + Send + use<S> {
        let job = self.job.clone();
        async move {
            job.cancellation.cancelled().await;
            // A job that is cut off has no other reason.
            job.cancel_reason().unwrap_or(CancelReason::Lost)
        }
    }

    /// The reason why the handler should stop. `None`: it should not.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.job.cancel_reason().or_else(|| self.job.is_cut_off().then_some(CancelReason::Lost))
    }

    fn lost(&self) -> ContextError {
        ContextError::Lost { job: self.job.key.job, token: self.job.key.token }
    }

    fn ended(&self, call: &'static str) -> ContextError {
        self.heartbeat.outlived(&self.job, call);
        ContextError::Ended { job: self.job.key.job, token: self.job.key.token }
    }

    /// The error of a call whose write found no row of this attempt. Records a refused write if the job has another
    /// owner, but not if the attempt itself has ended.
    pub(crate) async fn refused(&self, write: &'static str) -> ContextError {
        if !self.job.is_lost() && self.job.is_over() {
            return self.ended(write);
        }
        self.heartbeat.lost(&self.job, write).await;
        self.lost()
    }

    /// Refuses a call of a job that is lost or has ended, as Postgres would.
    pub(crate) async fn check_owned(&self, write: &'static str) -> Result<(), ContextError> {
        if self.job.is_lost() || self.job.is_ending() {
            return Err(self.refused(write).await);
        }
        if self.job.is_cut_off() {
            return Err(ContextError::CutOff { job: self.job.key.job, token: self.job.key.token });
        }
        Ok(())
    }

    /// Records the end of a transaction: a refused write, or an outage.
    pub(crate) async fn note<T>(&self, done: Result<T, JobError>, what: &'static str) -> Result<T, JobError> {
        if done.as_ref().is_err_and(JobError::is_lost) {
            let said = self.refused(what).await;
            if matches!(said, ContextError::Ended { .. }) {
                return Err(said.into());
            }
        }
        let unavailable = done.as_ref().is_err_and(JobError::is_unavailable);
        *self.job.unavailable_at() = unavailable.then(Instant::now);
        // The mark stays, even if the handler wraps the error before it returns it.
        done.map_err(|error| if unavailable { error.into_outage() } else { error })
    }
}

impl ContextError {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    fn is_outage(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_outage())
    }
}

impl JobError {
    fn is(&self, what: &dyn Fn(&ContextError) -> bool) -> bool {
        self.causes().any(|cause| cause.downcast_ref().is_some_and(what))
    }

    /// Returns the first of the error and its causes that has this type.
    ///
    /// ```
    /// # use tenure::JobError;
    /// let error: JobError = std::io::Error::other("no route").into();
    /// assert!(error.downcast_ref::<std::io::Error>().is_some());
    /// ```
    #[must_use]
    pub fn downcast_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.causes().find_map(|cause| cause.downcast_ref())
    }

    /// Whether the error says that this worker no longer owns the job.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.causes().any(|cause| matches!(cause.downcast_ref(), Some(ContextError::Lost { .. })))
    }

    /// Whether the error says that tenure's Postgres was unavailable: a call of the context did not reach it, or the
    /// connection broke under the SQL in one. A statement that Postgres refused, or that exceeded its own time limit,
    /// fails the attempt like any other error.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.causes().any(|cause| {
            cause.downcast_ref::<StoreError>().is_some_and(StoreError::is_outage)
                || cause.downcast_ref().is_some_and(ContextError::is_outage)
                || !self.answered && cause.downcast_ref::<sqlx::Error>().is_some_and(StoreError::says_gone)
        })
    }

    /// An error for another job that says the same: its text, when to retry, and whether Postgres was away.
    pub(crate) fn alike(&self) -> Self {
        let outage = self.causes().find_map(|cause| {
            let of_context = cause.downcast_ref::<ContextError>().filter(|error| error.is_outage()).cloned();
            of_context.or_else(|| cause.downcast_ref::<StoreError>().cloned().map(ContextError::Store))
        });
        let source = outage.map_or_else(|| self.text().into(), |outage| Box::new(outage) as Box<_>);
        Self { source, permanent: self.permanent, retry_after: self.retry_after, answered: self.answered }
    }

    /// Whether a call of the context reported the outage.
    pub(crate) fn is_outage(&self) -> bool {
        self.is(&ContextError::is_outage)
    }

    /// Marks the connection's error as the context's own.
    fn into_outage(mut self) -> Self {
        self.source = match self.source.downcast::<sqlx::Error>() {
            Ok(error) => Box::new(ContextError::Store(StoreError::from(*error))),
            Err(source) => match source.downcast::<StoreError>() {
                Ok(error) => Box::new(ContextError::Store(*error)),
                Err(source) => source,
            },
        };
        self
    }

    fn causes(&self) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
        causes(&*self.source)
    }
}

#[cfg(test)]
mod tests;
