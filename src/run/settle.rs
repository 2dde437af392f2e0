//! Settle: the row first, the ack after.
//!
//! ```text
//! Ended ──► Verdict (pure) ──► one statement under the claim ──► Settled | Lost ──► ack
//! ```
//!
//! A write whose answer was lost is repeated; a repeated settle under the same claim answers as the first
//! did. Only Postgres says that a job is lost, never a timeout. What is logged here is in the span of the attempt,
//! which says of which job it is.
//!
//! Invariants, each held by the test of that name:
//!
//! - `completing_again_under_the_same_claim_is_the_same_completion`
//! - `a_woken_worker_whose_job_was_taken_can_write_nothing`

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    batch::{Batcher, halve, in_order},
    fault,
    job::{JobError, Outcome, claim::ClaimKey, storable, unstorable, unstorable_text},
    observe::{
        metrics::{self, KindMeasures},
        rates::Tally,
        trace,
    },
    run::{
        handlers::{Ended, EndedInTheMiddle, PayloadError, Retry, RetryPolicy},
        running::{CancelReason, OnCrash, RunningJob},
    },
    store::{AttemptEnd, Completion, LockPolicy, Route, Store, StoreError},
};

/// The longest wait: more is a mistake in a unit, and beyond what Postgres can add to a time.
const DELAY_MAX: Duration = Duration::from_hours(24 * 365 * 10);

/// Why a job was given back, as its recovery event says.
const STOPPED: &str = "the worker was stopped";
const CUT_OFF: &str = "nothing could be written for too long";

/// What is to be written about an attempt.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    /// The job is done.
    Complete(Completion),
    /// The attempt ended otherwise.
    End(AttemptEnd),
    /// The handler wrote it itself, in its own transaction.
    Written,
    /// Nothing may be written: the job is another's.
    Lost,
}

/// What became of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It is written. The job's message has done its work.
    Written,
    /// This worker did not own the job any more.
    Lost,
}

/// Decides what is written about an attempt that ended. Pure, but for the jitter.
pub(crate) fn verdict(
    job: &RunningJob,
    ended: Ended,
    policy: &RetryPolicy,
    timeout: Option<Duration>,
) -> Verdict {
    let reason = job.cancel_reason();
    if job.settled.load(std::sync::atomic::Ordering::Acquire) {
        return Verdict::Written;
    }
    if reason == Some(CancelReason::Lost) {
        return Verdict::Lost;
    }
    let end = |verdict, error: Option<String>| AttemptEnd {
        key: job.key,
        verdict,
        error,
        category: None,
        delay: Duration::ZERO,
        reason: None,
    };
    let retry = |error: String| {
        Verdict::End(AttemptEnd {
            delay: policy.backoff.delay(job.claim.attempt),
            ..end("retried", Some(error))
        })
    };
    let timed_out = || {
        let limit = timeout.unwrap_or_default();
        retry(format!("it ran longer than the {limit:?} that its kind allows"))
    };
    let release = |why: &'static str| Verdict::End(AttemptEnd { reason: Some(why), ..end("released", None) });
    let stopped = |error: Option<String>| match reason {
        Some(CancelReason::User) => Some(Verdict::End(end("cancelled", error))),
        Some(CancelReason::Shutdown) => Some(release(STOPPED)),
        Some(CancelReason::Timeout) => Some(timed_out()),
        Some(CancelReason::Lost) => Some(Verdict::Lost),
        None => job.is_cut_off().then(|| release(CUT_OFF)),
    };
    // In the middle of what must not be done twice: as good as a crash. What a person cancelled is cancelled.
    let never_twice = job.rules.on_crash == OnCrash::DeadLetter && reason != Some(CancelReason::User);
    let interrupted = || {
        let why = "it was ended in the middle, and its kind must not run twice";
        Verdict::End(AttemptEnd { category: Some("interrupted"), ..end("failed", Some(why.into())) })
    };
    let done = |unfit: Option<String>, output| match unfit {
        None => Verdict::Complete(Completion { key: job.key, output, report: None }),
        Some(why) => Verdict::End(AttemptEnd {
            category: Some("invalid_output"),
            ..end("failed", Some(format!("the output cannot be stored: {why}")))
        }),
    };
    match ended {
        Ended::Returned(Ok(Outcome::Done(output))) => {
            let unfit = output.as_ref().and_then(unstorable).map(str::to_owned);
            done(unfit, output.map(|output| output.to_string()))
        }
        Ended::Returned(Ok(Outcome::DoneJson(json))) => done(unstorable_text(&json), Some(json)),
        Ended::Returned(Ok(Outcome::Snooze(delay))) => {
            Verdict::End(AttemptEnd { delay: delay.min(DELAY_MAX), ..end("snoozed", None) })
        }
        Ended::Returned(Ok(Outcome::Cancel(why))) => Verdict::End(end("cancelled", Some(why))),
        Ended::Returned(Err(error)) => {
            if error.is_lost() {
                return Verdict::Lost;
            }
            if never_twice && error.downcast_ref::<EndedInTheMiddle>().is_some() {
                return interrupted();
            }
            stopped(Some(error.text())).unwrap_or_else(|| failed(job, &error, policy, &end, &retry, &release))
        }
        Ended::Panicked(text) => stopped(Some(text.clone())).unwrap_or_else(|| retry(text)),
        Ended::Dropped if never_twice => interrupted(),
        Ended::NeverBegan if reason == Some(CancelReason::User) => Verdict::End(end("cancelled", None)),
        Ended::NeverBegan => {
            tracing::warn!("no thread was free for its handler; released for another worker");
            release("no thread was free for its handler")
        }
        // Dropped without having been asked to stop: the runtime ends.
        Ended::Dropped => stopped(None).unwrap_or_else(|| release(STOPPED)),
    }
}

fn failed(
    job: &RunningJob,
    error: &JobError,
    policy: &RetryPolicy,
    end: &impl Fn(&'static str, Option<String>) -> AttemptEnd,
    retry: &impl Fn(String) -> Verdict,
    release: &impl Fn(&'static str) -> Verdict,
) -> Verdict {
    let category = error.source.downcast_ref::<PayloadError>().map(|_| "invalid_payload");
    let is_outage = error.is_outage() || job.met_an_outage();
    let decided = if is_outage { Retry::Usual } else { policy.decide(error, job.claim.attempt) };
    if decided == Retry::Never || decided == Retry::Usual && error.permanent {
        return Verdict::End(AttemptEnd { category, ..end("failed", Some(error.text())) });
    }
    // An outage is not the job's fault. It waits like a failed one, or one that breaks its own connection
    // would go round and round.
    if is_outage
        && let (Verdict::End(released), Verdict::End(retried)) =
            (release("the database was away while the handler needed it"), retry(String::new()))
    {
        let (error, category) = (Some(error.text()), Some("outage"));
        return Verdict::End(AttemptEnd { error, category, delay: retried.delay, ..released });
    }
    let after = match decided {
        Retry::After(after) => Some(after),
        Retry::Usual | Retry::Never => error.retry_after,
    };
    match (retry(error.text()), after) {
        (Verdict::End(retried), after) => Verdict::End(AttemptEnd {
            category,
            delay: after.unwrap_or(retried.delay).min(DELAY_MAX),
            ..retried
        }),
        (other, _) => other,
    }
}

/// Writes verdicts, many at a time. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Settle {
    store: Store,
    completions: Batcher<Completion, Result<bool, StoreError>>,
    ends: Batcher<AttemptEnd, Result<Option<Route>, StoreError>>,
    /// What somebody locks, or what is refused, is tried again without holding up the others.
    completions_again: Batcher<Completion, Result<bool, StoreError>>,
    ends_again: Batcher<AttemptEnd, Result<Option<Route>, StoreError>>,
}

impl Settle {
    pub(crate) fn new(store: Store, worker_id: Arc<str>) -> Self {
        let completions = |how| {
            let store = store.clone();
            let bytes = |completion: &Completion| completion.output.as_ref().map_or(0, String::len);
            Batcher::spawn(bytes, move |batch: Vec<Completion>| {
                let store = store.clone();
                async move { complete(&store, how, batch).await }
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
            ends: ends(),
            ends_again: ends(),
            store,
        }
    }

    /// Writes a verdict, for as long as it takes: while Postgres is away there is nothing better to do.
    /// The attempt ran for so long; `measures` are those of its kind, `tally` its queue's.
    pub(crate) async fn write(
        &self,
        job: &RunningJob,
        verdict: Verdict,
        ran: Duration,
        measures: Option<&KindMeasures>,
        tally: Option<&Tally>,
    ) -> Settled {
        let kind = &job.claim.kind;
        let mut said = None;
        let (outcome, settled) = match verdict {
            Verdict::Written => ("completed", Settled::Written),
            Verdict::Lost => ("lost", Settled::Lost),
            Verdict::Complete(completion) => match self.complete(completion).await {
                Ok(settled) => ("completed", settled),
                Err(error) => {
                    // An output that Postgres does not take, for a reason that was not foreseen.
                    let error = JobError::permanent(error).text();
                    let error = format!("the completion was refused: {error}");
                    said = Some(error.clone());
                    let end = AttemptEnd {
                        key: job.key,
                        verdict: "failed",
                        error: Some(error),
                        category: Some("invalid_output"),
                        delay: Duration::ZERO,
                        reason: None,
                    };
                    Box::pin(self.end(end)).await
                }
            },
            Verdict::End(end) => {
                said = loggable(&end);
                Box::pin(self.end(end)).await
            }
        };
        if settled == Settled::Written {
            metrics::settled(kind, outcome, ran, measures);
            if let Some(tally) = tally {
                tally.ended(outcome, ran);
            }
            // The one line of every attempt. What collects errors (Sentry and its kin) takes those of level ERROR:
            // somebody has to look after a dead letter.
            let ran_ms = u64::try_from(ran.as_millis()).unwrap_or(u64::MAX);
            match (outcome, said) {
                ("failed", error) => tracing::error!(outcome, ran_ms, error, "attempt ended"),
                // A person's wish, or the handler's own.
                ("cancelled", error) => tracing::info!(outcome, ran_ms, error, "attempt ended"),
                (_, Some(error)) => tracing::warn!(outcome, ran_ms, error, "attempt ended"),
                (_, None) => tracing::info!(outcome, ran_ms, "attempt ended"),
            }
            trace::ended(outcome);
        } else {
            trace::ended("lost");
        }
        settled
    }

    async fn complete(&self, completion: Completion) -> Result<Settled, StoreError> {
        let mut wait = Waits::new();
        let mut completions = &self.completions;
        loop {
            match completions.run(completion.clone()).await {
                Some(Ok(true)) => return Ok(Settled::Written),
                Some(Ok(false)) => {
                    match Box::pin(self.ask(&completion.key)).await {
                        Asked::Ended(left) if left == "completed" => return Ok(Settled::Written),
                        // Cancelled, it was by whoever took it back: we wanted it completed.
                        Asked::Ended(_) | Asked::Unknown => return Ok(Settled::Lost),
                        Asked::Not => {}
                    }
                }
                // Only the values themselves never will be taken; a right or a server may come back.
                Some(Err(error)) if !error.is_the_datas_fault() => {
                    tracing::warn!(%error, "not completed yet; trying again");
                }
                Some(Err(error)) => return Err(error),
                None => {
                    tracing::error!("its completion was not answered; trying again");
                }
            }
            completions = &self.completions_again;
            wait.next().await;
        }
    }

    /// Writes the end of an attempt; returns its outcome, too.
    async fn end(&self, mut end: AttemptEnd) -> (&'static str, Settled) {
        let mut wait = Waits::new();
        let mut ends = &self.ends;
        loop {
            match ends.run(end.clone()).await {
                Some(Ok(Some(route))) => return (outcome(end.verdict, route), Settled::Written),
                Some(Ok(None)) => match self.ask(&end.key).await {
                    // A row of the reset says `lost`, with our own claim. Where it was cancelled, whoever did it
                    // did what we wanted.
                    Asked::Ended(left) if left != "lost" => {
                        let route = match left.as_str() {
                            "failed" => Route::Failed,
                            "cancelled" => Route::Cancelled,
                            _ => Route::Queued,
                        };
                        return (outcome(end.verdict, route), Settled::Written);
                    }
                    Asked::Ended(_) | Asked::Unknown => return (end.verdict, Settled::Lost),
                    Asked::Not => {}
                },
                Some(Err(error)) => {
                    tracing::warn!(%error, verdict = end.verdict, "not settled yet; trying again");
                    if error.is_the_datas_fault() && end.category != Some("refused") {
                        // Whatever it was that Postgres does not take, this it does.
                        let why = JobError::from(error).text();
                        let said = end.error.take().unwrap_or_default();
                        end.error = Some(format!("{said} (the verdict {} was refused: {why})", end.verdict));
                        (end.verdict, end.category) = ("failed", Some("refused"));
                        (end.delay, end.reason) = (Duration::ZERO, None);
                    }
                }
                None => tracing::error!("its end was not answered; trying again"),
            }
            ends = &self.ends_again;
            wait.next().await;
        }
    }

    /// How this claim ended, for whoever lost the answer to its end.
    async fn ask(&self, key: &ClaimKey) -> Asked {
        match self.store.settled_as(key).await {
            Ok(Some(Some(outcome))) => Asked::Ended(outcome),
            Ok(None) => Asked::Unknown,
            Ok(Some(None)) | Err(_) => Asked::Not,
        }
    }
}

/// What the log says of the error that ended an attempt. What serde says of a payload quotes it.
fn loggable(end: &AttemptEnd) -> Option<String> {
    if end.category == Some("invalid_payload") {
        return Some("the payload does not fit the type of its handler; `tenure jobs show` says why".into());
    }
    end.error.as_deref().map(|error| storable(error).into_owned())
}

/// How a claim ended.
enum Asked {
    /// With this outcome.
    Ended(String),
    /// Nothing is known of it any more.
    Unknown,
    /// Not yet, or nobody answered: the write is tried again.
    Not,
}

/// What became of an attempt that was to end so: the last one that failed is not tried again.
fn outcome(verdict: &'static str, route: Route) -> &'static str {
    match route {
        Route::Queued => verdict,
        Route::Failed => "failed",
        Route::Cancelled => "cancelled",
    }
}

/// Waits that grow to two seconds.
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

/// Counts what has become of an attempt that did not complete.
fn measure(end: &AttemptEnd, route: Route) {
    if route == Route::Failed {
        metrics::died(end.category.unwrap_or(if end.verdict == "retried" {
            "exhausted"
        } else {
            "permanent"
        }));
    }
    if let Some(reason) = end.reason {
        let reason = match reason {
            STOPPED => "shutdown",
            CUT_OFF => "could_not_write",
            _ => "no_thread",
        };
        metrics::recovered("worker", reason, 1);
    }
}

async fn complete(
    store: &Store,
    of_locked: LockPolicy,
    mut batch: Vec<Completion>,
) -> Vec<Result<bool, StoreError>> {
    let mut places: Vec<usize> = (0..batch.len()).collect();
    places.sort_unstable_by_key(|&i| batch[i].key);
    batch.sort_unstable_by_key(|completion| completion.key);
    // A completed job says what its handler said last. Those that have said nothing since it was written are spared.
    let reports: Vec<_> = batch.iter().filter_map(|completion| completion.report.clone()).collect();
    if !reports.is_empty()
        && let Err(error) = store.progress(&reports).await
    {
        tracing::debug!(%error, jobs = reports.len(), "last reports were not written; the jobs complete all the same");
    }
    let mut answers = Vec::with_capacity(batch.len());
    let mut rest = vec![batch];
    while let Some(part) = rest.pop() {
        match store.complete(&part, of_locked).await {
            Ok(done) => {
                metrics::batch("complete", part.len());
                if part.len() > 1 {
                    fault::point("batch_completed");
                }
                answers.extend(done.into_iter().map(Ok));
            }
            // One output is refused; the others must not suffer for it.
            Err(error) if part.len() > 1 && error.may_be_of_one_row() => halve(part, &mut rest),
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

#[cfg(all(test, feature = "dev"))]
mod tests;
