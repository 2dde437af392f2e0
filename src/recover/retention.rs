//! Retention: the sweep removes jobs that finished long enough ago. No leader: one worker at a time sweeps, the first
//! that asks.
//!
//! The sweep drops completed jobs by days, as whole partitions of the history, which costs nothing. If retention keeps
//! other rows of a day, the sweep deletes in steps of a thousand rows, with pauses as long as the steps. A job's
//! attempts, effects and keys go after the job.
//!
//! Invariants, each held by the test of that name:
//!
//! - `rows_that_are_old_enough_leave_and_no_others`
//! - `a_job_that_completes_while_its_day_leaves_is_not_lost`
//! - `a_sweep_that_takes_long_keeps_its_turn`

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::{
    config::Retention,
    nats::Nats,
    observe::metrics,
    store::{Purged, Store, StoreError},
};

/// The rows that one step looks at.
const STEP: i32 = 1_000;
/// The shortest pause between two steps.
const PAUSE: Duration = Duration::from_millis(20);

/// The interval of sweeps, in scans.
pub(crate) const SWEEP_EVERY_SCANS: u32 = 20;

/// Sweeps, if a sweep is due and this worker gets the turn. Returns how many jobs and dead letters it removed.
pub async fn sweep(store: &Store, nats: &Nats, keep: &Retention, every: Duration) -> Result<u64, StoreError> {
    let finished = [keep.completed, keep.cancelled];
    // A job's attempts, effects and keys outlive the job, also as a dead letter.
    let shortest = finished.into_iter().chain([keep.dead]).flatten().min();
    if !store.purge_gate(every, shortest).await? {
        return Ok(0);
    }
    // A sweep may take longer than the interval: this worker keeps the turn until its end.
    tokio::select! {
        left = Box::pin(sweep_all(store, nats, keep, shortest)) => left,
        () = keep_turn(store, (every / 4).max(PAUSE)) => Ok(0),
    }
}

async fn keep_turn(store: &Store, every: Duration) {
    loop {
        sleep(every).await;
        if let Err(error) = store.purge_turn().await {
            tracing::debug!(%error, "renewing the turn of the sweep failed; another worker may sweep, too");
        }
    }
}

async fn sweep_all(
    store: &Store,
    nats: &Nats,
    keep: &Retention,
    shortest: Option<Duration>,
) -> Result<u64, StoreError> {
    let mut left = 0;
    while let Some(day) = paced(store.purge_day(keep.completed, keep.cancelled)).await? {
        left += note(&day);
    }
    if let Some(age) = keep.cancelled {
        left += all(store, Oldest::Cancelled, age).await?;
    }
    if keep.completed.is_some() {
        left += walk(store, Walk::Finished(keep)).await?;
    }
    if let Some(age) = keep.dead {
        left += all(store, Oldest::Dead, age).await?;
    }
    if shortest.is_some() {
        walk(store, Walk::Traces).await?;
    }
    if let Some(age) = keep.keys {
        // Only NATS knows which messages may be redelivered.
        let first_seq = nats.first_sequence().await.ok();
        metrics::purged("keys", walk(store, Walk::Keys(age, first_seq)).await?);
    }
    if let Some(age) = keep.events {
        all(store, Oldest::Events, age).await?;
    }
    if let Some(age) = keep.audit {
        all(store, Oldest::Acts, age).await?;
    }
    store.purge_done().await?;
    if left > 0 {
        tracing::info!(jobs = left, "the sweep removed finished jobs");
    }
    Ok(left)
}

/// Rows that the sweep removes oldest first.
#[derive(Debug, Clone, Copy)]
enum Oldest {
    Cancelled,
    Dead,
    Events,
    Acts,
}

/// Rows that the sweep looks through in the order of ids.
#[derive(Debug, Clone, Copy)]
enum Walk<'k> {
    Finished(&'k Retention),
    Traces,
    Keys(Duration, Option<u64>),
}

/// Runs one step, then pauses for as long as it took: other work gets half of the time.
async fn paced<T>(step: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let began_at = Instant::now();
    let done = step.await?;
    sleep(began_at.elapsed().max(PAUSE)).await;
    Ok(done)
}

/// Repeats the step until it removes fewer rows than it may.
async fn all(store: &Store, what: Oldest, age: Duration) -> Result<u64, StoreError> {
    let mut total = 0;
    loop {
        let (of, gone) = match what {
            Oldest::Cancelled => ("cancelled", paced(store.purge_cancelled(age, STEP)).await?),
            Oldest::Dead => ("dead", paced(store.purge_old_dead(age, STEP)).await?),
            Oldest::Events => ("events", paced(store.purge_events(age, STEP)).await?),
            Oldest::Acts => ("acts", paced(store.purge_audit(age, STEP)).await?),
        };
        metrics::purged(of, gone);
        total += gone;
        if gone < STEP.unsigned_abs().into() {
            return Ok(total);
        }
    }
}

/// Steps through all ids, from the lowest to the highest.
async fn walk(store: &Store, what: Walk<'_>) -> Result<u64, StoreError> {
    let (mut total, mut after) = (0, Uuid::nil());
    loop {
        let purged = match what {
            Walk::Finished(keep) => {
                paced(store.purge_rows(keep.completed, keep.cancelled, after, STEP)).await?
            }
            Walk::Traces => paced(store.purge_traces(after, STEP)).await?,
            Walk::Keys(age, first_seq) => paced(store.purge_keys(age, first_seq, after, STEP)).await?,
        };
        total += note(&purged) + purged.others;
        match purged.last {
            Some(last) => after = last,
            None => return Ok(total),
        }
    }
}

fn note(purged: &Purged) -> u64 {
    metrics::purged("completed", purged.completed);
    metrics::purged("cancelled", purged.cancelled);
    purged.completed + purged.cancelled
}
