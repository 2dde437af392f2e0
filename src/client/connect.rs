//! Connect: over tenure's connections, or the application's.

use std::sync::Arc;

use sqlx::PgPool;
use tokio::runtime::Handle;

use super::{Inner, Tenure};
use crate::{
    codec::job::Codecs,
    config::{Config, TimingError},
    enqueue::{backpressure::Limits, insert, publish::Publications, uncommitted::Uncommitted},
    nats::{Client, Nats, NatsError},
    observe::hooks::{EnqueueFunctions, EnqueueHooks, JobEnqueued},
    store::{Store, StoreError},
    watch::api::Watches,
};

/// The settings, or the given client, cannot be used.
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
    Nats(#[from] NatsError),
    /// The system has no thread left for a hook.
    #[error("the thread of a hook could not be started")]
    Threads(#[source] std::io::Error),
}

/// Configures a [`Tenure`]. See [`Tenure::builder`].
///
/// ```no_run
/// use tenure::{Config, Tenure, async_nats, errors::ConnectError, sqlx};
///
/// # async fn f(config: Config, pool: sqlx::PgPool, client: async_nats::Client) -> Result<(), ConnectError> {
/// let tenure = Tenure::builder(&config).handler_pool(pool).nats(client).connect().await?;
/// # Ok(()) }
/// ```
#[must_use = "a builder connects when `connect` is awaited"]
pub struct TenureBuilder {
    config: Config,
    handler_pool: Option<PgPool>,
    nats: Option<Client>,
    on_enqueue: EnqueueFunctions,
    codecs: Codecs,
}

impl std::fmt::Debug for TenureBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TenureBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl TenureBuilder {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            handler_pool: None,
            nats: None,
            on_enqueue: Vec::new(),
            codecs: Codecs::new(),
        }
    }

    /// Returns the settings.
    #[cfg(feature = "testing")]
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Takes the connections of handlers' transactions, [`JobContext::fenced_tx`](crate::JobContext::fenced_tx) and
    /// [`JobContext::once`](crate::JobContext::once), from the application's pool, instead of a pool of
    /// [`Config::handler_connections`]. tenure's own statements keep their connections to [`Config::database_url`], so
    /// that an exhausted pool stops no heartbeat.
    ///
    /// The pool must lead to the same database; a worker refuses another with
    /// [`WorkerError::HandlerPool`](crate::WorkerError::HandlerPool). Its role needs the rights of `tenure_worker`.
    /// tenure never closes the pool; close it after the last worker has stopped.
    pub fn handler_pool(mut self, pool: PgPool) -> Self {
        self.handler_pool = Some(pool);
        self
    }

    /// Sends and receives over the application's client, all but acknowledgements: a worker's go over a connection of
    /// their own, which tenure makes by [`Config::nats_url`] and the settings beside it. That has to lead to the same
    /// account. (What a client holds when its connection breaks goes to the server that is there next; if that one's
    /// stream went back, an acknowledgement would remove a message that was accepted since.)
    ///
    /// The client must reconnect for ever, and must not be connected with `no_echo`; its user must have the right to
    /// subscribe to its inbox prefix. tenure neither drains nor closes the client; drain it after [`Tenure::close`].
    pub fn nats(mut self, client: Client) -> Self {
        self.nats = Some(client);
        self
    }

    /// Calls this hook with each job that an enqueue of this [`Tenure`] has created, also by
    /// [`Tenure::enqueue_many`](crate::Tenure::enqueue_many) and in the program's own transaction. It hears of no
    /// duplicate, no submission and no job of a schedule.
    ///
    /// The job's row is committed by then, but in a transaction of the program's own
    /// ([`JobEnqueued::in_transaction`](crate::hooks::JobEnqueued::in_transaction)) it is only inserted, and may still
    /// roll back.
    ///
    /// A hook has a thread and a queue of its own, may block, and may call [`tokio::spawn`] on the runtime of
    /// [`TenureBuilder::connect`]. No enqueue waits for it. While 4,096 events wait, later ones are dropped and counted
    /// (`tenure_hook_failures_total`); a panic is logged and counted, and the hook hears the next event. Each call adds
    /// a hook.
    ///
    /// ```no_run
    /// # use tenure::{Config, Tenure, errors::ConnectError};
    /// # async fn f(config: Config) -> Result<(), ConnectError> {
    /// let hook = |job: &tenure::hooks::JobEnqueued| println!("{} waits in {}", job.id, job.queue);
    /// let tenure = Tenure::builder(&config).on_enqueue(hook).connect().await?;
    /// # Ok(()) }
    /// ```
    pub fn on_enqueue(mut self, hook: impl FnMut(&JobEnqueued) + Send + 'static) -> Self {
        self.on_enqueue.push(Box::new(hook));
        self
    }

    /// Seals what the jobs of these kinds carry, by their codecs, before it leaves this process, and opens it where it
    /// is used: payloads, outputs, checkpoints and the results of steps and of `once`. Give producers, workers and
    /// programs that wait for outputs the same codecs.
    ///
    /// What was enqueued without the codec is run as it is. A worker without the key or the codec puts the job off, and
    /// says so. [`Tenure::job`] and lists return what is sealed as it is: [`Tenure::codecs`] opens it.
    pub fn codecs(mut self, codecs: Codecs) -> Self {
        self.codecs = codecs;
        self
    }

    /// Prepares both connections, as [`Tenure::connect`] does.
    ///
    /// # Errors
    ///
    /// Settings that cannot be used, a client with another inbox prefix than [`Config::inbox_prefix`], and a hook for
    /// which the system has no thread.
    pub async fn connect(self) -> Result<Tenure, ConnectError> {
        let Self { config, handler_pool, nats, on_enqueue, codecs } = self;
        config.timing.validate()?;
        let store = Store::open(&config, handler_pool).map_err(ConnectError::Database)?;
        let nats = match nats {
            Some(client) => Nats::given(&config, client).await?,
            None => Nats::open(&config).await?,
        };
        // Wait a moment, so that this process publishes the first jobs that it enqueues, not the relay.
        nats.connected_soon().await;
        let publications =
            Publications::start(store.clone(), nats.clone(), config.timing.publish_within).await?;
        let uncommitted =
            Uncommitted::start(store.clone(), publications.clone(), config.timing.publish_within);
        let enqueue_hooks =
            EnqueueHooks::start(on_enqueue, &Handle::current()).map_err(ConnectError::Threads)?;
        let lane = || insert::batcher(store.clone(), Some(publications.clone()), enqueue_hooks.clone());
        let (enqueues, keyed) = (lane(), lane());
        let limits = Limits::new(store.clone(), nats.clone());
        let watches = Watches::new(store.clone(), nats.clone());
        let actor = Arc::new(config.actor.clone());
        let inner = Inner {
            config,
            store,
            nats,
            enqueues,
            keyed,
            limits,
            publications,
            uncommitted,
            watches,
            enqueue_hooks,
            codecs,
        };
        Ok(Tenure { inner: Arc::new(inner), actor })
    }
}
