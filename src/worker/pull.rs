//! Pull: the messages of one queue, each with a slot to run in.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::join_all};
use tokio::{sync::watch, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{attempt::Attempts, topology::Topology};
use crate::{
    deliver::Deliver,
    job::claim::{Ack, Missed, ack_for},
    nats::{
        Delivery, LATE, Nats, Pull, PullConsumer, Pulled,
        slots::{Slot, Slots},
    },
    observe::{health::Health, panics::Panics, repeats},
    store::{Availability, Store},
};

/// The first and the longest pause before a missing consumer is asked for again; each pause doubles the one before.
const CONSUMER_AGAIN: Duration = Duration::from_millis(100);
const CONSUMER_AGAIN_MAX: Duration = Duration::from_secs(10);

/// After this time NATS delivers a message for which no slot was free.
const NO_ROOM: Option<Ack> = Some(Ack::Later(Duration::from_millis(50)));

/// The name of a queue in the worker's health.
pub(super) fn queue_of(name: &str) -> String {
    format!("queue {name}")
}

/// Pulls the messages of one queue.
pub(super) struct PullQueue<S> {
    pub(super) name: String,
    pub(super) slots: Slots,
    pub(super) attempts: Arc<Attempts<S>>,
    pub(super) store: Store,
    pub(super) nats: Nats,
    pub(super) topology: Arc<Topology>,
    pub(super) health: Health,
    /// How long one request for messages waits on the server.
    pub(super) pull_for: Duration,
    pub(super) stop: CancellationToken,
}

impl<S: Send + Sync + 'static> PullQueue<S> {
    /// Pulls until `stop`. Returns the jobs that still run. After a panic it starts again.
    pub(super) async fn run(self) -> JoinSet<()> {
        // Dropping this future drops the jobs, so that none outlives the worker.
        let mut jobs = JoinSet::new();
        let mut panics = Panics::new("pull");
        loop {
            match AssertUnwindSafe(self.pull(&mut jobs)).catch_unwind().await {
                Ok(()) => return jobs,
                Err(panic) => match panics.note(&*panic) {
                    Some(pause) => sleep(pause).await,
                    None => return jobs,
                },
            }
        }
    }

    async fn pull(&self, jobs: &mut JoinSet<()>) {
        let mut database = self.store.availability();
        let mut failures: u32 = 0;
        while !self.stop.is_cancelled() {
            if !database.borrow().up {
                if !self.until_up(&mut database, Duration::MAX).await {
                    break;
                }
                self.lacks("not pulled again yet");
            }
            let Some(consumer) = self.consumer(&mut failures).await else { continue };
            let mut pull = Pull::new(self.nats.clone(), consumer, self.slots.clone(), self.pull_for);
            let why = loop {
                let pulled = tokio::select! { biased;
                    () = self.stop.cancelled() => break "stopping".into(),
                    _ = async { database.wait_for(|now| !now.up).await.is_ok() } => {
                        // The worker claims what has arrived as soon as Postgres is back. It waits for as long as its
                        // requests last: a worker that alone has lost Postgres holds up what comes to it meanwhile.
                        if self.until_up(&mut database, self.pull_for + LATE).await {
                            self.health.has(&queue_of(&self.name));
                            continue;
                        }
                        break "Postgres is away".into();
                    }
                    pulled = pull.next() => pulled,
                };
                match pulled {
                    Ok(Pulled::Deliveries(deliveries)) => {
                        // Forget the tasks that have ended.
                        while jobs.try_join_next().is_some() {}
                        for (delivery, slot) in deliveries {
                            jobs.spawn(self.attempt(delivery, slot));
                        }
                    }
                    Ok(Pulled::NoRoom(left)) => {
                        let attempts = self.attempts.clone();
                        jobs.spawn(async move {
                            let unanswered = hand_back(&attempts.deliver, left, NO_ROOM).await;
                            join_all(unanswered.iter().map(|delivery| {
                                let ack = ack_for(&Missed::Unanswered, delivery.deliveries);
                                attempts.put_off(delivery, &Missed::Unanswered, ack)
                            }))
                            .await;
                        });
                    }
                    Ok(Pulled::Broken(why)) => break why,
                    Err(error) => break error.to_string(),
                }
            };
            self.nak_all(pull).await;
            if !self.stop.is_cancelled() {
                self.lacks(&why);
                if let Some(left_out) = repeats::tell(&format!("interrupted {}", self.name), &why) {
                    tracing::warn!(
                        queue = self.name,
                        why,
                        left_out,
                        "pulling messages was interrupted; the worker restarts it"
                    );
                }
                sleep(Duration::from_millis(50)).await;
                if database.borrow().up {
                    self.look_after_stream().await;
                }
            }
        }
    }

    /// Waits until Postgres is back. Returns whether it is, within this time and before the worker stops.
    async fn until_up(&self, database: &mut watch::Receiver<Availability>, within: Duration) -> bool {
        let reason = self.store.last_error();
        if let Some(left_out) = repeats::tell(&format!("pull {}", self.name), &reason) {
            tracing::warn!(
                queue = self.name,
                reason,
                left_out,
                "Postgres is unavailable; the worker does not pull messages"
            );
        }
        self.lacks("Postgres is away");
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = sleep(within) => false,
            up = database.wait_for(|now| now.up) => up.is_ok(),
        }
    }

    /// Returns the queue's consumer; `None` if the worker stops or, after a pause, if NATS gives none.
    async fn consumer(&self, failures: &mut u32) -> Option<PullConsumer> {
        let name = &self.name;
        let asked = tokio::select! {
            () = self.stop.cancelled() => return None,
            asked = self.topology.consumer(name) => asked,
        };
        match asked {
            Ok(consumer) => {
                *failures = 0;
                self.health.has(&queue_of(name));
                Some(consumer)
            }
            Err(error) => {
                *failures += 1;
                self.lacks(&error.to_string());
                if failures.is_power_of_two() {
                    tracing::warn!(%error, queue = name, failures, "cannot serve the queue; the worker serves others");
                }
                let pause = (CONSUMER_AGAIN * (1 << (*failures).min(7))).min(CONSUMER_AGAIN_MAX);
                tokio::select! {
                    () = self.stop.cancelled() => return None,
                    () = sleep(pause) => {}
                }
                self.look_after_stream().await;
                None
            }
        }
    }

    /// Records why this queue is not served now. A reason that has passed must not stay: the next one may last.
    fn lacks(&self, why: &str) {
        self.health.lacks(&queue_of(&self.name), why);
    }

    async fn look_after_stream(&self) {
        if !self.nats.is_connected() {
            self.lacks("NATS is not connected");
        }
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.topology.look_after_stream() => {}
        }
    }

    /// Handles a delivery until its ack, in a task.
    fn attempt(&self, delivery: Delivery, slot: Slot) -> impl Future<Output = ()> + Send + 'static {
        if let Some(measures) = self.attempts.queues.measures.get(&self.name) {
            measures.deliveries.increment(1);
            measures.redeliveries.increment(u64::from(delivery.deliveries > 1));
            measures.slot_idle.record(slot.taken_at.elapsed());
        }
        let attempts = self.attempts.clone();
        async move {
            if let Err(panic) = AssertUnwindSafe(attempts.take(delivery, slot)).catch_unwind().await {
                // The next job has another task; the scanner finds this one by its silence.
                Panics::new("job").note(&*panic);
            }
        }
    }

    /// Sends back the messages that were on their way to this worker. It requests none now: another one gets them.
    async fn nak_all(&self, pull: Pull) {
        let left = pull.stop().await;
        for part in hand_back(&self.attempts.deliver, left, None).await {
            part.receipt.send(ack_for(&Missed::Unanswered, 1)).await;
        }
    }
}

/// Returns messages, and parts of one, to the fleet: with this answer, or at once. Returns the parts that Postgres did
/// not take.
async fn hand_back(deliver: &Deliver, left: Vec<Delivery>, answer: Option<Ack>) -> Vec<Delivery> {
    let (parts, messages): (Vec<_>, Vec<_>) = left.into_iter().partition(|delivery| delivery.part.is_some());
    for message in messages {
        match answer {
            Some(answer) => message.receipt.send(answer).await,
            None => message.receipt.nak().await,
        }
    }
    if parts.is_empty() { Vec::new() } else { deliver.hand_back(parts).await }
}
