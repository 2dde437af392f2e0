//! Show: the statements of the dashboard alone. One method, one statement.

use chrono::{DateTime, Utc};
use sqlx::{Row, postgres::PgRow, query};

use super::{
    COUNT_DEAD, COUNT_WAITING, DEAD_GROUPS, DEAD_LATELY, JOB_TEXTS, RECOVERY_COUNTS, RECOVERY_EVENTS,
    WHO_RUNS,
    call::{Store, StoreError},
    dead::{DeadCount, DeadFilter},
    rows::{JobRow, u64_of},
    views::{JobFilter, job_row},
};
use crate::job::{JobId, claim::FencingToken};

/// How many finished jobs to look at for those of a schedule.
pub(crate) const LOOKED_AT: i64 = 2_000;

/// Selects recovery events.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    pub event: Option<String>,
    pub path: Option<String>,
    /// The owner before, or the worker that recovered.
    pub worker: Option<String>,
    pub job: Option<JobId>,
    pub before: Option<i64>,
}

/// A recovery event, with the next owner of its job.
#[derive(Debug, Clone)]
pub struct Event {
    pub id: i64,
    pub at: DateTime<Utc>,
    pub event: String,
    pub path: String,
    pub job: JobId,
    /// `None`: retention has removed the job.
    pub kind: Option<String>,
    pub token: FencingToken,
    pub owner_before: Option<String>,
    pub silence_s: Option<f64>,
    pub reason: String,
    pub recovered_by: String,
    pub owner_after: Option<String>,
    pub token_after: Option<FencingToken>,
}

/// The number of recovery events of one kind, path and unit of time.
#[derive(Debug, Clone)]
pub struct EventCount {
    pub event: String,
    pub path: String,
    /// How many units of time ago.
    pub units_ago: i64,
    pub jobs: i64,
}

/// Dead letters whose errors read alike.
#[derive(Debug, Clone)]
pub struct DeadGroup {
    pub of: DeadCount,
    /// The line that says what went wrong, of one of their errors.
    pub line: String,
    /// The name of the group: see [`DeadFilter::group`].
    pub fingerprint: String,
}

/// How many dead letters match.
#[derive(Debug, Clone, Copy)]
pub struct DeadMatches {
    pub jobs: i64,
    /// Those that were jobs, and not refused messages.
    pub redrivable: i64,
    /// The time of the count, by the database's clock.
    pub now: DateTime<Utc>,
}

/// What a user can do to the jobs of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobAction {
    Cancel,
    Retry,
}

/// How many queued jobs wait for something else than a worker. `None`: too many to count.
#[derive(Debug, Clone, Copy, Default)]
pub struct WaitingJobs {
    /// For the time of another attempt.
    pub retrying: Option<i64>,
    /// For the time of their first one.
    pub scheduled: Option<i64>,
    /// For their lanes.
    pub held: Option<i64>,
}

/// A job's payload, output, checkpoint and trace context, as text for people.
#[derive(Debug, Clone, Default)]
pub struct JobTexts {
    pub payload: Option<String>,
    pub output: Option<String>,
    pub checkpoint: Option<String>,
    pub trace_context: Option<String>,
    pub cancel_requested_at: Option<DateTime<Utc>>,
    /// This and `silence_s`: only for a running job.
    pub stale_after_s: Option<f64>,
    pub silence_s: Option<f64>,
}

/// A job of a list.
#[derive(Debug, Clone)]
pub struct ListedJob {
    pub job: JobRow,
    /// Whether it is a message that was refused before it became a job.
    pub is_refused: bool,
}

/// What a queued job may wait for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WhoRuns {
    /// Whether a live worker serves the queue, and does not drain.
    pub serves_queue: bool,
    /// Whether such a worker runs the kind.
    pub runs_kind: bool,
    /// How many live workers of the queue drain.
    pub draining: i64,
    /// How many live workers of the queue do not know the kind.
    pub strangers: i64,
    /// How many know it.
    pub fit: i64,
    /// If none of those takes jobs, what keeps one of them from it.
    pub not_ready: Option<String>,
    /// The slots of those that know the kind, and how many are taken.
    pub slots: i64,
    pub busy: i64,
    /// Whether the queue is paused.
    pub is_paused: bool,
    /// How many jobs of the queue may run at once, and how many run.
    pub max_running: Option<i32>,
    pub running: Option<i64>,
    /// For how long workers that do not know the kind have put the job off, in seconds.
    pub put_off_s: Option<f64>,
    /// In how many seconds its message comes again.
    pub again_in_s: Option<f64>,
}

impl Store {
    /// Returns what this job may wait for: its queue, and the workers that run its kind.
    pub async fn who_runs(&self, queue: &str, kind: &str, job: JobId) -> Result<WhoRuns, StoreError> {
        let rows = self.rows(query(WHO_RUNS).bind(queue).bind(kind).bind(job)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(WhoRuns {
            serves_queue: row.try_get("serves_queue")?,
            runs_kind: row.try_get("runs_kind")?,
            draining: row.try_get("draining")?,
            strangers: row.try_get("strangers")?,
            fit: row.try_get("fit")?,
            not_ready: row.try_get("not_ready")?,
            slots: row.try_get("slots")?,
            busy: row.try_get("busy")?,
            is_paused: row.try_get("is_paused")?,
            max_running: row.try_get("max_running")?,
            running: row.try_get("running")?,
            put_off_s: row.try_get("put_off_s")?,
            again_in_s: row.try_get("again_in_s")?,
        })
    }

    /// Returns at most `limit` recovery events of all jobs, the latest first.
    pub async fn recovery_events(&self, filter: &EventFilter, limit: i64) -> Result<Vec<Event>, StoreError> {
        let query = query(RECOVERY_EVENTS)
            .bind(filter.event.clone())
            .bind(filter.path.clone())
            .bind(filter.worker.clone())
            .bind(filter.job)
            .bind(filter.before)
            .bind(limit);
        let rows = self.rows(query).await?;
        let event = |row: &PgRow| {
            Ok(Event {
                id: row.try_get("id")?,
                at: row.try_get("at")?,
                event: row.try_get("event")?,
                path: row.try_get("path")?,
                job: row.try_get("job_id")?,
                kind: row.try_get("kind")?,
                token: row.try_get("fencing_token")?,
                owner_before: row.try_get("owner_before")?,
                // The owner may write during the statement that judges it.
                silence_s: row.try_get::<Option<f64>, _>("silence_s")?.map(|s| s.max(0.0)),
                reason: row.try_get("reason")?,
                recovered_by: row.try_get("recovered_by")?,
                owner_after: row.try_get("owner_after")?,
                token_after: row.try_get("token_after")?,
            })
        };
        Ok(rows.iter().map(event).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns at most `limit` jobs, newest first, without their payloads.
    pub async fn listed_jobs(&self, filter: &JobFilter, limit: i64) -> Result<Vec<ListedJob>, StoreError> {
        let rows = self.rows_for_a_look(filter.list(limit, false)).await?;
        let listed =
            |row: &PgRow| Ok(ListedJob { job: job_row(row)?, is_refused: row.try_get("is_refused")? });
        Ok(rows.iter().map(listed).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns the ids of at most `limit` jobs that match and that the action can touch, the newest first.
    pub async fn match_jobs(
        &self,
        filter: &JobFilter,
        action: JobAction,
        limit: i64,
    ) -> Result<Vec<JobId>, StoreError> {
        let action = match action {
            JobAction::Cancel => "cancel",
            JobAction::Retry => "retry",
        };
        let rows = self.rows_for_a_look(filter.matching(limit, action)).await?;
        Ok(rows.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?)
    }

    /// Returns the number of recovery events of the last `units` units of time, each of `length_s` seconds, and of the
    /// last `least_s` seconds.
    pub async fn recovery_counts(
        &self,
        units: i64,
        length_s: i64,
        least_s: i64,
    ) -> Result<Vec<EventCount>, StoreError> {
        let rows = self.rows(query(RECOVERY_COUNTS).bind(units).bind(length_s).bind(least_s)).await?;
        let count = |row: &PgRow| {
            let (event, path) = (row.try_get("event")?, row.try_get("path")?);
            Ok(EventCount { event, path, units_ago: row.try_get("units_ago")?, jobs: row.try_get("jobs")? })
        };
        Ok(rows.iter().map(count).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns how many dead letters match, counted to `most`.
    pub async fn count_dead(&self, filter: &DeadFilter, most: i64) -> Result<DeadMatches, StoreError> {
        let rows = self.rows_for_a_look(filter.bind(query(COUNT_DEAD)).bind(most)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let (jobs, redrivable) = (row.try_get("jobs")?, row.try_get("redrivable")?);
        Ok(DeadMatches { jobs, redrivable, now: row.try_get("now")? })
    }

    /// Returns how many jobs wait for their time, and how many for their lanes, each counted to `most`.
    pub async fn count_waiting(&self, most: i64) -> Result<WaitingJobs, StoreError> {
        let rows = self.rows(query(COUNT_WAITING).bind(most)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let (retrying, scheduled) = (row.try_get("retrying")?, row.try_get("scheduled")?);
        Ok(WaitingJobs { retrying, scheduled, held: row.try_get("held")? })
    }

    /// Groups the dead letters among the latest `of_the_latest` by what their errors have in common; returns at most
    /// `limit` groups, the largest first.
    pub async fn dead_groups(
        &self,
        filter: &DeadFilter,
        limit: i64,
        of_the_latest: i64,
    ) -> Result<Vec<DeadGroup>, StoreError> {
        let rows =
            self.rows_for_a_look(filter.bind(query(DEAD_GROUPS)).bind(limit).bind(of_the_latest)).await?;
        Ok(rows.iter().map(dead_group).collect::<Result<_, sqlx::Error>>()?)
    }

    /// [`Store::dead_groups`] of the last hour.
    pub async fn dead_lately(&self, limit: i64, of_the_latest: i64) -> Result<Vec<DeadGroup>, StoreError> {
        let rows = self.rows_for_a_look(query(DEAD_LATELY).bind(of_the_latest).bind(limit)).await?;
        Ok(rows.iter().map(dead_group).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns a job's texts, each cut to `most` characters; `None`: the job does not exist.
    pub async fn job_texts(&self, job: JobId, most: i32) -> Result<Option<JobTexts>, StoreError> {
        let rows = self.rows(query(JOB_TEXTS).bind(job).bind(most)).await?;
        let texts = |row: &PgRow| {
            Ok(JobTexts {
                payload: row.try_get("payload")?,
                output: row.try_get("output")?,
                checkpoint: row.try_get("checkpoint")?,
                trace_context: row.try_get("trace_context")?,
                cancel_requested_at: row.try_get("cancel_requested_at")?,
                stale_after_s: row.try_get("stale_after_s")?,
                silence_s: row.try_get("silence_s")?,
            })
        };
        Ok(rows.first().map(texts).transpose().map_err(|error: sqlx::Error| error)?)
    }
}

fn dead_group(row: &PgRow) -> Result<DeadGroup, sqlx::Error> {
    Ok(DeadGroup {
        of: DeadCount {
            queue: row.try_get("queue")?,
            kind: row.try_get("kind")?,
            category: row.try_get("category")?,
            jobs: u64_of(row, "jobs")?,
            oldest: row.try_get("oldest")?,
            newest: row.try_get("newest")?,
        },
        line: row.try_get("line")?,
        fingerprint: row.try_get("fingerprint")?,
    })
}
