//! Hooks: what they hear of an attempt's end.

use std::{sync::Arc, time::Duration};

use super::category;
use crate::{
    job::{
        JobError,
        attempt::{AttemptOutcome, RecoveryPath},
    },
    observe::hooks::{AttemptEnded, Hooks, JobDied, JobLost},
    run::running::RunningJob,
    store::AttemptEnd,
};

/// Tells of an attempt whose end is committed. `end` is what was written of it: `None` if it completed, also
/// by SQL before the handler failed. `error` is the handler's, and counts only with an `end`.
pub(super) fn ended(
    hooks: &Hooks,
    job: &RunningJob,
    outcome: AttemptOutcome,
    end: Option<AttemptEnd>,
    error: Option<JobError>,
    ran: Duration,
) {
    if !hooks.hear_of(outcome) {
        return;
    }
    let claim = &job.claim;
    let error = end.as_ref().and_then(|end| end.error.clone()).map(|text| Arc::new(recorded(text, error)));
    let again_in = end.as_ref().map(|end| end.delay).filter(|_| runs_again(outcome));
    if outcome == AttemptOutcome::Failed
        && let Some(end) = &end
    {
        hooks.died(|worker| JobDied {
            id: job.key.job,
            queue: claim.queue.clone(),
            kind: claim.kind.clone(),
            worker,
            category: category(end),
            error: error.clone().unwrap_or_else(|| Arc::new(JobError::msg("no reason given"))),
        });
    }
    hooks.ended(|worker| AttemptEnded {
        id: job.key.job,
        queue: claim.queue.clone(),
        kind: claim.kind.clone(),
        lane: claim.lane.as_deref().filter(|lane| !lane.is_empty()).map(str::to_owned),
        worker,
        attempt: claim.attempt,
        max_attempts: claim.max_attempts,
        token: job.key.token,
        outcome,
        error,
        ran,
        again_in,
    });
}

/// Tells that this worker no longer owned a job whose attempt it ended.
pub(super) fn lost(hooks: &Hooks, job: &RunningJob) {
    hooks.lost(|worker| JobLost {
        id: job.key.job,
        queue: job.claim.queue.clone(),
        kind: job.claim.kind.clone(),
        owner: Some(worker.to_string()),
        worker,
        token: job.key.token,
        path: RecoveryPath::Worker,
        silence: None,
    });
}

/// Returns the error that the attempt records: the handler's own, if that is what the text says.
fn recorded(text: String, of_handler: Option<JobError>) -> JobError {
    of_handler.filter(|error| error.text() == text).unwrap_or_else(|| JobError::msg(text))
}

fn runs_again(outcome: AttemptOutcome) -> bool {
    match outcome {
        AttemptOutcome::Retried | AttemptOutcome::Snoozed | AttemptOutcome::Released => true,
        AttemptOutcome::Completed
        | AttemptOutcome::Failed
        | AttemptOutcome::Cancelled
        | AttemptOutcome::Lost => false,
    }
}
