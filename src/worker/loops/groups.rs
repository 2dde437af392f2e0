//! Groups: releases the jobs that follow those which this worker has ended, and finds what was left.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use uuid::Uuid;

use super::{Work, jittered, relay::Relay};
use crate::{
    observe::repeats,
    recover::groups,
    store::{Store, StoreError},
    worker::turns::Turn,
};

/// How often the worker with the turn begins to look for ends that were not noted, and for groups that are gone.
const TENDED_EVERY: Duration = Duration::from_secs(10);
/// How long one such look takes; the next one goes on. At 50 µs a held follower it covers some 10,000.
const LOOK_MAX: Duration = Duration::from_millis(500);

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
        let mut tended_at = Instant::now();
        let (mut mended, mut swept) = (Uuid::nil(), Uuid::nil());
        loop {
            sleep(jittered(self.every)).await;
            turns.wait_for(Turn::Relay).await;
            if !turns.has_groups() {
                continue;
            }
            if let Err(error) = groups::release(store, nats, stop).await
                && let Some(left_out) = repeats::tell("followers", &error)
            {
                tracing::warn!(%error, left_out, "could not release jobs that follow others; the worker will retry");
            }
            if tended_at.elapsed() < TENDED_EVERY {
                continue;
            }
            tended_at = Instant::now();
            if let Err(error) = look(store, &mut mended, &mut swept).await {
                tracing::debug!(%error, "could not look after groups; the worker will retry");
            }
        }
    }
}

/// Looks at a part of all followers, from where the last look ended.
async fn look(store: &Store, mended: &mut Uuid, swept: &mut Uuid) -> Result<(), StoreError> {
    let began_at = Instant::now();
    loop {
        *mended = groups::mend(store, *mended).await?;
        if mended.is_nil() || began_at.elapsed() > LOOK_MAX {
            break;
        }
    }
    let began_at = Instant::now();
    loop {
        *swept = groups::sweep(store, *swept).await?;
        if swept.is_nil() || began_at.elapsed() > LOOK_MAX {
            break;
        }
    }
    Ok(())
}
