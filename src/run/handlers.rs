//! Handlers: the kinds that a worker knows, and the run of a handler to its end.
//!
//! Not here: the writes that follow (`settle`).

use std::{
    any::type_name, collections::HashMap, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use serde::Serialize;
use serde_json::Value;
use tracing::Instrument;

use crate::{
    codec::job::CodecError,
    config::{Timing, TimingError},
    job::{Job, JobError, NameError, Outcome, backoff::Backoff, check_kind},
    observe::metrics::KindMeasures,
    quarantine::run::InQuarantine,
    run::{
        context::JobContext,
        layers::{self, Call, Layer, Next},
        running::{CancelReason, OnCrash, OnWriteLoss, Rules, RunningJob},
        threads::{Threads, Watched},
    },
};

/// The worker reports a handler that should be dropped and has kept its thread for this long.
const BLOCKED_AT_ITS_END: Duration = Duration::from_millis(100);

/// A return value of a handler: an [`Outcome`], `()` for "done", or a `Result` whose `Ok` is a [`HandlerOutput`] and
/// whose error turns into a [`JobError`].
///
/// ```
/// # use tenure::{JobContext, JobError, Outcome};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Order { prices: Vec<i64> }
/// # impl tenure::Job for Order { const KIND: &'static str = "order"; }
/// async fn total(order: Order, _ctx: JobContext) -> Result<i64, JobError> {
///     Ok(order.prices.iter().sum())
/// }
///
/// async fn with_anyhow(order: Order, _ctx: JobContext) -> anyhow::Result<Outcome> {
///     anyhow::ensure!(!order.prices.is_empty(), "nothing to pay");
///     Ok(Outcome::Done(None))
/// }
/// # fn f(tenure: &tenure::Tenure) {
/// # tenure::Worker::builder(tenure).handle(total);
/// # tenure::Worker::builder(tenure).handle(with_anyhow);
/// # }
/// ```
pub trait IntoOutcome {
    /// Converts the value.
    ///
    /// # Errors
    ///
    /// The handler's own error: the attempt fails.
    fn into_outcome(self) -> Result<Outcome, JobError>;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Result<Outcome, JobError> {
        Ok(self)
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Result<Outcome, JobError> {
        Ok(Outcome::Done(None))
    }
}

impl<T: HandlerOutput, E: Into<JobError>> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Result<Outcome, JobError> {
        self.map_err(Into::into)?.into_done()
    }
}

/// The value in the `Ok` of a handler: an [`Outcome`], or the job's output, any value that serializes to JSON. A value
/// that serializes to `null`, such as `()`, is no output. A `Result` is handled as the handler's own: with its error,
/// as after a forgotten `?`, the attempt fails.
pub trait HandlerOutput {
    /// Converts the value.
    ///
    /// # Errors
    ///
    /// The value cannot be written as JSON, or is an `Err`: the attempt fails.
    fn into_done(self) -> Result<Outcome, JobError>;
}

impl HandlerOutput for Outcome {
    fn into_done(self) -> Result<Outcome, JobError> {
        Ok(self)
    }
}

// `Outcome` must not be `Serialize`: it would have both.
impl<T: Serialize> HandlerOutput for T {
    fn into_done(self) -> Result<Outcome, JobError> {
        let mut output = serde_json::to_value(self)?;
        if type_name::<T>().starts_with("core::result::Result<")
            && let Value::Object(inner) = &mut output
        {
            if let Some(error) = inner.remove("Err") {
                return Err(error.as_str().map_or_else(|| error.to_string(), str::to_owned).into());
            }
            output = inner.remove("Ok").unwrap_or_default();
        }
        Ok(Outcome::Done(Some(output).filter(|output| !output.is_null())))
    }
}

/// The retry decision after an error that a handler returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retry {
    /// Follows the error's own decision. Without one, retries after the kind's backoff while attempts are left.
    Usual,
    /// Retries after exactly this time, while attempts are left.
    After(Duration),
    /// Does not retry: the job becomes a dead letter.
    Never,
}

pub(crate) type Decide = dyn Fn(&JobError, u32) -> Retry + Send + Sync;

/// The retry rules of a kind.
#[derive(Clone, Default)]
pub(crate) struct RetryPolicy {
    pub(crate) backoff: Backoff,
    pub(crate) decide: Option<Arc<Decide>>,
}

impl RetryPolicy {
    /// Decides about this error of this attempt.
    pub(crate) fn decide(&self, error: &JobError, attempt: u32) -> Retry {
        let Some(decide) = &self.decide else { return Retry::Usual };
        std::panic::catch_unwind(AssertUnwindSafe(|| decide(error, attempt))).unwrap_or_else(|_| {
            // The log must not hold the error: it may quote the payload.
            tracing::error!("the kind's retry policy panicked; the error is handled as `Retry::Usual`");
            Retry::Usual
        })
    }
}

/// The options of one kind of job. The defaults are the worker's.
///
/// ```
/// use std::time::Duration;
/// use tenure::{Backoff, KindOptions, Retry, handlers::OnCrash};
///
/// let options = KindOptions::new()
///     .timeout(Duration::from_secs(3600))
///     .backoff(Backoff { first: Duration::from_secs(60), ..Backoff::DEFAULT })
///     .retry(|error, attempt| match error.downcast_ref::<std::io::Error>() {
///         Some(_) if attempt < 3 => Retry::After(Duration::from_secs(1)),
///         _ => Retry::Usual,
///     })
///     .on_crash(OnCrash::DeadLetter);
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct KindOptions {
    pub(crate) retry: RetryPolicy,
    pub(crate) timeout: Option<Duration>,
    pub(crate) stale_after: Option<Duration>,
    pub(crate) keepalive: bool,
    pub(crate) keepalive_every: Option<Duration>,
    pub(crate) cancel_grace: Option<Duration>,
    pub(crate) on_crash: OnCrash,
    pub(crate) on_write_loss: OnWriteLoss,
    pub(crate) no_history: bool,
    pub(crate) layers: Vec<Layer<()>>,
}

impl std::fmt::Debug for KindOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KindOptions")
            .field("backoff", &self.retry.backoff)
            .field("timeout", &self.timeout)
            .field("stale_after", &self.stale_after)
            .field("keepalive", &self.keepalive)
            .field("keepalive_every", &self.keepalive_every)
            .field("cancel_grace", &self.cancel_grace)
            .field("on_crash", &self.on_crash)
            .field("on_write_loss", &self.on_write_loss)
            .field("no_history", &self.no_history)
            .field("layers", &self.layers.len())
            .finish_non_exhaustive()
    }
}

impl KindOptions {
    /// Returns the worker's defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the waits before failed attempts are retried. Default [`Backoff::DEFAULT`].
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.retry.backoff = backoff;
        self
    }

    /// Sets the function that decides about an error, given the error and the attempt that returned it (1 is the
    /// first). The worker does not call it for panics, timeouts and lost workers. It must not block. Default
    /// [`Retry::Usual`].
    #[must_use]
    pub fn retry(mut self, decide: impl Fn(&JobError, u32) -> Retry + Send + Sync + 'static) -> Self {
        self.retry.decide = Some(Arc::new(decide));
        self
    }

    /// Sets what follows when a job's worker is lost while the job runs. Default [`OnCrash::Retry`].
    ///
    /// With [`OnCrash::DeadLetter`] a job also becomes a dead letter if the worker has to drop its handler in the
    /// middle: because the worker stops, the time is up, or no write succeeds, and the handler does not return. A
    /// job whose handler returns when it is asked to stop is released or retried, as any other.
    #[must_use]
    pub fn on_crash(mut self, on_crash: OnCrash) -> Self {
        self.on_crash = on_crash;
        self
    }

    /// Sets what the worker does with a running job once it could not write for too long. Default
    /// [`OnWriteLoss::Cancel`].
    #[must_use]
    pub fn on_write_loss(mut self, on_write_loss: OnWriteLoss) -> Self {
        self.on_write_loss = on_write_loss;
        self
    }

    /// Keeps no history of this kind: when a job completes, tenure deletes its row, with its earlier attempts and
    /// effects. That costs less than to keep them, and [`Config::retention`](crate::Config::retention) has nothing to
    /// remove.
    ///
    /// For short jobs about which no one asks later. A completed job is as unknown as one that never was: it has
    /// no output, no list shows it, and a [`Tenure::wait`](crate::Tenure::wait) that saw it live says
    /// [`NoHistory`](crate::jobs::WaitError::NoHistory). Metrics and rates count it. Its unique key stays for its
    /// retention. A job that fails or is cancelled is kept as any other. Default: tenure keeps the history.
    #[must_use]
    pub fn no_history(mut self) -> Self {
        self.no_history = true;
        self
    }

    /// Limits how long an attempt may run. Default: no limit, as long as the job shows signs of life.
    ///
    /// The worker cancels a handler that runs longer with [`CancelReason::Timeout`], and drops it if it has not
    /// returned within [`KindOptions::cancel_grace`]. The attempt has failed.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the silence after which recovery resets a job of this kind. Default [`Timing::stale_after`]. Bounded by
    /// the other timers: `flush_every` is at most a third of it, and [`Timing::ack_wait`] is longer than it and
    /// `scan_every` together.
    #[must_use]
    pub fn stale_after(mut self, silence: Duration) -> Self {
        self.stale_after = Some(silence);
        self
    }

    /// Sets how long a cancelled handler of this kind may tidy up before the worker drops it. Default
    /// [`Timing::cancel_grace`].
    #[must_use]
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = Some(grace);
        self
    }

    /// Makes tenure send heartbeats for the handler while it runs, for handlers with long silent stretches. Recovery
    /// resets such a job only when its process is gone, not when the handler hangs: set a
    /// [`KindOptions::timeout`], too.
    #[must_use]
    pub fn keepalive(mut self) -> Self {
        self.keepalive = true;
        self
    }

    /// Sets [`KindOptions::keepalive`] with this interval, at most a third of the kind's `stale_after`. Default
    /// [`Timing::keepalive_every`], or that third if it is shorter.
    #[must_use]
    pub fn keepalive_every(mut self, every: Duration) -> Self {
        self.keepalive = true;
        self.keepalive_every = Some(every);
        self
    }

    /// Adds a layer around the handlers of this kind alone, inside those of [`WorkerBuilder::layer`], which shows how
    /// to write one. Of several, the first is the outermost. Its context has no state.
    ///
    /// [`WorkerBuilder::layer`]: crate::WorkerBuilder::layer
    #[must_use]
    pub fn layer<F, Fut>(mut self, layer: F) -> Self
    where
        F: Fn(Call, Next) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.layers.push(layers::layer(layer));
        self
    }
}

pub(crate) type Run<S> =
    dyn Fn(String, JobContext<S>) -> BoxFuture<'static, Result<Outcome, JobError>> + Send + Sync;

/// A handler, and the options of its kind.
pub(crate) struct Kind<S> {
    pub(crate) run: Arc<Run<S>>,
    pub(crate) retry: RetryPolicy,
    pub(crate) timeout: Option<Duration>,
    pub(crate) rules: Rules,
    pub(crate) cancel_grace: Option<Duration>,
    /// Set for a kind with a name when the worker starts: the program has installed its recorder by then.
    pub(crate) measures: Option<KindMeasures>,
}

/// The kinds that a worker knows.
pub(crate) struct Kinds<S> {
    named: HashMap<String, Kind<S>>,
    any: Option<Kind<S>>,
}

impl<S> Default for Kinds<S> {
    fn default() -> Self {
        Self { named: HashMap::new(), any: None }
    }
}

/// A payload that no handler can be called with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PayloadError {
    /// It does not deserialize into the handler's type.
    #[error("the payload does not fit the type of its handler: {0}")]
    Misfit(String),
    /// It is sealed, and does not open.
    #[error("the payload cannot be opened: {0}")]
    Closed(CodecError),
}

/// A handler's report that something else ended it in the middle while it was stopping. Counts as dropped.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct EndedInTheMiddle(String);

impl EndedInTheMiddle {
    #[doc(hidden)]
    pub fn new(why: String) -> Self {
        Self(why)
    }
}

/// An error in the registration of a handler.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// The kind's name is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The kind has two handlers.
    #[error("kind {0:?} has two handlers; remove one")]
    Twice(String),
    /// A time limit is zero.
    #[error("kind {kind:?}: {what} is 0 s, so none of its jobs could run; set it longer, or leave it out")]
    Zero {
        /// The kind.
        kind: String,
        /// The limit.
        what: &'static str,
    },
    /// A batch of the kind is not possible.
    #[error("kind {kind:?}: {why}")]
    Batch {
        /// The kind.
        kind: String,
        /// The contradiction.
        why: String,
    },
    /// The kind's timers contradict one another or the worker's.
    #[error("kind {kind:?}: {why}")]
    Timing {
        /// The kind.
        kind: String,
        /// The contradiction.
        why: TimingError,
    },
}

impl Kinds<()> {
    /// The same handlers beside others that have a state: these have none.
    pub(crate) fn beside_a_state<T: Send + Sync + 'static>(self) -> Kinds<T> {
        let beside = |kind: Kind<()>| {
            let Kind { run, retry, timeout, rules, cancel_grace, measures } = kind;
            let run = move |payload, context: JobContext<T>| run(payload, context.unstated());
            Kind { run: Arc::new(run), retry, timeout, rules, cancel_grace, measures }
        };
        Kinds {
            named: self.named.into_iter().map(|(name, kind)| (name, beside(kind))).collect(),
            any: self.any.map(beside),
        }
    }
}

impl<S: Send + Sync + 'static> Kinds<S> {
    pub(crate) fn add<F, Fut>(
        &mut self,
        name: Option<&str>,
        options: KindOptions,
        handler: F,
    ) -> Result<(), HandlerError>
    where
        F: Fn(Value, JobContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.insert(
            name,
            options,
            Arc::new(move |payload, context| match serde_json::from_str(&payload) {
                Ok(payload) => handler(payload, context).map(IntoOutcome::into_outcome).boxed(),
                Err(error) => futures::future::err(context.misfits(&error)).boxed(),
            }),
        )
    }

    pub(crate) fn add_typed<J, F, Fut>(
        &mut self,
        options: KindOptions,
        handler: F,
    ) -> Result<(), HandlerError>
    where
        J: Job,
        F: Fn(J, JobContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.insert(
            Some(J::KIND),
            options,
            Arc::new(move |payload, context| match serde_json::from_str::<J>(&payload) {
                Ok(job) => handler(job, context).map(IntoOutcome::into_outcome).boxed(),
                Err(error) => futures::future::err(context.misfits(&error)).boxed(),
            }),
        )
    }

    pub(crate) fn insert(
        &mut self,
        name: Option<&str>,
        options: KindOptions,
        run: Arc<Run<S>>,
    ) -> Result<(), HandlerError> {
        let KindOptions {
            retry,
            timeout,
            stale_after,
            keepalive,
            keepalive_every,
            cancel_grace,
            on_crash,
            on_write_loss,
            no_history,
            layers,
        } = options;
        let layers: Vec<_> = layers.into_iter().map(layers::beside_a_state).collect();
        let run = layers::surround(&layers, run);
        let shown = name.unwrap_or("*");
        let times =
            [("timeout", timeout), ("stale_after", stale_after), ("keepalive_every", keepalive_every)];
        for (what, time) in times {
            if time.is_some_and(|time| time.is_zero()) {
                return Err(HandlerError::Zero { kind: shown.into(), what });
            }
        }
        // `settle_timing` fills in the defaults, once the worker's timers are known.
        let stale_after = stale_after.unwrap_or_default();
        let keepalive = keepalive.then(|| keepalive_every.unwrap_or_default());
        let rules = Rules { stale_after, keepalive, on_crash, on_write_loss, no_history, halves: false };
        let kind = Kind { run, retry, timeout, rules, cancel_grace, measures: None };
        let before = match name {
            Some(name) => {
                check_kind(name)?;
                self.named.insert(name.to_owned(), kind).is_some()
            }
            None => self.any.replace(kind).is_some(),
        };
        if before { Err(HandlerError::Twice(shown.into())) } else { Ok(()) }
    }

    /// Puts the worker's layers around every handler.
    pub(crate) fn surround(&mut self, layers: &[Layer<S>]) {
        for kind in self.named.values_mut().chain(&mut self.any) {
            kind.run = layers::surround(layers, kind.run.clone());
        }
    }

    /// Fills in the worker's `stale_after`, and validates every kind's own.
    pub(crate) fn settle_timing(&mut self, timing: &Timing) -> Result<(), HandlerError> {
        let any = self.any.as_mut().map(|kind| ("*", kind));
        for (name, kind) in self.named.iter_mut().map(|(name, kind)| (name.as_str(), kind)).chain(any) {
            if kind.rules.stale_after.is_zero() {
                kind.rules.stale_after = timing.stale_after;
            }
            let own = kind.rules.keepalive.filter(|every| !every.is_zero());
            timing
                .validate_kind(kind.rules.stale_after, own)
                .map_err(|why| HandlerError::Timing { kind: name.into(), why })?;
            let usual = timing.keepalive_every.min(kind.rules.stale_after / 3);
            kind.rules.keepalive = kind.rules.keepalive.map(|_| own.unwrap_or(usual));
        }
        Ok(())
    }

    /// Registers the metrics of each kind in the program's recorder.
    pub(crate) fn measure(&mut self) {
        for (name, kind) in &mut self.named {
            kind.measures = Some(KindMeasures::new(name));
        }
    }

    pub(crate) fn named_mut(&mut self, name: &str) -> Option<&mut Kind<S>> {
        self.named.get_mut(name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Kind<S>> {
        self.named.get(name).or(self.any.as_ref())
    }

    /// Iterates over all handlers.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Kind<S>> {
        self.named.values().chain(&self.any)
    }

    /// Returns the names of the kinds. `None`: a handler runs every kind.
    pub(crate) fn names(&self) -> Option<Vec<String>> {
        self.any.is_none().then(|| self.named.keys().cloned().collect())
    }

    /// Returns the names of the kinds that keep no history, `*` for the handler of every kind. `None`: all keep theirs.
    pub(crate) fn unkept(&self) -> Option<Vec<String>> {
        let any = self.any.as_ref().map(|kind| ("*", kind));
        let all = self.named.iter().map(|(name, kind)| (name.as_str(), kind)).chain(any);
        let unkept: Vec<_> =
            all.filter(|(_, kind)| kind.rules.no_history).map(|(name, _)| name.to_owned()).collect();
        (!unkept.is_empty()).then_some(unkept)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.named.is_empty() && self.any.is_none()
    }
}

/// The end of an attempt, before it is settled.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The handler returned.
    Returned(Result<Outcome, JobError>),
    /// The handler panicked, with this text.
    Panicked(String),
    /// The handler did not stop when asked, and the worker dropped it.
    Dropped,
    /// The handler never began: no thread was free in time.
    NeverBegan,
    /// The handler may not run now: its kind is in quarantine.
    Quarantined(InQuarantine),
}

/// Runs a handler to its end. Asks it to stop when it exceeds its `timeout`, and drops it if it does not
/// stop within `cancel_grace`.
pub(crate) async fn run<S: Send + Sync + 'static>(
    kind: &Kind<S>,
    context: JobContext<S>,
    cancel_grace: Duration,
    threads: &Threads,
) -> Ended {
    let job = context.job.clone();
    let payload = job.claim.payload.clone();
    let handler = kind.run.clone();
    // The call itself is the handler's code already: it belongs on the handlers' threads, and with all that it logs
    // into the attempt's span, which is the current one.
    let handler = async move { handler(payload, context).await }.in_current_span();
    let handler = Watched::new(handler, job.thread.clone());
    // A separate task: it contains a panic, and can be dropped independently of this one.
    let mut task = threads.handle().spawn(AssertUnwindSafe(handler).catch_unwind());
    let _abort = AbortOnDrop(task.abort_handle());

    let timeout = kind.timeout;
    let out_of_time = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let stopped = stop_asked(&job, out_of_time);
    // A handler without a thread reports nothing: release the job before it looks stale.
    let no_thread = async {
        tokio::time::sleep(kind.rules.stale_after / 3).await;
        if !job.thread.revoke() {
            std::future::pending::<()>().await;
        }
    };
    let joined = tokio::select! {
        joined = &mut task => joined,
        () = no_thread => return Ended::NeverBegan,
        () = stopped => {
            let Ok(joined) = tokio::time::timeout(cancel_grace, &mut task).await else {
                if job.thread.revoke() {
                    return Ended::NeverBegan;
                }
                job.report_blocked(BLOCKED_AT_ITS_END);
                threads.abandon(&job.thread);
                return Ended::Dropped;
            };
            joined
        }
    };
    match joined {
        Ok(Ok(returned)) => Ended::Returned(returned),
        Ok(Err(panic)) => Ended::Panicked(panic_text(&*panic)),
        Err(error) if error.is_panic() => Ended::Panicked(panic_text(&*error.into_panic())),
        Err(_) => Ended::Dropped,
    }
}

async fn stop_asked(job: &RunningJob, out_of_time: impl Future<Output = ()>) {
    tokio::select! {
        () = job.cancellation.cancelled() => {}
        () = out_of_time => job.cancel(CancelReason::Timeout),
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the panic has no text".into());
    format!("the handler panicked: {text}")
}
