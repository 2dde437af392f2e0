//! Scanner: resets stale jobs.
//!
//! The worker that has the turn scans. Before it resets anything it asks the database whether a scan is due, and
//! whether jobs may be reset just now (`store/recover/scan_gate.sql`).
//!
//! Invariants, each held by the test of that name:
//!
//! - `n_scanners_at_once_reset_each_job_once`
//! - `after_a_gap_between_scans_live_owners_get_time_to_write`
//! - `a_gap_that_makes_short_silences_look_stale_starts_the_grace_too`
//! - `live_jobs_that_take_long_to_read_stop_neither_the_scanner_nor_the_worker`
//! - `one_job_that_cannot_be_reset_stops_no_other_reset`

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use super::{
    report_reset,
    waiting::{self, Memory},
};
use crate::{
    job::{
        JobError, JobId,
        attempt::{Reason, RecoveryPath},
    },
    nats::Nats,
    observe::{hooks::Hooks, repeats},
    proof::fault,
    store::{Store, StoreError, batch::halve},
};

/// The most jobs of one statement.
const RESETS_MAX: usize = 100;
/// The time after which the row of a dead worker that owns nothing is removed.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(24 * 7);
/// The most jobs of one scan; the next scan goes on.
const SILENT_MAX: i64 = 10_000;

/// How often a worker tries to follow a clock that has stepped back, before it scans without.
const FOLLOWED_TRIES: u32 = 5;

/// Scans, if a scan is due. Returns how many jobs it reset; `None`: no scan was due.
pub(crate) async fn scan(
    store: &Store,
    nats: &Nats,
    memory: &Memory,
    worker_id: &str,
    scan_every: Duration,
    stale_after: Duration,
    hooks: &Hooks,
) -> Result<Option<usize>, StoreError> {
    let Some(is_ahead) = store.scan_due(scan_every).await? else { return Ok(None) };
    if is_ahead && !follow_clock(store).await {
        return Ok(None);
    }
    let Some(gate) = store.scan_gate(scan_every, stale_after, SILENT_MAX).await? else { return Ok(None) };
    if gate.stale > 0 && (gate.in_grace || gate.breaker_open) {
        tracing::warn!(
            stale = gate.stale,
            in_grace = gate.in_grace,
            breaker_open = gate.breaker_open,
            "the scanner waits before it resets stale jobs: many became stale at once, or \
             no worker scanned for a while; their workers get time to write"
        );
    }
    let (mut reset, mut failed) = (0, Ok(()));
    for jobs in gate.may_be_reset().chunks(RESETS_MAX) {
        match reset_some(store, jobs, worker_id, hooks).await {
            Ok(jobs) => reset += jobs,
            Err(error) if error.is_outage() => return Err(error),
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    // Housekeeping. Partitions are made a week ahead: once per scan is enough, and costs one lookup.
    let made = store.create_partitions().await;
    let forgotten = store.forget_workers(None, FORGOTTEN_AFTER).await;
    // The metrics may take too long with a very long queue; recovery does not depend on them.
    if let Err(error) = waiting::measure(store, nats, memory, scan_every, true).await {
        let error = JobError::from(error).text();
        if let Some(left_out) = repeats::tell("measure", &error) {
            tracing::warn!(
                error,
                left_out,
                "could not count the jobs of the queues; their metrics stay those of the last scan"
            );
        }
    }
    if let Err(error) = store.thin_activity().await {
        tracing::debug!(%error, "adding up old statistics failed; the next scan will retry");
    }
    // At the end: neither keeps the other, or the counts, from being made.
    failed.and(made).and(forgotten.map(drop)).map(|()| Some(reset))
}

/// Returns whether to scan now: else this worker, or another one, tries once more at its next scan. A scan hides the
/// step from it; but jobs of dead workers wait for the scan, and it does not wait for ever.
async fn follow_clock(store: &Store) -> bool {
    static FAILED: AtomicU32 = AtomicU32::new(0);
    tracing::warn!(
        "the clock of Postgres has stepped back: times that lie ahead count as now, and pauses begin anew"
    );
    let is_last_try = (FAILED.load(Ordering::Relaxed) + 1).is_multiple_of(FOLLOWED_TRIES);
    let followed = match crate::schedules::recover::follow_clock(store).await {
        // After the schedules: it hides the step. A schedule that stays locked keeps nothing else from it.
        followed if followed.is_ok() || is_last_try => store.follow_clock().await.and(followed),
        failed => failed,
    };
    let Err(error) = followed else {
        FAILED.store(0, Ordering::Relaxed);
        return true;
    };
    let tries = FAILED.fetch_add(1, Ordering::Relaxed) + 1;
    tracing::warn!(
        error = JobError::from(error).text(),
        tries,
        tries_max = FOLLOWED_TRIES,
        "not every time could be written anew; after the last try, some work waits for the time of before the step"
    );
    tries.is_multiple_of(FOLLOWED_TRIES)
}

/// Resets these jobs. A job that Postgres refuses to write keeps no other from its reset: the batch is halved, down to
/// that job.
async fn reset_some(
    store: &Store,
    jobs: &[JobId],
    worker_id: &str,
    hooks: &Hooks,
) -> Result<usize, StoreError> {
    let mut reset = 0;
    let mut parts = vec![jobs.to_vec()];
    while let Some(part) = parts.pop() {
        match store.reset_stale(&part, worker_id).await {
            Ok(ended) => {
                if !ended.is_empty() {
                    fault::point("reset");
                }
                report_reset(RecoveryPath::Scanner, Reason::Silent, &ended, worker_id, hooks);
                reset += ended.len();
            }
            Err(error) if !error.may_be_of_one_row() => return Err(error),
            Err(_) if part.len() > 1 => halve(part, &mut parts),
            Err(error) => {
                let (job, error) = (part.first(), JobError::from(error).text());
                tracing::error!(
                    ?job,
                    error,
                    "Postgres refused to reset a stale job; the next scan will retry"
                );
            }
        }
    }
    Ok(reset)
}

#[cfg(test)]
mod tests;
