//! Worker: what users say about a worker, and what can be wrong with it.
//!
//! Not here: what a running worker does (`serve`, `loops`).

pub(crate) mod counts;
mod loops;
mod serve;
mod turns;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    io,
    sync::{Arc, Mutex, atomic::AtomicBool},
};

use rand::distr::{Alphanumeric, SampleString};
use serde_json::Value;
use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore},
};

use self::{
    serve::{ASKS_MAX, Shared},
    turns::Turns,
};
use crate::{
    client::Tenure,
    deliver::{Deliver, DeliverSettings},
    job::{Job, NameError, check_queue},
    nats::slots::Slots,
    observe::{health::Health, metrics::QueueMeasures, repeats::Repeats},
    run::{
        context::JobContext,
        handlers::{HandlerError, IntoOutcome, KindOptions, Kinds},
        heartbeat::Heartbeat,
        running::Running,
        settle::Settle,
        threads::Threads,
    },
    store::StoreError,
};

/// How many jobs of a queue run at once, unless said otherwise.
const SLOTS_DEFAULT: usize = 10;
/// A worker whose runtime has not run for so many renewals of its row hangs.
const HUNG_RENEWALS: u32 = 6;
/// The most slots of one queue: the database bounds what is useful long before.
const SLOTS_MAX: usize = 100_000;

/// A worker did not start, or ended before it was told to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// A queue's name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A handler.
    #[error(transparent)]
    Handler(#[from] HandlerError),
    /// A number of slots.
    #[error("queue {queue:?} has {slots} slots, but must have 1 to {SLOTS_MAX}")]
    Slots {
        /// Which queue.
        queue: String,
        /// How many were asked for.
        slots: usize,
    },
    /// Queues that share slots.
    #[error("{queues:?} cannot share {slots} slots: {reason}")]
    Shared {
        /// Their names.
        queues: Vec<String>,
        /// How many slots.
        slots: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// The state came after handlers, which were written for none.
    #[error(
        "the state was given after the handlers of {kinds:?}, which cannot have it; give it first: \
         Worker::builder(&tenure).state(..).handle(..)"
    )]
    StateAfterHandler {
        /// The kinds that had a handler by then; `*` is that of [`WorkerBuilder::handle_any`].
        kinds: Vec<String>,
    },
    /// Nothing to do.
    #[error("the worker has no {0}; give it at least one")]
    Nothing(&'static str),
    /// The schema has left this program behind: a migration has taken away what it uses.
    #[error(
        "the schema is at version {version}, which no program of before version {breaks_before} works with; this one \
         knows {knows}: deploy a newer one"
    )]
    TooOld {
        /// What the database has.
        version: i64,
        /// The oldest version that a program must know.
        breaks_before: i64,
        /// What this one knows.
        knows: i64,
    },
    /// Postgres refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// For as long as `stale_after`, every thread for handlers was held by one that blocks it and was given
    /// up: nothing can run any more.
    /// The worker stopped in good order. Start the process anew: a blocked thread cannot be ended from inside.
    #[error(
        "all {threads} threads for handlers are held by handlers that block and were given up; \
         restart the process, and use tokio::task::spawn_blocking for what does not await"
    )]
    Blocked {
        /// How many threads there are.
        threads: usize,
    },
    /// The address of [`Config::listen`](crate::Config::listen) cannot be listened on.
    #[error("TENURE_LISTEN is {address}, which cannot be listened on: {reason}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why not.
        reason: String,
    },
    /// The system has no threads left for handlers.
    #[error("the threads for handlers could not be started: {0}")]
    Threads(io::Error),
    /// The system does not tell the host's name.
    #[error("the host's name cannot be read; set TENURE_HOSTNAME")]
    Hostname,
}

/// Runs jobs. See [`Worker::builder`].
#[derive(Debug)]
pub struct Worker;

impl Worker {
    /// Starts to describe a worker.
    ///
    /// ```no_run
    /// use tenure::{Job, JobContext, JobError, Outcome, Tenure, Worker};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Greet { name: String }
    /// impl Job for Greet { const KIND: &'static str = "greet"; }
    ///
    /// async fn greet(job: Greet, ctx: JobContext) -> Result<Outcome, JobError> {
    ///     ctx.progress("greeting", 50.0, &job.name).await?;
    ///     Outcome::done(format!("hello, {}", job.name))
    /// }
    ///
    /// # async fn f(tenure: Tenure) -> Result<(), tenure::WorkerError> {
    /// Worker::builder(&tenure).handle(greet).concurrency("default", 8).run_until(tenure::shutdown_signal()).await
    /// # }
    /// ```
    pub fn builder(tenure: &Tenure) -> WorkerBuilder {
        WorkerBuilder {
            tenure: tenure.clone(),
            health: Health::new(tenure.config().timing.renew_every * HUNG_RENEWALS),
            state: Arc::new(()),
            kinds: Kinds::default(),
            named: Some(BTreeSet::new()),
            queues: BTreeMap::new(),
            shared: Vec::new(),
            error: None,
            recovery: Recovery { scanner: true, relay: true, reconcile: true, vanished: true },
            handlers_on: None,
            makes_transactions: true,
            #[cfg(feature = "testing")]
            loses_first: false,
        }
    }
}

/// Which ways of recovery a worker takes part in.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is one of the ways")]
struct Recovery {
    scanner: bool,
    relay: bool,
    reconcile: bool,
    vanished: bool,
}

/// A worker being described.
#[must_use = "a worker runs when `run_until` is awaited"]
pub struct WorkerBuilder<S = ()> {
    tenure: Tenure,
    health: Health,
    state: Arc<S>,
    kinds: Kinds<S>,
    /// Which queues the handlers' types name. `None`: a handler without a type may be for any.
    named: Option<BTreeSet<&'static str>>,
    queues: BTreeMap<String, Option<usize>>,
    shared: Vec<(usize, Vec<(String, u32)>)>,
    error: Option<WorkerError>,
    recovery: Recovery,
    handlers_on: Option<Handle>,
    /// Whether handlers may call `once` and its kin: commands cannot.
    makes_transactions: bool,
    #[cfg(feature = "testing")]
    loses_first: bool,
}

impl<S> std::fmt::Debug for WorkerBuilder<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerBuilder").field("queues", &self.queues).finish_non_exhaustive()
    }
}

impl WorkerBuilder {
    /// Gives every handler this value as [`JobContext::state`]. Call it before the first handler: one that was added
    /// earlier takes a context without it, and [`WorkerBuilder::run_until`] fails with
    /// [`WorkerError::StateAfterHandler`].
    ///
    /// ```no_run
    /// # use tenure::{Job, JobContext, JobError, Outcome, Tenure, Worker};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Greet { name: String }
    /// # impl Job for Greet { const KIND: &'static str = "greet"; }
    /// struct App { pool: sqlx::PgPool }
    ///
    /// async fn greet(job: Greet, ctx: JobContext<App>) -> Result<Outcome, JobError> {
    ///     sqlx::query("INSERT INTO greeted VALUES ($1)").bind(&job.name).execute(&ctx.state().pool).await?;
    ///     Outcome::done(())
    /// }
    ///
    /// # fn f(tenure: &Tenure, pool: sqlx::PgPool) {
    /// let worker = Worker::builder(tenure).state(App { pool }).handle(greet);
    /// # }
    /// ```
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> WorkerBuilder<T> {
        if !self.kinds.is_empty() {
            let mut kinds = self.kinds.names().unwrap_or_else(|| vec!["*".into()]);
            kinds.sort_unstable();
            self.error.get_or_insert(WorkerError::StateAfterHandler { kinds });
        }
        WorkerBuilder {
            tenure: self.tenure,
            health: self.health,
            state: Arc::new(state),
            kinds: Kinds::default(),
            named: self.named,
            queues: self.queues,
            shared: self.shared,
            error: self.error,
            recovery: self.recovery,
            handlers_on: self.handlers_on,
            makes_transactions: self.makes_transactions,
            #[cfg(feature = "testing")]
            loses_first: self.loses_first,
        }
    }
}

impl<S: Send + Sync + 'static> WorkerBuilder<S> {
    /// Handles the jobs of one type; its queue is served.
    pub fn handle<J, F, Fut>(self, handler: F) -> Self
    where
        J: Job,
        F: Fn(J, JobContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.handle_with(KindOptions::new(), handler)
    }

    /// [`WorkerBuilder::handle`] with options of the kind's own.
    pub fn handle_with<J, F, Fut>(mut self, options: KindOptions, handler: F) -> Self
    where
        J: Job,
        F: Fn(J, JobContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        let added = self.kinds.add_typed(options, handler);
        self.note(added);
        if let Some(named) = &mut self.named {
            named.insert(J::QUEUE);
        }
        self.queues.entry(J::QUEUE.into()).or_default();
        self
    }

    /// Handles the jobs of a kind that has no Rust type.
    pub fn handle_kind<F, Fut>(mut self, kind: &str, options: KindOptions, handler: F) -> Self
    where
        F: Fn(Value, JobContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.named = None;
        let added = self.kinds.add(Some(kind), options, handler);
        self.note(added);
        self
    }

    /// Handles the jobs of every kind that has no handler of its own: no kind is unknown any more.
    pub fn handle_any<F, Fut>(mut self, options: KindOptions, handler: F) -> Self
    where
        F: Fn(Value, JobContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.named = None;
        let added = self.kinds.add(None, options, handler);
        self.note(added);
        self
    }

    /// Serves a queue, running at most so many of its jobs at once. Default 10 for the queues of typed
    /// handlers.
    pub fn concurrency(mut self, queue: &str, slots: usize) -> Self {
        if let Err(error) = check_queue(queue) {
            self.error.get_or_insert(error.into());
        } else if slots == 0 || slots > SLOTS_MAX {
            self.error.get_or_insert(WorkerError::Slots { queue: queue.into(), slots });
        }
        self.shared.retain(|(_, shared)| !shared.iter().any(|(name, _)| name == queue));
        self.queues.insert(queue.into(), Some(slots));
        self
    }

    /// Serves several queues from one set of slots, each by its weight: where all have jobs waiting, of weights
    /// 8 and 1 the first gets eight jobs of nine; where only one has, it gets all slots but one for each of the
    /// others. So an urgent queue is served first, and a slow one never starves. No running job is interrupted.
    ///
    /// ```no_run
    /// # fn f(worker: tenure::WorkerBuilder) -> tenure::WorkerBuilder {
    /// worker.shared(10, [("urgent", 8), ("bulk", 1)])
    /// # }
    /// ```
    pub fn shared<'q>(mut self, slots: usize, queues: impl IntoIterator<Item = (&'q str, u32)>) -> Self {
        let queues: Vec<_> = queues.into_iter().map(|(name, weight)| (name.to_owned(), weight)).collect();
        let names: Vec<_> = queues.iter().map(|(name, _)| name.clone()).collect();
        let mut wrong = |reason| {
            self.error.get_or_insert(WorkerError::Shared { queues: names.clone(), slots, reason });
        };
        if slots < queues.len() || slots > SLOTS_MAX {
            wrong("give each queue at least one slot, and all at most 100000");
        } else if queues.iter().any(|(_, weight)| *weight == 0) {
            wrong("a weight must be at least 1; serve a queue of weight 0 by another worker");
        } else if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
            wrong("a queue is named twice");
        }
        for name in &names {
            if let Err(error) = check_queue(name) {
                self.error.get_or_insert(error.into());
            }
            self.queues.insert(name.clone(), None);
        }
        self.shared.retain(|(_, others)| !others.iter().any(|(name, _)| names.contains(name)));
        self.shared.push((slots, queues));
        self
    }

    /// Serves this queue and no other, also not those that the types of handlers name; runs at most so many
    /// of its jobs at once. After the handlers.
    pub fn only_queue(mut self, queue: &str, slots: usize) -> Self {
        // It is for jobs of these types that were enqueued elsewhere than their type says.
        self.named = None;
        self.queues.clear();
        self.shared.clear();
        self.concurrency(queue, slots)
    }

    /// The health of this worker, to be asked while it runs. Keep it, and serve it from a thread or a runtime that is
    /// not the worker's; or set `TENURE_LISTEN`, with the feature `http`.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Runs handlers on this runtime. Default: on one of tenure's own, whose threads (at least 4, or one a
    /// core) are named `tenure-handler` and serve all workers of the process, so that a handler which blocks
    /// its thread holds up neither heartbeats nor claims nor the shutdown.
    ///
    /// Give another than the one that calls [`WorkerBuilder::run_until`], or that protection is gone.
    pub fn handlers_on(mut self, runtime: Handle) -> Self {
        self.handlers_on = Some(runtime);
        self
    }

    /// Its handlers are commands, which make no transactions of tenure's.
    #[cfg(feature = "cli")]
    pub(crate) fn without_transactions(mut self) -> Self {
        self.makes_transactions = false;
        self
    }

    /// For tests of one way of recovery: switches the others off.
    #[doc(hidden)]
    pub fn recovery(mut self, scanner: bool, relay: bool, reconcile: bool) -> Self {
        self.recovery = Recovery { scanner, relay, reconcile, vanished: scanner };
        self
    }

    /// The queues that it serves, and the kinds that it knows; `None`: every kind.
    #[cfg(feature = "testing")]
    pub(crate) fn serves(&self) -> (Vec<String>, Option<Vec<String>>) {
        (self.queues.keys().cloned().collect(), self.kinds.names())
    }

    /// For tests: of each job, the first claim is lost when its handler has ended, before that is written.
    #[cfg(feature = "testing")]
    pub(crate) fn losing_first(mut self) -> Self {
        self.loses_first = true;
        self
    }

    /// The slots of each queue, and how many there are.
    fn slots(&self) -> (Arc<HashMap<String, Slots>>, usize) {
        let mut total = 0;
        let mut all = HashMap::new();
        let shares =
            |name: &str| self.shared.iter().any(|(_, queues)| queues.iter().any(|(of, _)| of == name));
        let alone = self.queues.iter().filter(|(name, _)| !shares(name));
        let alone = alone.map(|(name, slots)| (slots.unwrap_or(SLOTS_DEFAULT), vec![(name.clone(), 1)]));
        for (slots, queues) in self.shared.iter().cloned().chain(alone) {
            total += slots;
            all.extend(Slots::shared(slots, &queues));
        }
        (Arc::new(all), total)
    }

    /// Warns of what may be meant otherwise, and is no error.
    fn warn(&self, slots: usize, handler_connections: u32) {
        if let Some(named) = &self.named {
            for queue in self.queues.keys().filter(|queue| !named.contains(queue.as_str())) {
                tracing::warn!(
                    queue,
                    ?named,
                    "no handler's type names this queue: only jobs that were enqueued into it by its name run here; \
                     if that is a mistake, correct the name given to `concurrency` or `shared`"
                );
            }
        }
        let is_more = slots > usize::try_from(handler_connections).unwrap_or(usize::MAX);
        if self.makes_transactions && is_more {
            tracing::info!(
                slots,
                handler_connections,
                "more slots than connections for handlers' transactions: when all are in use, `once` and `fenced_tx` \
                 wait for one; if your handlers call them, raise TENURE_HANDLER_CONNECTIONS"
            );
        }
    }

    fn note(&mut self, added: Result<(), HandlerError>) {
        if let Err(error) = added {
            self.error.get_or_insert(error.into());
        }
    }

    /// Runs jobs until `shutdown` completes, then stops in good order: running jobs may finish within
    /// [`Timing::shutdown_grace`](crate::Timing::shutdown_grace); the rest is released, back in the queue at
    /// once, its attempt not charged.
    ///
    /// Waits for servers that are away, and for the schema, if `tenure migrate` is still to come. Dropped, it leaves
    /// its jobs to be recovered, as a crash does.
    ///
    /// # Errors
    ///
    /// What can be known at the start to be wrong, and [`WorkerError::Blocked`].
    pub async fn run_until(mut self, shutdown: impl Future<Output = ()>) -> Result<(), WorkerError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let config = self.tenure.config().clone();
        self.kinds.settle_timing(&config.timing)?;
        for (name, what) in [(self.kinds.is_empty(), "handler"), (self.queues.is_empty(), "queue")] {
            if name {
                return Err(WorkerError::Nothing(what));
            }
        }
        let hostname = match &config.hostname {
            Some(name) => name.clone(),
            None => {
                hostname::get().ok().and_then(|name| name.into_string().ok()).ok_or(WorkerError::Hostname)?
            }
        };
        let random = Alphanumeric.sample_string(&mut rand::rng(), 8).to_lowercase();
        let worker_id = format!("{hostname}-{}-{random}", std::process::id());
        let (queues, slots) = self.slots();
        self.warn(slots, config.handler_connections);

        #[cfg(feature = "http")]
        let _server = match config.listen {
            Some(address) => Some(
                crate::observe::http::Server::start(
                    address,
                    crate::observe::http::probes(self.health.clone())
                        .route("/metrics", crate::observe::http::metrics()),
                    "/metrics, /livez, /readyz and /startupz",
                )
                .map_err(|error| WorkerError::Listen { address, reason: error.to_string() })?,
            ),
            None => None,
        };
        #[cfg(not(feature = "http"))]
        if let Some(address) = config.listen {
            let reason = "this program was built without tenure's feature `http`".to_owned();
            return Err(WorkerError::Listen { address, reason });
        }
        self.kinds.measure();
        let measures = queues.keys().map(|name| (name.clone(), QueueMeasures::new(name))).collect();
        let store = self.tenure.store().clone();
        let queue = self.tenure.queue().clone();
        let running = Running::default();
        let heartbeat =
            Heartbeat::new(store.clone(), running.clone(), config.timing.clone(), worker_id.clone());
        let deliver = Deliver::new(
            store.clone(),
            running.clone(),
            heartbeat.clone(),
            DeliverSettings {
                worker_id: worker_id.as_str().into(),
                worker_host: hostname.as_str().into(),
                prefix: config.subject_prefix.as_str().into(),
                payload_bytes_max: config.payload_bytes_max,
                unknown_kind_after: config.timing.unknown_kind_after,
                scan_every: config.timing.scan_every,
                slots: queues.clone(),
            },
        );
        let settle = Settle::new(store.clone(), worker_id.as_str().into());
        let threads = Threads::new(self.handlers_on).map_err(WorkerError::Threads)?;
        let shared = Arc::new(Shared {
            probe_subject: queue.new_probe_subject(),
            reaches_itself: AtomicBool::new(false),
            control: Mutex::default(),
            turns: Turns::default(),
            stop_relaying: crate::recover::relay::Stop::default(),
            settings_changed: Notify::new(),
            asks: Semaphore::new(ASKS_MAX),
            consumers: Mutex::default(),
            threads,
            checkpoint_bytes_max: config.checkpoint_bytes_max,
            store,
            queue,
            state: self.state,
            kinds: self.kinds,
            running,
            heartbeat,
            deliver,
            settle,
            timing: config.timing.clone(),
            retention: config.retention.clone(),
            worker_id,
            hostname,
            queues,
            slots,
            measures,
            health: self.health,
            repeats: Repeats::default(),
            recovery: self.recovery,
            #[cfg(feature = "testing")]
            loses_first: self.loses_first,
            runtime_dir: config.runtime_dir.clone(),
            trace_parent: config.trace_parent,
        });
        shared.run_until(shutdown).await
    }
}

/// Completes when the process is told to stop: SIGTERM, or SIGINT (Ctrl-C).
///
/// From then on a second signal ends the process at once, with exit code 1; its jobs are recovered by
/// others.
pub async fn shutdown_signal() {
    signalled().await;
    tracing::info!("told to stop; a second signal exits at once");
    tokio::spawn(async {
        signalled().await;
        tracing::warn!("a second signal: exiting at once");
        std::process::exit(1);
    });
}

async fn signalled() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = match signal(SignalKind::terminate()) {
            Ok(signal) => signal,
            Err(error) => {
                tracing::error!(%error, "SIGTERM cannot be caught; stop with Ctrl-C");
                drop(tokio::signal::ctrl_c().await);
                return;
            }
        };
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    }
    #[cfg(not(unix))]
    drop(tokio::signal::ctrl_c().await);
}
