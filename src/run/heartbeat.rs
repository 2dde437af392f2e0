//! Heartbeat: writes progress, which is the sign of life.
//!
//! ```text
//! progress ──► latest wins, a job ──► one statement for all jobs ──► the message's ack_wait, extended
//!                                          └──► a row that is missing, and has another owner: lost
//! ```
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_thousand_reports_are_a_few_writes_and_the_last_one_stands`
//! - `a_woken_worker_whose_job_was_taken_can_write_nothing`

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use tokio::{
    sync::{Mutex, Notify},
    time::{MissedTickBehavior, interval},
};
use tracing::Span;

use crate::{
    config::Timing,
    observe::{metrics, repeats},
    run::running::{CancelReason, OnWriteLoss, Running, RunningJob},
    store::{
        ProgressWrite, Store, StoreError,
        batch::{ITEMS_MAX, fitting, halve},
    },
    watch::run::Hints,
};

/// The most tries of an attempt's last progress write, and the pause between them.
const FLUSHES_MAX: usize = 10;
const FLUSH_AGAIN: Duration = Duration::from_millis(500);
/// The log message of a refused write.
const REFUSED: &str = "Postgres refused a stale write: this worker no longer owns the job";
/// The deadline for extending the messages of one batch.
const EXTENDED_WITHIN: Duration = Duration::from_millis(500);
/// The interval at which the watch checks the running jobs.
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// The watch reports a handler that keeps its thread for longer.
const BLOCKED_AFTER: Duration = Duration::from_secs(1);
/// The interval at which the worker asks Postgres about jobs that write nothing.
const LOOK_EVERY: Duration = Duration::from_secs(5);

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
    /// `None`: those who watch are not told.
    hints: Option<Hints>,
    hurry: Notify,
    /// One statement at a time, or an older report could overtake a newer one.
    turn: Mutex<()>,
}

impl Heartbeat {
    pub(crate) fn new(
        store: Store,
        running: Running,
        timing: Timing,
        worker_id: String,
        hints: Option<Hints>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                store,
                running,
                timing,
                worker_id,
                hints,
                hurry: Notify::new(),
                turn: Mutex::new(()),
            }),
        }
    }

    /// Queues a report. A later one replaces it, field by field.
    pub(crate) fn report(job: &RunningJob, write: ProgressWrite) {
        let mut pulse = job.pulse();
        pulse.pending = Some(match pulse.pending.take() {
            None => write,
            Some(earlier) => merged(earlier, write),
        });
    }

    /// Triggers a write of the waiting reports now.
    pub(crate) fn hurry(&self) {
        self.shared.hurry.notify_one();
    }

    /// Writes progress, and watches for jobs whose writes fail or whose handlers block. Never returns; drop it to
    /// end it.
    pub(crate) async fn run(self) {
        tokio::join!(self.write_for_ever(), self.watch());
    }

    async fn write_for_ever(&self) {
        // Two or three statements a second write all jobs that report all the time.
        let every = self.shared.timing.flush_every.mul_f64(0.4);
        let mut ticks = interval(every.clamp(Duration::from_millis(10), Duration::from_millis(400)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.shared.hurry.notified() => {}
            }
            self.beat().await;
        }
    }

    /// A loop apart from the writes, which may hang.
    async fn watch(&self) {
        let mut ticks = interval(WATCH_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looked_at = Instant::now();
        loop {
            ticks.tick().await;
            // A process that was frozen does not know yet how its last writes ended.
            let awake = looked_at.elapsed() < WATCH_EVERY * 4;
            looked_at = Instant::now();
            for job in self.shared.running.all() {
                job.report_blocked(BLOCKED_AFTER);
                if awake && writes(&job) && cannot_be_written(&job) {
                    let silence = job.pulse().written_at.elapsed();
                    tracing::warn!(parent: job.span.clone(), ?silence,
                        "no write succeeded for too long; the handler is cancelled before other workers reset its job");
                    metrics::cut_off(&job.claim.kind);
                    job.cut_off();
                }
            }
        }
    }

    /// Writes the reports that are due, and asks Postgres about the jobs that have written nothing for long.
    async fn beat(&self) {
        let timing = &self.shared.timing;
        let running: Vec<_> = self.shared.running.all().into_iter().filter(|job| writes(job)).collect();
        let due: Vec<_> = running
            .iter()
            .filter(|job| {
                let pulse = job.pulse();
                let since = pulse.flushed_at.elapsed();
                let reported = pulse.pending.is_some() && since >= timing.flush_every;
                reported || job.rules.keepalive.is_some_and(|every| since >= every)
            })
            .cloned()
            .collect();
        let now = Instant::now();
        for job in &due {
            // From here on it counts as tried, even if it is not sent.
            job.pulse().trying_since.get_or_insert(now);
        }
        let mut rest = due.as_slice();
        while !rest.is_empty() {
            let (jobs, later) = rest.split_at(fitting(rest.iter().map(pending_bytes)));
            rest = later;
            if let Err(error) = self.write(jobs).await
                && let Some(left_out) = repeats::tell("progress", &error)
            {
                tracing::warn!(%error, jobs = jobs.len(), left_out, "could not write progress; the worker will retry");
            }
        }
        // A handler that reports nothing does not learn from its own writes that its job was reset or cancelled.
        let silent: Vec<_> = running
            .into_iter()
            .filter(|job| {
                let every = look_every(job);
                let mut pulse = job.pulse();
                let due = pulse.written_at.elapsed() > every && pulse.check_at <= Instant::now();
                if due {
                    let now = Instant::now();
                    pulse.check_at = now + every;
                    pulse.trying_since.get_or_insert(now);
                }
                due
            })
            .collect();
        for jobs in silent.chunks(ITEMS_MAX) {
            if let Err(error) = self.check(jobs, None).await {
                tracing::debug!(%error, "ownership check of silent jobs failed; the worker will retry");
            }
        }
    }

    /// Stops the progress writes of a job for `for_long`. When this returns, no write is on its way.
    pub(crate) async fn pause(&self, job: &RunningJob, for_long: Duration) {
        let _turn = self.shared.turn.lock().await;
        job.pulse().held_until = Some(Instant::now() + for_long);
    }

    /// Returns the unwritten report of a completed job, for its completion to include. Waits for a report that is on
    /// its way, or the completion might overtake it.
    pub(crate) async fn last_report(&self, job: &RunningJob) -> Option<ProgressWrite> {
        job.last_words.store(true, Ordering::Release);
        let is_on_its_way = {
            let pulse = job.pulse();
            pulse.is_sent || pulse.trying_since.is_some()
        };
        if is_on_its_way {
            drop(self.shared.turn.lock().await);
        }
        job.unwritten_report()
    }

    /// Writes the waiting report of one job, due or not. For a checkpoint, which the next attempt needs, it retries
    /// for as long as Postgres is away, as does the write of the attempt's end, which comes next. Other reports are
    /// not worth that.
    pub(crate) async fn flush(&self, job: &Arc<RunningJob>) {
        job.last_words.store(true, Ordering::Release);
        let mut refused = 0;
        let mut locked = 0;
        while !job.is_lost() {
            let sent = {
                // A batch that holds a report of this job ends by its own deadlines, and puts the report back.
                let _turn = self.shared.turn.lock().await;
                if job.pulse().pending.is_none() {
                    return;
                }
                self.send(std::slice::from_ref(job)).await
            };
            let holds_a_checkpoint =
                job.pulse().pending.as_ref().is_some_and(|write| write.checkpoint.is_some());
            match sent {
                Ok((sent_at, answers)) if answers.first().copied().flatten().is_some() => {
                    job.written(sent_at);
                    return;
                }
                // Still this worker's, but locked: once more. Else settle will find out.
                Ok(_) => {
                    locked += 1;
                    let not_ours =
                        matches!(self.shared.store.still_mine(&[job.key]).await.as_deref(), Ok([None]));
                    if not_ours || locked == FLUSHES_MAX && !holds_a_checkpoint {
                        return;
                    }
                }
                Err(error) => {
                    if let Some(left_out) = repeats::tell("last progress", &error) {
                        tracing::warn!(%error, left_out, "could not write an attempt's last progress");
                    }
                    refused += usize::from(!error.is_unavailable());
                    if refused == FLUSHES_MAX || !holds_a_checkpoint {
                        tracing::error!(
                            "could not write the last progress of an attempt; the report is lost"
                        );
                        return;
                    }
                }
            }
            tokio::time::sleep(FLUSH_AGAIN).await;
        }
    }

    async fn write(&self, jobs: &[Arc<RunningJob>]) -> Result<(), StoreError> {
        let (jobs, sent_at, answers) = {
            let _turn = self.shared.turn.lock().await;
            // A handler's transaction may have begun to hold a row during the wait.
            let jobs: Vec<_> = jobs.iter().filter(|job| writes(job)).cloned().collect();
            if jobs.is_empty() {
                return Ok(());
            }
            let (sent_at, answers) = self.send(&jobs).await?;
            (jobs, sent_at, answers)
        };
        let mut missing = Vec::new();
        let mut alive = Vec::new();
        for (job, answer) in jobs.iter().zip(answers) {
            match answer {
                Some(cancel_requested) => {
                    job.written(sent_at);
                    if cancel_requested {
                        job.cancel(CancelReason::User);
                    }
                    alive.push(job);
                }
                None => missing.push(job.clone()),
            }
        }
        // A NATS that accepts nothing must not stop the heartbeats.
        drop(tokio::time::timeout(EXTENDED_WITHIN, self.extend(&alive)).await);
        self.check(&missing, Some("progress")).await
    }

    /// Sends the waiting reports in one statement. The caller holds `turn`.
    async fn send(&self, jobs: &[Arc<RunningJob>]) -> Result<(Instant, Vec<Option<bool>>), StoreError> {
        let sent_at = Instant::now();
        let take = |job: &Arc<RunningJob>| {
            let mut pulse = job.pulse();
            pulse.flushed_at = sent_at;
            pulse.trying_since.get_or_insert(sent_at);
            pulse.is_sent = true;
            pulse.pending.take().unwrap_or_else(|| nothing(job))
        };
        let mut unsent = Unsent { jobs, batch: jobs.iter().map(take).collect() };
        crate::observe::metrics::batch("progress", unsent.batch.len());
        let answer = self.shared.store.progress(&unsent.batch).await;
        for job in jobs {
            job.pulse().is_sent = false;
        }
        let batch = std::mem::take(&mut unsent.batch);
        match answer {
            Ok(answers) => {
                for ((job, write), answer) in jobs.iter().zip(batch).zip(&answers) {
                    // Not written: this worker no longer owns the job, or its row was locked.
                    if answer.is_none() {
                        put_back(job, write);
                    } else if let Some(hints) = &self.shared.hints {
                        hints.progressed(&job.claim, &write);
                    }
                }
                Ok((sent_at, answers))
            }
            Err(error) if error.is_of_one_row() => Ok((sent_at, self.send_in_parts(jobs, batch).await?)),
            Err(error) => {
                for (job, earlier) in jobs.iter().zip(batch) {
                    put_back(job, earlier);
                }
                Err(error)
            }
        }
    }

    /// Sends reports of which Postgres refuses one: the others are still signs of life. If it refuses the report's
    /// values, and not the row, so is a write without them.
    async fn send_in_parts(
        &self,
        jobs: &[Arc<RunningJob>],
        batch: Vec<ProgressWrite>,
    ) -> Result<Vec<Option<bool>>, StoreError> {
        let mut answers: Vec<Option<bool>> = Vec::with_capacity(batch.len());
        let mut parts = vec![batch];
        while let Some(part) = parts.pop() {
            let jobs = &jobs[answers.len()..];
            let mut answer = self.shared.store.progress(&part).await;
            if let ([_], Err(error)) = (part.as_slice(), &answer)
                && error.is_the_datas_fault()
            {
                tracing::error!(parent: jobs[0].span.clone(), %error,
                    "Postgres refused a progress report; the report is dropped");
                answer = self.shared.store.progress(&[nothing(&jobs[0])]).await;
            }
            match answer {
                Err(error) if error.is_of_one_row() && part.len() > 1 => halve(part, &mut parts),
                Err(error) if !error.is_of_one_row() => {
                    let unsent = part.into_iter().chain(parts.into_iter().rev().flatten());
                    jobs.iter().zip(unsent).for_each(|(job, write)| put_back(job, write));
                    return Err(error);
                }
                answer => {
                    // Of a row that cannot be written, the report waits, and the job is cut off in time.
                    let written = answer.unwrap_or_else(|_| vec![None]);
                    for ((job, write), answer) in jobs.iter().zip(part).zip(&written) {
                        if answer.is_none() {
                            put_back(job, write);
                        }
                    }
                    answers.extend(written);
                }
            }
        }
        Ok(answers)
    }

    /// Asks Postgres which of these jobs this worker still owns, and cancels the handlers of the others. `write` names
    /// the write that found no row.
    async fn check(&self, jobs: &[Arc<RunningJob>], write: Option<&'static str>) -> Result<(), StoreError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = jobs.iter().map(|job| job.key).collect();
        let mine = self.shared.store.still_mine(&keys).await?;
        for (job, mine) in jobs.iter().zip(mine) {
            if let Some(cancel_requested) = mine {
                if cancel_requested {
                    job.cancel(CancelReason::User);
                }
                if write.is_none() {
                    let mut pulse = job.pulse();
                    // Postgres answers, and there was nothing to write.
                    pulse.trying_since = pulse.trying_since.filter(|_| pulse.pending.is_some());
                }
                continue;
            }
            // The attempt's own end removes the row: settle will know.
            if !writes(job) || self.was_completed(job).await? {
                continue;
            }
            if let Some(write) = write {
                self.lost(job, write).await;
            } else {
                tracing::warn!(parent: job.span.clone(),
                    "this worker no longer owns the job; its handler is cancelled");
                job.cancel(CancelReason::Lost);
            }
        }
        Ok(())
    }

    /// Whether the handler of a job whose row is gone may go on: it, or the program that it runs, has completed the job
    /// by SQL, or a standby answers, which does not know.
    async fn was_completed(&self, job: &RunningJob) -> Result<bool, StoreError> {
        if !job.knows_claim.load(Ordering::Acquire) {
            return Ok(false);
        }
        let was_completed = self.shared.store.was_completed(&job.key, !job.rules.no_history).await?;
        if was_completed == Some(true) {
            tracing::debug!(parent: job.span.clone(), "the job was completed by SQL; its handler goes on");
            job.settled.store(true, Ordering::Release);
        }
        Ok(was_completed != Some(false))
    }

    /// Checks jobs that an announcement names: whether they were cancelled, or have another owner.
    pub(crate) async fn look_after(&self, jobs: &[Arc<RunningJob>]) {
        for jobs in jobs.chunks(ITEMS_MAX) {
            if let Err(error) = self.check(jobs, None).await
                && let Some(left_out) = repeats::tell("look after", &error)
            {
                tracing::warn!(%error, left_out,
                    "could not look for announced cancellations; the next progress write will find them");
            }
        }
    }

    /// Whether this worker still owns a job that runs here. If not, the handler is cancelled.
    pub(crate) async fn is_ours(&self, job: &Arc<RunningJob>) -> Result<bool, StoreError> {
        self.check(std::slice::from_ref(job), None).await?;
        Ok(!job.is_lost())
    }

    /// Keeps NATS from redelivering jobs that show a sign of life, and only those.
    async fn extend(&self, jobs: &[&Arc<RunningJob>]) {
        for job in jobs {
            {
                let mut pulse = job.pulse();
                if pulse.extended_at.elapsed() < self.shared.timing.ack_wait / 3 {
                    continue;
                }
                pulse.extended_at = Instant::now();
            }
            for receipt in job.receipts() {
                receipt.in_progress().await;
            }
        }
    }

    /// Cancels the handler of a job that this worker no longer owns, and records the refused write, once per job.
    pub(crate) async fn lost(&self, job: &RunningJob, write: &'static str) {
        job.cancel(CancelReason::Lost);
        if job.refusal_noted.swap(true, Ordering::AcqRel) {
            return;
        }
        // The span ends with the attempt; a task may use the context later.
        if !job.is_ending() || Span::current().id() == job.span {
            tracing::warn!(parent: job.span.clone(), write, "{REFUSED}");
        } else {
            let worker = &self.shared.worker_id;
            tracing::warn!(parent: None, job = %job.key.job, token = job.key.token.0, worker, write, "{REFUSED}");
        }
        metrics::refused_write(write);
        let (store, worker, key) = (self.shared.store.clone(), self.shared.worker_id.clone(), job.key);
        // In a task of its own: the handler that meets the refusal is dropped at the end of its grace.
        let note = async move {
            if let Err(error) = store.note_refused(&[(key, write.into())], &worker).await {
                tracing::warn!(parent: None, job = %key.job, token = key.token.0, worker, %error,
                    "could not record a refused write in tenure.recovery_events");
            }
        };
        // A note that panics ends here.
        tokio::spawn(note).await.ok();
    }

    /// Logs a call of a context whose attempt has ended here, once per job. It is not a stale write.
    pub(crate) fn outlived(&self, job: &RunningJob, call: &'static str) {
        if !job.outlived_noted.swap(true, Ordering::AcqRel) {
            tracing::warn!(parent: None, job = %job.key.job, token = job.key.token.0,
                worker = self.shared.worker_id, call,
                "a task used the context after its job had ended; nothing was written. \
                 Await such tasks before the handler returns");
        }
    }
}

/// The interval of checks of a silent job: short enough for a cancellation to arrive without NATS.
fn look_every(job: &RunningJob) -> Duration {
    LOOK_EVERY.min(job.rules.stale_after / 6)
}

/// Whether the worker may still write a job's progress.
fn writes(job: &RunningJob) -> bool {
    let done = job.settled.load(Ordering::Acquire) || job.completing.load(Ordering::Acquire);
    let held = job.pulse().held_until.is_some_and(|until| until > Instant::now());
    let flushed = job.last_words.load(Ordering::Acquire);
    !job.is_lost() && !job.is_ending() && !done && !held && !flushed
}

/// Whether all writes of a job have failed for 80 % of its `stale_after`. `false` for a handler that reports nothing:
/// no write was tried.
fn cannot_be_written(job: &RunningJob) -> bool {
    if job.is_cut_off() || job.rules.on_write_loss == OnWriteLoss::KeepRunning {
        return false;
    }
    let pulse = job.pulse();
    let stale_after = job.rules.stale_after;
    // One failed check is not enough.
    let long = (stale_after / 10).max(look_every(job) * 6 / 5);
    let tried = pulse.trying_since.is_some_and(|since| since.elapsed() > long);
    tried && pulse.written_at.elapsed() > stale_after.mul_f64(0.8)
}

/// Merges two reports: the earlier one fills the fields that the later one leaves empty.
fn merged(earlier: ProgressWrite, later: ProgressWrite) -> ProgressWrite {
    ProgressWrite {
        key: later.key,
        stage: later.stage.or(earlier.stage),
        percent: later.percent.or(earlier.percent),
        message: later.message.or(earlier.message),
        checkpoint: later.checkpoint.or(earlier.checkpoint),
    }
}

/// A sign of life without a report.
fn nothing(job: &RunningJob) -> ProgressWrite {
    ProgressWrite { key: job.key, stage: None, percent: None, message: None, checkpoint: None }
}

/// The bytes of a job's unwritten checkpoint, the only large part of a report.
fn pending_bytes(job: &Arc<RunningJob>) -> usize {
    let pulse = job.pulse();
    let checkpoint = pulse.pending.as_ref().and_then(|write| write.checkpoint.as_ref());
    checkpoint.map_or(0, String::len)
}

/// The reports of one statement. Dropped with any left, it puts them back: the call was cut off.
struct Unsent<'j> {
    jobs: &'j [Arc<RunningJob>],
    batch: Vec<ProgressWrite>,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        for (job, write) in self.jobs.iter().zip(self.batch.drain(..)) {
            put_back(job, write);
        }
    }
}

/// Puts an unwritten report back. Fields that were reported since stay.
fn put_back(job: &RunningJob, earlier: ProgressWrite) {
    let mut pulse = job.pulse();
    pulse.pending = Some(match pulse.pending.take() {
        None => earlier,
        Some(later) => merged(earlier, later),
    });
}

#[cfg(test)]
mod tests;
