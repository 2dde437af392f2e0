//! Settle: the row first, the ack after.
//!
//! ```text
//! Ended ──► Verdict (pure) ──► one statement under the claim ──► Settled | Lost ──► ack
//! ```
//!
//! The worker repeats a write whose answer was lost; a repeated settle under the same claim answers as the first
//! did. Only Postgres says that a job is lost, never a timeout. The attempt's span names the job in each log line.
//!
//! Invariants, each held by the test of that name:
//!
//! - `completing_again_under_the_same_claim_is_the_same_completion`
//! - `a_woken_worker_whose_job_was_taken_can_write_nothing`

mod hooks;
mod verdict;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

pub(crate) use self::verdict::{DELAY_MAX, Verdict, verdict};
use crate::{
    job::{
        JobError,
        attempt::{AttemptOutcome, Category, RecoveryPath, Route},
        claim::{Claim, ClaimKey},
        storable,
    },
    lanes::run::EndedLanes,
    observe::{
        hooks::Hooks,
        metrics::{self, KindMeasures},
        rates::QueueRates,
        repeats, trace,
    },
    proof::fault,
    quarantine::run::{InQuarantine, Quarantine},
    run::running::RunningJob,
    store::{
        AttemptEnd, Completion, Keeps, LockPolicy, Store, StoreError,
        batch::{Batcher, halve, in_order},
    },
    tags::run::TagCounts,
    watch::run::Hints,
};

/// How often the completion of a large output may come too late with others, and then alone, until its size counts as
/// the reason. That of a smaller one is late because Postgres is.
const LATE_MAX: u32 = 2;
const ALONE_MAX: u32 = 3;
const LARGE: usize = 1 << 20;

/// The result of writing a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The verdict is written. The job's message is no longer needed.
    Written,
    /// This worker no longer owned the job.
    Lost,
}

/// Writes verdicts, many at a time. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Settle {
    store: Store,
    hooks: Hooks,
    /// `None`: those who watch are not told.
    hints: Option<Hints>,
    ended_lanes: EndedLanes,
    /// Notified when a job has ended for which others may wait.
    ended_members: Arc<Notify>,
    quarantine: Quarantine,
    tags: TagCounts,
    completions: Batcher<Completion, Result<bool, StoreError>>,
    /// How many statements have completed jobs.
    completed: Arc<AtomicU64>,
    ends: Batcher<AttemptEnd, Result<Option<Route>, StoreError>>,
    /// Retries completions whose rows were locked or refused, without holding up the others.
    completions_again: Batcher<Completion, Result<bool, StoreError>>,
    ends_again: Batcher<AttemptEnd, Result<Option<Route>, StoreError>>,
}

impl Settle {
    pub(crate) fn new(
        store: Store,
        worker_id: Arc<str>,
        hooks: Hooks,
        hints: Option<Hints>,
        tags: TagCounts,
    ) -> Self {
        let completed = Arc::<AtomicU64>::default();
        let completions = |how| {
            let (store, completed) = (store.clone(), completed.clone());
            let bytes = |completion: &Completion| completion.output.as_ref().map_or(0, String::len);
            Batcher::spawn(bytes, move |batch: Vec<Completion>| {
                let (store, completed) = (store.clone(), completed.clone());
                async move {
                    let answers = complete(&store, how, batch).await;
                    let some = answers.iter().any(|answer| matches!(answer, Ok(true)));
                    completed.fetch_add(some.into(), Ordering::Relaxed);
                    answers
                }
            })
        };
        let ends = || {
            let (store, worker_id) = (store.clone(), worker_id.clone());
            let bytes = |end: &AttemptEnd| end.error.as_ref().map_or(0, String::len);
            Batcher::spawn(bytes, move |batch: Vec<AttemptEnd>| {
                let (store, worker_id) = (store.clone(), worker_id.clone());
                async move { end(&store, &worker_id, batch).await }
            })
        };
        Self {
            completions: completions(LockPolicy::Wait),
            completions_again: completions(LockPolicy::Skip),
            completed,
            ends: ends(),
            ends_again: ends(),
            quarantine: Quarantine::new(store.clone()),
            tags,
            store,
            hooks,
            hints,
            ended_lanes: EndedLanes::default(),
            ended_members: Arc::default(),
        }
    }

    /// The lanes whose jobs have ended.
    pub(crate) fn ended_lanes(&self) -> &EndedLanes {
        &self.ended_lanes
    }

    /// The kinds that are watched.
    pub(crate) fn quarantine(&self) -> &Quarantine {
        &self.quarantine
    }

    /// The ends that wait to be counted by their tags.
    pub(crate) fn tags(&self) -> &TagCounts {
        &self.tags
    }

    /// Is notified when jobs have ended for which others may wait.
    pub(crate) fn ended_members(&self) -> &Arc<Notify> {
        &self.ended_members
    }

    /// Snoozes a job whose handler has not begun, and retries as any end. `false`: this worker has lost the job.
    pub(crate) async fn snooze(&self, claim: &Claim, InQuarantine { why, delay }: InQuarantine) -> bool {
        let mut end =
            AttemptEnd { delay, error: Some(why), ..AttemptEnd::new(claim.key, AttemptOutcome::Snoozed) };
        let is_written = self.end(&mut end).await.1 == Settled::Written;
        if is_written {
            self.quarantine.snoozed(&claim.kind, claim.key.job);
        }
        if is_written && let Some(lane) = &claim.lane {
            self.ended_lanes.note(&claim.queue, lane, claim.key.job);
        }
        is_written
    }

    /// Writes a verdict, and retries for as long as Postgres is away. `error` is the handler's, for the hooks. `ran` is
    /// how long the attempt ran, `measures` are those of its kind, `rates` is its queue's. Returns also how the attempt
    /// has ended: perhaps otherwise than by the verdict.
    pub(crate) async fn write(
        &self,
        job: &RunningJob,
        verdict: Verdict,
        error: Option<JobError>,
        ran: Duration,
        measures: Option<&KindMeasures>,
        rates: Option<&QueueRates>,
    ) -> (AttemptOutcome, Settled) {
        let kind = &job.claim.kind;
        let mut said = None;
        let mut written = None;
        let (outcome, settled) = match verdict {
            Verdict::Written => (AttemptOutcome::Completed, Settled::Written),
            Verdict::Lost => (AttemptOutcome::Lost, Settled::Lost),
            // Its effects are known now: the attempt is ending, and records no more of them.
            Verdict::Complete(completion) => {
                let in_group = job.claim.group.is_some();
                match self.complete(Completion { keeps: job.keeps(), in_group, ..completion }).await {
                    Ok(settled) => (AttemptOutcome::Completed, settled),
                    Err(error) => {
                        // Postgres refuses the output, for a reason that `unstorable` does not know.
                        let error = JobError::permanent(error).text();
                        let error = format!("the completion was refused: {error}");
                        said = Some(error.clone());
                        let mut end = AttemptEnd {
                            error: Some(error),
                            category: Some(Category::InvalidOutput),
                            ..AttemptEnd::new(job.key, AttemptOutcome::Failed)
                        };
                        let answer = Box::pin(self.end(&mut end)).await;
                        written = Some(end);
                        answer
                    }
                }
            }
            Verdict::End(mut end) => {
                said = loggable(&end);
                let answer = Box::pin(self.end(&mut end)).await;
                written = Some(end);
                answer
            }
        };
        let (outcome, settled) = match settled {
            Settled::Lost if job.knows_claim.load(Ordering::Acquire) => {
                Box::pin(self.look(job, outcome)).await
            }
            settled => (outcome, settled),
        };
        if outcome == AttemptOutcome::Completed {
            // Postgres did not take this end, and so no hook hears of it or of its error.
            written = None;
            if let Some(said) = said.take() {
                tracing::info!(
                    said,
                    "the attempt had completed its job already; its own end changes nothing"
                );
            }
        }
        if settled == Settled::Written {
            if let Some(lane) = &job.claim.lane {
                self.ended_lanes.note(&job.claim.queue, lane, job.key.job);
            }
            if job.claim.group.is_some() {
                self.ended_members.notify_one();
            }
            if let Some(hints) = &self.hints {
                hints.ended(&job.claim, outcome);
            }
            metrics::settled(kind, outcome, ran, measures);
            // Only a job that has not run says why it is snoozed.
            let is_held = outcome == AttemptOutcome::Snoozed && said.is_some();
            if written.as_ref().is_some_and(|end| end.in_quarantine) {
                self.quarantine.snoozed(kind, job.key.job);
            }
            self.quarantine.ended(kind, outcome);
            self.tags.ended(job.key.job, kind, outcome);
            if let Some(rates) = rates {
                rates.ended(outcome, ran);
                if outcome == AttemptOutcome::Completed && job.rules.no_history {
                    rates.left_nothing();
                }
            }
            // The one line of every attempt. Error trackers collect the level ERROR: a dead letter needs a person.
            let ran_ms = u64::try_from(ran.as_millis()).unwrap_or(u64::MAX);
            let word = outcome.as_str();
            match (outcome, said) {
                (AttemptOutcome::Failed, error) => {
                    tracing::error!(outcome = word, ran_ms, error, "attempt ended");
                }
                // A person or the handler asked for this end: no warning.
                (AttemptOutcome::Cancelled, error) => {
                    tracing::info!(outcome = word, ran_ms, error, "attempt ended");
                }
                (_, Some(error)) if is_held => tracing::debug!(outcome = word, error, "the job waits"),
                (_, Some(error)) => tracing::warn!(outcome = word, ran_ms, error, "attempt ended"),
                // No operator acts on such a line, and writing it takes as long as a quick job.
                (_, None) => tracing::debug!(outcome = word, ran_ms, "attempt ended"),
            }
            trace::ended(outcome);
            // Not earlier: a hook may rely on the end being there for all to see.
            hooks::ended(&self.hooks, job, outcome, written, error, ran);
        } else {
            trace::ended(AttemptOutcome::Lost);
            hooks::lost(&self.hooks, job);
        }
        (outcome, settled)
    }

    async fn complete(&self, completion: Completion) -> Result<Settled, StoreError> {
        let mut wait = Waits::new();
        let mut completions = &self.completions;
        let mut unanswered = false;
        let mut late = 0;
        let mut alone = Alone { completed: 0, failed: 0 };
        let is_large = completion.output.as_ref().is_some_and(|output| output.len() > LARGE);
        loop {
            let answer = if late < LATE_MAX {
                completions.run(completion.clone()).await
            } else {
                Some(Box::pin(self.complete_alone(&completion, &mut alone)).await)
            };
            match answer {
                Some(Ok(true)) => return Ok(Settled::Written),
                Some(Ok(false)) => {
                    match Box::pin(self.ask(&completion.key)).await {
                        Asked::Ended(AttemptOutcome::Completed) => return Ok(Settled::Written),
                        // A completion that keeps no history leaves nothing to ask for. The job is gone, so it is
                        // completed: by the write that got no answer, or by a later attempt.
                        Asked::Unknown if unanswered && completion.keeps != Keeps::History => {
                            return Ok(Settled::Written);
                        }
                        // An attempt that is cancelled was reset by recovery: this worker wanted it completed.
                        Asked::Ended(_) | Asked::Unknown => return Ok(Settled::Lost),
                        Asked::Not => {}
                    }
                }
                // Postgres will always refuse bad values; a missing right or server may come back.
                Some(Err(error)) if !error.is_the_datas_fault() && alone.failed < ALONE_MAX => {
                    unanswered |= error.is_outage();
                    if is_large && late < LATE_MAX && error.is_late() {
                        late += 1;
                        alone.completed = self.completed.load(Ordering::Relaxed);
                    }
                    if let Some(left_out) = repeats::tell("completion", &error) {
                        tracing::warn!(%error, left_out, "could not write a completion; the worker will retry");
                    }
                }
                Some(Err(error)) => return Err(error),
                None => {
                    unanswered = true;
                    tracing::error!("Postgres did not confirm a completion; the worker will retry");
                }
            }
            completions = &self.completions_again;
            wait.next().await;
        }
    }

    /// Completes a job with a large output whose completion came too late before. If it does so alone, too, while
    /// Postgres takes others, its size is at fault, not the server.
    async fn complete_alone(&self, completion: &Completion, alone: &mut Alone) -> Result<bool, StoreError> {
        // Sooner than the time of a call: its end would count as an outage.
        let within = self.store.within().mul_f64(0.8);
        let answer = timeout(within, self.store.complete_alone(completion)).await;
        let answer = answer.unwrap_or_else(|_| Err(self.store.no_answer().into()));
        if answer.as_ref().is_err_and(StoreError::is_late) {
            self.store.database_time().await?;
            let completed = self.completed.load(Ordering::Relaxed);
            alone.failed += u32::from(completed > alone.completed);
            alone.completed = completed;
        }
        answer
    }

    /// Writes the end of an attempt; also returns its outcome. If Postgres refuses a value of it, `end` becomes the one
    /// that it accepts.
    async fn end(&self, end: &mut AttemptEnd) -> (AttemptOutcome, Settled) {
        let mut wait = Waits::new();
        let mut ends = &self.ends;
        loop {
            match ends.run(end.clone()).await {
                Some(Ok(Some(route))) => return (end.verdict.by(route), Settled::Written),
                Some(Ok(None)) => match self.ask(&end.key).await {
                    // By a transaction of the handler's own.
                    Asked::Ended(AttemptOutcome::Completed) => {
                        return (AttemptOutcome::Completed, Settled::Written);
                    }
                    // A reset writes `lost` under this very claim. A reset that writes `cancelled` suits this end.
                    Asked::Ended(left) if end.verdict.may_end_as(left) => return (left, Settled::Written),
                    Asked::Ended(_) | Asked::Unknown => return (end.verdict, Settled::Lost),
                    Asked::Not => {}
                },
                Some(Err(error)) => {
                    let verdict = end.verdict.as_str();
                    if let Some(left_out) = repeats::tell("end", &error) {
                        tracing::warn!(%error, verdict, left_out,
                            "could not write the end of an attempt; the worker will retry");
                    }
                    if error.is_the_datas_fault() && end.category != Some(Category::Refused) {
                        // Any value of the end may be at fault. Postgres accepts this end, which has few values.
                        let why = JobError::from(error).text();
                        let said = end.error.take().unwrap_or_default();
                        *end = AttemptEnd {
                            error: Some(format!("{said} (the verdict {} was refused: {why})", end.verdict)),
                            category: Some(Category::Refused),
                            ..AttemptEnd::new(end.key, AttemptOutcome::Failed)
                        };
                    }
                }
                None => {
                    tracing::error!("Postgres did not confirm the end of an attempt; the worker will retry");
                }
            }
            ends = &self.ends_again;
            wait.next().await;
        }
    }

    /// Whether a job that looks lost was completed by SQL, and kept no history.
    async fn look(&self, job: &RunningJob, outcome: AttemptOutcome) -> (AttemptOutcome, Settled) {
        match self.store.was_completed(&job.key, !job.rules.no_history).await {
            Ok(Some(true)) => (AttemptOutcome::Completed, Settled::Written),
            _ => (outcome, Settled::Lost),
        }
    }

    /// Asks how this claim ended, after a write whose answer was lost.
    async fn ask(&self, key: &ClaimKey) -> Asked {
        match self.store.settled_as(key).await {
            Ok(Some(Some(outcome))) => Asked::Ended(outcome),
            Ok(None) => Asked::Unknown,
            Ok(Some(None)) | Err(_) => Asked::Not,
        }
    }
}

/// Returns the text that the log shows of the error that ended an attempt. serde's error about a payload quotes the
/// payload, and so stays out of the log.
fn loggable(end: &AttemptEnd) -> Option<String> {
    if end.category == Some(Category::InvalidPayload) {
        return Some("the payload does not fit the type of its handler; `tenure jobs show` says why".into());
    }
    end.error.as_deref().map(|error| storable(error).into_owned())
}

/// How often a completion came too late by itself, while others were written.
struct Alone {
    /// How many statements had completed jobs by then.
    completed: u64,
    failed: u32,
}

/// How a claim ended.
enum Asked {
    /// The claim ended with this outcome.
    Ended(AttemptOutcome),
    /// Postgres has no record of the claim any more.
    Unknown,
    /// The claim has not ended, or Postgres did not answer: try the write again.
    Not,
}

/// Pauses that double from 50 ms up to two seconds, each with jitter.
struct Waits(Duration);

impl Waits {
    fn new() -> Self {
        Self(Duration::from_millis(50))
    }

    async fn next(&mut self) {
        sleep(self.0.mul_f64(rand::random_range(0.5..1.0))).await;
        self.0 = (self.0 * 2).min(Duration::from_secs(2));
    }
}

/// Returns the category of the dead letter that this end of an attempt has made.
fn category(end: &AttemptEnd) -> Category {
    end.category.unwrap_or(match end.verdict {
        // A release is charged as a retry once a job has had too many of them.
        AttemptOutcome::Retried | AttemptOutcome::Released => Category::Exhausted,
        _ => Category::Permanent,
    })
}

/// Counts the outcome of an attempt that did not complete.
fn measure(end: &AttemptEnd, route: Route) {
    if route == Route::Failed {
        metrics::died(category(end));
    }
    if let Some(reason) = end.reason {
        metrics::recovered(RecoveryPath::Worker, reason, 1);
    }
}

async fn complete(
    store: &Store,
    of_locked: LockPolicy,
    mut batch: Vec<Completion>,
) -> Vec<Result<bool, StoreError>> {
    let mut places: Vec<usize> = (0..batch.len()).collect();
    let keeps_history = |completion: &Completion| completion.keeps == Keeps::History;
    places.sort_unstable_by_key(|&i| (!keeps_history(&batch[i]), batch[i].key));
    batch.sort_unstable_by_key(|completion| (!keeps_history(completion), completion.key));
    let unkept = batch.split_off(batch.partition_point(keeps_history));
    let mut answers = Vec::with_capacity(batch.len());
    let mut rest = vec![unkept, batch];
    rest.retain(|part| !part.is_empty());
    while let Some(mut part) = rest.pop() {
        match store.complete(&part, of_locked).await {
            Ok(done) => {
                metrics::batch("complete", part.len());
                if part.len() > 1 {
                    fault::point("batch_completed");
                }
                answers.extend(done.into_iter().map(Ok));
            }
            // Postgres refuses one output: the others must complete.
            Err(error) if part.len() > 1 && error.may_be_of_one_row() => halve(part, &mut rest),
            // A report is worth no completion: without it, Postgres may accept the output.
            Err(error) if error.may_be_of_one_row() && part.iter().any(|of| of.report.is_some()) => {
                tracing::debug!(%error, "a last report was refused; the job completes without it");
                for completion in &mut part {
                    completion.report = None;
                }
                rest.push(part);
            }
            Err(error) => answers.extend(part.iter().map(|_| Err(error.clone()))),
        }
    }
    in_order(places, answers)
}

async fn end(
    store: &Store,
    worker_id: &str,
    batch: Vec<AttemptEnd>,
) -> Vec<Result<Option<Route>, StoreError>> {
    let mut answers = Vec::with_capacity(batch.len());
    let mut rest = vec![batch];
    while let Some(part) = rest.pop() {
        match store.settle(&part, worker_id).await {
            Ok(ended) => {
                fault::point("attempt_ended");
                metrics::batch("settle", part.len());
                let mut routes = vec![None; part.len()];
                for attempt in ended {
                    if let Some(route) = routes.get_mut(attempt.ord) {
                        *route = Some(attempt.route);
                        measure(&part[attempt.ord], attempt.route);
                    }
                }
                answers.extend(routes.into_iter().map(Ok));
            }
            Err(error) if part.len() > 1 && error.may_be_of_one_row() => halve(part, &mut rest),
            Err(error) => answers.extend(part.iter().map(|_| Err(error.clone()))),
        }
    }
    answers
}

#[cfg(test)]
mod tests;
