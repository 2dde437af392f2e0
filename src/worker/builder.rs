//! Builder: how users describe a worker.
//!
//! Not here: what a running worker does (`life`).

use std::{future::Future, sync::Arc};

use serde_json::Value;
use tokio::runtime::Handle;

use super::{error::WorkerError, queues::Wanted};
use crate::{
    batches::run::{Batch, BatchContext, IntoVerdicts, Item},
    client::Tenure,
    job::Job,
    observe::{
        health::Health,
        hooks::{AttemptEnded, JobDied, JobLost, WorkerHooks},
    },
    run::{
        context::JobContext,
        handlers::{IntoOutcome, KindOptions, Kinds},
        layers::{self, Call, Layer, Next},
    },
};

/// A worker counts as hung when its runtime has not run for this many renewals of its row.
const HUNG_RENEWALS: u32 = 6;

/// Runs jobs. See [`Worker::builder`].
#[derive(Debug)]
pub struct Worker;

impl Worker {
    /// Returns a builder of a worker, without handlers.
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
            layers: Vec::new(),
            hooks: WorkerHooks::default(),
            queues: Wanted::new(),
            error: None,
            recovery: Recovery::ALL.to_vec(),
            handlers_on: None,
            makes_transactions: true,
            is_gateway: false,
            loses_first: false,
        }
    }
}

/// A way of recovery in which a worker takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// At the start, resets the jobs of earlier processes of this host.
    Reconcile,
    /// Resets silent jobs, and sweeps finished ones.
    Scanner,
    /// Resets the jobs of workers that are gone.
    Vanished,
    /// Publishes due jobs that have no message, and enqueues the jobs of schedules.
    Relay,
}

impl Recovery {
    const ALL: [Self; 4] = [Self::Reconcile, Self::Scanner, Self::Vanished, Self::Relay];
}

/// Configures a worker, and starts it. See [`Worker::builder`].
#[must_use = "a worker runs from `start` on, or while `run_until` is awaited"]
pub struct WorkerBuilder<S = ()> {
    pub(super) tenure: Tenure,
    pub(super) health: Health,
    pub(super) state: Arc<S>,
    pub(super) kinds: Kinds<S>,
    /// The first one is the outermost.
    pub(super) layers: Vec<Layer<S>>,
    pub(super) hooks: WorkerHooks,
    pub(super) queues: Wanted,
    pub(super) error: Option<WorkerError>,
    pub(super) recovery: Vec<Recovery>,
    pub(super) handlers_on: Option<Handle>,
    /// Whether handlers may open transactions, as `once` does: commands cannot.
    pub(super) makes_transactions: bool,
    /// Whether the worker also speaks the worker protocol.
    pub(crate) is_gateway: bool,
    pub(super) loses_first: bool,
}

impl<S> std::fmt::Debug for WorkerBuilder<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerBuilder").field("queues", &self.queues).finish_non_exhaustive()
    }
}

impl WorkerBuilder {
    /// Makes this value the [`JobContext::state`] of every handler that is added after this call. A handler that was
    /// added before it keeps its context without a state; so does a layer.
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
    pub fn state<T: Send + Sync + 'static>(self, state: T) -> WorkerBuilder<T> {
        WorkerBuilder {
            tenure: self.tenure,
            health: self.health,
            state: Arc::new(state),
            kinds: self.kinds.beside_a_state(),
            layers: self.layers.into_iter().map(layers::beside_a_state).collect(),
            hooks: self.hooks,
            queues: self.queues,
            error: self.error,
            recovery: self.recovery,
            handlers_on: self.handlers_on,
            makes_transactions: self.makes_transactions,
            is_gateway: self.is_gateway,
            loses_first: self.loses_first,
        }
    }
}

impl<S: Send + Sync + 'static> WorkerBuilder<S> {
    /// Adds the handler of the jobs of one type, and serves the queue that the type names.
    pub fn handle<J, F, Fut>(self, handler: F) -> Self
    where
        J: Job,
        F: Fn(J, JobContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.handle_with(KindOptions::new(), handler)
    }

    /// Adds a handler as [`WorkerBuilder::handle`] does, with options for its kind.
    pub fn handle_with<J, F, Fut>(mut self, options: KindOptions, handler: F) -> Self
    where
        J: Job,
        F: Fn(J, JobContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        let added = self.kinds.add_typed(options, handler);
        self.note(added);
        self.queues.typed(J::QUEUE);
        self
    }

    /// Adds a handler that runs many jobs of one type in one call, for work that is cheaper together: one call of a
    /// model, one `INSERT`, one request to a service that takes a list. Serves the queue that the type names, with
    /// enough slots for one full batch unless [`WorkerBuilder::concurrency`] says otherwise.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tenure::{Job, JobError, Tenure, Worker, batches::{Batch, BatchContext, Item, Verdict}};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Embed { text: String }
    /// impl Job for Embed { const KIND: &'static str = "embed"; }
    ///
    /// # async fn model(texts: Vec<&str>) -> Result<Vec<Vec<f32>>, JobError> { Ok(vec![vec![]; texts.len()]) }
    /// async fn embed(jobs: Vec<Item<Embed>>, _ctx: BatchContext) -> Result<Vec<Verdict>, JobError> {
    ///     let vectors = model(jobs.iter().map(|job| job.text.as_str()).collect()).await?;
    ///     Ok(jobs.into_iter().zip(vectors).map(|(job, vector)| job.done(vector)).collect())
    /// }
    ///
    /// # fn f(tenure: &Tenure) {
    /// let batch = Batch::up_to(64).within(Duration::from_millis(50));
    /// let worker = Worker::builder(tenure).handle_batch(batch, embed);
    /// # }
    /// ```
    ///
    /// Each job keeps what it has alone: its token, checkpoint, steps, history, retries, progress and cancellation
    /// ([`Item::context`](crate::batches::Item::context)), and it ends by its own verdict. A job that must stop while
    /// the batch runs ends by itself; the call goes on for the others, and tenure drops it when none is left.
    ///
    /// If the whole call fails (an error, a panic), the same attempts call the handler again with each half of the
    /// batch, down to one job, whose error is then its own: at most twice as many calls as jobs. An error that says
    /// when to retry ([`JobError::retry_after`](crate::JobError::retry_after)), or that Postgres was away, is that of
    /// each job at once. If the call kills its process, recovery charges no attempt, and the jobs come back in halves,
    /// then alone: only a job that was alone is charged. So a handler must bear to run again, as any handler, and one
    /// job among 64 that kills its process costs six batches and its own attempts. With
    /// [`OnCrash::DeadLetter`](crate::handlers::OnCrash::DeadLetter) every job of a lost batch becomes a dead letter.
    ///
    /// A job that suspends itself in a batch (a [sleep](JobContext::sleep), an event) ends by `item.fail(error)` with
    /// that error. If the handler returns it for the whole, the batch is halved until each such job is alone.
    ///
    /// The wait for a batch counts towards [`KindOptions::timeout`]; a job that is out of time before the handler has
    /// seen it waits again, without a charge. A batch handler that blocks its thread is not reported, and the next
    /// attempt of its jobs does not wait for it: move such work to a thread of its own.
    pub fn handle_batch<J, F, Fut>(self, batch: Batch, handler: F) -> Self
    where
        J: Job,
        F: Fn(Vec<Item<J, S>>, BatchContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoVerdicts> + Send + 'static,
    {
        self.handle_batch_with(batch, KindOptions::new(), handler)
    }

    /// Adds a handler as [`WorkerBuilder::handle_batch`] does, with options for its kind.
    pub fn handle_batch_with<J, F, Fut>(mut self, batch: Batch, options: KindOptions, handler: F) -> Self
    where
        J: Job,
        F: Fn(Vec<Item<J, S>>, BatchContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoVerdicts> + Send + 'static,
    {
        let added = self.kinds.add_batch(batch, options, handler);
        self.note(added);
        self.queues.typed(J::QUEUE);
        self.queues.batches(J::QUEUE, batch.jobs_max());
        self
    }

    /// Adds the handler of a kind that has no Rust type.
    pub fn handle_kind<F, Fut>(mut self, kind: &str, options: KindOptions, handler: F) -> Self
    where
        F: Fn(Value, JobContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.queues.untyped();
        let added = self.kinds.add(Some(kind), options, handler);
        self.note(added);
        self
    }

    /// Adds the handler of every kind that has no other: the worker then knows every kind.
    pub fn handle_any<F, Fut>(mut self, options: KindOptions, handler: F) -> Self
    where
        F: Fn(Value, JobContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.queues.untyped();
        let added = self.kinds.add(None, options, handler);
        self.note(added);
        self
    }

    /// Puts a layer around every handler of this worker, those added before this call and those added after it: for
    /// what concerns all kinds, such as a span, a time limit, encryption, or a session of a database. Of several, the
    /// first is the outermost: it is the first to see the payload, and the last to see the outcome.
    ///
    /// ```no_run
    /// # use std::time::Instant;
    /// # use tenure::WorkerBuilder;
    /// # fn f(worker: WorkerBuilder) -> WorkerBuilder {
    /// worker.layer(|call, next| async move {
    ///     let (kind, began_at) = (call.context().kind().to_owned(), Instant::now());
    ///     let outcome = next.run(call).await;
    ///     println!("{kind} took {:?}", began_at.elapsed());
    ///     outcome
    /// })
    /// # }
    /// ```
    ///
    /// A layer returns what a handler may return, and need not call what is next: an error or an outcome of its own
    /// ends the attempt as the handler's would. It runs in the handler's task, within the attempt's span and time
    /// limit. If it panics, the attempt fails as after a handler's panic; if the worker drops the handler, it drops the
    /// layers, too. What the handler writes through its context (progress, checkpoints, the output of
    /// [`JobContext::complete_in`]) does not pass the layers.
    ///
    /// A stack of tower's layers is one layer. Its inner service is the call of what is next, and the stack is built
    /// once, so that its limits hold for all jobs of the worker:
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tenure::{JobError, Worker, WorkerBuilder, layers::{Call, Next}};
    /// use tower::{ServiceBuilder, ServiceExt};
    ///
    /// # fn f(worker: WorkerBuilder) -> WorkerBuilder {
    /// let stack = ServiceBuilder::new()
    ///     .timeout(Duration::from_secs(30))
    ///     .service_fn(|(call, next): (Call, Next)| async move { next.run(call).await.map_err(JobError::into_error) });
    /// worker.layer(move |call, next| {
    ///     let answer = stack.clone().oneshot((call, next));
    ///     async move { answer.await.map_err(JobError::from) }
    /// })
    /// # }
    /// ```
    pub fn layer<F, Fut>(mut self, layer: F) -> Self
    where
        F: Fn(Call<S>, Next<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.layers.push(layers::layer(layer));
        self
    }

    /// Calls this hook with each attempt whose end this worker has written, once that is committed: for an error
    /// tracker, or metrics of your own. Lost attempts are those of [`WorkerBuilder::on_lost`].
    ///
    /// ```no_run
    /// # fn f(worker: tenure::WorkerBuilder) -> tenure::WorkerBuilder {
    /// worker.on_attempt_end(|end| {
    ///     let Some(error) = &end.error else { return };
    ///     let mut cause = error.as_error().source();
    ///     while let Some(of) = cause {
    ///         println!("{} failed, because {of}", end.id);
    ///         cause = of.source();
    ///     }
    /// })
    /// # }
    /// ```
    ///
    /// A hook has a thread and a queue of its own, and hears the events of this worker one by one, in the order in
    /// which they happened to each job. It may block, and may call [`tokio::spawn`]: the thread is in the context of
    /// the handlers' runtime. It cannot harm a job. While 4,096 events wait for it, later ones are dropped and counted
    /// (`tenure_hook_failures_total`); a panic is logged and counted, and the hook hears the next event. A worker that
    /// stops waits at most 5 s for its hooks. Events are not stored: those of a process that dies are gone, and what
    /// must not be missed is to be read from the database. Each call adds a hook.
    pub fn on_attempt_end(mut self, hook: impl FnMut(&AttemptEnded) + Send + 'static) -> Self {
        self.hooks.ends.push(Box::new(hook));
        self
    }

    /// Calls this hook with each job that was lost: one that this worker no longer owned when its handler ended, and
    /// one that this worker reset because its owner was gone or silent. Two workers may thus tell of one loss. It
    /// follows the rules of [`WorkerBuilder::on_attempt_end`].
    pub fn on_lost(mut self, hook: impl FnMut(&JobLost) + Send + 'static) -> Self {
        self.hooks.losses.push(Box::new(hook));
        self
    }

    /// Calls this hook with each dead letter that this worker has written, once that is committed: after a last
    /// attempt, after too many losses, of a kind that no worker knows, of a message that cannot be a job. It follows
    /// the rules of [`WorkerBuilder::on_attempt_end`], which hears of a failed last attempt, too.
    pub fn on_dead(mut self, hook: impl FnMut(&JobDied) + Send + 'static) -> Self {
        self.hooks.deaths.push(Box::new(hook));
        self
    }

    /// Serves a queue and runs at most `slots` of its jobs at once. The queues of typed handlers have 10 slots by
    /// default.
    pub fn concurrency(mut self, queue: &str, slots: u32) -> Self {
        let wanted = self.queues.alone(queue, slots);
        self.note(wanted);
        self
    }

    /// Serves several queues from one set of slots, each by its weight. While both have jobs waiting, a queue of weight
    /// 8 runs eight jobs for each job of a queue of weight 1. A queue that alone has jobs waiting gets all slots but
    /// one for each other queue. So an urgent queue is served first, and a slow one never starves. No running job is
    /// interrupted.
    ///
    /// ```no_run
    /// # fn f(worker: tenure::WorkerBuilder) -> tenure::WorkerBuilder {
    /// worker.shared(10, [("urgent", 8), ("bulk", 1)])
    /// # }
    /// ```
    pub fn shared<'q>(mut self, slots: u32, queues: impl IntoIterator<Item = (&'q str, u32)>) -> Self {
        let queues = queues.into_iter().map(|(name, weight)| (name.to_owned(), weight)).collect();
        let wanted = self.queues.together(slots, queues);
        self.note(wanted);
        self
    }

    /// Serves this queue, and runs at most `slots` of its jobs at once. The worker then serves no queue but those given
    /// to `only_queue`: it ignores the queues that handlers' types name, and those of [`WorkerBuilder::concurrency`]
    /// and [`WorkerBuilder::shared`]. Call this once for each queue, before or after those methods.
    pub fn only_queue(mut self, queue: &str, slots: u32) -> Self {
        let wanted = self.queues.only(queue, slots);
        self.note(wanted);
        self
    }

    /// Returns the health of this worker. Serve it from a thread or a runtime other than the worker's, or set
    /// `TENURE_LISTEN`, with the feature `http`.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Runs handlers on this runtime. By default tenure runs them on a runtime of its own, whose threads (at least 4,
    /// or one a core) are named `tenure-handler` and serve all workers of the process: a handler that blocks its thread
    /// then holds up neither heartbeats nor claims nor the shutdown.
    ///
    /// Give a runtime other than the one that calls [`WorkerBuilder::start`], or that protection is gone.
    pub fn handlers_on(mut self, runtime: Handle) -> Self {
        self.handlers_on = Some(runtime);
        self
    }

    /// Returns the names of the queues that the worker serves, or the first error of its description.
    pub(crate) fn queue_names(self) -> Result<Vec<String>, WorkerError> {
        self.error.map_or_else(|| Ok(self.queues.names()), Err)
    }

    /// Leaves out all other queues.
    pub(crate) fn keep_queues(mut self, keep: impl Fn(&str) -> bool) -> Self {
        self.queues.keep(keep);
        self
    }

    /// Returns the worker's queues, and the kinds that it knows; `None` means every kind.
    pub(crate) fn serves(&self) -> (Vec<String>, Option<Vec<String>>) {
        (self.queues.names(), self.kinds.names())
    }

    /// Makes each job lose its first claim when its handler has ended, before the end is written. For tests.
    pub(crate) fn losing_first(mut self) -> Self {
        self.loses_first = true;
        self
    }

    /// Keeps the first error; `start` returns it.
    fn note(&mut self, done: Result<(), impl Into<WorkerError>>) {
        if let Err(error) = done {
            self.error.get_or_insert(error.into());
        }
    }
}

#[cfg(feature = "internals")]
#[doc(hidden)]
impl<S: Send + Sync + 'static> WorkerBuilder<S> {
    /// Declares that the handlers are commands, which call neither `once` nor `fenced_tx`.
    pub fn without_transactions(mut self) -> Self {
        self.makes_transactions = false;
        self
    }

    /// Limits the worker to these ways of recovery, for tests of one of them.
    pub fn recovery(mut self, ways: &[Recovery]) -> Self {
        self.recovery = ways.to_vec();
        self
    }
}
