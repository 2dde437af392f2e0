//! Heartbeat: progress is the sign of life.
//!
//! ```text
//! progress ──► latest wins, a job ──► one statement for all jobs ──► the message's ack_wait, extended
//!                                          └──► a job that is missing, and is not ours: lost
//! ```
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_thousand_reports_are_a_few_writes_and_the_last_one_stands`
//! - `a_woken_worker_whose_job_was_taken_can_write_nothing`

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::Notify,
    time::{MissedTickBehavior, interval},
};

use crate::{
    config::Timing,
    metrics,
    running::{CancelReason, Running, RunningJob},
    store::{ProgressWrite, Store, StoreError},
};

/// The most jobs of one statement.
const WRITES_MAX: usize = 512;

/// Writes the progress of all jobs of this process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Heartbeat {
    shared: Arc<Shared>,
}

struct Shared {
    store: Store,
    running: Running,
    timing: Timing,
    worker_id: String,
    hurry: Notify,
}

impl Heartbeat {
    pub(crate) fn new(store: Store, running: Running, timing: Timing, worker_id: String) -> Self {
        Self { shared: Arc::new(Shared { store, running, timing, worker_id, hurry: Notify::new() }) }
    }

    /// Takes a report; a later one replaces it, field by field.
    pub(crate) fn report(job: &RunningJob, write: ProgressWrite) {
        let mut pulse = job.pulse();
        pulse.pending = Some(match pulse.pending.take() {
            None => write,
            Some(earlier) => ProgressWrite {
                key: write.key,
                stage: write.stage.or(earlier.stage),
                percent: write.percent.or(earlier.percent),
                message: write.message.or(earlier.message),
                checkpoint: write.checkpoint.or(earlier.checkpoint),
            },
        });
    }

    /// Has what waits written now.
    pub(crate) fn hurry(&self) {
        self.shared.hurry.notify_one();
    }

    /// Writes for ever; end it by dropping it.
    pub(crate) async fn run(self) {
        let every = self.shared.timing.flush_every / 4;
        let mut ticks = interval(every.clamp(Duration::from_millis(10), Duration::from_millis(250)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.shared.hurry.notified() => {}
            }
            self.beat().await;
        }
    }

    /// Writes what is due.
    async fn beat(&self) {
        let timing = &self.shared.timing;
        let due: Vec<_> = self
            .shared
            .running
            .all()
            .into_iter()
            .filter(|job| {
                let pulse = job.pulse();
                let since = pulse.flushed_at.elapsed();
                let reported = pulse.pending.is_some() && since >= timing.flush_every;
                let kept_alive = job.keepalive && since >= timing.keepalive_every.min(job.stale_after / 3);
                !job.is_lost() && (reported || kept_alive)
            })
            .collect();
        for jobs in due.chunks(WRITES_MAX) {
            if let Err(error) = self.write(jobs).await {
                tracing::warn!(%error, jobs = jobs.len(), "progress was not written; trying again");
            }
        }
    }

    /// Writes what waits of one job, whether or not it is due.
    pub(crate) async fn flush(&self, job: &Arc<RunningJob>) {
        if job.pulse().pending.is_some()
            && let Err(error) = self.write(std::slice::from_ref(job)).await
        {
            tracing::warn!(%error, job = %job.key.job, "the last progress was not written");
        }
    }

    async fn write(&self, jobs: &[Arc<RunningJob>]) -> Result<(), StoreError> {
        let sent_at = Instant::now();
        let writes: Vec<_> = jobs
            .iter()
            .map(|job| {
                let mut pulse = job.pulse();
                pulse.flushed_at = sent_at;
                let empty = ProgressWrite {
                    key: job.key,
                    stage: None,
                    percent: None,
                    message: None,
                    checkpoint: None,
                };
                pulse.pending.take().unwrap_or(empty)
            })
            .collect();
        let answers = match self.shared.store.progress(&writes).await {
            Ok(answers) => answers,
            Err(error) => {
                for (job, write) in jobs.iter().zip(writes) {
                    job.unavailable.store(error.is_unavailable(), std::sync::atomic::Ordering::Release);
                    // What was reported since is newer.
                    let newer = job.pulse().pending.take();
                    Self::report(job, write);
                    if let Some(newer) = newer {
                        Self::report(job, newer);
                    }
                }
                return Err(error);
            }
        };
        let mut missing = Vec::new();
        for (job, answer) in jobs.iter().zip(answers) {
            match answer {
                Some(cancel_requested) => {
                    job.written(sent_at);
                    if cancel_requested {
                        job.cancel(CancelReason::User);
                    }
                    self.extend(job).await;
                }
                None => missing.push(job.clone()),
            }
        }
        if !missing.is_empty() {
            let keys: Vec<_> = missing.iter().map(|job| job.key).collect();
            let mine = self.shared.store.still_mine(&keys).await?;
            for (job, mine) in missing.iter().zip(mine) {
                // Completed by its own handler a moment ago is no loss.
                if !mine && !job.settled.load(std::sync::atomic::Ordering::Acquire) && self.still_runs(job) {
                    self.lost(job, "progress").await;
                }
            }
        }
        Ok(())
    }

    fn still_runs(&self, job: &Arc<RunningJob>) -> bool {
        self.shared.running.all().iter().any(|running| Arc::ptr_eq(running, job))
    }

    /// Keeps the queue from delivering a job again that shows signs of life, and only such a one.
    async fn extend(&self, job: &RunningJob) {
        {
            let mut pulse = job.pulse();
            if pulse.extended_at.elapsed() < self.shared.timing.ack_wait / 3 {
                return;
            }
            pulse.extended_at = Instant::now();
        }
        for receipt in job.receipts() {
            receipt.in_progress().await;
        }
    }

    /// This worker no longer owns the job: its handler is told, and the refused write is recorded.
    pub(crate) async fn lost(&self, job: &RunningJob, write: &'static str) {
        let (id, token) = (job.key.job, job.key.token);
        tracing::warn!(job = %id, %token, write, "a stale write was refused: the job was taken back");
        metrics::refused_write(write);
        job.cancel(CancelReason::Lost);
        let noted = self.shared.store.note_refused(&[(job.key, write.into())], &self.shared.worker_id).await;
        if let Err(error) = noted {
            tracing::warn!(%error, "the refused write was not recorded");
        }
    }
}
