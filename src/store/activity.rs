//! Activity: the statements about what was done in each minute. One method, one statement.

use std::time::Duration;

use serde::Serialize;
use sqlx::query;
#[cfg(feature = "cli")]
use sqlx::{Row, postgres::PgRow};

#[cfg(feature = "cli")]
use super::ACTIVITY;
use super::{
    FORGET_ACTIVITY, REPORT,
    call::{Store, StoreError},
};
use crate::observe::rates::Done;

/// Only figures: nothing waits for them for long.
const REPORTED_WITHIN: Duration = Duration::from_secs(1);

/// What a worker has done in one queue.
#[derive(Debug, Serialize)]
struct Reported<'a> {
    queue: &'a str,
    #[serde(flatten)]
    done: &'a Done,
}

/// What all workers have done in one minute, in one queue.
#[cfg(feature = "cli")]
#[derive(Debug, Clone)]
pub(crate) struct Minute {
    pub(crate) minutes_ago: i64,
    pub(crate) done: Done,
}

impl Store {
    /// Adds to this minute what a worker has done.
    pub(crate) async fn report(&self, done: &[(&str, Done)]) -> Result<(), StoreError> {
        let mut reported: Vec<_> = done.iter().map(|(queue, done)| Reported { queue, done }).collect();
        // In one order, so that workers who report at once wait for each other and never in a circle.
        reported.sort_by_key(|of| of.queue);
        let reported = serde_json::to_value(&reported).unwrap_or_default();
        self.rows_within(REPORTED_WITHIN, query(REPORT).bind(reported)).await.map(drop)
    }

    /// Forgets what nobody looks at any more.
    pub(crate) async fn forget_activity(&self) -> Result<(), StoreError> {
        self.rows_within(REPORTED_WITHIN, query(FORGET_ACTIVITY)).await.map(drop)
    }

    /// What all workers have done, by minute and queue.
    #[cfg(feature = "cli")]
    pub(crate) async fn activity(&self, minutes: i32) -> Result<Vec<Minute>, StoreError> {
        let rows = self.rows(query(ACTIVITY).bind(minutes)).await?;
        let minute = |row: &PgRow| {
            Ok(Minute {
                minutes_ago: row.try_get("minutes_ago")?,
                done: Done {
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
