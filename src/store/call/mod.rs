//! Call: the one way to reach Postgres, with a deadline.
//!
//! | | |
//! |---|---|
//! | [`pool`] | connections for tenure and for handlers, and why a server gives none |
//! | [`line`] | a connection for each statement that runs all the time, and one for the others |
//! | [`transaction`] | several statements at once, and statements with another time limit |
//! | [`read_only`] | a server that answers, and refuses each write |
//! | [`no_room`] | a server whose disk is full |
//! | [`error`] | the meaning of an answer of Postgres |

mod error;
mod line;
mod no_room;
mod pool;
mod read_only;
mod transaction;

use std::{
    future::Future,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use sqlx::{
    ConnectOptions, Connection, Execute, Postgres, SqlStr,
    postgres::{PgArguments, PgConnectOptions, PgPool, PgPoolOptions, PgRow},
    query::Query,
};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    time::{sleep, timeout, timeout_at},
};

pub(crate) use self::line::Line;
pub use self::{error::StoreError, transaction::Isolation};
use self::{
    error::{class, is_answer},
    line::{LINE_KEPT, LINES, LineConnection},
    no_room::NoRoom,
    pool::{Cause, HeldCount, OWN_CONNECTIONS},
    read_only::ReadOnly,
};
use super::refused::PassedOver;
use crate::{
    config::{Config, DATABASE_SCHEMES, has_scheme},
    job::{JobError, duration::written},
    observe::metrics,
};

/// How often tenure sends a statement that is the victim of a deadlock: for some three seconds.
const DEADLOCKS_MAX: u32 = 10;

/// Whether Postgres is up, as far as calls have shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Availability {
    pub(crate) up: bool,
    pub(crate) since: Instant,
    /// How often Postgres went away, and for how long the last time.
    pub(crate) outages: u32,
    pub(crate) away_for: Duration,
}

/// The two pools, the lines, and the state of the server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store(Arc<Inner>);

impl std::ops::Deref for Store {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

#[derive(Debug)]
pub struct Inner {
    own: PgPool,
    own_held: HeldCount,
    own_cause: Cause,
    handlers: PgPool,
    handlers_held: HeldCount,
    handlers_cause: Cause,
    /// Whether that pool is the application's: tenure does not close it, and its errors say nothing about the server.
    handlers_given: bool,
    lines: [Arc<tokio::sync::Mutex<LineConnection>>; LINES],
    /// Held by the one statement that may take long and holds a connection of the pool.
    aside: tokio::sync::Mutex<()>,
    /// Held by a report of rates until Postgres has it: the last one of a worker waits for the one before.
    pub(in crate::store) reporting: tokio::sync::Mutex<()>,
    within: Duration,
    availability: watch::Sender<Availability>,
    read_only: ReadOnly,
    no_room: NoRoom,
    last_error: Mutex<String>,
    commits: Notify,
    pub(in crate::store) passed_over: PassedOver,
    /// The runtime that tenure's own connections belong to. Handlers run on another: one that blocks its
    /// threads must not stop the socket of a heartbeat.
    home: Handle,
}

/// The answer to a statement.
pub(crate) type Rows = Result<Vec<PgRow>, StoreError>;

impl Store {
    /// Prepares the pools; `handlers` is the application's pool, if it gives one. Connects at the first call, so that
    /// Postgres may be away.
    pub(crate) fn open(config: &Config, handlers: Option<PgPool>) -> Result<Self, StoreError> {
        // sqlx takes any scheme for that of Postgres.
        if !has_scheme(&config.database_url, DATABASE_SCHEMES) {
            return Err(sqlx::Error::Configuration("its scheme is not postgres".into()).into());
        }
        let connect: PgConnectOptions = config
            .database_url
            .parse::<PgConnectOptions>()?
            .application_name("tenure")
            // PgBouncer refuses a connection that sets it; from Postgres 12 on it has no effect here.
            .extra_float_digits(None)
            // sqlx would print the text of each slow statement into the log of an operator.
            .disable_statement_logging();
        let within = config.timing.database_within;
        let pool = |connections| {
            PgPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(within)
                // The call itself detects a dead connection; a test before each would cost a round trip.
                .test_before_acquire(false)
                .connect_lazy_with(connect.clone())
        };
        let now = Availability { up: true, since: Instant::now(), outages: 0, away_for: Duration::ZERO };
        Ok(Self(Arc::new(Inner {
            own: pool(OWN_CONNECTIONS),
            own_held: HeldCount::default(),
            own_cause: Cause::default(),
            handlers_cause: Cause::default(),
            handlers_held: HeldCount::default(),
            handlers_given: handlers.is_some(),
            handlers: handlers.unwrap_or_else(|| pool(config.handler_connections)),
            lines: Default::default(),
            aside: tokio::sync::Mutex::default(),
            reporting: tokio::sync::Mutex::default(),
            within,
            availability: watch::Sender::new(now),
            read_only: ReadOnly::default(),
            no_room: NoRoom::default(),
            last_error: Mutex::default(),
            commits: Notify::new(),
            passed_over: PassedOver::default(),
            home: Handle::current(),
        })))
    }

    /// Closes the lines and the pools, but not the application's pool.
    pub(crate) async fn close(&self) {
        for line in &self.lines {
            if let Ok(mut line) = line.try_lock()
                && let Some(open) = line.take()
            {
                drop(timeout(Duration::from_secs(2), open.connection.close()).await);
            }
        }
        // A pool that waits for a connection held by a hung call must not hold up the shutdown.
        let handlers = (!self.handlers_given).then_some(&self.handlers);
        for pool in std::iter::once(&self.own).chain(handlers) {
            drop(timeout(Duration::from_secs(2), pool.close()).await);
        }
    }

    /// Watches whether the last call got through, and since when that has been so.
    pub(crate) fn availability(&self) -> watch::Receiver<Availability> {
        self.availability.subscribe()
    }

    /// Returns for how long Postgres has answered every call.
    pub(crate) fn up_for(&self) -> Duration {
        let now = *self.availability.borrow();
        if now.up { now.since.elapsed() } else { Duration::ZERO }
    }

    /// Whether Postgres has answered every call of this process.
    pub(crate) fn is_up_since_the_start(&self) -> bool {
        self.availability.borrow().outages == 0
    }

    /// Notes the commit of a transaction that tenure has opened, in which jobs may have been enqueued.
    pub(crate) fn note_commit(&self) {
        self.commits.notify_one();
    }

    /// Completes after the next such commit. Cancel safe.
    pub(crate) async fn commit(&self) {
        self.commits.notified().await;
    }

    /// Returns the pool for handlers' transactions, and whether it is the application's.
    pub(crate) fn handlers(&self) -> (&PgPool, bool) {
        (&self.handlers, self.handlers_given)
    }

    /// Returns the longest time that one call may take.
    pub(crate) fn within(&self) -> Duration {
        self.within
    }

    /// Returns the error of the last call that failed.
    pub(crate) fn last_error(&self) -> String {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns for how long Postgres has answered every call since its last outage, and how long that was. `None`:
    /// there was none, or it lasts.
    pub fn back_for(&self) -> Option<(Duration, Duration)> {
        let now = *self.availability.borrow();
        (now.up && now.outages > 0).then(|| (now.since.elapsed(), now.away_for))
    }

    /// Returns the last write that Postgres had no room for, and how long ago that was, unless it has taken one since.
    pub fn no_room(&self) -> Option<(Duration, String)> {
        self.no_room.last()
    }

    /// Runs one statement and reads all its rows.
    ///
    /// Cancel safe: a call that is dropped either reached Postgres or did not; its connection is closed.
    pub(crate) fn rows<'q>(&self, query: Query<'q, Postgres, PgArguments>) -> BoxFuture<'q, Rows> {
        self.rows_over(Line::Other, query)
    }

    /// Does the same as [`Store::rows`], over this line if no other statement is in flight there.
    ///
    /// Boxed, because the future is large and every future that awaits it would be, too; a job's task is moved more
    /// than once.
    pub(crate) fn rows_over<'q>(
        &self,
        line: Line,
        mut query: Query<'q, Postgres, PgArguments>,
    ) -> BoxFuture<'q, Rows> {
        let store = self.clone();
        Box::pin(async move {
            let arguments = query.take_arguments().map_err(sqlx::Error::Encode)?.unwrap_or_default();
            let sql = query.sql();
            let home = store.clone();
            home.at_home(async move { store.rows_at_home(line, sql, arguments).await }).await
        })
    }

    /// Runs a call on the runtime that tenure's connections belong to.
    async fn at_home(&self, call: impl Future<Output = Rows> + Send + 'static) -> Rows {
        if Handle::current().id() == self.home.id() {
            return call.await;
        }
        self.home.spawn(call).await.unwrap_or_else(|_| Err(sqlx::Error::WorkerCrashed.into()))
    }

    /// Sends the victim of a deadlock again, which has changed nothing. One deadline covers all steps: the wait for a
    /// connection, its opening, and each try of the statement.
    async fn rows_at_home(&self, line: Line, sql: SqlStr, arguments: PgArguments) -> Rows {
        let until = self.until();
        let lifts = self.read_only.is_lifted_by(&sql);
        let has_room = self.no_room.is_lifted_by(&sql);
        let mut tries = 1;
        loop {
            // The last try needs no copy.
            if tries == DEADLOCKS_MAX {
                return self.try_rows(line, sqlx::query_with(sql, arguments), until).await;
            }
            let answer = self.try_rows(line, sqlx::query_with(sql.clone(), arguments.clone()), until).await;
            if lifts && answer.is_ok() {
                self.read_only.lift();
                drop(self.observe_by(until, Ok(())));
            }
            // A statement without a row may have written nothing.
            if has_room && answer.as_ref().is_ok_and(|rows| !rows.is_empty()) {
                self.no_room.lift();
            }
            tries += 1;
            let pause = Duration::from_millis(rand::random_range(20..80)) * tries;
            if !answer.as_ref().is_err_and(StoreError::is_deadlock) || Instant::now() + pause >= until {
                return answer;
            }
            // The winner of the deadlock goes on meanwhile.
            sleep(pause).await;
        }
    }

    async fn try_rows(&self, line: Line, query: Query<'_, Postgres, PgArguments>, until: Instant) -> Rows {
        if self.own.is_closed() {
            return self.observe_by(until, Err(sqlx::Error::PoolClosed));
        }
        if let Ok(mut place) = self.lines[line as usize].clone().try_lock_owned() {
            let open = match place.take().filter(|open| open.used.elapsed() < LINE_KEPT) {
                Some(open) => Ok(open),
                None => self.open_line(line, until).await,
            };
            match open {
                Ok(open) => return self.try_line(line, place, open, query, until).await,
                // The server takes no more connections, but the pool has some, or tries again for a while.
                Err(_) if self.own.size() > 0 || line == Line::Other => {}
                Err(error) => return self.observe_by(until, Err(error)),
            }
        }
        let answer = self.acquire_own(until).await;
        let mut held = self.observe_by(until, answer)?;
        let answer = self.deadline_at(until, query.fetch_all(&mut *held.connection)).await;
        held.finished = is_answer(&answer);
        self.observe_by(until, answer)
    }

    /// Closes the connections that serve no call, when Postgres goes away. Each of them would fail a later call, which
    /// would be taken for another outage.
    fn close_idle(&self) {
        for line in &self.lines {
            if let Ok(mut line) = line.try_lock() {
                *line = None;
            }
        }
        let handlers = (!self.handlers_given).then_some(&self.handlers);
        for pool in std::iter::once(&self.own).chain(handlers) {
            while let Some(mut idle) = pool.try_acquire() {
                idle.close_on_drop();
            }
        }
    }

    /// Runs work to its end, even if the caller does not wait for it.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.home.spawn(work)
    }

    /// Returns the deadline of a call that begins now.
    pub(crate) fn until(&self) -> Instant {
        Instant::now() + self.within
    }

    /// Gives one call to Postgres the usual deadline.
    pub(crate) async fn deadline<T>(
        &self,
        call: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        self.deadline_at(self.until(), call).await
    }

    /// Gives a part of a call the rest of its time.
    async fn deadline_at<T>(
        &self,
        until: Instant,
        call: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        timeout_at(until.into(), call).await.unwrap_or_else(|_| Err(self.no_answer()))
    }

    /// Returns the error of a call that Postgres did not answer in time.
    pub(crate) fn no_answer(&self) -> sqlx::Error {
        let text = format!("no answer within {}", written(self.within));
        sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, text))
    }

    /// Sorts an answer to a handler's transaction. The application's pool may fail while the server is up: the
    /// application has closed the pool, its role is locked out, or it uses another network.
    fn observe_handlers<T>(&self, answer: Result<T, sqlx::Error>) -> Result<T, StoreError> {
        if self.handlers_given { sorted(answer) } else { self.observe(answer) }
    }

    /// Sorts an answer, and notes whether Postgres is up.
    fn observe<T>(&self, answer: Result<T, sqlx::Error>) -> Result<T, StoreError> {
        self.observe_by(Instant::now() + self.within, answer)
    }

    /// Sorts the answer to a call with this deadline, and notes whether Postgres is up.
    fn observe_by<T>(&self, until: Instant, answer: Result<T, sqlx::Error>) -> Result<T, StoreError> {
        self.read_only.note_refusal(&answer);
        // A server that is full, or has no room, keeps its sessions; it might give no others.
        let is_gone = answer.as_ref().is_err_and(StoreError::says_gone) || self.read_only.is_on();
        let answer = sorted(answer);
        if let Err(StoreError::Unavailable(error)) = &answer {
            let text = JobError::from(StoreError::Unavailable(error.clone())).text();
            if NoRoom::is_said_by(error) {
                self.no_room.note(text.clone());
            }
            *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = text;
        }
        let up = !answer.as_ref().is_err_and(StoreError::is_outage);
        if up && self.read_only.is_on() {
            return answer;
        }
        let changes = self.availability.send_if_modified(|now| {
            // A call that hung in an outage may fail after it: that is no new outage.
            let is_of_the_last_outage = now.up && !up && now.outages > 0 && until < now.since + self.within;
            let changed = now.up != up && (self.read_only.is_on() || !is_of_the_last_outage);
            if changed {
                let outages = now.outages.saturating_add(u32::from(!up));
                let away_for = if up && !now.up { now.since.elapsed() } else { now.away_for };
                *now = Availability { up, since: Instant::now(), outages, away_for };
            }
            changed
        });
        if changes && is_gone {
            self.close_idle();
        }
        answer
    }
}

/// Sorts an answer, and counts an error.
fn sorted<T>(answer: Result<T, sqlx::Error>) -> Result<T, StoreError> {
    answer.map_err(|error| {
        metrics::database_error(&class(&error));
        StoreError::from(error)
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::proof::place_with;

    /// Such a server answers each read. The worker must not take it for alternately up and away.
    #[tokio::test]
    async fn a_server_that_refuses_writes_is_away_once_until_it_takes_one() {
        let place = place_with(|_| ()).await;
        let store = place.tenure.store().clone();
        let set = async |value: &str| {
            let name = place.value("SELECT current_database()").await;
            place
                .execute(&format!("ALTER DATABASE \"{name}\" SET default_transaction_read_only = {value}"))
                .await;
            // The setting is that of new sessions.
            let others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                           WHERE datname = current_database() AND application_name = 'tenure'";
            place.value(others).await;
        };
        set("on").await;
        let renew = async || store.leave_turns("me").await;
        for _ in 0..5 {
            while !renew().await.is_err_and(|error| error.to_string().contains("read-only")) {}
            store.database_time().await.unwrap();
            assert!(!store.availability().borrow().up, "a read is no proof");
        }
        let outages = store.availability().borrow().outages;
        assert!(outages <= 2, "{outages}: one of the cut connections, one of the read-only server");
        set("off").await;
        while renew().await.is_err() {}
        assert!(store.availability().borrow().up);
    }

    /// The call waits for a lock. Meanwhile Postgres goes away, and comes back.
    #[tokio::test]
    async fn a_call_that_hung_in_an_outage_and_fails_after_it_is_no_new_outage() {
        let place = place_with(|config| config.timing.database_within = Duration::from_secs(2)).await;
        let store = place.tenure.store().clone();
        let mut lock = place.pool.begin().await.unwrap();
        sqlx::query("LOCK TABLE tenure.schedules").execute(&mut *lock).await.unwrap();
        let hangs = tokio::spawn({
            let tenure = place.tenure.clone();
            async move { tenure.schedules().await }
        });
        let waits = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while place.value(waits).await != "1" {}
        let gone: Result<(), _> = Err(sqlx::Error::Io(io::ErrorKind::ConnectionReset.into()));
        store.observe(gone).unwrap_err();
        assert!(!store.availability().borrow().up);
        store.database_time().await.unwrap();
        assert!(store.availability().borrow().up);
        assert!(hangs.await.unwrap().unwrap_err().is_unavailable());
        assert!(store.availability().borrow().up, "the call began in the outage");
        // A call that began after the outage tells of another one.
        assert!(place.tenure.schedules().await.unwrap_err().is_unavailable());
        assert!(!store.availability().borrow().up);
    }

    const SESSIONS: &str =
        "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tenure'";

    /// Has as many statements in flight as fill the line of the others and the pool.
    async fn open_all(store: &Store) {
        let all = (0..=OWN_CONNECTIONS).map(|_| store.rows(sqlx::query("SELECT pg_sleep(0.5)")));
        let answers = futures::future::join_all(all).await;
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!(store.own.size(), OWN_CONNECTIONS);
    }

    #[tokio::test]
    async fn connections_that_went_with_a_server_are_one_outage_and_fail_one_call() {
        let place = place_with(|_| ()).await;
        let store = place.tenure.store().clone();
        open_all(&store).await;
        place.value(&format!("SELECT count(pg_terminate_backend(pid)) {SESSIONS}")).await;
        while place.value(&format!("SELECT count(*) {SESSIONS}")).await != "0" {}
        let mut failed = 0;
        for _ in 0..OWN_CONNECTIONS {
            let one = || sqlx::query("SELECT 1");
            failed += u32::from(store.rows(one()).await.is_err());
            failed += u32::from(store.rows_within(Duration::from_secs(1), one()).await.is_err());
            failed += u32::from(store.rows_aside(Duration::from_secs(1), one()).await.is_err());
        }
        assert_eq!((failed, store.availability().borrow().outages), (1, 1));
    }

    #[tokio::test]
    async fn a_long_statement_takes_an_idle_connection_and_leaves_no_transaction_on_it() {
        let place = place_with(|_| ()).await;
        let store = place.tenure.store().clone();
        open_all(&store).await;
        let pids = format!("SELECT string_agg(pid::text, ' ' ORDER BY pid) {SESSIONS}");
        let before = place.value(&pids).await;
        let aside =
            |within, sql: &'static str| store.rows_aside(Duration::from_millis(within), sqlx::query(sql));
        for _ in 0..2 * OWN_CONNECTIONS {
            aside(1_000, "SELECT 1").await.unwrap();
            aside(1_000, "SELECT 1 / 0").await.unwrap_err();
            aside(50, "SELECT pg_sleep(5)").await.unwrap_err();
        }
        assert_eq!(place.value(&pids).await, before);
        let in_transaction = format!("SELECT count(*) {SESSIONS} AND state <> 'idle'");
        assert_eq!(place.value(&in_transaction).await, "0");
        // A caller that goes takes the connection with it.
        timeout(Duration::from_millis(100), aside(9_000, "SELECT pg_sleep(0.5)")).await.unwrap_err();
        while place.value(&in_transaction).await != "0" {}
        aside(1_000, "SELECT 1").await.unwrap();
        // The second of two opens its own, and closes it.
        let (one, two) =
            tokio::join!(aside(9_000, "SELECT pg_sleep(0.5)"), aside(9_000, "SELECT pg_sleep(0.5)"));
        one.and(two).unwrap();
        // One went with its caller.
        let left = format!("SELECT count(*) {SESSIONS}");
        while place.value(&left).await != OWN_CONNECTIONS.to_string() {}
    }
}
