//! Verdict: decides how an attempt ends.

use std::{sync::atomic::Ordering, time::Duration};

use crate::{
    codec::run::put_off,
    job::{
        JobError, Outcome,
        attempt::{AttemptOutcome, Category, Reason},
        duration::written,
        sizes::grows,
        unstorable, unstorable_text,
    },
    quarantine::run::InQuarantine,
    run::{
        handlers::{Ended, EndedInTheMiddle, PayloadError, Retry, RetryPolicy},
        running::{CancelReason, OnCrash, RunningJob},
    },
    store::{AttemptEnd, Completion, Keeps},
};

/// The longest delay: more is a mistake in a unit, and Postgres could not add it to a time.
pub(crate) const DELAY_MAX: Duration = Duration::from_hours(24 * 365 * 10);

/// The end of an attempt, as `Settle` shall write it.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    /// The job is done.
    Complete(Completion),
    /// The attempt ended otherwise.
    End(AttemptEnd),
    /// The handler wrote the completion itself, in its own transaction.
    Written,
    /// Nothing may be written: another worker owns the job, or may.
    Lost,
}

/// Decides how an attempt ends. Pure, but for the jitter. Also returns the error that the handler returned.
pub(crate) fn verdict(
    job: &RunningJob,
    ended: Ended,
    policy: &RetryPolicy,
    timeout: Option<Duration>,
) -> (Verdict, Option<JobError>) {
    let attempt = Attempt { job, policy, timeout, asked: job.cancel_reason() };
    if job.settled.load(Ordering::Acquire) {
        return (Verdict::Written, None);
    }
    if attempt.asked == Some(CancelReason::Lost) {
        return (Verdict::Lost, None);
    }
    let verdict = match ended {
        Ended::Returned(Ok(outcome)) => attempt.returned(outcome),
        Ended::Returned(Err(error)) => match attempt.suspended(&error).or_else(|| attempt.put_off(&error)) {
            Some(waits) => waits,
            None => return (attempt.erred(&error), Some(error)),
        },
        Ended::Panicked(text) => {
            attempt.stopped(Some(&text)).unwrap_or_else(|| Verdict::End(attempt.retried(text)))
        }
        Ended::Dropped => attempt.dropped(),
        Ended::NeverBegan => attempt.never_began(),
        Ended::Quarantined(waits) => attempt.waits(waits),
    };
    (verdict, None)
}

/// An attempt that ended, with its rules, and the reason why it was asked to stop.
struct Attempt<'a> {
    job: &'a RunningJob,
    policy: &'a RetryPolicy,
    timeout: Option<Duration>,
    /// Why its handler was asked to stop.
    asked: Option<CancelReason>,
}

impl Attempt<'_> {
    fn end(&self, outcome: AttemptOutcome) -> AttemptEnd {
        AttemptEnd::new(self.job.key, outcome)
    }

    fn retried(&self, error: String) -> AttemptEnd {
        let delay = self.policy.backoff.delay(self.job.claim.attempt);
        AttemptEnd { delay, error: Some(error), ..self.end(AttemptOutcome::Retried) }
    }

    fn released(&self, reason: Reason) -> AttemptEnd {
        AttemptEnd { reason: Some(reason), ..self.end(AttemptOutcome::Released) }
    }

    fn cancelled(&self, error: Option<String>) -> Verdict {
        Verdict::End(AttemptEnd { error, ..self.end(AttemptOutcome::Cancelled) })
    }

    fn failed(&self, category: Option<Category>, error: String) -> Verdict {
        Verdict::End(AttemptEnd { category, error: Some(error), ..self.end(AttemptOutcome::Failed) })
    }

    /// The handler succeeded, snoozed or cancelled.
    fn returned(&self, outcome: Outcome) -> Verdict {
        match outcome {
            Outcome::Done(output) => {
                let unfit = output.as_ref().and_then(unstorable).map(str::to_owned);
                self.done(unfit, output.map(|output| output.to_string()))
            }
            Outcome::DoneJson(json) => self.done(unstorable_text(&json), Some(json)),
            Outcome::Snooze(delay) => {
                Verdict::End(AttemptEnd { delay: delay.min(DELAY_MAX), ..self.end(AttemptOutcome::Snoozed) })
            }
            Outcome::Cancel(why) => self.cancelled(Some(why)),
        }
    }

    fn done(&self, unfit: Option<String>, output: Option<String>) -> Verdict {
        match unfit.or_else(|| output.as_deref().and_then(grows)) {
            None => Verdict::Complete(Completion {
                key: self.job.key,
                output,
                report: None,
                keeps: Keeps::default(),
                in_group: false,
            }),
            Some(why) => {
                self.failed(Some(Category::InvalidOutput), format!("the output cannot be stored: {why}"))
            }
        }
    }

    /// The handler has not run.
    fn waits(&self, InQuarantine { why, delay }: InQuarantine) -> Verdict {
        let end = AttemptEnd { delay, error: Some(why), ..self.end(AttemptOutcome::Snoozed) };
        Verdict::End(AttemptEnd { in_quarantine: true, ..end })
    }

    /// The handler sleeps. `None`: it has failed.
    fn suspended(&self, error: &JobError) -> Option<Verdict> {
        let (delay, awaits) = error.suspension()?;
        if self.asked == Some(CancelReason::User) {
            return Some(self.cancelled(None));
        }
        // A sleep, too: what else the job may wait for may have come, and the end of the sleep is recorded.
        let awaits = Some(awaits.unwrap_or_default().to_owned());
        Some(Verdict::End(AttemptEnd { delay, awaits, ..self.end(AttemptOutcome::Snoozed) }))
    }

    /// This worker cannot open what the job carries. `None`: that is not why it has failed.
    fn put_off(&self, error: &JobError) -> Option<Verdict> {
        let (error, delay) = put_off(error, &self.job.claim)?;
        let end = || AttemptEnd { delay, error: Some(error), ..self.end(AttemptOutcome::Snoozed) };
        self.asked.is_none().then(|| Verdict::End(end()))
    }

    /// The handler returned an error.
    fn erred(&self, error: &JobError) -> Verdict {
        if error.is_lost() {
            return Verdict::Lost;
        }
        if self.must_not_run_again() && error.downcast_ref::<EndedInTheMiddle>().is_some() {
            return self.interrupted();
        }
        self.stopped(Some(&error.text())).unwrap_or_else(|| self.tried(error))
    }

    /// The handler did not stop when it was asked to.
    fn dropped(&self) -> Verdict {
        if self.must_not_run_again() {
            return self.interrupted();
        }
        // Dropped without having been asked to stop: the runtime ends.
        self.stopped(None).unwrap_or_else(|| Verdict::End(self.released(Reason::Shutdown)))
    }

    fn never_began(&self) -> Verdict {
        if self.asked == Some(CancelReason::User) {
            return self.cancelled(None);
        }
        tracing::warn!("no thread was free for the handler; the worker released the job for another worker");
        Verdict::End(self.released(Reason::NoThread))
    }

    /// Returns the end of an attempt that was asked to stop; `None` if it was not.
    fn stopped(&self, error: Option<&str>) -> Option<Verdict> {
        match self.asked {
            Some(CancelReason::User) => Some(self.cancelled(error.map(str::to_owned))),
            Some(CancelReason::Shutdown) => Some(Verdict::End(self.released(Reason::Shutdown))),
            Some(CancelReason::Timeout) => Some(Verdict::End(self.timed_out())),
            Some(CancelReason::Lost) => Some(Verdict::Lost),
            None => self.job.is_cut_off().then(|| Verdict::End(self.released(Reason::CouldNotWrite))),
        }
    }

    fn timed_out(&self) -> AttemptEnd {
        let limit = written(self.timeout.unwrap_or_default());
        self.retried(format!("it ran longer than the {limit} that its kind allows"))
    }

    /// Whether an end in the middle counts as a crash. A job that a person cancels is cancelled.
    fn must_not_run_again(&self) -> bool {
        self.job.rules.on_crash == OnCrash::DeadLetter && self.asked != Some(CancelReason::User)
    }

    fn interrupted(&self) -> Verdict {
        let why = "it was ended in the middle, and its kind must not run twice";
        self.failed(Some(Category::Interrupted), why.into())
    }

    /// Returns the end of an attempt that failed by itself: whether and when the job runs again.
    fn tried(&self, error: &JobError) -> Verdict {
        let category = error.source.downcast_ref::<PayloadError>().map(|_| Category::InvalidPayload);
        let is_outage = error.is_outage() || self.job.met_an_outage();
        let decided =
            if is_outage { Retry::Usual } else { self.policy.decide(error, self.job.claim.attempt) };
        if decided == Retry::Never || decided == Retry::Usual && error.permanent {
            return self.failed(category, error.text());
        }
        let retried = self.retried(error.text());
        if is_outage {
            // An outage is not the job's fault. The job waits as after a failure, or a job that breaks its own
            // connection would run again and again without a pause.
            let AttemptEnd { error, delay, .. } = retried;
            return Verdict::End(AttemptEnd { error, delay, ..self.released(Reason::Outage) });
        }
        let after = match decided {
            Retry::After(after) => Some(after),
            Retry::Usual | Retry::Never => error.retry_after,
        };
        let delay = after.unwrap_or(retried.delay).min(DELAY_MAX);
        Verdict::End(AttemptEnd { category, delay, ..retried })
    }
}
