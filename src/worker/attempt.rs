//! Attempt: one delivery, from the claim through its handler to the ack.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::sleep;
use tracing::Instrument;

use super::queues::Queues;
use crate::{
    codec::{self, job::Codecs},
    config::TraceParent,
    deliver::{Deliver, Delivered},
    job::{
        JobError, Outcome,
        claim::{Ack, Claim, Missed, ack_for},
    },
    logs::run::LogWriter,
    nats::{Delivery, Nats, slots::Slot},
    observe::{health::Health, trace},
    proof::fault,
    run::{
        context::JobContext,
        handlers::{self, Ended, Kind, Kinds},
        heartbeat::Heartbeat,
        running::{Message, Reservation, RunningJob},
        settle::{Settle, Settled, Verdict, verdict},
        threads::Threads,
    },
    steps::run::Recorder,
    store::Store,
    watch::run::Hints,
};

/// How often a job that this worker could not claim is offered to the relay, while others of its message run: NATS does
/// not redeliver the message before they have ended. After that, the relay finds that no worker took it in time.
const HANDED_OVER_MAX: u32 = 5;

/// The handlers, and the parts that running one needs.
pub(super) struct Handlers<S> {
    pub(super) kinds: Kinds<S>,
    pub(super) state: Arc<S>,
    pub(super) threads: Threads,
    /// The grace of kinds that set none.
    pub(super) cancel_grace: Duration,
    pub(super) checkpoint_bytes_max: usize,
    pub(super) payload_bytes_max: usize,
    pub(super) codecs: Codecs,
    pub(super) store: Store,
    pub(super) heartbeat: Heartbeat,
    pub(super) recorder: Recorder,
    /// `None`: nothing is kept of what handlers print.
    pub(super) logs: Option<LogWriter>,
}

impl<S: Send + Sync + 'static> Handlers<S> {
    async fn run(&self, kind: &Kind<S>, job: Arc<RunningJob>) -> Ended {
        let context = JobContext {
            job,
            state: self.state.clone(),
            store: self.store.clone(),
            heartbeat: self.heartbeat.clone(),
            recorder: self.recorder.clone(),
            checkpoint_bytes_max: self.checkpoint_bytes_max,
            payload_bytes_max: self.payload_bytes_max,
            codecs: self.codecs.clone(),
        };
        handlers::run(kind, context, self.cancel_grace(kind), &self.threads).await
    }

    fn cancel_grace(&self, kind: &Kind<S>) -> Duration {
        kind.cancel_grace.unwrap_or(self.cancel_grace)
    }

    /// Returns the longest time that a cancelled handler may take to end.
    pub(super) fn longest_grace(&self) -> Duration {
        self.kinds.all().map(|kind| self.cancel_grace(kind)).max().unwrap_or_default()
    }
}

/// Handles deliveries: claims, runs, settles, acks.
pub(crate) struct Attempts<S> {
    pub(super) handlers: Handlers<S>,
    pub(crate) deliver: Deliver,
    pub(crate) settle: Settle,
    pub(crate) heartbeat: Heartbeat,
    pub(super) store: Store,
    pub(super) nats: Nats,
    pub(crate) hints: Hints,
    pub(super) queues: Arc<Queues>,
    pub(crate) worker_id: String,
    pub(super) trace_parent: TraceParent,
    pub(super) health: Health,
    /// Whether a job loses its first claim when its handler has ended.
    pub(super) loses_first: bool,
}

impl<S: Send + Sync + 'static> Attempts<S> {
    /// Handles one delivery until its ack. The slot is free when this returns.
    pub(super) async fn take(&self, delivery: Delivery, slot: Slot) {
        fault::point("delivered");
        let delivered_at = Instant::now();
        let rules = |kind: &str| self.handlers.kinds.get(kind).map(|kind| kind.rules);
        match self.deliver.decide(&delivery, rules).await {
            Delivered::Ours(claim, reservation, dispatch) => {
                delivery.receipt.runs();
                let message = Message { receipt: delivery.receipt, dispatch };
                if let Some(measures) = self.queues.measures.get(&claim.queue) {
                    measures.wait.record(claim.waited);
                    measures.rates.claimed(claim.waited);
                    measures.pickup.record(delivered_at.elapsed());
                    if claim.after_reset {
                        measures.reset_to_running.record(claim.waited);
                    }
                }
                self.run(*claim, reservation, message).await;
            }
            Delivered::Missed(missed) => {
                let ack = Box::pin(self.deliver.ack(&delivery, &missed)).await;
                drop(slot);
                self.put_off(&delivery, &missed, ack).await;
            }
            Delivered::Kept => {}
        }
    }

    /// Answers a delivery that is not run. One job of a message may not wait for another that runs here, perhaps for
    /// hours: the relay is offered it again.
    pub(super) async fn put_off(&self, delivery: &Delivery, missed: &Missed, mut ack: Ack) {
        for _ in 0..HANDED_OVER_MAX {
            let (Ack::Later(wait), Missed::Unanswered | Missed::Ending) = (ack, missed) else { break };
            if !delivery.receipt.waits_for_another() {
                break;
            }
            tokio::select! {
                () = self.health.drains() => break,
                () = sleep(wait) => {}
            }
            ack = Box::pin(self.deliver.ack(delivery, missed)).await;
        }
        delivery.receipt.send(ack).await;
    }

    async fn run(&self, mut claim: Claim, reservation: Reservation, message: Message) {
        let Some(kind) = self.handlers.kinds.get(&claim.kind) else {
            // Cannot happen: `decide` looked up the kind of the message's subject, which is the claim's kind.
            tracing::error!(
                job = %claim.key.job, token = claim.key.token.0, kind = claim.kind, worker = self.worker_id,
                "the worker claimed a job for which it has no handler; please report it"
            );
            return;
        };
        let span = trace::process(&claim, &self.worker_id, self.trace_parent);
        let opened = codec::run::open_claim(&self.handlers.codecs, &mut claim);
        let job = Arc::new(RunningJob::new(claim, message, kind.rules, span.id()));
        // A log is plain text: of a sealed kind nothing is kept.
        let keeps_log = self.handlers.logs.is_some() && !self.handlers.codecs.has(&job.claim.kind);
        if keeps_log {
            job.log.keep();
        }
        let _listed = keeps_log.then(|| crate::logs::observe::list(job.span.as_ref(), &job));
        self.attempt(kind, job, reservation, opened).instrument(span).await;
    }

    /// Runs a claimed job, and settles it. The attempt's span names the job in each log line.
    async fn attempt(
        &self,
        kind: &Kind<S>,
        job: Arc<RunningJob>,
        reservation: Reservation,
        opened: Result<(), JobError>,
    ) {
        if reservation.run(job.clone()) {
            Box::pin(self.heartbeat.look_after(std::slice::from_ref(&job))).await;
        }
        fault::point("claimed");
        self.hints.began(&job.claim);
        tracing::debug!("running");
        let began_at = Instant::now();
        let ended = match opened {
            Err(error) => Ended::Returned(Err(error)),
            Ok(()) => self.call(kind, &job).await,
        };
        codec::run::say_put_off(&job.claim.kind, &ended);
        if self.loses_first
            && job.key.token.0 == 1
            && let Err(error) = Box::pin(self.store.lose(job.key.job)).await
        {
            tracing::error!(%error, "the store did not mark the test's first attempt as lost");
        }
        // A handler that was asked to stop may return an error; if it returns a success, that must be written.
        let says_done = matches!(ended, Ended::Returned(Ok(Outcome::Done(_) | Outcome::DoneJson(_))));
        let (mut verdict, error) = verdict(&job, ended, &kind.retry, kind.timeout);
        let write = match &mut verdict {
            Verdict::End(end) => {
                // The next attempt reads the last checkpoint.
                Box::pin(self.heartbeat.flush(&job)).await;
                end.verdict.as_str()
            }
            Verdict::Complete(completion) => {
                completion.report = Box::pin(self.heartbeat.last_report(&job)).await;
                "complete"
            }
            Verdict::Written | Verdict::Lost => "complete",
        };
        if let Some(logs) = &self.handlers.logs {
            if says_done {
                job.steps.log_uncalled(&job.log);
            }
            logs.write_last(&job).await;
        }
        let told = job.is_lost();
        let messages = job.end();
        let rates = self.queues.measures.get(&job.claim.queue).map(|measures| &measures.rates);
        let ran = began_at.elapsed();
        let (_, settled) = self.settle.write(&job, verdict, error, ran, kind.measures.as_ref(), rates).await;
        fault::point("settled");
        if says_done && settled == Settled::Written {
            job.steps.warn_of_uncalled();
        }
        if settled == Settled::Lost && (says_done || !told) {
            Box::pin(self.heartbeat.lost(&job, write)).await;
        }
        for message in messages {
            let ack = match settled {
                Settled::Written => Ack::Done,
                // Postgres decides on each message: one of them may belong to the next attempt.
                Settled::Lost => Box::pin(self.ack_of_lost(&job, message.dispatch)).await,
            };
            message.receipt.send(ack).await;
        }
        if fault::is_near("acknowledged") {
            // Otherwise the fault would kill the client's task before it has sent the ack.
            self.nats.flush().await;
        }
        fault::point("acknowledged");
        if let Some(slots) = self.queues.slots.get(&job.claim.queue) {
            slots.ended();
        }
        // The reservation outlasts the ack: until then a redelivery must find the job here. It also outlasts an
        // abandoned handler that still blocks its thread: the next attempt must not run beside it.
        if job.thread.blocked_for().is_some() {
            tokio::spawn(async move {
                Threads::returned(&job.thread).await;
                drop(reservation);
            });
        } else {
            drop(reservation);
        }
    }

    /// Calls the handler, unless the job's kind is in quarantine.
    async fn call(&self, kind: &Kind<S>, job: &Arc<RunningJob>) -> Ended {
        let name = &job.claim.kind;
        if let Some(waits) = self.settle.quarantine().holds(name, job.key, kind.rules.no_history).await {
            return Ended::Quarantined(waits);
        }
        let ended = self.handlers.run(kind, job.clone()).await;
        codec::run::seal_output(&self.handlers.codecs, name, ended)
    }

    async fn ack_of_lost(&self, job: &RunningJob, dispatch: Option<i32>) -> Ack {
        let claim = &job.claim;
        match self.store.missed(job.key.job, &claim.queue, &claim.kind, dispatch).await {
            Ok(missed) => ack_for(&missed, 1),
            Err(_) => ack_for(&Missed::Unanswered, 1),
        }
    }
}
