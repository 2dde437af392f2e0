//! Lanes: the backstop of held jobs, and the end of jobs that were not started by their time.
//!
//! A producer releases the jobs of its own lane, and a worker those of the lanes whose jobs have ended. The worker
//! that has the relay's turn finds the rest: a transaction that committed later, a token, a worker that died. It asks
//! Postgres ten times a second while any queue has lanes, and not at all while none has.
//!
//! Not here: who may run. `tenure.admit` in `migrations/functions/lanes` decides it.

use std::sync::{Arc, atomic::AtomicBool};

use crate::{
    job::{
        JobError,
        attempt::{Category, Route},
    },
    nats::Nats,
    observe::{
        hooks::{Hooks, JobDied},
        metrics,
    },
    recover::relay::{self, RelayError, Stop},
    store::{EndedAttempt, Store, StoreError},
};

/// The most jobs of one statement.
const EXPIRED_AT_ONCE: i64 = 1_000;

/// Releases what may go, of all queues with lanes, and publishes it. `judge`: whether to look for slots of jobs that
/// ended unseen. Returns how many jobs.
///
/// Cancel safe, as [`relay::publish_due`] is.
pub(crate) async fn tend(store: &Store, nats: &Nats, stop: &Stop, judge: bool) -> Result<usize, RelayError> {
    relay::publish_in_task(store, nats, relay::Take::Held { judge: AtomicBool::new(judge) }, stop).await
}

/// Ends the jobs that were not started by their time. Returns how many.
pub(crate) async fn expire(store: &Store, hooks: &Hooks) -> Result<usize, StoreError> {
    let ended = store.expire(None, EXPIRED_AT_ONCE).await?;
    for end in &ended {
        tell_expired(end, hooks);
    }
    Ok(ended.len())
}

/// Counts and reports a job that has expired.
pub(crate) fn tell_expired(end: &EndedAttempt, hooks: &Hooks) {
    let (job, queue, kind) = (end.job, &end.queue, &end.kind);
    if end.route != Route::Failed {
        tracing::info!(%job, queue, kind, "a job was not started by its time; it is cancelled");
        return;
    }
    tracing::error!(%job, queue, kind, "a job was not started by its time; it is a dead letter now");
    metrics::died(Category::Expired);
    hooks.died(|worker| JobDied {
        id: job,
        queue: queue.clone(),
        kind: kind.clone(),
        worker,
        category: Category::Expired,
        error: Arc::new(JobError::msg("expired: not started by its time")),
    });
}
