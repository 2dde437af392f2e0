//! Batches: one call of a handler for many jobs.
//!
//! ```text
//! Ours ──► gather (up to n jobs, within a time) ──► one call ──► a verdict for each job ──► settle, each by itself
//!                                                      └─ an error, a panic ──► in halves, down to one job
//! ```
//!
//! Each job is claimed, watched, cancelled and settled as one alone: its own handler waits here for its verdict. So a
//! batch needs no statement of its own, and every guarantee of a job holds for each item.
//!
//! A call that fails as a whole is repeated in halves by the same attempts, at most twice as many calls as it has jobs.
//! A call that kills the process cannot be: its jobs are lost. They are claimed with the route `halve`, so that
//! recovery charges no attempt, and a batch of jobs that were lost *n* times has at most one job in 2^*n* of the usual.
//! One job alone is charged again. Such suspects run one batch at a time, and one that is alone runs beside no other
//! batch of its kind: what kills the process then is its own doing.
//!
//! Invariants, each held by the test of that name:
//!
//! - `one_poison_among_many_costs_a_few_batches_and_itself`
//! - `an_error_of_the_whole_comes_back_in_halves_then_alone`
//! - `each_item_of_a_batch_is_cancelled_by_itself`

use std::{
    any::Any,
    collections::VecDeque,
    fmt,
    future::Future,
    ops::{Deref, DerefMut},
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all, select_all},
};
use tokio::sync::{RwLock, oneshot};
use tracing::Instrument;

use crate::{
    job::{Job, JobError, Outcome, claim::ClaimKey},
    run::{
        context::{ContextError, JobContext},
        handlers::{EndedInTheMiddle, HandlerError, HandlerOutput, IntoOutcome, KindOptions, Kinds},
        heartbeat::Heartbeat,
        running::{CancelReason, OnCrash},
    },
    store::ProgressWrite,
};

/// The most jobs of a batch.
const UP_TO_MAX: usize = 10_000;
/// The longest wait for more jobs: the first job of a batch waits with its slot and its message.
const WITHIN_MAX: Duration = Duration::from_secs(60);
/// How often, and at most how many times, to look whether the end of a suspect is written.
const SETTLED_LOOKED_EVERY: Duration = Duration::from_millis(10);
const SETTLED_LOOKS: u32 = 1_000;
/// How often a waiting job shows that it lives, in a `stale_after`.
const SIGNS_OF_LIFE: u32 = 3;

/// How many jobs one call of a batch handler takes, and how long it waits for them.
///
/// ```
/// use std::time::Duration;
/// use tenure::batches::Batch;
///
/// let batch = Batch::up_to(64).within(Duration::from_millis(50));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    up_to: usize,
    within: Duration,
}

impl Batch {
    /// At most this many jobs: 1 to 10,000. Each takes a slot, so the queue needs as many slots for one full batch.
    #[must_use]
    pub const fn up_to(jobs: usize) -> Self {
        Self { up_to: jobs, within: Duration::from_millis(50) }
    }

    /// How long the first job of a batch waits for others, at most 60 s. Default 50 ms. Zero: it takes those that have
    /// come by then.
    #[must_use]
    pub const fn within(mut self, wait: Duration) -> Self {
        self.within = wait;
        self
    }

    /// The most jobs of a batch.
    pub(crate) fn jobs_max(&self) -> usize {
        self.up_to
    }

    fn check(&self, kind: &str) -> Result<(), HandlerError> {
        let wrong = |why| Err(HandlerError::Batch { kind: kind.into(), why });
        if self.up_to == 0 || self.up_to > UP_TO_MAX {
            return wrong(format!("a batch has 1 to {UP_TO_MAX} jobs, not {}", self.up_to));
        }
        if self.within > WITHIN_MAX {
            return wrong(format!(
                "the first job of a batch waits at most {} s for others, not {:?}",
                WITHIN_MAX.as_secs(),
                self.within
            ));
        }
        Ok(())
    }

    /// The most jobs of a batch that holds a job with this number of losses.
    fn after(&self, losses: u32) -> usize {
        self.up_to.checked_shr(losses).unwrap_or(0).max(1)
    }
}

/// One job of a batch. It reads as its payload: `item.text` is the field `text` of the job.
pub struct Item<J, S = ()> {
    job: J,
    context: JobContext<S>,
}

impl<J, S> Item<J, S> {
    /// The running job: progress, checkpoint, steps, fenced transactions, cancellation, each of this job alone.
    pub fn context(&self) -> &JobContext<S> {
        &self.context
    }

    /// Completes the job, with an output that serializes to JSON. A value that is `null` as JSON, such as `()`, is no
    /// output.
    pub fn done(self, output: impl HandlerOutput) -> Verdict {
        Verdict { of: self.context.job.key, outcome: output.into_done() }
    }

    /// Fails the attempt of this job, as the error says: to be retried, or for good ([`JobError::permanent`]).
    pub fn fail(self, error: impl Into<JobError>) -> Verdict {
        Verdict { of: self.context.job.key, outcome: Err(error.into()) }
    }

    /// Ends the attempt of this job as a handler of one job ends it that returns this value.
    pub fn end(self, outcome: impl IntoOutcome) -> Verdict {
        Verdict { of: self.context.job.key, outcome: outcome.into_outcome() }
    }
}

impl<J, S> Deref for Item<J, S> {
    type Target = J;

    fn deref(&self) -> &J {
        &self.job
    }
}

impl<J, S> DerefMut for Item<J, S> {
    fn deref_mut(&mut self) -> &mut J {
        &mut self.job
    }
}

impl<J, S> fmt::Debug for Item<J, S> {
    /// Without the payload, which logs should not hold.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item").field("context", &self.context).finish_non_exhaustive()
    }
}

/// How one job of a batch ends: see [`Item::done`], [`Item::fail`] and [`Item::end`].
#[derive(Debug)]
#[must_use = "the verdicts of a batch are what its handler returns"]
pub struct Verdict {
    of: ClaimKey,
    outcome: Result<Outcome, JobError>,
}

/// A return value of a batch handler: the verdicts of its jobs, in any order, or a `Result` of them. A job without a
/// verdict fails, and is retried.
pub trait IntoVerdicts {
    /// Converts the value.
    ///
    /// # Errors
    ///
    /// The error of the whole batch: it runs again in halves.
    fn into_verdicts(self) -> Result<Vec<Verdict>, JobError>;
}

impl IntoVerdicts for Vec<Verdict> {
    fn into_verdicts(self) -> Result<Vec<Verdict>, JobError> {
        Ok(self)
    }
}

impl<E: Into<JobError>> IntoVerdicts for Result<Vec<Verdict>, E> {
    fn into_verdicts(self) -> Result<Vec<Verdict>, JobError> {
        self.map_err(Into::into)
    }
}

/// A running batch, as its handler sees it. What concerns one job alone is in [`Item::context`].
pub struct BatchContext<S = ()> {
    of: Arc<[JobContext<S>]>,
}

impl<S> Clone for BatchContext<S> {
    fn clone(&self) -> Self {
        Self { of: self.of.clone() }
    }
}

impl<S> fmt::Debug for BatchContext<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchContext").field("jobs", &self.of.len()).finish_non_exhaustive()
    }
}

impl<S> BatchContext<S> {
    /// The state from [`WorkerBuilder::state`](crate::WorkerBuilder::state).
    pub fn state(&self) -> &S {
        self.of[0].state()
    }

    /// Reports the progress of the whole batch as that of each of its jobs, which is their heartbeat: see
    /// [`JobContext::progress`]. Passes over jobs that this worker no longer owns.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// The error of the last job, if this worker may write for none of them any more: stop the handler.
    pub async fn progress(&self, stage: &str, percent: f32, message: &str) -> Result<(), ContextError> {
        let reports = join_all(self.of.iter().map(|of| of.progress(stage, percent, message))).await;
        let mut last = Ok(());
        for report in reports {
            match report {
                Ok(()) => return Ok(()),
                refused @ Err(_) => last = refused,
            }
        }
        last
    }

    /// Completes when every job of the batch should stop, with the reason of the last one: then the whole call should.
    /// That one job should stop is said by the context of that item.
    ///
    /// Cancel safe.
    pub async fn cancelled(&self) -> CancelReason {
        join_all(self.of.iter().map(JobContext::cancelled)).await.pop().unwrap_or(CancelReason::Lost)
    }
}

/// The end of a job's wait for its batch.
enum Answer {
    Ended(Result<Outcome, JobError>),
    Panicked(Box<dyn Any + Send>),
}

/// A job that waits for its batch to begin, or to end.
struct Entry<J, S> {
    /// `None`: a call has taken it, and another one reads the payload anew.
    job: Option<J>,
    payload: String,
    context: JobContext<S>,
    /// A call of the handler has the job: its silence is the handler's.
    is_called: Arc<AtomicBool>,
    answer: oneshot::Sender<Answer>,
}

impl<J: Job, S> Entry<J, S> {
    fn take(&mut self) -> Result<Item<J, S>, JobError> {
        let job = if let Some(job) = self.job.take() {
            job
        } else {
            self.context.job.steps.repeat();
            serde_json::from_str(&self.payload).map_err(|error| self.context.misfits(&error))?
        };
        Ok(Item { job, context: self.context.clone() })
    }

    fn end(self, outcome: Result<Outcome, JobError>) {
        // Without a receiver the attempt has ended otherwise: it was cancelled, or its time was up.
        let _ = self.answer.send(Answer::Ended(outcome));
    }

    /// Whether no call shall have this job any more: its attempt is over, is to stop, or has completed the job itself.
    fn is_stopped(&self) -> bool {
        self.answer.is_closed()
            || self.context.cancel_reason().is_some()
            || self.context.job.settled.load(Ordering::Acquire)
    }
}

struct Waiting<J, S> {
    fresh: Vec<Entry<J, S>>,
    /// How many batches of fresh jobs have begun: the timer of an earlier one has nothing to do.
    begun: u64,
    /// Jobs that were lost, and that may be the cause.
    suspects: VecDeque<Entry<J, S>>,
    /// A task runs the suspects.
    runs_suspects: bool,
}

type Handler<J, S> = dyn Fn(Vec<Item<J, S>>, BatchContext<S>) -> BoxFuture<'static, Result<Vec<Verdict>, JobError>>
    + Send
    + Sync;

/// The batches of one kind in one worker.
struct Batches<J, S> {
    batch: Batch,
    /// Whether recovery spares the jobs that were lost with others.
    halves: bool,
    handler: Box<Handler<J, S>>,
    waiting: Mutex<Waiting<J, S>>,
    /// A suspect that runs alone has this for itself: if the process dies, no other batch can be the cause. So it is
    /// held for the whole run of a handler, on purpose: only batches of this kind wait, and each until it is to stop.
    others: RwLock<()>,
}

impl<S: Send + Sync + 'static> Kinds<S> {
    pub(crate) fn add_batch<J, F, Fut>(
        &mut self,
        batch: Batch,
        options: KindOptions,
        handler: F,
    ) -> Result<(), HandlerError>
    where
        J: Job,
        F: Fn(Vec<Item<J, S>>, BatchContext<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoVerdicts> + Send + 'static,
    {
        batch.check(J::KIND)?;
        let halves = options.on_crash == OnCrash::Retry;
        let batches = Arc::new(Batches {
            batch,
            halves,
            handler: Box::new(move |items, context| {
                handler(items, context).map(IntoVerdicts::into_verdicts).boxed()
            }),
            waiting: Mutex::new(Waiting {
                fresh: Vec::new(),
                begun: 0,
                suspects: VecDeque::new(),
                runs_suspects: false,
            }),
            others: RwLock::new(()),
        });
        let run = move |payload: String, context: JobContext<S>| match serde_json::from_str::<J>(&payload) {
            Ok(job) => batches.clone().join(job, payload, context).boxed(),
            Err(error) => futures::future::err(context.misfits(&error)).boxed(),
        };
        self.insert(Some(J::KIND), options, Arc::new(run))?;
        if let Some(kind) = self.named_mut(J::KIND) {
            kind.rules.halves = halves;
        }
        Ok(())
    }
}

impl<J: Job, S: Send + Sync + 'static> Batches<J, S> {
    fn waiting(&self) -> MutexGuard<'_, Waiting<J, S>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a batch, and then for its verdict about this job.
    async fn join(
        self: Arc<Self>,
        job: J,
        payload: String,
        context: JobContext<S>,
    ) -> Result<Outcome, JobError> {
        let (answer, ended) = oneshot::channel();
        let (key, stopped) = (context.job.key, context.cancelled());
        let alive_every = context.job.rules.stale_after / SIGNS_OF_LIFE;
        let (itself, is_called) = (context.clone(), Arc::new(AtomicBool::new(false)));
        self.add(Entry { job: Some(job), payload, context, is_called: is_called.clone(), answer });
        tokio::pin!(ended, stopped);
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut ended => break ended,
                reason = &mut stopped => {
                    if self.leave(key) {
                        return stopped_before(reason);
                    }
                    break ended.await;
                }
                () = tokio::time::sleep(alive_every) => {
                    // The job waits for its batch, or for the other half of it.
                    if !is_called.load(Ordering::Acquire) {
                        Heartbeat::report(&itself.job, ProgressWrite::sign_of_life(key));
                    }
                }
            }
        };
        match ended {
            Ok(Answer::Ended(outcome)) => outcome,
            Ok(Answer::Panicked(panic)) => std::panic::resume_unwind(panic),
            Err(_) => Err(EndedInTheMiddle::new("the runtime dropped the batch of this job".into()).into()),
        }
    }

    fn add(self: &Arc<Self>, entry: Entry<J, S>) {
        let mut waiting = self.waiting();
        if self.halves && entry.context.job.claim.losses > 0 {
            waiting.suspects.push_back(entry);
            if !std::mem::replace(&mut waiting.runs_suspects, true) {
                tokio::spawn(self.clone().run_suspects());
            }
            return;
        }
        waiting.fresh.push(entry);
        if waiting.fresh.len() >= self.batch.up_to {
            let full = waiting.begin();
            drop(waiting);
            tokio::spawn(self.clone().run_fresh(full));
        } else if waiting.fresh.len() == 1 {
            let (begun, batches) = (waiting.begun, self.clone());
            drop(waiting);
            tokio::spawn(async move {
                tokio::time::sleep(batches.batch.within).await;
                let batch = {
                    let mut waiting = batches.waiting();
                    if waiting.begun == begun { waiting.begin() } else { Vec::new() }
                };
                batches.run_fresh(batch).await;
            });
        }
    }

    /// Takes back a job whose batch has not begun.
    fn leave(&self, key: ClaimKey) -> bool {
        let mut waiting = self.waiting();
        let before = waiting.fresh.len() + waiting.suspects.len();
        waiting.fresh.retain(|entry| entry.context.job.key != key);
        waiting.suspects.retain(|entry| entry.context.job.key != key);
        if waiting.fresh.is_empty() {
            // The next job waits from its own time on.
            waiting.begun += 1;
        }
        waiting.fresh.len() + waiting.suspects.len() < before
    }

    /// Runs the jobs that were lost, one batch after the other, until none waits.
    async fn run_suspects(self: Arc<Self>) {
        loop {
            let first = self.waiting().suspects.front().map(|entry| entry.context.job.claim.losses);
            if first.is_some_and(|losses| self.batch.after(losses) > 1) {
                tokio::time::sleep(self.batch.within).await;
            }
            let batch = {
                let mut waiting = self.waiting();
                let mut batch: Vec<Entry<J, S>> = Vec::new();
                let mut limit = self.batch.up_to;
                while let Some(next) = waiting.suspects.front() {
                    limit = limit.min(self.batch.after(next.context.job.claim.losses));
                    if batch.len() >= limit {
                        break;
                    }
                    batch.extend(waiting.suspects.pop_front());
                }
                waiting.runs_suspects = !batch.is_empty();
                batch
            };
            if batch.is_empty() {
                return;
            }
            // In a task of its own: a panic in it must not end this one.
            let batches = self.clone();
            let running = tokio::spawn(async move {
                match <[_; 1]>::try_from(batch) {
                    Ok([alone]) => batches.run_alone(alone).await,
                    Err(batch) => batches.run_fresh(batch).await,
                }
            });
            let _ = running.await;
        }
    }

    /// Runs a batch beside others.
    async fn run_fresh(self: Arc<Self>, mut batch: Vec<Entry<J, S>>) {
        let mut beside = self.others.try_read().ok();
        // A suspect runs alone, perhaps for long: meanwhile each of these jobs may have to stop.
        while beside.is_none() && !batch.is_empty() {
            let one_stops = select_all(batch.iter().map(|entry| entry.context.cancelled().boxed()));
            tokio::select! {
                free = self.others.read() => beside = Some(free),
                _ = one_stops => end_stopped(&mut batch),
            }
        }
        self.run(batch).await;
    }

    /// Runs a suspect. No other batch of the kind runs meanwhile, and recovery charges its attempt.
    async fn run_alone(&self, alone: Entry<J, S>) {
        let context = alone.context.clone();
        let _alone = tokio::select! {
            alone = self.others.write() => alone,
            reason = context.cancelled() => return alone.end(stopped_before(reason)),
        };
        let key = context.job.key;
        let why = match context.store.runs_alone(key).await {
            Ok(true) => {
                self.run(vec![alone]).await;
                return settled(&context).await;
            }
            Ok(false) => ContextError::Lost { job: key.job, token: key.token },
            Err(error) => ContextError::Store(error),
        };
        alone.end(Err(why.into()));
    }

    /// Runs a batch; one that fails as a whole, in halves.
    async fn run(&self, batch: Vec<Entry<J, S>>) {
        let mut left = vec![batch];
        while let Some(mut batch) = left.pop() {
            end_stopped(&mut batch);
            if batch.is_empty() {
                continue;
            }
            let span = tracing::info_span!("batch", kind = J::KIND, jobs = batch.len());
            if let Some((first, second)) = self.call(batch).instrument(span).await {
                left.push(second);
                left.push(first);
            }
        }
    }

    /// Calls the handler once, and hands out its verdicts. Returns the halves of a batch that failed as a whole.
    async fn call(&self, mut batch: Vec<Entry<J, S>>) -> Option<(Vec<Entry<J, S>>, Vec<Entry<J, S>>)> {
        let mut items = Vec::with_capacity(batch.len());
        let mut unread = Vec::new();
        for (at, entry) in batch.iter_mut().enumerate() {
            match entry.take() {
                Ok(item) => items.push(item),
                Err(error) => unread.push((at, error)),
            }
        }
        for (at, error) in unread.into_iter().rev() {
            batch.remove(at).end(Err(error));
        }
        for entry in &batch {
            entry.is_called.store(true, Ordering::Release);
        }
        let contexts: Arc<[_]> = batch.iter().map(|entry| entry.context.clone()).collect();
        if contexts.is_empty() {
            return None;
        }
        let context = BatchContext { of: contexts };
        let call = AssertUnwindSafe(async { (self.handler)(items, context).await }).catch_unwind();
        // A batch none of whose attempts is left writes nothing: it ends as a handler that the worker drops.
        let abandoned = join_all(batch.iter_mut().map(|entry| entry.answer.closed()));
        let said = tokio::select! {
            said = call => said,
            _ = abandoned => return None,
        };
        match said {
            Ok(Ok(verdicts)) => {
                hand_out(batch, verdicts);
                None
            }
            Ok(Err(error)) if batch.len() == 1 || error.retry_after.is_some() || error.is_unavailable() => {
                // Not one job's error: to call again now would only burden what is down.
                share(batch, error);
                None
            }
            Err(panic) if batch.len() == 1 => {
                let alone = batch.remove(0);
                let _ = alone.answer.send(Answer::Panicked(panic));
                None
            }
            failed => {
                let jobs = batch.len();
                if let Ok(Err(error)) = failed {
                    tracing::warn!(jobs, error = error.text(), "the batch failed; it runs again in halves");
                } else {
                    tracing::warn!(jobs, "the handler of the batch panicked; it runs again in halves");
                }
                for entry in &batch {
                    entry.is_called.store(false, Ordering::Release);
                }
                let second = batch.split_off(batch.len().div_ceil(2));
                Some((batch, second))
            }
        }
    }
}

impl<J, S> Waiting<J, S> {
    fn begin(&mut self) -> Vec<Entry<J, S>> {
        self.begun += 1;
        std::mem::take(&mut self.fresh)
    }
}

/// Ends the jobs that are to stop, or have stopped, and takes them out of the batch.
fn end_stopped<J: Job, S>(batch: &mut Vec<Entry<J, S>>) {
    for stopped in batch.extract_if(.., |entry| entry.is_stopped()) {
        let reason = stopped.context.cancel_reason().unwrap_or(CancelReason::Lost);
        // After a call it has run, as any attempt that is out of time.
        let was_called = stopped.job.is_none();
        stopped.end(if was_called { Err(JobError::msg(reason.to_string())) } else { stopped_before(reason) });
    }
}

/// Waits until the end of this attempt is written. Until then it would be charged for what the next suspect does.
async fn settled<S>(context: &JobContext<S>) {
    for _ in 0..SETTLED_LOOKS {
        match context.store.still_mine(&[context.job.key]).await.as_deref() {
            Ok([Some(_)]) => tokio::time::sleep(SETTLED_LOOKED_EVERY).await,
            _ => return,
        }
    }
}

/// The end of a job that is to stop before the handler has seen it. One that is out of time waits again, uncharged: it
/// has not run.
fn stopped_before(reason: CancelReason) -> Result<Outcome, JobError> {
    if reason == CancelReason::Timeout {
        return Ok(Outcome::Snooze(Duration::ZERO));
    }
    Err(JobError::msg(format!("{reason}; its batch did not begin")))
}

/// Gives each job its verdict.
fn hand_out<J: Job, S>(batch: Vec<Entry<J, S>>, verdicts: Vec<Verdict>) {
    let mut of: std::collections::HashMap<_, _> =
        verdicts.into_iter().map(|verdict| (verdict.of, verdict.outcome)).collect();
    for entry in batch {
        let outcome = of.remove(&entry.context.job.key).unwrap_or_else(|| {
            Err(JobError::msg(
                "the batch handler returned no verdict for this job; return one for each item: \
                 `item.done(..)`, `item.fail(..)` or `item.end(..)`",
            ))
        });
        entry.end(outcome);
    }
    if !of.is_empty() {
        tracing::warn!(
            verdicts = of.len(),
            "the batch handler returned verdicts for jobs of another call; they change nothing"
        );
    }
}

/// Gives each job the error of the whole.
fn share<J: Job, S>(mut batch: Vec<Entry<J, S>>, error: JobError) {
    let last = batch.pop();
    for entry in batch {
        entry.end(Err(error.alike()));
    }
    if let Some(last) = last {
        last.end(Err(error));
    }
}
