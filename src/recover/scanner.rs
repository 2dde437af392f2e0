//! Scanner: resets jobs that were silent for too long.
//!
//! Leaderless: every worker asks the database whether it is its turn (`store/scan_gate.sql`), which also
//! says whether anything may be reset at all just now.
//!
//! Invariants, each held by the test of that name:
//!
//! - `n_scanners_at_once_reset_each_job_once`
//! - `after_a_gap_between_scans_live_owners_get_time_to_write`

use std::{ops::ControlFlow, time::Duration};

use super::report_taken;
use crate::{
    fault,
    job::JobError,
    store::{Store, StoreError},
};

/// The most jobs of one statement.
const RESETS_MAX: i64 = 100;
/// How long a worker that died without a trace is remembered, once it owns nothing.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(24 * 7);
/// The most statements of one scan: the next scan goes on.
const STATEMENTS_MAX: usize = 100;

/// Scans, if it is this worker's turn. Returns how many jobs were reset.
pub(crate) async fn scan(
    store: &Store,
    worker_id: &str,
    scan_every: Duration,
    stale_after: Duration,
) -> Result<usize, StoreError> {
    let Some(gate) = store.scan_gate(scan_every, stale_after).await? else { return Ok(0) };
    if gate.stale > 0 && (gate.in_grace || gate.breaker_open) {
        tracing::warn!(
            stale = gate.stale,
            in_grace = gate.in_grace,
            breaker_open = gate.breaker_open,
            "jobs look dead, but so many at once, or after a gap, are given time to write"
        );
        return Ok(0);
    }
    let mut reset = 0;
    for _ in 0..STATEMENTS_MAX {
        let (n, flow) = reset_some(store, worker_id).await?;
        reset += n;
        if flow.is_break() {
            break;
        }
    }
    // Housekeeping: partitions are made a week ahead, so once in every scan is plenty, and costs a look.
    store.create_partitions().await?;
    store.forget_workers(None, FORGOTTEN_AFTER).await?;
    // Only figures: with a very long queue it may take too long.
    if let Err(error) = store.measure().await {
        let error = JobError::from(error).text();
        tracing::warn!(error, "the queues were not counted; their metrics are those of the last scan");
    }
    if let Err(error) = store.forget_activity().await {
        tracing::debug!(%error, "old figures are forgotten later");
    }
    Ok(reset)
}

async fn reset_some(store: &Store, worker_id: &str) -> Result<(usize, ControlFlow<()>), StoreError> {
    let taken = store.reset_stale(RESETS_MAX, worker_id).await?;
    if !taken.is_empty() {
        fault::point("reset");
    }
    report_taken("scanner", &taken, worker_id);
    let more = i64::try_from(taken.len()).is_ok_and(|n| n == RESETS_MAX);
    Ok((taken.len(), if more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }))
}
