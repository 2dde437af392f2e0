//! Running: the jobs that this process runs. It never runs a second delivery of one of them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::sync::{Notify, OnceCell};
use tokio_util::sync::CancellationToken;

use crate::{
    job::{
        JobId,
        claim::{Claim, ClaimKey},
    },
    logs::run::Tail,
    nats::Receipt,
    observe::metrics,
    run::threads::Thread,
    steps::store::Recorded,
    store::{Keeps, ProgressWrite},
};

/// For this long after an outage, the worker blames the outage for an error of the handler.
const OUTAGE_REMEMBERED: Duration = Duration::from_secs(60);

/// The reason why a handler should stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CancelReason {
    /// The job was cancelled.
    User,
    /// This worker no longer owns the job, or could not write to Postgres for so long that it must assume
    /// so. Another worker may be running the job.
    Lost,
    /// The job ran longer than the `timeout` of its kind.
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

/// The unwritten progress of a job, and the times of its writes.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// The latest report that is not written yet. A later report replaces it, field by field.
    pub(crate) pending: Option<ProgressWrite>,
    /// When the last successful write was sent. This worker measures staleness from here.
    pub(crate) written_at: Instant,
    /// When the last write was tried.
    pub(crate) flushed_at: Instant,
    /// When the messages' `ack_wait` was last extended.
    pub(crate) extended_at: Instant,
    /// When the worker next asks Postgres whether it still owns the job, if it writes nothing until then.
    pub(crate) check_at: Instant,
    /// A batch has taken the report, and is on its way. Another write, such as that of a fence, may end before it.
    pub(crate) is_sent: bool,
    /// The start of the current series of failed writes.
    pub(crate) trying_since: Option<Instant>,
    /// The end of the pause in writes while a transaction of the handler holds the row.
    pub(crate) held_until: Option<Instant>,
}

/// The outcome of a job whose worker is lost while the job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnCrash {
    /// Recovery resets the job, as long as it has attempts left.
    #[default]
    Retry,
    /// The job becomes a dead letter at once. For work that must not run twice and cannot be made safe to
    /// repeat: a person looks at the job, and redrives it.
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

/// The worker's reaction when it could not write a running job for 80 % of the job's `stale_after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnWriteLoss {
    /// The worker cancels the handler with [`CancelReason::Lost`], because another worker may reset the job soon.
    /// When Postgres is back and this worker still owns the job, it releases the job: the attempt is not charged.
    #[default]
    Cancel,
    /// The handler goes on. The job may then run twice at once. Fencing refuses its stale writes through the
    /// context, but its effects elsewhere may happen twice.
    KeepRunning,
}

/// The rules by which a worker watches the jobs of one kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) stale_after: Duration,
    /// The interval of the heartbeats that tenure sends for the handler. `None`: it sends none.
    pub(crate) keepalive: Option<Duration>,
    pub(crate) on_crash: OnCrash,
    pub(crate) on_write_loss: OnWriteLoss,
    /// Nothing stays of a job that completes.
    pub(crate) no_history: bool,
    /// Jobs of this kind run in batches: see `batches`.
    pub(crate) halves: bool,
}

impl Rules {
    /// The route of a job whose worker is lost while the job runs, as a claim says it to `end_attempt.sql`.
    pub(crate) const fn on_crash(&self) -> &'static str {
        match self.on_crash {
            OnCrash::Retry if self.halves => "halve",
            on_crash => on_crash.as_str(),
        }
    }
}

/// The steps of a job that an attempt runs.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// What earlier attempts have recorded, and when it was read: at the first step.
    pub(crate) recorded: OnceCell<(Instant, HashMap<String, Recorded>)>,
    /// The names that are in use, or recorded, in this attempt.
    pub(crate) called: Mutex<HashSet<String>>,
    /// The handler is called once more in this attempt: what it has recorded is to be read, each time anew.
    pub(crate) is_repeated: AtomicBool,
}

impl Steps {
    /// Lets the handler call its steps once more in this attempt, as a batch does that is called again in halves.
    pub(crate) fn repeat(&self) {
        self.is_repeated.store(true, Ordering::Release);
        self.called.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The recorded steps that the handler has not called. In order.
    pub(crate) fn uncalled(&self) -> Vec<String> {
        let called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded = self.recorded.get().into_iter().flat_map(|(_, recorded)| recorded);
        let steps = recorded.filter(|(name, what)| **what != Recorded::Other && !called.contains(*name));
        let mut names: Vec<_> = steps.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }
}

/// A job that runs here.
#[derive(Debug)]
pub(crate) struct RunningJob {
    pub(crate) key: ClaimKey,
    pub(crate) claim: Claim,
    pub(crate) rules: Rules,
    pub(crate) cancellation: CancellationToken,
    reason: Mutex<Option<CancelReason>>,
    /// This worker could not write for too long, and must assume that another worker owns the job.
    cut_off: AtomicBool,
    pub(crate) thread: Arc<Thread>,
    pulse: Mutex<Pulse>,
    /// Notified of every successful write.
    pub(crate) writes: Notify,
    /// `None` once the attempt is being settled: this attempt does not answer messages that arrive later.
    messages: Mutex<Option<Vec<Message>>>,
    /// The handler has completed the job itself, in its own transaction.
    pub(crate) settled: AtomicBool,
    /// The handler is committing the completion itself.
    pub(crate) completing: AtomicBool,
    /// This attempt may have recorded effects.
    pub(crate) has_effects: AtomicBool,
    /// The steps of the job, as far as this attempt knows them.
    pub(crate) steps: Steps,
    /// The jobs before this one that count as failed in this attempt, by their places: see `groups::run`.
    pub(crate) failed_before: OnceLock<BTreeMap<i64, JobId>>,
    /// What the attempt has printed.
    pub(crate) log: Tail,
    /// The handler knows its claim: it, or a program that it runs, may complete the job by `tenure.complete`.
    pub(crate) knows_claim: AtomicBool,
    /// `flush` or the completion writes the last report: no batch includes the job.
    pub(crate) last_words: AtomicBool,
    /// A refused write of this job is recorded.
    pub(crate) refusal_noted: AtomicBool,
    /// The log has a line about a use of its context after its end.
    pub(crate) outlived_noted: AtomicBool,
    /// When the last call of the context found no Postgres. `None`: that call found it.
    unavailable_at: Mutex<Option<Instant>>,
    /// The attempt's span, for log lines that other tasks write. Only its id: the span must end with the attempt,
    /// even if a task keeps a context of the job.
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
                is_sent: false,
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
            has_effects: AtomicBool::new(false),
            steps: Steps::default(),
            failed_before: OnceLock::new(),
            log: Tail::default(),
            knows_claim: AtomicBool::new(false),
            last_words: AtomicBool::new(false),
            refusal_noted: AtomicBool::new(false),
            outlived_noted: AtomicBool::new(false),
            unavailable_at: Mutex::new(None),
            span,
        }
    }

    /// Asks the handler to stop. The first reason stays, except that [`CancelReason::Lost`] replaces any other.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        {
            let mut first = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
            if first.is_none() || reason == CancelReason::Lost {
                *first = Some(reason);
            }
        }
        self.cancellation.cancel();
    }

    /// Asks the handler to stop because no write succeeded for too long.
    pub(crate) fn cut_off(&self) {
        self.cut_off.store(true, Ordering::Release);
        self.cancellation.cancel();
    }

    /// Whether no write succeeded for too long. This worker may still own the job.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Acquire)
    }

    /// The reason why the handler should stop. `None`: it should not.
    pub(crate) fn cancel_reason(&self) -> Option<CancelReason> {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether Postgres said that this worker no longer owns the job.
    pub(crate) fn is_lost(&self) -> bool {
        self.cancel_reason() == Some(CancelReason::Lost)
    }

    pub(crate) fn unavailable_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.unavailable_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call of the context has just found no Postgres: the handler's error is about that.
    pub(crate) fn met_an_outage(&self) -> bool {
        self.unavailable_at().is_some_and(|at| at.elapsed() < OUTAGE_REMEMBERED)
    }

    /// Returns the handler's last report if it is not written yet, without the checkpoint, which is for a next
    /// attempt.
    pub(crate) fn unwritten_report(&self) -> Option<ProgressWrite> {
        let pending = self.pulse().pending.clone()?;
        let report = ProgressWrite { checkpoint: None, ..pending };
        report.report().is_some().then_some(report)
    }

    pub(crate) fn pulse(&self) -> MutexGuard<'_, Pulse> {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a successful write that was sent at `sent_at`.
    pub(crate) fn written(&self, sent_at: Instant) {
        {
            let mut pulse = self.pulse();
            pulse.written_at = pulse.written_at.max(sent_at);
            pulse.trying_since = None;
        }
        self.writes.notify_waiters();
    }

    /// Reports a handler that has kept its thread for `least`, once for each time that it blocks.
    pub(crate) fn report_blocked(&self, least: Duration) {
        let Some(blocked) = self.thread.blocked_for().filter(|blocked| *blocked >= least) else { return };
        if self.thread.report() {
            metrics::blocked(&self.claim.kind);
            tracing::warn!(parent: self.span.clone(), ?blocked,
                "a handler blocks its thread: it cannot be cancelled, and other handlers may wait; \
                 use tokio::task::spawn_blocking for code that does not await");
        }
    }

    fn messages(&self) -> MutexGuard<'_, Option<Vec<Message>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a newer delivery for the ack. Of each message the latest receipt stays. `false`: too late, the
    /// attempt is being settled.
    pub(crate) fn keep(&self, message: Message) -> bool {
        let mut messages = self.messages();
        let Some(held) = messages.as_mut() else { return false };
        held.retain(|other| other.receipt.sequence != message.receipt.sequence);
        held.push(message);
        true
    }

    /// The receipts of this job's messages.
    pub(crate) fn receipts(&self) -> Vec<Receipt> {
        self.messages().iter().flatten().map(|message| message.receipt.clone()).collect()
    }

    /// Begins to settle the attempt: from here on it writes no progress and keeps no delivery. The ticket of the
    /// next attempt may arrive before Postgres answers, and this attempt must not keep it.
    pub(crate) fn end(&self) -> Vec<Message> {
        self.messages().take().unwrap_or_default()
    }

    /// What stays of the job when this attempt completes it. Ask once the attempt is ending: from then on it records no
    /// effect.
    pub(crate) fn keeps(&self) -> Keeps {
        if !self.rules.no_history {
            Keeps::History
        } else if self.key.token.0 > 1 || self.has_effects.load(Ordering::Acquire) || self.log.was_written() {
            Keeps::NothingWithTraces
        } else {
            Keeps::Nothing
        }
    }

    /// Whether the attempt is being settled, or was.
    pub(crate) fn is_ending(&self) -> bool {
        self.messages().is_none()
    }

    /// Whether this attempt has ended the job's row itself, or is about to. Then a missing row means no other owner.
    pub(crate) fn is_over(&self) -> bool {
        let ended_here = [&self.settled, &self.completing];
        self.is_ending() || ended_here.iter().any(|by_handler| by_handler.load(Ordering::Acquire))
    }
}

/// A message of a running job.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) receipt: Receipt,
    /// `None` for a submission.
    pub(crate) dispatch: Option<i32>,
}

enum Entry {
    /// A claim is on its way. `cancelled`: a cancellation was announced meanwhile.
    Claiming {
        cancelled: bool,
    },
    Running(Arc<RunningJob>),
}

/// The state in this process of a job that was delivered.
pub(crate) enum LocalJob {
    /// The job is not here: the caller may claim it. Dropping the reservation frees the job.
    Unknown(Reservation),
    /// Another delivery is being claimed right now.
    Claiming,
    /// The job runs, and this worker owns it.
    Running(Arc<RunningJob>),
    /// The handler still runs, but this worker no longer owns the job.
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
    /// Enters a job whose claim was won: from here on other deliveries find it running. Returns whether a
    /// cancellation was announced before that.
    pub(crate) fn run(&self, job: Arc<RunningJob>) -> bool {
        let before = self.table.lock().insert(self.job, Entry::Running(job.clone()));
        // After the insert: `stop_all` either sees this job, or is seen here.
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

    /// Looks a job up, and reserves it if this process does not have it.
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

    /// Returns those of these jobs that run here, and marks those that are being claimed.
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

    /// Asks every job to stop, and every job that starts from now on. Returns how many run.
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

#[cfg(test)]
mod tests;
