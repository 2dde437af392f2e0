//! Loops: what a worker does besides running jobs, each in a task of its own, from the start to the last job's end.
//!
//! Not here: when they begin and end (`serve`), what a look does (`recover`, `ticks`, `retention`).

use std::{
    collections::HashMap,
    future::Future,
    panic::AssertUnwindSafe,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    task::{self, JoinSet},
    time::{Instant, sleep, sleep_until},
};

use super::{
    serve::Shared,
    turns::{self, Turn, Went},
};
use crate::{
    fault,
    job::{JobError, JobId},
    nats::{Announced, Probed, slots::Slots},
    observe::{metrics, panics::Panics},
    recover::{
        cron as ticks, relay, retention, scanner,
        vanished::{self, Looked},
    },
    run::running::OnCrash,
    store::{ClaimRequest, LockPolicy, Registration},
    worker::counts as fleet,
};

/// How often the fleet asks whether its queues were paused, resumed or limited: with its jitter, a lone worker knows
/// within a second. In a larger fleet that is announced.
const SETTINGS_READ_EVERY: Duration = Duration::from_millis(600);
/// How many workers whose queues are paused or full ask that often.
const SETTINGS_READ_BY_HELD: u32 = 20;

/// How many workers of the fleet try at every renewal whether they may claim; in a larger fleet each tries less often.
const CLAIMS_TRIED_BY: u32 = 8;

/// How many workers read what was counted at each third of a scan; in a larger fleet each reads it less often.
const FLEET_SHOWN_BY: u32 = 10;

/// How often a tick is tried that could not be made.
const TICKS_TRIED_EVERY: Duration = Duration::from_secs(1);

/// How often a worker tells that it is alive.
const BEAT_EVERY: Duration = Duration::from_millis(500);

impl<S: Send + Sync + 'static> Shared<S> {
    pub(super) async fn listen(self: Arc<Self>) {
        let first = self.control.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut control = match first {
            Some(control) => control,
            None => self.listen_anew().await,
        };
        let mut connections = self.queue.connections();
        loop {
            tokio::select! {
                announced = control.next() => match announced {
                    // Only hints: the database is asked.
                    Some(Announced::Cancelled(jobs)) => {
                        self.heartbeat.look_after(&self.running.announce_cancelled(&jobs)).await;
                    }
                    Some(Announced::Settings) => self.settings_changed.notify_one(),
                    Some(Announced::Turns) => self.turns.offer(),
                    Some(Announced::Schedules) => {
                        if self.turns.has(Turn::Relay) {
                            self.turns.ask();
                        }
                    }
                    None => {
                        sleep(Duration::from_millis(100)).await;
                        control = self.listen_anew().await;
                    }
                },
                // What was announced meanwhile was not heard.
                Ok(()) = connections.changed() => {
                    self.settings_changed.notify_one();
                    self.heartbeat.look_after(&self.running.all()).await;
                }
            }
        }
    }

    pub(super) async fn renew(self: Arc<Self>, mut registration: Registration) {
        loop {
            sleep(jittered(self.timing.renew_every)).await;
            loop {
                match self.store.renew_worker(&registration).await {
                    Ok(workers) => break self.turns.workers(workers),
                    Err(error) => tracing::warn!(%error, "the worker's row was not renewed"),
                }
                sleep(jittered(self.timing.renew_every / 5)).await;
            }
            self.probe_ourselves(&mut registration).await;
        }
    }

    /// Tries again and again whether this worker may claim.
    pub(super) async fn try_claims(self: Arc<Self>) {
        loop {
            self.check_claims().await;
            sleep(jittered(self.turns.in_step(self.timing.renew_every, CLAIMS_TRIED_BY))).await;
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
        let no_such_job = ClaimRequest {
            job: JobId(uuid::Uuid::nil()),
            queue: queue.clone(),
            kind: "none".into(),
            stale_after: self.timing.stale_after,
            on_crash: OnCrash::Retry.as_str(),
        };
        let limited = self.queues.iter().find(|(_, slots)| slots.is_limited()).map(|(name, _)| name.clone());
        let tried = match self
            .store
            .claim(LockPolicy::Wait, std::slice::from_ref(&no_such_job), &self.worker_id, &self.hostname)
            .await
        {
            Ok(_) => match limited {
                Some(queue) => {
                    let no_such_job = ClaimRequest { queue, ..no_such_job };
                    let tried =
                        self.store.claim_limited(&[no_such_job], &self.worker_id, &self.hostname).await;
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

    /// Shows what the last scan has counted.
    pub(super) async fn show_fleet(self: Arc<Self>) {
        let every = || self.turns.in_step(self.timing.scan_every / 3, FLEET_SHOWN_BY);
        fleet::show(&self.store, every).await;
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
            let mut of_group: HashMap<usize, usize> = HashMap::new();
            for (name, slots) in &*self.queues {
                *of_group.entry(slots.group()).or_default() += active(name);
            }
            for (name, slots) in &*self.queues {
                let running = of_group.get(&slots.group()).copied().unwrap_or_default();
                metrics::slots(name, active(name), slots.slots(), slots.free(running));
            }
            sleep(BEAT_EVERY).await;
        }
    }

    /// Asks what operators have said of the queues: when it is announced, and now and then. A claim is told by the
    /// database itself; this is so that nothing is asked for in vain, and that a queue that is resumed goes on at once.
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
            let read_at = Instant::now();
            loop {
                let is_held = self.queues.values().any(Slots::is_held);
                let each = if is_held { SETTINGS_READ_BY_HELD } else { 1 };
                if read_at.elapsed() >= self.turns.in_step(SETTINGS_READ_EVERY, each) {
                    break;
                }
                tokio::select! {
                    () = sleep(jittered(SETTINGS_READ_EVERY / 2)) => {}
                    () = self.settings_changed.notified() => break,
                }
            }
        }
    }

    pub(super) async fn scan(self: Arc<Self>) {
        let (every, stale_after) = (self.timing.scan_every, self.timing.stale_after);
        loop {
            // At once when the turn comes: the gap to the last scan, another worker's, must not grow.
            self.turns.wait_for(Turn::Scan).await;
            let began = Instant::now();
            let scanned = scanner::scan(&self.store, &self.worker_id, every, stale_after).await;
            let went = match &scanned {
                Ok(_) => Went::Well,
                Err(error) if error.is_unavailable() => Went::Unsaid,
                Err(_) => Went::Badly,
            };
            self.turns.note(Turn::Scan, went, began, &self.timing);
            let mut wait = every;
            match scanned {
                Ok(None) => wait = every / 8,
                Ok(Some(0)) => {}
                Ok(Some(_)) => self.publish_due().await,
                Err(error) => tracing::warn!(%error, "the scan failed; the next one goes on"),
            }
            sleep(jittered(wait)).await;
        }
    }

    pub(super) async fn look(self: Arc<Self>) {
        loop {
            sleep(jittered(vanished::look_every(&self.timing))).await;
            self.turns.wait_for(Turn::Vanished).await;
            if !self.turns.has_silent() || !self.can_judge() {
                continue;
            }
            let began = Instant::now();
            let went = match vanished::look(&self.store, &self.queue, &self.timing, &self.worker_id).await {
                // A frozen process does not answer, either. One that does not hear itself is cut off.
                Ok(Looked::Unanswered) => match self.queue.probe(&self.probe_subject).await {
                    Probed::Here => Went::Unsaid,
                    Probed::Gone | Probed::NoAnswer => Went::Badly,
                },
                Ok(Looked::Reset(jobs)) => {
                    if jobs > 0 {
                        self.publish_due().await;
                    }
                    Went::Well
                }
                Err(error) => {
                    tracing::debug!(%error, "no look for vanished workers");
                    if error.is_unavailable() { Went::Unsaid } else { Went::Badly }
                }
            };
            self.turns.note(Turn::Vanished, went, began, &self.timing);
        }
    }

    /// Whether this worker may conclude anything from the silence of others: it hears itself.
    pub(super) fn can_judge(&self) -> bool {
        self.reaches_itself.load(Ordering::Acquire)
            && vanished::has_settled(&self.store, &self.queue, &self.timing)
    }

    pub(super) async fn relay(self: Arc<Self>) {
        loop {
            self.turns.wait_for(Turn::Relay).await;
            fault::end_by_panic("relay");
            self.publish_due().await;
            sleep(jittered(self.timing.relay_every)).await;
        }
    }

    pub(super) async fn tick(self: Arc<Self>) {
        let mut in_vain: u32 = 0;
        loop {
            fault::end_by_panic("tick");
            self.turns.wait_for(Turn::Relay).await;
            let next = self.turns.next_tick();
            let due = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                // It may be another one now, or this worker's turn no longer.
                () = self.turns.changed() => continue,
            }
            match ticks::tick(&self.store).await {
                Ok(0) => in_vain += 1,
                Ok(_) => {
                    in_vain = 0;
                    self.publish_due().await;
                }
                Err(error) => {
                    in_vain += 1;
                    tracing::debug!(%error, "no look for ticks");
                }
            }
            // A schedule that has no tick here (another version wrote it, a value is refused) stays due.
            if in_vain > 1 {
                sleep(TICKS_TRIED_EVERY).await;
            }
            self.turns.ticked();
            // When the next one is due.
            self.turns.ask();
        }
    }

    pub(super) async fn publish_due(&self) {
        let began = Instant::now();
        let went = match relay::publish_due(&self.store, &self.queue, &self.stop_relaying).await {
            // What has failed is due again in a second; until then there is nothing to do.
            Ok(0) => Went::Unsaid,
            Ok(_) => Went::Well,
            Err(error) => {
                tracing::debug!(%error, "relay");
                if error.is_postgres_away() { Went::Unsaid } else { Went::Badly }
            }
        };
        self.turns.note(Turn::Relay, went, began, &self.timing);
    }

    /// Publishes jobs again whose message was lost.
    pub(super) async fn reclaim(self: Arc<Self>) {
        let mut lost = relay::Lost::new(&self.timing, self.stop_relaying.clone());
        loop {
            sleep(jittered(turns::reclaim_every(&self.timing))).await;
            self.turns.wait_for(Turn::Relay).await;
            if let Err(error) = lost.look(&self.store, &self.queue, &self.worker_id).await {
                tracing::debug!(%error, "no look for lost messages");
                // The commonest reason is that the stream is gone.
                drop(self.try_topology().await);
            }
        }
    }

    /// Shows what NATS says of this worker's queues.
    pub(super) async fn measure_messages(self: Arc<Self>) {
        loop {
            sleep(jittered(self.timing.scan_every)).await;
            for name in self.queues.keys() {
                if let Ok(seen) = self.queue.consumer_seen(name).await {
                    metrics::messages(name, seen.pending, seen.unacknowledged);
                }
            }
        }
    }

    /// Removes what ended long enough ago, if it is this worker's turn.
    pub(super) async fn sweep(self: Arc<Self>) {
        let every = self.timing.scan_every * retention::SWEEP_EVERY_SCANS;
        loop {
            sleep(jittered(every / 4)).await;
            self.turns.wait_for(Turn::Scan).await;
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
    /// Runs `work` for ever: a loop that panics is told of, counted, and begins anew. One that panics again and again
    /// ends; only a restart of the process may help then.
    pub(super) fn spawn<W, Fut>(&mut self, name: &'static str, work: W)
    where
        W: Fn() -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let restarting = async move {
            let mut panics = Panics::new(name);
            loop {
                match AssertUnwindSafe(work()).catch_unwind().await {
                    Ok(()) => return,
                    Err(panic) => {
                        let Some(pause) = panics.note(&*panic) else { return };
                        sleep(pause).await;
                    }
                }
            }
        };
        self.names.insert(self.tasks.spawn(restarting).id(), name);
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
pub(super) fn jittered(every: Duration) -> Duration {
    every.mul_f64(rand::random_range(0.8..1.2))
}
