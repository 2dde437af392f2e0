//! Groups: releases the jobs that follow those which this worker has ended, and finds what was left.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use uuid::Uuid;

use super::{Work, jittered, relay::Relay};
use crate::{observe::repeats, recover::groups, worker::turns::Turn};

/// How often the worker with the turn looks for ends that were not noted.
const MENDED_EVERY: Duration = Duration::from_secs(10);
/// How often it forgets groups that are gone.
const SWEPT_EVERY: Duration = Duration::from_mins(5);

/// Releases the followers of jobs that this worker has ended.
#[derive(Clone)]
pub(crate) struct ReleaseFollowers {
    pub(crate) relay: Relay,
    pub(crate) ended: Arc<Notify>,
}

impl Work for ReleaseFollowers {
    const NAME: &'static str = "followers";

    async fn run(self) {
        loop {
            self.ended.notified().await;
            let Relay { store, nats, stop, .. } = &self.relay;
            // The relay does it at its next look.
            if let Err(error) = groups::release(store, nats, stop).await
                && let Some(left_out) = repeats::tell("followers", &error)
            {
                tracing::warn!(%error, left_out, "could not release jobs that follow others; the relay will");
            }
        }
    }
}

/// Looks after groups, while it is this worker's turn.
#[derive(Clone)]
pub(crate) struct TendGroups {
    pub(crate) relay: Relay,
    pub(crate) every: Duration,
}

impl Work for TendGroups {
    const NAME: &'static str = "groups";

    async fn run(self) {
        let Relay { store, nats, turns, stop } = &self.relay;
        let (mut mended_at, mut swept_at) = (Instant::now(), Instant::now());
        let mut after = Uuid::nil();
        loop {
            sleep(jittered(self.every)).await;
            turns.wait_for(Turn::Relay).await;
            if !turns.has_groups() {
                continue;
            }
            if let Err(error) = groups::release(store, nats, stop).await {
                tracing::debug!(%error, "could not release jobs that follow others; the worker will retry");
                continue;
            }
            if mended_at.elapsed() >= MENDED_EVERY {
                mended_at = Instant::now();
                match groups::mend(store, after).await {
                    Ok(next) => after = next,
                    Err(error) => {
                        tracing::debug!(%error, "could not look after groups; the worker will retry");
                    }
                }
            }
            if swept_at.elapsed() >= SWEPT_EVERY {
                swept_at = Instant::now();
                if let Err(error) = groups::sweep(store).await {
                    tracing::debug!(%error, "could not forget old groups; the worker will retry");
                }
            }
        }
    }
}
