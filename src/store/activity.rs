//! Activity: the statements of the counts by minute. One method, one statement.

use std::time::Duration;

use serde::Serialize;
use sqlx::{Row, postgres::PgRow, query};

use super::{
    ACTIVITY, REPORT, THIN_ACTIVITY,
    call::{Store, StoreError},
};
use crate::observe::rates::QueueCounts;

/// How many rows one call adds up. A scan every 30 s keeps up with ten thousand busy queues.
const ADDED_UP: i64 = 5_000;
/// Nothing depends on these figures, so a call for them is short.
const REPORTED_WITHIN: Duration = Duration::from_secs(1);

/// A worker's counts of one queue since its last report.
#[derive(Debug, Serialize)]
struct Reported<'a> {
    queue: &'a str,
    #[serde(flatten)]
    done: &'a QueueCounts,
}

/// The counts of all workers in a unit of time.
#[derive(Debug, Clone)]
pub struct Unit {
    /// How many units of time ago it began; 0: the current one.
    pub units_ago: i64,
    pub done: QueueCounts,
}

impl Store {
    /// Adds a worker's counts to this minute, and waits for the report before this one, whose caller may have gone: a
    /// worker that stops has then reported all. Without counts it only waits.
    pub(crate) async fn report(&self, done: &[(&str, QueueCounts)]) -> Result<(), StoreError> {
        let mut reported: Vec<_> = done.iter().map(|(queue, done)| Reported { queue, done }).collect();
        // In one order, so that workers that report at once never deadlock.
        reported.sort_by_key(|of| of.queue);
        let reported = (!reported.is_empty()).then(|| serde_json::to_value(&reported).unwrap_or_default());
        let store = self.clone();
        let sent = self.spawn(async move {
            let _one = store.reporting.lock().await;
            let Some(reported) = reported else { return Ok(()) };
            store.rows_within(REPORTED_WITHIN, query(REPORT).bind(reported)).await.map(drop)
        });
        sent.await.unwrap_or_else(|_| Err(sqlx::Error::WorkerCrashed.into()))
    }

    /// Adds up the counts of earlier minutes by longer units of time, and deletes those of more than eight days ago.
    pub(crate) async fn thin_activity(&self) -> Result<(), StoreError> {
        self.rows_within(REPORTED_WITHIN, query(THIN_ACTIVITY).bind(ADDED_UP)).await.map(drop)
    }

    /// Returns the counts of all workers of the last `units` units of time, each of `length_s` seconds: of all queues,
    /// or of one.
    pub async fn activity(
        &self,
        units: i64,
        length_s: i64,
        queue: Option<&str>,
    ) -> Result<Vec<Unit>, StoreError> {
        let query = query(ACTIVITY).bind(units).bind(length_s).bind(queue.map(str::to_owned));
        let rows = self.rows(query).await?;
        let unit = |row: &PgRow| {
            Ok(Unit {
                units_ago: row.try_get("units_ago")?,
                done: QueueCounts {
                    claimed: row.try_get("claimed")?,
                    completed: row.try_get("completed")?,
                    unkept: row.try_get("unkept")?,
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
        Ok(rows.iter().map(unit).collect::<Result<_, sqlx::Error>>()?)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::proof::place_with;

    /// A worker drops its loop of reports when it stops. What that had taken from the counts is on its way.
    #[tokio::test]
    async fn a_workers_last_report_waits_for_the_one_before() {
        let place = place_with(|_| ()).await;
        let store = place.tenure.store().clone();
        let mut lock = place.pool.begin().await.unwrap();
        sqlx::query("LOCK TABLE tenure.activity").execute(&mut *lock).await.unwrap();
        let before = tokio::spawn({
            let store = store.clone();
            async move { store.report(&[("q", QueueCounts { completed: 1, ..QueueCounts::default() })]).await }
        });
        let waits = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while place.value(waits).await != "1" {}
        before.abort();
        let last = tokio::spawn(async move { store.report(&[]).await });
        tokio::task::yield_now().await;
        lock.commit().await.unwrap();
        last.await.unwrap().unwrap();
        assert_eq!(place.value("SELECT sum(completed) FROM tenure.activity").await, "1");
    }
}
