//! Vanished: resets the jobs of processes that are gone, long before the jobs would be stale.
//!
//! Two channels must agree, on two looks: the process has not renewed its row in Postgres, and its subject in NATS has
//! no subscriber. A process that is frozen, or cut off from one of the two servers, is not gone. A process that is cut
//! off from both looks like a dead one; fencing refuses its writes, but its effects elsewhere may overlap with the next
//! attempt.
//!
//! The suspicion stands in the process's row, so that two workers may make the two looks.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_killed_workers_jobs_run_elsewhere_within_15_seconds`
//! - `no_healthy_job_is_taken_when_nats_restarts`
//! - `no_healthy_job_is_taken_when_postgres_restarts`
//! - `a_worker_that_is_paused_for_less_than_stale_after_keeps_its_jobs`

use std::time::Duration;

use futures::future::join_all;

use super::report_reset;
use crate::{
    config::Timing,
    job::attempt::{Reason, RecoveryPath},
    nats::{Nats, Probed},
    observe::hooks::Hooks,
    proof::fault,
    store::{Store, StoreError},
};

/// The time between two looks, in tenths of `renew_every`. (The statements say how many renewals a process may miss
/// before it is probed, 1.4, and before it is gone, 2.)
const BETWEEN_LOOKS_TENTHS: u32 = 4;
/// After an outage, this worker's connections must be up for this many renewals: other workers reconnect, too.
const SETTLED_RENEWALS: u32 = 3;
/// A worker that has just started has seen no outage, but one may have ended just before. It judges only processes that
/// renewed their row within this many tenths of `renew_every` before: no outage kept them from the next renewal.
const HEARD_TENTHS: u32 = 12;
/// A process that is gone, owns nothing and has not renewed its row for this many renewals is forgotten.
const FORGOTTEN_RENEWALS: u32 = 2;

/// The interval of looks.
pub(crate) fn look_every(timing: &Timing) -> Duration {
    timing.renew_every / 5
}

/// The uptime of this worker's connections, and whether they ever broke.
#[derive(Debug, Clone, Copy)]
struct Up {
    postgres: Duration,
    nats: Duration,
    postgres_never_broke: bool,
    nats_never_broke: bool,
}

impl Up {
    fn now(store: &Store, nats: &Nats) -> Self {
        Self {
            postgres: store.up_for(),
            nats: nats.up_for(),
            postgres_never_broke: store.is_up_since_the_start(),
            nats_never_broke: nats.is_up_since_the_start(),
        }
    }

    fn has_settled(self, timing: &Timing) -> bool {
        let least = timing.renew_every * SETTLED_RENEWALS;
        let is_long = self.postgres >= least && self.nats >= least;
        is_long || self.postgres_never_broke && self.nats_never_broke
    }

    /// Returns how recently a process must have renewed its row for this worker to judge it. `None`: any process may be
    /// judged. `within` is the deadline of a call.
    ///
    /// A worker that has seen no outage started after the last one. Calls that hung in that outage end by their
    /// deadline, and a failed renewal is soon retried: by then every live process has renewed its row.
    fn heard_within(self, within: Duration, timing: &Timing) -> Option<Duration> {
        let up_for = self.postgres.min(self.nats);
        let back_within = (within + timing.renew_every * 2 / 5).min(timing.renew_every * SETTLED_RENEWALS);
        (up_for < back_within).then(|| up_for + timing.renew_every * HEARD_TENTHS / 10)
    }
}

/// Whether this worker may judge others: its connections never broke, or have been up for long since.
pub(crate) fn has_settled(store: &Store, nats: &Nats, timing: &Timing) -> bool {
    Up::now(store, nats).has_settled(timing)
}

/// The outcome of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looked {
    /// This number of jobs was reset.
    Reset(usize),
    /// NATS answered about none of the silent processes: this worker's connection may be the cause.
    Unanswered,
}

/// Looks for processes that are gone, and resets their jobs.
pub(crate) async fn look(
    store: &Store,
    nats: &Nats,
    timing: &Timing,
    worker_id: &str,
    hooks: &Hooks,
) -> Result<Looked, StoreError> {
    if !has_settled(store, nats, timing) {
        return Ok(Looked::Reset(0));
    }
    let between = timing.renew_every * BETWEEN_LOOKS_TENTHS / 10;
    let heard_within = Up::now(store, nats).heard_within(store.within(), timing);
    let silent = store.silent_workers(between / 2, worker_id, heard_within).await?;
    if silent.is_empty() {
        return Ok(Looked::Reset(0));
    }
    let answers = join_all(silent.iter().map(|(_, subject)| nats.probe(subject))).await;
    // A connection that broke meanwhile brings no answer.
    if !has_settled(store, nats, timing) {
        return Ok(Looked::Reset(0));
    }
    if answers.iter().all(|answer| *answer == Probed::NoAnswer) {
        return Ok(Looked::Unanswered);
    }
    let looked: Vec<_> = silent
        .into_iter()
        .zip(answers)
        // No answer proves nothing: it may be lost on the way to this worker.
        .filter(|(_, answer)| *answer != Probed::NoAnswer)
        .map(|((worker, _), answer)| (worker, answer == Probed::Gone))
        .collect();
    store.suspect(&looked).await?;
    let gone: Vec<_> = looked.into_iter().filter(|(_, gone)| *gone).map(|(worker, _)| worker).collect();
    if gone.is_empty() {
        return Ok(Looked::Reset(0));
    }
    let reset =
        store.reset_vanished(&gone, between, timing.scan_every, timing.stale_after, worker_id).await?;
    if !reset.is_empty() {
        fault::point("reset");
    }
    report_reset(RecoveryPath::Vanished, Reason::WorkerGone, &reset, worker_id, hooks);
    // A live process that was forgotten by mistake registers again.
    store.forget_workers(Some(&gone), timing.renew_every * FORGOTTEN_RENEWALS).await?;
    Ok(Looked::Reset(reset.len()))
}

#[cfg(test)]
mod tests;
