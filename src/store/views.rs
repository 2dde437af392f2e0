//! Views: the statements for people. One method, one statement.

use std::{collections::HashMap, time::Duration};

use sqlx::{Row, postgres::PgRow, query};
use tokio::time::timeout;

use super::{
    EXECUTIONS, LIST_JOBS, RECOVERIES, SCHEMA_VERSION, SHOW_JOB, VERIFY,
    call::{Store, StoreError},
    rows::{ExecutionRow, JobRow, RecoveryRow, RuleBroken, json, status},
};
use crate::job::{JobId, Status};

/// How long the look at every job may take. A history of a hundred million jobs takes some minutes.
const VERIFIED_WITHIN: Duration = Duration::from_hours(1);

impl Store {
    /// The newest migration applied.
    pub(crate) async fn schema_version(&self) -> Result<i64, StoreError> {
        let rows = self.rows(query(SCHEMA_VERSION)).await?;
        Ok(rows.first().map(|row| row.try_get("version")).transpose()?.unwrap_or(0))
    }

    /// Jobs, newest first.
    pub(crate) async fn list_jobs(
        &self,
        of_status: Option<Status>,
        queue: Option<&str>,
        kind: Option<&str>,
        limit: i64,
    ) -> Result<Vec<JobRow>, StoreError> {
        let rows = self
            .rows(query(LIST_JOBS).bind(of_status.map(Status::as_str)).bind(queue).bind(kind).bind(limit))
            .await?;
        Ok(rows.iter().map(job_row).collect::<Result<_, _>>()?)
    }

    /// One job, wherever it stands.
    pub(crate) async fn show_job(&self, job: JobId) -> Result<Option<JobRow>, StoreError> {
        let rows = self.rows(query(SHOW_JOB).bind(job)).await?;
        Ok(rows.first().map(job_row).transpose()?)
    }

    /// Every attempt of one job.
    pub(crate) async fn executions(&self, job: JobId) -> Result<Vec<ExecutionRow>, StoreError> {
        let rows = self.rows(query(EXECUTIONS).bind(job)).await?;
        let execution = |row: &PgRow| {
            Ok(ExecutionRow {
                fencing_token: row.try_get("fencing_token")?,
                attempt: row.try_get("attempt")?,
                worker_id: row.try_get("worker_id")?,
                started_at: row.try_get("started_at")?,
                finished_at: row.try_get("finished_at")?,
                outcome: row.try_get("outcome")?,
                error: row.try_get("error")?,
            })
        };
        Ok(rows.iter().map(execution).collect::<Result<_, sqlx::Error>>()?)
    }

    /// How many jobs break each rule. It may take long, and has a connection of its own.
    pub(crate) async fn verify(&self) -> Result<HashMap<String, RuleBroken>, StoreError> {
        let mut connection = self.migration_connection().await?;
        // A connection that dies silently would never be heard of again.
        let read = timeout(VERIFIED_WITHIN, query(VERIFY).fetch_all(&mut connection)).await;
        let rows =
            read.map_err(|_| sqlx::Error::Io(std::io::Error::from(std::io::ErrorKind::TimedOut)))??;
        let rule = |row: &PgRow| {
            let jobs: i64 = row.try_get("jobs")?;
            let examples: Option<Vec<JobId>> = row.try_get("examples")?;
            let broken = RuleBroken { jobs: jobs.unsigned_abs(), examples: examples.unwrap_or_default() };
            Ok((row.try_get("rule")?, broken))
        };
        Ok(rows.iter().map(rule).collect::<Result<_, sqlx::Error>>()?)
    }

    /// What was recovered or refused of one job.
    pub(crate) async fn recoveries(&self, job: JobId) -> Result<Vec<RecoveryRow>, StoreError> {
        let rows = self.rows(query(RECOVERIES).bind(job)).await?;
        let event = |row: &PgRow| {
            Ok(RecoveryRow {
                at: row.try_get("at")?,
                event: row.try_get("event")?,
                path: row.try_get("path")?,
                fencing_token: row.try_get("fencing_token")?,
                owner_before: row.try_get("owner_before")?,
                silence_s: row.try_get("silence_s")?,
                reason: row.try_get("reason")?,
                recovered_by: row.try_get("recovered_by")?,
            })
        };
        Ok(rows.iter().map(event).collect::<Result<_, sqlx::Error>>()?)
    }
}

fn job_row(row: &PgRow) -> Result<JobRow, sqlx::Error> {
    Ok(JobRow {
        id: row.try_get("id")?,
        queue: row.try_get("queue")?,
        kind: row.try_get("kind")?,
        payload: json(row.try_get("payload")?),
        status: status(row)?,
        attempt: row.try_get("attempt")?,
        max_attempts: row.try_get("max_attempts")?,
        fencing_token: row.try_get("fencing_token")?,
        worker_id: row.try_get("worker_id")?,
        created_at: row.try_get("created_at")?,
        scheduled_at: row.try_get("scheduled_at")?,
        started_at: row.try_get("started_at")?,
        last_activity_at: row.try_get("last_activity_at")?,
        finished_at: row.try_get("finished_at")?,
        stage: row.try_get("stage")?,
        progress: row.try_get("progress")?,
        message: row.try_get("message")?,
        output: json(row.try_get("output")?),
        last_error: row.try_get("last_error")?,
    })
}
