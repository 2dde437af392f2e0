//! Retention: the statements that remove old rows. One method, one statement, one bounded step.

use std::time::Duration;

use sqlx::{Row, postgres::PgRow, query};
use uuid::Uuid;

use super::{
    PURGE_CANCELLED, PURGE_DAY, PURGE_DONE, PURGE_EVENTS, PURGE_GATE, PURGE_KEYS, PURGE_OLD_DEAD, PURGE_ROWS,
    PURGE_TRACES, PURGE_TURN,
    call::{Store, StoreError},
    rows::AGE_MAX,
};

/// How long the check of a day of the history may take.
const DAY_WITHIN: Duration = Duration::from_mins(10);

/// The numbers of rows that one step removed, and the place to continue at.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Purged {
    pub(crate) completed: u64,
    pub(crate) cancelled: u64,
    /// Rows of other kinds.
    pub(crate) others: u64,
    /// The last id that the step looked at; `None`: it reached the end.
    pub(crate) last: Option<Uuid>,
}

fn seconds(age: Duration) -> f64 {
    age.min(AGE_MAX).as_secs_f64()
}

fn count(row: &PgRow, column: &str) -> Result<u64, sqlx::Error> {
    Ok(row.try_get::<i64, _>(column)?.unsigned_abs())
}

impl Store {
    /// Takes the turn to sweep if the last sweep began `every` ago. Returns whether this worker has it.
    pub(crate) async fn purge_gate(
        &self,
        every: Duration,
        shortest: Option<Duration>,
    ) -> Result<bool, StoreError> {
        let query = query(PURGE_GATE).bind(every.as_secs_f64()).bind(shortest.map(seconds));
        Ok(!self.rows(query).await?.is_empty())
    }

    /// Keeps the turn of a running sweep.
    pub(crate) async fn purge_turn(&self) -> Result<(), StoreError> {
        self.rows(query(PURGE_TURN)).await.map(drop)
    }

    /// Records the end of a sweep.
    pub(crate) async fn purge_done(&self) -> Result<(), StoreError> {
        self.rows(query(PURGE_DONE)).await.map(drop)
    }

    /// Removes a day of the history. `None`: no day is old enough as a whole. The statement reads every row of the day,
    /// which may take longer than other calls may.
    pub(crate) async fn purge_day(
        &self,
        completed: Option<Duration>,
        cancelled: Option<Duration>,
    ) -> Result<Option<Purged>, StoreError> {
        let query = query(PURGE_DAY).bind(completed.map(seconds)).bind(cancelled.map(seconds));
        let rows = self.rows_aside(DAY_WITHIN, query).await?;
        let day = |row: &PgRow| {
            Ok(Purged {
                completed: count(row, "completed")?,
                cancelled: count(row, "cancelled")?,
                ..Purged::default()
            })
        };
        Ok(rows.first().map(day).transpose().map_err(|error: sqlx::Error| error)?)
    }

    /// Removes old finished jobs from days with jobs that are kept. Looks at `step` rows after the id `after`.
    pub(crate) async fn purge_rows(
        &self,
        completed: Option<Duration>,
        cancelled: Option<Duration>,
        after: Uuid,
        step: i32,
    ) -> Result<Purged, StoreError> {
        let query = query(PURGE_ROWS)
            .bind(completed.map(seconds))
            .bind(cancelled.map(seconds))
            .bind(after)
            .bind(step);
        let rows = self.rows(query).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(Purged {
            completed: count(row, "completed")?,
            cancelled: count(row, "cancelled")?,
            others: 0,
            last: row.try_get("last")?,
        })
    }

    /// Removes at most `step` old cancelled jobs.
    pub(crate) async fn purge_cancelled(&self, keep: Duration, step: i32) -> Result<u64, StoreError> {
        self.purge_some(PURGE_CANCELLED, keep, step).await
    }

    /// Removes at most `step` old dead letters.
    pub(crate) async fn purge_old_dead(&self, keep: Duration, step: i32) -> Result<u64, StoreError> {
        self.purge_some(PURGE_OLD_DEAD, keep, step).await
    }

    /// Removes at most `step` old recovery events.
    pub(crate) async fn purge_events(&self, keep: Duration, step: i32) -> Result<u64, StoreError> {
        self.purge_some(PURGE_EVENTS, keep, step).await
    }

    pub(crate) async fn purge_some(
        &self,
        sql: &'static str,
        keep: Duration,
        step: i32,
    ) -> Result<u64, StoreError> {
        let rows = self.rows(query(sql).bind(seconds(keep)).bind(step)).await?;
        Ok(count(rows.first().ok_or(sqlx::Error::RowNotFound)?, "gone")?)
    }

    /// Removes attempts and effects of jobs that are gone. Looks at `step` jobs after the id `after`.
    pub(crate) async fn purge_traces(&self, after: Uuid, step: i32) -> Result<Purged, StoreError> {
        let rows = self.rows(query(PURGE_TRACES).bind(after).bind(step)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(Purged { others: count(row, "gone")?, last: row.try_get("last")?, ..Purged::default() })
    }

    /// Removes old keys. Looks at `step` keys after the id `after`. `first_seq` is the first sequence that the stream
    /// still has, if known.
    pub(crate) async fn purge_keys(
        &self,
        keep: Duration,
        first_seq: Option<u64>,
        after: Uuid,
        step: i32,
    ) -> Result<Purged, StoreError> {
        let query = query(PURGE_KEYS)
            .bind(seconds(keep))
            .bind(first_seq.map(u64::cast_signed))
            .bind(after)
            .bind(step);
        let rows = self.rows(query).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(Purged { others: count(row, "gone")?, last: row.try_get("last")?, ..Purged::default() })
    }
}
