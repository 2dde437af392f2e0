//! Redrives: goes on with calm redrives, while it is this worker's turn.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::recover;
use crate::{
    observe::repeats,
    store::Store,
    worker::{
        loops::{Work, jittered},
        turns::{Turn, Turns},
    },
};

#[derive(Clone)]
pub(crate) struct TendRedrives {
    pub(crate) store: Store,
    pub(crate) turns: Arc<Turns>,
    pub(crate) every: Duration,
}

impl Work for TendRedrives {
    const NAME: &'static str = "redrives";

    async fn run(self) {
        loop {
            sleep(jittered(self.every)).await;
            self.turns.wait_for(Turn::Relay).await;
            if self.turns.has_redrives()
                && let Err(error) = recover::tend(&self.store).await
                && let Some(left_out) = repeats::tell("redrives", &error)
            {
                tracing::warn!(%error, left_out, "could not go on with a redrive; the worker will retry");
            }
        }
    }
}
