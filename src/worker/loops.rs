//! Loops: what a worker does besides running jobs, each in a task of its own, from the start to the last job's end.
//!
//! Not here: when they begin and end (`serve`), what a look does (`recover`, `ticks`, `retention`).

use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::{self, JoinSet},
    time::sleep,
};

use super::serve::Shared;
use crate::{
    fault,
    job::{JobError, JobId},
    metrics,
    queue::Control,
    recover::{relay, scanner, vanished},
    retention,
    running::OnCrash,
    store::{ClaimRequest, OfLocked, Registration},
    ticks,
};

/// How often a worker asks whether its queues were paused, resumed or limited: with its jitter, within a second.
const SETTINGS_READ_EVERY: Duration = Duration::from_millis(700);

/// How often a worker looks for ticks of schedules.
const TICKS_EVERY: Duration = Duration::from_secs(1);

/// How often a worker tells that it is alive.
const BEAT_EVERY: Duration = Duration::from_millis(500);

impl<S: Send + Sync + 'static> Shared<S> {
    pub(super) async fn listen(self: Arc<Self>, mut control: Control) {
        let mut connections = self.queue.connections();
        loop {
            tokio::select! {
                cancelled = control.next() => {
                    if let Some(cancelled) = cancelled {
                        // Only a hint: the database is asked.
                        self.heartbeat.look_after(&self.running.announce_cancelled(&cancelled)).await;
                    } else {
                        sleep(Duration::from_millis(100)).await;
                        control = self.listen_anew().await;
                    }
                }
                // What was announced meanwhile was not heard.
                Ok(()) = connections.changed() => self.heartbeat.look_after(&self.running.all()).await,
            }
        }
    }

    pub(super) async fn renew(self: Arc<Self>, mut registration: Registration) {
        loop {
            self.check_claims().await;
            sleep(jittered(self.timing.renew_every)).await;
            if let Err(error) = self.store.register_worker(&registration).await {
                tracing::warn!(%error, "the worker's row was not renewed");
            }
            self.probe_ourselves(&mut registration).await;
        }
    }

    /// Tells, again and again, what was done.
    pub(super) async fn report_on(self: Arc<Self>) {
        loop {
            sleep(jittered(self.timing.renew_every)).await;
            self.report().await;
        }
    }

    /// Adds what was done to what all workers have done in this minute. What is not taken is dropped: it is for people,
    /// and what was sent without an answer may have been counted.
    pub(super) async fn report(&self) {
        // Told once: it is nothing that a job would notice.
        static TOLD: AtomicBool = AtomicBool::new(false);
        let done: Vec<_> = (self.measures.iter())
            .filter_map(|(queue, of)| of.tally.take().map(|done| (queue.as_str(), done)))
            .collect();
        if done.is_empty() {
            return;
        }
        if let Err(error) = self.store.report(&done).await {
            let is_news = error.is_denied() && !TOLD.swap(true, Ordering::Relaxed);
            let error = JobError::from(error).text();
            if is_news {
                tracing::warn!(
                    error,
                    "the dashboard's rates lack this worker: run postgres/roles.sql again, so that its role may write \
                    tenure.activity"
                );
            } else {
                tracing::debug!(error, "what was done is not in the dashboard's rates");
            }
        }
    }

    /// Asks for a claim of a job that there is not: whether this worker may.
    async fn check_claims(&self) {
        let Some(queue) = self.queues.keys().next() else { return };
        let nobody = ClaimRequest {
            job: JobId(uuid::Uuid::nil()),
            queue: queue.clone(),
            kind: "none".into(),
            stale_after: self.timing.stale_after,
            on_crash: OnCrash::Retry.as_str(),
        };
        let limited = self.queues.iter().find(|(_, slots)| slots.is_limited()).map(|(name, _)| name.clone());
        let tried = match self
            .store
            .claim(OfLocked::Wait, std::slice::from_ref(&nobody), &self.worker_id, &self.hostname)
            .await
        {
            Ok(_) => match limited {
                Some(queue) => {
                    let nobody = ClaimRequest { queue, ..nobody };
                    let tried = self.store.claim_limited(&[nobody], &self.worker_id, &self.hostname).await;
                    // Others claim: they may.
                    tried.map(drop).or_else(|error| if error.is_locked() { Ok(()) } else { Err(error) })
                }
                None => Ok(()),
            },
            Err(error) => Err(error),
        };
        match tried {
            Ok(()) => self.health.has("claims"),
            Err(error) => self.health.lacks("claims", JobError::from(error).text()),
        }
    }

    pub(super) async fn give_back(self: Arc<Self>) {
        loop {
            sleep(jittered(Duration::from_secs(1))).await;
            if let Err(error) = self.deliver.give_back_unanswered().await {
                tracing::debug!(%error, "claims without an answer were not looked for");
            }
        }
    }

    /// Tells that the runtime runs, and what the servers are like.
    pub(super) async fn beat(self: Arc<Self>) {
        let database = self.store.availability();
        loop {
            self.health.beat();
            let (postgres_up, nats_up) = (database.borrow().up, self.queue.is_connected());
            if postgres_up {
                self.health.has("Postgres");
            } else {
                self.health.lacks("Postgres", self.store.last_error());
            }
            if nats_up {
                self.health.has("NATS");
            } else {
                self.health.lacks("NATS", "not connected");
            }
            metrics::worker(self.health.ready().is_ok(), self.health.is_draining());
            metrics::servers(postgres_up, nats_up);
            let mut active: HashMap<&str, usize> = HashMap::new();
            let running = self.running.all();
            for job in &running {
                *active.entry(&job.claim.queue).or_default() += 1;
            }
            let active = |name: &str| active.get(name).copied().unwrap_or_default();
            for (name, slots) in &*self.queues {
                let mates = self.queues.iter().filter(|(_, other)| other.shares_with(slots));
                let free = slots.free(mates.map(|(name, _)| active(name)).sum());
                metrics::slots(name, active(name), slots.slots(), free);
            }
            sleep(BEAT_EVERY).await;
        }
    }

    /// Asks what operators have said of the queues. A claim is told by the database itself; this is so that
    /// nothing is asked for in vain, and that a queue that is resumed goes on at once.
    pub(super) async fn follow_settings(self: Arc<Self>) {
        let names: Vec<_> = self.queues.keys().cloned().collect();
        loop {
            match self.store.queue_settings(&names).await {
                Ok(said) => {
                    let mut said: HashMap<_, _> =
                        said.into_iter().map(|of| (of.queue, (of.paused, of.room))).collect();
                    for (name, slots) in &*self.queues {
                        let (paused, room) = said.remove(name).unwrap_or((false, None));
                        slots.settings(paused, room);
                    }
                }
                Err(error) => tracing::debug!(%error, "the queues' settings were not read"),
            }
            sleep(jittered(SETTINGS_READ_EVERY)).await;
        }
    }

    pub(super) async fn scan(self: Arc<Self>) {
        let (every, stale_after) = (self.timing.scan_every, self.timing.stale_after);
        loop {
            sleep(jittered(every)).await;
            match scanner::scan(&self.store, &self.worker_id, every, stale_after).await {
                Ok(0) => {}
                Ok(_) => self.publish_due().await,
                Err(error) => tracing::warn!(%error, "the scan came to nothing"),
            }
        }
    }

    pub(super) async fn look(self: Arc<Self>) {
        loop {
            sleep(jittered(vanished::look_every(&self.timing))).await;
            // Who does not hear himself cannot conclude anything from the silence of others.
            if !self.reaches_itself.load(Ordering::Acquire) {
                continue;
            }
            match vanished::look(&self.store, &self.queue, &self.timing, &self.worker_id).await {
                Ok(0) => {}
                Ok(_) => self.publish_due().await,
                Err(error) => tracing::debug!(%error, "no look for vanished workers"),
            }
        }
    }

    pub(super) async fn relay(self: Arc<Self>) {
        loop {
            sleep(jittered(self.timing.relay_every)).await;
            self.publish_due().await;
        }
    }

    pub(super) async fn tick(self: Arc<Self>) {
        loop {
            sleep(jittered(TICKS_EVERY)).await;
            fault::end_by_panic("tick");
            match ticks::tick(&self.store).await {
                Ok(0) => {}
                Ok(_) => self.publish_due().await,
                Err(error) => tracing::debug!(%error, "no look for ticks"),
            }
        }
    }

    pub(super) async fn publish_due(&self) {
        if let Err(error) = relay::publish_due(&self.store, &self.queue, self.timing.publish_within).await {
            tracing::debug!(%error, "relay");
        }
    }

    pub(super) async fn reclaim(self: Arc<Self>) {
        let every = self.timing.scan_every;
        let mut drained: HashMap<String, _> = HashMap::new();
        loop {
            sleep(jittered(every)).await;
            if !self.queue.is_connected() {
                continue;
            }
            for (name, slots) in &*self.queues {
                let within = self.timing.publish_within;
                let margin = if slots.was_paused_within(within) {
                    // What came too late for the pause waits on the server: delivered, but not lost.
                    None
                } else if slots.is_limited() {
                    // So does, for a while, what came when the queue ran as many jobs as it may.
                    Some(self.timing.ack_wait)
                } else {
                    Some(within * 2)
                };
                let looked = relay::reclaim_lost(
                    &self.store,
                    &self.queue,
                    name,
                    margin,
                    drained.entry(name.clone()).or_default(),
                    every / 2,
                    &self.worker_id,
                )
                .await;
                match looked {
                    Ok(0) => {}
                    Ok(_) => self.publish_due().await,
                    Err(error) => {
                        tracing::debug!(%error, "no look for lost messages");
                        // The commonest reason is that the stream is gone.
                        drop(self.try_topology().await);
                    }
                }
            }
        }
    }

    /// Removes what ended long enough ago, if it is this worker's turn.
    pub(super) async fn sweep(self: Arc<Self>) {
        let every = self.timing.scan_every * retention::SWEEP_EVERY_SCANS;
        loop {
            sleep(jittered(every / 4)).await;
            if let Err(error) = retention::sweep(&self.store, &self.queue, &self.retention, every).await {
                tracing::warn!(%error, "retention goes on with the next sweep");
            }
        }
    }
}

/// The worker's own loops, each by its name.
#[derive(Default)]
pub(super) struct Loops {
    pub(super) tasks: JoinSet<()>,
    names: HashMap<task::Id, &'static str>,
}

impl Loops {
    pub(super) fn spawn(&mut self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.names.insert(self.tasks.spawn(work).id(), name);
    }

    /// The name of the next one that ends. Cancel safe.
    pub(super) async fn ended(&mut self) -> &'static str {
        match self.tasks.join_next_with_id().await {
            Some(ended) => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                self.names.get(&id).copied().unwrap_or("?")
            }
            None => std::future::pending().await,
        }
    }
}

/// Spread by ±20 %, so that many workers do not act in step.
fn jittered(every: Duration) -> Duration {
    every.mul_f64(rand::random_range(0.8..1.2))
}
