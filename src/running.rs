//! Running: the jobs that this very process runs. A delivery of one of them is never run twice.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    claim::{Claim, ClaimKey},
    job::JobId,
    queue::Receipt,
    store::ProgressWrite,
};

/// Why a handler is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CancelReason {
    /// Somebody cancelled the job.
    User,
    /// This worker no longer owns the job: another may be running it. Nothing it writes will count.
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
    /// When the database was last asked whether the job still is ours.
    pub(crate) checked_at: Instant,
}

/// A job that runs here.
#[derive(Debug)]
pub(crate) struct RunningJob {
    pub(crate) key: ClaimKey,
    pub(crate) claim: Claim,
    pub(crate) stale_after: Duration,
    pub(crate) keepalive: bool,
    pub(crate) cancellation: CancellationToken,
    reason: Mutex<Option<CancelReason>>,
    pulse: Mutex<Pulse>,
    /// Counts the successful writes.
    pub(crate) writes: watch::Sender<u64>,
    /// `None` once the attempt is being settled: what comes from then on is not ours to answer.
    messages: Mutex<Option<Vec<Message>>>,
    /// Ended by the handler itself, inside a transaction.
    pub(crate) settled: AtomicBool,
    /// The handler is committing the completion itself.
    pub(crate) completing: AtomicBool,
    /// A refused write of this job is on record.
    pub(crate) refusal_noted: AtomicBool,
    /// The last call of the context found no database.
    pub(crate) unavailable: AtomicBool,
}

impl RunningJob {
    pub(crate) fn new(claim: Claim, message: Message, stale_after: Duration, keepalive: bool) -> Self {
        let now = Instant::now();
        Self {
            key: claim.key,
            claim,
            stale_after,
            keepalive,
            cancellation: CancellationToken::new(),
            reason: Mutex::new(None),
            pulse: Mutex::new(Pulse {
                pending: None,
                written_at: now,
                flushed_at: now,
                extended_at: now,
                checked_at: now,
            }),
            writes: watch::Sender::new(0),
            messages: Mutex::new(Some(vec![message])),
            settled: AtomicBool::new(false),
            completing: AtomicBool::new(false),
            refusal_noted: AtomicBool::new(false),
            unavailable: AtomicBool::new(false),
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

    pub(crate) fn cancel_reason(&self) -> Option<CancelReason> {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.cancel_reason() == Some(CancelReason::Lost)
    }

    pub(crate) fn pulse(&self) -> MutexGuard<'_, Pulse> {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a successful write that was sent at `sent_at`.
    pub(crate) fn written(&self, sent_at: Instant) {
        self.pulse().written_at = sent_at;
        self.writes.send_modify(|n| *n += 1);
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

    /// Whether the attempt is being settled.
    pub(crate) fn is_ending(&self) -> bool {
        self.messages().is_none()
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
    /// A claim is on its way.
    Claiming,
    Running(Arc<RunningJob>),
}

/// What this process knows of a job that was delivered.
pub(crate) enum Here {
    /// Nothing: the caller may claim it. The reservation is given back when dropped.
    No(Reservation),
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
    /// The claim was won: other deliveries find it running from here on.
    pub(crate) fn run(&self, job: Arc<RunningJob>) {
        self.table.lock().insert(self.job, Entry::Running(job));
    }
}

/// The table of running jobs. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Running {
    jobs: Arc<Mutex<HashMap<JobId, Entry>>>,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Entry>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks a job up, and reserves it if nobody has it.
    pub(crate) fn reserve(&self, job: JobId) -> Here {
        let mut jobs = self.lock();
        match jobs.get(&job) {
            None => {
                jobs.insert(job, Entry::Claiming);
                Here::No(Reservation { table: self.clone(), job })
            }
            Some(Entry::Claiming) => Here::Claiming,
            Some(Entry::Running(running)) if running.is_lost() || running.is_ending() => Here::Ending,
            Some(Entry::Running(running)) => Here::Running(running.clone()),
        }
    }

    /// Every running job, in order of id.
    pub(crate) fn all(&self) -> Vec<Arc<RunningJob>> {
        let mut all: Vec<_> = self
            .lock()
            .values()
            .filter_map(|entry| match entry {
                Entry::Claiming => None,
                Entry::Running(job) => Some(job.clone()),
            })
            .collect();
        all.sort_unstable_by_key(|job| job.key);
        all
    }
}
