//! Lanes: gives the slots of ended jobs to held ones, and ends jobs that have expired.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{
    recover,
    run::{EndedLanes, EndedOfQueue},
};
use crate::{
    enqueue::publish::Publications,
    nats::Ticket,
    observe::{hooks::Hooks, repeats},
    proof::fault,
    store::{DueJob, Store},
    worker::{
        loops::{Work, failed, jittered, relay::Relay},
        turns::{Turn, Turns},
    },
};

/// How soon the relay publishes what this process cannot.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How many looks the relay must have missed before another worker stands in.
const OVERDUE_AFTER: u32 = 3;
/// After how many looks a worker removes empty lanes again.
const SWEPT_EVERY: u32 = 30;
/// The most lanes of one statement.
const SWEPT_AT_ONCE: i64 = 5_000;

/// Releases held jobs of the lanes whose jobs this worker has ended.
#[derive(Clone)]
pub(crate) struct Admit {
    pub(crate) store: Store,
    pub(crate) publications: Publications,
    pub(crate) ended: EndedLanes,
}

impl Work for Admit {
    const NAME: &'static str = "admit";

    async fn run(self) {
        loop {
            for (queue, of) in self.ended.take().await {
                self.admit(&queue, of).await;
            }
        }
    }
}

impl Admit {
    async fn admit(&self, queue: &str, of: EndedOfQueue) {
        let lanes: Vec<String> = of.lanes.into_iter().map(String::from).collect();
        // Each ended job makes room for one.
        let most = i32::try_from(of.jobs.len()).unwrap_or(i32::MAX);
        match self.store.admit(queue, &lanes, Some(&of.jobs), most).await {
            Ok(released) => self.publish(&released).await,
            // The relay finds the free slots within a second or two.
            Err(error) => {
                if let Some(left_out) = repeats::tell("admit", &error) {
                    tracing::warn!(queue, %error, left_out, "could not release held jobs; the relay will");
                }
            }
        }
    }

    async fn publish(&self, released: &[DueJob]) {
        if released.is_empty() {
            return;
        }
        fault::point("released");
        if let Some(room) = self.publications.room(released.len()).await {
            let tickets: Vec<_> = released.iter().map(Ticket::from).collect();
            self.publications.publish(self.publications.prepare(&tickets), room).await;
            return;
        }
        let unsent: Vec<_> = released.iter().map(|job| (job.id, job.dispatch)).collect();
        if let Err(error) = self.store.unpublished(&unsent, AGAIN_AFTER).await {
            tracing::debug!(%error, "the relay will find these jobs' messages missing");
        }
    }
}

/// Looks after lanes if the worker that has the relay's turn does not: a lane with a rate must not wait until the turn
/// of a dead worker ends. The fleet as a whole asks as often as one relay looks.
#[derive(Clone)]
pub(crate) struct StandIn {
    pub(crate) relay: Relay,
    pub(crate) every: Duration,
}

impl Work for StandIn {
    const NAME: &'static str = "lanes";

    async fn run(self) {
        let Relay { store, turns, .. } = &self.relay;
        loop {
            sleep(jittered(self.every * turns.live_workers())).await;
            if !turns.has_lanes() || turns.has(Turn::Relay) {
                continue;
            }
            match store.lanes_overdue(self.every * OVERDUE_AFTER).await {
                Ok(true) => self.relay.tend_lanes(false).await,
                Ok(false) => {}
                Err(error) => failed("look at the lanes", &error, error.is_unavailable()),
            }
        }
    }
}

/// Ends jobs that were not started by their time, and removes empty lanes, while it is this worker's turn.
#[derive(Clone)]
pub(crate) struct Tidy {
    pub(crate) store: Store,
    pub(crate) turns: Arc<Turns>,
    pub(crate) hooks: Hooks,
    pub(crate) every: Duration,
}

impl Work for Tidy {
    const NAME: &'static str = "tidy_lanes";

    async fn run(self) {
        let mut looks: u32 = 0;
        loop {
            sleep(jittered(self.every)).await;
            self.turns.wait_for(Turn::Relay).await;
            if self.turns.has_expiries()
                && let Err(error) = recover::expire(&self.store, &self.hooks).await
            {
                failed("end expired jobs", &error, false);
            }
            looks = looks.wrapping_add(1);
            if self.turns.has_lanes()
                && looks.is_multiple_of(SWEPT_EVERY)
                && let Err(error) = self.store.sweep_lanes(SWEPT_AT_ONCE).await
            {
                failed("remove empty lanes", &error, error.is_unavailable());
            }
        }
    }
}
