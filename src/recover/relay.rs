//! Relay: publishes what is queued and due, but has no message.
//!
//! Two kinds of rows. *Unpublished* ones (scheduled, retried, reset, enqueued in a transaction) are taken
//! when due. *Published* ones are left alone: a backlog of a million must not be published again and
//! again. Only evidence makes a message lost, never age: everything the stream held at a moment of the
//! database's time has been delivered (or that stream is gone), and a job published well before that
//! moment still is queued.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_row_that_was_never_published_is_found`
//! - `a_backlog_is_not_published_again`
//! - `a_deleted_stream_loses_no_job`

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::{
    fault, metrics,
    queue::{Queue, QueueError, Ticket},
    store::{DueJob, Store, StoreError},
};

/// The most jobs of one statement, and so of one burst of publications.
const BURST: i64 = 500;
/// The most bursts in a row: a bound on the rate, with the pause between two ticks.
const BURSTS_MAX: usize = 20;

/// Relaying did not come to its end; the next tick goes on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// Publishes unpublished jobs that are due. Returns how many.
pub(crate) async fn publish_due(
    store: &Store,
    queue: &Queue,
    publish_within: Duration,
) -> Result<usize, RelayError> {
    let mut total = 0;
    for _ in 0..BURSTS_MAX {
        if !queue.is_connected() {
            break;
        }
        // Nobody else takes them until this publication must have come to an end.
        let due = store.take_due(BURST, publish_within * 3).await?;
        if due.is_empty() {
            break;
        }
        let taken = due.len();
        let answers = queue.publish(due.iter().map(ticket).collect()).await;
        fault::point("relayed");
        let mut failed = None;
        let mut published = Vec::with_capacity(taken);
        for (job, answer) in due.into_iter().zip(answers) {
            match answer {
                Ok(()) => published.push(job),
                Err(error) => failed = Some(error),
            }
        }
        if !published.is_empty() {
            store.published(&published).await?;
        }
        metrics::published(published.len());
        total += published.len();
        if let Some(error) = failed {
            tracing::warn!(jobs = taken - published.len(), %error, "not published; tried again later");
            return Err(error.into());
        }
    }
    Ok(total)
}

fn ticket(job: &DueJob) -> Ticket {
    Ticket {
        job: job.id,
        queue: job.queue.clone(),
        kind: job.kind.clone(),
        dispatch: job.dispatch,
        clear_reason: job.clear_reason.clone(),
        trace_context: job.trace_context.clone(),
    }
}

/// Gives back to the relay what waits for a message that no longer exists, and was published longer ago than the
/// margin. `None`: nothing, its messages may wait unread. `drained` is when the last look found all of them delivered,
/// if it did. Returns how many.
pub(crate) async fn reclaim_lost(
    store: &Store,
    queue: &Queue,
    name: &str,
    margin: Option<Duration>,
    drained: &mut Option<DateTime<Utc>>,
    mark_every: Duration,
    worker_id: &str,
) -> Result<u64, RelayError> {
    // The database's time first, the stream's state after: what was published well before this moment
    // is in the stream by then, or never will be.
    let now = store.database_time().await?;
    let progress = queue.progress(name).await?;
    metrics::messages(name, progress.pending, progress.unacknowledged);
    store.add_mark(now, &progress.stream_created, progress.last_seq, mark_every).await?;
    let Some(margin) = margin else { return Ok(0) };
    let before = if progress.pending == 0 {
        // Everything that the queue holds has been delivered; but delivered is not claimed yet. What was delivered by
        // the last look has had its time.
        drained.replace(now).map(|last| last - TimeDelta::from_std(margin).unwrap_or(TimeDelta::MAX))
    } else {
        *drained = None;
        store.passed_mark(&progress.stream_created, progress.delivered, margin).await?
    };
    let Some(before) = before else { return Ok(0) };
    let mut reclaimed = 0;
    for _ in 0..BURSTS_MAX {
        let n = store.reclaim_lost(name, before, BURST, worker_id).await?;
        reclaimed += n;
        if n < BURST.unsigned_abs() {
            break;
        }
    }
    if reclaimed > 0 {
        metrics::recovered("relay", "message_lost", usize::try_from(reclaimed).unwrap_or(usize::MAX));
        tracing::warn!(jobs = reclaimed, queue = name, "messages were lost; their jobs are published again");
    }
    Ok(reclaimed)
}
