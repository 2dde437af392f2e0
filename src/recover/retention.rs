//! Retention: what has ended long enough ago leaves. Leaderless: one worker at a time sweeps, whichever asks first.
//!
//! Completed jobs leave by days, whole partitions of the history, which costs nothing; what cannot, because something
//! else of its day is kept, leaves in steps of a thousand rows, with pauses as long as the steps. What is remembered of
//! a job (its attempts, effects, keys) leaves after it.
//!
//! Invariants, each held by the test of that name:
//!
//! - `what_is_old_enough_leaves_and_nothing_else`
//! - `a_job_that_completes_while_its_day_leaves_is_not_lost`
//! - `a_sweep_that_takes_long_keeps_its_turn`

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::{
    config::Retention,
    nats::Queue,
    observe::metrics,
    store::{Purged, Store, StoreError},
};

/// How many rows one step looks at.
const STEP: i32 = 1_000;
/// The shortest pause between two steps.
const PAUSE: Duration = Duration::from_millis(20);

/// How often somebody sweeps, in scans.
pub(crate) const SWEEP_EVERY_SCANS: u32 = 20;

/// Sweeps, if it is this worker's turn. Returns how many jobs and dead letters have left.
pub(crate) async fn sweep(
    store: &Store,
    queue: &Queue,
    keep: &Retention,
    every: Duration,
) -> Result<u64, StoreError> {
    let finished = [keep.completed, keep.cancelled];
    // What is remembered of a job leaves after the job, be it a dead letter.
    let shortest = finished.into_iter().chain([keep.dead]).flatten().min();
    if !store.purge_gate(every, shortest).await? {
        return Ok(0);
    }
    // It may take longer than it is from one sweep to the next: the turn is kept until its end.
    tokio::select! {
        left = Box::pin(sweep_all(store, queue, keep, shortest)) => left,
        () = keep_turn(store, (every / 4).max(PAUSE)) => Ok(0),
    }
}

async fn keep_turn(store: &Store, every: Duration) {
    loop {
        sleep(every).await;
        if let Err(error) = store.purge_turn().await {
            tracing::debug!(%error, "the turn of the sweep was not renewed");
        }
    }
}

async fn sweep_all(
    store: &Store,
    queue: &Queue,
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
        // Without NATS nobody knows which messages may come again.
        let first_seq = queue.first_sequence().await.ok();
        metrics::purged("keys", walk(store, Walk::Keys(age, first_seq)).await?);
    }
    if let Some(age) = keep.events {
        all(store, Oldest::Events, age).await?;
    }
    store.purge_done().await?;
    if left > 0 {
        tracing::info!(jobs = left, "what ended long enough ago has left");
    }
    Ok(left)
}

/// What leaves the oldest first.
#[derive(Debug, Clone, Copy)]
enum Oldest {
    Cancelled,
    Dead,
    Events,
}

/// What is looked through in the order of ids.
#[derive(Debug, Clone, Copy)]
enum Walk<'k> {
    Finished(&'k Retention),
    Traces,
    Keys(Duration, Option<u64>),
}

/// Half of the time is the others'.
async fn paced<T>(step: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let began_at = Instant::now();
    let done = step.await?;
    sleep(began_at.elapsed().max(PAUSE)).await;
    Ok(done)
}

/// Steps until one finds less than it might.
async fn all(store: &Store, what: Oldest, age: Duration) -> Result<u64, StoreError> {
    let mut total = 0;
    loop {
        let (of, gone) = match what {
            Oldest::Cancelled => ("cancelled", paced(store.purge_cancelled(age, STEP)).await?),
            Oldest::Dead => ("dead", paced(store.purge_old_dead(age, STEP)).await?),
            Oldest::Events => ("events", paced(store.purge_events(age, STEP)).await?),
        };
        metrics::purged(of, gone);
        total += gone;
        if gone < STEP.unsigned_abs().into() {
            return Ok(total);
        }
    }
}

/// Steps from one id to the next, to the end.
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
