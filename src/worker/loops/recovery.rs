//! Recovery: scans, looks for vanished workers, and sweeps, while it is this worker's turn.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Work, jittered, relay::Relay};
use crate::{
    config::{Retention, Timing},
    doctor,
    nats::{Nats, Probed},
    observe::{hooks::Hooks, repeats},
    recover::{
        retention, scanner,
        vanished::{self, Looked},
        waiting::{Memory, SCANS_HELD},
    },
    store::Store,
    worker::{
        presence::Presence,
        turns::{Turn, Turns, Went},
    },
};

/// Resets silent jobs.
#[derive(Clone)]
pub(crate) struct Scan {
    pub(crate) store: Store,
    pub(crate) turns: Arc<Turns>,
    pub(crate) nats: Nats,
    pub(crate) relay: Relay,
    pub(crate) every: Duration,
    pub(crate) stale_after: Duration,
    pub(crate) worker_id: String,
    pub(crate) hooks: Hooks,
}

impl Work for Scan {
    const NAME: &'static str = "scan";

    async fn run(self) {
        let Self { store, nats, every, stale_after, worker_id, hooks, .. } = &self;
        let (every, stale_after, memory) = (*every, *stale_after, Memory::default());
        loop {
            // Scan at once when the turn comes: the gap to another worker's last scan must not grow.
            self.turns.wait_for(Turn::Scan).await;
            let began = Instant::now();
            let scanned = scanner::scan(store, nats, &memory, worker_id, every, stale_after, hooks).await;
            let went = match &scanned {
                Ok(_) => Went::Well,
                Err(error) if error.is_unavailable() => Went::Unsaid,
                Err(_) => Went::Badly,
            };
            self.turns.note(Turn::Scan, went, began);
            let mut wait = every;
            let has_scanned = matches!(scanned, Ok(Some(_)));
            match scanned {
                Ok(None) => wait = every / 8,
                Ok(Some(0)) => {}
                Ok(Some(_)) => self.relay.publish_due().await,
                Err(error) => {
                    if let Some(left_out) = repeats::tell("scan", &error) {
                        tracing::warn!(%error, left_out, "could not scan; the worker will retry");
                    }
                }
            }
            let noted = async {
                if has_scanned
                    && let Err(error) = Box::pin(doctor::note(store, every.saturating_mul(SCANS_HELD))).await
                {
                    tracing::debug!(%error, "could not note what is wrong; the overview shows what was found before");
                }
            };
            tokio::join!(sleep(jittered(wait)), noted);
        }
    }
}

/// Resets the jobs of workers that are gone.
#[derive(Clone)]
pub(crate) struct Look {
    pub(crate) store: Store,
    pub(crate) nats: Nats,
    pub(crate) turns: Arc<Turns>,
    pub(crate) presence: Arc<Presence>,
    pub(crate) relay: Relay,
    pub(crate) timing: Timing,
    pub(crate) worker_id: String,
    pub(crate) hooks: Hooks,
}

impl Work for Look {
    const NAME: &'static str = "look";

    async fn run(self) {
        let Self { store, nats, timing, worker_id, hooks, .. } = &self;
        loop {
            sleep(jittered(vanished::look_every(&self.timing))).await;
            self.turns.wait_for(Turn::Vanished).await;
            if !self.turns.has_silent() || !self.presence.can_judge() {
                continue;
            }
            let began = Instant::now();
            let went = match vanished::look(store, nats, timing, worker_id, hooks).await {
                // Frozen processes do not answer, either. This worker is cut off if it does not hear itself.
                Ok(Looked::Unanswered) => match self.presence.probe().await {
                    Probed::Answered => Went::Unsaid,
                    Probed::Gone | Probed::NoAnswer => Went::Badly,
                },
                Ok(Looked::Reset(jobs)) => {
                    if jobs > 0 {
                        self.relay.publish_due().await;
                    }
                    Went::Well
                }
                Err(error) if error.is_unavailable() => Went::Unsaid,
                Err(error) => {
                    if let Some(left_out) = repeats::tell("look for vanished workers", &error) {
                        tracing::warn!(%error, left_out,
                            "could not look for vanished workers; the worker will retry");
                    }
                    Went::Badly
                }
            };
            self.turns.note(Turn::Vanished, went, began);
        }
    }
}

/// Removes finished jobs whose retention is over.
#[derive(Clone)]
pub(crate) struct Sweep {
    pub(crate) store: Store,
    pub(crate) nats: Nats,
    pub(crate) turns: Arc<Turns>,
    pub(crate) retention: Retention,
    pub(crate) scan_every: Duration,
}

impl Work for Sweep {
    const NAME: &'static str = "sweep";

    async fn run(self) {
        let every = self.scan_every * retention::SWEEP_EVERY_SCANS;
        loop {
            sleep(jittered(every / 4)).await;
            self.turns.wait_for(Turn::Scan).await;
            if let Err(error) = retention::sweep(&self.store, &self.nats, &self.retention, every).await
                && let Some(left_out) = repeats::tell("sweep", &error)
            {
                tracing::warn!(%error, left_out, "could not sweep finished jobs; the next sweep will continue");
            }
        }
    }
}
