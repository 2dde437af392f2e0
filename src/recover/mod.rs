//! Recover: finds and resets jobs whose worker is gone or silent. Every worker takes part; there is no leader.
//!
//! | path | when | finds |
//! |---|---|---|
//! | [`reconcile`] | a worker starts | jobs of earlier processes of this host that are proven dead |
//! | [`scanner`] | every `scan_every`, by the worker that has the turn | jobs that were silent for longer than their `stale_after` |
//! | [`vanished`] | every fifth of `renew_every`, by the worker that has the turn | jobs of processes that are gone |
//! | [`relay`] | every `relay_every`, by the worker that has the turn | queued jobs without a message |
//! | [`lanes::recover`](crate::lanes::recover) | as the relay, while a queue has lanes | held jobs that may go |
//! | [`groups::recover`](crate::groups::recover) | as the relay, while there is a group | jobs whose predecessors have ended |
//! | [`redrives::recover`](crate::redrives::recover) | every second, while a calm redrive is open | dead letters whose turn has come |
//! | redelivery (`deliver`) | after `ack_wait` | a stale job whose message came again: the backstop |
//!
//! Every reset is one UPDATE that repeats its condition. The publication follows; if the process dies in between, the
//! relay of another worker publishes.

pub(crate) mod reconcile;
pub(crate) mod relay;
pub mod retention;
pub(crate) mod scanner;
pub(crate) mod standing;
pub(crate) mod vanished;
pub(crate) mod waiting;

use std::sync::Arc;

use crate::{
    job::{
        JobError,
        attempt::{Category, Reason, RecoveryPath, Route},
    },
    observe::{
        hooks::{Hooks, JobDied, JobLost},
        metrics,
    },
    store::EndedAttempt,
};

/// Logs and counts the jobs that one path has reset, for this reason, and tells the hooks.
fn report_reset(path: RecoveryPath, reason: Reason, reset: &[EndedAttempt], worker: &str, hooks: &Hooks) {
    for attempt in reset {
        let what = match attempt.category {
            Some(Category::Silent) => "reset a job: its handler was silent; its worker is alive",
            _ => "reset a job",
        };
        tracing::warn!(
            path = path.as_str(), job = %attempt.job, token = attempt.token.0, owner = attempt.owner,
            route = ?attempt.route, queue = attempt.queue, kind = attempt.kind, silence = ?attempt.silence, worker,
            "{what}"
        );
    }
    for attempt in reset {
        note_lost(path, reason, attempt, hooks);
    }
    metrics::recovered(path, reason, reset.len());
}

/// Counts the attempt of a job that was reset, and tells the hooks.
pub(crate) fn note_lost(path: RecoveryPath, reason: Reason, attempt: &EndedAttempt, hooks: &Hooks) {
    metrics::lost(&attempt.kind);
    hooks.lost(|worker| JobLost {
        id: attempt.job,
        queue: attempt.queue.clone(),
        kind: attempt.kind.clone(),
        worker,
        owner: attempt.owner.clone(),
        token: attempt.token,
        path,
        silence: Some(attempt.silence),
    });
    if attempt.route == Route::Failed {
        let category = attempt.category.unwrap_or(Category::Lost);
        metrics::died(category);
        hooks.died(|worker| JobDied {
            id: attempt.job,
            queue: attempt.queue.clone(),
            kind: attempt.kind.clone(),
            worker,
            category,
            error: Arc::new(JobError::msg(reason.text())),
        });
    }
}

#[cfg(test)]
mod tests;
