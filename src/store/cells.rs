//! Cells: the statements that move a queue to another cell. One method, one statement.

use chrono::{DateTime, Utc};
use sqlx::{Row, postgres::PgRow, query};

use super::{
    BEGIN_MOVE, END_MOVE, FORGET_MARK, KEYS_OF_QUEUE, LEAVE_SCHEDULE, LEFT_BEHIND, MARK_QUEUE, MARKED_QUEUES,
    OPEN_QUEUE, SCHEDULES_OF_QUEUE, SETTINGS_OF_QUEUE, TAKE_KEYS, TAKE_SCHEDULE,
    call::{Store, StoreError},
    queues::events,
    rows::u64_of,
};
use crate::job::{JobId, events::QueueEvents};

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
}

/// The codes with which Postgres refuses a job of a marked queue: see `refuse_moved` of the schema.
pub(super) const MOVED: &str = "TN001";
pub(super) const ARRIVES: &str = "TN002";

/// A queue with a mark.
#[derive(Debug, Clone)]
pub(crate) struct Marked {
    pub(crate) queue: String,
    pub(crate) mark: Mark,
    /// The cell from which it comes back, if it had moved from here.
    pub(crate) comes_from: Option<String>,
    /// When the copy of its keys began, by the clock of the cell that it leaves.
    pub(crate) since: Option<DateTime<Utc>>,
}

/// The limits, the events and the pause of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SettingsOfQueue {
    pub(crate) max_running: Option<u32>,
    pub(crate) max_queued: Option<u64>,
    pub(crate) events: QueueEvents,
    pub(crate) is_paused: bool,
    /// The number of its last move.
    pub(crate) moves: i64,
}

/// A schedule of a queue.
#[derive(Debug, Clone)]
pub(crate) struct ScheduleOfQueue {
    pub(crate) name: String,
    /// The whole schedule as JSON.
    pub(crate) whole: String,
    pub(crate) changed_at: DateTime<Utc>,
}

/// A move that has begun in a cell.
#[derive(Debug, Clone)]
pub(crate) struct BegunMove {
    /// Its fencing number there.
    pub(crate) number: i64,
    pub(crate) mark: Option<Mark>,
    /// As [`Marked::comes_from`].
    pub(crate) comes_from: Option<String>,
    /// As [`Marked::since`].
    pub(crate) since: Option<DateTime<Utc>>,
}

/// The cell from which a queue that has moved comes back.
pub(super) fn comes_from(row: &PgRow) -> Result<Option<String>, sqlx::Error> {
    let has_moved = row.try_get::<Option<String>, _>("moved_to")?.is_some();
    Ok(row.try_get::<Option<String>, _>("arrives_from")?.filter(|_| has_moved))
}

/// Whether a move still holds.
fn holds(rows: &[PgRow]) -> Result<bool, StoreError> {
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    Ok(row.try_get("holds")?)
}

impl Store {
    /// Begins a move of a queue: every earlier one ends.
    pub(crate) async fn begin_move(&self, queue: &str) -> Result<BegunMove, StoreError> {
        let rows = self.rows(query(BEGIN_MOVE).bind(queue.to_owned())).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let (number, since) = (row.try_get("moves")?, row.try_get("arrives_since")?);
        Ok(BegunMove { number, mark: Mark::of(row)?, comes_from: comes_from(row)?, since })
    }

    /// Changes a queue's mark. `comes_from`: the cell from which it arrives or comes back, and when the copy of its
    /// keys began. Returns `false` if a later move has begun.
    pub(crate) async fn mark_queue(
        &self,
        queue: &str,
        number: i64,
        mark: &Mark,
        comes_from: Option<(&str, DateTime<Utc>)>,
        patience: &'static str,
    ) -> Result<bool, StoreError> {
        let to = if let Mark::MovedTo(cell) = mark { Some(cell.clone()) } else { None };
        let (from, since) = comes_from.map(|(cell, since)| (cell.to_owned(), since)).unzip();
        let query = query(MARK_QUEUE).bind(queue.to_owned()).bind(number).bind(to).bind(from);
        holds(&self.rows(query.bind(since).bind(patience)).await?)
    }

    /// Accepts new jobs of a queue again. Returns `false` if a later move has begun.
    pub(crate) async fn open_queue(&self, queue: &str, number: i64) -> Result<bool, StoreError> {
        holds(&self.rows(query(OPEN_QUEUE).bind(queue.to_owned()).bind(number)).await?)
    }

    /// Forgets that a queue was about to come back here.
    pub(crate) async fn end_move(&self, queue: &str, number: i64) -> Result<(), StoreError> {
        self.rows(query(END_MOVE).bind(queue.to_owned()).bind(number)).await.map(drop)
    }

    /// Removes the trigger of a queue without a mark.
    pub(crate) async fn forget_mark(&self, queue: &str) -> Result<(), StoreError> {
        self.rows(query(FORGET_MARK).bind(queue.to_owned())).await.map(drop)
    }

    /// Returns the queues with marks.
    pub(crate) async fn marked_queues(&self) -> Result<Vec<Marked>, StoreError> {
        let mut all = Vec::new();
        for row in &self.rows(query(MARKED_QUEUES)).await? {
            if let Some(mark) = Mark::of(row)? {
                let (queue, since) = (row.try_get("queue")?, row.try_get("arrives_since")?);
                all.push(Marked { queue, mark, comes_from: comes_from(row)?, since });
            }
        }
        Ok(all)
    }

    /// Returns at most `limit` unique keys of a queue, with their jobs, in the order of these: of jobs after this one,
    /// and with ids of `since` or later.
    pub(crate) async fn keys_of_queue(
        &self,
        queue: &str,
        after: JobId,
        since: Option<DateTime<Utc>>,
        limit: i64,
    ) -> Result<Vec<(String, JobId)>, StoreError> {
        let query = query(KEYS_OF_QUEUE).bind(queue.to_owned()).bind(after).bind(since).bind(limit);
        let rows = self.rows(query).await?;
        let key = |row: &PgRow| Ok((row.try_get("key")?, row.try_get("job_id")?));
        Ok(rows.iter().map(key).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Takes these keys, as far as they are free; returns how many were.
    pub(crate) async fn take_keys(&self, queue: &str, keys: &[(String, JobId)]) -> Result<u64, StoreError> {
        let (keys, jobs): (Vec<String>, Vec<JobId>) = keys.iter().cloned().unzip();
        let rows = self.rows(query(TAKE_KEYS).bind(queue.to_owned()).bind(keys).bind(jobs)).await?;
        let new = rows.iter().map(|row| row.try_get::<bool, _>("is_new")).collect::<Result<Vec<_>, _>>()?;
        Ok(new.into_iter().filter(|is_new| *is_new).count() as u64)
    }

    /// Returns the limits and the pause of a queue.
    pub(crate) async fn settings_of_queue(&self, queue: &str) -> Result<SettingsOfQueue, StoreError> {
        let rows = self.rows(query(SETTINGS_OF_QUEUE).bind(queue.to_owned())).await?;
        let Some(row) = rows.first() else { return Ok(SettingsOfQueue::default()) };
        Ok(SettingsOfQueue {
            max_running: row.try_get::<Option<i32>, _>("max_running")?.map(i32::unsigned_abs),
            max_queued: row.try_get::<Option<i64>, _>("max_queued")?.map(i64::unsigned_abs),
            events: events(row)?,
            is_paused: row.try_get::<Option<DateTime<Utc>>, _>("paused_at")?.is_some(),
            moves: row.try_get("moves")?,
        })
    }

    /// Returns a queue's schedules.
    pub(crate) async fn schedules_of_queue(&self, queue: &str) -> Result<Vec<ScheduleOfQueue>, StoreError> {
        let rows = self.rows(query(SCHEDULES_OF_QUEUE).bind(queue.to_owned())).await?;
        let schedule = |row: &PgRow| {
            let (name, whole) = (row.try_get("name")?, row.try_get("schedule")?);
            Ok(ScheduleOfQueue { name, whole, changed_at: row.try_get("changed_at")? })
        };
        Ok(rows.iter().map(schedule).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Takes a schedule of another cell. Returns `false` if one of this name exists, or a later move has begun.
    pub(crate) async fn take_schedule(&self, whole: &str, number: i64) -> Result<bool, StoreError> {
        Ok(!self.rows(query(TAKE_SCHEDULE).bind(whole.to_owned()).bind(number)).await?.is_empty())
    }

    /// Removes a schedule that another cell has taken. Returns `false` if it has changed since, or a later move has
    /// begun.
    pub(crate) async fn leave_schedule(
        &self,
        schedule: &ScheduleOfQueue,
        queue: &str,
        number: i64,
    ) -> Result<bool, StoreError> {
        let query = query(LEAVE_SCHEDULE).bind(schedule.name.clone()).bind(queue.to_owned());
        Ok(!self.rows(query.bind(schedule.changed_at).bind(number)).await?.is_empty())
    }

    /// Returns how many live jobs, and how many dead letters, a queue has, each counted to `limit`.
    pub(crate) async fn left_behind(&self, queue: &str, limit: i64) -> Result<(u64, u64), StoreError> {
        let rows = self.rows(query(LEFT_BEHIND).bind(queue.to_owned()).bind(limit)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok((u64_of(row, "live")?, u64_of(row, "dead")?))
    }
}
