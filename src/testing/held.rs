//! Held: what the queued jobs of a test wait for.

use super::{At, TestTenure, fail};
use crate::{
    job::Status,
    store::{JobFilter, JobRow},
};

impl TestTenure {
    /// Returns the queued jobs, the oldest first, and what each waits for.
    pub(super) async fn held_at(&self, at: At) -> Vec<(JobRow, String)> {
        let filter = JobFilter::new().status(Status::Queued);
        let rows = self.store().list_jobs(&filter, i64::MAX, true).await;
        let mut rows = rows.unwrap_or_else(|error| fail(at, &error));
        rows.reverse();
        let store = self.store();
        let now = store.database_time().await.unwrap_or_else(|error| fail(at, &error));
        let waiting = rows.iter().filter(|row| row.is_held || row.scheduled_at > now);
        let waits = store.waits_for(&waiting.map(|row| row.id).collect::<Vec<_>>()).await;
        let waits = waits.unwrap_or_else(|error| fail(at, &error));
        let mut queues: Vec<_> = rows.iter().map(|row| row.queue.clone()).collect();
        queues.sort_unstable();
        queues.dedup();
        let settings = store.queue_settings(&queues).await.unwrap_or_else(|error| fail(at, &error));
        let why = |row: &JobRow| {
            let waits = waits.iter().filter(|(id, _)| *id == row.id).map(|(_, waits)| waits.to_string());
            let waits = waits.collect::<Vec<_>>().join("; ");
            let of_queue = settings.iter().find(|of| of.queue == row.queue);
            if !waits.is_empty() {
                waits
            } else if row.scheduled_at > now {
                format!("waits until {}", row.scheduled_at.to_rfc3339())
            } else if of_queue.is_some_and(|of| of.paused) {
                format!("its queue {:?} is paused", row.queue)
            } else if row.is_held {
                let lane = row.lane.as_deref().unwrap_or_default();
                format!("its lane {lane:?} holds it, until a job of it ends or for its rate")
            } else if of_queue.is_some_and(|of| of.room == Some(0)) {
                format!("as many jobs of its queue {:?} run as may", row.queue)
            } else {
                "is due; a worker that has a handler for it and serves its queue would run it".to_owned()
            }
        };
        rows.into_iter().map(|row| (why(&row), row)).map(|(why, row)| (row, why)).collect()
    }
}
