//! Relay: publishes due jobs that have no message, while it is this worker's turn.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use super::{Work, failed, jittered};
use crate::{
    config::Timing,
    lanes,
    nats::Nats,
    proof::fault,
    recover::relay,
    schedules,
    store::Store,
    worker::{
        topology::Topology,
        turns::{self, Turn, Turns, Went},
    },
};

/// After how many looks the relay searches again for slots of jobs that ended unseen.
const JUDGED_EVERY: u32 = 10;

/// The pause before a failed tick is tried again.
const TICKS_TRIED_EVERY: Duration = Duration::from_secs(1);

/// Publishes due jobs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Relay {
    pub(crate) store: Store,
    pub(crate) nats: Nats,
    pub(crate) turns: Arc<Turns>,
    pub(crate) stop: relay::Stop,
}

impl Relay {
    pub(crate) async fn publish_due(&self) {
        let began = Instant::now();
        let went = match relay::publish_due(&self.store, &self.nats, &self.stop).await {
            // A job whose publication failed is due again in a second; until then there is nothing to do.
            Ok(0) => Went::Unsaid,
            Ok(_) => Went::Well,
            Err(error) if error.is_postgres_away() => Went::Unsaid,
            Err(error) => {
                failed("publish due jobs", &error, false);
                Went::Badly
            }
        };
        self.turns.note(Turn::Relay, went, began);
    }

    /// Releases what lanes may release.
    pub(crate) async fn tend_lanes(&self, judge: bool) {
        if let Err(error) = lanes::recover::tend(&self.store, &self.nats, &self.stop, judge).await {
            failed("look after lanes", &error, false);
        }
    }
}

/// Publishes due jobs at intervals.
#[derive(Clone)]
pub(crate) struct PublishDue {
    pub(crate) relay: Relay,
    pub(crate) every: Duration,
}

impl Work for PublishDue {
    const NAME: &'static str = "relay";

    async fn run(self) {
        let mut judged_at = Instant::now();
        loop {
            self.relay.turns.wait_for(Turn::Relay).await;
            fault::end_by_panic("relay");
            self.relay.publish_due().await;
            if self.relay.turns.has_lanes() {
                let judge = judged_at.elapsed() >= self.every * JUDGED_EVERY;
                if judge {
                    judged_at = Instant::now();
                }
                self.relay.tend_lanes(judge).await;
            }
            sleep(jittered(self.every)).await;
        }
    }
}

/// Enqueues the jobs of schedules when they are due.
#[derive(Clone)]
pub(crate) struct Tick {
    pub(crate) relay: Relay,
}

impl Work for Tick {
    const NAME: &'static str = "tick";

    async fn run(self) {
        let Relay { store, turns, .. } = &self.relay;
        let mut in_vain: u32 = 0;
        loop {
            fault::end_by_panic("tick");
            turns.wait_for(Turn::Relay).await;
            let next = turns.next_tick();
            let due = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                // Another tick may be the next one now, or another worker may have the turn.
                () = turns.changed() => continue,
            }
            match schedules::recover::tick(store).await {
                Ok(0) => in_vain += 1,
                Ok(_) => {
                    in_vain = 0;
                    self.relay.publish_due().await;
                }
                Err(error) => {
                    in_vain += 1;
                    failed("look for due ticks", &error, error.is_unavailable());
                }
            }
            // A schedule without a tick here (another version wrote it, a value is refused) stays due.
            if in_vain > 1 {
                sleep(TICKS_TRIED_EVERY).await;
            }
            turns.ticked();
            // The answer says when the next tick is due.
            turns.ask();
        }
    }
}

/// Republishes jobs whose message was lost.
#[derive(Clone)]
pub(crate) struct Reclaim {
    pub(crate) relay: Relay,
    pub(crate) topology: Arc<Topology>,
    pub(crate) timing: Timing,
    pub(crate) worker_id: String,
}

impl Work for Reclaim {
    const NAME: &'static str = "reclaim";

    async fn run(self) {
        let Relay { store, nats, turns, stop } = &self.relay;
        let mut lost = relay::Lost::new(&self.timing, stop.clone());
        loop {
            sleep(jittered(turns::reclaim_every(&self.timing))).await;
            turns.wait_for(Turn::Relay).await;
            if let Err(error) = lost.look(store, nats, &self.worker_id).await {
                failed("look for lost messages", &error, error.is_a_server_away());
                // The most common reason is that the stream is gone.
                drop(self.topology.try_all().await);
            }
        }
    }
}
