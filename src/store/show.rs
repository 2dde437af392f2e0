//! Show: the statements of the dashboard alone. One method, one statement.

use chrono::{DateTime, Utc};
use sqlx::{Row, postgres::PgRow, query};

use super::{
    COUNT_DEAD, DEAD_GROUPS, JOB_TEXTS, RECOVERY_COUNTS, RECOVERY_EVENTS,
    call::{Store, StoreError},
    dead::{DeadCount, DeadFilter},
};
use crate::job::JobId;

/// Which events of recovery.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventFilter {
    pub(crate) event: Option<String>,
    pub(crate) path: Option<String>,
    /// The owner before, or who recovered.
    pub(crate) worker: Option<String>,
    pub(crate) job: Option<JobId>,
    pub(crate) before: Option<i64>,
}

/// What was recovered or refused, with who owned the job next.
#[derive(Debug, Clone)]
#[expect(clippy::struct_field_names, reason = "the fields are the statement's columns")]
pub(crate) struct Event {
    pub(crate) id: i64,
    pub(crate) at: DateTime<Utc>,
    pub(crate) event: String,
    pub(crate) path: String,
    pub(crate) job: JobId,
    pub(crate) token: i64,
    pub(crate) owner_before: Option<String>,
    pub(crate) silence_s: Option<f64>,
    pub(crate) reason: String,
    pub(crate) recovered_by: String,
    pub(crate) owner_after: Option<String>,
    pub(crate) token_after: Option<i64>,
}

/// How many jobs were recovered or refused so.
#[derive(Debug, Clone)]
pub(crate) struct EventCount {
    pub(crate) event: String,
    pub(crate) path: String,
    /// In units of the minutes asked for.
    pub(crate) ago: i64,
    pub(crate) jobs: i64,
}

/// Dead letters that died of the same.
#[derive(Debug, Clone)]
pub(crate) struct DeadGroup {
    pub(crate) of: DeadCount,
    /// The latest one's error.
    pub(crate) example: String,
    /// What their errors have in common; `#` stands where they differ.
    pub(crate) shape: String,
}

/// What a job was given and has said.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobTexts {
    pub(crate) payload: Option<String>,
    pub(crate) output: Option<String>,
    pub(crate) checkpoint: Option<String>,
    pub(crate) trace_context: Option<String>,
    pub(crate) cancel_requested_at: Option<DateTime<Utc>>,
    /// Of a running job.
    pub(crate) stale_after_s: Option<f64>,
    pub(crate) silence_s: Option<f64>,
}

impl Store {
    /// What was recovered and refused, of all jobs, the latest first.
    pub(crate) async fn recovery_events(
        &self,
        filter: &EventFilter,
        limit: i64,
    ) -> Result<Vec<Event>, StoreError> {
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
                token: row.try_get("fencing_token")?,
                owner_before: row.try_get("owner_before")?,
                // An owner may write while it is judged.
                silence_s: row.try_get::<Option<f64>, _>("silence_s")?.map(|s| s.max(0.0)),
                reason: row.try_get("reason")?,
                recovered_by: row.try_get("recovered_by")?,
                owner_after: row.try_get("owner_after")?,
                token_after: row.try_get("token_after")?,
            })
        };
        Ok(rows.iter().map(event).collect::<Result<_, sqlx::Error>>()?)
    }

    /// What was recovered and refused in the last minutes, by what happened, who noticed, and when.
    pub(crate) async fn recovery_counts(
        &self,
        minutes: i32,
        unit: i32,
    ) -> Result<Vec<EventCount>, StoreError> {
        let rows = self.rows(query(RECOVERY_COUNTS).bind(minutes).bind(i64::from(unit))).await?;
        let count = |row: &PgRow| {
            let (event, path) = (row.try_get("event")?, row.try_get("path")?);
            Ok(EventCount { event, path, ago: row.try_get("ago")?, jobs: row.try_get("jobs")? })
        };
        Ok(rows.iter().map(count).collect::<Result<_, sqlx::Error>>()?)
    }

    /// How many dead letters there are of these, counted to this number, and when that was.
    pub(crate) async fn count_dead(
        &self,
        filter: &DeadFilter,
        most: i64,
    ) -> Result<(i64, DateTime<Utc>), StoreError> {
        let rows = self.rows_for_a_look(filter.bind(query(COUNT_DEAD)).bind(most)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok((row.try_get("jobs")?, row.try_get("now")?))
    }

    /// The latest dead letters by what they died of, the most first.
    pub(crate) async fn dead_groups(
        &self,
        filter: &DeadFilter,
        limit: i64,
        of_the_latest: i64,
    ) -> Result<Vec<DeadGroup>, StoreError> {
        let rows =
            self.rows_for_a_look(filter.bind(query(DEAD_GROUPS)).bind(limit).bind(of_the_latest)).await?;
        let group = |row: &PgRow| {
            Ok(DeadGroup {
                of: DeadCount {
                    queue: row.try_get("queue")?,
                    kind: row.try_get("kind")?,
                    category: row.try_get("category")?,
                    jobs: row.try_get("jobs")?,
                    oldest: row.try_get("oldest")?,
                    newest: row.try_get("newest")?,
                },
                example: row.try_get("example")?,
                shape: row.try_get("shape")?,
            })
        };
        Ok(rows.iter().map(group).collect::<Result<_, sqlx::Error>>()?)
    }

    /// What a job was given and has said, as text, of each so many characters; `None`: there is no such job.
    pub(crate) async fn job_texts(&self, job: JobId, most: i32) -> Result<Option<JobTexts>, StoreError> {
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
