//! Effects: what a handler writes to Postgres, in transactions that a stale worker cannot commit.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use serde::{Serialize, de::DeserializeOwned};
use sqlx::{PgConnection, Row};

use super::{ContextError, JobContext};
use crate::{
    job::{JobError, Outcome, check_key, unstorable},
    run::running::RunningJob,
    store::{
        COMPLETE_IN, COMPLETE_IN_TOLD, EFFECT, EFFECT_RESULT, FENCE, HOLD, Isolation, LIMIT_IDLE,
        LIMIT_TRANSACTION, ONCE, Store, StoreError,
    },
};

/// The longest that a transaction may sit idle between the fence and the commit.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// How often a transaction is begun anew because the job's row changed under its first statement.
const HOLDS_MAX: usize = 5;

/// What names a transaction on the server.
#[derive(Debug, Clone, Copy)]
struct Transaction {
    pid: i32,
    began: DateTime<Utc>,
}

/// Ends a transaction on the server that is given up. One that was rolled back is not found there any more.
struct GivenUp {
    store: Store,
    transaction: Option<Transaction>,
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        if let Some(Transaction { pid, began }) = self.transaction {
            self.store.end_transaction(pid, began);
        }
    }
}

/// Has progress written again.
struct Resume<'j>(&'j RunningJob);

impl Drop for Resume<'_> {
    fn drop(&mut self) {
        self.0.pulse().held_until = None;
    }
}

/// The handler completes the job itself; dropped in the middle, it does not any more.
struct Completing<'j>(&'j RunningJob);

impl<'j> Completing<'j> {
    fn new(job: &'j RunningJob) -> Self {
        job.completing.store(true, Ordering::Release);
        Self(job)
    }
}

impl Drop for Completing<'_> {
    fn drop(&mut self) {
        self.0.completing.store(false, Ordering::Release);
        self.0.pulse().held_until = None;
    }
}

impl<S> JobContext<S> {
    /// Runs the user's SQL and the fence check in one transaction, and commits it: a worker that lost
    /// the job can commit nothing.
    ///
    /// READ COMMITTED; [`JobContext::fenced_tx_with`] has the other levels. The fence is checked last, so
    /// that the job's row is locked only for the commit, and the job's progress, its cancellation and other
    /// jobs are not held up. It counts as a sign of life. An attempt that is retried runs the SQL again: see
    /// [`JobContext::once`].
    ///
    /// Not protected: other databases, e-mails, anything that is not in this transaction. Pass
    /// [`JobContext::token`] on to what can refuse a lower one, and [`JobContext::idempotency_key`] to what
    /// can recognise a repetition.
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
    /// Cancel safe: dropped before its commit, it is rolled back.
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
        self.fenced_tx_with(Isolation::ReadCommitted, work).await
    }

    /// [`JobContext::fenced_tx`] at another isolation level.
    ///
    /// From REPEATABLE READ on, the fence is checked first: what a transaction's snapshot shows of the job
    /// says nothing about now. From then on nobody can take the job back until the transaction ends, and so
    /// it must end within a quarter of the kind's `stale_after`. The job's progress is written meanwhile,
    /// and a cancellation arrives.
    ///
    /// Cancel safe: dropped before its commit, it is rolled back, and its session on the server is ended.
    ///
    /// # Errors
    ///
    /// As [`JobContext::fenced_tx`]; also [`ContextError::TooLong`], rolled back. A serialization failure of
    /// the closure's own SQL is the closure's error: return it, and the job is tried again.
    pub async fn fenced_tx_with<T, W>(&self, isolation: Isolation, work: W) -> Result<T, JobError>
    where
        T: Send + 'static,
        W: for<'t> FnOnce(&'t mut PgConnection) -> BoxFuture<'t, Result<T, JobError>> + Send + 'static,
    {
        self.check_owned("fenced_tx").await?;
        let done = match isolation {
            Isolation::ReadCommitted => self.fenced_last(work).await,
            _ => self.fenced_first(isolation, work).await,
        };
        // Ours, not the closure's: at the commit, SERIALIZABLE may find a conflict.
        let conflicts = |error: &JobError| {
            error.downcast_ref::<StoreError>().is_some_and(StoreError::is_serialization_failure)
        };
        let done = match done {
            Err(error) if conflicts(&error) => Err(self.conflict_or_lost().await.into()),
            done => done,
        };
        self.note(done, "fenced_tx").await
    }

    async fn fenced_last<T, W>(&self, work: W) -> Result<T, JobError>
    where
        T: Send + 'static,
        W: for<'t> FnOnce(&'t mut PgConnection) -> BoxFuture<'t, Result<T, JobError>> + Send + 'static,
    {
        let (key, lost, idle, store) = (self.job.key, self.lost(), self.idle_limit(), self.store.clone());
        let (value, sent_at) = self
            .store
            .in_transaction(Isolation::ReadCommitted, self.job.rules.stale_after / 2, move |tx| {
                Box::pin(async move {
                    let value = work(&mut *tx).await?;
                    let limit = sqlx::query(LIMIT_IDLE).bind(&idle).execute(&mut *tx);
                    store.deadline(limit).await.map_err(StoreError::from)?;
                    let sent_at = Instant::now();
                    let fence = sqlx::query(FENCE).bind(key.job).bind(key.token).bind(key.claim);
                    let owned = store.deadline(fence.fetch_optional(tx)).await.map_err(StoreError::from)?;
                    if owned.is_none() { Err(JobError::from(lost)) } else { Ok((value, sent_at)) }
                })
            })
            .await?;
        self.job.written(sent_at);
        Ok(value)
    }

    async fn fenced_first<T, W>(&self, isolation: Isolation, work: W) -> Result<T, JobError>
    where
        T: Send + 'static,
        W: for<'t> FnOnce(&'t mut PgConnection) -> BoxFuture<'t, Result<T, JobError>> + Send + 'static,
    {
        let limit = self.hold_limit();
        let work = Arc::new(Mutex::new(Some(work)));
        for _ in 0..HOLDS_MAX {
            let (context, shared) = (self.unstated(), work.clone());
            let store = self.store.clone();
            let done = self.store.in_transaction(isolation, limit, move |tx| {
                Box::pin(async move {
                    // Given up in the middle, by us or with this future, the server would go on.
                    let mut given_up = GivenUp { store, transaction: None };
                    let within = async {
                        given_up.transaction = Some(context.hold_row(&mut *tx).await?);
                        let work = shared.lock().unwrap_or_else(PoisonError::into_inner).take();
                        let Some(work) = work else {
                            return Err(JobError::msg("the transaction was begun twice"));
                        };
                        let value = work(&mut *tx).await?;
                        // A statement whose error the closure ignored has aborted the transaction, which
                        // sqlx's commit would not tell.
                        context.hold_row(tx).await?;
                        Ok(value)
                    };
                    let value = match tokio::time::timeout(limit, within).await {
                        Ok(done) => done?,
                        Err(_) => return Err(ContextError::TooLong { limit }.into()),
                    };
                    // What comes now is the commit, which must not be cut off.
                    given_up.transaction = None;
                    Ok(value)
                })
            });
            let done: Result<T, JobError> = done.await;
            // The row changed between the snapshot and the lock; the user's SQL has not begun.
            let unused = work.lock().unwrap_or_else(PoisonError::into_inner).is_some();
            let again = unused && done.as_ref().is_err_and(|error| error.is(&ContextError::is_conflict));
            if !again {
                return done;
            }
        }
        Err(self.conflict_or_lost().await.into())
    }

    /// For REPEATABLE READ and SERIALIZABLE, where [`JobContext::complete_in`] shall commit: the first
    /// statement of such a transaction.
    ///
    /// Checks the fence. Until the transaction ends nobody can take the job back, and its progress waits:
    /// otherwise the completion would find that the job's row changed since the transaction's snapshot, and
    /// be refused. No statement, and no pause between two, may last longer than a third of the kind's
    /// `stale_after`; from Postgres 17 on, neither may the whole. After that time progress goes on.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`ContextError::Lost`]; [`ContextError::Conflict`]: roll back, and begin again.
    pub async fn hold(&self, tx: &mut PgConnection) -> Result<(), ContextError> {
        self.check_owned("hold").await?;
        self.heartbeat.pause(&self.job, self.hold_limit()).await;
        let resume = Resume(&self.job);
        let held = self.hold_row(tx).await;
        if held.is_ok() {
            std::mem::forget(resume);
        }
        match held {
            Ok(_) => Ok(()),
            Err(ContextError::Lost { .. }) => Err(self.refused("hold").await),
            Err(error) => Err(error),
        }
    }

    /// Checks the fence, and keeps the job; returns what names this transaction.
    async fn hold_row(&self, tx: &mut PgConnection) -> Result<Transaction, ContextError> {
        let key = self.job.key;
        let hold = sqlx::query(HOLD).bind(key.job).bind(key.token).bind(key.claim);
        let row = match self.store.deadline(hold.fetch_optional(&mut *tx)).await.map_err(StoreError::from) {
            Ok(Some(row)) => row,
            Ok(None) => return Err(self.lost()),
            Err(error) if error.is_serialization_failure() => return Err(self.conflict()),
            Err(error) => return Err(error.into()),
        };
        // The server's limits come after ours, which says what to do.
        let limit = format!("{}ms", (self.hold_limit() * 5 / 4).as_millis().max(1));
        let limit = sqlx::query(LIMIT_TRANSACTION).bind(limit).execute(tx);
        self.store.deadline(limit).await.map_err(StoreError::from)?;
        let transaction = || Ok(Transaction { pid: row.try_get("pid")?, began: row.try_get("began")? });
        transaction().map_err(|error: sqlx::Error| StoreError::from(error).into())
    }

    /// Runs an effect that must happen once for the job, however often it is retried: a later attempt
    /// gets the stored result of the first that committed.
    ///
    /// The effect, its record and the fence check are one transaction; see [`JobContext::fenced_tx`]. `key`
    /// names the effect within the job: 1 to 512 bytes without control characters.
    ///
    /// Cancel safe: dropped before its commit, it is rolled back.
    ///
    /// # Errors
    ///
    /// As [`JobContext::fenced_tx`]; also, permanently, for a key that is none, and if a stored result does
    /// not fit the type.
    pub async fn once<T, W>(&self, key: &str, work: W) -> Result<T, JobError>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        W: for<'t> FnOnce(&'t mut PgConnection) -> BoxFuture<'t, Result<T, JobError>> + Send + 'static,
    {
        self.once_with(Isolation::ReadCommitted, key, work).await
    }

    /// [`JobContext::once`] at another isolation level; see [`JobContext::fenced_tx_with`].
    pub async fn once_with<T, W>(&self, isolation: Isolation, key: &str, work: W) -> Result<T, JobError>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        W: for<'t> FnOnce(&'t mut PgConnection) -> BoxFuture<'t, Result<T, JobError>> + Send + 'static,
    {
        check_key(key).map_err(|rule| JobError::permanent(format!("the key of `once` {rule}: {key:?}")))?;
        let (job, token, name) = (self.id(), self.token(), key.to_owned());
        let store = self.store.clone();
        self.fenced_tx_with(isolation, move |tx| {
            Box::pin(async move {
                let once = sqlx::query(ONCE).bind(job).bind(&name).bind(token).fetch_optional(&mut *tx);
                let mine = match store.deadline(once).await {
                    Err(sqlx::Error::Io(error)) if error.kind() == std::io::ErrorKind::TimedOut => {
                        return Err(JobError::msg(format!(
                            "effect {name:?} is being done in another transaction of this job that does not end"
                        )));
                    }
                    mine => mine?,
                };
                if mine.is_none() {
                    let effect = sqlx::query(EFFECT).bind(job).bind(&name).fetch_one(tx);
                    let row = store.deadline(effect).await?;
                    let result: String = row.try_get("result")?;
                    return serde_json::from_str(&result).map_err(|error| {
                        JobError::permanent(format!(
                            "the result of effect {name:?} does not fit its type: {error}"
                        ))
                    });
                }
                let result = work(&mut *tx).await?;
                let value = serde_json::to_value(&result).map_err(JobError::permanent)?;
                if let Some(why) = unstorable(&value) {
                    let text = format!("the result of effect {name:?} cannot be stored: {why}");
                    return Err(JobError::permanent(text));
                }
                let text = value.to_string();
                let record = sqlx::query(EFFECT_RESULT).bind(job).bind(&name).bind(text).execute(tx);
                store.deadline(record).await?;
                Ok(result)
            })
        })
        .await
    }

    /// A key for a system outside Postgres that recognises repetitions: the same for every attempt of this
    /// job at this step, and for no other job.
    pub fn idempotency_key(&self, step: &str) -> String {
        format!("{}:{step}", self.id())
    }

    /// Completes the job in the user's transaction, and commits it: business writes and completion are
    /// one. Return what it returns.
    ///
    /// tenure makes the commit, because sqlx's says `Ok` for a transaction that was aborted. Any isolation
    /// level; from REPEATABLE READ on, begin with [`JobContext::hold`].
    ///
    /// Not cancel safe: dropped while it commits, the job may be completed, and the handler is then told that
    /// it is [`Lost`](crate::CancelReason::Lost).
    ///
    /// ```no_run
    /// # async fn f(ctx: tenure::JobContext, pool: sqlx::PgPool) -> Result<tenure::Outcome, tenure::JobError> {
    /// let mut tx = pool.begin().await?;
    /// sqlx::query("UPDATE orders SET paid = true").execute(&mut *tx).await?;
    /// ctx.complete_in(tx, Some(serde_json::json!("paid"))).await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`JobContext::fenced_tx`]; [`ContextError::Conflict`] inside if the job's row changed since the
    /// transaction's snapshot. When Postgres did not answer to the commit, tenure looks whether it happened
    /// before it says so.
    pub async fn complete_in(
        &self,
        tx: sqlx::PgTransaction<'_>,
        output: Option<serde_json::Value>,
    ) -> Result<Outcome, JobError> {
        self.check_owned("complete_in").await?;
        if let Some(why) = output.as_ref().and_then(unstorable) {
            return Err(JobError::permanent(format!("the output cannot be stored: {why}")));
        }
        // Until the commit has an answer the row is gone because of us.
        let completing = Completing::new(&self.job);
        let completed = self.try_complete_in(tx, output.as_ref()).await;
        if completed.is_ok() {
            self.store.note_commit();
            self.job.settled.store(true, Ordering::Release);
        }
        drop(completing);
        self.note(completed, "complete_in").await?;
        Ok(Outcome::Done(output))
    }

    async fn try_complete_in(
        &self,
        mut tx: sqlx::PgTransaction<'_>,
        output: Option<&serde_json::Value>,
    ) -> Result<(), JobError> {
        let (key, store) = (self.job.key, &self.store);
        let limit = sqlx::query(LIMIT_IDLE).bind(self.idle_limit()).execute(&mut *tx);
        store.deadline(limit).await.map_err(StoreError::from)?;
        // In the statement itself: written before it, it would be news to a lasting snapshot.
        let report = self.job.unwritten_report().and_then(|report| report.report());
        let complete = sqlx::query(if report.is_some() { COMPLETE_IN_TOLD } else { COMPLETE_IN })
            .bind(vec![key.job])
            .bind(vec![key.token])
            .bind(vec![key.claim])
            .bind(vec![output.map(ToString::to_string)]);
        let complete = if report.is_some() { complete.bind(report) } else { complete };
        match store.deadline(complete.fetch_optional(&mut *tx)).await.map_err(StoreError::from) {
            Ok(Some(_)) => {}
            Ok(None) => {
                store.deadline(tx.rollback()).await.map_err(StoreError::from)?;
                // A second call, after a commit whose answer was lost.
                if store.settled_as(&key).await?.flatten().as_deref() == Some("completed") {
                    return Ok(());
                }
                return Err(self.lost().into());
            }
            Err(error) if error.is_serialization_failure() => {
                store.deadline(tx.rollback()).await.map_err(StoreError::from)?;
                return Err(self.conflict_or_lost().await.into());
            }
            Err(error) => return Err(error.into()),
        }
        let Err(error) = store.deadline(tx.commit()).await.map_err(StoreError::from) else { return Ok(()) };
        match store.settled_as(&key).await?.flatten().as_deref() {
            Some("completed") => Ok(()),
            // SERIALIZABLE may refuse at the commit.
            _ if error.is_serialization_failure() => Err(self.conflict_or_lost().await.into()),
            _ => Err(error.into()),
        }
    }

    /// This context without the worker's state: what a transaction's closure can own.
    fn unstated(&self) -> JobContext {
        JobContext {
            job: self.job.clone(),
            state: Arc::new(()),
            store: self.store.clone(),
            heartbeat: self.heartbeat.clone(),
            checkpoint_bytes_max: self.checkpoint_bytes_max,
        }
    }

    /// How long a transaction may keep the job from being taken back.
    pub(super) fn hold_limit(&self) -> Duration {
        self.job.rules.stale_after / 4
    }

    fn conflict(&self) -> ContextError {
        ContextError::Conflict { job: self.job.key.job }
    }

    /// The job's row changed under a transaction: because the job was taken back, or not.
    pub(super) async fn conflict_or_lost(&self) -> ContextError {
        match self.store.still_mine(&[self.job.key]).await {
            Ok(mine) if mine.first().copied().flatten().is_none() => self.lost(),
            Ok(_) => self.conflict(),
            Err(error) => error.into(),
        }
    }

    /// Only a frozen worker sits idle between its last statement and the commit.
    pub(super) fn idle_limit(&self) -> String {
        let limit = (self.job.rules.stale_after / 4).clamp(Duration::from_secs(1), IDLE_MAX);
        format!("{}ms", limit.as_millis())
    }
}
