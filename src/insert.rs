//! Insert: the row first, then the message.
//!
//! Once the rows are committed their first messages are sent, and the caller has its answer, NATS away or not. If
//! that fails, or the process dies in between, the relay of any worker publishes.
//!
//! Not here: what users write to get here (`enqueue`).

use std::{collections::HashMap, time::Duration};

use tokio::sync::Semaphore;

use crate::{
    batch::{Batcher, halve},
    fault,
    job::{JobId, NameError},
    metrics,
    publish::Publications,
    queue::Ticket,
    store::{NewJob, Store, StoreError, Told},
};

/// A job was not enqueued.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// The queue's or the kind's name.
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
        /// Its size.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The queue takes no more jobs for now. Nothing was enqueued; try again later, or slow down.
    #[error(
        "queue {queue:?} is full: {queued} jobs wait, and with {jobs} more there would be more than {max_queued}; {}",
        advice(*jobs, *max_queued)
    )]
    QueueFull {
        /// Which.
        queue: String,
        /// How many were to be enqueued, all or none.
        jobs: u64,
        /// How many jobs were found waiting in it.
        queued: u64,
        /// How many may.
        max_queued: u64,
    },
    /// Another option.
    #[error("{what} is {value}, but must be {expected}")]
    Option {
        /// Which one.
        what: &'static str,
        /// What was given.
        value: String,
        /// What may be given.
        expected: &'static str,
    },
    /// Postgres gave no answer. With a unique key, try again; without one the job may exist already.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The key's holder cannot be seen from this transaction's snapshot. Roll back and try again.
    #[error("the unique key is held by a job that this transaction cannot see; roll back and try again")]
    KeyNotVisible,
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

/// How long a batch waits for transactions that are about to take one of its keys, and how long a part of it.
const PATIENCE: Duration = Duration::from_millis(100);
const PATIENCE_OF_A_PART: Duration = Duration::from_millis(20);

/// Inserts of single jobs, committed together. `None` publishes nothing: the jobs have their messages.
pub(crate) fn batcher(
    store: Store,
    publications: Option<Publications>,
) -> Batcher<NewJob, Result<Created, EnqueueError>> {
    let bytes = |job: &NewJob| job.payload.len();
    Batcher::spawn(bytes, move |jobs: Vec<NewJob>| {
        let (store, publications) = (store.clone(), publications.clone());
        async move { insert_each(&store, publications.as_ref(), jobs).await }
    })
}

/// Inserts jobs that have nothing to do with one another: what hinders one is its own answer only.
async fn insert_each(
    store: &Store,
    publications: Option<&Publications>,
    jobs: Vec<NewJob>,
) -> Vec<Result<Created, EnqueueError>> {
    let mut answers = Vec::with_capacity(jobs.len());
    let mut rest = vec![jobs];
    let mut patience = PATIENCE;
    while let Some(mut part) = rest.pop() {
        match insert(store, publications, &mut part, patience).await {
            Ok(created) => answers.extend(created),
            // One of them cannot be stored, or waits for somebody; the others must not suffer for it.
            Err(EnqueueError::Store(error)) if part.len() > 1 && error.may_be_of_one_row() => {
                patience = PATIENCE_OF_A_PART;
                halve(part, &mut rest);
            }
            Err(error) => answers.extend(part.iter().map(|_| Err(error.clone()))),
        }
    }
    answers
}

/// How many callers wait at once for keys that somebody's transaction is about to take: each has a
/// connection, and tenure's other work needs some, too.
static WAITING: Semaphore = Semaphore::const_new(2);

/// Inserts jobs, all or none, and waits for transactions that are about to take one of their keys.
///
/// Cancel safe: it goes on in a task.
pub(crate) async fn insert_patiently(
    store: &Store,
    publications: &Publications,
    mut jobs: Vec<NewJob>,
) -> Result<Vec<Result<Created, EnqueueError>>, EnqueueError> {
    let (of_task, publications) = (store.clone(), publications.clone());
    let inserted = store.spawn(async move {
        let store = &of_task;
        match insert(store, Some(&publications), &mut jobs, PATIENCE).await {
            Err(EnqueueError::Store(error)) if error.is_locked() => {
                let waited = tokio::time::timeout(store.within(), WAITING.acquire()).await;
                let Ok(Ok(_turn)) = waited else {
                    return Err(error.into());
                };
                insert(store, Some(&publications), &mut jobs, Duration::MAX).await
            }
            inserted => inserted,
        }
    });
    inserted.await.unwrap_or_else(|_| Err(StoreError::from(sqlx::Error::WorkerCrashed).into()))
}

/// Inserts the rows, all or none, and has their first messages published. An error of one of them is about
/// who holds its key; the others are there all the same. It waits so long for somebody's transaction that is
/// about to take a key.
pub(crate) async fn insert(
    store: &Store,
    publications: Option<&Publications>,
    jobs: &mut [NewJob],
    patience: Duration,
) -> Result<Vec<Result<Created, EnqueueError>>, EnqueueError> {
    let room = match publications {
        Some(publications) => {
            let room = publications.room(jobs.len()).await;
            if room.is_none() {
                for job in jobs.iter_mut() {
                    job.told = Told::Relay;
                }
            }
            room.map(|room| (publications, room))
        }
        None => None,
    };
    let new = store.enqueue(jobs, patience).await?;
    metrics::batch("enqueue", jobs.len());
    fault::point("enqueued");
    for job in jobs.iter().filter(|job| new.contains_key(&job.id)) {
        metrics::enqueued(&job.queue, 1);
    }
    if let Some((publications, room)) = room {
        publications.publish(first_tickets(jobs, &new), room).await;
    }
    let keys = keys_of_others(jobs, &new);
    if keys.is_empty() {
        return Ok(created(jobs, &new, &[]));
    }
    match store.held_keys(&keys).await {
        Ok(holders) => Ok(created(jobs, &new, &holders)),
        Err(error) => {
            let answer = |job: &NewJob| {
                if new.contains_key(&job.id) { Ok(Created::New) } else { Err(error.clone().into()) }
            };
            Ok(jobs.iter().map(answer).collect())
        }
    }
}

/// The first messages of those jobs that exist now, and are due.
fn first_tickets(jobs: &[NewJob], new: &HashMap<JobId, bool>) -> Vec<Ticket> {
    let has_message = |job: &&NewJob| new.get(&job.id).is_some_and(|has_message| *has_message);
    let ticket = |job: &NewJob| Ticket {
        job: job.id,
        queue: job.queue.clone(),
        kind: job.kind.clone(),
        dispatch: 1,
        clear_reason: None,
        trace_context: job.trace_context.clone(),
    };
    jobs.iter().filter(has_message).map(ticket).collect()
}

/// The keys of the jobs that were not created.
fn keys_of_others(jobs: &[NewJob], new: &HashMap<JobId, bool>) -> Vec<(String, String)> {
    let others = jobs.iter().filter(|job| !new.contains_key(&job.id));
    others.filter_map(|job| job.key.clone()).collect()
}

/// What became of each job; `holders` answers those that are not new, in order.
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

/// [`insert`] inside the user's transaction. Returns the first messages as well: they are to be published once that
/// is committed.
pub(crate) async fn insert_in(
    connection: &mut sqlx::PgConnection,
    jobs: &[NewJob],
) -> Result<(Vec<Created>, Vec<Ticket>), EnqueueError> {
    let new = Store::enqueue_in(connection, jobs).await?;
    let keys = keys_of_others(jobs, &new);
    let holders = if keys.is_empty() { vec![] } else { Store::held_keys_in(connection, &keys).await? };
    let created = created(jobs, &new, &holders).into_iter().collect::<Result<_, _>>()?;
    Ok((created, first_tickets(jobs, &new)))
}
