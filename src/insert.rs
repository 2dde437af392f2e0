//! Insert: the row first, then the message.
//!
//! Once the rows are committed the caller has its answer, NATS away or not. The first messages are
//! published right after; if that fails, or the process dies in between, the relay of any worker does it.
//!
//! Not here: what users write to get here (`enqueue`).

use std::collections::HashMap;

use tokio::sync::Semaphore;

use crate::{
    batch::{Batcher, halve},
    fault,
    job::{JobId, NameError},
    metrics,
    publish::{Publications, Room},
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

/// Whether an insert created its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Created {
    New,
    HeldBy(JobId),
}

/// Single enqueues of many tasks, committed together.
pub(crate) fn batcher(
    store: Store,
    publications: Publications,
) -> Batcher<NewJob, Result<Created, EnqueueError>> {
    Batcher::spawn(move |jobs: Vec<NewJob>| {
        let (store, publications) = (store.clone(), publications.clone());
        async move {
            let mut answers = Vec::with_capacity(jobs.len());
            let mut rest = vec![jobs];
            while let Some(mut part) = rest.pop() {
                match insert(&store, &publications, &mut part, true).await {
                    Ok(created) => answers.extend(created),
                    // One of them cannot be stored; the others must not suffer for it.
                    Err(EnqueueError::Store(StoreError::Refused(_))) if part.len() > 1 => {
                        halve(part, &mut rest);
                    }
                    // A key is waited for: only those with one may have to, each by itself.
                    Err(EnqueueError::Store(error)) if error.is_locked() => {
                        answers.extend(without_keys(&store, &publications, part, &error).await);
                    }
                    Err(error) => answers.extend(part.iter().map(|_| Err(error.clone()))),
                }
            }
            answers
        }
    })
}

/// Inserts those of the jobs that have no key; the others get this error, and try alone.
async fn without_keys(
    store: &Store,
    publications: &Publications,
    part: Vec<NewJob>,
    locked: &StoreError,
) -> Vec<Result<Created, EnqueueError>> {
    let keyed: Vec<bool> = part.iter().map(|job| job.key.is_some()).collect();
    let mut plain: Vec<_> = part.into_iter().filter(|job| job.key.is_none()).collect();
    let mut done = if plain.is_empty() {
        Vec::new()
    } else {
        match insert(store, publications, &mut plain, true).await {
            Ok(created) => created,
            Err(error) => vec![Err(error); plain.len()],
        }
    }
    .into_iter();
    let answer = |keyed| {
        let plain = if keyed { None } else { done.next() };
        plain.unwrap_or_else(|| Err(locked.clone().into()))
    };
    keyed.into_iter().map(answer).collect()
}

/// How many callers wait at once for a key that somebody's transaction is about to take: each has a
/// connection, and tenure's other work needs some, too.
static ALONE: Semaphore = Semaphore::const_new(2);

/// Inserts one job whose key somebody's transaction is about to take, and waits for its end.
pub(crate) async fn insert_alone(
    store: &Store,
    publications: &Publications,
    job: NewJob,
) -> Result<Created, EnqueueError> {
    let waited = tokio::time::timeout(store.within(), ALONE.acquire()).await;
    let Ok(Ok(_turn)) = waited else {
        return Err(StoreError::from(sqlx::Error::PoolTimedOut).into());
    };
    let alone = insert(store, publications, &mut [job], false).await?;
    alone.into_iter().next().unwrap_or(Err(EnqueueError::KeyNotVisible))
}

/// Inserts the rows, all or none, and has their first messages published. An error of one of them is about
/// who holds its key; the others are there all the same.
pub(crate) async fn insert(
    store: &Store,
    publications: &Publications,
    jobs: &mut [NewJob],
    in_a_hurry: bool,
) -> Result<Vec<Result<Created, EnqueueError>>, EnqueueError> {
    let room = publications.room(jobs.len()).await;
    if room.is_none() {
        for job in jobs.iter_mut() {
            job.told = Told::Relay;
        }
    }
    let new = store.enqueue(jobs, in_a_hurry).await?;
    fault::point("enqueued");
    publish_first(publications, jobs, &new, room);
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

/// Before anything else can fail: these jobs exist.
fn publish_first(
    publications: &Publications,
    jobs: &[NewJob],
    new: &HashMap<JobId, bool>,
    room: Option<Room>,
) {
    let mut tickets = Vec::with_capacity(jobs.len());
    for job in jobs {
        let Some(has_message) = new.get(&job.id) else { continue };
        metrics::enqueued(&job.queue, 1);
        if *has_message {
            tickets.push(Ticket {
                job: job.id,
                queue: job.queue.clone(),
                kind: job.kind.clone(),
                dispatch: 1,
                clear_reason: None,
                trace_context: job.trace_context.clone(),
            });
        }
    }
    if let Some(room) = room
        && !tickets.is_empty()
    {
        publications.publish(tickets, room);
    }
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

/// [`insert`] inside the user's transaction, which nobody publishes for but the relay.
pub(crate) async fn insert_in(
    connection: &mut sqlx::PgConnection,
    jobs: &[NewJob],
) -> Result<Vec<Created>, EnqueueError> {
    let new = Store::enqueue_in(connection, jobs).await?;
    let keys = keys_of_others(jobs, &new);
    let holders = if keys.is_empty() { vec![] } else { Store::held_keys_in(connection, &keys).await? };
    created(jobs, &new, &holders).into_iter().collect()
}
