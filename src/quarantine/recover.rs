//! Quarantines: begins and ends them, and calls the jobs that need to wait no more. The worker that has the relay's
//! turn does, once a second, while a kind is watched.
//!
//! Not here: when one begins and ends. `quarantine/sql/tend_quarantines.sql` decides. The relay publishes the jobs.

use crate::{
    job::JobError,
    observe::repeats,
    store::{Store, StoreError, batch::halve},
};

/// The most jobs that one statement calls.
const AT_ONCE: i64 = 1_000;

/// Judges all watched kinds, and calls their jobs. A rule that cannot be judged keeps no job from being called.
pub(crate) async fn tend(store: &Store) -> Result<(), StoreError> {
    match judge(store).await {
        Err(error) if error.is_outage() => Err(error),
        judged => call(store).await.and(judged),
    }
}

async fn judge(store: &Store) -> Result<(), StoreError> {
    for of in store.tend_quarantines().await? {
        let (kind, ended, failed) = (of.kind, of.ended.unwrap_or_default(), of.failed.unwrap_or_default());
        match of.change.as_str() {
            "began" => {
                tracing::error!(
                    kind,
                    ended,
                    failed,
                    "a kind is in quarantine: too many attempts have failed. Its jobs wait, but for one at a time"
                );
            }
            "ended" => tracing::info!(kind, "a quarantine has ended: a job of the kind has completed"),
            change => tracing::info!(kind, change, "a job of a kind in quarantine was tried"),
        }
    }
    Ok(())
}

/// Makes the jobs due that need to wait no more. A job that Postgres refuses to write keeps no other waiting.
async fn call(store: &Store) -> Result<(), StoreError> {
    loop {
        let called = store.call_quarantined(AT_ONCE).await?;
        if called.is_empty() {
            return Ok(());
        }
        let mut parts = vec![called];
        while let Some(part) = parts.pop() {
            match store.run_now(&part, None).await {
                Ok(_) => {}
                Err(error) if !error.may_be_of_one_row() => return Err(error),
                Err(_) if part.len() > 1 => halve(part, &mut parts),
                Err(error) => {
                    let (job, error) = (part.first(), JobError::from(error).text());
                    if let Some(left_out) = repeats::tell("call", &error) {
                        tracing::warn!(
                            ?job,
                            error,
                            left_out,
                            "Postgres refused to make a job due whose quarantine has ended; it waits out its time. \
                             Make it due by `tenure jobs retry`"
                        );
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::place;

    #[tokio::test]
    async fn a_job_that_postgres_refuses_to_make_due_keeps_no_other_waiting() {
        let place = place().await;
        for _ in 0..3 {
            place.job().await;
        }
        place.execute("UPDATE tenure.jobs SET scheduled_at = now() + interval '15 min'").await;
        place
            .execute(
                "INSERT INTO tenure.quarantines (kind, share, attempts, within, probe_every) \
                 VALUES ('k', 0.3, 10, '1 min', '1 min')",
            )
            .await;
        place
            .execute("INSERT INTO tenure.quarantined_jobs (kind, job_id) SELECT 'k', id FROM tenure.jobs")
            .await;
        // The statement of all jobs fails, and those of its halves do not.
        place.raise_once("22023").await;
        assert!(tend(place.tenure.store()).await.is_ok());
        assert_eq!(place.value("SELECT count(*) FROM tenure.jobs WHERE scheduled_at <= now()").await, "3");
    }
}
