//! Redrives: goes on with calm redrives. The worker that has the relay's turn does, once a second, while one is open.
//!
//! Not here: what is redriven next, and when one stops. `tenure.tend_redrives` in `migrations/functions/redrives`
//! decides.
//! The relay publishes the jobs.

use crate::{
    observe::{metrics, repeats},
    store::{Store, StoreError},
};

/// The most jobs of one redrive in one statement.
const AT_ONCE: i32 = 1_000;

/// Goes on with all redrives that are open.
pub(crate) async fn tend(store: &Store) -> Result<(), StoreError> {
    for change in store.tend_redrives(AT_ONCE).await? {
        metrics::redriven(change.queued);
        let (redrive, redriven, failed, jobs) = (change.id, change.redriven, change.failed, change.jobs);
        let Some(state) = change.state else {
            if let Some(error) = change.reason
                && let Some(left_out) = repeats::tell(&format!("redrive {redrive}"), &error)
            {
                tracing::warn!(
                    %redrive,
                    error,
                    left_out,
                    "could not go on with a redrive; the worker will retry, and goes on with the others"
                );
            }
            continue;
        };
        match (state.as_str(), change.reason) {
            ("stopped", reason) => {
                let why = "a redrive has stopped: too many jobs failed";
                tracing::error!(%redrive, redriven, failed, jobs, reason, "{why}");
            }
            ("done", _) => tracing::info!(%redrive, redriven, failed, jobs, "a redrive is done"),
            (state, _) => tracing::info!(%redrive, state, redriven, failed, jobs, "a redrive goes on"),
        }
    }
    Ok(())
}
