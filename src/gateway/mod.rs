//! Gateway: serves the worker protocol (`docs/worker-protocol.md`) to workers in other languages, which have no
//! connection to Postgres.
//!
//! ```text
//! a worker ── take ──► pull exactly its slots ──► claim for it ──► jobs, each with a receipt
//!          ── report, settle ──► the receipt's claim ──► one statement ──► the message's ack
//!          ── step, sleep, event, all ──► the call of a Rust handler, under the receipt's claim
//!          ── beat ──► its row; which of its jobs are lost or cancelled
//! ```
//!
//! A gateway keeps nothing that another one could not do without: the receipt holds the claim and the message's ack,
//! signed with a key of the database. It writes nothing by itself: a worker that hangs must look silent.
//!
//! A gateway that freezes keeps its subscriptions. So a worker finds one that answers a `ping`, and asks it alone, at
//! its address, for as long as it answers.
//!
//! A worker confirms that it got its jobs; otherwise the gateway gives them back. If the gateway dies before that, only
//! the worker knows that an answer is missing: it asks for what it holds, and another gateway gives back what it does
//! not name.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_forged_receipt_settles_nothing`
//! - `a_claim_whose_answer_was_lost_is_given_back_uncharged`
//! - `a_settle_that_is_repeated_answers_as_the_first_did`

pub(crate) mod nats;
mod one_at_a_time;
mod presence;
mod produce;
mod protocol;
mod receipt;
mod settle;
mod steps;
pub(crate) mod store;
mod take;
pub(crate) mod worker;

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use futures::FutureExt;
use tokio::{
    sync::{Notify, Semaphore, watch},
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::{
    one_at_a_time::OneAtATime,
    protocol::{Code, Fields, REQUESTS, Refusal, answer},
    receipt::{Receipt, Signer},
    take::Queue,
};
use crate::{
    client::Tenure,
    config::Timing,
    deliver::Deliver,
    gateway::nats::{Asked, CONFIRMED_WITHIN, ToGateway, body_max},
    job::{JobError, JobId, claim::ClaimKey},
    logs::run::LogWriter,
    nats::{LATE, Nats, announced_cancelled},
    observe::{metrics, panics, repeats},
    proof::fault,
    run::{heartbeat::Heartbeat, settle::Settle},
    steps::run::Recorder,
    store::{ProgressWrite, Store, StoreError, batch::Batcher},
    watch::run::Hints,
};

/// The most requests that are served at once, the most that wait for a job, and the most that wait for an end: none of
/// them keeps one of the others from being served. Of large bodies fewer: see [`PLACE_BYTES`].
const REQUESTS_MAX: usize = 20_000;
const TAKES_MAX: usize = 8_000;
const WAITING_MAX: usize = 20_000;
/// The bytes of a body that one of these places is for. A larger body takes several.
const PLACE_BYTES: usize = 16 * 1_024;
/// The most takes that claim at once. More of them than there are connections to Postgres would only wait for one, each
/// with the memory of a whole claim.
const CLAIMING_MAX: usize = 24;
/// The most announcements that are looked after at once.
const ANNOUNCED_MAX: usize = 8;
/// How long a worker, a queue or a key counts as known after its last use.
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// How long a take waits whose worker has not confirmed two answers one after the other. It doubles to 4 s.
const UNCONFIRMED_PAUSE: Duration = Duration::from_millis(250);
/// The longest wait of a request.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The most jobs of one answer to `take`, and the most entries of one `report` or `settle`.
const ENTRIES_MAX: usize = 1_000;

/// The parts of a worker that its gateway uses.
pub(crate) struct Parts {
    pub(crate) tenure: Tenure,
    pub(crate) deliver: Deliver,
    pub(crate) settle: Settle,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) hints: Hints,
    pub(crate) worker_id: String,
}

/// Serves the worker protocol. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Gateway(Arc<Inner>);

struct Inner {
    /// Workers that know it ask this gateway, and no other.
    address: String,
    tenure: Tenure,
    store: Store,
    nats: Nats,
    deliver: Deliver,
    settle: Settle,
    heartbeat: Heartbeat,
    hints: Hints,
    worker_id: String,
    timing: Timing,
    signer: OnceLock<Signer>,
    progress: Batcher<ProgressWrite, Result<Option<bool>, StoreError>>,
    recorder: Recorder,
    /// `None`: what jobs print is not kept.
    logs: Option<LogWriter>,
    /// Writes about one job do not overtake each other.
    jobs: OneAtATime<JobId>,
    claims_of: Batcher<(String, DateTime<Utc>), Result<Vec<ClaimKey>, StoreError>>,
    queues: Mutex<HashMap<String, Arc<Queue>>>,
    /// The workers that have asked, each with what claims for it.
    workers: Mutex<HashMap<String, KnownWorker>>,
    /// When NATS last heard that a claim's job is alive.
    extended: Mutex<Extended>,
    slots: Arc<Semaphore>,
    /// Of workers that wait for a job, and of producers that wait for an end.
    taking: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    claiming: Semaphore,
    /// Of announcements.
    announced: Arc<Semaphore>,
    stop: CancellationToken,
    /// Notified when the settings of queues may have changed.
    changed: Notify,
    stopped: watch::Sender<bool>,
}

struct Extended {
    at: HashMap<Uuid, Instant>,
    pruned_at: Instant,
}

struct KnownWorker {
    deliver: Deliver,
    used_at: Instant,
    /// How many of its last answers with jobs it has not confirmed: it may be unable to.
    unconfirmed: u32,
}

impl KnownWorker {
    /// How long its next take waits: what it gets comes back, and disturbs the others.
    fn pause(&self) -> Duration {
        // The first one may be a lost message.
        match self.unconfirmed {
            0 | 1 => Duration::ZERO,
            n => UNCONFIRMED_PAUSE * 2_u32.pow((n - 2).min(4)),
        }
    }
}

impl Gateway {
    pub(crate) fn new(parts: Parts) -> Self {
        let (store, nats) = (parts.tenure.store().clone(), parts.tenure.nats().clone());
        Self(Arc::new(Inner {
            address: Uuid::new_v4().simple().to_string(),
            timing: parts.tenure.config().timing.clone(),
            progress: settle::progress_batches(&store),
            recorder: Recorder::new(&store),
            logs: parts.tenure.config().job_logs.then(|| LogWriter::new(&store)),
            claims_of: presence::claims_batches(&store),
            tenure: parts.tenure,
            store,
            nats,
            deliver: parts.deliver,
            settle: parts.settle,
            heartbeat: parts.heartbeat,
            hints: parts.hints,
            worker_id: parts.worker_id,
            signer: OnceLock::new(),
            jobs: OneAtATime::default(),
            queues: Mutex::default(),
            workers: Mutex::default(),
            extended: Mutex::new(Extended { at: HashMap::new(), pruned_at: Instant::now() }),
            slots: Arc::new(Semaphore::new(REQUESTS_MAX)),
            taking: Arc::new(Semaphore::new(TAKES_MAX)),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
            claiming: Semaphore::new(CLAIMING_MAX),
            announced: Arc::new(Semaphore::new(ANNOUNCED_MAX)),
            stop: CancellationToken::new(),
            changed: Notify::new(),
            stopped: watch::Sender::new(false),
        }))
    }

    /// Serves requests until [`Gateway::stop`].
    pub(crate) async fn run(self) {
        let mut tasks = JoinSet::new();
        while !self.0.stop.is_cancelled() {
            let mut asked = match self.0.nats.asked(REQUESTS, &self.0.address).await {
                Ok(asked) => asked,
                Err(error) => {
                    if let Some(left_out) = repeats::tell("gateway", &error) {
                        tracing::warn!(%error, left_out, "the gateway gets no requests yet; it will retry");
                    }
                    sleep(Duration::from_millis(500)).await;
                    continue;
                }
            };
            let mut stopping = false;
            loop {
                while tasks.try_join_next().is_some() {}
                let next = tokio::select! {
                    next = asked.next() => next,
                    () = self.0.stop.cancelled(), if !stopping => {
                        stopping = true;
                        // The subscription ends once the server has sent what was on its way.
                        asked.stop().await;
                        continue;
                    }
                };
                match next {
                    Some(ToGateway::Asked(asked)) => {
                        tasks.spawn(self.clone().serve(asked));
                    }
                    Some(ToGateway::Announced(body)) => {
                        let (jobs, slot) =
                            (announced_cancelled(&body), self.0.announced.clone().try_acquire_owned());
                        // Only a hint, which anybody may send: the beats of workers find what is left out.
                        if let (false, Ok(slot)) = (jobs.is_empty(), slot) {
                            tasks.spawn(self.clone().announced(jobs).map(|()| drop(slot)));
                        }
                    }
                    None => break,
                }
                if stopping && tasks.is_empty() {
                    break;
                }
            }
            if !stopping {
                sleep(Duration::from_millis(100)).await;
            }
        }
        while tasks.join_next().await.is_some() {}
        self.0.stopped.send_replace(true);
        // The loops of a worker run for as long as the worker.
        std::future::pending::<()>().await;
    }

    /// Takes no more requests, and waits until those that have arrived are answered, for as long as a request may wait.
    pub(crate) async fn stop(&self) {
        self.0.stop.cancel();
        self.0.changed.notify_waiters();
        // A pull that has begun, its claim, and the confirmation of its jobs.
        let within = self.0.timing.pull_for + LATE + self.0.timing.database_within + CONFIRMED_WITHIN;
        let mut stopped = self.0.stopped.subscribe();
        if tokio::time::timeout(within, stopped.wait_for(|stopped| *stopped)).await.is_err() {
            tracing::warn!("the gateway stops before all requests were answered; their senders repeat them");
        }
    }

    /// Serves one request. A panic concerns this request alone; its sender repeats it.
    async fn serve(self, asked: Asked) {
        let Asked { queue, request: name, body, reply, .. } = asked;
        let slots = match name {
            "take" => &self.0.taking,
            "wait" => &self.0.waiting,
            _ => &self.0.slots,
        };
        // Until the answer has arrived. A large body takes the places of many.
        let places = u32::try_from(1 + body.len() / PLACE_BYTES).unwrap_or(u32::MAX);
        let slot = slots.clone().try_acquire_many_owned(places);
        let answered = if slot.is_ok() {
            // In a box: a request that is refused needs none of that memory.
            let served = Box::pin(AssertUnwindSafe(self.route(name, &queue, &body)).catch_unwind()).await;
            served.unwrap_or_else(|panic| {
                panics::tell("gateway", &*panic);
                Err(Refusal::new(Code::Unavailable, "the gateway failed; its log says why"))
            })
        } else {
            Err(Refusal::new(Code::Unavailable, "the gateway serves too many requests"))
        };
        match &answered {
            Ok(_) => metrics::gateway_request(name, "ok"),
            Err(refusal) => self.tell(refusal, &queue, name),
        }
        let (answered, handed_out) = match answered {
            Ok((answered, handed_out)) => (Ok(answered), handed_out),
            Err(refusal) => (Err(refusal), None),
        };
        let Some(taken) = handed_out else { return self.0.nats.send_plain(reply, answer(answered)).await };
        let is_confirmed = self.0.nats.hand_over(reply, answer(answered)).await;
        if let Some(receipt) = taken.first() {
            self.note_confirmed(&receipt.worker, is_confirmed);
        }
        if !is_confirmed {
            // A worker that died or froze while it waited must not be charged for jobs of which it knows nothing.
            let given_back = Box::pin(self.give_back_taken(&taken)).await;
            if !given_back.is_empty() {
                // Its confirmation may be what was lost.
                self.tell_to_look(&queue, &body, &given_back).await;
            }
        }
        fault::point("gateway_answered");
    }

    /// Answers one request; a `take` also returns the receipts that its answer hands out.
    async fn route(
        &self,
        name: &str,
        queue: &str,
        body: &[u8],
    ) -> Result<(String, Option<Vec<Receipt>>), Refusal> {
        if body.len() > body_max(name) {
            let most = body_max(name);
            return Err(Refusal::new(Code::BadRequest, format!("a request {name} has at most {most} bytes")));
        }
        let request = Fields::request(body)?;
        request.only_of(name)?;
        if let Err(error) = crate::job::check_queue(queue) {
            return Err(Refusal::new(Code::BadRequest, error.to_string()));
        }
        if name == "take" {
            return self.take(queue, &request).await;
        }
        // In a box: a take that waits holds none of that memory.
        let answered = Box::pin(async {
            match name {
                // Without Postgres: it says that this process runs, no more.
                "ping" => Ok(format!(r#"{{"gateway":"{}"}}"#, self.0.address)),
                "hello" => self.hello(queue, &request).await,
                "payload" => self.payload(queue, &request).await,
                "report" => self.report(queue, &request).await,
                "settle" => self.settle(queue, &request).await,
                "beat" => self.beat(queue, &request).await,
                "goodbye" => self.goodbye(queue, &request).await,
                "recorded" | "step" | "sleep" | "event" | "all" => self.step(name, queue, &request).await,
                "outputs" => self.outputs(queue, &request).await,
                "signal" => self.signal(queue, &request).await,
                "enqueue" => self.enqueue(queue, &request).await,
                "job" => self.job(queue, &request).await,
                "wait" => self.wait(queue, &request).await,
                _ => self.cancel(queue, &request).await,
            }
        });
        Ok((answered.await?, None))
    }

    /// Returns the signer of receipts, once Postgres has said the key.
    async fn signer(&self) -> Result<Signer, Refusal> {
        if let Some(signer) = self.0.signer.get() {
            return Ok(signer.clone());
        }
        // Without a lock: while Postgres is silent, each request waits for its own answer, and none for those before.
        let signer = Signer::new(&self.0.store.gateway_key().await?);
        Ok(self.0.signer.get_or_init(|| signer).clone())
    }

    /// Checks that this gateway can hand out jobs: without the key it could claim none for a worker.
    pub(crate) async fn check(&self) -> Result<(), String> {
        match self.signer().await {
            Ok(_) => Ok(()),
            Err(refusal) => {
                if let Some(left_out) = repeats::tell("gateway's key", &refusal) {
                    tracing::error!(
                        error = refusal.message,
                        left_out,
                        "this gateway cannot sign receipts; it is not ready, and will retry"
                    );
                }
                Err(refusal.message)
            }
        }
    }

    /// Adds to the fleet's rates what workers behind this gateway have done. A report that fails is dropped, as that of
    /// a worker's own jobs.
    pub(crate) async fn report_rates(&self) {
        self.forget();
        let queues: Vec<_> = {
            let queues = self.0.queues.lock().unwrap_or_else(PoisonError::into_inner);
            queues.iter().map(|(name, queue)| (name.clone(), queue.clone())).collect()
        };
        let done: Vec<_> = (queues.iter())
            .filter_map(|(name, queue)| queue.measures.rates.take().map(|done| (name.as_str(), done)))
            .collect();
        if let Err(error) = self.0.store.report(&done).await {
            tracing::debug!(%error, "could not report the rates of workers behind the gateway");
        }
    }

    /// Counts a refusal, and tells of it, unless the same was told a moment ago.
    fn tell(&self, refusal: &Refusal, queue: &str, request: &'static str) {
        let code = refusal.code.as_str();
        metrics::gateway_request(request, code);
        let is_served = self.0.queues.lock().unwrap_or_else(PoisonError::into_inner).contains_key(queue);
        // The cause names no text and no unserved queue: a stranger may write anything there.
        let of = if is_served { queue } else { "a queue without workers" };
        if let Some(left_out) = repeats::tell(&format!("gateway {of} {request}"), &code) {
            let error = &refusal.message;
            tracing::warn!(queue, request, code, error, left_out, "the gateway refused a request");
        }
    }

    /// Forgets the workers and queues that were not used for long.
    fn forget(&self) {
        let now = Instant::now();
        let is_known = |used_at: Instant| now.duration_since(used_at) < KNOWN_FOR;
        let mut workers = self.0.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|_, worker| is_known(worker.used_at));
        drop(workers);
        let mut queues = self.0.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|_, queue| {
            // A request that is under way has it, too.
            let used_at = *queue.used_at.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::strong_count(queue) > 1 || is_known(used_at)
        });
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let code = if error.is_the_datas_fault() { Code::Refused } else { Code::Unavailable };
        Self::new(code, JobError::from(error).text())
    }
}
