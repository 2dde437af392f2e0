//! Cells: the statements that move a queue to another cell. One method, one statement.

use chrono::{DateTime, Utc};
use sqlx::{Row, postgres::PgRow, query};

use super::{
    FORGET_MARK, KEYS_OF_QUEUE, LEFT_BEHIND, MARK_QUEUE, MARKED_QUEUES, SCHEDULES_OF_QUEUE, TAKE_KEYS,
    TAKE_SCHEDULE,
    call::{Store, StoreError},
    rows::u64_of,
};
use crate::job::JobId;

/// Where a queue's new jobs go, if not here and now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mark {
    /// To this cell.
    MovedTo(String),
    /// Nowhere yet: the queue arrives from this cell.
    ArrivesFrom(String),
}

impl Mark {
    /// Reads the columns `moved_to` and `arrives_from`.
    pub(super) fn of(row: &PgRow) -> Result<Option<Self>, sqlx::Error> {
        let from: Option<String> = row.try_get("arrives_from")?;
        Ok(match row.try_get("moved_to")? {
            Some(to) => Some(Self::MovedTo(to)),
            None => from.map(Self::ArrivesFrom),
        })
    }

    /// The cells to which it has moved, and from which it arrives.
    fn ways(mark: Option<&Self>) -> (Option<&str>, Option<&str>) {
        match mark {
            Some(Self::MovedTo(cell)) => (Some(cell), None),
            Some(Self::ArrivesFrom(cell)) => (None, Some(cell)),
            None => (None, None),
        }
    }
}

/// The codes with which Postgres refuses a job of a marked queue: see `refuse_moved` of the schema.
pub(super) const MOVED: &str = "TN001";
pub(super) const ARRIVES: &str = "TN002";

impl Store {
    /// Marks a queue, or removes its mark.
    pub(crate) async fn mark_queue(&self, queue: &str, mark: Option<&Mark>) -> Result<(), StoreError> {
        let (to, from) = Mark::ways(mark);
        let (to, from) = (to.map(str::to_owned), from.map(str::to_owned));
        self.rows(query(MARK_QUEUE).bind(queue.to_owned()).bind(to).bind(from)).await.map(drop)
    }

    /// Removes the trigger of a queue without a mark.
    pub(crate) async fn forget_mark(&self, queue: &str) -> Result<(), StoreError> {
        self.rows(query(FORGET_MARK).bind(queue.to_owned())).await.map(drop)
    }

    /// Returns the queues with marks.
    pub(crate) async fn marked_queues(&self) -> Result<Vec<(String, Mark)>, StoreError> {
        let rows = self.rows(query(MARKED_QUEUES)).await?;
        let marked = |row: &PgRow| Ok((row.try_get("queue")?, Mark::of(row)?));
        let rows: Vec<(String, Option<Mark>)> =
            rows.iter().map(marked).collect::<Result<_, sqlx::Error>>()?;
        Ok(rows.into_iter().filter_map(|(queue, mark)| Some((queue, mark?))).collect())
    }

    /// Returns at most `limit` unique keys of a queue, with their jobs.
    pub(crate) async fn keys_of_queue(
        &self,
        queue: &str,
        after: &str,
        since: Option<DateTime<Utc>>,
        limit: i64,
    ) -> Result<Vec<(String, JobId)>, StoreError> {
        let query =
            query(KEYS_OF_QUEUE).bind(queue.to_owned()).bind(after.to_owned()).bind(since).bind(limit);
        let rows = self.rows(query).await?;
        let key = |row: &PgRow| Ok((row.try_get("key")?, row.try_get("job_id")?));
        Ok(rows.iter().map(key).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Takes these keys, as far as they are free; returns how many were.
    pub(crate) async fn take_keys(&self, queue: &str, keys: &[(String, JobId)]) -> Result<u64, StoreError> {
        let (keys, jobs): (Vec<String>, Vec<JobId>) = keys.iter().cloned().unzip();
        let rows = self.rows(query(TAKE_KEYS).bind(queue.to_owned()).bind(keys).bind(jobs)).await?;
        Ok(rows.len() as u64)
    }

    /// Returns the names of a queue's schedules, each with the whole schedule as JSON.
    pub(crate) async fn schedules_of_queue(&self, queue: &str) -> Result<Vec<(String, String)>, StoreError> {
        let rows = self.rows(query(SCHEDULES_OF_QUEUE).bind(queue.to_owned())).await?;
        let schedule = |row: &PgRow| Ok((row.try_get("name")?, row.try_get("schedule")?));
        Ok(rows.iter().map(schedule).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Takes a schedule of another cell. Returns `false` if one of this name exists.
    pub(crate) async fn take_schedule(&self, schedule: &str) -> Result<bool, StoreError> {
        Ok(!self.rows(query(TAKE_SCHEDULE).bind(schedule.to_owned())).await?.is_empty())
    }

    /// Returns how many live jobs, and how many dead letters, a queue has.
    pub(crate) async fn left_behind(&self, queue: &str) -> Result<(u64, u64), StoreError> {
        let rows = self.rows(query(LEFT_BEHIND).bind(queue.to_owned())).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok((u64_of(row, "live")?, u64_of(row, "dead")?))
    }
}
