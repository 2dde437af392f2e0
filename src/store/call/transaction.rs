//! Transaction: several statements in one transaction, and statements with another time limit.

use std::{io, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use sqlx::{
    AssertSqlSafe, Connection, PgConnection, Postgres, Transaction,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use tokio::time::timeout;

use super::{
    Rows, Store,
    error::{StoreError, is_answer},
    pool::{Held, OWN_CONNECTIONS},
};
use crate::{
    job::{JobError, duration::written},
    proof::fault,
    store::END_TRANSACTION,
};

/// How much a handler's transaction sees of other transactions' commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// Each statement sees what was committed before it.
    #[default]
    ReadCommitted,
    /// The whole transaction sees what was committed before its first statement.
    RepeatableRead,
    /// The result is as if the transactions had run one after the other; some fail and must be retried.
    Serializable,
}

impl Isolation {
    /// Returns the statements that open a transaction. The server ends it when the caller is silent for `idle`: a
    /// frozen worker must not keep its locks from the next attempt, nor from the fleet.
    fn begin(self, idle: Duration) -> AssertSqlSafe<String> {
        let level = match self {
            Self::ReadCommitted => "READ COMMITTED",
            Self::RepeatableRead => "REPEATABLE READ",
            Self::Serializable => "SERIALIZABLE",
        };
        let idle = milliseconds(idle);
        AssertSqlSafe(format!(
            "BEGIN ISOLATION LEVEL {level}; SET LOCAL idle_in_transaction_session_timeout = {idle}"
        ))
    }
}

/// How long an idle connection may take to begin a transaction.
const BEGUN_WITHIN: Duration = Duration::from_secs(1);

/// A limit, as Postgres's settings take it.
fn milliseconds(limit: Duration) -> u128 {
    limit.as_millis().clamp(1, 2_147_483_647)
}

/// Limits how long each statement of this transaction may take. Compiling one takes Postgres longer than running it.
async fn limit_statements(transaction: &mut PgConnection, within: Duration) -> Result<(), sqlx::Error> {
    let within = milliseconds(within);
    let limit = AssertSqlSafe(format!("SET LOCAL statement_timeout = {within}; SET LOCAL jit = off"));
    sqlx::raw_sql(limit).execute(transaction).await.map(drop)
}

impl Store {
    /// The statements that open a transaction of tenure's own.
    fn begin(&self) -> AssertSqlSafe<String> {
        Isolation::ReadCommitted.begin(self.within)
    }

    /// Runs `work` in a transaction, and commits if it returns `Ok`.
    ///
    /// `work` has no deadline: it is the user's. Dropping this future rolls the transaction back.
    /// sqlx returns `Ok` when it commits an aborted transaction; `work` must therefore end with a statement
    /// whose answer proves that the transaction lives.
    pub(crate) async fn in_transaction<T>(
        &self,
        isolation: Isolation,
        idle: Duration,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, JobError>,
    ) -> Result<T, JobError> {
        let mut held = match self.acquire_for_handlers(self.until()).await {
            // Handlers hold all connections: that says nothing about the server.
            Err(sqlx::Error::PoolTimedOut) => {
                let connections = self.handlers.options().get_max_connections();
                return Err(StoreError::NoneFree { connections, within: self.within }.into());
            }
            answer => self.observe_handlers(answer)?,
        };
        let answer = self.deadline(held.connection.begin_with(isolation.begin(idle))).await;
        let mut transaction = self.observe_handlers(answer)?;
        match work(&mut transaction).await {
            Ok(value) => {
                let answer = self.deadline(transaction.commit()).await;
                held.finished = is_answer(&answer);
                self.observe_handlers(answer)?;
                self.note_commit();
                Ok(value)
            }
            Err(error) => {
                // If even the rollback fails, closing the connection rolls back.
                held.finished = self.deadline(transaction.rollback()).await.is_ok();
                // Only this tells a broken connection from a mistake that sqlx sees before it sends anything: sqlx has
                // one error for both.
                Err(JobError { answered: held.finished, ..error })
            }
        }
    }

    /// Runs tenure's statements in one transaction, which may take longer than a call: `work` bounds each of them.
    pub(crate) async fn long_transaction<T, E, W>(&self, work: W) -> Result<T, E>
    where
        E: From<StoreError>,
        W: for<'t> FnOnce(&'t mut PgConnection) -> BoxFuture<'t, Result<T, E>>,
    {
        let until = self.until();
        let answer = self.acquire_own(until).await;
        let mut held = self.observe_by(until, answer)?;
        let answer = self.deadline(held.connection.begin_with(self.begin())).await;
        let mut transaction = self.observe_by(until, answer)?;
        match work(&mut transaction).await {
            Ok(value) => {
                let answer = self.deadline(transaction.commit()).await;
                held.finished = is_answer(&answer);
                self.observe_by(self.until(), answer)?;
                Ok(value)
            }
            Err(error) => {
                held.finished = self.deadline(transaction.rollback()).await.is_ok();
                Err(error)
            }
        }
    }

    /// Runs one statement over a connection for handlers' transactions.
    pub(in crate::store) async fn rows_of_handlers(&self, query: Query<'_, Postgres, PgArguments>) -> Rows {
        let until = self.until();
        let answer = self.acquire_for_handlers(until).await;
        let mut held = self.observe_handlers(answer)?;
        let answer = self.deadline_at(until, query.fetch_all(&mut *held.connection)).await;
        held.finished = is_answer(&answer);
        self.observe_handlers(answer)
    }

    /// Runs tenure's statements in one transaction, all of them within the time of one call.
    pub(in crate::store) async fn own_transaction<T, W>(&self, work: W) -> Result<T, StoreError>
    where
        W: for<'t> FnOnce(&'t mut PgConnection) -> BoxFuture<'t, Result<T, sqlx::Error>>,
    {
        self.transaction(true, work).await
    }

    /// Runs a statement, and rolls it back.
    pub(crate) async fn rolled_back(
        &self,
        query: Query<'static, Postgres, PgArguments>,
    ) -> Result<(), StoreError> {
        self.transaction(false, |tx| async move { query.execute(tx).await.map(drop) }.boxed()).await
    }

    async fn transaction<T, W>(&self, commits: bool, work: W) -> Result<T, StoreError>
    where
        W: for<'t> FnOnce(&'t mut PgConnection) -> BoxFuture<'t, Result<T, sqlx::Error>>,
    {
        let until = self.until();
        let answer = self.acquire_own(until).await;
        let mut held = self.observe_by(until, answer)?;
        let answer = self
            .deadline_at(until, async {
                let mut transaction = held.connection.begin_with(self.begin()).await?;
                let answer = match work(&mut transaction).await {
                    Ok(value) if commits => return transaction.commit().await.map(|()| value),
                    answer => answer,
                };
                // A lock that came too late is an answer, too: the connection serves the next caller.
                if is_answer(&answer) {
                    transaction.rollback().await?;
                }
                answer
            })
            .await;
        // Without an answer the transaction may still be open: closing the connection rolls it back.
        held.finished = is_answer(&answer);
        self.observe_by(until, answer)
    }

    /// Runs a statement for a person who looks at a page. The server ends it in half the time of a call: the person may
    /// have gone, and many people may look.
    pub(crate) async fn rows_for_a_look(&self, query: Query<'static, Postgres, PgArguments>) -> Rows {
        self.rows_within(self.within / 2, query).await
    }

    /// Runs a statement about one row that the server ends in half the time of a call. A wait for a lock, also of the
    /// whole table, ends sooner, as such: it is not the row's fault.
    pub(in crate::store) async fn rows_alone(&self, query: Query<'static, Postgres, PgArguments>) -> Rows {
        let within = self.within / 2;
        self.own_transaction(move |transaction| {
            async move {
                limit_statements(transaction, within).await?;
                let locks = format!("SET LOCAL lock_timeout = {}", milliseconds(within.mul_f64(0.8)));
                sqlx::raw_sql(AssertSqlSafe(locks)).execute(&mut *transaction).await?;
                query.fetch_all(&mut *transaction).await
            }
            .boxed()
        })
        .await
    }

    /// Runs a statement that the server ends after `within`; such an end says nothing about the server.
    pub(crate) async fn rows_within(
        &self,
        within: Duration,
        query: Query<'static, Postgres, PgArguments>,
    ) -> Rows {
        self.own_transaction(move |transaction| {
            async move {
                limit_statements(transaction, within).await?;
                query.fetch_all(&mut *transaction).await
            }
            .boxed()
        })
        .await
    }

    /// Ends the Postgres session of an abandoned transaction, even in the middle of a statement. Returns at once.
    pub(crate) fn end_transaction(&self, pid: i32, began: chrono::DateTime<chrono::Utc>) {
        let store = self.clone();
        self.home.spawn(async move {
            let end = sqlx::query(END_TRANSACTION).bind(pid).bind(began);
            if let Err(error) = store.rows(end).await {
                tracing::warn!(%error,
                    "Postgres did not end an abandoned transaction; it keeps its locks until its time limit");
            }
        });
    }

    /// Runs a statement that may take longer than others. The server ends it after `within`; such an end says nothing
    /// about the server. It takes an idle connection of the pool, one such statement at a time, unless it would leave
    /// the others none; or one that is opened for it.
    pub(crate) async fn rows_aside(
        &self,
        within: Duration,
        query: Query<'static, Postgres, PgArguments>,
    ) -> Rows {
        let store = self.clone();
        // Boxed, because these futures are large and every future that awaits them would be, too.
        Box::pin(self.at_home(async move { store.aside(within, query).await })).await
    }

    async fn aside(&self, within: Duration, query: Query<'static, Postgres, PgArguments>) -> Rows {
        // Each time a plan for the tables as they are now.
        let query = query.persistent(false);
        let turn = self.aside.try_lock();
        let spares_one = || self.own.num_idle() > 1 || self.own.size() < OWN_CONNECTIONS;
        let idle = if turn.is_ok() && spares_one() { self.own.try_acquire() } else { None };
        if let Some(mut held) = idle.map(|idle| Held::new(idle, &self.own_held))
            // A connection from before a restart of the server begins nothing.
            && let Ok(Ok(transaction)) = timeout(BEGUN_WITHIN, held.connection.begin_with(self.begin())).await
        {
            let answer = self.aside_in(transaction, within, query).await;
            held.finished = is_answer(&answer);
            return Ok(answer?);
        }
        drop(turn);
        let mut connection = self.migration_connection().await?;
        let transaction = self.deadline(connection.begin_with(self.begin())).await?;
        let answer = self.aside_in(transaction, within, query).await;
        drop(connection.close().await);
        Ok(answer?)
    }

    async fn aside_in(
        &self,
        mut transaction: Transaction<'_, Postgres>,
        within: Duration,
        query: Query<'static, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let late = within + self.within;
        let call = async {
            limit_statements(&mut transaction, within).await?;
            let answer = query.fetch_all(&mut *transaction).await;
            if answer.is_ok() {
                fault::point("aside");
                transaction.commit().await?;
            } else if is_answer(&answer) {
                // The connection serves the next caller.
                transaction.rollback().await?;
            }
            answer
        };
        timeout(late, call).await.unwrap_or_else(|_| {
            let text = format!("no answer within {}", written(late));
            Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, text)))
        })
    }
}
