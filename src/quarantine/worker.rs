//! Quarantine: tells the database how the attempts of watched kinds end, and learns which kinds are in quarantine.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{recover, run::Quarantine};
use crate::{
    observe::{metrics::Gauges, repeats},
    store::Store,
    worker::{
        loops::{Work, jittered},
        turns::{Turn, Turns},
    },
};

/// About this many workers report and look that often; in a larger fleet each does so less often.
const LOOKED_BY: u32 = 20;

/// Reports this worker's attempts of watched kinds, and reads the rules.
#[derive(Clone)]
pub(crate) struct WatchKinds {
    pub(crate) quarantine: Quarantine,
    pub(crate) turns: Arc<Turns>,
    pub(crate) gauges: Gauges,
    pub(crate) every: Duration,
}

impl Work for WatchKinds {
    const NAME: &'static str = "quarantine";

    async fn run(self) {
        loop {
            sleep(jittered(self.turns.in_step(self.every, LOOKED_BY))).await;
            let (reported, seen) = if self.turns.has_quarantines() {
                // What cannot be reported keeps no rule from being read.
                (self.quarantine.report().await, self.quarantine.look().await)
            } else {
                (Ok(()), Ok(self.quarantine.forget()))
            };
            let error = reported.err().or(seen.as_ref().err().cloned());
            for (kind, is_quarantined) in seen.unwrap_or_default() {
                self.gauges.quarantine(&kind, is_quarantined);
            }
            if let Some(error) = error
                && let Some(left_out) = repeats::tell("quarantine", &error)
            {
                tracing::warn!(%error, left_out,
                    "could not count the attempts of watched kinds; see postgres/roles.sql");
            }
        }
    }
}

/// Begins and ends quarantines, while it is this worker's turn.
#[derive(Clone)]
pub(crate) struct TendQuarantines {
    pub(crate) store: Store,
    pub(crate) turns: Arc<Turns>,
    pub(crate) every: Duration,
}

impl Work for TendQuarantines {
    const NAME: &'static str = "quarantines";

    async fn run(self) {
        loop {
            sleep(jittered(self.every)).await;
            self.turns.wait_for(Turn::Relay).await;
            if self.turns.has_quarantines()
                && let Err(error) = recover::tend(&self.store).await
                && let Some(left_out) = repeats::tell("quarantines", &error)
            {
                tracing::warn!(%error, left_out, "could not judge the watched kinds; the worker will retry");
            }
        }
    }
}
