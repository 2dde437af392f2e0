//! Run: from a claim to what its handler said.
//!
//! Not here: the writes that follow (`settle`).

use std::{collections::HashMap, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use serde_json::Value;
use tracing::Instrument;

use crate::{
    config::{Timing, TimingError},
    job::{Job, JobError, NameError, Outcome, backoff::Backoff, check_kind},
    observe::metrics::KindMeasures,
    run::{
        context::JobContext,
        running::{CancelReason, OnCrash, OnWriteLoss, Rules, RunningJob},
        threads::{Threads, Watched},
    },
};

/// A handler that was to be dropped, and has kept its thread for so long, is reported.
const BLOCKED_AT_ITS_END: Duration = Duration::from_millis(100);

/// What a handler may return: an [`Outcome`], `()` for "done", or a `Result` of either.
pub trait IntoOutcome {
    /// What it means.
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

impl<T: IntoOutcome, E: Into<JobError>> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Result<Outcome, JobError> {
        self.map_err(Into::into)?.into_outcome()
    }
}

/// What follows an error that a handler returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retry {
    /// What the error itself says; else another attempt, after the kind's backoff, while there is one left.
    Usual,
    /// Another attempt after just this time, while there is one left.
    After(Duration),
    /// No other attempt: a dead letter.
    Never,
}

pub(crate) type Decide = dyn Fn(&JobError, u32) -> Retry + Send + Sync;

/// When failed attempts of a kind are tried again.
#[derive(Clone, Default)]
pub(crate) struct RetryPolicy {
    pub(crate) backoff: Backoff,
    pub(crate) decide: Option<Arc<Decide>>,
}

impl RetryPolicy {
    /// What follows this error of this attempt.
    pub(crate) fn decide(&self, error: &JobError, attempt: u32) -> Retry {
        let Some(decide) = &self.decide else { return Retry::Usual };
        std::panic::catch_unwind(AssertUnwindSafe(|| decide(error, attempt))).unwrap_or_else(|_| {
            // Not the error: it may quote the payload.
            tracing::error!("the kind's retry policy panicked; the usual one is used");
            Retry::Usual
        })
    }
}

/// How jobs of one kind are run. The defaults are the worker's.
///
/// ```
/// use std::time::Duration;
/// use tenure::{Backoff, KindOptions, OnCrash, Retry};
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
            .finish_non_exhaustive()
    }
}

impl KindOptions {
    /// The worker's defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// When failed attempts are tried again. Default [`Backoff::DEFAULT`].
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.retry.backoff = backoff;
        self
    }

    /// Decides what follows an error, given the error and the attempt that returned it (1 is the first).
    /// Not asked about panics, timeouts and lost workers. Must not block. Default [`Retry::Usual`].
    #[must_use]
    pub fn retry(mut self, decide: impl Fn(&JobError, u32) -> Retry + Send + Sync + 'static) -> Self {
        self.retry.decide = Some(Arc::new(decide));
        self
    }

    /// What becomes of a job whose worker is lost while it runs. Default [`OnCrash::Retry`].
    ///
    /// With [`OnCrash::DeadLetter`] a handler that has to be dropped in the middle makes a dead letter, too:
    /// when the worker stops, its time is up, or nothing could be written, and it does not return. One that
    /// returns when it is asked to stop is released, or tried again, as any other.
    #[must_use]
    pub fn on_crash(mut self, on_crash: OnCrash) -> Self {
        self.on_crash = on_crash;
        self
    }

    /// What the worker does with a running job when it could not write for too long. Default
    /// [`OnWriteLoss::Cancel`].
    #[must_use]
    pub fn on_write_loss(mut self, on_write_loss: OnWriteLoss) -> Self {
        self.on_write_loss = on_write_loss;
        self
    }

    /// How long an attempt may run, at most. Default: for ever, as long as it shows signs of life.
    ///
    /// A handler that runs longer is cancelled with [`CancelReason::Timeout`]; when it has not returned
    /// within [`KindOptions::cancel_grace`], it is dropped. The attempt is a failed one.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Silence after which a job of this kind is taken back. Default [`Timing::stale_after`]. Bounded by the
    /// other timers: `flush_every` is at most a third of it, and [`Timing::ack_wait`] is longer than it and
    /// `scan_every` together.
    #[must_use]
    pub fn stale_after(mut self, silence: Duration) -> Self {
        self.stale_after = Some(silence);
        self
    }

    /// How long a cancelled handler of this kind may tidy up before it is dropped. Default
    /// [`Timing::cancel_grace`].
    #[must_use]
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = Some(grace);
        self
    }

    /// Has tenure report for the handler while it runs: for handlers with long silent stretches. Such a
    /// job is taken back only when its process is gone, not when the handler hangs; set a
    /// [`KindOptions::timeout`] as well.
    #[must_use]
    pub fn keepalive(mut self) -> Self {
        self.keepalive = true;
        self
    }

    /// [`KindOptions::keepalive`], this often: at most a third of the kind's `stale_after`. Default
    /// [`Timing::keepalive_every`], or that third if it is shorter.
    #[must_use]
    pub fn keepalive_every(mut self, every: Duration) -> Self {
        self.keepalive = true;
        self.keepalive_every = Some(every);
        self
    }
}

type Run<S> = dyn Fn(String, JobContext<S>) -> BoxFuture<'static, Result<Outcome, JobError>> + Send + Sync;

/// A handler and how its jobs are run.
pub(crate) struct Kind<S> {
    pub(crate) run: Arc<Run<S>>,
    pub(crate) retry: RetryPolicy,
    pub(crate) timeout: Option<Duration>,
    pub(crate) rules: Rules,
    pub(crate) cancel_grace: Option<Duration>,
    /// Of a kind with a name, once the worker starts: the program's recorder is there by then.
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

/// What the payload of a job is not.
#[derive(Debug, thiserror::Error)]
#[error("the payload does not fit the type of its handler: {0}")]
pub(crate) struct PayloadError(pub(crate) serde_json::Error);

/// A handler's word that it was ended in the middle, when it was asked to stop: as good as dropped.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct EndedInTheMiddle(pub(crate) String);

/// A handler that is not registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// The kind's name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The kind has a handler already.
    #[error("kind {0:?} has two handlers; remove one")]
    Twice(String),
    /// A time limit of nothing.
    #[error("kind {kind:?}: {what} is 0 s, so that no job of it could run; set it longer, or leave it out")]
    Zero {
        /// Which kind.
        kind: String,
        /// Which limit.
        what: &'static str,
    },
    /// The kind's timers.
    #[error("kind {kind:?}: {why}")]
    Timing {
        /// Which kind.
        kind: String,
        /// What is wrong.
        why: TimingError,
    },
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
                Err(error) => futures::future::err(PayloadError(error).into()).boxed(),
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
                Err(error) => futures::future::err(PayloadError(error).into()).boxed(),
            }),
        )
    }

    fn insert(
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
        } = options;
        let shown = name.unwrap_or("*");
        let times =
            [("timeout", timeout), ("stale_after", stale_after), ("keepalive_every", keepalive_every)];
        for (what, time) in times {
            if time.is_some_and(|time| time.is_zero()) {
                return Err(HandlerError::Zero { kind: shown.into(), what });
            }
        }
        // Filled in when the worker's timers are known.
        let stale_after = stale_after.unwrap_or_default();
        let keepalive = keepalive.then(|| keepalive_every.unwrap_or_default());
        let rules = Rules { stale_after, keepalive, on_crash, on_write_loss };
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

    /// Fills in the worker's `stale_after`, and checks every kind's own.
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

    /// Looks up what is measured of each kind, in the recorder that is there by now.
    pub(crate) fn measure(&mut self) {
        for (name, kind) in &mut self.named {
            kind.measures = Some(KindMeasures::new(name));
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Kind<S>> {
        self.named.get(name).or(self.any.as_ref())
    }

    /// Every kind that has a handler.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Kind<S>> {
        self.named.values().chain(&self.any)
    }

    /// The kinds' names; `None`: every kind has a handler.
    pub(crate) fn names(&self) -> Option<Vec<String>> {
        self.any.is_none().then(|| self.named.keys().cloned().collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.named.is_empty() && self.any.is_none()
    }
}

/// How an attempt ended, before anything was written about it.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The handler returned.
    Returned(Result<Outcome, JobError>),
    /// The handler panicked, with this text.
    Panicked(String),
    /// The handler was asked to stop, and did not: it was dropped.
    Dropped,
    /// No thread was free for it in time: the handler never began.
    NeverBegan,
}

/// Runs a handler to its end. It is asked to stop when it exceeds its time, and dropped when it does not
/// stop within the grace.
pub(crate) async fn run<S: Send + Sync + 'static>(
    kind: &Kind<S>,
    context: JobContext<S>,
    cancel_grace: Duration,
    threads: &Threads,
) -> Ended {
    let job = context.job.clone();
    let payload = job.claim.payload.clone();
    let handler = kind.run.clone();
    // The call itself is the handler's code already: it belongs on the handlers' threads, too. And into the attempt's
    // span, which we are in, with all that it logs.
    let handler = async move { handler(payload, context).await }.in_current_span();
    let handler = Watched::new(handler, job.thread.clone());
    // A task of its own: a panic stays in it, and dropping it does not depend on this one.
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
    // It says nothing until it begins, and is better off elsewhere before it looks dead.
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
        .unwrap_or_else(|| "with something that is not a text".into());
    format!("the handler panicked: {text}")
}
