//! Logs of jobs: the statements that keep and read what attempts have printed. One method, one statement.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::{Row, postgres::PgRow, query};

use crate::{
    job::{
        JobId,
        claim::{ClaimKey, FencingToken},
    },
    store::{Store, StoreError, statement_list},
};

statement_list! {
    WRITE_LOGS = "sql" "write_logs";
    JOB_LOGS = "sql" "job_logs";
}

/// The end of what an attempt has printed.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LogRow {
    /// The token of the attempt.
    pub fencing_token: FencingToken,
    /// Its last lines, at most 64 KiB.
    pub text: String,
    /// Whether an earlier part is missing.
    pub is_cut: bool,
    /// When it was written.
    pub written_at: DateTime<Utc>,
}

/// What an attempt has printed so far.
#[derive(Debug, Clone)]
pub(crate) struct LogWrite {
    pub(crate) key: ClaimKey,
    pub(crate) text: String,
    pub(crate) is_cut: bool,
}

impl Store {
    /// Keeps the logs of attempts that still own their jobs.
    pub(crate) async fn write_logs(&self, logs: &[LogWrite]) -> Result<(), StoreError> {
        let query = query(WRITE_LOGS)
            .bind(logs.iter().map(|log| log.key.job).collect::<Vec<_>>())
            .bind(logs.iter().map(|log| log.key.token).collect::<Vec<_>>())
            .bind(logs.iter().map(|log| log.text.as_str()).collect::<Vec<_>>())
            .bind(logs.iter().map(|log| log.is_cut).collect::<Vec<_>>());
        self.rows(query).await.map(drop)
    }

    /// Returns what the last attempts of a job have printed, the latest first.
    pub(crate) async fn job_logs(&self, job: JobId) -> Result<Vec<LogRow>, StoreError> {
        let rows = self.rows(query(JOB_LOGS).bind(job)).await?;
        let log = |row: &PgRow| {
            Ok(LogRow {
                fencing_token: row.try_get("fencing_token")?,
                text: row.try_get("text")?,
                is_cut: row.try_get("is_cut")?,
                written_at: row.try_get("written_at")?,
            })
        };
        Ok(rows.iter().map(log).collect::<Result<_, sqlx::Error>>()?)
    }
}
