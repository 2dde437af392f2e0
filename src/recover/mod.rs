//! Recover: on every worker, with no leader.
//!
//! | path | when | finds |
//! |---|---|---|
//! | [`reconcile`] | a worker starts | jobs of earlier processes of this host, proven dead |
//! | [`scanner`] | every `scan_every`, by the worker that has the turn | jobs that were silent for longer than their `stale_after` |
//! | [`vanished`] | every fifth of `renew_every`, by the worker that has the turn | jobs of processes that are gone |
//! | [`relay`] | every `relay_every`, by the worker that has the turn | queued jobs without a message |
//! | redelivery (`deliver`) | after `ack_wait` | a silent job whose message came again: the backstop |
//!
//! Every reset is one UPDATE that repeats its condition; the publication follows, and if the process dies
//! in between, another relay publishes.

pub(crate) mod cron;
pub(crate) mod reconcile;
pub(crate) mod relay;
pub(crate) mod retention;
pub(crate) mod scanner;
pub(crate) mod vanished;

use crate::{
    observe::metrics,
    store::{EndedAttempt, Route},
};

/// Tells of jobs that were taken back, by which path.
fn report_taken(path: &'static str, taken: &[EndedAttempt], worker: &str) {
    for attempt in taken {
        tracing::warn!(
            path, job = %attempt.job, token = attempt.token.0, owner = attempt.owner, route = ?attempt.route,
            queue = attempt.queue, kind = attempt.kind, silence = ?attempt.silence, worker, "took a job back"
        );
    }
    for attempt in taken {
        metrics::lost(&attempt.kind);
        if attempt.route == Route::Failed {
            metrics::died("lost");
        }
    }
    let reason = match path {
        "reconcile" => "process_died",
        "vanished" => "worker_gone",
        _ => "silent",
    };
    metrics::recovered(path, reason, taken.len());
}

#[cfg(all(test, feature = "dev"))]
mod tests;
