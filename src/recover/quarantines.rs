//! Quarantines: begins and ends them, and calls the jobs that need to wait no more. The worker that has the relay's
//! turn does, once a second, while a kind is watched.
//!
//! Not here: when one begins and ends. `store/quarantine/tend_quarantines.sql` decides. The relay publishes the jobs.

use crate::store::{Store, StoreError};

/// The most jobs that one statement calls.
const AT_ONCE: i64 = 1_000;

/// Judges all watched kinds.
pub(crate) async fn tend(store: &Store) -> Result<(), StoreError> {
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
    loop {
        let called = store.call_quarantined(AT_ONCE).await?;
        if called.is_empty() {
            return Ok(());
        }
        store.run_now(&called, None).await?;
    }
}
