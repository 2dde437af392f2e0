//! Alive: shows that the worker and its jobs are alive.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{Work, jittered};
use crate::{
    nats::Nats,
    observe::{health::Health, metrics::Gauges, repeats},
    run::{heartbeat::Heartbeat, running::Running},
    store::{Registration, Store},
    worker::{presence::Presence, queues::Queues, turns::Turns},
};

/// The interval at which a worker shows that its runtime runs.
const BEAT_EVERY: Duration = Duration::from_millis(500);

/// Shows that the runtime runs, whether both servers are there, and how many slots are taken.
#[derive(Clone)]
pub(crate) struct Beat {
    pub(crate) store: Store,
    pub(crate) nats: Nats,
    pub(crate) health: Health,
    pub(crate) running: Running,
    pub(crate) queues: Arc<Queues>,
    pub(crate) gauges: Gauges,
}

impl Work for Beat {
    const NAME: &'static str = "health";

    async fn run(self) {
        let database = self.store.availability();
        loop {
            self.health.beat();
            let (postgres_up, nats_up) = (database.borrow().up, self.nats.is_connected());
            if postgres_up {
                self.health.has("Postgres");
            } else {
                self.health.lacks("Postgres", self.store.last_error());
            }
            if nats_up {
                self.health.has("NATS");
            } else {
                self.health.lacks("NATS", self.nats.why_away());
            }
            self.gauges.worker(self.health.ready().is_ok(), self.health.is_draining());
            self.gauges.servers(postgres_up, nats_up);
            let mut active: HashMap<&str, usize> = HashMap::new();
            let running = self.running.all();
            for job in &running {
                *active.entry(&job.claim.queue).or_default() += 1;
            }
            let active = |name: &str| active.get(name).copied().unwrap_or_default();
            let mut of_group: HashMap<usize, usize> = HashMap::new();
            for (name, slots) in &*self.queues.slots {
                *of_group.entry(slots.group()).or_default() += active(name);
            }
            for (name, slots) in &*self.queues.slots {
                let running = of_group.get(&slots.group()).copied().unwrap_or_default();
                self.gauges.slots(name, active(name), slots.slots(), slots.free(running));
            }
            sleep(BEAT_EVERY).await;
        }
    }
}

impl Work for Heartbeat {
    const NAME: &'static str = "heartbeat";

    async fn run(self) {
        Heartbeat::run(self).await;
    }
}

/// Renews the worker's row.
#[derive(Clone)]
pub(crate) struct Renew {
    pub(crate) store: Store,
    pub(crate) presence: Arc<Presence>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) health: Health,
    pub(crate) every: Duration,
    pub(crate) registration: Registration,
    pub(crate) queues: Arc<Queues>,
}

impl Work for Renew {
    const NAME: &'static str = "renew";

    async fn run(mut self) {
        let mut said_draining = false;
        loop {
            tokio::select! {
                () = sleep(jittered(self.every)) => {}
                // Others need not believe for an interval that this worker takes jobs.
                () = self.health.drains(), if !said_draining => {}
            }
            loop {
                let (missing, is_draining) = (self.health.missing(), self.health.is_draining());
                let (queues, jobs) = self.queues.with_jobs_per_message();
                (self.registration.queues, self.registration.jobs_per_message) = (queues, Some(jobs));
                match self.store.renew_worker(&self.registration, missing, is_draining).await {
                    Ok(workers) => {
                        said_draining = is_draining;
                        break self.turns.workers(workers);
                    }
                    Err(error) => {
                        if let Some(left_out) = repeats::tell("renew", &error) {
                            tracing::warn!(%error, left_out, "could not renew the worker's row; the worker will retry");
                        }
                    }
                }
                sleep(jittered(self.every / 5)).await;
            }
            self.presence.probe_ourselves(&mut self.registration).await;
        }
    }
}
