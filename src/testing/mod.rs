//! Testing: for the tests of programs that use tenure. Real servers, and a database and a stream for each test.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use tenure::{Job, JobContext, JobError, Outcome, Status, Worker, testing::TestTenure};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Greet { name: String }
//! impl Job for Greet { const KIND: &'static str = "greet"; }
//!
//! async fn greet(job: Greet, _ctx: JobContext) -> Result<Outcome, JobError> {
//!     Outcome::done(format!("hello, {}", job.name))
//! }
//!
//! // In a test: #[tokio::test]
//! async fn a_greeting_names_the_person() {
//!     let test = TestTenure::start().await;
//!     let job = test.run(Worker::builder(&test).handle(greet), Greet { name: "world".into() }).await;
//!     assert_eq!(job.status, Status::Completed);
//!     assert_eq!(job.output, Some("hello, world".into()));
//! }
//! ```
//!
//! `docs/testing.md` is the guide, and `examples/tested.rs` a whole program to copy from.
//!
//! Every function here panics instead of returning errors, with the line of the test that called it: a test has
//! nothing better to do with an error. Nothing here is for production.

mod held;
mod servers;

use std::{
    error::Error,
    fmt,
    future::Future,
    ops::Deref,
    panic::Location,
    sync::Arc,
    time::{Duration, Instant},
};

use chrono::Utc;
use serde_json::value::RawValue;
use sqlx::PgPool;
use tokio::time::{sleep, timeout};

use self::servers::Place;
use crate::{
    client::{Tenure, connect::TenureBuilder, enqueue::JobRequest},
    codec::{Codecs, Part},
    config::{Config, masked},
    job::{Job, JobId, Status, chained, duration::written},
    store::{JobFilter, JobRow, pool_of_test},
    worker::{WorkerBuilder, WorkerError, WorkerHandle},
};

/// How long a call may take, unless the test gives another limit.
const LIMIT: Duration = Duration::from_secs(10);
/// The pause between two looks at a condition that a call waits for.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long [`TestTenure::drain`] waits with nothing due but jobs that their lanes hold, and messages that are put off:
/// no worker here will take those.
const QUIET: Duration = Duration::from_millis(500);
/// The most jobs that a failed assertion shows.
const SHOWN_MAX: u32 = 20;

/// The line of the test that made the call.
type At = &'static Location<'static>;

/// The tenure of one test: a Postgres database with tenure's schema, and a stream in NATS. Cheap to clone.
///
/// It derefs to a [`Tenure`], so that a test can call all of its methods. The drop of the last clone removes the
/// database and the stream.
#[derive(Clone)]
pub struct TestTenure {
    inner: Arc<Inner>,
}

struct Inner {
    tenure: Tenure,
    pool: PgPool,
    place: Place,
}

impl fmt::Debug for TestTenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestTenure").field("config", self.config()).finish_non_exhaustive()
    }
}

impl Deref for TestTenure {
    type Target = Tenure;

    fn deref(&self) -> &Tenure {
        self.tenure()
    }
}

impl TestTenure {
    /// Opens a tenure on a private Postgres and a private NATS. The first test of a process starts them (some two
    /// seconds), and they end with the process. Finds the programs on the machine as `tenure dev` does:
    /// `TENURE_PG_BIN`, `pg_config`, the usual places and `PATH`; `TENURE_NATS_SERVER`, `PATH` and the usual places.
    /// Downloads nothing.
    ///
    /// # Panics
    ///
    /// If a server is not installed, or does not start. The message says what to install.
    #[track_caller]
    pub fn start() -> impl Future<Output = Self> {
        Self::start_with(|_| {})
    }

    /// [`TestTenure::start`] with other settings. A test's timers are shorter than the defaults, so that it waits for
    /// nothing for long; `stale_after` is the usual 5 minutes: see [`TestTenure::advance`] and [`TestTenure::lose`].
    ///
    /// # Panics
    ///
    /// As [`TestTenure::start`]; also if settings contradict each other.
    #[track_caller]
    pub fn start_with(change: impl FnOnce(&mut Config)) -> impl Future<Output = Self> {
        let at = Location::caller();
        async move { Self::open(at, servers::on_private().await, change).await }
    }

    /// [`TestTenure::start`] with the program's own codecs, hooks and pool: `program` is the function by which the
    /// program makes its builder from its settings, and gets those of the test. It may change timers and limits, but
    /// has to keep the addresses, the stream and the prefix.
    ///
    /// ```no_run
    /// use tenure::{Config, Tenure, TenureBuilder, codec::Codecs, testing::TestTenure};
    ///
    /// # fn codecs() -> Codecs { Codecs::new() }
    /// fn program(config: &Config) -> TenureBuilder {
    ///     Tenure::builder(config).codecs(codecs())
    /// }
    ///
    /// # async fn f() {
    /// let test = TestTenure::start_as(program).await;
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// As [`TestTenure::start_with`]; also if the builder leads elsewhere than the settings that it is given.
    #[track_caller]
    pub fn start_as(program: impl FnOnce(&Config) -> TenureBuilder) -> impl Future<Output = Self> {
        let at = Location::caller();
        async move { Self::open_as(at, servers::on_private().await, program).await }
    }

    /// [`TestTenure::on`] with the program's own codecs, hooks and pool: see [`TestTenure::start_as`].
    ///
    /// # Panics
    ///
    /// As [`TestTenure::on`]; also if the builder leads elsewhere than the settings that it is given.
    #[track_caller]
    pub fn on_as(
        database_url: &str,
        nats_url: &str,
        program: impl FnOnce(&Config) -> TenureBuilder,
    ) -> impl Future<Output = Self> {
        let at = Location::caller();
        async move { Self::open_as(at, servers::on(database_url, nats_url).await, program).await }
    }

    /// Opens a tenure on servers that run already. The test's jobs are in a new database of that Postgres, and in a new
    /// stream of that NATS. The test touches nothing else, and its end removes both. (A killed process leaves them;
    /// their names start with `tenure_test_` and `TEST_`.) The user in the URL must have the right to create databases.
    ///
    /// # Panics
    ///
    /// If a server does not answer or refuses; also if the database in the URL holds tenure jobs, as in production:
    /// name another, such as `postgres`.
    #[track_caller]
    pub fn on(database_url: &str, nats_url: &str) -> impl Future<Output = Self> {
        let at = Location::caller();
        async move { Self::open(at, servers::on(database_url, nats_url).await, |_| {}).await }
    }

    async fn open(at: At, place: Result<Place, String>, change: impl FnOnce(&mut Config)) -> Self {
        let program = |config: &Config| {
            let mut config = config.clone();
            change(&mut config);
            Tenure::builder(&config)
        };
        Self::open_as(at, place, program).await
    }

    async fn open_as(
        at: At,
        place: Result<Place, String>,
        program: impl FnOnce(&Config) -> TenureBuilder,
    ) -> Self {
        let mut place = place.unwrap_or_else(|reason| panic!("{at}: {reason}"));
        let builder = program(&place.config);
        let config = builder.config().clone();
        let places = |of: &Config| {
            [&of.database_url, &of.nats_url, &of.stream, &of.subject_prefix].map(ToOwned::to_owned)
        };
        assert!(
            places(&config) == places(&place.config),
            "{at}: the program's builder leads elsewhere than to the database and the stream of this test; have it use \
             the settings that it is given"
        );
        place.config = config;
        let connected = Box::pin(connect(builder)).await;
        let (tenure, pool) = connected.unwrap_or_else(|reason| panic!("{at}: {reason}"));
        Self { inner: Arc::new(Inner { tenure, pool, place }) }
    }

    /// Returns the handle, as the tested program has it.
    pub fn tenure(&self) -> &Tenure {
        &self.inner.tenure
    }

    /// Returns the servers' addresses and the timers, for a tested program that connects by itself.
    pub fn config(&self) -> &Config {
        &self.inner.place.config
    }

    /// Returns a pool of at most five connections to the same database, for the test's own tables. The database has
    /// tenure's schema and nothing else; run your migrations here.
    pub fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    /// Enqueues one job, and runs this worker until that job has ended: completed, cancelled, or failed for good.
    /// Returns the ended job. Takes at most 10 s; see [`TestTenure::run_within`].
    ///
    /// Skips the waits of the job itself, be it a delay, a retry's backoff, a snooze or a
    /// [sleep](crate::JobContext::sleep): three attempts take no longer than their handlers. An event is no such wait:
    /// signal it, before or meanwhile. Time passes for no other job; use [`TestTenure::advance`]. Other due jobs in the
    /// worker's queues may run meanwhile, too.
    ///
    /// Dropping the future drops the worker, as a crash does.
    ///
    /// # Panics
    ///
    /// If the job is refused or is not created (another job holds its unique key), if the worker does not start, or if
    /// the job has not ended in time. The message then shows the job and each of its attempts.
    #[track_caller]
    pub fn run<S: Send + Sync + 'static>(
        &self,
        worker: WorkerBuilder<S>,
        job: impl Into<JobRequest>,
    ) -> impl Future<Output = JobRow> {
        self.run_within(LIMIT, worker, job)
    }

    /// [`TestTenure::run`] with another limit than 10 s.
    ///
    /// # Panics
    ///
    /// As [`TestTenure::run`].
    #[track_caller]
    pub fn run_within<S: Send + Sync + 'static>(
        &self,
        limit: Duration,
        worker: WorkerBuilder<S>,
        job: impl Into<JobRequest>,
    ) -> impl Future<Output = JobRow> {
        let (at, job): (At, JobRequest) = (Location::caller(), job.into());
        async move {
            let id = self.create(at, job).await;
            self.until_ended(at, limit, worker, id).await
        }
    }

    /// [`TestTenure::run`] of a job that exists already.
    ///
    /// # Panics
    ///
    /// As [`TestTenure::run`]; also if the job does not exist.
    #[track_caller]
    pub fn finish<S: Send + Sync + 'static>(
        &self,
        worker: WorkerBuilder<S>,
        job: JobId,
    ) -> impl Future<Output = JobRow> {
        let at = Location::caller();
        async move { self.until_ended(at, LIMIT, worker, job).await }
    }

    /// [`TestTenure::run`] of a job whose first attempt is lost at the worst moment: its handler has ended, and nothing
    /// of its end is written yet. So another attempt does everything again, as after a crash: check that both together
    /// leave what one attempt leaves.
    ///
    /// A job that the handler completed with [`JobContext::complete_in`](crate::JobContext::complete_in) has nothing
    /// left to lose: it ends with its first attempt. A job of a kind with
    /// [`OnCrash::DeadLetter`](crate::handlers::OnCrash::DeadLetter), or with a single attempt, ends as a dead letter.
    /// Any other job that the worker runs meanwhile loses its first attempt, too.
    ///
    /// # Panics
    ///
    /// As [`TestTenure::run`].
    #[track_caller]
    pub fn run_twice<S: Send + Sync + 'static>(
        &self,
        worker: WorkerBuilder<S>,
        job: impl Into<JobRequest>,
    ) -> impl Future<Output = JobRow> {
        self.run_within(LIMIT, worker.losing_first(), job)
    }

    /// Runs this worker until nothing of its queues and kinds is due any more. That includes jobs that handlers enqueue
    /// meanwhile, messages that a NATS client has published, ticks of schedules, jobs that their lanes let go one after
    /// the other, and jobs that follow others. It leaves out jobs that wait for a later time, such as a retry or what a
    /// rate holds back, and those that wait for an event or for a job that does not end: [`TestTenure::held`] says what
    /// they wait for. Returns the jobs that ended meanwhile, in the order in which they ended. Takes at most 10 s; see
    /// [`TestTenure::drain_within`].
    ///
    /// # Panics
    ///
    /// If the worker does not start, or if jobs are still due when the time is up. The message then shows the jobs.
    #[track_caller]
    pub fn drain<S: Send + Sync + 'static>(
        &self,
        worker: WorkerBuilder<S>,
    ) -> impl Future<Output = Vec<JobRow>> {
        self.drain_within(LIMIT, worker)
    }

    /// [`TestTenure::drain`] with another limit than 10 s.
    ///
    /// # Panics
    ///
    /// As [`TestTenure::drain`].
    #[track_caller]
    pub fn drain_within<S: Send + Sync + 'static>(
        &self,
        limit: Duration,
        worker: WorkerBuilder<S>,
    ) -> impl Future<Output = Vec<JobRow>> {
        let at = Location::caller();
        async move {
            let (queues, kinds) = worker.serves();
            let since = self.store().database_time().await.unwrap_or_else(|error| fail(at, &error));
            let running = Running::start(at, worker);
            let began_at = Instant::now();
            let mut quiet_since: Option<Instant> = None;
            loop {
                let due = self.due(at, &queues, kinds.as_deref()).await;
                match due {
                    Due::Nothing => break,
                    // Until then, it has let no lane go on.
                    Due::PutOff if running.0.health().ready().is_err() => quiet_since = None,
                    Due::PutOff if quiet_since.get_or_insert_with(Instant::now).elapsed() >= QUIET => break,
                    Due::PutOff => {}
                    Due::Some => quiet_since = None,
                }
                if running.0.is_finished() {
                    return running.failed(at).await;
                }
                if began_at.elapsed() >= limit {
                    let (jobs, held) = (self.newest_jobs(at).await, self.held_at(at).await);
                    let held = held.iter().take(SHOWN_MAX as usize);
                    let held =
                        held.map(|(job, why)| format!("  {} {why}", job.id)).collect::<Vec<_>>().join("\n");
                    panic!(
                        "{at}: after {} jobs still run or are due (is their queue paused?); the newest:\n{jobs}\nof \
                         those that do not run:\n{held}",
                        written(limit)
                    );
                }
                sleep(LOOK_EVERY).await;
            }
            running.stop(at).await;
            let all = self.store().list_jobs(&JobFilter::new(), i64::MAX, true).await;
            let mut ended = all.unwrap_or_else(|error| fail(at, &error));
            ended.retain(|job| job.finished_at.is_some_and(|finished| finished >= since));
            ended.sort_by_key(|job| (job.finished_at, job.id));
            ended
        }
    }

    /// Returns the queued jobs of this kind in every queue, the oldest first, including those that wait for a later
    /// time or for another attempt. A job enqueued in a transaction appears once the transaction commits; a message
    /// that a NATS client has published, once a worker has received it.
    ///
    /// # Panics
    ///
    /// If a payload is not of this type.
    #[track_caller]
    pub fn enqueued<J: Job>(&self) -> impl Future<Output = Vec<J>> {
        let at = Location::caller();
        async move { self.waiting(at, J::KIND).await.iter().map(|row| typed(at, row, self.codecs())).collect() }
    }

    /// [`TestTenure::enqueued`] for a kind without a Rust type, or with the other columns: queue, time, attempts.
    ///
    /// # Panics
    ///
    /// If the database does not answer.
    #[track_caller]
    pub fn enqueued_kind(&self, kind: &str) -> impl Future<Output = Vec<JobRow>> {
        let at = Location::caller();
        async move { self.waiting(at, kind).await }
    }

    /// Asserts that one of the jobs that [`TestTenure::enqueued`] finds matches; returns the oldest that does.
    ///
    /// # Panics
    ///
    /// If no job matches. The message shows the newest jobs.
    #[track_caller]
    pub fn assert_enqueued<J: Job>(&self, is_it: impl Fn(&J) -> bool) -> impl Future<Output = J> {
        let at = Location::caller();
        async move {
            let rows = self.waiting(at, J::KIND).await;
            let found = rows.iter().map(|row| typed::<J>(at, row, self.codecs())).find(is_it);
            let Some(job) = found else {
                let (kind, n, jobs) = (J::KIND, rows.len(), self.newest_jobs(at).await);
                panic!(
                    "{at}: none of {n} waiting jobs of kind {kind:?} matches; the newest of all jobs:\n{jobs}"
                );
            };
            job
        }
    }

    /// Asserts that no job of this kind waits: [`TestTenure::enqueued`] finds none.
    ///
    /// # Panics
    ///
    /// If a job waits. The message shows the newest jobs.
    #[track_caller]
    pub fn assert_nothing_enqueued<J: Job>(&self) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move {
            let n = self.waiting(at, J::KIND).await.len();
            if n > 0 {
                let (kind, jobs) = (J::KIND, self.newest_jobs(at).await);
                panic!(
                    "{at}: {n} jobs of kind {kind:?} wait, expected none; the newest of all jobs:\n{jobs}"
                );
            }
        }
    }

    /// Returns the queued jobs that do not run, and what each waits for, in words: a time, other jobs, an event, its
    /// lane. The oldest first. Assert that it is empty after a [`TestTenure::drain`] that was to run everything.
    ///
    /// # Panics
    ///
    /// If the database does not answer.
    #[track_caller]
    pub fn held(&self) -> impl Future<Output = Vec<(JobRow, String)>> {
        let at = Location::caller();
        async move { self.held_at(at).await }
    }

    /// Returns how many of these jobs ran at once, at most, by the times of their attempts: whether a lane's limit, or
    /// a queue's, has held. Jobs of kinds that keep no history do not count.
    ///
    /// # Panics
    ///
    /// If none of these jobs has run, or the database does not answer: a limit that nothing reached was not tested.
    #[track_caller]
    pub fn most_at_once(&self, jobs: impl IntoIterator<Item = JobId>) -> impl Future<Output = u64> {
        let (at, jobs): (At, Vec<_>) = (Location::caller(), jobs.into_iter().collect());
        async move {
            let most = self.store().most_at_once(&jobs).await.unwrap_or_else(|error| fail(at, &error));
            let Some(most) = most else {
                let (n, newest) = (jobs.len(), self.newest_jobs(at).await);
                panic!("{at}: none of these {n} jobs has run, so no limit was tested; the newest:\n{newest}");
            };
            most.unsigned_abs()
        }
    }

    /// Moves the time of this test's database forward, at once: due times come nearer by `by`, and past events are
    /// longer ago by `by`. It runs nothing: [`TestTenure::drain`] runs the jobs that are due now.
    ///
    /// Time jumps once. Schedules had no ticks on the way: [`MissedTicks`](crate::schedules::MissedTicks) says what
    /// becomes of those. A job that runs meanwhile was silent all the time, and the worker's scanner resets it if that
    /// is longer than its kind's `stale_after`. The clocks themselves do not move: `now()` in SQL and in Rust is what
    /// it was.
    ///
    /// # Panics
    ///
    /// If the database does not answer.
    #[track_caller]
    pub fn advance(&self, by: Duration) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move { self.store().advance(by).await.unwrap_or_else(|error| fail(at, &error)) }
    }

    /// Waits until this job runs, and resets it at once, as the scanner resets a stale job. Another attempt may run
    /// then.
    ///
    /// The old attempt goes on, as under a frozen or cut-off worker, until it notices: by its next write, which
    /// Postgres refuses, or within 5 s. Under the same worker the next attempt begins when the old handler has ended
    /// (the worker stops it); under another worker of this test both run at once. After its first loss a job runs again
    /// at once, after repeated losses with a backoff, which [`TestTenure::finish`] skips.
    ///
    /// # Panics
    ///
    /// If the job has ended already, or does not run within 10 s. Make a handler that might be too quick wait for a
    /// signal of the test, or use [`TestTenure::run_twice`].
    #[track_caller]
    pub fn lose(&self, job: JobId) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move {
            let began_at = Instant::now();
            while !self.store().lose(job).await.unwrap_or_else(|error| fail(at, &error)) {
                let row = self.row(at, job).await;
                if row.status.is_finished() || began_at.elapsed() >= LIMIT {
                    let history = self.history(at, &row).await;
                    panic!("{at}: the job does not run, so it cannot be lost:\n{history}");
                }
                sleep(LOOK_EVERY).await;
            }
        }
    }

    async fn create(&self, at: At, job: JobRequest) -> JobId {
        let enqueued = self.enqueue(job).await.unwrap_or_else(|error| fail(at, &error));
        if enqueued.duplicate {
            let row = self.row(at, enqueued.id).await;
            let history = self.history(at, &row).await;
            panic!("{at}: no job was created; another job holds its unique key:\n{history}");
        }
        enqueued.id
    }

    async fn until_ended<S: Send + Sync + 'static>(
        &self,
        at: At,
        limit: Duration,
        worker: WorkerBuilder<S>,
        id: JobId,
    ) -> JobRow {
        let running = Running::start(at, worker);
        let began_at = Instant::now();
        loop {
            let job = self.row(at, id).await;
            if job.status.is_finished() {
                running.stop(at).await;
                return job;
            }
            if running.0.is_finished() {
                return running.failed(at).await;
            }
            if began_at.elapsed() >= limit {
                let held = self.held_at(at).await;
                let why = held.into_iter().find(|(of, _)| of.id == id).map(|(_, why)| format!(" ({why})"));
                let hint = why.unwrap_or_default();
                let history = self.history(at, &job).await;
                panic!("{at}: the job has not ended within {}{hint}:\n{history}", written(limit));
            }
            // Skips the job's waits for a later time: its sleeps first, or it would go back to sleep.
            self.store().skip_sleeps(id).await.unwrap_or_else(|error| fail(at, &error));
            self.store().run_now(&[id], Some(self.actor())).await.unwrap_or_else(|error| fail(at, &error));
            sleep(LOOK_EVERY).await;
        }
    }

    /// Returns what a worker of these queues and kinds still has to do.
    async fn due(&self, at: At, queues: &[String], kinds: Option<&[String]>) -> Due {
        // First the messages, then the rows: a message that is gone by now has become a row, or its job has ended.
        let mut put_off = 0;
        for queue in queues {
            match self.nats().progress(queue).await {
                Ok(progress) if progress.pending == 0 => put_off += progress.unacknowledged,
                // Also before the worker has created its consumers.
                _ => return Due::Some,
            }
        }
        let (due, in_lanes) =
            self.store().due_now(queues, kinds).await.unwrap_or_else(|error| fail(at, &error));
        match (due, in_lanes, put_off) {
            (0, 0, 0) => Due::Nothing,
            (0, ..) => Due::PutOff,
            _ => Due::Some,
        }
    }

    async fn row(&self, at: At, id: JobId) -> JobRow {
        let row = self.job(id).await.unwrap_or_else(|error| fail(at, &error));
        row.unwrap_or_else(|| panic!("{at}: job {id} does not exist, or its kind keeps no history"))
    }

    /// Returns the queued jobs of a kind, the oldest first.
    async fn waiting(&self, at: At, kind: &str) -> Vec<JobRow> {
        let rows =
            self.store().list_jobs(&JobFilter::new().status(Status::Queued).kind(kind), i64::MAX, true).await;
        let mut rows = rows.unwrap_or_else(|error| fail(at, &error));
        rows.reverse();
        rows
    }

    /// Returns the newest jobs, a line each.
    async fn newest_jobs(&self, at: At) -> String {
        let rows = self.jobs(&JobFilter::new(), SHOWN_MAX).await.unwrap_or_else(|error| fail(at, &error));
        if rows.is_empty() {
            return "  none (a job enqueued in a transaction appears once the transaction commits)".into();
        }
        rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Returns a job and its attempts, a line each.
    async fn history(&self, at: At, job: &JobRow) -> String {
        let attempts = self.executions(job.id).await.unwrap_or_else(|error| fail(at, &error));
        let attempts = attempts.iter().map(|of| {
            let (outcome, error) =
                (of.outcome.as_deref().unwrap_or("runs"), of.error.as_deref().unwrap_or(""));
            format!("    attempt {}: {outcome} {error}", of.attempt)
        });
        std::iter::once(line(job)).chain(attempts).collect::<Vec<_>>().join("\n")
    }
}

/// The work that is left for a worker.
enum Due {
    Nothing,
    /// Only jobs that their lanes hold, and messages that are put off or are about to be acknowledged.
    PutOff,
    Some,
}

/// A worker of this process. Its drop aborts the worker, as a crash does.
struct Running(WorkerHandle);

impl Running {
    fn start<S: Send + Sync + 'static>(at: At, worker: WorkerBuilder<S>) -> Self {
        Self(worker.start().unwrap_or_else(|error| worker_failed(at, &error)))
    }

    /// Shuts the worker down in good order.
    async fn stop(self, at: At) {
        self.0.stop();
        self.0.wait().await.unwrap_or_else(|error| worker_failed(at, &error));
    }

    /// Panics with the reason why the worker ended by itself.
    async fn failed<T>(self, at: At) -> T {
        self.stop(at).await;
        panic!("{at}: the worker ended by itself")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn worker_failed(at: At, error: &WorkerError) -> ! {
    panic!("{at}: the worker failed: {}", chained(error))
}

async fn connect(builder: TenureBuilder) -> Result<(Tenure, PgPool), String> {
    let config = builder.config().clone();
    let pool =
        pool_of_test(&config.database_url, config.timing.database_within).map_err(|error| chained(&error))?;
    let tenure = builder.connect().await.map_err(|error| chained(&error))?;
    tenure.migrate().await.map_err(|error| chained(&error))?;
    if timeout(LIMIT, tenure.nats().connected()).await.is_err() {
        return Err(format!("NATS does not answer at {}", masked(&config.nats_url)));
    }
    // Before the first message: without the stream, its publication fails and waits for the relay.
    tenure.nats().ensure_stream().await.map_err(|error| chained(&error))?;
    Ok((tenure, pool))
}

fn typed<J: Job>(at: At, row: &JobRow, codecs: &Codecs) -> J {
    let payload = row.payload_json().map_or("null", RawValue::get).to_owned();
    let payload = codecs.open(Part::Payload, payload).unwrap_or_else(|error| fail(at, &error));
    serde_json::from_str(&payload).unwrap_or_else(|error| {
        panic!("{at}: the payload does not fit the job's type: {error}:\n{}", line(row))
    })
}

fn line(job: &JobRow) -> String {
    let JobRow { id, queue, kind, status, attempt, max_attempts, .. } = job;
    let mut parts = vec![format!("  {kind} in {queue}, {status}, attempt {attempt} of {max_attempts}")];
    if *status == Status::Queued && job.scheduled_at > Utc::now() {
        parts.push(format!("waits until {}", job.scheduled_at.to_rfc3339()));
    }
    parts.extend(job.payload_json().map(|payload| format!("payload {payload}")));
    parts.extend(job.last_error.as_ref().map(|error| format!("last error {error:?}")));
    parts.push(format!("id {id}"));
    parts.join(", ")
}

fn fail(at: At, error: &dyn Error) -> ! {
    panic!("{at}: {}", chained(error))
}
