//! Running: the jobs that this very process runs. A delivery of one of them is never run twice.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    job::{
        JobId,
        claim::{Claim, ClaimKey},
    },
    nats::Receipt,
    observe::metrics,
    run::threads::Thread,
    store::ProgressWrite,
};

/// For how long after an outage an error of the handler is put down to it.
const OUTAGE_REMEMBERED: Duration = Duration::from_secs(60);

/// Why a handler is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CancelReason {
    /// Somebody cancelled the job.
    User,
    /// This worker no longer owns the job, or could not write to Postgres for so long that it must assume
    /// so: another may be running it.
    Lost,
    /// It ran longer than its kind allows.
    Timeout,
    /// The worker stops; the job will run again elsewhere.
    Shutdown,
}

impl fmt::Display for CancelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "the job was cancelled",
            Self::Lost => "this worker no longer owns the job",
            Self::Timeout => "the job ran longer than its kind allows",
            Self::Shutdown => "the worker stops",
        })
    }
}

/// What is to be written of a job, and when something last was.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// The latest report that was not written yet: a later one replaces it, field by field.
    pub(crate) pending: Option<ProgressWrite>,
    /// When the last successful write was sent: the moment that counts for staleness, from our side.
    pub(crate) written_at: Instant,
    /// When the last write was tried.
    pub(crate) flushed_at: Instant,
    /// When the messages' `ack_wait` was last extended.
    pub(crate) extended_at: Instant,
    /// When the database is next asked whether the job still is ours, if nothing is written until then.
    pub(crate) check_at: Instant,
    /// Since when writing has been tried without success.
    pub(crate) trying_since: Option<Instant>,
    /// Until when nothing is written, because a transaction of the handler's holds the row.
    pub(crate) held_until: Option<Instant>,
}

/// What becomes of a job whose worker is lost while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnCrash {
    /// It is tried again, as long as it has attempts left.
    #[default]
    Retry,
    /// It is a dead letter at once: for work that must not be done twice, and that cannot be made safe to
    /// repeat. A person looks at it, and redrives it.
    DeadLetter,
}

impl OnCrash {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::DeadLetter => "dead_letter",
        }
    }
}

/// What a worker does with a running job when it could not write for 80 % of the job's `stale_after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnWriteLoss {
    /// The handler is cancelled, with [`CancelReason::Lost`]: others may take the job soon. When Postgres
    /// is back, and the job still is this worker's, it goes back to the queue, its attempt not charged.
    #[default]
    Cancel,
    /// The handler goes on. The job may then run twice at once; what it writes through its context does
    /// not, but what it does elsewhere may.
    KeepRunning,
}

/// How one kind's jobs are watched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) stale_after: Duration,
    /// How often tenure reports for the handler, if it does.
    pub(crate) keepalive: Option<Duration>,
    pub(crate) on_crash: OnCrash,
    pub(crate) on_write_loss: OnWriteLoss,
}

/// A job that runs here.
#[derive(Debug)]
pub(crate) struct RunningJob {
    pub(crate) key: ClaimKey,
    pub(crate) claim: Claim,
    pub(crate) rules: Rules,
    pub(crate) cancellation: CancellationToken,
    reason: Mutex<Option<CancelReason>>,
    /// This worker could not write for too long, and must assume that the job is another's.
    cut_off: AtomicBool,
    pub(crate) thread: Arc<Thread>,
    pulse: Mutex<Pulse>,
    /// Told of every successful write.
    pub(crate) writes: Notify,
    /// `None` once the attempt is being settled: what comes from then on is not ours to answer.
    messages: Mutex<Option<Vec<Message>>>,
    /// Ended by the handler itself, inside a transaction.
    pub(crate) settled: AtomicBool,
    /// The handler is committing the completion itself.
    pub(crate) completing: AtomicBool,
    /// Its last report is being written: no batch takes it along.
    pub(crate) last_words: AtomicBool,
    /// A refused write of this job is on record.
    pub(crate) refusal_noted: AtomicBool,
    /// It is told that a context of it was used after its end.
    pub(crate) outlived_noted: AtomicBool,
    /// When a call of the context found no database, if the last one did.
    unavailable_at: Mutex<Option<Instant>>,
    /// Of the span of the attempt, for what is logged about it elsewhere. Not the span itself: it ends with the
    /// attempt, whoever keeps a context of the job.
    pub(crate) span: Option<tracing::span::Id>,
}

impl RunningJob {
    pub(crate) fn new(claim: Claim, message: Message, rules: Rules, span: Option<tracing::span::Id>) -> Self {
        let now = Instant::now();
        let written_at = claim.sent_at;
        Self {
            key: claim.key,
            claim,
            rules,
            cancellation: CancellationToken::new(),
            reason: Mutex::new(None),
            cut_off: AtomicBool::new(false),
            thread: Arc::default(),
            pulse: Mutex::new(Pulse {
                pending: None,
                written_at,
                flushed_at: now,
                extended_at: now,
                check_at: now,
                trying_since: None,
                held_until: None,
            }),
            writes: Notify::new(),
            messages: Mutex::new(Some(vec![message])),
            settled: AtomicBool::new(false),
            completing: AtomicBool::new(false),
            last_words: AtomicBool::new(false),
            refusal_noted: AtomicBool::new(false),
            outlived_noted: AtomicBool::new(false),
            unavailable_at: Mutex::new(None),
            span,
        }
    }

    /// Asks the handler to stop. The first reason stays, except that a lost job is lost.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        {
            let mut first = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
            if first.is_none() || reason == CancelReason::Lost {
                *first = Some(reason);
            }
        }
        self.cancellation.cancel();
    }

    /// Asks the handler to stop because nothing could be written for too long.
    pub(crate) fn cut_off(&self) {
        self.cut_off.store(true, Ordering::Release);
        self.cancellation.cancel();
    }

    /// Whether nothing could be written for too long. The job may still be ours.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Acquire)
    }

    /// Why the handler was asked to stop, by whoever asked first.
    pub(crate) fn cancel_reason(&self) -> Option<CancelReason> {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the database said that the job is another's.
    pub(crate) fn is_lost(&self) -> bool {
        self.cancel_reason() == Some(CancelReason::Lost)
    }

    pub(crate) fn unavailable_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.unavailable_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call of the context has just found no database: what the handler says now is about that.
    pub(crate) fn met_an_outage(&self) -> bool {
        self.unavailable_at().is_some_and(|at| at.elapsed() < OUTAGE_REMEMBERED)
    }

    /// What the handler said last, if it waits to be written. A checkpoint is for a next attempt: it is left out.
    pub(crate) fn unwritten_report(&self) -> Option<ProgressWrite> {
        let pending = self.pulse().pending.clone()?;
        let report = ProgressWrite { checkpoint: None, ..pending };
        report.report().is_some().then_some(report)
    }

    pub(crate) fn pulse(&self) -> MutexGuard<'_, Pulse> {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a successful write that was sent at `sent_at`.
    pub(crate) fn written(&self, sent_at: Instant) {
        {
            let mut pulse = self.pulse();
            pulse.written_at = pulse.written_at.max(sent_at);
            pulse.trying_since = None;
        }
        self.writes.notify_waiters();
    }

    /// Reports a handler that has kept its thread for so long, once each time.
    pub(crate) fn report_blocked(&self, least: Duration) {
        let Some(blocked) = self.thread.blocked_for().filter(|blocked| *blocked >= least) else { return };
        if self.thread.report() {
            metrics::blocked(&self.claim.kind);
            tracing::warn!(parent: self.span.clone(), ?blocked,
                "a handler blocks its thread: it cannot be cancelled, and others may wait for it; \
                 use tokio::task::spawn_blocking for what does not await");
        }
    }

    fn messages(&self) -> MutexGuard<'_, Option<Vec<Message>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a newer delivery for the ack. One message has one receipt: its latest. `false`: too late,
    /// the attempt is being settled.
    pub(crate) fn keep(&self, message: Message) -> bool {
        let mut messages = self.messages();
        let Some(held) = messages.as_mut() else { return false };
        held.retain(|other| other.receipt.sequence != message.receipt.sequence);
        held.push(message);
        true
    }

    /// The receipts of the messages that stand behind this job.
    pub(crate) fn receipts(&self) -> Vec<Receipt> {
        self.messages().iter().flatten().map(|message| message.receipt.clone()).collect()
    }

    /// From here on the attempt is settled: no progress is written any more, and no delivery kept. In
    /// particular not that of the next attempt's ticket, which may come before our answer does.
    pub(crate) fn end(&self) -> Vec<Message> {
        self.messages().take().unwrap_or_default()
    }

    /// Whether the attempt is being settled, or was.
    pub(crate) fn is_ending(&self) -> bool {
        self.messages().is_none()
    }

    /// Whether this attempt itself has ended the job's row, or is about to: that it is gone says nothing of others.
    pub(crate) fn is_over(&self) -> bool {
        let ended_here = [&self.settled, &self.completing];
        self.is_ending() || ended_here.iter().any(|by_handler| by_handler.load(Ordering::Acquire))
    }
}

/// A message that stands behind a running job.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) receipt: Receipt,
    /// Of a ticket; a submission has none.
    pub(crate) dispatch: Option<i32>,
}

enum Entry {
    /// A claim is on its way; whether a cancellation was announced meanwhile.
    Claiming {
        cancelled: bool,
    },
    Running(Arc<RunningJob>),
}

/// What this process knows of a job that was delivered.
pub(crate) enum LocalJob {
    /// Nothing: the caller may claim it. The reservation is given back when dropped.
    Unknown(Reservation),
    /// Another delivery is being claimed right now.
    Claiming,
    /// It runs, and is ours.
    Running(Arc<RunningJob>),
    /// Its handler still runs, but the job is no longer ours.
    Ending,
}

/// The right to claim one job in this process.
pub(crate) struct Reservation {
    table: Running,
    job: JobId,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.table.lock().remove(&self.job);
    }
}

impl Reservation {
    /// The claim was won: other deliveries find it running from here on. Returns whether a cancellation
    /// was announced before that.
    pub(crate) fn run(&self, job: Arc<RunningJob>) -> bool {
        let before = self.table.lock().insert(self.job, Entry::Running(job.clone()));
        // After the insert: whoever stops everything either sees this job, or is seen here.
        if self.table.stopping.load(Ordering::SeqCst) {
            job.cancel(CancelReason::Shutdown);
        }
        matches!(before, Some(Entry::Claiming { cancelled: true }))
    }
}

/// The table of running jobs. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Running {
    jobs: Arc<Mutex<HashMap<JobId, Entry>>>,
    stopping: Arc<AtomicBool>,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Entry>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks a job up, and reserves it if nobody has it.
    pub(crate) fn reserve(&self, job: JobId) -> LocalJob {
        let mut jobs = self.lock();
        match jobs.get(&job) {
            None => {
                jobs.insert(job, Entry::Claiming { cancelled: false });
                LocalJob::Unknown(Reservation { table: self.clone(), job })
            }
            Some(Entry::Claiming { .. }) => LocalJob::Claiming,
            Some(Entry::Running(running)) if running.is_lost() || running.is_ending() => LocalJob::Ending,
            Some(Entry::Running(running)) => LocalJob::Running(running.clone()),
        }
    }

    /// Those of these jobs that run here. One that is just being claimed is marked.
    pub(crate) fn announce_cancelled(&self, ids: &[JobId]) -> Vec<Arc<RunningJob>> {
        let mut jobs = self.lock();
        let mut found = Vec::new();
        for id in ids {
            match jobs.get_mut(id) {
                None => {}
                Some(Entry::Claiming { cancelled }) => *cancelled = true,
                Some(Entry::Running(job)) => found.push(job.clone()),
            }
        }
        found
    }

    /// Asks every job to stop, and every one that comes from now on. Returns how many there are.
    pub(crate) fn stop_all(&self) -> usize {
        self.stopping.store(true, Ordering::SeqCst);
        let all = self.all();
        for job in &all {
            job.cancel(CancelReason::Shutdown);
        }
        all.len()
    }

    /// Every running job, in order of id.
    pub(crate) fn all(&self) -> Vec<Arc<RunningJob>> {
        let mut all: Vec<_> = self
            .lock()
            .values()
            .filter_map(|entry| match entry {
                Entry::Claiming { .. } => None,
                Entry::Running(job) => Some(job.clone()),
            })
            .collect();
        all.sort_unstable_by_key(|job| job.key);
        all
    }
}

#[cfg(all(test, feature = "dev"))]
mod tests;
