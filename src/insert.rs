//! Insert: the row first, then the message.
//!
//! Once the rows are committed the caller has its answer, NATS away or not. The first messages are
//! published right after; if that fails, or the process dies in between, the relay of any worker does it.
//!
//! Not here: what users write to get here (`enqueue`).

use std::collections::HashMap;

use tokio_util::task::TaskTracker;

use crate::{
    batch::Batcher,
    fault,
    job::{JobId, NameError},
    metrics,
    queue::{Queue, Ticket},
    store::{NewJob, Store, StoreError},
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
    queue: Queue,
    publications: TaskTracker,
) -> Batcher<NewJob, Result<Created, EnqueueError>> {
    Batcher::spawn(move |jobs: Vec<NewJob>| {
        let (store, queue, publications) = (store.clone(), queue.clone(), publications.clone());
        async move {
            match insert(store.clone(), queue.clone(), &publications, jobs.clone()).await {
                Ok(created) => created.into_iter().map(Ok).collect(),
                Err(EnqueueError::Store(StoreError::Refused(_))) if jobs.len() > 1 => {
                    // One of them cannot be stored; the others must not suffer for it.
                    let mut answers = Vec::with_capacity(jobs.len());
                    for job in jobs {
                        let one = insert(store.clone(), queue.clone(), &publications, vec![job]).await;
                        answers.push(
                            one.and_then(|created| {
                                created.first().copied().ok_or(EnqueueError::KeyNotVisible)
                            }),
                        );
                    }
                    answers
                }
                Err(error) => jobs.iter().map(|_| Err(error.clone())).collect(),
            }
        }
    })
}

/// Inserts the rows, and publishes their first messages without waiting for the stream.
pub(crate) async fn insert(
    store: Store,
    queue: Queue,
    publications: &TaskTracker,
    jobs: Vec<NewJob>,
) -> Result<Vec<Created>, EnqueueError> {
    let new = store.enqueue(&jobs).await?;
    fault::point("enqueued");
    for job in &jobs {
        if new.contains_key(&job.id) {
            metrics::enqueued(&job.queue, 1);
        }
    }
    let tickets: Vec<_> = jobs
        .iter()
        .filter(|job| new.get(&job.id).is_some_and(|has_message| *has_message))
        .map(|job| Ticket {
            job: job.id,
            queue: job.queue.clone(),
            kind: job.kind.clone(),
            dispatch: 1,
            clear_reason: None,
            trace_context: job.trace_context.clone(),
        })
        .collect();
    if !tickets.is_empty() {
        // Before anything else can fail: these jobs exist.
        publications.spawn(publish_first(store.clone(), queue, tickets));
    }
    let keys = keys_of_others(&jobs, &new);
    let holders = if keys.is_empty() { vec![] } else { store.held_keys(&keys).await? };
    created(&jobs, &new, &holders).ok_or(EnqueueError::KeyNotVisible)
}

async fn publish_first(store: Store, queue: Queue, tickets: Vec<Ticket>) {
    let jobs: Vec<_> = tickets.iter().map(|ticket| ticket.job).collect();
    let answers = queue.publish(tickets).await;
    let failed: Vec<_> =
        jobs.iter().zip(&answers).filter(|(_, answer)| answer.is_err()).map(|(job, _)| *job).collect();
    metrics::published(jobs.len() - failed.len());
    if let Some(Err(error)) = answers.iter().find(|answer| answer.is_err()) {
        tracing::warn!(jobs = failed.len(), %error, "enqueued, but not published; the relay will");
        if let Err(error) = store.unpublished(&failed).await {
            tracing::warn!(%error, "the relay will find out by itself, which takes longer");
        }
    }
}

/// The keys of the jobs that were not created.
fn keys_of_others(jobs: &[NewJob], new: &HashMap<JobId, bool>) -> Vec<(String, String)> {
    let others = jobs.iter().filter(|job| !new.contains_key(&job.id));
    others.filter_map(|job| job.key.clone()).collect()
}

/// What became of each job; `holders` answers those that are not new, in order. `None`: a holder is missing.
fn created(jobs: &[NewJob], new: &HashMap<JobId, bool>, holders: &[Option<JobId>]) -> Option<Vec<Created>> {
    let mut holders = holders.iter();
    jobs.iter()
        .map(|job| {
            if new.contains_key(&job.id) {
                Some(Created::New)
            } else {
                holders.next().copied().flatten().map(Created::HeldBy)
            }
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
    created(jobs, &new, &holders).ok_or(EnqueueError::KeyNotVisible)
}
