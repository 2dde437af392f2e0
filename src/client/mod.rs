//! Tenure: the handle that producers and workers share.

pub(crate) mod call;
pub(crate) mod connect;
pub(crate) mod enqueue;
pub(crate) mod jobs;
pub(crate) mod queues;
#[cfg(feature = "worker")]
pub(crate) mod workers;

use std::sync::Arc;

use self::connect::{ConnectError, TenureBuilder};
use crate::{
    codec::job::Codecs,
    config::Config,
    enqueue::{
        backpressure::Limits,
        insert::{Created, EnqueueError},
        publish::Publications,
        uncommitted::Uncommitted,
    },
    job::{JobId, actor::Actor},
    logs::store::LogRow,
    nats::{Nats, NatsError},
    observe::hooks::EnqueueHooks,
    steps::store::StepRow,
    store::{
        ExecutionRow, JobFilter, JobRow, MigrateError, NewJob, RecoveryRow, Store, StoreError, WorkerRow,
        batch::Batcher,
    },
    watch::api::Watches,
};

/// The handle to tenure: its connections to Postgres and NATS, and the writes in flight. Cheap to clone.
///
/// # Errors
///
/// A call that reads or writes the database ends within [`Timing::database_within`](crate::Timing::database_within);
/// its error says whether Postgres was unavailable ([`StoreError::is_unavailable`]) or refused the statement.
/// A write without an answer may have happened. Repeating it does no harm, but for an enqueue without a unique key,
/// which creates a second job.
///
/// # Cancel safety
///
/// Each call may be dropped at any time. Its statement then happened or not, and never in part.
#[derive(Clone)]
pub struct Tenure {
    inner: Arc<Inner>,
    /// Who acts by this handle.
    actor: Arc<Actor>,
}

struct Inner {
    config: Config,
    store: Store,
    nats: Nats,
    enqueues: Batcher<NewJob, Result<Created, EnqueueError>>,
    keyed: Batcher<NewJob, Result<Created, EnqueueError>>,
    limits: Limits,
    /// The messages that the stream has not confirmed yet.
    publications: Publications,
    uncommitted: Uncommitted,
    watches: Watches,
    enqueue_hooks: EnqueueHooks,
    codecs: Codecs,
}

impl std::fmt::Debug for Tenure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tenure").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

/// Why [`Tenure::setup`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The schema was not migrated.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// The stream or a consumer was not created or changed.
    #[error(transparent)]
    Nats(#[from] NatsError),
}

impl Tenure {
    /// Returns the description of a connection, which can take the application's own pool and client.
    pub fn builder(config: &Config) -> TenureBuilder {
        TenureBuilder::new(config)
    }

    /// Prepares the connections to Postgres and NATS, and waits up to two seconds for NATS. While NATS is away, this
    /// process keeps the messages of the jobs that it enqueues, and publishes them once NATS is back. Either server
    /// may be away: a call that needs it returns an error, and both connections recover by themselves.
    /// Short for [`Tenure::builder`] and [`TenureBuilder::connect`].
    ///
    /// # Errors
    ///
    /// A setting cannot be used: the timers contradict each other, or a URL is invalid.
    pub async fn connect(config: &Config) -> Result<Self, ConnectError> {
        Self::builder(config).connect().await
    }

    /// Returns a handle for what this user does: [`Tenure::audit`] names them with each act by it. The connections are
    /// the same.
    ///
    /// ```no_run
    /// use tenure::{StoreError, Tenure, audit::Actor};
    ///
    /// # async fn f(tenure: Tenure, job: tenure::JobId) -> Result<(), StoreError> {
    /// let as_alice = tenure.acting_as(Actor::new("alice").via("back office"));
    /// as_alice.cancel(job).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn acting_as(&self, actor: Actor) -> Self {
        Self { inner: self.inner.clone(), actor: Arc::new(actor) }
    }

    /// Returns the codecs that this process was [given](TenureBuilder::codecs).
    #[must_use]
    pub fn codecs(&self) -> &Codecs {
        &self.inner.codecs
    }

    /// Creates or updates the schema. Returns the versions that it applied; none if the schema was current.
    /// Several calls may run at once, and workers meanwhile: a migration holds none up for longer than a moment.
    ///
    /// # Errors
    ///
    /// [`MigrateError::Blocked`] after a minute, if a long transaction blocks the migration; the error names it.
    pub async fn migrate(&self) -> Result<Vec<i64>, MigrateError> {
        self.inner.store.migrate().await
    }

    /// [`Tenure::migrate`] with a test's own migrations, tried for `patience`.
    #[cfg(feature = "faults")]
    #[doc(hidden)]
    pub async fn migrate_with(
        &self,
        migrations: &[(i64, &'static str, &'static str)],
        patience: std::time::Duration,
    ) -> Result<Vec<i64>, MigrateError> {
        self.inner.store.apply(migrations, patience).await
    }

    /// Runs [`Tenure::migrate`], creates the stream and the consumers of `queues` if they are missing, and changes
    /// those that differ from their definitions.
    ///
    /// Cancel safe, in steps: call it again.
    ///
    /// # Errors
    ///
    /// Postgres or NATS is unavailable or refuses a step. Steps before it stay done; call it again.
    pub async fn setup(&self, queues: &[String]) -> Result<Vec<i64>, SetupError> {
        let applied = self.migrate().await?;
        self.inner.nats.apply_topology(queues).await?;
        Ok(applied)
    }

    /// Returns the job with this id, live, finished or dead; `None` if there is no such job, or no longer: a job of a
    /// kind that keeps no history is gone once it has completed.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn job(&self, id: JobId) -> Result<Option<JobRow>, StoreError> {
        self.inner.store.show_job(id).await
    }

    /// Returns at most `limit` jobs, newest first. For the next page, pass the last id to [`JobFilter::before`].
    ///
    /// A filter that few jobs pass reads many rows; in a large history, filter by age as well.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn jobs(&self, filter: &JobFilter, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        self.inner.store.list_jobs(filter, limit.into(), true).await
    }

    /// Returns the size of a job's checkpoint, in bytes of JSON. `None`: the job saved none, or no longer needs it.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn checkpoint_bytes(&self, id: JobId) -> Result<Option<usize>, StoreError> {
        self.inner.store.checkpoint_size(id).await
    }

    /// Returns what the last attempts of a job have printed, the latest first: at most three attempts, of each the last
    /// 64 KiB. Empty if its worker keeps no logs ([`Config::job_logs`](crate::Config::job_logs)), or it has printed
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn job_logs(&self, id: JobId) -> Result<Vec<LogRow>, StoreError> {
        self.inner.store.job_logs(id).await
    }

    /// Returns the worker processes, the latest started first. A worker that stopped in good order is not among them;
    /// one that died is, until recovery has reset its jobs and removed it.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn workers(&self) -> Result<Vec<WorkerRow>, StoreError> {
        self.inner.store.list_workers().await
    }

    /// Returns every attempt of one job, oldest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn executions(&self, id: JobId) -> Result<Vec<ExecutionRow>, StoreError> {
        self.inner.store.executions(id, i64::MAX).await
    }

    /// Returns what the attempts of one job have recorded, oldest first: steps, sleeps and effects.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn steps(&self, id: JobId) -> Result<Vec<StepRow>, StoreError> {
        self.inner.store.list_steps(id, i64::MAX).await
    }

    /// Returns the recoveries and refusals of one job, oldest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn recoveries(&self, id: JobId) -> Result<Vec<RecoveryRow>, StoreError> {
        self.inner.store.recoveries(id, i64::MAX).await
    }

    /// Waits until the stream has confirmed the messages of all jobs enqueued so far, or they are left to the relay.
    /// The jobs of committed transactions are included.
    ///
    /// A program may end without it: once an enqueue has returned, the kernel has its message. Only the jobs of
    /// transactions that were committed in the last milliseconds then run some seconds later.
    ///
    /// Cancel safe: the messages go out without it.
    pub async fn flush(&self) {
        self.inner.uncommitted.look().await;
        self.inner.publications.wait().await;
    }

    /// Checks that this process can enqueue: for the readiness of a program that serves requests. NATS may be away, as
    /// the jobs of that time wait for the relay; [`Health::ready`](crate::Health::ready) says whether a worker takes
    /// jobs, and would take a web site away with NATS.
    ///
    /// Waits for Postgres for [`Timing::database_within`](crate::Timing::database_within) (10 s), which may be longer
    /// than a probe waits: give it a limit. Cancel safe.
    ///
    /// # Errors
    ///
    /// Postgres does not answer, refuses writes, has no schema of tenure, or the role may not add jobs.
    pub async fn can_enqueue(&self) -> Result<(), StoreError> {
        self.store().can_enqueue().await
    }

    /// Ends all streams of [`Tenure::watch`], for good: those that begin later end after their first update, and calls
    /// that wait for it return an error. Waits for ends ([`Tenure::wait_for`], calls) go on. Call it when your program
    /// is told to stop: a web server that waits for its open requests would wait for each browser that watches a job.
    pub fn end_watches(&self) {
        self.watches().end();
    }

    /// Runs [`Tenure::flush`], then closes both connections. A pool or a client that the builder was given stays open.
    /// Waits at most 5 s for the hooks of [`TenureBuilder::on_enqueue`].
    pub async fn close(&self) {
        self.flush().await;
        self.inner.nats.flush().await;
        self.inner.store.close().await;
        self.inner.enqueue_hooks.finish().await;
    }

    pub(crate) fn actor(&self) -> &Actor {
        &self.actor
    }

    pub(crate) fn config(&self) -> &Config {
        &self.inner.config
    }

    pub(crate) fn store(&self) -> &Store {
        &self.inner.store
    }

    pub(crate) fn nats(&self) -> &Nats {
        &self.inner.nats
    }

    pub(crate) fn enqueues(&self, keyed: bool) -> &Batcher<NewJob, Result<Created, EnqueueError>> {
        if keyed { &self.inner.keyed } else { &self.inner.enqueues }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    pub(crate) fn publications(&self) -> &Publications {
        &self.inner.publications
    }

    pub(crate) fn enqueue_hooks(&self) -> &EnqueueHooks {
        &self.inner.enqueue_hooks
    }

    pub(crate) fn uncommitted(&self) -> &Uncommitted {
        &self.inner.uncommitted
    }

    pub(crate) fn watches(&self) -> &Watches {
        &self.inner.watches
    }
}
