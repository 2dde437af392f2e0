//! Turns: asks for the turns that this worker may take, and keeps those that it has.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Work, failed, jittered};
use crate::{
    nats::Nats,
    observe::{health::Health, repeats},
    store::Store,
    worker::{
        builder::Recovery,
        presence::Presence,
        turns::{Turn, Turns},
    },
};

/// The longest time that a worker without a turn waits before it asks for one: only a few workers of a large fleet may
/// be left.
const ASKED_WITHIN: Duration = Duration::from_secs(60);
/// The pause before it asks because it was asked to: of many announcements, one question.
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub(crate) struct TakeTurns {
    pub(crate) store: Store,
    pub(crate) nats: Nats,
    pub(crate) turns: Arc<Turns>,
    pub(crate) presence: Arc<Presence>,
    pub(crate) health: Health,
    pub(crate) recovery: Vec<Recovery>,
    pub(crate) worker_id: String,
}

impl Work for TakeTurns {
    const NAME: &'static str = "turns";

    async fn run(self) {
        let Turns { every, lasts, .. } = *self.turns;
        loop {
            let wanted = self.turns_that_fit();
            let mut wait = every;
            if !wanted.is_empty() {
                let asked_at = Instant::now();
                match self.store.take_turns(&wanted, &self.worker_id, lasts).await {
                    Ok(told) => {
                        if told.taken.is_empty() {
                            wait = self.turns.in_step(every, 1).min(ASKED_WITHIN);
                        }
                        if self.turns.take_over(&told, asked_at + lasts) {
                            self.nats.announce_settings().await;
                        }
                    }
                    Err(error) if error.is_denied() => {
                        if let Some(left_out) = repeats::tell("turns", &error) {
                            tracing::warn!(%error, left_out,
                                "this worker does none of the fleet's shared work; see postgres/roles.sql");
                        }
                    }
                    Err(error) => failed("ask for turns", &error, error.is_unavailable()),
                }
            }
            tokio::select! {
                () = sleep(jittered(wait)) => {}
                // Anybody who may announce a schedule has it ask.
                () = self.turns.asked() => sleep(ASKED_AGAIN_AFTER).await,
                // The workers must not all ask at once.
                () = self.turns.offered() => sleep(every.mul_f64(rand::random())).await,
            }
        }
    }
}

impl TakeTurns {
    /// Returns the turns that this worker may take: those whose work it does, and has the means for.
    fn turns_that_fit(&self) -> Vec<&'static str> {
        // A worker that lost a loop does not know which work it no longer does.
        if self.health.live().is_err() {
            return Vec::new();
        }
        let fits = |turn: &Turn| match turn {
            _ if self.turns.is_left(*turn) => false,
            Turn::Relay => self.recovery.contains(&Recovery::Relay) && self.nats.is_connected(),
            Turn::Vanished => self.recovery.contains(&Recovery::Vanished) && self.presence.can_judge(),
            Turn::Scan => self.recovery.contains(&Recovery::Scanner),
        };
        Turn::ALL.into_iter().filter(fits).map(Turn::name).collect()
    }
}
