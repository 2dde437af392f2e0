//! Worker: composes the steps, and stops them in order.
//!
//! ```text
//! pull ──► deliver ──► run ──► settle ──► ack          a task a job
//! heartbeat · renew · scanner · relay                  a task each, until the last job has ended
//! ```
//!
//! The order of shutdown: stop pulling and give back what was on its way; let running jobs finish; ask
//! the rest to stop; release them; publish what was released; sign off.

use std::{collections::BTreeMap, future::Future, path::PathBuf, sync::Arc, time::Duration};

use rand::distr::{Alphanumeric, SampleString};
use serde_json::Value;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    claim::{Ack, Claim, ack_for, ack_when_unavailable},
    config::Timing,
    context::JobContext,
    deliver::{Deliver, DeliverSettings, Delivered},
    fault,
    heartbeat::Heartbeat,
    job::{Job, NameError, Outcome, check_queue},
    queue::{Delivery, Pull, Pulled, Queue, QueueError},
    recover::{
        reconcile::{Identity, LifeSign, reconcile},
        relay, scanner,
    },
    run::{Ended, HandlerError, IntoOutcome, Kind, KindOptions, Kinds, run},
    running::{CancelReason, Message, Reservation, Running, RunningJob},
    settle::{Settle, Settled, Verdict, verdict},
    store::{MIGRATIONS, Registration, Store, StoreError},
    tenure::Tenure,
};

/// How many jobs of a queue run at once, unless said otherwise.
const SLOTS_DEFAULT: usize = 10;
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
    /// Nothing to do.
    #[error("the worker has no {0}; give it at least one")]
    Nothing(&'static str),
    /// The schema is missing or older than this program.
    #[error("the schema is at version {is}, but this program needs {needs}; run `tenure migrate`")]
    Schema {
        /// What the database has.
        is: i64,
        /// What the program needs.
        needs: i64,
    },
    /// Postgres refused.
    #[error(transparent)]
    Store(#[from] StoreError),
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
            state: Arc::new(()),
            kinds: Kinds::default(),
            queues: BTreeMap::new(),
            error: None,
            recovery: Recovery { scanner: true, relay: true, reconcile: true },
        }
    }
}

/// Which ways of recovery a worker takes part in.
#[derive(Debug, Clone, Copy)]
struct Recovery {
    scanner: bool,
    relay: bool,
    reconcile: bool,
}

/// A worker being described.
#[must_use = "a worker runs when `run_until` is awaited"]
pub struct WorkerBuilder<S = ()> {
    tenure: Tenure,
    state: Arc<S>,
    kinds: Kinds<S>,
    queues: BTreeMap<String, Option<usize>>,
    error: Option<WorkerError>,
    recovery: Recovery,
}

impl<S> std::fmt::Debug for WorkerBuilder<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerBuilder").field("queues", &self.queues).finish_non_exhaustive()
    }
}

impl WorkerBuilder {
    /// What every handler gets as `ctx.state()`. Before the first handler.
    pub fn state<T: Send + Sync + 'static>(self, state: T) -> WorkerBuilder<T> {
        WorkerBuilder {
            tenure: self.tenure,
            state: Arc::new(state),
            kinds: Kinds::default(),
            queues: self.queues,
            error: self.error,
            recovery: self.recovery,
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
        self.queues.entry(J::QUEUE.into()).or_default();
        self
    }

    /// Handles the jobs of a kind that has no Rust type.
    pub fn handle_kind<F, Fut>(mut self, kind: &str, options: KindOptions, handler: F) -> Self
    where
        F: Fn(Value, JobContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
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
        self.queues.insert(queue.into(), Some(slots));
        self
    }

    /// For tests of one way of recovery: switches the others off.
    #[doc(hidden)]
    pub fn recovery(mut self, scanner: bool, relay: bool, reconcile: bool) -> Self {
        self.recovery = Recovery { scanner, relay, reconcile };
        self
    }

    fn note(&mut self, added: Result<(), HandlerError>) {
        if let Err(error) = added {
            self.error.get_or_insert(error.into());
        }
    }

    /// Runs jobs until `shutdown` completes, then stops in good order: running jobs may finish within
    /// [`Timing::shutdown_grace`]; the rest is released, back in the queue at once, its attempt not
    /// charged.
    ///
    /// Waits for servers that are away. Dropped, it leaves its jobs to be recovered, as a crash does.
    ///
    /// # Errors
    ///
    /// What can be known at the start to be wrong: see [`WorkerError`].
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
        let queues: BTreeMap<_, _> =
            self.queues.iter().map(|(name, slots)| (name.clone(), slots.unwrap_or(SLOTS_DEFAULT))).collect();

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
            },
        );
        let settle = Settle::new(store.clone(), worker_id.as_str().into());
        let shared = Arc::new(Shared {
            store,
            queue,
            state: self.state,
            kinds: self.kinds,
            running,
            heartbeat,
            deliver,
            settle,
            timing: config.timing.clone(),
            worker_id,
            hostname,
            queues,
            recovery: self.recovery,
            runtime_dir: config.runtime_dir.clone(),
            jobs: TaskTracker::new(),
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

/// A running worker.
struct Shared<S> {
    store: Store,
    queue: Queue,
    state: Arc<S>,
    kinds: Kinds<S>,
    running: Running,
    heartbeat: Heartbeat,
    deliver: Deliver,
    settle: Settle,
    timing: Timing,
    worker_id: String,
    hostname: String,
    queues: BTreeMap<String, usize>,
    recovery: Recovery,
    runtime_dir: PathBuf,
    jobs: TaskTracker,
}

impl<S: Send + Sync + 'static> Shared<S> {
    async fn run_until(self: Arc<Self>, shutdown: impl Future<Output = ()>) -> Result<(), WorkerError> {
        let life_sign = LifeSign::create(&self.runtime_dir, &self.worker_id);
        let registration = self.registration(&life_sign);
        let mut shutdown = std::pin::pin!(shutdown);
        tokio::select! {
            started = self.start(&registration) => started?,
            () = &mut shutdown => return Ok(()),
        }
        let stop_pulling = CancellationToken::new();
        // Dropped on every way out, also when this future is dropped: nothing of it outlives it.
        let stop_all = CancellationToken::new();
        let _stop_all = stop_all.clone().drop_guard();
        let _stop_pulling = stop_pulling.clone().drop_guard();

        let mut background = tokio::task::JoinSet::new();
        background.spawn(self.heartbeat.clone().run());
        background.spawn(self.clone().renew(registration));
        if self.recovery.scanner {
            background.spawn(self.clone().scan());
        }
        if self.recovery.relay {
            background.spawn(self.clone().relay());
            background.spawn(self.clone().reclaim());
        }
        let pulls = TaskTracker::new();
        for (name, slots) in self.queues.clone() {
            pulls.spawn(self.clone().pull(name, slots, stop_pulling.clone(), stop_all.clone()));
        }
        tracing::info!(worker = %self.worker_id, queues = ?self.queues, "worker started");

        shutdown.await;
        tracing::info!(worker = %self.worker_id, running = self.running.all().len(), "stopping: no new jobs");
        stop_pulling.cancel();
        pulls.close();
        pulls.wait().await;
        self.jobs.close();
        if timeout(self.timing.shutdown_grace, self.jobs.wait()).await.is_err() {
            let rest = self.running.all();
            tracing::warn!(jobs = rest.len(), "still running after the grace; asked to stop");
            for job in rest {
                job.cancel(CancelReason::Shutdown);
            }
            let longest = self.kinds.all().map(|kind| self.cancel_grace(kind)).max().unwrap_or_default();
            let within = longest + self.timing.database_within;
            if timeout(within, self.jobs.wait()).await.is_err() {
                tracing::error!(jobs = self.running.all().len(), "not released; others will take them back");
            }
        }
        if self.recovery.relay {
            drop(timeout(self.timing.publish_within, self.publish_due()).await);
        }
        background.shutdown().await;
        let removed = timeout(
            self.timing.database_within,
            self.store.remove_workers(std::slice::from_ref(&self.worker_id)),
        )
        .await;
        if !matches!(removed, Ok(Ok(()))) {
            tracing::warn!("the worker's row was not removed; its death will be proven");
        }
        self.queue.flush().await;
        tracing::info!(worker = %self.worker_id, "worker stopped");
        Ok(())
    }

    fn registration(&self, life_sign: &LifeSign) -> Registration {
        let identity = Identity::of_this_process();
        Registration {
            worker_id: self.worker_id.clone(),
            hostname: self.hostname.clone(),
            pid: i32::try_from(std::process::id()).unwrap_or_default(),
            boot_id: identity.boot_id,
            pid_namespace: identity.pid_namespace,
            pid_started_at: identity.pid_started_at,
            lock_file: life_sign.path(),
            queues: self.queues.keys().cloned().collect(),
            kinds: self.kinds.names(),
            slots: i32::try_from(self.queues.values().sum::<usize>()).unwrap_or(i32::MAX),
        }
    }

    /// Waits for both servers, and takes back what earlier processes of this host left.
    async fn start(&self, registration: &Registration) -> Result<(), WorkerError> {
        let needs = MIGRATIONS.last().map_or(0, |(version, _, _)| *version);
        loop {
            match self.store.schema_version().await {
                Ok(is) if is < needs => return Err(WorkerError::Schema { is, needs }),
                Ok(_) => break,
                Err(error) if error.is_unavailable() => {
                    tracing::warn!(reason = self.store.last_error(), "waiting for Postgres");
                    sleep(Duration::from_millis(500)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        while timeout(Duration::from_secs(5), self.queue.connected()).await.is_err() {
            tracing::warn!("waiting for NATS");
        }
        self.look_after_topology().await;
        // Registered before the first claim, so that every owner can be found.
        loop {
            let started = async {
                self.store.register_worker(registration).await?;
                if self.recovery.reconcile {
                    reconcile(&self.store, registration, &self.runtime_dir).await?;
                }
                Ok::<_, StoreError>(())
            };
            match started.await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_unavailable() => sleep(Duration::from_millis(500)).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Creates what is missing of the stream and the consumers, however long it takes.
    async fn look_after_topology(&self) {
        loop {
            match self.try_topology().await {
                Ok(()) => return,
                Err(error) => {
                    tracing::error!(%error, "not ready: the stream or a consumer is missing and cannot be created; \
                        a denied permission looks like no answer. Run `tenure migrate` with the admin role, or wait");
                    sleep(Duration::from_millis(500)).await;
                }
            }
        }
    }

    async fn try_topology(&self) -> Result<(), QueueError> {
        let drift = self.queue.ensure_stream().await?;
        if !drift.is_empty() {
            tracing::error!(?drift, "the stream differs from its definition; `tenure migrate` changes it");
        }
        for name in self.queues.keys() {
            let (_, drift) = self.queue.ensure_consumer(name).await?;
            if !drift.is_empty() {
                tracing::error!(
                    queue = name,
                    ?drift,
                    "the consumer differs from its definition; `tenure migrate --queue NAME` changes it"
                );
            }
        }
        Ok(())
    }

    async fn renew(self: Arc<Self>, registration: Registration) {
        loop {
            sleep(jittered(self.timing.renew_every)).await;
            if let Err(error) = self.store.register_worker(&registration).await {
                tracing::warn!(%error, "the worker's row was not renewed");
            }
        }
    }

    async fn scan(self: Arc<Self>) {
        let (every, stale_after) = (self.timing.scan_every, self.timing.stale_after);
        loop {
            sleep(jittered(every)).await;
            match scanner::scan(&self.store, &self.worker_id, every, stale_after).await {
                Ok(0) => {}
                Ok(_) => self.publish_due().await,
                Err(error) => tracing::warn!(%error, "the scan came to nothing"),
            }
        }
    }

    async fn relay(self: Arc<Self>) {
        loop {
            sleep(jittered(self.timing.relay_every)).await;
            self.publish_due().await;
        }
    }

    async fn publish_due(&self) {
        if let Err(error) = relay::publish_due(&self.store, &self.queue, self.timing.publish_within).await {
            tracing::debug!(%error, "relay");
        }
    }

    async fn reclaim(self: Arc<Self>) {
        let every = self.timing.scan_every;
        loop {
            sleep(jittered(every)).await;
            if !self.queue.is_connected() {
                continue;
            }
            for name in self.queues.keys() {
                let within = self.timing.publish_within;
                let looked =
                    relay::reclaim_lost(&self.store, &self.queue, name, within, every / 2, &self.worker_id)
                        .await;
                match looked {
                    Ok(0) => {}
                    Ok(_) => self.publish_due().await,
                    Err(error) => {
                        tracing::debug!(%error, "no look for lost messages");
                        // The commonest reason is that the stream is gone.
                        drop(self.try_topology().await);
                    }
                }
            }
        }
    }

    /// Pulls one queue's messages until told to stop.
    async fn pull(
        self: Arc<Self>,
        name: String,
        slots: usize,
        stop: CancellationToken,
        stop_all: CancellationToken,
    ) {
        let slots = Arc::new(Semaphore::new(slots));
        let mut database = self.store.availability();
        while !stop.is_cancelled() {
            if !database.borrow().up {
                tracing::warn!(
                    queue = name,
                    reason = self.store.last_error(),
                    "Postgres is away: not pulling"
                );
                tokio::select! {
                    () = stop.cancelled() => break,
                    up = database.wait_for(|now| now.up) => if up.is_err() { break },
                }
            }
            let consumer = tokio::select! {
                () = stop.cancelled() => break,
                consumer = self.queue.ensure_consumer(&name) => consumer,
            };
            let (consumer, _) = match consumer {
                Ok(consumer) => consumer,
                Err(error) => {
                    tracing::warn!(%error, queue = name, "not pulling");
                    tokio::select! {
                        () = stop.cancelled() => break,
                        () = self.look_after_topology() => {}
                    }
                    continue;
                }
            };
            let mut pull = Pull::new(self.queue.clone(), consumer, slots.clone(), self.timing.pull_for);
            let why = loop {
                let pulled = tokio::select! { biased;
                    () = stop.cancelled() => break "stopping".into(),
                    _ = database.wait_for(|now| !now.up) => break "Postgres is away".into(),
                    pulled = pull.next() => pulled,
                };
                match pulled {
                    Ok(Pulled::Delivery(delivery, permit)) => {
                        let (shared, stop_all) = (self.clone(), stop_all.clone());
                        self.jobs.spawn(async move {
                            tokio::select! {
                                () = shared.take(*delivery, permit) => {}
                                () = stop_all.cancelled() => {}
                            }
                        });
                    }
                    Ok(Pulled::Broken(why)) => break why,
                    Err(error) => break error.to_string(),
                }
            };
            for delivery in pull.stop().await {
                if stop.is_cancelled() {
                    delivery.receipt.give_back().await;
                } else {
                    delivery.receipt.send(ack_when_unavailable()).await;
                }
            }
            if !stop.is_cancelled() {
                tracing::warn!(queue = name, why, "pulling starts anew");
                sleep(Duration::from_millis(50)).await;
                if database.borrow().up {
                    tokio::select! {
                        () = stop.cancelled() => break,
                        () = self.look_after_topology() => {}
                    }
                }
            }
        }
    }

    /// Takes one delivery to its end. The slot is free when this returns.
    async fn take(&self, delivery: Delivery, _slot: OwnedSemaphorePermit) {
        let stale_after = |kind: &str| self.kinds.get(kind).map(|kind| kind.stale_after);
        match self.deliver.decide(&delivery, stale_after).await {
            Delivered::Ours(claim, reservation, dispatch) => {
                let message = Message { receipt: delivery.receipt, dispatch };
                self.run(*claim, reservation, message).await;
            }
            Delivered::Answer(ack) => delivery.receipt.send(ack).await,
            Delivered::Kept => {}
        }
    }

    async fn run(&self, claim: Claim, reservation: Reservation, message: Message) {
        let Some(kind) = self.kinds.get(&claim.kind) else {
            // A claim is of the kind that its message's subject names, and that one was looked up.
            tracing::error!(job = %claim.key.job, kind = claim.kind, "claimed without a handler");
            return;
        };
        let job = Arc::new(RunningJob::new(claim, message, kind.stale_after, kind.keepalive));
        reservation.run(job.clone());
        fault::point("claimed");
        tracing::debug!(job = %job.key.job, token = %job.key.token, kind = job.claim.kind, "running");
        let context = JobContext {
            job: job.clone(),
            state: self.state.clone(),
            store: self.store.clone(),
            heartbeat: self.heartbeat.clone(),
        };
        let ended = run(kind, context, self.cancel_grace(kind)).await;
        // A handler that was told to stop may fail; one that says it is done wants that written.
        let says_done = matches!(ended, Ended::Returned(Ok(Outcome::Done(_))));
        let verdict = verdict(&job, ended, &kind.backoff, kind.timeout);
        let write = match &verdict {
            Verdict::End(end) => {
                // The last checkpoint belongs to the next attempt.
                self.heartbeat.flush(&job).await;
                end.verdict
            }
            Verdict::Complete(_) | Verdict::Written | Verdict::Lost => "complete",
        };
        let told = job.is_lost();
        let messages = job.end();
        let settled = self.settle.write(&job, verdict).await;
        fault::point("settled");
        if settled == Settled::Lost && (says_done || !told) {
            self.heartbeat.lost(&job, write).await;
        }
        for message in messages {
            let ack = match settled {
                Settled::Written => Ack::Done,
                // Each by its own verdict: one of them may be the next attempt's.
                Settled::Lost => self.ack_of_lost(&job, message.dispatch).await,
            };
            message.receipt.send(ack).await;
        }
        // Not before the ack: until then a redelivery must find the job here.
        drop(reservation);
    }

    async fn ack_of_lost(&self, job: &RunningJob, dispatch: Option<i32>) -> Ack {
        let claim = &job.claim;
        match self.store.missed(job.key.job, &claim.queue, &claim.kind, dispatch).await {
            Ok(missed) => ack_for(&missed, 1),
            Err(_) => ack_when_unavailable(),
        }
    }

    fn cancel_grace(&self, kind: &Kind<S>) -> Duration {
        kind.cancel_grace.unwrap_or(self.timing.cancel_grace)
    }
}

/// Spread by ±20 %, so that many workers do not act in step.
fn jittered(every: Duration) -> Duration {
    every.mul_f64(rand::random_range(0.8..1.2))
}
