//! Control: acts on announcements, and follows the settings of queues.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{Work, failed, jittered};
use crate::{
    nats::{Announced, Control, Drains, Nats, Subject, slots::Slots},
    observe::health::Health,
    run::{heartbeat::Heartbeat, running::Running},
    store::Store,
    watch::run::Hints,
    worker::{
        presence::Presence,
        queues::Queues,
        turns::{Turn, Turns},
    },
};

/// How often the fleet asks whether its queues were paused, resumed or limited. With the jitter, a lone worker notices
/// within a second; in a larger fleet an announcement tells each worker.
const SETTINGS_READ_EVERY: Duration = Duration::from_millis(600);
/// The pause after each reading.
const SETTINGS_PAUSE: Duration = Duration::from_millis(50);
/// About this many workers with a paused or full queue ask that often; in a larger fleet each asks less often.
const SETTINGS_READ_BY_HELD: u32 = 20;

/// The pause between two looks after announced cancellations: anybody who may announce one has a statement executed.
const LOOKED_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Acts on announcements, and answers probes.
#[derive(Clone)]
pub(crate) struct Listen {
    /// The subscriptions that the start has made.
    pub(crate) first: Arc<Mutex<Option<Control>>>,
    pub(crate) nats: Nats,
    pub(crate) presence: Arc<Presence>,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) running: Running,
    pub(crate) hints: Hints,
    pub(crate) turns: Arc<Turns>,
    /// Notified when the settings of queues may have changed.
    pub(crate) settings_changed: Arc<Notify>,
    pub(crate) health: Health,
    /// Cancelled when an operator drains this worker.
    pub(crate) drain: CancellationToken,
}

impl Work for Listen {
    const NAME: &'static str = "listen";

    async fn run(self) {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut control = match first {
            Some(control) => control,
            None => self.presence.listen().await,
        };
        let mut connections = self.nats.connections();
        // The jobs of announcements that came soon after a look, and when to look after them.
        let (mut announced_jobs, mut look_at) = (HashMap::new(), Instant::now());
        loop {
            tokio::select! {
                announced = control.next() => match announced {
                    // Only a hint: the heartbeat asks the database.
                    Some(Announced::Cancelled(jobs)) => {
                        let running = self.running.announce_cancelled(&jobs);
                        announced_jobs.extend(running.into_iter().map(|job| (job.claim.key.job, job)));
                    }
                    Some(Announced::Settings) => self.settings_changed.notify_one(),
                    Some(Announced::Turns) => self.turns.offer(),
                    Some(Announced::Schedules) => {
                        if self.turns.has(Turn::Relay) {
                            self.turns.ask();
                        }
                    }
                    Some(Announced::Watched(request)) => self.hints.watch(&request),
                    Some(Announced::Drain(reply)) => self.drain(reply).await,
                    None => {
                        sleep(Duration::from_millis(100)).await;
                        control = self.presence.listen().await;
                    }
                },
                () = sleep_until(look_at), if !announced_jobs.is_empty() => {
                    let jobs: Vec<_> = announced_jobs.drain().map(|(_, job)| job).collect();
                    self.heartbeat.look_after(&jobs).await;
                    look_at = Instant::now() + LOOKED_AGAIN_AFTER;
                }
                // The worker may have missed announcements while it was disconnected.
                Ok(()) = connections.changed() => {
                    self.settings_changed.notify_one();
                    self.heartbeat.look_after(&self.running.all()).await;
                }
            }
        }
    }
}

impl Listen {
    async fn drain(&self, reply: Option<Subject>) {
        let was_draining = self.drain.is_cancelled() || self.health.is_draining();
        // The answer goes first: an idle worker ends at once, and this loop with it.
        if let Some(reply) = reply {
            let running = self.running.all().len() as u64;
            self.nats.answer_drain(reply, Drains { was_draining, running }).await;
        }
        self.drain.cancel();
    }
}

/// Reads the settings of the queues when a change is announced, and at intervals. The database applies them to each
/// claim; a worker that knows them pulls no message in vain, and serves a resumed queue at once.
#[derive(Clone)]
pub(crate) struct FollowSettings {
    pub(crate) store: Store,
    pub(crate) queues: Arc<Queues>,
    pub(crate) hints: Hints,
    pub(crate) turns: Arc<Turns>,
    pub(crate) changed: Arc<Notify>,
}

impl Work for FollowSettings {
    const NAME: &'static str = "settings";

    async fn run(self) {
        let names: Vec<_> = self.queues.names().cloned().collect();
        loop {
            let since: HashMap<_, _> =
                self.queues.slots.iter().map(|(name, slots)| (name.clone(), slots.asks())).collect();
            match self.store.queue_settings(&names).await {
                Ok(said) => {
                    let mut said: HashMap<_, _> = said.into_iter().map(|of| (of.queue.clone(), of)).collect();
                    for (name, slots) in &*self.queues.slots {
                        let (paused, room, workers, events) = said
                            .remove(name)
                            .map_or_else(Default::default, |of| (of.paused, of.room, of.workers, of.events));
                        slots.shared_by(workers);
                        slots.settings(paused, room, since[name]);
                        self.hints.set_events(name, events);
                    }
                }
                Err(error) => {
                    failed("read the queues' settings", &error, error.is_unavailable());
                }
            }
            let read_at = Instant::now();
            // An announcement is worth one reading, and a thousand of them are worth no more.
            sleep(SETTINGS_PAUSE).await;
            loop {
                let is_held = self.queues.slots.values().any(Slots::is_held);
                let each = if is_held { SETTINGS_READ_BY_HELD } else { 1 };
                if read_at.elapsed() >= self.turns.in_step(SETTINGS_READ_EVERY, each) {
                    break;
                }
                tokio::select! {
                    () = sleep(jittered(SETTINGS_READ_EVERY / 2)) => {}
                    () = self.changed.notified() => break,
                }
            }
        }
    }
}
