//! Builder: how users describe a worker.
//!
//! Not here: what a running worker does (`life`).

use std::{future::Future, sync::Arc};

use serde_json::Value;
use tokio::runtime::Handle;

use super::{error::WorkerError, queues::Wanted};
use crate::{
    client::Tenure,
    job::Job,
    observe::health::Health,
    run::{
        context::JobContext,
        handlers::{IntoOutcome, KindOptions, Kinds},
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
            queues: Wanted::new(),
            error: None,
            recovery: Recovery::ALL.to_vec(),
            handlers_on: None,
            makes_transactions: true,
            #[cfg(feature = "testing")]
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
    pub(super) queues: Wanted,
    pub(super) error: Option<WorkerError>,
    pub(super) recovery: Vec<Recovery>,
    pub(super) handlers_on: Option<Handle>,
    /// Whether handlers may open transactions, as `once` does: commands cannot.
    pub(super) makes_transactions: bool,
    #[cfg(feature = "testing")]
    pub(super) loses_first: bool,
}

impl<S> std::fmt::Debug for WorkerBuilder<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerBuilder").field("queues", &self.queues).finish_non_exhaustive()
    }
}

impl WorkerBuilder {
    /// Makes this value the [`JobContext::state`] of every handler that is added after this call. A handler that was
    /// added before it keeps its context without a state.
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
            queues: self.queues,
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

    /// Declares that the handlers are commands, which call neither `once` nor `fenced_tx`.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub fn without_transactions(mut self) -> Self {
        self.makes_transactions = false;
        self
    }

    /// Limits the worker to these ways of recovery, for tests of one of them.
    #[cfg(feature = "internals")]
    #[doc(hidden)]
    pub fn recovery(mut self, ways: &[Recovery]) -> Self {
        self.recovery = ways.to_vec();
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
    #[cfg(feature = "testing")]
    pub(crate) fn serves(&self) -> (Vec<String>, Option<Vec<String>>) {
        (self.queues.names(), self.kinds.names())
    }

    /// Makes each job lose its first claim when its handler has ended, before the end is written. For tests.
    #[cfg(feature = "testing")]
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
