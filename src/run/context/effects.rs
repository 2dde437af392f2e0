//! Effects: a handler's writes to Postgres, in transactions that a stale worker cannot commit.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use serde::{Serialize, de::DeserializeOwned};
use sqlx::{PgConnection, Postgres, Row, postgres::PgArguments, query::Query};

use super::{ContextError, JobContext};
use crate::{
    codec::job::Part,
    job::{JobError, Outcome, attempt::AttemptOutcome, check_key, sizes::unfit},
    run::running::RunningJob,
    steps::run::taken,
    store::{
        COMPLETE_IN, COMPLETE_IN_TOLD, COMPLETE_UNKEPT_ONE, EFFECT, EFFECT_RESULT, FENCE, Isolation,
        LIMIT_IDLE, LIMIT_TRANSACTION, LOCK_JOB, ONCE, Store, StoreError,
    },
};

/// The longest that a transaction may sit idle between the fence and the commit.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// The most tries of a transaction whose first statement meets a change of the job's row.
const LOCKS_MAX: usize = 5;

/// The server's identity of a transaction.
#[derive(Debug, Clone, Copy)]
struct Transaction {
    pid: i32,
    began: DateTime<Utc>,
}

/// Ends an abandoned transaction on the server. No effect on one that was rolled back.
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

/// Dropped, it resumes the progress writes.
struct Resume<'j>(&'j RunningJob);

impl Drop for Resume<'_> {
    fn drop(&mut self) {
        self.0.pulse().held_until = None;
    }
}

/// Marks that the handler is completing the job itself. Dropped, it clears the mark.
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
    /// Runs the closure's SQL and the fence check in one transaction, and commits it: a worker that has lost
    /// the job can commit nothing.
    ///
    /// The level is READ COMMITTED; use [`JobContext::fenced_tx_with`] for others. The fence check comes last: it
    /// locks the job's row only for the commit, and delays neither progress nor a cancellation nor other jobs. The
    /// commit counts as a heartbeat. A retried attempt runs the SQL again: see [`JobContext::once`].
    ///
    /// The closure may borrow: the job, this context, local variables. Stable Rust has no way to require that its
    /// future is `Send`, so this call requires nothing: its own future is `Send` if the closure's is, and the
    /// compiler checks that where the handler is registered or the future spawned.
    ///
    /// Not protected: other databases, e-mails, anything outside this transaction. Pass [`JobContext::token`] to
    /// systems that can refuse a lower token, and [`JobContext::idempotency_key`] to systems that can recognise a
    /// repetition.
    ///
    /// ```no_run
    /// # async fn f(ctx: tenure::JobContext) -> Result<(), tenure::JobError> {
    /// let price = 12;
    /// ctx.fenced_tx(async |tx| {
    ///     sqlx::query("UPDATE accounts SET balance = balance - $1").bind(price).execute(tx).await?;
    ///     Ok(())
    /// })
    /// .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Cancel safe: dropped before its commit, it is rolled back.
    ///
    /// # Errors
    ///
    /// - The closure's error: rolled back.
    /// - A [`JobError`] with [`ContextError::Lost`] inside ([`JobError::is_lost`]), if this worker no longer owns the
    ///   job: rolled back.
    /// - A [`JobError`] with [`ContextError::Store`] inside, if Postgres did not answer: perhaps committed.
    pub async fn fenced_tx<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, JobError>,
    ) -> Result<T, JobError> {
        self.fenced_tx_with(Isolation::ReadCommitted, work).await
    }

    /// [`JobContext::fenced_tx`] at another isolation level.
    ///
    /// From REPEATABLE READ on, the fence check comes first, because a snapshot does not show who owns the job now.
    /// No worker can reset the job until the transaction ends, so it must end within a quarter of the kind's
    /// `stale_after`. Progress and a cancellation get through meanwhile.
    ///
    /// Cancel safe: dropped before its commit, the transaction is rolled back, and its session on the server ended.
    ///
    /// # Errors
    ///
    /// As [`JobContext::fenced_tx`]; also [`ContextError::TooLong`], rolled back. A serialization failure of
    /// the closure's own SQL is the closure's error: return it to retry the job.
    pub async fn fenced_tx_with<T>(
        &self,
        isolation: Isolation,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, JobError>,
    ) -> Result<T, JobError> {
        self.check_owned("fenced_tx").await?;
        let done = match isolation {
            Isolation::ReadCommitted => self.fenced_last(work).await,
            _ => self.fenced_first(isolation, work).await,
        };
        // Not the closure's own error: SERIALIZABLE may find a conflict at the commit.
        let conflicts = |error: &JobError| {
            error.downcast_ref::<StoreError>().is_some_and(StoreError::is_serialization_failure)
        };
        let done = match done {
            Err(error) if conflicts(&error) => Err(self.conflict_or_lost().await.into()),
            done => done,
        };
        self.note(done, "fenced_tx").await
    }

    async fn fenced_last<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, JobError>,
    ) -> Result<T, JobError> {
        let (key, store) = (self.job.key, &self.store);
        let in_transaction = async |tx: &mut PgConnection| {
            let value = work(&mut *tx).await?;
            let limit = sqlx::query(LIMIT_IDLE).bind(self.idle_limit()).execute(&mut *tx);
            store.deadline(limit).await.map_err(StoreError::from)?;
            let sent_at = Instant::now();
            let fence = sqlx::query(FENCE).bind(key.job).bind(key.token).bind(key.claim);
            let owned = store.deadline(fence.fetch_optional(tx)).await.map_err(StoreError::from)?;
            if owned.is_none() { Err(JobError::from(self.lost())) } else { Ok((value, sent_at)) }
        };
        let idle = self.job.rules.stale_after / 2;
        let (value, sent_at) = store.in_transaction(Isolation::ReadCommitted, idle, in_transaction).await?;
        self.job.written(sent_at);
        Ok(value)
    }

    async fn fenced_first<T>(
        &self,
        isolation: Isolation,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, JobError>,
    ) -> Result<T, JobError> {
        let limit = self.hold_limit();
        let mut work = Some(work);
        for _ in 0..LOCKS_MAX {
            let unused = &mut work;
            let in_transaction = async |tx: &mut PgConnection| {
                // The server would go on if this future is dropped in the middle.
                let mut given_up = GivenUp { store: self.store.clone(), transaction: None };
                let within = async {
                    given_up.transaction = Some(self.hold_row(&mut *tx).await?);
                    let Some(work) = unused.take() else {
                        return Err(JobError::msg(
                            "the transaction was started twice; this is a bug in tenure",
                        ));
                    };
                    let value = work(&mut *tx).await?;
                    // An error that the closure ignored has aborted the transaction; sqlx's commit would
                    // not report that.
                    self.hold_row(tx).await?;
                    Ok(value)
                };
                let value = match tokio::time::timeout(limit, within).await {
                    Ok(done) => done?,
                    Err(_) => return Err(ContextError::TooLong { limit }.into()),
                };
                // The commit comes next, and must not be cut off.
                given_up.transaction = None;
                Ok(value)
            };
            let done: Result<T, JobError> = self.store.in_transaction(isolation, limit, in_transaction).await;
            // The row changed between the snapshot and the lock, and the closure has not begun.
            let again =
                work.is_some() && done.as_ref().is_err_and(|error| error.is(&ContextError::is_conflict));
            if !again {
                return done;
            }
        }
        Err(self.conflict_or_lost().await.into())
    }

    /// Holds the job for a transaction at REPEATABLE READ or SERIALIZABLE that [`JobContext::complete_in`] will
    /// commit. Must be the first statement of the transaction.
    ///
    /// Checks the fence. Until the transaction ends, no worker can reset the job, and the job's progress waits: a
    /// progress write would change the row after the snapshot, and Postgres would refuse the completion. No
    /// statement, and no pause between two, may last longer than a third of the kind's `stale_after`; from
    /// Postgres 17 on, neither may the whole transaction. After that time progress goes on.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`ContextError::Lost`]; [`ContextError::Conflict`]: roll back, and begin again.
    pub async fn lock_job(&self, tx: &mut PgConnection) -> Result<(), ContextError> {
        self.check_owned("lock_job").await?;
        self.heartbeat.pause(&self.job, self.hold_limit()).await;
        let resume = Resume(&self.job);
        let held = self.hold_row(tx).await;
        if held.is_ok() {
            std::mem::forget(resume);
        }
        match held {
            Ok(_) => Ok(()),
            Err(ContextError::Lost { .. }) => Err(self.refused("lock_job").await),
            Err(error) => Err(error),
        }
    }

    /// Checks the fence, locks the job's row, and returns the server's identity of the transaction.
    async fn hold_row(&self, tx: &mut PgConnection) -> Result<Transaction, ContextError> {
        let key = self.job.key;
        let lock = sqlx::query(LOCK_JOB).bind(key.job).bind(key.token).bind(key.claim);
        let row = match self.store.deadline(lock.fetch_optional(&mut *tx)).await.map_err(StoreError::from) {
            Ok(Some(row)) => row,
            Ok(None) => return Err(self.lost()),
            Err(error) if error.is_serialization_failure() => return Err(self.conflict()),
            Err(error) => return Err(error.into()),
        };
        // The server's limit comes after the client's, whose error says what to do.
        let limit = format!("{}ms", (self.hold_limit() * 5 / 4).as_millis().max(1));
        let limit = sqlx::query(LIMIT_TRANSACTION).bind(limit).execute(tx);
        self.store.deadline(limit).await.map_err(StoreError::from)?;
        let transaction = || Ok(Transaction { pid: row.try_get("pid")?, began: row.try_get("began")? });
        transaction().map_err(|error: sqlx::Error| StoreError::from(error).into())
    }

    /// Runs an effect that must happen once for the job, no matter how often the job is retried: a later attempt
    /// gets the stored result of the first commit.
    ///
    /// The effect, its record and the fence check are one transaction; see [`JobContext::fenced_tx`]. `key`
    /// names the effect within the job: 1 to 512 bytes without control characters.
    ///
    /// ```no_run
    /// # use tenure::{JobContext, JobError};
    /// # struct Order { id: i64, card: String }
    /// # fn is_send<F: Send>(future: F) -> F { future }
    /// # async fn f(order: Order, ctx: JobContext) -> Result<(), JobError> {
    /// # is_send(async {
    /// let charge: i64 = ctx
    ///     .once("charge", async |tx| {
    ///         let insert = sqlx::query_scalar("INSERT INTO charges (id, card) VALUES ($1, $2) RETURNING number");
    ///         Ok(insert.bind(order.id).bind(&order.card).fetch_one(tx).await?)
    ///     })
    ///     .await?;
    /// # Ok::<_, JobError>(()) }).await }
    /// ```
    ///
    /// Cancel safe: dropped before its commit, it is rolled back.
    ///
    /// # Errors
    ///
    /// As [`JobContext::fenced_tx`]; also a permanent [`JobError`] if the key is not valid, or if a stored result
    /// does not fit the type.
    pub async fn once<T: Serialize + DeserializeOwned>(
        &self,
        key: &str,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, JobError>,
    ) -> Result<T, JobError> {
        self.once_with(Isolation::ReadCommitted, key, work).await
    }

    /// [`JobContext::once`] at another isolation level; see [`JobContext::fenced_tx_with`].
    ///
    /// Cancel safe, as [`JobContext::once`] is.
    ///
    /// # Errors
    ///
    /// Those of [`JobContext::once`]; also [`ContextError::TooLong`], rolled back.
    pub async fn once_with<T: Serialize + DeserializeOwned>(
        &self,
        isolation: Isolation,
        key: &str,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, JobError>,
    ) -> Result<T, JobError> {
        check_key(key).map_err(|rule| JobError::permanent(format!("the key of `once` {rule}: {key:?}")))?;
        self.job.has_effects.store(true, Ordering::Release);
        let (job, token, store) = (self.id(), self.token(), &self.store);
        let recorded = async |tx: &mut PgConnection| {
            let once = sqlx::query(ONCE).bind(job).bind(key).bind(token).fetch_optional(&mut *tx);
            let mine = match store.deadline(once).await {
                Err(sqlx::Error::Io(error)) if error.kind() == std::io::ErrorKind::TimedOut => {
                    return Err(JobError::msg(format!(
                        "effect {key:?} is still running in another transaction of this job; end that transaction"
                    )));
                }
                mine => mine?,
            };
            if mine.is_none() {
                let effect = sqlx::query(EFFECT).bind(job).bind(key).fetch_one(tx);
                let row = store.deadline(effect).await?;
                if row.try_get("is_step")? {
                    return Err(taken(key));
                }
                let result: String = row.try_get("result")?;
                let result = self.open(Part::Result, &format!("the result of effect {key:?}"), result)?;
                return serde_json::from_str(&result).map_err(|error| {
                    let error = self.misfit(&error);
                    JobError::permanent(format!(
                        "the result of effect {key:?} does not fit its type: {error}"
                    ))
                });
            }
            let result = work(&mut *tx).await?;
            let value = serde_json::to_value(&result).map_err(JobError::permanent)?;
            if let Some(why) = unfit(&value) {
                let text = format!("the result of effect {key:?} cannot be stored: {why}");
                return Err(JobError::permanent(text));
            }
            let text = self.seal(Part::Result, "the result of an effect", value.to_string())?;
            let record = sqlx::query(EFFECT_RESULT).bind(job).bind(key).bind(text).execute(tx);
            store.deadline(record).await?;
            Ok(result)
        };
        self.fenced_tx_with(isolation, recorded).await
    }

    /// Returns a key for a system outside Postgres that recognises repetitions: the same for every attempt of this
    /// job at this step, and for no other job.
    pub fn idempotency_key(&self, step: &str) -> String {
        format!("{}:{step}", self.id())
    }

    /// Completes the job in the user's transaction, and commits it: the user's writes and the completion are one
    /// commit. Return its result from the handler.
    ///
    /// tenure makes the commit, because sqlx's `commit` returns `Ok` for an aborted transaction. Any isolation level
    /// works; from REPEATABLE READ on, begin with [`JobContext::lock_job`].
    ///
    /// Not cancel safe: dropped during the commit, the job may be completed, and the worker then cancels the handler
    /// with [`Lost`](crate::handlers::CancelReason::Lost).
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
    /// transaction's snapshot. If Postgres does not answer the commit, tenure checks whether the commit happened
    /// before it returns an error.
    pub async fn complete_in(
        &self,
        tx: sqlx::PgTransaction<'_>,
        output: Option<serde_json::Value>,
    ) -> Result<Outcome, JobError> {
        self.check_owned("complete_in").await?;
        if let Some(why) = output.as_ref().and_then(unfit) {
            return Err(JobError::permanent(format!("the output cannot be stored: {why}")));
        }
        let sealed = output.as_ref().map(|output| self.seal_value(output)).transpose()?;
        // Until the commit has an answer, this call is the reason why the row is missing.
        let completing = Completing::new(&self.job);
        let completed = self.try_complete_in(tx, sealed.as_deref()).await;
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
        output: Option<&str>,
    ) -> Result<(), JobError> {
        let (key, store) = (self.job.key, &self.store);
        let limit = sqlx::query(LIMIT_IDLE).bind(self.idle_limit()).execute(&mut *tx);
        store.deadline(limit).await.map_err(StoreError::from)?;
        let complete = self.completion(output);
        match store.deadline(complete.fetch_optional(&mut *tx)).await.map_err(StoreError::from) {
            Ok(Some(_)) => {}
            Ok(None) => {
                store.deadline(tx.rollback()).await.map_err(StoreError::from)?;
                // A second call, after a commit whose answer was lost.
                if store.settled_as(&key).await?.flatten() == Some(AttemptOutcome::Completed) {
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
        match store.settled_as(&key).await? {
            Some(Some(AttemptOutcome::Completed)) => Ok(()),
            // Nothing stays of it to ask for, and the row that the transaction has deleted is gone.
            None if self.job.rules.no_history && error.is_outage() => Ok(()),
            // SERIALIZABLE may refuse at the commit.
            _ if error.is_serialization_failure() => Err(self.conflict_or_lost().await.into()),
            _ => Err(error.into()),
        }
    }

    /// Returns the statement that completes the job as the last one of a transaction.
    fn completion(&self, output: Option<&str>) -> Query<'static, Postgres, PgArguments> {
        let key = self.job.key;
        if self.job.rules.no_history {
            let complete = sqlx::query(COMPLETE_UNKEPT_ONE).bind(key.job).bind(key.token).bind(key.claim);
            // Another task of the handler may be recording an effect. The session's limits hold.
            return complete.bind(vec![key.job]).bind(None::<&str>);
        }
        // In the completion's own statement: an earlier write would change the row after the snapshot.
        let report = self.job.unwritten_report().and_then(|report| report.report());
        let complete = sqlx::query(if report.is_some() { COMPLETE_IN_TOLD } else { COMPLETE_IN })
            .bind(vec![key.job])
            .bind(vec![key.token])
            .bind(vec![key.claim])
            .bind(vec![output.map(ToString::to_string)]);
        if report.is_some() { complete.bind(report) } else { complete }
    }

    /// Returns this context without the worker's state, for a handler that was added before the state.
    pub(crate) fn unstated(&self) -> JobContext {
        self.with_state(Arc::new(()))
    }

    /// Returns this context with another state.
    pub(crate) fn with_state<T>(&self, state: Arc<T>) -> JobContext<T> {
        JobContext {
            job: self.job.clone(),
            state,
            store: self.store.clone(),
            heartbeat: self.heartbeat.clone(),
            recorder: self.recorder.clone(),
            checkpoint_bytes_max: self.checkpoint_bytes_max,
            payload_bytes_max: self.payload_bytes_max,
            codecs: self.codecs.clone(),
        }
    }

    /// The longest that a transaction may keep other workers from resetting the job.
    pub(super) fn hold_limit(&self) -> Duration {
        self.job.rules.stale_after / 4
    }

    fn conflict(&self) -> ContextError {
        ContextError::Conflict { job: self.job.key.job }
    }

    /// The error for a job's row that changed under a transaction: `Lost` if the job has another owner.
    pub(super) async fn conflict_or_lost(&self) -> ContextError {
        match self.store.still_mine(&[self.job.key]).await {
            Ok(mine) if mine.first().copied().flatten().is_none() => self.lost(),
            Ok(_) => self.conflict(),
            Err(error) => error.into(),
        }
    }

    /// The idle limit before the commit, as Postgres reads it. Only a frozen worker exceeds it.
    pub(super) fn idle_limit(&self) -> String {
        let limit = (self.job.rules.stale_after / 4).clamp(Duration::from_secs(1), IDLE_MAX);
        format!("{}ms", limit.as_millis())
    }
}
