//! Watch: what those who wait for jobs read. One method, one statement.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::{Row, postgres::PgRow, query};

use crate::{
    job::{JobId, Status},
    store::{
        Store, StoreError,
        rows::{JobRow, both, ord, ordinals, status, u32_of},
        statement_list,
    },
};

statement_list! {
    LOOKS = "sql" "looks";
    ENDS = "sql" "ends";
    ENDS_SNAPSHOT = "sql" "ends_snapshot";
}

/// A job, as those who watch it see it. See [`Tenure::watch`](crate::Tenure::watch).
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct JobUpdate {
    /// The job.
    pub id: JobId,
    /// Its queue.
    pub queue: String,
    /// Its kind.
    pub kind: String,
    /// Its status. [`Status::Completed`], [`Status::Failed`] and [`Status::Cancelled`] are its end.
    pub status: Status,
    /// How many attempts have begun.
    pub attempt: u32,
    /// How many there may be.
    pub max_attempts: u32,
    /// The stage that its handler has reported last.
    pub stage: Option<String>,
    /// The progress that its handler has reported last, in percent.
    pub progress: Option<f32>,
    /// The message that its handler has reported last.
    pub message: Option<String>,
    /// The output, if it has completed with one.
    pub output: Option<Box<RawValue>>,
    /// The error of its last attempt that failed.
    pub last_error: Option<String>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
}

impl From<JobRow> for JobUpdate {
    fn from(job: JobRow) -> Self {
        Self {
            output: job.output_json().map(ToOwned::to_owned),
            id: job.id,
            queue: job.queue,
            kind: job.kind,
            status: job.status,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            stage: job.stage,
            progress: job.progress,
            message: job.message,
            last_error: job.last_error,
            finished_at: job.finished_at,
        }
    }
}

impl JobUpdate {
    /// Whether both say the same.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let json = |of: &Self| of.output.as_ref().map(|output| output.get().to_owned());
        (self.id, self.status, self.attempt, self.max_attempts, self.finished_at)
            == (other.id, other.status, other.attempt, other.max_attempts, other.finished_at)
            && (&self.stage, self.progress, &self.message, &self.last_error)
                == (&other.stage, other.progress, &other.message, &other.last_error)
            && json(self) == json(other)
    }
}

/// The end of a job. See [`Tenure::ends_since`](crate::Tenure::ends_since).
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct JobEnd {
    /// The job.
    pub id: JobId,
    /// Its queue.
    pub queue: String,
    /// Its kind.
    pub kind: String,
    /// How it ended: [`Status::Completed`], [`Status::Failed`] or [`Status::Cancelled`].
    pub status: Status,
    /// How many attempts had begun.
    pub attempt: u32,
    /// How many there might have been.
    pub max_attempts: u32,
    /// When it ended, by the database's clock. Its transaction may have committed later.
    pub finished_at: DateTime<Utc>,
    /// The output, if it has completed with one.
    pub output: Option<Box<RawValue>>,
    /// The error of its last attempt that failed.
    pub last_error: Option<String>,
}

/// Which ends to read, as `ends.sql` takes it.
#[derive(Debug, Clone)]
pub(crate) struct EndsPage<'a> {
    /// The ends that this snapshot shows were read.
    pub(crate) read: Option<&'a str>,
    pub(crate) shows: &'a str,
    pub(crate) after: (DateTime<Utc>, JobId),
    pub(crate) until: Option<DateTime<Utc>>,
    pub(crate) limit: u32,
    pub(crate) queue: Option<&'a str>,
    pub(crate) kind: Option<&'a str>,
    /// The time of `read`, if the server has started anew since.
    pub(crate) read_before_start: Option<DateTime<Utc>>,
}

fn json(row: &PgRow) -> Result<Option<Box<RawValue>>, sqlx::Error> {
    Ok(both(row.try_get("output")?).1)
}

impl Store {
    /// Returns what watchers see of jobs; `None` at the place of each that does not exist.
    pub(crate) async fn looks(&self, jobs: &[JobId]) -> Result<Vec<Option<JobUpdate>>, StoreError> {
        let rows = self.rows(query(LOOKS).bind(jobs).bind(ordinals(jobs.len()))).await?;
        let mut seen = vec![None; jobs.len()];
        for row in &rows {
            let at = ord(row)?;
            if let Some(place) = seen.get_mut(at) {
                *place = Some(JobUpdate {
                    id: jobs[at],
                    queue: row.try_get("queue")?,
                    kind: row.try_get("kind")?,
                    status: status(row)?,
                    attempt: u32_of(row, "attempt")?,
                    max_attempts: u32_of(row, "max_attempts")?,
                    stage: row.try_get("stage")?,
                    progress: row.try_get("progress")?,
                    message: row.try_get("message")?,
                    output: json(row)?,
                    last_error: row.try_get("last_error")?,
                    finished_at: row.try_get("finished_at")?,
                });
            }
        }
        Ok(seen)
    }

    /// Returns the server's snapshot, its time, and since when this server runs.
    pub(crate) async fn ends_snapshot(&self) -> Result<(String, DateTime<Utc>, DateTime<Utc>), StoreError> {
        let rows = self.rows(query(ENDS_SNAPSHOT)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok((row.try_get("snapshot")?, row.try_get("now")?, row.try_get("started_at")?))
    }

    /// Returns the next ends of a page.
    pub(crate) async fn ends(&self, page: &EndsPage<'_>) -> Result<Vec<JobEnd>, StoreError> {
        let query = query(ENDS)
            .bind(page.read.map(str::to_owned))
            .bind(page.shows.to_owned())
            .bind(page.after.0)
            .bind(page.after.1)
            .bind(page.until)
            .bind(i64::from(page.limit))
            .bind(page.queue.map(str::to_owned))
            .bind(page.kind.map(str::to_owned))
            .bind(page.read_before_start);
        let rows = self.rows(query).await?;
        let end = |row: &PgRow| {
            Ok(JobEnd {
                id: row.try_get("id")?,
                queue: row.try_get("queue")?,
                kind: row.try_get("kind")?,
                status: status(row)?,
                attempt: u32_of(row, "attempt")?,
                max_attempts: u32_of(row, "max_attempts")?,
                finished_at: row.try_get("finished_at")?,
                output: json(row)?,
                last_error: row.try_get("last_error")?,
            })
        };
        Ok(rows.iter().map(end).collect::<Result<_, sqlx::Error>>()?)
    }
}
