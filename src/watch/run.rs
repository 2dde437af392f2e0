//! Hints: tells those who watch a job that it has changed.
//!
//! A process that watches the job asks for hints, or an operator does who sets the queue's events. Without them, a hint
//! costs one load of a flag. A hint follows the commit that it tells of.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;

use super::{
    hinter::Hinter,
    nats::{WATCHED_FOR, WatchRequest},
};
use crate::{
    job::{JobId, attempt::AttemptOutcome, claim::Claim, events::QueueEvents},
    nats::{Nats, Subject},
    store::ProgressWrite,
};

/// The most jobs that are watched at once, and the most watchers of one job. A watcher beyond them polls.
const JOBS_MAX: usize = 100_000;
const WATCHERS_MAX: usize = 64;

/// Sends hints about this worker's jobs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Hints(Arc<Shared>);

struct Shared {
    nats: Nats,
    hinter: Hinter,
    /// Whether anything may be asked for.
    is_asked: AtomicBool,
    /// What is published of each queue: a [`QueueEvents`].
    events: RwLock<HashMap<String, QueueEvents>>,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    jobs: HashMap<JobId, Vec<Watcher>>,
    pruned_at: Option<Instant>,
}

struct Watcher {
    subject: Subject,
    until: Instant,
}

impl Hints {
    /// For a worker of these queues.
    pub(crate) fn new<'q>(nats: &Nats, queues: impl Iterator<Item = &'q String>) -> Self {
        Self(Arc::new(Shared {
            nats: nats.clone(),
            hinter: Hinter::start(nats.clone()),
            is_asked: AtomicBool::new(false),
            events: RwLock::new(queues.map(|queue| (queue.clone(), QueueEvents::Nothing)).collect()),
            watched: Mutex::default(),
        }))
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what an operator wants to be published of a queue.
    pub(crate) fn set_events(&self, queue: &str, events: QueueEvents) {
        if self.events_of(queue) == events {
            return;
        }
        self.0.events.write().unwrap_or_else(PoisonError::into_inner).insert(queue.to_owned(), events);
        self.note_asked(&self.watched());
    }

    fn events_of(&self, queue: &str) -> QueueEvents {
        let events = self.0.events.read().unwrap_or_else(PoisonError::into_inner);
        events.get(queue).copied().unwrap_or_default()
    }

    /// Notes that a process watches these jobs. They need not be this worker's: it may claim them later.
    pub(crate) fn watch(&self, request: &WatchRequest) {
        let subject = self.0.nats.watcher_of(request);
        let now = Instant::now();
        let mut watched = self.watched();
        watched.prune(now);
        for job in &request.jobs {
            if watched.jobs.len() >= JOBS_MAX && !watched.jobs.contains_key(job) {
                continue;
            }
            let watchers = watched.jobs.entry(*job).or_default();
            let until = now + WATCHED_FOR;
            if let Some(known) = watchers.iter_mut().find(|watcher| watcher.subject == subject) {
                known.until = until;
            } else if watchers.len() < WATCHERS_MAX {
                watchers.push(Watcher { subject: subject.clone(), until });
            }
        }
        self.note_asked(&watched);
    }

    /// The caller holds `watched`, so that no later note is overtaken.
    fn note_asked(&self, watched: &Watched) {
        let events = self.0.events.read().unwrap_or_else(PoisonError::into_inner);
        let is_asked =
            !watched.jobs.is_empty() || events.values().any(|events| *events != QueueEvents::Nothing);
        self.0.is_asked.store(is_asked, Ordering::Release);
    }

    /// The attempt has begun.
    pub(crate) fn began(&self, claim: &Claim) {
        if self.0.is_asked.load(Ordering::Acquire) {
            self.tell(claim, None, || body(claim, "start", "processing", ""));
        }
    }

    /// A report is written.
    pub(crate) fn progressed(&self, claim: &Claim, write: &ProgressWrite) {
        if self.0.is_asked.load(Ordering::Acquire) {
            // A checkpoint is the handler's own.
            let said = ProgressWrite { checkpoint: None, ..write.clone() };
            let event = (QueueEvents::Progress, "progress");
            self.tell(claim, Some(event), || {
                let said = said.report().map(|said| format!(",{}", &said[1..said.len() - 1]));
                body(claim, "progress", "processing", &said.unwrap_or_default())
            });
        }
    }

    /// The end of the attempt is written.
    pub(crate) fn ended(&self, claim: &Claim, outcome: AttemptOutcome) {
        if self.0.is_asked.load(Ordering::Acquire) {
            match outcome {
                AttemptOutcome::Completed | AttemptOutcome::Failed | AttemptOutcome::Cancelled => {
                    let event = (QueueEvents::Ends, "end");
                    self.tell(claim, Some(event), || body(claim, "end", outcome.as_str(), ""));
                    let mut watched = self.watched();
                    if watched.jobs.remove(&claim.key.job).is_some() {
                        self.note_asked(&watched);
                    }
                }
                _ => self.tell(claim, None, || body(claim, "retry", "queued", "")),
            }
        }
    }

    /// Tells the job's watchers, and the subscribers of its queue if that publishes at least these events.
    fn tell(&self, claim: &Claim, event: Option<(QueueEvents, &str)>, body: impl FnOnce() -> Bytes) {
        let now = Instant::now();
        let mut subjects: Vec<_> = {
            let mut watched = self.watched();
            // Most watched jobs are another worker's: they are forgotten here by time.
            if watched.prune(now) {
                self.note_asked(&watched);
            }
            let watchers = watched.jobs.get(&claim.key.job).into_iter().flatten();
            watchers.filter(|watcher| watcher.until > now).map(|watcher| watcher.subject.clone()).collect()
        };
        if let Some((least, event)) = event
            && self.events_of(&claim.queue) >= least
        {
            subjects.push(self.0.nats.event_subject(event, &claim.queue, &claim.kind));
        }
        if subjects.is_empty() {
            return;
        }
        let body = body();
        for subject in subjects {
            self.0.hinter.send(subject, body.clone());
        }
    }
}

impl Watched {
    /// Forgets what is over, now and then. Returns whether it did.
    fn prune(&mut self, now: Instant) -> bool {
        if self.pruned_at.is_some_and(|at| now - at <= WATCHED_FOR / 2) {
            return false;
        }
        self.pruned_at = Some(now);
        self.jobs.retain(|_, watchers| {
            watchers.retain(|watcher| watcher.until > now);
            !watchers.is_empty()
        });
        true
    }
}

/// The body of a hint. Names and statuses need no escapes; `more` is a part of a JSON object.
fn body(claim: &Claim, event: &str, status: &str, more: &str) -> Bytes {
    let (job, attempt) = (claim.key.job, claim.attempt);
    let Claim { queue, kind, .. } = claim;
    let names = format!(r#""event":"{event}","job_id":"{job}","queue":"{queue}","kind":"{kind}""#);
    format!(r#"{{{names},"status":"{status}","attempt":{attempt}{more}}}"#).into()
}
