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
    job::JobError,
    nats::Nats,
    observe::{metrics, repeats},
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
    let mut left = step("days", days(store, keep).await)?;
    if let Some(age) = keep.cancelled {
        left += step("cancelled jobs", all(store, Oldest::Cancelled, age).await)?;
    }
    if keep.completed.is_some() {
        left += step("finished jobs", walk(store, Walk::Finished(keep)).await)?;
    }
    if let Some(age) = keep.dead {
        left += step("dead letters", all(store, Oldest::Dead, age).await)?;
    }
    if shortest.is_some() {
        step("traces", walk(store, Walk::Traces).await)?;
    }
    if let Some(age) = keep.keys {
        // Only NATS knows which messages may be redelivered.
        let first_seq = nats.first_sequence().await.ok();
        metrics::purged("keys", step("keys", walk(store, Walk::Keys(age, first_seq)).await)?);
    }
    if let Some(age) = keep.events {
        step("events", all(store, Oldest::Events, age).await)?;
    }
    if let Some(age) = keep.audit {
        step("audit", all(store, Oldest::Acts, age).await)?;
    }
    store.purge_done().await?;
    if left > 0 {
        tracing::info!(jobs = left, "the sweep removed finished jobs");
    }
    Ok(left)
}

/// Returns how many rows a step of the sweep has removed. Its error keeps no other step from its own rows.
fn step(of: &'static str, done: Result<u64, StoreError>) -> Result<u64, StoreError> {
    match done {
        Err(error) if !error.is_outage() => {
            let error = JobError::from(error).text();
            if let Some(left_out) = repeats::tell(&format!("sweep of {of}"), &error) {
                tracing::warn!(
                    of,
                    error,
                    left_out,
                    "could not remove old rows; the sweep goes on with others, and the next one tries again. If this \
                     stays, remove the cause that Postgres names, or these rows fill the disk"
                );
            }
            Ok(0)
        }
        done => done,
    }
}

/// Drops the days that are old enough as a whole.
async fn days(store: &Store, keep: &Retention) -> Result<u64, StoreError> {
    let mut total = 0;
    while let Some(day) = paced(store.purge_day(keep.completed, keep.cancelled)).await? {
        total += note(&day);
    }
    Ok(total)
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
