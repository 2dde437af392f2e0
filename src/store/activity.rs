//! Activity: the statements of the counts by minute. One method, one statement.

use std::time::Duration;

use serde::Serialize;
use sqlx::query;
#[cfg(feature = "internals")]
use sqlx::{Row, postgres::PgRow};

#[cfg(feature = "internals")]
use super::ACTIVITY;
use super::{
    FORGET_ACTIVITY, REPORT,
    call::{Store, StoreError},
};
use crate::observe::rates::QueueCounts;

/// Nothing depends on these figures, so a call for them is short.
const REPORTED_WITHIN: Duration = Duration::from_secs(1);

/// A worker's counts of one queue since its last report.
#[derive(Debug, Serialize)]
struct Reported<'a> {
    queue: &'a str,
    #[serde(flatten)]
    done: &'a QueueCounts,
}

/// The counts of all workers in one minute, of one queue.
#[cfg(feature = "internals")]
#[derive(Debug, Clone)]
pub struct Minute {
    pub minutes_ago: i64,
    pub done: QueueCounts,
}

impl Store {
    /// Adds a worker's counts to this minute.
    pub(crate) async fn report(&self, done: &[(&str, QueueCounts)]) -> Result<(), StoreError> {
        let mut reported: Vec<_> = done.iter().map(|(queue, done)| Reported { queue, done }).collect();
        // In one order, so that workers that report at once never deadlock.
        reported.sort_by_key(|of| of.queue);
        let reported = serde_json::to_value(&reported).unwrap_or_default();
        self.rows_within(REPORTED_WITHIN, query(REPORT).bind(reported)).await.map(drop)
    }

    /// Deletes the counts of minutes more than a day ago.
    pub(crate) async fn forget_activity(&self) -> Result<(), StoreError> {
        self.rows_within(REPORTED_WITHIN, query(FORGET_ACTIVITY)).await.map(drop)
    }

    /// Returns the counts of all workers, by minute and queue.
    #[cfg(feature = "internals")]
    pub async fn activity(&self, minutes: i32) -> Result<Vec<Minute>, StoreError> {
        let rows = self.rows(query(ACTIVITY).bind(minutes)).await?;
        let minute = |row: &PgRow| {
            Ok(Minute {
                minutes_ago: row.try_get("minutes_ago")?,
                done: QueueCounts {
                    claimed: row.try_get("claimed")?,
                    completed: row.try_get("completed")?,
                    retried: row.try_get("retried")?,
                    snoozed: row.try_get("snoozed")?,
                    failed: row.try_get("failed")?,
                    cancelled: row.try_get("cancelled")?,
                    released: row.try_get("released")?,
                    waited: row.try_get("waited")?,
                    ran: row.try_get("ran")?,
                },
            })
        };
        Ok(rows.iter().map(minute).collect::<Result<_, sqlx::Error>>()?)
    }
}
