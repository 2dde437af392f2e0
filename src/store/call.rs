//! Call: the one way to reach Postgres, with a deadline.

use std::{
    future::Future,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::{FutureExt, future::BoxFuture};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Execute, PgConnection, Postgres, SqlStr,
    pool::PoolConnection,
    postgres::{PgArguments, PgConnectOptions, PgDatabaseError, PgPool, PgPoolOptions, PgRow},
    query::Query,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, OwnedMutexGuard, watch},
    time::{sleep, timeout, timeout_at},
};

use crate::{config::Config, job::JobError, observe::metrics};

/// Connections for tenure's own statements. Handlers' transactions have others, so that a handler that
/// holds them all cannot stop a heartbeat.
const OWN_CONNECTIONS: u32 = 6;

/// How often a statement is sent that is the victim of a deadlock.
const DEADLOCKS_MAX: u32 = 4;

/// How long a server may take to say why a pool got no connection from it.
const ONE_MORE_WITHIN: Duration = Duration::from_secs(1);

/// Postgres gave no answer, or refused.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer, or one that says "not now". What was tried may have happened: ask, or try again.
    #[error("the database is unavailable: {0}")]
    Unavailable(#[source] Arc<sqlx::Error>),
    /// No connection for a handler's transaction came free in time: other handlers' transactions hold them all.
    #[error(
        "no connection for this transaction came free within {within:?}: other handlers' transactions hold all \
         {connections}; raise TENURE_HANDLER_CONNECTIONS, run fewer jobs at once, or make the transactions shorter"
    )]
    NoneFree {
        /// How many connections handlers' transactions have: [`Config::handler_connections`].
        connections: u32,
        /// How long it was waited for.
        within: Duration,
    },
    /// The schema is missing or too old.
    #[error("tenure's schema is missing or too old in this database; run `tenure migrate`")]
    NotMigrated(#[source] Arc<sqlx::Error>),
    /// The statement was refused, and would be again.
    #[error("the database refused the statement: {0}")]
    Refused(#[source] Arc<sqlx::Error>),
}

impl StoreError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::NoneFree { .. })
    }
}

impl StoreError {
    /// Whether the server said "not now", or nothing at all.
    pub(crate) fn says_unavailable(error: &sqlx::Error) -> bool {
        if let Some(code) = error.as_database_error().and_then(sqlx::error::DatabaseError::code) {
            // Connection, authorization, database, rollback (deadlock, serialization), resources, operator,
            // system, a lock that
            // was not to be had; a read-only server is an old primary.
            let class = code.get(..2).unwrap_or_default();
            let passing = matches!(class, "08" | "28" | "3D" | "40" | "53" | "57" | "58");
            return passing || code == "55P03" || code == "25006";
        }
        matches!(
            error,
            sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::Protocol(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed
                | sqlx::Error::WorkerCrashed
        )
    }
}

impl StoreError {
    /// Whether the connection or the server went away under the statement: not its own fault, nor that of
    /// the rows, as a deadlock or a timeout may be.
    pub(crate) fn says_gone(error: &sqlx::Error) -> bool {
        match error.as_database_error().and_then(sqlx::error::DatabaseError::code) {
            Some(code) => code.starts_with("08") || matches!(&*code, "57P01" | "57P02" | "57P03"),
            None => matches!(
                error,
                sqlx::Error::Io(_)
                    | sqlx::Error::Protocol(_)
                    | sqlx::Error::PoolClosed
                    | sqlx::Error::WorkerCrashed
            ),
        }
    }

    /// The answer of a server that does not know the latest.
    pub(super) fn standby() -> Self {
        let error = io::Error::other("this server is a standby; the primary was asked for");
        Self::Unavailable(Arc::new(sqlx::Error::Io(error)))
    }

    /// Whether the values themselves were refused (a data exception, a limit), and always will be.
    pub(crate) fn is_the_datas_fault(&self) -> bool {
        let Self::Refused(error) = self else { return false };
        let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code).unwrap_or_default();
        code.starts_with("22") || code.starts_with("54")
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if Self::says_unavailable(&error) {
            return Self::Unavailable(Arc::new(error));
        }
        let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code).unwrap_or_default();
        // No such table, column, schema, function.
        if matches!(&*code, "42P01" | "42703" | "3F000" | "42883") {
            return Self::NotMigrated(Arc::new(error));
        }
        Self::Refused(Arc::new(error))
    }
}

impl StoreError {
    fn has_code(&self, wanted: impl Fn(&str) -> bool) -> bool {
        let (Self::Unavailable(error) | Self::NotMigrated(error) | Self::Refused(error)) = self else {
            return false;
        };
        error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|code| wanted(&code))
    }

    /// Whether a transaction's snapshot was too old for what it touched.
    pub(crate) fn is_serialization_failure(&self) -> bool {
        self.has_code(|code| code == "40001")
    }

    /// Whether a lock was not to be had in time: another transaction is in the way of one of the rows.
    pub(crate) fn is_locked(&self) -> bool {
        self.has_code(|code| code == "55P03")
    }

    /// Whether that lock is of a unique key that another transaction is about to take.
    pub(crate) fn is_of_a_key(&self) -> bool {
        let Self::Unavailable(error) = self else { return false };
        let said = error.as_database_error().and_then(|said| said.try_downcast_ref::<PgDatabaseError>());
        // Which table it waited for stands only in the context, whatever language that is in.
        self.is_locked()
            && said.and_then(PgDatabaseError::r#where).is_some_and(|at| at.contains("\"job_keys"))
    }

    /// Whether it may be the fault of one row of many: not of the statement, nor of the server.
    pub(crate) fn may_be_of_one_row(&self) -> bool {
        let of_a_value = matches!(self, Self::Refused(_)) && !self.has_code(|code| code.starts_with("42"));
        of_a_value || self.is_locked()
    }

    /// Whether this role has not the right.
    pub(crate) fn is_denied(&self) -> bool {
        self.has_code(|code| code == "42501")
    }

    pub(super) fn is_deadlock(&self) -> bool {
        self.has_code(|code| code == "40P01")
    }

    /// Whether Postgres was away, or had no room: nobody's fault. Not a lock that was not to be had, or a
    /// time limit of the statement.
    pub(crate) fn is_outage(&self) -> bool {
        let in_the_way = |code: &str| code.starts_with("40") || code == "55P03" || code == "57014";
        self.is_unavailable() && !self.has_code(in_the_way)
    }
}

/// What a transaction of a handler sees of others' commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// Each statement sees what was committed before it.
    #[default]
    ReadCommitted,
    /// The whole transaction sees what was committed before its first statement.
    RepeatableRead,
    /// As if the transactions had run one after the other; some must be tried again.
    Serializable,
}

impl Isolation {
    /// Opens a transaction that the server ends when its caller falls silent for so long: a frozen worker
    /// must not keep what it has locked from the next attempt.
    fn begin(self, idle: Duration) -> String {
        let level = match self {
            Self::ReadCommitted => "READ COMMITTED",
            Self::RepeatableRead => "REPEATABLE READ",
            Self::Serializable => "SERIALIZABLE",
        };
        let idle = idle.as_millis().clamp(1, 2_147_483_647);
        format!("BEGIN ISOLATION LEVEL {level}; SET LOCAL idle_in_transaction_session_timeout = {idle}")
    }
}

/// Where Postgres is, as far as calls have shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Availability {
    pub(crate) up: bool,
    pub(crate) since: Instant,
    /// How often it went away.
    pub(crate) outages: u32,
}

/// A kind of statement that runs all the time, and keeps a connection for itself.
///
/// A pool costs a task and some wake-ups a call, which is more than the statement itself when it is the only
/// one in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    Enqueue,
    Claim,
    Progress,
    Complete,
}

const LINES: usize = 4;

/// After so long a connection of a line is replaced: a proxy's or a failover's leftovers go, and so do the
/// plans, which were made for the tables as they were then.
const LINE_LASTS: Duration = Duration::from_mins(1);

/// A statement that took longer has a plan for other tables, or waits for what it need not: the next one gets
/// a new connection, and plans anew.
const LINE_SLOW: Duration = Duration::from_millis(500);

/// A line's connection, and since when it has been open.
type LineConnection = Option<(PgConnection, Instant)>;

/// The two pools, the lines, and what is known about the server. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Store(Arc<Inner>);

impl std::ops::Deref for Store {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

#[derive(Debug)]
pub(crate) struct Inner {
    own: PgPool,
    handlers: PgPool,
    lines: [Arc<tokio::sync::Mutex<LineConnection>>; LINES],
    within: Duration,
    availability: watch::Sender<Availability>,
    last_error: Mutex<String>,
    commits: Notify,
    /// The runtime that tenure's own connections belong to. Handlers run on another: one that blocks its
    /// threads must not stop the socket of a heartbeat.
    home: Handle,
}

/// What a statement answers.
pub(crate) type Rows = Result<Vec<PgRow>, StoreError>;

/// A connection that is closed, not reused, unless its call came to an end.
struct Held {
    connection: PoolConnection<Postgres>,
    finished: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.finished {
            self.connection.close_on_drop();
        }
    }
}

impl Store {
    /// Prepares the pools. Connects only when something is asked, so that Postgres may be away.
    pub(crate) fn open(config: &Config) -> Result<Self, StoreError> {
        let connect: PgConnectOptions = config
            .database_url
            .parse::<PgConnectOptions>()?
            .application_name("tenure")
            // PgBouncer refuses a connection that sets it; from Postgres 12 on it says nothing new.
            .extra_float_digits(None);
        let within = config.timing.database_within;
        let pool = |connections| {
            PgPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(within)
                // A dead connection shows in the call itself; asking first costs a round trip each.
                .test_before_acquire(false)
                .connect_lazy_with(connect.clone())
        };
        let now = Availability { up: true, since: Instant::now(), outages: 0 };
        Ok(Self(Arc::new(Inner {
            own: pool(OWN_CONNECTIONS),
            handlers: pool(config.handler_connections),
            lines: Default::default(),
            within,
            availability: watch::Sender::new(now),
            last_error: Mutex::default(),
            commits: Notify::new(),
            home: Handle::current(),
        })))
    }

    /// Closes both pools.
    pub(crate) async fn close(&self) {
        for line in &self.lines {
            if let Ok(mut line) = line.try_lock()
                && let Some((connection, _)) = line.take()
            {
                drop(timeout(Duration::from_secs(2), connection.close()).await);
            }
        }
        // A pool that waits for a connection held by a hung call must not hold up the shutdown.
        for pool in [&self.own, &self.handlers] {
            drop(timeout(Duration::from_secs(2), pool.close()).await);
        }
    }

    /// Tells whether the last call got through, and since when that has been so.
    pub(crate) fn availability(&self) -> watch::Receiver<Availability> {
        self.availability.subscribe()
    }

    /// For how long every call has been answered.
    pub(crate) fn up_for(&self) -> Duration {
        let now = *self.availability.borrow();
        if now.up { now.since.elapsed() } else { Duration::ZERO }
    }

    /// Whether every call of this process has been answered.
    pub(crate) fn is_up_since_the_start(&self) -> bool {
        self.availability.borrow().outages == 0
    }

    /// Tells that a transaction of tenure's own was committed, in which jobs may have been enqueued.
    pub(crate) fn note_commit(&self) {
        self.commits.notify_one();
    }

    /// Completes after the next such commit. Cancel safe.
    pub(crate) async fn commit(&self) {
        self.commits.notified().await;
    }

    /// The longest that one call may take.
    pub(crate) fn within(&self) -> Duration {
        self.within
    }

    /// What the last failed call said.
    pub(crate) fn last_error(&self) -> String {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs one statement and reads all its rows.
    ///
    /// Cancel safe: a call that is dropped either reached Postgres or did not; its connection is closed.
    pub(crate) fn rows<'q>(&self, query: Query<'q, Postgres, PgArguments>) -> BoxFuture<'q, Rows> {
        self.send(None, query)
    }

    /// [`Store::rows`] over the line of its kind, if no other such statement is in flight.
    pub(crate) fn rows_over<'q>(
        &self,
        line: Line,
        query: Query<'q, Postgres, PgArguments>,
    ) -> BoxFuture<'q, Rows> {
        self.send(Some(line), query)
    }

    /// In a box: it is large, and whatever awaits it would be, too. A job's task is moved more than once.
    fn send<'q>(
        &self,
        line: Option<Line>,
        mut query: Query<'q, Postgres, PgArguments>,
    ) -> BoxFuture<'q, Rows> {
        let store = self.clone();
        Box::pin(async move {
            let arguments = query.take_arguments().map_err(sqlx::Error::Encode)?.unwrap_or_default();
            let sql = query.sql();
            if Handle::current().id() == store.home.id() {
                return store.rows_at_home(line, sql, arguments).await;
            }
            let home = store.home.clone();
            let call = home.spawn(async move { store.rows_at_home(line, sql, arguments).await });
            call.await.unwrap_or_else(|_| Err(sqlx::Error::WorkerCrashed.into()))
        })
    }

    /// A deadlock's victim has changed nothing: its statement is sent again. One deadline holds for all that is done
    /// here: a connection is waited for, opened or both, and the statement is sent once or more often.
    async fn rows_at_home(&self, line: Option<Line>, sql: SqlStr, arguments: PgArguments) -> Rows {
        let until = self.until();
        let mut tries = 1;
        loop {
            // The last time, it need not be kept for another.
            if tries == DEADLOCKS_MAX {
                return self.try_rows(line, sqlx::query_with(sql, arguments), until).await;
            }
            let answer = self.try_rows(line, sqlx::query_with(sql.clone(), arguments.clone()), until).await;
            tries += 1;
            let pause = Duration::from_millis(rand::random_range(20..80)) * tries;
            if !answer.as_ref().is_err_and(StoreError::is_deadlock) || Instant::now() + pause >= until {
                return answer;
            }
            // The winner of the deadlock goes on meanwhile.
            sleep(pause).await;
        }
    }

    async fn try_rows(
        &self,
        line: Option<Line>,
        query: Query<'_, Postgres, PgArguments>,
        until: Instant,
    ) -> Rows {
        if let Some(line) = line
            && let Ok(mut line) = self.lines[line as usize].clone().try_lock_owned()
        {
            let open = match line.take() {
                Some(open) => Ok(open),
                None => self.open_line(until).await,
            };
            match open {
                Ok(open) => return self.try_line(line, open, query, until).await,
                // It takes no more connections; the pool has some.
                Err(_) if self.own.size() > 0 => {}
                Err(error) => return self.observe(Err(error)),
            }
        }
        let answer = self.acquire(&self.own, until).await;
        let mut held = self.observe(answer)?;
        let answer = self.deadline_at(until, query.fetch_all(&mut *held.connection)).await;
        held.finished = is_answer(&answer);
        self.observe(answer)
    }

    async fn open_line(&self, until: Instant) -> Result<(PgConnection, Instant), sqlx::Error> {
        let connection = self.deadline_at(until, self.own.connect_options().connect()).await?;
        Ok((connection, Instant::now()))
    }

    /// The connection is taken out, so that a call that is cut off leaves none behind.
    async fn try_line(
        &self,
        mut line: OwnedMutexGuard<LineConnection>,
        (mut connection, since): (PgConnection, Instant),
        query: Query<'_, Postgres, PgArguments>,
        until: Instant,
    ) -> Rows {
        let sent_at = Instant::now();
        let answer = self.deadline_at(until, query.fetch_all(&mut connection)).await;
        if is_answer(&answer) {
            *line = Some((connection, since));
            if since.elapsed() > LINE_LASTS || sent_at.elapsed() > LINE_SLOW {
                // Not while somebody waits. Meanwhile the pool serves.
                let store = self.clone();
                self.home.spawn(async move {
                    if let Ok(open) = store.open_line(store.until()).await {
                        *line = Some(open);
                    }
                });
            }
        }
        self.observe(answer)
    }

    /// Runs `work` in a transaction of its own, and commits if it returns `Ok`.
    ///
    /// `work` has no deadline: it is the user's. It is rolled back when this future is dropped.
    /// sqlx says `Ok` when it commits an aborted transaction; `work` must therefore end with a statement
    /// whose answer proves that the transaction lives.
    pub(crate) async fn in_transaction<T, W>(
        &self,
        isolation: Isolation,
        idle: Duration,
        work: W,
    ) -> Result<T, JobError>
    where
        W: for<'t> FnOnce(&'t mut PgConnection) -> BoxFuture<'t, Result<T, JobError>>,
    {
        let mut held = match self.acquire(&self.handlers, self.until()).await {
            // Handlers that hold all connections say nothing about the server.
            Err(sqlx::Error::PoolTimedOut) => {
                let connections = self.handlers.options().get_max_connections();
                return Err(StoreError::NoneFree { connections, within: self.within }.into());
            }
            answer => self.observe(answer)?,
        };
        let answer = self.deadline(held.connection.begin_with(AssertSqlSafe(isolation.begin(idle)))).await;
        let mut transaction = self.observe(answer)?;
        match work(&mut transaction).await {
            Ok(value) => {
                let answer = self.deadline(transaction.commit()).await;
                held.finished = is_answer(&answer);
                self.observe(answer)?;
                self.note_commit();
                Ok(value)
            }
            Err(error) => {
                // If even the rollback fails, closing the connection rolls back.
                held.finished = self.deadline(transaction.rollback()).await.is_ok();
                // sqlx has one error for a broken protocol and for a mistake that it sees before it sends anything.
                Err(JobError { answered: held.finished, ..error })
            }
        }
    }

    /// Runs statements of tenure's own in one transaction, all of them in the time of one call.
    pub(super) async fn own_transaction<T, W>(&self, work: W) -> Result<T, StoreError>
    where
        W: for<'t> FnOnce(&'t mut PgConnection) -> BoxFuture<'t, Result<T, sqlx::Error>>,
    {
        let until = self.until();
        let answer = self.acquire(&self.own, until).await;
        let mut held = self.observe(answer)?;
        let answer = self
            .deadline_at(until, async {
                let mut transaction = held.connection.begin().await?;
                let answer = match work(&mut transaction).await {
                    Ok(value) => return transaction.commit().await.map(|()| value),
                    answer => answer,
                };
                // A lock that was not to be had is an answer, too: the connection serves the next caller.
                if is_answer(&answer) {
                    transaction.rollback().await?;
                }
                answer
            })
            .await;
        // Otherwise its transaction may be open still: the connection is closed, and rolls it back.
        held.finished = is_answer(&answer);
        self.observe(answer)
    }

    /// Runs a statement of somebody who looks. The server ends it in half the time of a call: whoever asked may have
    /// gone, and many may ask.
    #[cfg(feature = "cli")]
    pub(super) async fn rows_for_a_look(&self, query: Query<'static, Postgres, PgArguments>) -> Rows {
        self.rows_within(self.within / 2, query).await
    }

    /// Runs a statement that the server ends after this time, which says nothing of the server.
    pub(super) async fn rows_within(
        &self,
        within: Duration,
        query: Query<'static, Postgres, PgArguments>,
    ) -> Rows {
        self.own_transaction(move |transaction| {
            async move {
                sqlx::query(super::LIMIT_STATEMENT)
                    .bind(within.as_millis().to_string())
                    .execute(&mut *transaction)
                    .await?;
                query.fetch_all(&mut *transaction).await
            }
            .boxed()
        })
        .await
    }

    /// Ends the session of a transaction that was given up, whatever it is doing. Returns at once.
    pub(crate) fn end_transaction(&self, pid: i32, began: chrono::DateTime<chrono::Utc>) {
        let store = self.clone();
        self.home.spawn(async move {
            let end = sqlx::query(super::END_TRANSACTION).bind(pid).bind(began);
            if let Err(error) = store.rows(end).await {
                tracing::warn!(%error, "a transaction that was given up goes on until its own time limit");
            }
        });
    }

    /// Has something done, whether or not its caller goes on.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.home.spawn(work)
    }

    /// Runs a statement that may take longer than others may, over a connection of its own: that it does says nothing
    /// of the server, which ends it after this time.
    pub(super) async fn rows_aside(&self, within: Duration, query: Query<'_, Postgres, PgArguments>) -> Rows {
        // In boxes: they are large, and so would be whatever awaits them.
        let mut connection = Box::pin(self.migration_connection()).await?;
        let call = Box::pin(async {
            let mut transaction = connection.begin().await?;
            sqlx::query(super::LIMIT_STATEMENT)
                .bind(within.as_millis().to_string())
                .execute(&mut *transaction)
                .await?;
            let rows = query.fetch_all(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(rows)
        });
        let late = within + self.within;
        let answer: Result<_, sqlx::Error> = timeout(late, call).await.unwrap_or_else(|_| {
            let text = format!("no answer within {late:?}");
            Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, text)))
        });
        drop(Box::pin(connection.close()).await);
        Ok(answer?)
    }

    /// A connection of its own for a migration, which may take long.
    pub(crate) async fn migration_connection(&self) -> Result<PgConnection, StoreError> {
        let options = self.own.connect_options();
        let answer = self.deadline(options.connect()).await;
        self.observe(answer)
    }

    /// A pool tries a server that refuses connections again and again, and then only says that its time is up: what
    /// the server says to one connection more is the cause. `PoolTimedOut`: others hold all of the pool's.
    ///
    /// All of it until `until`.
    async fn acquire(&self, pool: &PgPool, until: Instant) -> Result<Held, sqlx::Error> {
        let left = until.saturating_duration_since(Instant::now());
        let one_more_within = ONE_MORE_WITHIN.min(left / 4);
        match timeout(left.saturating_sub(one_more_within), pool.acquire()).await {
            Ok(Ok(connection)) => return Ok(Held { connection, finished: false }),
            Ok(Err(sqlx::Error::PoolTimedOut)) | Err(_) => {}
            Ok(Err(error)) => return Err(error),
        }
        // It has connections: others hold them.
        if pool.size() > 0 {
            return Err(sqlx::Error::PoolTimedOut);
        }
        match timeout(one_more_within, pool.connect_options().connect()).await {
            Ok(Ok(connection)) => drop(connection.close().await),
            Ok(Err(cause)) => return Err(cause),
            Err(_) => return Err(self.no_answer()),
        }
        Err(sqlx::Error::PoolTimedOut)
    }

    /// When a call that begins now has to be answered.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.within
    }

    /// Gives one call to Postgres the time that any of tenure's has.
    pub(crate) async fn deadline<T>(
        &self,
        call: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        self.deadline_at(self.until(), call).await
    }

    /// [`Store::deadline`] for a part of a call.
    async fn deadline_at<T>(
        &self,
        until: Instant,
        call: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        timeout_at(until.into(), call).await.unwrap_or_else(|_| Err(self.no_answer()))
    }

    /// Postgres was silent for as long as a call may take.
    pub(crate) fn no_answer(&self) -> sqlx::Error {
        let text = format!("no answer within {:?}", self.within);
        sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, text))
    }

    /// Sorts an answer, and remembers whether there was one.
    fn observe<T>(&self, answer: Result<T, sqlx::Error>) -> Result<T, StoreError> {
        let answer = answer.map_err(|error| {
            metrics::database_error(&class(&error));
            StoreError::from(error)
        });
        let up = match &answer {
            Err(StoreError::Unavailable(error)) => {
                let text = JobError::from(StoreError::Unavailable(error.clone())).text();
                *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = text;
                // A deadlock or a lock timeout is an answer of a server that is there.
                error
                    .as_database_error()
                    .and_then(sqlx::error::DatabaseError::code)
                    .is_some_and(|code| code.starts_with("40") || code == "55P03" || code == "57014")
            }
            _ => true,
        };
        self.availability.send_if_modified(|now| {
            let changed = now.up != up;
            if changed {
                let outages = now.outages.saturating_add(u32::from(!up));
                *now = Availability { up, since: Instant::now(), outages };
            }
            changed
        });
        answer
    }
}

/// What went wrong, for a counter: the class of what Postgres said (the first two characters of its code), or how
/// nothing was heard of it.
fn class(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut => "timeout".into(),
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) => "connection".into(),
        sqlx::Error::PoolTimedOut => "pool".into(),
        other => match other.as_database_error().and_then(sqlx::error::DatabaseError::code) {
            Some(code) => code.get(..2).unwrap_or_default().to_owned(),
            None => "other".into(),
        },
    }
}

/// Whether the server answered, so that the connection can be used again. Not one of a server that is going, or
/// that does not write: after a failover another connection leads to its successor.
fn is_answer<T>(answer: &Result<T, sqlx::Error>) -> bool {
    match answer {
        Ok(_) => true,
        Err(error) => error.as_database_error().is_some_and(|said| {
            !StoreError::says_gone(error) && said.code().is_none_or(|code| code != "25006")
        }),
    }
}
