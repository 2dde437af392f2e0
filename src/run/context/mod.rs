//! Context: what a running job can do. Progress, checkpoints, and (`effects`) writes that a stale worker
//! cannot make.

mod effects;

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    job::{JobError, JobId, claim::FencingToken, unstorable},
    run::{
        heartbeat::Heartbeat,
        running::{CancelReason, OnWriteLoss, RunningJob},
    },
    store::{ProgressWrite, Store, StoreError},
};

/// How often a report that waits for its write looks whether there still is anything to wait for.
const OVERDUE_LOOK: Duration = Duration::from_millis(500);

/// A call of the context that did not happen.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ContextError {
    /// This worker no longer owns the job: it was silent too long and taken back, and may be running
    /// elsewhere. Stop. Nothing was written, and nothing will be.
    #[error(
        "job {job} is no longer owned under fencing token {token}: it was taken back, and may run elsewhere"
    )]
    Lost {
        /// Which job.
        job: JobId,
        /// The token that is no longer current.
        token: FencingToken,
    },
    /// The attempt has ended: its handler has returned, or was given up, or [`JobContext::complete_in`] has completed
    /// the job. A task that the handler left behind still holds this context. Nothing was written, and nothing will be:
    /// await such a task before the handler returns.
    #[error("job {job} has ended under fencing token {token}, and with it this context; nothing was written")]
    Ended {
        /// Which job.
        job: JobId,
        /// The token of the attempt that has ended.
        token: FencingToken,
    },
    /// Nothing could be written for 80 % of `stale_after`: others may take the job soon. Stop. If it still
    /// is ours when Postgres is back, it goes back to the queue, the attempt not charged.
    #[error(
        "job {job}: nothing could be written for too long under fencing token {token}; \
         it must be assumed that others take it"
    )]
    CutOff {
        /// Which job.
        job: JobId,
        /// Its token.
        token: FencingToken,
    },
    /// A transaction whose snapshot lasts was rolled back: the job's row has changed since (its own progress
    /// was written, or its cancellation asked for), or, under SERIALIZABLE, something else did.
    #[error(
        "the transaction of job {job} conflicts with another change; nothing was committed. Return the error, and \
         the job is tried again; begin what `complete_in` shall commit with `ctx.hold(&mut tx)`"
    )]
    Conflict {
        /// Which job.
        job: JobId,
    },
    /// A repeatable-read transaction took too long, and is rolled back: while it runs, nobody can take the
    /// job back.
    #[error(
        "the transaction took longer than {limit:?}, a quarter of the kind's stale_after; nothing was committed. \
         Make it shorter, use READ COMMITTED, or raise stale_after"
    )]
    TooLong {
        /// How long it may take.
        limit: Duration,
    },
    /// Postgres gave no answer. The job may still be ours; return the error, and the attempt is not
    /// charged unless the job really was lost.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A running job, as its handler sees it. Cheap to clone.
pub struct JobContext<S = ()> {
    pub(crate) job: Arc<RunningJob>,
    pub(crate) state: Arc<S>,
    pub(crate) store: Store,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) checkpoint_bytes_max: usize,
}

impl<S> Clone for JobContext<S> {
    fn clone(&self) -> Self {
        Self {
            job: self.job.clone(),
            state: self.state.clone(),
            store: self.store.clone(),
            heartbeat: self.heartbeat.clone(),
            checkpoint_bytes_max: self.checkpoint_bytes_max,
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

    /// The queue it came from.
    pub fn queue(&self) -> &str {
        &self.job.claim.queue
    }

    /// Its kind.
    pub fn kind(&self) -> &str {
        &self.job.claim.kind
    }

    /// Which attempt this is; 1 is the first.
    pub fn attempt(&self) -> u32 {
        self.job.claim.attempt
    }

    /// How many attempts there may be.
    pub fn max_attempts(&self) -> u32 {
        self.job.claim.max_attempts
    }

    /// The fencing token: greater than that of every earlier attempt. Pass it to systems outside
    /// Postgres that can refuse lower ones.
    pub fn token(&self) -> FencingToken {
        self.job.key.token
    }

    /// What [`WorkerBuilder::state`](crate::WorkerBuilder::state) was given.
    pub fn state(&self) -> &S {
        &self.state
    }

    /// The enqueuer's W3C `traceparent`.
    pub fn trace_context(&self) -> Option<&str> {
        self.job.claim.trace_context.as_deref()
    }

    /// What an earlier attempt saved with [`JobContext::save_checkpoint`].
    ///
    /// `None` if there is none, or if it does not fit this type: an older version wrote it.
    pub fn checkpoint<T: DeserializeOwned>(&self) -> Option<T> {
        self.raw_checkpoint().and_then(|text| serde_json::from_str(text).ok())
    }

    /// Reports progress, which is the job's sign of life: a job that is silent for longer than
    /// `stale_after` (default 5 min) is presumed dead. `percent` is 0 to 100; what is outside is clamped.
    ///
    /// Returns at once: the latest report is written at most once per `flush_every` (default 1 s), for
    /// all jobs of the process together. Only when the last successful write is older than half of
    /// `stale_after` does it wait for the next one.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`ContextError::Lost`]: stop working.
    pub async fn progress(&self, stage: &str, percent: f32, message: &str) -> Result<(), ContextError> {
        let percent = if percent.is_nan() { None } else { Some(percent.clamp(0.0, 100.0)) };
        self.report(Some(stage.into()), percent, Some(message.into()), None).await
    }

    /// Saves a checkpoint with the next progress write, in the same statement; the next attempt reads it
    /// with [`JobContext::checkpoint`]. A sign of life, too, with the same rules as [`JobContext::progress`].
    ///
    /// Cancel safe: it is saved with the next write, whether or not this is waited for.
    ///
    /// # Errors
    ///
    /// [`JobError`] that is permanent if the value cannot be stored, or has more bytes than
    /// [`Config::checkpoint_bytes_max`](crate::Config::checkpoint_bytes_max); [`ContextError::Lost`] inside
    /// otherwise.
    pub async fn save_checkpoint<T: Serialize>(&self, checkpoint: &T) -> Result<(), JobError> {
        let text = serde_json::to_string(checkpoint)
            .map_err(|error| JobError::permanent(format!("the checkpoint is not JSON: {error}")))?;
        let text = self.storable_checkpoint(text)?;
        self.report(None, None, None, Some(text)).await?;
        Ok(())
    }

    /// Kept as text: a value would round its numbers.
    fn storable_checkpoint(&self, text: String) -> Result<String, JobError> {
        let refused = |why: &str| JobError::permanent(format!("the checkpoint cannot be stored: {why}"));
        let value = serde_json::from_str(&text).map_err(|error| refused(&error.to_string()))?;
        if let Some(why) = unstorable(&value) {
            return Err(refused(why));
        }
        let (bytes, bytes_max) = (text.len(), self.checkpoint_bytes_max);
        if bytes > bytes_max {
            return Err(refused(&format!(
                "it has {bytes} bytes, but at most {bytes_max} are allowed; save where to go on instead of \
                 what was found, store that elsewhere, or raise TENURE_CHECKPOINT_BYTES_MAX"
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

    /// [`JobContext::progress`] and [`JobContext::save_checkpoint`] at once, and without ever waiting.
    #[cfg(feature = "cli")]
    pub(crate) fn report_now(
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
        // It is a sign of life all the same.
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

    /// What an earlier attempt saved, as JSON text.
    pub(crate) fn raw_checkpoint(&self) -> Option<&str> {
        self.job.claim.checkpoint.as_deref()
    }

    /// The payload, as it was enqueued.
    #[cfg(feature = "cli")]
    pub(crate) fn raw_payload(&self) -> &str {
        &self.job.claim.payload
    }

    /// Completes when the handler should stop, and says why. Never completes otherwise.
    ///
    /// Cancel safe.
    pub fn cancelled(&self) -> impl Future<Output = CancelReason> + Send + use<S> {
        let job = self.job.clone();
        async move {
            job.cancellation.cancelled().await;
            // Cut off: nobody else gave a reason.
            job.cancel_reason().unwrap_or(CancelReason::Lost)
        }
    }

    /// Why the handler should stop, if it should.
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

    /// What a call says whose write found no row of this attempt's: that the job is another's, which is recorded, or
    /// that the attempt itself has ended.
    async fn refused(&self, write: &'static str) -> ContextError {
        if !self.job.is_lost() && self.job.is_over() {
            return self.ended(write);
        }
        self.heartbeat.lost(&self.job, write).await;
        self.lost()
    }

    /// Refuses a write of a job that is known to be lost, or to have ended: the database would refuse it, too.
    async fn check_owned(&self, write: &'static str) -> Result<(), ContextError> {
        if self.job.is_lost() || self.job.is_ending() {
            return Err(self.refused(write).await);
        }
        if self.job.is_cut_off() {
            return Err(ContextError::CutOff { job: self.job.key.job, token: self.job.key.token });
        }
        Ok(())
    }

    /// Draws the conclusions from a transaction's end.
    async fn note<T>(&self, done: Result<T, JobError>, what: &'static str) -> Result<T, JobError> {
        if done.as_ref().is_err_and(JobError::is_lost) {
            let said = self.refused(what).await;
            if matches!(said, ContextError::Ended { .. }) {
                return Err(said.into());
            }
        }
        let unavailable = done.as_ref().is_err_and(JobError::is_unavailable);
        *self.job.unavailable_at() = unavailable.then(Instant::now);
        // Marked as the context's, whatever the handler does with it before it is returned.
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

    /// The first of the error and its causes that is of this type.
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

    /// Whether it says that this worker no longer owns the job.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.causes().any(|cause| matches!(cause.downcast_ref(), Some(ContextError::Lost { .. })))
    }

    /// Whether it says that tenure's Postgres went away: a call of the context found none, or the
    /// connection broke under the SQL in one. A statement that was refused, or ran out of its own time, is
    /// the attempt's failure like any other.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.causes().any(|cause| {
            cause.downcast_ref::<StoreError>().is_some_and(StoreError::is_outage)
                || cause.downcast_ref().is_some_and(ContextError::is_outage)
                || !self.answered && cause.downcast_ref::<sqlx::Error>().is_some_and(StoreError::says_gone)
        })
    }

    /// Whether a call of the context said so.
    pub(crate) fn is_outage(&self) -> bool {
        self.is(&ContextError::is_outage)
    }

    /// The connection's error as the context's own.
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
        let first: &(dyn std::error::Error + 'static) = &*self.source;
        std::iter::successors(Some(first), |error| error.source())
    }
}

#[cfg(all(test, feature = "dev"))]
mod tests;
