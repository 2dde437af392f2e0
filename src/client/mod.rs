//! Tenure: the handle that producers and workers share.

pub(crate) mod doctor;
pub(crate) mod enqueue;
pub(crate) mod jobs;
pub(crate) mod queues;
pub(crate) mod schedules;
pub(crate) mod verify;

use std::sync::Arc;

use crate::{
    batch::Batcher,
    config::{Config, TimingError},
    enqueue::{
        backpressure::Limits,
        insert::{self, Created, EnqueueError},
        publish::Publications,
        uncommitted::Uncommitted,
    },
    job::JobId,
    nats::{Queue, QueueError},
    store::{
        ExecutionRow, JobFilter, JobRow, MigrateError, NewJob, RecoveryRow, Store, StoreError, WorkerRow,
    },
};

/// A connection to tenure: Postgres, NATS and what is in flight to them. Cheap to clone.
#[derive(Clone)]
pub struct Tenure {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    store: Store,
    queue: Queue,
    enqueues: Batcher<NewJob, Result<Created, EnqueueError>>,
    keyed: Batcher<NewJob, Result<Created, EnqueueError>>,
    limits: Limits,
    /// Publications that the callers of enqueue did not wait for.
    publications: Publications,
    uncommitted: Uncommitted,
}

impl std::fmt::Debug for Tenure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tenure").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

/// tenure could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The timers contradict each other.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// `DATABASE_URL` cannot be used.
    #[error("DATABASE_URL cannot be used; write postgres://user:password@host/database")]
    Database(#[source] StoreError),
    /// `NATS_URL` cannot be used.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// Setting up the schema and the stream failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The schema.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// The stream or a consumer.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl Tenure {
    /// Prepares both connections. Waits for NATS for up to two seconds; what is enqueued while it still is away is
    /// published by this process once it is there. Either server may be away: each call says so when it matters, and
    /// both connections come back by themselves.
    ///
    /// # Errors
    ///
    /// Settings that cannot be used.
    pub async fn connect(config: &Config) -> Result<Self, ConnectError> {
        config.timing.validate()?;
        let store = Store::open(config).map_err(ConnectError::Database)?;
        let queue = Queue::open(config).await?;
        // What is enqueued from here on is published by this process, not by the relay.
        queue.connected_soon().await;
        let publications =
            Publications::start(store.clone(), queue.clone(), config.timing.publish_within).await?;
        let uncommitted =
            Uncommitted::start(store.clone(), publications.clone(), config.timing.publish_within);
        let lane = || insert::batcher(store.clone(), Some(publications.clone()));
        let (enqueues, keyed) = (lane(), lane());
        let (config, limits) = (config.clone(), Limits::new(store.clone()));
        Ok(Self {
            inner: Arc::new(Inner {
                config,
                store,
                queue,
                enqueues,
                keyed,
                limits,
                publications,
                uncommitted,
            }),
        })
    }

    /// Creates or updates the schema. Returns the versions that were applied; none when it was current.
    /// Any number of these may run at once, and workers may work meanwhile: none is held up for longer than a moment.
    ///
    /// # Errors
    ///
    /// [`MigrateError::Blocked`], after a minute: somebody's long transaction is in the way, and is named.
    pub async fn migrate(&self) -> Result<Vec<i64>, MigrateError> {
        self.inner.store.migrate().await
    }

    /// [`Tenure::migrate`] with migrations of a test's own, tried for so long.
    #[cfg(feature = "faults")]
    #[doc(hidden)]
    pub async fn migrate_with(
        &self,
        migrations: &[(i64, &'static str, &'static str)],
        patience: std::time::Duration,
    ) -> Result<Vec<i64>, MigrateError> {
        self.inner.store.apply(migrations, patience).await
    }

    /// [`Tenure::migrate`], and the stream and the consumers of these queues: created if missing,
    /// changed if they differ from their definitions.
    pub async fn setup(&self, queues: &[String]) -> Result<Vec<i64>, SetupError> {
        let applied = self.migrate().await?;
        self.inner.queue.apply_topology(queues).await?;
        Ok(applied)
    }

    /// One job, wherever it stands; `None` if there is none of this id.
    pub async fn job(&self, id: JobId) -> Result<Option<JobRow>, StoreError> {
        self.inner.store.show_job(id).await
    }

    /// Jobs, newest first, at most `limit`. The next page is that of [`JobFilter::before`] the last id of this one.
    ///
    /// A filter that few jobs pass looks at many of them; in a large history, name an age as well.
    pub async fn jobs(&self, filter: &JobFilter, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        self.inner.store.list_jobs(filter, limit.into(), true).await
    }

    /// How many bytes the checkpoint of a job has, as JSON. `None`: it saved none, or has no more use for it.
    pub async fn checkpoint_bytes(&self, id: JobId) -> Result<Option<i32>, StoreError> {
        self.inner.store.checkpoint_size(id).await
    }

    /// The worker processes that are known, the latest started first. One that has stopped in good order is none of
    /// them; one that died is, until its jobs are taken back and it is forgotten.
    pub async fn workers(&self) -> Result<Vec<WorkerRow>, StoreError> {
        self.inner.store.list_workers().await
    }

    /// Every attempt of one job, oldest first.
    pub async fn executions(&self, id: JobId) -> Result<Vec<ExecutionRow>, StoreError> {
        self.inner.store.executions(id, i64::MAX).await
    }

    /// What was recovered or refused of one job, oldest first.
    pub async fn recoveries(&self, id: JobId) -> Result<Vec<RecoveryRow>, StoreError> {
        self.inner.store.recoveries(id, i64::MAX).await
    }

    /// Waits until the messages of everything enqueued so far were confirmed, or were left to the relay; what was
    /// enqueued in transactions that are committed is part of it.
    ///
    /// A program may end without it: the kernel has the messages of what was enqueued when that returned. Only jobs
    /// of transactions that were committed in the last milliseconds run some seconds later then.
    pub async fn flush(&self) {
        self.inner.uncommitted.look().await;
        self.inner.publications.wait().await;
    }

    /// [`Tenure::flush`], then closes both connections.
    pub async fn close(&self) {
        self.flush().await;
        self.inner.queue.flush().await;
        self.inner.store.close().await;
    }

    pub(crate) fn config(&self) -> &Config {
        &self.inner.config
    }

    pub(crate) fn store(&self) -> &Store {
        &self.inner.store
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.inner.queue
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

    pub(crate) fn uncommitted(&self) -> &Uncommitted {
        &self.inner.uncommitted
    }
}
