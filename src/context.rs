//! Context: what a running job can do. Progress, checkpoints, and writes that a stale worker cannot make.

use std::{
    future::Future,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use futures::future::BoxFuture;
use serde::{Serialize, de::DeserializeOwned};
use sqlx::{PgConnection, Row};

use crate::{
    claim::FencingToken,
    heartbeat::Heartbeat,
    job::{JobError, JobId, Outcome, unstorable},
    running::{CancelReason, RunningJob},
    store::{COMPLETE, EFFECT, EFFECT_RESULT, FENCE, LIMIT_IDLE, ONCE, ProgressWrite, Store, StoreError},
};

/// How often a report that waits for its write looks whether there still is anything to wait for.
const OVERDUE_LOOK: std::time::Duration = std::time::Duration::from_millis(500);

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
}

impl<S> Clone for JobContext<S> {
    fn clone(&self) -> Self {
        Self {
            job: self.job.clone(),
            state: self.state.clone(),
            store: self.store.clone(),
            heartbeat: self.heartbeat.clone(),
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
        self.job.claim.checkpoint.as_ref().and_then(|value| T::deserialize(value).ok())
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
    /// # Errors
    ///
    /// [`JobError`] that is permanent if the value cannot be stored; [`ContextError::Lost`] inside otherwise.
    pub async fn save_checkpoint<T: Serialize>(&self, checkpoint: &T) -> Result<(), JobError> {
        let value = serde_json::to_value(checkpoint)
            .map_err(|error| JobError::permanent(format!("the checkpoint is not JSON: {error}")))?;
        if let Some(why) = unstorable(&value) {
            return Err(JobError::permanent(format!("the checkpoint cannot be stored: {why}")));
        }
        self.report(None, None, None, Some(value.to_string())).await?;
        Ok(())
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
        let overdue = |job: &RunningJob| job.pulse().written_at.elapsed() > job.stale_after / 2;
        if overdue(&self.job) {
            let mut writes = self.job.writes.subscribe();
            while overdue(&self.job) && !self.job.is_ending() {
                self.heartbeat.hurry();
                tokio::select! {
                    changed = writes.changed() => if changed.is_err() { break },
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
        checkpoint: Option<&serde_json::Value>,
    ) -> Result<(), JobError> {
        if self.job.is_lost() {
            return Err(self.lost().into());
        }
        if let Some(why) = checkpoint.and_then(unstorable) {
            return Err(JobError::permanent(format!("the checkpoint cannot be stored: {why}")));
        }
        let checkpoint = checkpoint.map(ToString::to_string);
        Heartbeat::report(
            &self.job,
            ProgressWrite { key: self.job.key, stage, percent, message, checkpoint },
        );
        Ok(())
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
            job.cancel_reason().unwrap_or(CancelReason::Shutdown)
        }
    }

    /// Why the handler should stop, if it should.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.job.cancel_reason()
    }

    /// Runs the user's SQL and the fence check in one transaction, and commits it: a worker that lost
    /// the job can commit nothing.
    ///
    /// READ COMMITTED. The fence is checked last, so that the job's row is locked only for the commit,
    /// and the job's progress, its cancellation and other jobs are not held up. It counts as a sign of
    /// life. Retried, the SQL runs again: see [`JobContext::once`].
    ///
    /// Not protected: other databases, e-mails, anything that is not in this transaction.
    ///
    /// ```no_run
    /// # async fn f(ctx: tenure::JobContext) -> Result<(), tenure::JobError> {
    /// ctx.fenced_tx(|tx| Box::pin(async move {
    ///     sqlx::query("UPDATE accounts SET balance = balance - 1").execute(tx).await?;
    ///     Ok(())
    /// }))
    /// .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Cancel safe: dropped, it is rolled back.
    ///
    /// # Errors
    ///
    /// What the closure returned, rolled back; a [`JobError`] with [`ContextError::Lost`] inside
    /// ([`JobError::is_lost`]) if the job is no longer ours, rolled back; with
    /// [`ContextError::Store`] inside if Postgres did not answer: it may have been committed.
    pub async fn fenced_tx<T, W>(&self, work: W) -> Result<T, JobError>
    where
        T: Send + 'static,
        W: for<'t> FnOnce(&'t mut PgConnection) -> BoxFuture<'t, Result<T, JobError>> + Send + 'static,
    {
        self.check_owned("fenced_tx").await?;
        let key = self.job.key;
        let lost = self.lost();
        let idle = self.idle_limit();
        let sent_at = Instant::now();
        let done = self
            .store
            .in_transaction(move |tx| {
                Box::pin(async move {
                    let value = work(&mut *tx).await?;
                    sqlx::query(LIMIT_IDLE).bind(&idle).execute(&mut *tx).await.map_err(StoreError::from)?;
                    let owned = sqlx::query(FENCE)
                        .bind(key.job)
                        .bind(key.token)
                        .bind(key.claim)
                        .fetch_optional(tx)
                        .await
                        .map_err(StoreError::from)?;
                    if owned.is_none() { Err(lost.into()) } else { Ok(value) }
                })
            })
            .await;
        if done.is_ok() {
            self.job.written(sent_at);
        }
        self.note(done, "fenced_tx").await
    }

    /// Runs an effect that must happen once for the job, however often it is retried: a later attempt
    /// gets the stored result of the first that committed.
    ///
    /// The effect, its record and the fence check are one transaction; see [`JobContext::fenced_tx`].
    ///
    /// # Errors
    ///
    /// As [`JobContext::fenced_tx`]; also, permanently, if a stored result does not fit the type.
    pub async fn once<T, W>(&self, key: &str, work: W) -> Result<T, JobError>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        W: for<'t> FnOnce(&'t mut PgConnection) -> BoxFuture<'t, Result<T, JobError>> + Send + 'static,
    {
        let (job, token, name) = (self.id(), self.token(), key.to_owned());
        self.fenced_tx(move |tx| {
            Box::pin(async move {
                let mine =
                    sqlx::query(ONCE).bind(job).bind(&name).bind(token).fetch_optional(&mut *tx).await?;
                if mine.is_none() {
                    let row = sqlx::query(EFFECT).bind(job).bind(&name).fetch_one(tx).await?;
                    let result: String = row.try_get("result")?;
                    return serde_json::from_str(&result).map_err(|error| {
                        JobError::permanent(format!(
                            "the result of effect {name:?} does not fit its type: {error}"
                        ))
                    });
                }
                let result = work(&mut *tx).await?;
                let text = serde_json::to_string(&result).map_err(JobError::permanent)?;
                sqlx::query(EFFECT_RESULT).bind(job).bind(&name).bind(text).execute(tx).await?;
                Ok(result)
            })
        })
        .await
    }

    /// Completes the job in the user's transaction, and commits it: business writes and completion are
    /// one. Return what it returns.
    ///
    /// tenure makes the commit, because sqlx's says `Ok` for a transaction that was aborted.
    ///
    /// # Errors
    ///
    /// As [`JobContext::fenced_tx`]. When Postgres did not answer to the commit, tenure looks whether it
    /// happened before it says so.
    pub async fn complete_in(
        &self,
        mut tx: sqlx::PgTransaction<'_>,
        output: Option<serde_json::Value>,
    ) -> Result<Outcome, JobError> {
        self.check_owned("complete_in").await?;
        if let Some(why) = output.as_ref().and_then(unstorable) {
            return Err(JobError::permanent(format!("the output cannot be stored: {why}")));
        }
        let key = self.job.key;
        let lost = self.lost();
        let store = &self.store;
        // Until the commit has an answer the row is gone because of us.
        self.job.completing.store(true, Ordering::Release);
        let completed: Result<(), JobError> = async {
            let idle = self.idle_limit();
            sqlx::query(LIMIT_IDLE).bind(idle).execute(&mut *tx).await.map_err(StoreError::from)?;
            let owned = sqlx::query(COMPLETE)
                .bind(vec![key.job])
                .bind(vec![key.token])
                .bind(vec![key.claim])
                .bind(vec![output.as_ref().map(ToString::to_string)])
                .bind(vec![0])
                .fetch_optional(&mut *tx)
                .await
                .map_err(StoreError::from)?;
            if owned.is_none() {
                tx.rollback().await.map_err(StoreError::from)?;
                return Err(lost.into());
            }
            let Err(error) = tx.commit().await else { return Ok(()) };
            match store.settled_as(&key).await?.flatten().as_deref() {
                Some("completed") => Ok(()),
                _ => Err(StoreError::from(error).into()),
            }
        }
        .await;
        self.job.settled.store(completed.is_ok(), Ordering::Release);
        self.job.completing.store(false, Ordering::Release);
        self.note(completed, "complete_in").await?;
        Ok(Outcome::Done(output))
    }

    fn idle_limit(&self) -> String {
        format!("{}ms", (self.job.stale_after / 2).as_millis().max(1_000))
    }

    fn lost(&self) -> ContextError {
        ContextError::Lost { job: self.job.key.job, token: self.job.key.token }
    }

    /// Refuses a write of a job that is known to be lost: the database would refuse it, too.
    async fn check_owned(&self, write: &'static str) -> Result<(), ContextError> {
        if !self.job.is_lost() {
            return Ok(());
        }
        self.heartbeat.lost(&self.job, write).await;
        Err(self.lost())
    }

    /// Draws the conclusions from a transaction's end.
    async fn note<T>(&self, done: Result<T, JobError>, what: &'static str) -> Result<T, JobError> {
        if done.as_ref().is_err_and(JobError::is_lost) {
            self.heartbeat.lost(&self.job, what).await;
        }
        let unavailable = done.as_ref().is_err_and(JobError::is_unavailable);
        self.job.unavailable.store(unavailable, Ordering::Release);
        // Marked as the context's, whatever the handler does with it before it is returned.
        done.map_err(|error| if unavailable { error.into_outage() } else { error })
    }
}

impl JobError {
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
            cause.downcast_ref::<StoreError>().is_some_and(StoreError::is_unavailable)
                || matches!(cause.downcast_ref(), Some(ContextError::Store(StoreError::Unavailable(_))))
                || cause.downcast_ref::<sqlx::Error>().is_some_and(StoreError::says_gone)
        })
    }

    /// Whether a call of the context said so.
    pub(crate) fn is_outage(&self) -> bool {
        self.causes().any(|cause| {
            matches!(cause.downcast_ref(), Some(ContextError::Store(StoreError::Unavailable(_))))
        })
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
