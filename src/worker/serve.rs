//! Serve: composes the steps, and stops them in order.
//!
//! ```text
//! pull ──► deliver ──► run ──► settle ──► ack          a task a job; the handler on threads of its own
//! heartbeat · renew · listen · scanner · vanished · relay      a task each, until the last job has ended
//! ```
//!
//! The order of shutdown: stop pulling and give back what was on its way; let running jobs finish; ask
//! the rest to stop; release them; publish what was released; sign off.

use std::{
    collections::HashMap,
    future::Future,
    panic::AssertUnwindSafe,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{FutureExt, future::join_all};
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinSet,
    time::{sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Recovery, WorkerError, loops::Loops, turns::Turns};
use crate::{
    config::{Retention, Timing, TraceParent},
    deliver::{Deliver, Delivered},
    fault,
    job::{
        Outcome,
        claim::{Ack, Claim, Missed, ack_for},
    },
    nats::{
        Control, Delivery, Probed, Pull, PullConsumer, Pulled, Queue, QueueError,
        slots::{Slot, Slots},
    },
    observe::{health::Health, metrics::QueueMeasures, panics::Panics, repeats::Repeats, trace},
    recover::{
        reconcile::{Identity, LifeSign, reconcile},
        relay,
    },
    run::{
        context::JobContext,
        handlers::{Ended, Kind, Kinds, run},
        heartbeat::Heartbeat,
        running::{Message, Reservation, Running, RunningJob},
        settle::{Settle, Settled, Verdict, verdict},
        threads::Threads,
    },
    store::{NEEDS, Registration, Schema, Store, StoreError},
};

/// When a consumer that could not be had is asked for again: twice as late each time.
const CONSUMER_AGAIN: Duration = Duration::from_millis(100);
const CONSUMER_AGAIN_MAX: Duration = Duration::from_secs(10);
/// How long a worker that starts waits for its consumers.
const CONSUMERS_WITHIN: Duration = Duration::from_secs(2);
/// How many consumers a worker asks for at once.
pub(super) const ASKS_MAX: usize = 32;

/// A running worker.
pub(super) struct Shared<S> {
    pub(super) store: Store,
    pub(super) queue: Queue,
    pub(super) state: Arc<S>,
    pub(super) kinds: Kinds<S>,
    pub(super) running: Running,
    pub(super) heartbeat: Heartbeat,
    pub(super) deliver: Deliver,
    pub(super) settle: Settle,
    pub(super) timing: Timing,
    pub(super) retention: Retention,
    pub(super) worker_id: String,
    pub(super) hostname: String,
    /// The queues served, and the slots of each.
    pub(super) queues: Arc<HashMap<String, Slots>>,
    /// How many jobs run at once, of all of them.
    pub(super) slots: usize,
    pub(super) measures: HashMap<String, QueueMeasures>,
    pub(super) health: Health,
    /// What the loops of the start, which try again twice a second, have said.
    pub(super) repeats: Repeats,
    pub(super) recovery: Recovery,
    #[cfg(feature = "testing")]
    pub(super) loses_first: bool,
    pub(super) runtime_dir: PathBuf,
    pub(super) threads: Threads,
    /// Where this process can be asked whether it is there.
    pub(super) probe_subject: String,
    pub(super) reaches_itself: AtomicBool,
    /// What is said to this process, until somebody listens.
    pub(super) control: Mutex<Option<Control>>,
    pub(super) turns: Turns,
    pub(super) stop_relaying: relay::Stop,
    /// Told when operators may have said something new of queues.
    pub(super) settings_changed: Notify,
    /// How many consumers are asked for at once.
    pub(super) asks: Semaphore,
    /// Those that were found at the start, until somebody pulls from them.
    pub(super) consumers: Mutex<HashMap<String, PullConsumer>>,
    pub(super) checkpoint_bytes_max: usize,
    pub(super) trace_parent: TraceParent,
}

impl<S: Send + Sync + 'static> Shared<S> {
    pub(super) async fn run_until(
        self: Arc<Self>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), WorkerError> {
        let life_sign = LifeSign::create(&self.runtime_dir, &self.worker_id);
        let mut registration = self.registration(&life_sign);
        let mut shutdown = std::pin::pin!(shutdown);
        self.health.lacks("claims", "not tried yet");
        for name in self.queues.keys() {
            self.health.lacks(&queue_of(name), "not pulled yet");
        }
        // Dropped on every way out, also when this future is dropped: nothing of it outlives it.
        let mut background = Loops::default();
        macro_rules! run_for_ever {
            ($($name:literal: $work:ident),+) => {$({
                let shared = self.clone();
                background.spawn($name, move || shared.clone().$work());
            })+};
        }
        run_for_ever!("health": beat);
        tokio::select! {
            started = self.start(&mut registration) => started?,
            () = &mut shutdown => return Ok(()),
        }
        let stop_pulling = CancellationToken::new();
        let mut pulls = JoinSet::new();
        let heartbeat = self.heartbeat.clone();
        background.spawn("heartbeat", move || heartbeat.clone().run());
        let shared = self.clone();
        background.spawn("renew", move || shared.clone().renew(registration.clone()));
        run_for_ever!(
            "listen": listen, "claims": try_claims, "report": report_on, "give back": give_back,
            "settings": follow_settings, "turns": take_turns, "fleet": show_fleet, "messages": measure_messages
        );
        if self.recovery.scanner {
            run_for_ever!("scan": scan, "sweep": sweep);
        }
        if self.recovery.vanished {
            run_for_ever!("look": look);
        }
        if self.recovery.relay {
            run_for_ever!("relay": relay, "tick": tick, "reclaim": reclaim);
        }
        for (name, slots) in &*self.queues {
            pulls.spawn(self.clone().pull(name.clone(), slots.clone(), stop_pulling.clone()));
        }
        let queues: Vec<_> = self.queues.keys().collect();
        tracing::info!(worker = %self.worker_id, ?queues, slots = self.slots, "worker started");

        self.health.started();
        let mut jobs = Vec::new();
        let mut all_lost = std::pin::pin!(self.threads.all_lost(self.timing.stale_after));
        let all_blocked = loop {
            tokio::select! {
                () = &mut shutdown => break false,
                () = &mut all_lost => break true,
                name = background.ended() => self.lost_loop(name),
                Some(pulled) = pulls.join_next() => {
                    // What it has begun goes on.
                    jobs.extend(pulled.ok());
                    self.lost_loop("pull");
                }
            }
        };
        self.health.draining();
        if all_blocked {
            tracing::error!(
                threads = self.threads.count(),
                "every thread for handlers is blocked; the worker ends"
            );
        }
        let running = self.running.all().len();
        tracing::info!(worker = %self.worker_id, running, "stopping: no new jobs");
        stop_pulling.cancel();
        while let Some(pulled) = pulls.join_next().await {
            // One that panicked has dropped its jobs, which others take back.
            jobs.extend(pulled.ok());
        }
        if timeout(self.timing.shutdown_grace, ended(&mut jobs)).await.is_err() {
            let rest = self.running.stop_all();
            tracing::warn!(jobs = rest, "still running after the grace; asked to stop");
            let longest = self.kinds.all().map(|kind| self.cancel_grace(kind)).max().unwrap_or_default();
            let within = longest.saturating_add(self.timing.database_within);
            if timeout(within, ended(&mut jobs)).await.is_err() {
                tracing::error!(jobs = self.running.all().len(), "not released; others will take them back");
            }
        }
        let relayed_by = tokio::time::Instant::now() + self.timing.publish_within;
        if self.recovery.relay {
            drop(timeout_at(relayed_by, self.publish_due()).await);
        }
        background.tasks.shutdown().await;
        // What is taken counts as published: it goes out before this process ends.
        drop(timeout_at(relayed_by, self.stop_relaying.stop()).await);
        // After the loop that would take them again.
        self.leave_turns().await;
        // Not while it owns a job that could not be released: others find it by its worker's row.
        let us = std::slice::from_ref(&self.worker_id);
        let signed_off =
            async { tokio::join!(self.report(), self.store.forget_workers(Some(us), Duration::ZERO)) };
        let removed = timeout(self.timing.database_within, signed_off).await;
        if !matches!(removed, Ok(((), Ok(forgotten))) if !forgotten.is_empty()) {
            tracing::warn!("the worker's row was not removed; its death will be proven");
        }
        self.queue.flush().await;
        tracing::info!(worker = %self.worker_id, "worker stopped");
        if all_blocked { Err(WorkerError::Blocked { threads: self.threads.count() }) } else { Ok(()) }
    }

    async fn leave_turns(&self) {
        let left = timeout(self.timing.database_within, self.store.leave_turns(&self.worker_id)).await;
        if matches!(left, Ok(Ok(true))) {
            self.queue.announce_turns().await;
        }
    }

    /// A loop ends with the worker, or by panics, one after another. Only a restart brings it back.
    fn lost_loop(&self, name: &'static str) {
        tracing::error!(
            name,
            "a loop of the worker has ended; it is not alive any more, and should be restarted"
        );
        self.health.loop_ended(name);
    }

    fn registration(&self, life_sign: &LifeSign) -> Registration {
        let identity = Identity::of_this_process();
        Registration {
            worker_id: self.worker_id.clone(),
            hostname: self.hostname.clone(),
            pid: i32::try_from(std::process::id()).unwrap_or_default(),
            boot_id: identity.boot_id,
            pid_namespace: identity.pid_namespace,
            pid_started_at: identity.pid_started_at,
            lock_file: life_sign.path(),
            probe_subject: None,
            renew_every: self.timing.renew_every,
            queues: self.queues.keys().cloned().collect(),
            kinds: self.kinds.names(),
            slots: i32::try_from(self.slots).unwrap_or(i32::MAX),
        }
    }

    /// Waits for both servers, and takes back what earlier processes of this host left. The consumers are looked after
    /// by those who pull: a queue that cannot be served must not keep the others from being served.
    async fn start(&self, registration: &mut Registration) -> Result<(), WorkerError> {
        self.await_schema().await?;
        self.look_after_stream().await;
        // Before others can see this worker, those of its queues that can be served can be. The rest is asked for by
        // those who pull.
        let all = join_all(self.queues.keys().map(|name| async move {
            if let Ok(consumer) = self.ensure_consumer(name).await {
                self.consumers.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), consumer);
            }
        }));
        drop(timeout(CONSUMERS_WITHIN, all).await);
        let mut control = self.listen_anew().await;
        tokio::select! {
            () = self.probe_ourselves(registration) => {}
            // Answers the probe. No job runs yet that an announcement could be about.
            () = async { while control.next().await.is_some() {} } => {}
        }
        // Registered before the first claim, so that every owner can be found.
        loop {
            let started = async {
                self.store.register_worker(registration).await?;
                if self.recovery.reconcile {
                    match reconcile(&self.store, registration, &self.runtime_dir).await {
                        // What it would have taken back is left to the others' looks.
                        Err(error) if !error.is_unavailable() => {
                            tracing::error!(%error, "what earlier processes of this host left was not taken back");
                        }
                        answer => drop(answer?),
                    }
                }
                Ok::<_, StoreError>(())
            };
            match started.await {
                Ok(()) => {
                    *self.control.lock().unwrap_or_else(PoisonError::into_inner) = Some(control);
                    return Ok(());
                }
                Err(error) if error.is_unavailable() => sleep(Duration::from_millis(500)).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for Postgres, and for the schema: in a deploy `tenure migrate` may come a little later than its workers,
    /// and one that ended would be started again later and later. A newer schema will do, unless it says otherwise.
    async fn await_schema(&self) -> Result<(), WorkerError> {
        loop {
            let lacks = match self.store.schema().await {
                Ok(is) if is.breaks_before > NEEDS => {
                    let Schema { version, breaks_before } = is;
                    return Err(WorkerError::TooOld { version, breaks_before, knows: NEEDS });
                }
                Ok(is) if is.version >= NEEDS => {
                    self.health.has("schema");
                    return Ok(());
                }
                Ok(is) => format!(
                    "it is at version {}, but this program needs {NEEDS}; run `tenure migrate`",
                    is.version
                ),
                Err(StoreError::NotMigrated(_)) => {
                    "there is none of tenure in this database; run `tenure migrate`".to_owned()
                }
                Err(error) if error.is_unavailable() => {
                    let reason = self.store.last_error();
                    if let Some(left_out) = self.repeats.tell(&reason) {
                        tracing::warn!(reason, left_out, "waiting for Postgres");
                    }
                    sleep(Duration::from_millis(500)).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if let Some(left_out) = self.repeats.tell(&lacks) {
                tracing::error!(
                    reason = lacks,
                    left_out,
                    "waiting for the schema; no job runs here until then"
                );
            }
            self.health.lacks("schema", lacks);
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Subscribes to what others say to this process, however long it takes.
    pub(super) async fn listen_anew(&self) -> Control {
        loop {
            match self.queue.listen(&self.probe_subject).await {
                Ok(control) => return control,
                Err(error) => {
                    if let Some(left_out) = self.repeats.tell(&format!("listen: {error}")) {
                        tracing::warn!(%error, left_out, "not listening to cancellations and probes yet");
                    }
                    sleep(Duration::from_millis(500)).await;
                }
            }
        }
    }

    /// Names our subject only while we reach ourselves over it: where subscribing is not permitted, nobody
    /// may conclude anything from its silence.
    pub(super) async fn probe_ourselves(&self, registration: &mut Registration) {
        let before = registration.probe_subject.take();
        registration.probe_subject = match self.queue.probe(&self.probe_subject).await {
            Probed::Here => Some(self.probe_subject.clone()),
            Probed::NoAnswer => before,
            Probed::Gone => {
                tracing::warn!(
                    subject = self.probe_subject,
                    "this worker does not reach itself over NATS; \
                    should it die, its jobs are taken back after stale_after, not within seconds"
                );
                None
            }
        };
        self.reaches_itself.store(registration.probe_subject.is_some(), Ordering::Release);
    }

    /// Creates the stream if it is missing, however long it takes.
    async fn look_after_stream(&self) {
        let mut failures: u32 = 0;
        loop {
            // Requests that nobody takes would pile up in the client.
            while timeout(Duration::from_secs(5), self.queue.connected()).await.is_err() {
                if let Some(left_out) = self.repeats.tell("waiting for NATS") {
                    tracing::warn!(servers = self.queue.servers(), left_out, "waiting for NATS");
                }
            }
            match self.ensure_stream().await {
                Ok(()) => return,
                Err(error) => {
                    failures += 1;
                    // The first answer may be late: a server that has just started looks for its streams.
                    if failures > 1
                        && let Some(left_out) = self.repeats.tell(&format!("stream: {error}"))
                    {
                        tracing::error!(%error, left_out, "not ready: the stream is missing and cannot be created; a \
                            denied permission looks like no answer. Run `tenure migrate` with the admin role, or wait");
                    }
                    sleep(Duration::from_millis(500)).await;
                }
            }
        }
    }

    async fn ensure_stream(&self) -> Result<(), QueueError> {
        let drift = self.queue.ensure_stream().await?;
        if !drift.is_empty() {
            tracing::error!(?drift, "the stream differs from its definition; `tenure migrate` changes it");
        }
        Ok(())
    }

    /// A queue's consumer, created if it is missing.
    async fn ensure_consumer(&self, name: &str) -> Result<PullConsumer, QueueError> {
        // A worker of very many queues asks for some of them at a time.
        let _turn = self.asks.acquire().await;
        let (consumer, drift) = self.queue.ensure_consumer(name).await?;
        if !drift.is_empty() {
            tracing::error!(
                queue = name,
                ?drift,
                "the consumer differs from its definition; `tenure migrate --queue NAME` changes it"
            );
        }
        Ok(consumer)
    }

    /// Creates what is missing of the stream and the consumers. A consumer that cannot be created keeps none of the
    /// others from being created; the first error is returned.
    pub(super) async fn try_topology(&self) -> Result<(), QueueError> {
        self.ensure_stream().await?;
        let mut all = Ok(());
        for name in self.queues.keys() {
            all = all.and(self.ensure_consumer(name).await.map(drop));
        }
        all
    }

    /// Pulls one queue's messages until told to stop. Returns what still runs. After a panic it begins anew.
    async fn pull(self: Arc<Self>, name: String, slots: Slots, stop: CancellationToken) -> JoinSet<()> {
        // Dropped with this future, so that nothing outlives the worker.
        let mut jobs = JoinSet::new();
        let mut panics = Panics::new("pull");
        loop {
            let pulling = self.clone().pull_into(&mut jobs, &name, &slots, &stop);
            match AssertUnwindSafe(pulling).catch_unwind().await {
                Ok(()) => return jobs,
                Err(panic) => match panics.note(&*panic) {
                    Some(pause) => sleep(pause).await,
                    None => return jobs,
                },
            }
        }
    }

    async fn pull_into(
        self: Arc<Self>,
        jobs: &mut JoinSet<()>,
        name: &str,
        slots: &Slots,
        stop: &CancellationToken,
    ) {
        let mut database = self.store.availability();
        let mut failures: u32 = 0;
        while !stop.is_cancelled() {
            if !database.borrow().up {
                tracing::warn!(
                    queue = name,
                    reason = self.store.last_error(),
                    "Postgres is away: not pulling"
                );
                tokio::select! {
                    () = stop.cancelled() => break,
                    up = database.wait_for(|now| now.up) => if up.is_err() { break },
                }
            }
            let found = self.consumers.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
            let ensured = async {
                match found {
                    Some(consumer) => Ok(consumer),
                    None => self.ensure_consumer(name).await,
                }
            };
            let consumer = tokio::select! {
                () = stop.cancelled() => break,
                consumer = ensured => consumer,
            };
            let consumer = match consumer {
                Ok(consumer) => {
                    failures = 0;
                    self.health.has(&queue_of(name));
                    consumer
                }
                Err(error) => {
                    failures += 1;
                    self.health.lacks(&queue_of(name), error.to_string());
                    if failures.is_power_of_two() {
                        tracing::warn!(%error, queue = name, failures, "the queue is not served; others are");
                    }
                    let pause = (CONSUMER_AGAIN * (1 << failures.min(7))).min(CONSUMER_AGAIN_MAX);
                    tokio::select! {
                        () = stop.cancelled() => break,
                        () = sleep(pause) => {}
                    }
                    tokio::select! {
                        () = stop.cancelled() => break,
                        () = self.look_after_stream() => {}
                    }
                    continue;
                }
            };
            let mut pull = Pull::new(self.queue.clone(), consumer, slots.clone(), self.timing.pull_for);
            let why = loop {
                let pulled = tokio::select! { biased;
                    () = stop.cancelled() => break "stopping".into(),
                    _ = database.wait_for(|now| !now.up) => break "Postgres is away".into(),
                    pulled = pull.next() => pulled,
                };
                match pulled {
                    Ok(Pulled::Deliveries(deliveries)) => {
                        // What has ended leaves nothing behind.
                        while jobs.try_join_next().is_some() {}
                        for (delivery, slot) in deliveries {
                            if let Some(measures) = self.measures.get(name) {
                                measures.deliveries.increment(1);
                                measures.redeliveries.increment(u64::from(delivery.deliveries > 1));
                                measures.slot_idle.record(slot.taken_at.elapsed());
                            }
                            let shared = self.clone();
                            jobs.spawn(async move {
                                if let Err(panic) =
                                    AssertUnwindSafe(shared.take(delivery, slot)).catch_unwind().await
                                {
                                    // The next job has a task of its own; this one's is found by its silence.
                                    Panics::new("job").note(&*panic);
                                }
                            });
                        }
                    }
                    Ok(Pulled::Broken(why)) => break why,
                    Err(error) => break error.to_string(),
                }
            };
            for delivery in pull.stop().await {
                if stop.is_cancelled() {
                    delivery.receipt.give_back().await;
                } else {
                    delivery.receipt.send(ack_for(&Missed::Unanswered, delivery.deliveries)).await;
                }
            }
            if !stop.is_cancelled() {
                self.health.lacks(&queue_of(name), why.clone());
                tracing::warn!(queue = name, why, "pulling starts anew");
                sleep(Duration::from_millis(50)).await;
                if database.borrow().up {
                    tokio::select! {
                        () = stop.cancelled() => break,
                        () = self.look_after_stream() => {}
                    }
                }
            }
        }
    }

    /// Takes one delivery to its end. The slot is free when this returns.
    async fn take(&self, delivery: Delivery, _slot: Slot) {
        fault::point("delivered");
        let delivered_at = Instant::now();
        let rules = |kind: &str| self.kinds.get(kind).map(|kind| kind.rules);
        match self.deliver.decide(&delivery, rules).await {
            Delivered::Ours(claim, reservation, dispatch) => {
                let message = Message { receipt: delivery.receipt, dispatch };
                if let Some(measures) = self.measures.get(&claim.queue) {
                    measures.wait.record(claim.waited);
                    measures.tally.claimed(claim.waited);
                    measures.pickup.record(delivered_at.elapsed());
                    if claim.after_reset {
                        measures.reset_to_running.record(claim.waited);
                    }
                }
                self.run(*claim, reservation, message).await;
            }
            Delivered::Missed(missed) => {
                delivery.receipt.send(ack_for(&missed, delivery.deliveries)).await;
            }
            Delivered::Kept => {}
        }
    }

    async fn run(&self, claim: Claim, reservation: Reservation, message: Message) {
        let Some(kind) = self.kinds.get(&claim.kind) else {
            // A claim is of the kind that its message's subject names, and that one was looked up.
            tracing::error!(
                job = %claim.key.job, token = claim.key.token.0, kind = claim.kind, worker = self.worker_id,
                "claimed without a handler"
            );
            return;
        };
        let span = trace::process(&claim, &self.worker_id, self.trace_parent);
        let job = Arc::new(RunningJob::new(claim, message, kind.rules, span.id()));
        self.attempt(kind, job, reservation).instrument(span).await;
    }

    /// Runs a claimed job, and settles it. In the span of the attempt: what is logged here needs not say of which job.
    async fn attempt(&self, kind: &Kind<S>, job: Arc<RunningJob>, reservation: Reservation) {
        if reservation.run(job.clone()) {
            Box::pin(self.heartbeat.look_after(std::slice::from_ref(&job))).await;
        }
        fault::point("claimed");
        tracing::debug!("running");
        let context = JobContext {
            job: job.clone(),
            state: self.state.clone(),
            store: self.store.clone(),
            heartbeat: self.heartbeat.clone(),
            checkpoint_bytes_max: self.checkpoint_bytes_max,
        };
        let began_at = Instant::now();
        let ended = run(kind, context, self.cancel_grace(kind), &self.threads).await;
        #[cfg(feature = "testing")]
        if self.loses_first
            && job.key.token.0 == 1
            && let Err(error) = Box::pin(self.store.lose(job.key.job)).await
        {
            tracing::error!(%error, "a test's first attempt was not taken back");
        }
        // A handler that was told to stop may fail; one that says it is done wants that written.
        let says_done = matches!(ended, Ended::Returned(Ok(Outcome::Done(_) | Outcome::DoneJson(_))));
        let mut verdict = verdict(&job, ended, &kind.retry, kind.timeout);
        let write = match &mut verdict {
            Verdict::End(end) => {
                // The last checkpoint belongs to the next attempt.
                Box::pin(self.heartbeat.flush(&job)).await;
                end.verdict
            }
            Verdict::Complete(completion) => {
                completion.report = Box::pin(self.heartbeat.last_report(&job)).await;
                "complete"
            }
            Verdict::Written | Verdict::Lost => "complete",
        };
        let told = job.is_lost();
        let messages = job.end();
        let tally = self.measures.get(&job.claim.queue).map(|measures| &measures.tally);
        let ran = began_at.elapsed();
        let settled = self.settle.write(&job, verdict, ran, kind.measures.as_ref(), tally).await;
        fault::point("settled");
        if settled == Settled::Lost && (says_done || !told) {
            Box::pin(self.heartbeat.lost(&job, write)).await;
        }
        for message in messages {
            let ack = match settled {
                Settled::Written => Ack::Done,
                // Each by its own verdict: one of them may be the next attempt's.
                Settled::Lost => Box::pin(self.ack_of_lost(&job, message.dispatch)).await,
            };
            message.receipt.send(ack).await;
        }
        if fault::is_near("acknowledged") {
            // The client's task would die before it has sent anything.
            self.queue.flush().await;
        }
        fault::point("acknowledged");
        if let Some(slots) = self.queues.get(&job.claim.queue) {
            slots.ended();
        }
        // Not before the ack: until then a redelivery must find the job here. Nor while the handler keeps its
        // thread, though it was given up: the next attempt must not run beside it.
        if job.thread.blocked_for().is_some() {
            tokio::spawn(async move {
                Threads::returned(&job.thread).await;
                drop(reservation);
            });
        } else {
            drop(reservation);
        }
    }

    async fn ack_of_lost(&self, job: &RunningJob, dispatch: Option<i32>) -> Ack {
        let claim = &job.claim;
        match self.store.missed(job.key.job, &claim.queue, &claim.kind, dispatch).await {
            Ok(missed) => ack_for(&missed, 1),
            Err(_) => ack_for(&Missed::Unanswered, 1),
        }
    }

    fn cancel_grace(&self, kind: &Kind<S>) -> Duration {
        kind.cancel_grace.unwrap_or(self.timing.cancel_grace)
    }
}

/// What a queue is called where its health is told.
fn queue_of(name: &str) -> String {
    format!("queue {name}")
}

/// Waits for the end of all jobs. Cancel safe.
async fn ended(jobs: &mut [JoinSet<()>]) {
    for jobs in jobs {
        while jobs.join_next().await.is_some() {}
    }
}
