//! Insert: the row first, then the message.
//!
//! Once the rows are committed, their first messages are sent and the caller has its answer, even while NATS is away.
//! If sending fails, or the process dies in between, the relay of any worker publishes.
//!
//! Not here: the calls that producers make (`client::enqueue`).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::{Duration, Instant},
};

use tokio::sync::Semaphore;

use crate::{
    codec::job::CodecError,
    enqueue::publish::Publications,
    job::{JobId, NameError},
    nats::{Prepared, Ticket},
    observe::{
        hooks::{EnqueueHooks, JobEnqueued},
        metrics,
    },
    proof::fault,
    store::{
        NewJob, PublishedBy, Store, StoreError,
        batch::{Batcher, halve},
    },
};

/// Why a job was not enqueued.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// The name of the queue or the kind is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The payload is not JSON that Postgres can hold.
    #[error("the payload cannot be stored: {0}")]
    Payload(String),
    /// The payload is too large.
    #[error(
        "the payload has {bytes} bytes, but at most {bytes_max} are allowed; \
         store it elsewhere and enqueue a reference, or raise TENURE_PAYLOAD_BYTES_MAX"
    )]
    TooLarge {
        /// The payload's size.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The queue takes no more jobs for now. Nothing was enqueued; try again later, or slow down.
    #[error(
        "queue {queue:?} is full: {queued} jobs wait, and {jobs} more would exceed its limit of {max_queued}; {}",
        advice(*jobs, *max_queued)
    )]
    QueueFull {
        /// The queue.
        queue: String,
        /// How many jobs were to be enqueued, all or none.
        jobs: u64,
        /// How many jobs wait in the queue, with the submissions that stand in the stream.
        queued: u64,
        /// How many jobs may wait in it.
        max_queued: u64,
    },
    /// A transaction that has not ended is about to take the unique key. Nothing was enqueued. Try again: once that
    /// transaction has ended, the answer is its job, or a new one.
    #[error(
        "unique key {key:?} of queue {queue:?}{} is being taken by a transaction that has not ended; try again, and \
         keep transactions that enqueue with a unique key short",
        or_others(*others)
    )]
    KeyBusy {
        /// The key's queue.
        queue: String,
        /// The key.
        key: String,
        /// How many other keys the call had: of several, Postgres does not say which is busy.
        others: usize,
    },
    /// The codec of the kind did not seal the payload. Nothing was enqueued.
    #[error("the payload cannot be sealed: {0}")]
    Codec(CodecError),
    /// A job names no lane, and its queue [takes no such job](crate::lanes::Lanes::required). Nothing was enqueued.
    #[error(
        "{0}; name one with `lane`, or in the job's type with `Job::options`, or let the queue take such jobs with \
         `tenure queues lanes`"
    )]
    LaneRequired(String),
    /// Another option is invalid.
    #[error("{what} is {value}, but must be {expected}")]
    Option {
        /// The option's name.
        what: &'static str,
        /// The given value.
        value: String,
        /// The values that it may have.
        expected: &'static str,
    },
    /// Postgres did not answer, or refused. With a unique key, try again; without one the job may exist already.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The key's holder cannot be seen from this transaction's snapshot. Roll back and try again.
    #[error("the unique key is held by a job that this transaction cannot see; roll back and try again")]
    KeyNotVisible,
}

impl EnqueueError {
    /// The error as callers hear it.
    pub(crate) fn said(self) -> Self {
        let lacks_a_lane = if let Self::Store(error) = &self { error.lacks_a_lane() } else { None };
        lacks_a_lane.map_or(self, Self::LaneRequired)
    }
}

fn or_others(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => ", or the other key of this call,".to_owned(),
        others => format!(", or one of the {others} other keys of this call,"),
    }
}

fn advice(jobs: u64, max_queued: u64) -> &'static str {
    if jobs > max_queued {
        "enqueue fewer at once, or raise its limit with `tenure queues limit`"
    } else {
        "try again later, or raise its limit with `tenure queues limit`"
    }
}

/// Whether an insert created its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Created {
    New,
    HeldBy(JobId),
}

/// How long a batch, and a part of one, waits for transactions that are about to take one of its keys.
const PATIENCE: Duration = Duration::from_millis(100);
const PATIENCE_OF_A_PART: Duration = Duration::from_millis(20);
/// How long a part waits once its batch has taken longer than [`NO_PATIENCE_AFTER`].
const NO_PATIENCE: Duration = Duration::from_millis(1);
const NO_PATIENCE_AFTER: Duration = Duration::from_millis(500);

/// The most held jobs that one enqueue releases; the relay goes on.
const RELEASED_AT_ONCE: i32 = 1_000;

/// How long a caller waits for such a transaction.
pub(crate) const BUSY_AFTER: Duration = Duration::from_secs(1);

/// Commits inserts of single jobs together. `None` publishes nothing: the jobs have their messages.
pub(crate) fn batcher(
    store: Store,
    publications: Option<Publications>,
    hooks: EnqueueHooks,
) -> Batcher<NewJob, Result<Created, EnqueueError>> {
    let bytes = |job: &NewJob| job.payload.len();
    Batcher::spawn_for_callers_that_return(bytes, move |jobs: Vec<NewJob>| {
        let (store, publications, hooks) = (store.clone(), publications.clone(), hooks.clone());
        async move { insert_each(&store, publications.as_ref(), &hooks, jobs).await }
    })
}

/// Inserts jobs that are independent of one another: an error of one job is the answer of that job alone.
async fn insert_each(
    store: &Store,
    publications: Option<&Publications>,
    hooks: &EnqueueHooks,
    jobs: Vec<NewJob>,
) -> Vec<Result<Created, EnqueueError>> {
    let began_at = Instant::now();
    let mut answers = Vec::with_capacity(jobs.len());
    let mut rest = vec![jobs];
    let mut busy: Option<(String, String)> = None;
    let mut patience = PATIENCE;
    while let Some(mut part) = rest.pop() {
        // One statement has waited for this key: of many callers with it, none waits again.
        if busy.is_some() && part.iter().all(|job| job.any_key() == busy) {
            answers.extend(part.iter().map(|job| Err(key_busy(std::slice::from_ref(job)))));
            continue;
        }
        match insert(store, publications, hooks, &mut part, patience).await {
            Ok(created) => answers.extend(created),
            // One job cannot be stored, or waits for a transaction; the others must not suffer for it.
            Err(error) if part.len() > 1 && may_be_of_one(&error) => {
                let is_late = began_at.elapsed() > NO_PATIENCE_AFTER;
                patience = if is_late { NO_PATIENCE } else { PATIENCE_OF_A_PART };
                halve(part, &mut rest);
            }
            Err(error) => {
                if matches!(error, EnqueueError::KeyBusy { .. }) {
                    busy = part.first().and_then(NewJob::any_key);
                }
                answers.extend(part.iter().map(|_| Err(error.clone())));
            }
        }
    }
    answers
}

fn may_be_of_one(error: &EnqueueError) -> bool {
    match error {
        EnqueueError::KeyBusy { .. } => true,
        EnqueueError::Store(error) => error.may_be_of_one_row(),
        _ => false,
    }
}

/// Returns the error for jobs of which one has a key that another transaction is about to take.
fn key_busy(jobs: &[NewJob]) -> EnqueueError {
    let mut keys = jobs.iter().filter_map(NewJob::any_key);
    let first = keys.next().unwrap_or_default();
    let others = keys.filter(|of| *of != first).collect::<HashSet<_>>().len();
    let (scope, key) = first;
    let queue = scope.split('/').next().unwrap_or_default().to_owned();
    EnqueueError::KeyBusy { queue, key, others }
}

/// How many callers wait at once for keys that another transaction is about to take: each holds a
/// connection, and tenure's other work needs some, too.
static WAITING: Semaphore = Semaphore::const_new(2);

/// Inserts jobs, all or none, and waits until `busy_at` for transactions that are about to take one of their keys.
/// `busy` is the answer of a batch that has waited for them already.
///
/// Cancel safe: the insert goes on in a task.
pub(crate) async fn insert_patiently(
    store: &Store,
    publications: &Publications,
    hooks: &EnqueueHooks,
    mut jobs: Vec<NewJob>,
    busy: Option<EnqueueError>,
    busy_at: Instant,
) -> Result<Vec<Result<Created, EnqueueError>>, EnqueueError> {
    let (of_task, publications, hooks) = (store.clone(), publications.clone(), hooks.clone());
    let inserted = store.spawn(async move {
        let store = &of_task;
        let busy = match busy {
            Some(busy) => busy,
            None => match insert(store, Some(&publications), &hooks, &mut jobs, PATIENCE).await {
                Err(busy @ EnqueueError::KeyBusy { .. }) => busy,
                inserted => return inserted,
            },
        };
        let Ok(Ok(_turn)) = tokio::time::timeout_at(busy_at.into(), WAITING.acquire()).await else {
            return Err(busy);
        };
        let left = busy_at.saturating_duration_since(Instant::now()).max(NO_PATIENCE);
        insert(store, Some(&publications), &hooks, &mut jobs, left).await
    });
    inserted.await.unwrap_or_else(|_| Err(StoreError::from(sqlx::Error::WorkerCrashed).into()))
}

/// Inserts the rows, all or none, and publishes their first messages. A job's own error says that the holder of its
/// key was not found; the statement stores the other jobs. The statement waits for `patience` for a transaction that
/// is about to take a key.
pub(crate) async fn insert(
    store: &Store,
    publications: Option<&Publications>,
    hooks: &EnqueueHooks,
    jobs: &mut [NewJob],
    patience: Duration,
) -> Result<Vec<Result<Created, EnqueueError>>, EnqueueError> {
    let room = match publications {
        Some(publications) => {
            let room = publications.room(jobs.len()).await;
            if room.is_none() {
                for job in jobs.iter_mut() {
                    job.published_by = PublishedBy::Relay;
                }
            }
            room.map(|room| (publications, room))
        }
        None => None,
    };
    // The messages are made while Postgres works.
    let prepare = async {
        match &room {
            Some((publications, _)) => prepared(store, publications, first_if_due(jobs)).await,
            None => Vec::new(),
        }
    };
    let (new, prepared) = tokio::join!(store.enqueue(jobs, patience), prepare);
    let new = match new {
        Err(error) if error.is_of_a_key() => return Err(key_busy(jobs)),
        new => new?,
    };
    metrics::batch("enqueue", jobs.len());
    fault::point("enqueued");
    note_enqueued(jobs, &new);
    tell(hooks, jobs, &new, false);
    if let Some((publications, room)) = room {
        let mut messages = prepared;
        let has_message = |job: &JobId| new.get(job).is_some_and(|has_message| *has_message);
        if !messages.iter().flat_map(|message| &message.jobs).all(has_message) {
            messages = self::prepared(store, publications, first_tickets(jobs, &new)).await;
        }
        messages.extend(publications.prepare(&released(store, jobs, &new).await));
        if !messages.is_empty() {
            publications.publish(messages, room).await;
            publications.written().await;
        }
    }
    let keys = keys_of_others(jobs, &new);
    if keys.is_empty() {
        return Ok(created(jobs, &new, &[]));
    }
    match store.held_keys(&keys).await {
        Ok(holders) => {
            let mut created = created(jobs, &new, &holders);
            if created.iter().any(Result::is_err)
                && let Err(error) = insert_again(store, hooks, jobs, &mut created, patience).await
            {
                // The other jobs are committed, and stay.
                for failed in created.iter_mut().filter(|created| created.is_err()) {
                    *failed = Err(error.clone());
                }
            }
            Ok(created)
        }
        Err(error) => {
            let answer = |job: &NewJob| {
                if new.contains_key(&job.id) { Ok(Created::New) } else { Err(error.clone().into()) }
            };
            Ok(jobs.iter().map(answer).collect())
        }
    }
}

/// Releases what the lanes of new jobs may release, and returns its tickets. The relay does it if this call cannot.
async fn released(store: &Store, jobs: &[NewJob], new: &HashMap<JobId, bool>) -> Vec<Ticket> {
    // A job that is due and has no message is held.
    let is_held = |job: &&NewJob| {
        job.published_by == PublishedBy::Caller && new.get(&job.id) == Some(&false) && job.is_due()
    };
    let mut queues: BTreeMap<&str, (BTreeSet<&str>, i32)> = BTreeMap::new();
    for job in jobs.iter().filter(is_held) {
        let (lanes, held) = queues.entry(&job.queue).or_default();
        lanes.insert(job.lane().unwrap_or_default());
        *held += 1;
    }
    let mut tickets = Vec::new();
    for (queue, (lanes, held)) in queues {
        let lanes: Vec<_> = lanes.into_iter().map(str::to_owned).collect();
        match store.admit(queue, &lanes, Some(&[]), held.min(RELEASED_AT_ONCE)).await {
            Ok(released) => {
                fault::point("released");
                tickets.extend(released.iter().map(Ticket::from));
            }
            Err(error) => tracing::debug!(queue, %error, "held jobs are left to the relay"),
        }
    }
    tickets
}

fn note_enqueued(jobs: &[NewJob], new: &HashMap<JobId, bool>) {
    for some in jobs.chunk_by(|one, next| one.queue == next.queue) {
        let new = some.iter().filter(|job| new.contains_key(&job.id)).count();
        if let Some(job) = some.first().filter(|_| new > 0) {
            metrics::enqueued(&job.queue, new);
        }
    }
}

/// Tells the hooks of the jobs that were created.
fn tell(hooks: &EnqueueHooks, jobs: &[NewJob], new: &HashMap<JobId, bool>, in_transaction: bool) {
    if !hooks.hear() {
        return;
    }
    for job in jobs.iter().filter(|job| new.contains_key(&job.id)) {
        hooks.enqueued(|| JobEnqueued {
            id: job.id,
            queue: job.queue.clone(),
            kind: job.kind.clone(),
            max_attempts: job.max_attempts,
            unique_key: job.key.as_ref().map(|(_, key)| key.clone()),
            lane: job.lane().map(str::to_owned),
            tags: job.rare.as_ref().map(|rare| rare.tags.clone()).unwrap_or_default(),
            delay: job.delay,
            // A job that follows others is due when they have ended.
            run_at: job.run_at.filter(|_| !job.is_held()),
            in_transaction,
        });
    }
}

/// Inserts once more the jobs whose key was held, but whose holder was gone when it was looked for: retention has
/// removed it in between. The relay publishes them.
async fn insert_again(
    store: &Store,
    hooks: &EnqueueHooks,
    jobs: &[NewJob],
    created: &mut [Result<Created, EnqueueError>],
    patience: Duration,
) -> Result<(), EnqueueError> {
    let (mut places, mut again) = (Vec::new(), Vec::new());
    for (at, job) in jobs.iter().enumerate().filter(|(at, _)| created[*at].is_err()) {
        let published_by =
            if job.published_by == PublishedBy::Sender { PublishedBy::Sender } else { PublishedBy::Relay };
        places.push(at);
        again.push(NewJob { published_by, ..job.clone() });
    }
    let new = store.enqueue(&again, patience).await?;
    note_enqueued(&again, &new);
    tell(hooks, &again, &new, false);
    let holders = store.held_keys(&keys_of_others(&again, &new)).await?;
    for (at, answer) in places.into_iter().zip(self::created(&again, &new, &holders)) {
        created[at] = answer;
    }
    Ok(())
}

/// Returns the first messages of the jobs that are new and due.
fn first_tickets(jobs: &[NewJob], new: &HashMap<JobId, bool>) -> Vec<Ticket> {
    let has_message = |job: &&NewJob| new.get(&job.id).is_some_and(|has_message| *has_message);
    jobs.iter().filter(has_message).map(first_ticket).collect()
}

/// Prepares the messages of jobs that were enqueued together.
async fn prepared(store: &Store, publications: &Publications, mut tickets: Vec<Ticket>) -> Vec<Prepared> {
    publications.share_messages(store, &mut tickets).await;
    publications.prepare(&tickets)
}

/// Returns the first messages of the jobs that may turn out to be new and due.
fn first_if_due(jobs: &[NewJob]) -> Vec<Ticket> {
    // The database rounds a delay below a microsecond to zero: such a job is due at once.
    let is_soon = |job: &NewJob| job.delay.is_none_or(|delay| delay < Duration::from_secs(1));
    let may_be_due = |job: &&NewJob| job.published_by == PublishedBy::Caller && is_soon(job);
    jobs.iter().filter(may_be_due).map(first_ticket).collect()
}

fn first_ticket(job: &NewJob) -> Ticket {
    Ticket {
        job: job.id,
        queue: job.queue.clone(),
        kind: job.kind.clone(),
        dispatch: 1,
        clear_reason: None,
        trace_context: job.trace_context.clone(),
        jobs_per_message: 1,
    }
}

/// Returns the keys of the jobs that were not created.
fn keys_of_others(jobs: &[NewJob], new: &HashMap<JobId, bool>) -> Vec<(String, String)> {
    let others = jobs.iter().filter(|job| !new.contains_key(&job.id));
    others.filter_map(NewJob::any_key).collect()
}

/// Returns each job's answer; `holders` has those of the jobs that are not new, in order.
fn created(
    jobs: &[NewJob],
    new: &HashMap<JobId, bool>,
    holders: &[Option<JobId>],
) -> Vec<Result<Created, EnqueueError>> {
    let mut holders = holders.iter();
    jobs.iter()
        .map(|job| {
            if new.contains_key(&job.id) {
                return Ok(Created::New);
            }
            let holder = holders.next().copied().flatten();
            holder.map(Created::HeldBy).ok_or(EnqueueError::KeyNotVisible)
        })
        .collect()
}

/// Inserts as [`insert`] does, inside the user's transaction. Also returns the first messages, to be published once
/// that is committed.
pub(crate) async fn insert_in(
    connection: &mut sqlx::PgConnection,
    hooks: &EnqueueHooks,
    jobs: &[NewJob],
) -> Result<(Vec<Created>, Vec<Ticket>), EnqueueError> {
    let new = match Store::enqueue_in(connection, jobs).await {
        Err(error) if error.is_of_a_key() => return Err(key_busy(jobs)),
        new => new?,
    };
    let keys = keys_of_others(jobs, &new);
    let holders = if keys.is_empty() { vec![] } else { Store::held_keys_in(connection, &keys).await? };
    let created = created(jobs, &new, &holders).into_iter().collect::<Result<_, _>>()?;
    tell(hooks, jobs, &new, true);
    Ok((created, first_tickets(jobs, &new)))
}
