//! Vanished: takes back the jobs of processes that are gone, long before they would be stale.
//!
//! Two channels must agree, on two looks: the process has not renewed its row in Postgres, and NATS says
//! that nobody subscribes to its subject. One that is frozen, or cut off from one of the two servers, is
//! not gone. One that is cut off from both looks like a dead one; fencing keeps it from writing, but what
//! it does elsewhere may overlap with the next attempt.
//!
//! The suspicion is kept in the process's row, so that the two looks may be two workers'.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_killed_workers_jobs_run_elsewhere_within_15_seconds`
//! - `no_healthy_job_is_taken_when_nats_restarts`
//! - `no_healthy_job_is_taken_when_postgres_restarts`
//! - `a_worker_that_is_paused_for_less_than_stale_after_keeps_its_jobs`

use std::time::Duration;

use futures::future::join_all;

use super::report_taken;
use crate::{
    config::Timing,
    fault,
    nats::{Probed, Queue},
    store::{Store, StoreError},
};

/// How far apart two looks are, in tenths of the time between renewals. (How many renewals a process may
/// miss before it is asked for, 1.4, and before it is gone, 2, stands in the statements.)
const BETWEEN_LOOKS_TENTHS: u32 = 4;
/// For how many renewals our own connections must have been up after an outage: others come back, too.
const SETTLED_RENEWALS: u32 = 3;
/// A process that has just started has seen no outage, but one may have ended just before. It judges those that had
/// renewed their row within so many tenths of a renewal before: no outage keeps them from the next one.
const HEARD_TENTHS: u32 = 12;
/// A process that has renewed nothing for so many of our renewals, owns nothing and is gone, is forgotten.
const FORGOTTEN_RENEWALS: u32 = 2;

/// How long to wait between looks.
pub(crate) fn look_every(timing: &Timing) -> Duration {
    timing.renew_every / 5
}

/// For how long our own connections have been up, and whether they ever broke.
#[derive(Debug, Clone, Copy)]
struct Up {
    postgres: Duration,
    nats: Duration,
    postgres_never_broke: bool,
    nats_never_broke: bool,
}

impl Up {
    fn now(store: &Store, queue: &Queue) -> Self {
        Self {
            postgres: store.up_for(),
            nats: queue.up_for(),
            postgres_never_broke: store.is_up_since_the_start(),
            nats_never_broke: queue.is_up_since_the_start(),
        }
    }

    fn has_settled(self, timing: &Timing) -> bool {
        let least = timing.renew_every * SETTLED_RENEWALS;
        let is_long = self.postgres >= least && self.nats >= least;
        is_long || self.postgres_never_broke && self.nats_never_broke
    }

    /// Who may be judged: those that were heard of within this time. `None`: all. `within` is the longest that a call
    /// takes.
    ///
    /// A process that has seen no outage started after the last one. A call that hung in that one has ended by its
    /// deadline, and a renewal that failed is tried again soon: a live worker has renewed its row by then.
    fn heard_within(self, within: Duration, timing: &Timing) -> Option<Duration> {
        let up_for = self.postgres.min(self.nats);
        let back_within = (within + timing.renew_every * 2 / 5).min(timing.renew_every * SETTLED_RENEWALS);
        (up_for < back_within).then(|| up_for + timing.renew_every * HEARD_TENTHS / 10)
    }
}

/// Whether our own connections allow a judgement of others: they have seen no outage, or have been up for long since.
pub(crate) fn has_settled(store: &Store, queue: &Queue, timing: &Timing) -> bool {
    Up::now(store, queue).has_settled(timing)
}

/// What came of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looked {
    /// This number of jobs was reset.
    Reset(usize),
    /// Of several processes, NATS said nothing of any: it may be this worker's connection.
    Unanswered,
}

/// Looks for processes that are gone.
pub(crate) async fn look(
    store: &Store,
    queue: &Queue,
    timing: &Timing,
    worker_id: &str,
) -> Result<Looked, StoreError> {
    if !has_settled(store, queue, timing) {
        return Ok(Looked::Reset(0));
    }
    let between = timing.renew_every * BETWEEN_LOOKS_TENTHS / 10;
    let heard_within = Up::now(store, queue).heard_within(store.within(), timing);
    let silent = store.silent_workers(between / 2, worker_id, heard_within).await?;
    if silent.is_empty() {
        return Ok(Looked::Reset(0));
    }
    let answers = join_all(silent.iter().map(|(_, subject)| queue.probe(subject))).await;
    // Asked over a connection that broke meanwhile, nobody answers.
    if !has_settled(store, queue, timing) {
        return Ok(Looked::Reset(0));
    }
    if answers.iter().all(|answer| *answer == Probed::NoAnswer) {
        return Ok(Looked::Unanswered);
    }
    let looked: Vec<_> = silent
        .into_iter()
        .zip(answers)
        // No answer is no news: it may be ours that does not arrive.
        .filter(|(_, answer)| *answer != Probed::NoAnswer)
        .map(|((worker, _), answer)| (worker, answer == Probed::Gone))
        .collect();
    store.suspect(&looked).await?;
    let gone: Vec<_> = looked.into_iter().filter(|(_, gone)| *gone).map(|(worker, _)| worker).collect();
    if gone.is_empty() {
        return Ok(Looked::Reset(0));
    }
    let taken =
        store.reset_vanished(&gone, between, timing.scan_every, timing.stale_after, worker_id).await?;
    if !taken.is_empty() {
        fault::point("reset");
    }
    report_taken("vanished", &taken, worker_id);
    // A wrong guess enters itself again.
    store.forget_workers(Some(&gone), timing.renew_every * FORGOTTEN_RENEWALS).await?;
    Ok(Looked::Reset(taken.len()))
}

#[cfg(all(test, feature = "dev"))]
mod tests;
