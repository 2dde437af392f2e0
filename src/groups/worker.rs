//! Groups: releases the jobs that follow those which this worker has ended, and finds what was left.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use uuid::Uuid;

use super::recover;
use crate::{
    observe::repeats,
    store::{Store, StoreError},
    worker::{
        loops::{Work, jittered, relay::Relay},
        turns::Turn,
    },
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
            if let Err(error) = recover::release(store, nats, stop).await
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
        let mut rounds = [Round::new(Tends::Ends), Round::new(Tends::Gone)];
        loop {
            sleep(jittered(self.every)).await;
            turns.wait_for(Turn::Relay).await;
            if !turns.has_groups() {
                continue;
            }
            if let Err(error) = recover::release(store, nats, stop).await
                && let Some(left_out) = repeats::tell("followers", &error)
            {
                tracing::warn!(%error, left_out, "could not release jobs that follow others; the worker will retry");
            }
            if tended_at.elapsed() < TENDED_EVERY {
                continue;
            }
            tended_at = Instant::now();
            for round in &mut rounds {
                if let Err(error) = round.look(store).await
                    && let Some(left_out) = repeats::tell("groups", &error)
                {
                    tracing::warn!(%error, left_out, "could not look after groups; the worker will retry");
                }
            }
        }
    }
}

/// What a look is for.
#[derive(Clone, Copy)]
enum Tends {
    /// Finds ends that left no note.
    Ends,
    /// Forgets groups that are gone.
    Gone,
}

impl Tends {
    /// How many followers a statement looks at.
    fn most(self) -> i32 {
        match self {
            Self::Ends => recover::MENDED_AT_ONCE,
            Self::Gone => recover::SWEPT_AT_ONCE,
        }
    }
}

/// A look at all followers, part by part.
struct Round {
    of: Tends,
    /// The last follower that was looked at; nil: the next part is the first.
    after: Uuid,
    /// How many followers the next statement looks at. One of them may wait for a hundred thousand jobs: a statement
    /// that fails, as at its deadline, is followed by a smaller one.
    most: i32,
}

impl Round {
    fn new(of: Tends) -> Self {
        Self { of, after: Uuid::nil(), most: of.most() }
    }

    /// Goes on from where the last look ended.
    async fn look(&mut self, store: &Store) -> Result<(), StoreError> {
        let began_at = Instant::now();
        loop {
            let part = match self.of {
                Tends::Ends => recover::mend(store, self.after, self.most).await,
                Tends::Gone => recover::sweep(store, self.after, self.most).await,
            };
            self.take(part)?;
            if self.after.is_nil() || began_at.elapsed() > LOOK_MAX {
                return Ok(());
            }
        }
    }

    fn take<E>(&mut self, part: Result<Uuid, E>) -> Result<(), E> {
        self.after = part.inspect_err(|_| self.most = (self.most / 4).max(1))?;
        self.most = (self.most * 2).min(self.of.most());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_fails_is_tried_again_as_a_smaller_one() {
        let mut round = Round::new(Tends::Ends);
        let at = Uuid::from_u128(7);
        assert_eq!(round.take(Ok::<_, &str>(at)), Ok(()));
        assert_eq!((round.after, round.most), (at, 200));
        for most in [50, 12, 3, 1, 1] {
            assert_eq!(round.take(Err("at its deadline")), Err("at its deadline"));
            assert_eq!((round.after, round.most), (at, most));
        }
        for most in [2, 4] {
            assert_eq!(round.take(Ok::<_, &str>(Uuid::nil())), Ok(()));
            assert_eq!((round.after, round.most), (Uuid::nil(), most));
        }
    }
}
