//! Figures: reports rates and counts, for people.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{Work, jittered};
use crate::{
    job::JobError,
    nats::Nats,
    observe::{metrics::Gauges, repeats},
    store::Store,
    worker::{counts, queues::Queues, turns::Turns},
};

/// About this many workers read the counts three times between two scans; in a larger fleet each reads them less often.
const FLEET_SHOWN_BY: u32 = 10;

/// Reports this worker's rates at intervals.
#[derive(Clone)]
pub(crate) struct Report {
    pub(crate) store: Store,
    pub(crate) queues: Arc<Queues>,
    pub(crate) every: Duration,
}

impl Work for Report {
    const NAME: &'static str = "report";

    async fn run(self) {
        loop {
            sleep(jittered(self.every)).await;
            self.now().await;
        }
    }
}

impl Report {
    /// Adds this worker's counts to the fleet's rates of this minute. A report that fails is dropped: rates are for
    /// people, and Postgres may have counted a report whose answer was lost.
    pub(crate) async fn now(&self) {
        let done: Vec<_> = (self.queues.measures.iter())
            .filter_map(|(queue, of)| of.rates.take().map(|done| (queue.as_str(), done)))
            .collect();
        if let Err(error) = self.store.report(&done).await {
            let is_denied = error.is_denied();
            let error = JobError::from(error).text();
            if let Some(left_out) = is_denied.then(|| repeats::tell("rates", &error)).flatten() {
                tracing::warn!(
                    error,
                    left_out,
                    "the dashboard's rates lack this worker; see postgres/roles.sql"
                );
            } else {
                tracing::debug!(error, "could not report the rates; the dashboard lacks them");
            }
        }
    }
}

/// Exports the counts of the last scan.
#[derive(Clone)]
pub(crate) struct ShowFleet {
    pub(crate) store: Store,
    pub(crate) turns: Arc<Turns>,
    pub(crate) scan_every: Duration,
    pub(crate) gauges: Gauges,
}

impl Work for ShowFleet {
    const NAME: &'static str = "fleet";

    async fn run(self) {
        counts::show(&self.store, &self.gauges, || self.turns.in_step(self.scan_every / 3, FLEET_SHOWN_BY))
            .await;
    }
}

/// Exports the number of messages that NATS holds of each queue.
#[derive(Clone)]
pub(crate) struct MeasureMessages {
    pub(crate) nats: Nats,
    pub(crate) queues: Arc<Queues>,
    pub(crate) every: Duration,
    pub(crate) gauges: Gauges,
}

impl Work for MeasureMessages {
    const NAME: &'static str = "messages";

    async fn run(self) {
        loop {
            sleep(jittered(self.every)).await;
            for name in self.queues.names() {
                if let Ok(seen) = self.nats.consumer_seen(name).await {
                    self.gauges.messages(name, seen.pending, seen.unacknowledged);
                }
            }
        }
    }
}
