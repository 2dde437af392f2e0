//! Queues: the statements about a queue as a whole. One method, one statement, except for a change of a limit.

use std::{collections::HashMap, time::Instant};

use chrono::{DateTime, Utc};
use futures::FutureExt;
use serde::Serialize;
use sqlx::{Row, postgres::PgRow, query};
use uuid::Uuid;

use super::{
    CLAIM_LIMITED, COUNT_QUEUED, EMPTY_SLOTS, JOBS_PER_MESSAGE, LIMIT_QUEUE, LIST_QUEUES, PAUSE_QUEUE,
    QUEUE_SETTINGS, QUEUE_STANDING, RESUME_QUEUE, SET_EVENTS,
    call::{Line, Store, StoreError},
    jobs::claims_of,
    rows::{ClaimRequest, u64_of},
    waiting::Standing,
};
use crate::job::{actor::Actor, claim::Claim, events::QueueEvents};

/// A change of a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Change<T> {
    #[default]
    Leave,
    Remove,
    Set(T),
}

impl<T: Copy> Change<T> {
    pub(crate) fn value(self) -> Option<T> {
        if let Self::Set(value) = self { Some(value) } else { None }
    }

    pub(crate) fn is_set(self) -> bool {
        !matches!(self, Self::Leave)
    }
}

impl<T> From<Option<T>> for Change<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Remove, Self::Set)
    }
}

/// A queue, as the person on call sees it.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct QueueRow {
    /// Its name.
    pub queue: String,
    /// Since when it is paused.
    pub paused_at: Option<DateTime<Utc>>,
    /// How many of its jobs may run at once in the whole fleet.
    pub max_running: Option<u32>,
    /// How many of its jobs may wait.
    pub max_queued: Option<u64>,
    /// What workers publish of its jobs.
    pub events: QueueEvents,
    /// Jobs that wait for nothing but a worker.
    pub due: u64,
    /// Jobs that wait for their time, and that no lane holds.
    pub scheduled: u64,
    /// Jobs that their lanes hold.
    pub held: u64,
    /// Those of them whose time has come: they wait for a slot, a token or the turn of their lane.
    pub held_due: u64,
    /// Whether the queue has lanes.
    pub has_lanes: bool,
    /// Jobs that run.
    pub processing: u64,
    /// Submissions: messages that are no job yet, as the last scan counted them. `None`: it could not, or was too long
    /// ago.
    pub submitted: Option<u64>,
    /// Those of them that count towards [`QueueRow::max_queued`], because a scan has read them in the stream.
    pub standing: u64,
    /// Dead letters.
    pub dead: u64,
    /// Live worker processes that serve it and do not drain.
    pub workers: u64,
    /// Live worker processes of it that drain: they finish its jobs, and take no other.
    pub draining: u64,
    /// How many seconds the oldest due job or submission has waited.
    pub oldest_due_s: Option<f64>,
    /// How many seconds ago a worker process that serves it was last seen. `None`: none within the last day.
    pub last_seen_s: Option<f64>,
}

impl QueueRow {
    /// The number of due jobs, held ones included, and submissions.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.due + self.held_due + self.submitted.unwrap_or_default()
    }

    /// Whether no live worker serves it, though jobs wait or run, or its workers have just fallen silent.
    #[must_use]
    pub fn is_unserved(&self) -> bool {
        self.workers == 0 && (self.waiting() > 0 || self.processing > 0 || self.last_seen_s.is_some())
    }

    /// The number of jobs and submissions that count towards [`QueueRow::max_queued`].
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.due + self.scheduled + self.held + self.standing
    }

    /// Whether as many jobs wait as [`QueueRow::max_queued`] allows: enqueues are refused.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.max_queued.is_some_and(|most| self.queued() >= most)
    }

    /// Whether as many jobs run as [`QueueRow::max_running`] allows, and others wait for them.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.due > 0 && self.max_running.is_some_and(|most| self.processing >= most.into())
    }
}

/// The settings of a queue that a worker needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueSettings {
    pub queue: String,
    pub(crate) paused: bool,
    /// How many more of its jobs may start, if the queue has a limit.
    pub(crate) room: Option<usize>,
    /// How many live workers serve it, if it has a limit.
    pub(crate) workers: usize,
    pub(crate) events: QueueEvents,
}

/// How many jobs may wait in a queue, and the submissions that stand before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueLimit {
    pub(crate) queue: String,
    pub(crate) max_queued: u64,
    pub(crate) standing: Option<Standing>,
}

/// The result of a limited claim.
#[derive(Debug, Default)]
pub(crate) struct LimitedClaims {
    /// One for each request.
    pub(crate) claims: Vec<Option<Claim>>,
    /// How many more jobs may start; `None`: the queue has no limit any more.
    pub(crate) room: Option<usize>,
}

fn claim_limited(
    requests: &[ClaimRequest],
    worker_id: &str,
    worker_host: &str,
) -> Option<sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments>> {
    let first = requests.first()?;
    let ids: Vec<_> = requests.iter().map(|request| request.job).collect();
    let query = query(CLAIM_LIMITED).bind(ids).bind(first.queue.clone()).bind(first.kind.clone());
    let query = query.bind(first.stale_after.as_secs_f64()).bind(first.on_crash);
    Some(query.bind(worker_id.to_owned()).bind(worker_host.to_owned()))
}

fn limited(
    mut rows: Vec<PgRow>,
    requests: &[ClaimRequest],
    sent_at: Instant,
) -> Result<LimitedClaims, StoreError> {
    let room: Option<i32> = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("room")?;
    // One row without a job: nothing was claimed.
    rows.retain(|row| !matches!(row.try_get::<Option<Uuid>, _>(0), Ok(None)));
    Ok(LimitedClaims {
        claims: claims_of(&rows, requests, sent_at)?,
        room: room.map(|room| usize::try_from(room).unwrap_or_default()),
    })
}

impl Store {
    /// [`Store::claim`] for a queue with a limit: claims at most as many jobs as the limit leaves.
    pub(crate) async fn claim_limited(
        &self,
        requests: &[ClaimRequest],
        worker_id: &str,
        worker_host: &str,
    ) -> Result<LimitedClaims, StoreError> {
        let Some(query) = claim_limited(requests, worker_id, worker_host) else {
            return Ok(LimitedClaims::default());
        };
        let sent_at = Instant::now();
        limited(self.rows_over(Line::Claim, query).await?, requests, sent_at)
    }

    /// [`Store::claim_alone`] for a queue with a limit.
    pub(crate) async fn claim_limited_alone(
        &self,
        request: &ClaimRequest,
        worker_id: &str,
        worker_host: &str,
    ) -> Result<Option<Claim>, StoreError> {
        let request = std::slice::from_ref(request);
        let Some(query) = claim_limited(request, worker_id, worker_host) else { return Ok(None) };
        let sent_at = Instant::now();
        let rows = self.rows_alone(query).await?;
        Ok(limited(rows, request, sent_at)?.claims.into_iter().next().flatten())
    }

    /// Returns the settings of these queues. A queue without settings is missing.
    pub(crate) async fn queue_settings(&self, queues: &[String]) -> Result<Vec<QueueSettings>, StoreError> {
        let rows = self.rows(query(QUEUE_SETTINGS).bind(queues)).await?;
        let settings = |row: &PgRow| {
            let limit: Option<i32> = row.try_get("max_running")?;
            let running: Option<i64> = row.try_get("running")?;
            let room = limit.map(|limit| i64::from(limit) - running.unwrap_or(0));
            Ok(QueueSettings {
                queue: row.try_get("queue")?,
                paused: row.try_get("paused")?,
                room: room.map(|room| usize::try_from(room).unwrap_or(0)),
                workers: row
                    .try_get::<Option<i64>, _>("workers")?
                    .and_then(|workers| usize::try_from(workers).ok())
                    .unwrap_or_default(),
                events: events(row)?,
            })
        };
        Ok(rows.iter().map(settings).collect::<Result<_, sqlx::Error>>()?)
    }

    /// For each of these queues, its live workers, and how many jobs one message may name.
    pub(crate) async fn jobs_per_message(
        &self,
        queues: &[String],
    ) -> Result<HashMap<String, (usize, usize)>, StoreError> {
        let rows = self.rows(query(JOBS_PER_MESSAGE).bind(queues)).await?;
        let of = |row: &PgRow| {
            let (workers, jobs): (i64, i32) = (row.try_get("workers")?, row.try_get("jobs")?);
            Ok((
                row.try_get("queue")?,
                (usize::try_from(workers).unwrap_or_default(), usize::try_from(jobs).unwrap_or(1)),
            ))
        };
        Ok(rows.iter().map(of).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns every queue that has jobs, workers or settings, or the one of this name.
    pub async fn list_queues(&self, name: Option<&str>) -> Result<Vec<QueueRow>, StoreError> {
        let rows = self.rows(query(LIST_QUEUES).bind(name.map(str::to_owned))).await?;
        let queue = |row: &PgRow| {
            Ok(QueueRow {
                queue: row.try_get("queue")?,
                paused_at: row.try_get("paused_at")?,
                max_running: row.try_get::<Option<i32>, _>("max_running")?.map(i32::unsigned_abs),
                max_queued: row.try_get::<Option<i64>, _>("max_queued")?.map(i64::unsigned_abs),
                events: events(row)?,
                due: u64_of(row, "due")?,
                scheduled: u64_of(row, "scheduled")?,
                held: u64_of(row, "held")?,
                held_due: u64_of(row, "held_due")?,
                has_lanes: row.try_get("has_lanes")?,
                processing: u64_of(row, "processing")?,
                dead: u64_of(row, "dead")?,
                workers: u64_of(row, "workers")?,
                draining: u64_of(row, "draining")?,
                submitted: row.try_get::<Option<i64>, _>("submitted")?.map(i64::unsigned_abs),
                standing: u64_of(row, "standing")?,
                oldest_due_s: row.try_get("oldest_due_s")?,
                last_seen_s: row.try_get("last_seen_s")?,
            })
        };
        Ok(rows.iter().map(queue).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Pauses a queue. Returns since when it is paused, and whether it was paused before.
    pub(crate) async fn pause_queue(
        &self,
        queue: &str,
        by: &Actor,
    ) -> Result<(DateTime<Utc>, bool), StoreError> {
        let rows = self.rows(query(PAUSE_QUEUE).bind(queue).bind(by.bound())).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok((row.try_get("paused_at")?, row.try_get("was_paused")?))
    }

    /// Sets what workers publish of a queue's jobs.
    pub(crate) async fn set_events(
        &self,
        queue: &str,
        events: QueueEvents,
        by: &Actor,
    ) -> Result<(), StoreError> {
        let word = (events != QueueEvents::Nothing).then(|| events.as_str());
        self.rows(query(SET_EVENTS).bind(queue).bind(word).bind(by.bound())).await.map(drop)
    }

    /// Resumes a queue. Returns `false` if it was not paused.
    pub(crate) async fn resume_queue(&self, queue: &str, by: &Actor) -> Result<bool, StoreError> {
        Ok(!self.rows(query(RESUME_QUEUE).bind(queue).bind(by.bound())).await?.is_empty())
    }

    /// Changes the given limits of a queue. Returns `max_running` and `max_queued`.
    pub(crate) async fn limit_queue(
        &self,
        queue: &str,
        max_running: Change<u32>,
        max_queued: Change<u64>,
        by: &Actor,
    ) -> Result<(Option<u32>, Option<u64>), StoreError> {
        let (queue, by) = (queue.to_owned(), by.bound());
        self.own_transaction(move |transaction| {
            async move {
                if max_running.is_set() {
                    query(EMPTY_SLOTS).bind(&queue).execute(&mut *transaction).await?;
                }
                let limit = query(LIMIT_QUEUE).bind(&queue);
                let limit = limit.bind(max_running.is_set()).bind(max_running.value().map(u32::cast_signed));
                let limit = limit.bind(max_queued.is_set()).bind(max_queued.value().map(u64::cast_signed));
                let row = limit.bind(by).fetch_one(&mut *transaction).await?;
                let running: Option<i32> = row.try_get("max_running")?;
                let queued: Option<i64> = row.try_get("max_queued")?;
                Ok((running.map(i32::unsigned_abs), queued.map(i64::unsigned_abs)))
            }
            .boxed()
        })
        .await
    }

    /// Returns every queue that has a `max_queued`.
    pub(crate) async fn queue_limits(&self) -> Result<Vec<QueueLimit>, StoreError> {
        let rows = self.rows(query(QUEUE_STANDING)).await?;
        let limit = |row: &PgRow| {
            let standing = match row.try_get::<Option<i64>, _>("standing")? {
                Some(messages) => Some(Standing {
                    messages,
                    deliveries: row.try_get("standing_deliveries")?,
                    of: row.try_get("standing_of")?,
                }),
                None => None,
            };
            let max_queued = row.try_get::<i64, _>("max_queued")?.unsigned_abs();
            Ok(QueueLimit { queue: row.try_get("queue")?, max_queued, standing })
        };
        Ok(rows.iter().map(limit).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns how many jobs of a queue wait. Each half of the count, published or not, stops at `count_to`.
    pub(crate) async fn count_queued(&self, queue: &str, count_to: u64) -> Result<u64, StoreError> {
        let rows = self.rows(query(COUNT_QUEUED).bind(queue).bind(count_to.cast_signed())).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(row.try_get::<i64, _>(0)?.unsigned_abs())
    }
}

fn events(row: &PgRow) -> Result<QueueEvents, sqlx::Error> {
    // This release cannot publish what a later one names.
    let word: Option<String> = row.try_get("events")?;
    Ok(word.and_then(|word| word.parse().ok()).unwrap_or_default())
}
