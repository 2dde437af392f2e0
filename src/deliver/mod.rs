//! Deliver: turns a message into a claim, or into the ack that the refused claim calls for.
//!
//! ```text
//! message ──► ticket ─────────────────────► claim ──► run
//!        ├──► submission ──► row ───────────┘   └──► missed ──► ack (claim::ack_for)
//!        └──► neither ──► dead letter, terminated
//! ```
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_delivery_of_a_job_that_runs_here_is_kept_for_the_ack_and_not_run`
//! - `a_message_that_comes_while_its_job_is_being_claimed_is_delivered_again`
//! - `a_submission_delivered_again_after_its_job_completed_is_not_run_again`
//! - `an_unknown_kind_waits_for_a_worker_that_handles_it`

mod claims;
pub(crate) mod message;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use self::claims::claims;
use crate::{
    deliver::message::{JobRef, Message, names, read},
    enqueue::insert::{self, Created, EnqueueError},
    job::{
        JobError, JobId,
        attempt::{AttemptOutcome, Category, Reason, RecoveryPath, Route},
        claim::{Ack, Claim, ClaimKey, ENDING, LATER_MAX, Missed, ack_for},
        storable,
    },
    lanes::recover::tell_expired,
    nats::{Delivery, slots::Slots},
    observe::{
        hooks::{EnqueueHooks, Hooks, JobDied},
        metrics, repeats,
    },
    recover,
    run::{
        heartbeat::Heartbeat,
        running::{LocalJob, Message as JobMessage, Reservation, Rules, Running, RunningJob},
    },
    store::{AttemptEnd, ClaimRequest, NewJob, Refused, Store, StoreError, batch::Batcher},
};

/// The delivery from which on a job whose claim fails is claimed by a statement of its own.
const HURTS: i64 = 3;
/// How many jobs whose claim failed are remembered. One that is forgotten fails once more.
const FAILED_MAX: usize = 10_000;
/// How long a failed claim counts: then another reason is more likely.
const FAILED_FOR: Duration = Duration::from_mins(10);
/// The most retries of a claim that Postgres refused for a reason that may pass.
const CLAIMS_MAX: usize = 3;

/// The outcome of a delivery.
pub(crate) enum Delivered {
    /// This worker claimed the job; the last field is the dispatch of its ticket.
    Ours(Box<Claim>, Reservation, Option<i32>),
    /// This worker does not run the job, for this reason. [`ack_for`] maps the reason to an ack.
    Missed(Missed),
    /// The job runs here already: it keeps the receipt and answers it at its end.
    Kept,
}

/// Turns deliveries into claims. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Deliver {
    store: Store,
    running: Running,
    heartbeat: Heartbeat,
    rows: Batcher<NewJob, Result<Created, EnqueueError>>,
    claims: Batcher<ClaimRequest, Result<Option<Claim>, StoreError>>,
    worker_id: Arc<str>,
    host: Arc<str>,
    prefix: Arc<str>,
    payload_bytes_max: usize,
    unknown_kind_after: Duration,
    /// A takeover needs a connection to Postgres that has been up for twice this time.
    scan_every: Duration,
    unknown_kinds: Arc<AtomicU64>,
    /// The slots of each queue that this worker serves.
    slots: Arc<HashMap<String, Slots>>,
    hooks: Hooks,
    /// Jobs whose claim got no answer, with the time of the claim.
    unanswered: Arc<Mutex<HashMap<JobId, Instant>>>,
    /// Jobs whose last claim failed, with the time of the claim.
    failed: Arc<Mutex<HashMap<JobId, Instant>>>,
    /// When this worker last won a claim.
    won_at: Arc<Mutex<Option<Instant>>>,
    /// Whether the jobs run in another process, which alone knows its claims: see [`Deliver::claiming_for`].
    runs_elsewhere: bool,
}

/// The settings of [`Deliver`].
pub(crate) struct DeliverSettings {
    pub(crate) worker_id: Arc<str>,
    pub(crate) worker_host: Arc<str>,
    pub(crate) prefix: Arc<str>,
    pub(crate) payload_bytes_max: usize,
    pub(crate) unknown_kind_after: Duration,
    pub(crate) scan_every: Duration,
    pub(crate) slots: Arc<HashMap<String, Slots>>,
    pub(crate) hooks: Hooks,
}

impl Deliver {
    pub(crate) fn new(
        store: Store,
        running: Running,
        heartbeat: Heartbeat,
        settings: DeliverSettings,
    ) -> Self {
        let (worker_id, host) = (settings.worker_id.clone(), settings.worker_host.clone());
        let claims = claims(store.clone(), worker_id, host.clone(), settings.slots.clone());
        Self {
            // An enqueue's hooks hear of no submission.
            rows: insert::batcher(store.clone(), None, EnqueueHooks::default()),
            store,
            running,
            heartbeat,
            claims,
            host,
            worker_id: settings.worker_id,
            prefix: settings.prefix,
            payload_bytes_max: settings.payload_bytes_max,
            unknown_kind_after: settings.unknown_kind_after,
            scan_every: settings.scan_every,
            unknown_kinds: Arc::default(),
            slots: settings.slots,
            hooks: settings.hooks,
            unanswered: Arc::default(),
            failed: Arc::default(),
            won_at: Arc::default(),
            runs_elsewhere: false,
        }
    }

    /// Returns one that claims for another process. That process finds the claims whose answers it did not get: a claim
    /// that is unknown here may have reached it by way of another gateway.
    pub(crate) fn claiming_for(&self, worker_id: &str, host: &str, slots: HashMap<String, Slots>) -> Self {
        let (worker_id, slots): (Arc<str>, _) = (worker_id.into(), Arc::new(slots));
        let host: Arc<str> = host.into();
        let claims = claims(self.store.clone(), worker_id.clone(), host.clone(), slots.clone());
        Self {
            claims,
            worker_id,
            host,
            slots,
            unanswered: Arc::default(),
            runs_elsewhere: true,
            ..self.clone()
        }
    }

    /// Reads a delivery and claims its job. `rules` returns the rules of a kind, or `None` for a kind that this
    /// worker does not know.
    pub(crate) async fn decide(
        &self,
        delivery: &Delivery,
        rules: impl Fn(&str) -> Option<Rules>,
    ) -> Delivered {
        match self.try_decide(delivery, rules).await {
            Ok(delivered) => delivered,
            Err(error) => {
                if let Some(left_out) = repeats::tell("deliver", &error) {
                    tracing::warn!(%error, subject = delivery.subject, worker = %self.worker_id, left_out,
                        "could not handle a delivery; NATS will redeliver the message");
                }
                Delivered::Missed(Missed::Unanswered)
            }
        }
    }

    async fn try_decide(
        &self,
        delivery: &Delivery,
        rules: impl Fn(&str) -> Option<Rules>,
    ) -> Result<Delivered, StoreError> {
        let named = match read(delivery, &self.prefix, self.payload_bytes_max) {
            Message::Ticket(named) => named,
            Message::Submission(new) => {
                let (queue, kind) = (new.queue.clone(), new.kind.clone());
                // A worker with other limits may have refused the submission, and its ack may not have arrived.
                if delivery.deliveries > 1 && Box::pin(self.was_refused(&new)).await? {
                    return Ok(Delivered::Missed(Missed::Finished));
                }
                match Box::pin(self.make_row(*new)).await {
                    Ok(Some(job)) => JobRef { job, queue, kind, dispatch: None, cleared: false },
                    // Another job holds its key: an equal submission was accepted before.
                    Ok(None) => return Ok(Delivered::Missed(Missed::Duplicate)),
                    // An operator may correct any other error, such as a missing privilege: NATS redelivers.
                    Err(error) if error.is_the_datas_fault() => {
                        let reason =
                            format!("Postgres refused the submission: {}", JobError::from(error).text());
                        match Box::pin(self.refuse(delivery, Category::Malformed, reason)).await? {
                            Some(named) => named,
                            None => return Ok(Delivered::Missed(Missed::Refused)),
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
            Message::Rejected { category, reason } => {
                match Box::pin(self.refuse(delivery, category, reason)).await? {
                    Some(named) => named,
                    None => return Ok(Delivered::Missed(Missed::Refused)),
                }
            }
        };
        let job = named.job;
        let reservation = match self.running.reserve(job) {
            LocalJob::Unknown(reservation) => reservation,
            LocalJob::Claiming => return Ok(Delivered::Missed(Missed::Claiming)),
            LocalJob::Ending => {
                // An abandoned handler may hold its thread for long; until it ends, its message stays alive.
                self.store.put_off(job, ENDING, None).await?;
                return Ok(Delivered::Missed(Missed::Ending));
            }
            LocalJob::Running(running) => return Box::pin(self.keep(delivery, &named, &running)).await,
        };
        let Some(rules) = rules(&named.kind) else {
            return match self.missed(&named).await? {
                // This worker never runs the kind, so it does not matter whether the queue has room.
                Missed::Free | Missed::Full => Box::pin(self.put_off(&named, delivery.deliveries)).await,
                missed => Ok(self.answer(&named, missed, delivery.deliveries)),
            };
        };
        // One job's trouble is that job's: it neither stops a worker nor comes again for ever.
        let claim = if delivery.deliveries >= HURTS && self.fails_alone(job) {
            match Box::pin(self.claim_or_bury(&named, rules)).await? {
                Ok(claim) => claim,
                Err(missed) => return Ok(Delivered::Missed(missed)),
            }
        } else {
            self.claim(&named, rules).await?
        };
        if let Some(claim) = claim {
            return Ok(Delivered::Ours(Box::new(claim), reservation, named.dispatch));
        }
        // Boxed, here and above: these futures are rare and large, and would enlarge every job's task.
        Box::pin(self.try_again(&named, delivery.deliveries, rules, reservation)).await
    }

    /// Asks Postgres why it refused a claim, and claims again if the reason may have passed.
    async fn try_again(
        &self,
        named: &JobRef,
        deliveries: i64,
        rules: Rules,
        reservation: Reservation,
    ) -> Result<Delivered, StoreError> {
        let job = named.job;
        let mut taken_over = false;
        for _ in 0..CLAIMS_MAX {
            match self.missed(named).await? {
                Missed::Free => {}
                Missed::Expired => {
                    let is_gone = self.expire(named).await?;
                    let missed = if is_gone { Missed::Died } else { Missed::Expired };
                    return Ok(self.answer(named, missed, deliveries));
                }
                Missed::Stale if self.may_take_over() => match self.take_over(job).await? {
                    Some(Route::Queued) => taken_over = true,
                    Some(Route::Failed | Route::Cancelled) => return Ok(Delivered::Missed(Missed::Finished)),
                    None => return Ok(self.answer(named, Missed::Stale, deliveries)),
                },
                // This worker's own claim, whose answer was lost: no handler runs it. The reservation is ours, so
                // no other delivery of this process is about to run it.
                Missed::Owned { owner, claim, token, .. }
                    if *owner == *self.worker_id && !self.runs_elsewhere =>
                {
                    self.release_orphan(ClaimKey { job, token, claim }).await?;
                }
                // The job was lost before, so it waits. Its message stays the backstop: the relay may be gone, too.
                // Not for a job that its lane holds: no delivery can start that.
                Missed::NotDue { due_in, .. } if taken_over && due_in <= LATER_MAX => {
                    let missed = Missed::NotDue { due_in, relayed: false };
                    return Ok(self.answer(named, missed, deliveries));
                }
                // Nothing stays of such a job once it has completed. The second delivery says so: a row that was about
                // to be committed at the first one is there by then; otherwise the relay would publish it.
                Missed::NoSuchRow if rules.no_history && deliveries > 1 => {
                    return Ok(self.answer(named, Missed::Finished, deliveries));
                }
                missed => return Ok(self.answer(named, missed, deliveries)),
            }
            if let Some(mut claim) = self.claim(named, rules).await? {
                claim.after_reset |= taken_over;
                return Ok(Delivered::Ours(Box::new(claim), reservation, named.dispatch));
            }
        }
        Ok(self.answer(named, Missed::Free, deliveries))
    }

    /// Keeps a delivery of a job that runs here for its ack, unless this worker no longer owns the job.
    async fn keep(
        &self,
        delivery: &Delivery,
        named: &JobRef,
        running: &Arc<RunningJob>,
    ) -> Result<Delivered, StoreError> {
        // Published since our claim: by a relay in doubt, or because the job was reset.
        let newer = named.dispatch.is_some_and(|dispatch| dispatch > running.claim.dispatch);
        if newer && !self.heartbeat.is_ours(running).await? {
            return Ok(Delivered::Missed(Missed::Ending));
        }
        delivery.receipt.runs();
        let message = JobMessage { receipt: delivery.receipt.clone(), dispatch: named.dispatch };
        Ok(if running.keep(message) { Delivered::Kept } else { Delivered::Missed(Missed::Ending) })
    }

    async fn missed(&self, named: &JobRef) -> Result<Missed, StoreError> {
        let missed = self.store.missed(named.job, &named.queue, &named.kind, named.dispatch).await?;
        tracing::debug!(job = %named.job, ?missed, worker = %self.worker_id, "not claimed");
        Ok(missed)
    }

    fn answer(&self, named: &JobRef, missed: Missed, deliveries: i64) -> Delivered {
        metrics::claims(label(&missed), 1);
        if let Some(slots) = self.slots.get(&named.queue) {
            match missed {
                Missed::Paused => slots.pause(),
                // A limited queue has learned its room from the claim already.
                Missed::Full if !slots.is_limited() => slots.has_room(0, slots.asks()),
                _ => {}
            }
        }
        if ack_for(&missed, deliveries) == Ack::Never {
            metrics::terminated(label(&missed));
            let worker = &self.worker_id;
            tracing::error!(job = %named.job, queue = named.queue, kind = named.kind, ?missed, %worker,
                "terminated a message: it names no job of its queue and kind");
        }
        Delivered::Missed(missed)
    }

    fn request(named: &JobRef, rules: Rules) -> ClaimRequest {
        ClaimRequest {
            job: named.job,
            queue: named.queue.clone(),
            kind: named.kind.clone(),
            stale_after: rules.stale_after,
            on_crash: rules.on_crash(),
        }
    }

    async fn claim(&self, named: &JobRef, rules: Rules) -> Result<Option<Claim>, StoreError> {
        let request = Self::request(named, rules);
        // A future that is dropped before the answer arrives counts as unanswered, too.
        let unanswered = Unanswered { table: &self.unanswered, job: named.job };
        let answer = self.claims.run(request).await;
        let mut answer = answer.unwrap_or_else(|| Err(StoreError::from(sqlx::Error::WorkerCrashed)));
        if let Ok(Some(claim)) = &mut answer {
            claim.after_reset = named.cleared;
            *self.won_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        match &answer {
            Ok(Some(_)) => self.note_failed(named.job, false),
            Err(error) if !error.is_locked() => self.note_failed(named.job, true),
            _ => {}
        }
        if self.runs_elsewhere || answer.as_ref().map_or_else(StoreError::is_locked, |_| true) {
            std::mem::forget(unanswered);
        }
        answer
    }

    /// Releases the jobs that a claim of this worker won although its answer was lost. Another worker that
    /// receives their messages would take this worker for a live owner.
    pub(crate) async fn release_unanswered(&self) -> Result<(), StoreError> {
        let unanswered = || self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        let jobs: Vec<_> = unanswered().keys().copied().collect();
        if jobs.is_empty() {
            return Ok(());
        }
        let asked_at = Instant::now();
        let mut refused = Vec::new();
        for key in self.store.unanswered(&jobs, &self.worker_id).await? {
            // The holder of a reservation knows of the claim, or will soon.
            if let LocalJob::Unknown(_reservation) = self.running.reserve(key.job) {
                match self.release_orphan(key).await {
                    Ok(()) => {
                        tracing::warn!(job = %key.job, token = key.token.0, worker = %self.worker_id,
                            "the answer to a claim was lost; the worker released the job, and the attempt does not \
                             count");
                    }
                    Err(error) if error.is_outage() => return Err(error),
                    // One job's error keeps no other from its release.
                    Err(error) => {
                        refused.push(key.job);
                        let error = JobError::from(error).text();
                        if let Some(left_out) = repeats::tell("unanswered", &error) {
                            tracing::warn!(job = %key.job, error, left_out,
                                "could not release a job whose claim had no answer; the worker will retry. If this \
                                 stays, stop this worker: then others reset the job");
                        }
                    }
                }
            }
        }
        // Postgres may still run a statement for a while after its call was dropped.
        let late = self.store.within() * 3;
        unanswered().retain(|job, sent_at| refused.contains(job) || asked_at.duration_since(*sent_at) < late);
        Ok(())
    }

    /// Whether this worker may take jobs over. After an outage every job looks stale: live owners get time to write.
    fn may_take_over(&self) -> bool {
        self.store.up_for() >= self.scan_every * 2
    }

    async fn take_over(&self, job: JobId) -> Result<Option<Route>, StoreError> {
        let ended = self.store.take_over(job, &self.worker_id, self.scan_every).await?;
        if let Some(ended) = &ended {
            metrics::recovered(RecoveryPath::Redelivery, Reason::Silent, 1);
            recover::note_lost(RecoveryPath::Redelivery, Reason::Silent, ended, &self.hooks);
            tracing::warn!(
                %job, token = ended.token.0, owner = ended.owner, silence = ?ended.silence, route = ?ended.route,
                queue = ended.queue, kind = ended.kind, worker = %self.worker_id,
                "took over a stale job on redelivery"
            );
        }
        Ok(ended.map(|ended| ended.route))
    }

    async fn release_orphan(&self, key: ClaimKey) -> Result<(), StoreError> {
        let reason = Reason::AnswerLost;
        let end = AttemptEnd { reason: Some(reason), ..AttemptEnd::new(key, AttemptOutcome::Released) };
        self.store.settle(&[end], &self.worker_id).await?;
        metrics::recovered(RecoveryPath::Worker, reason, 1);
        Ok(())
    }

    /// Ends a job that was not started by its time. Returns whether this call has ended it.
    async fn expire(&self, named: &JobRef) -> Result<bool, StoreError> {
        let ended = self.store.expire(Some(&[named.job]), 1).await?;
        for end in &ended {
            tell_expired(end, &self.hooks);
        }
        Ok(!ended.is_empty())
    }

    /// Notes whether the last claim of this job has failed.
    fn note_failed(&self, job: JobId, has_failed: bool) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if !has_failed {
            if !failed.is_empty() {
                failed.remove(&job);
            }
            return;
        }
        if failed.len() == FAILED_MAX {
            failed.clear();
        }
        failed.insert(job, Instant::now());
    }

    /// Whether a claim of this job has failed, and one of another has been won since: the server and its rights are not
    /// at fault.
    fn fails_alone(&self, job: JobId) -> bool {
        let failed_at = self.failed.lock().unwrap_or_else(PoisonError::into_inner).get(&job).copied();
        let won_at = *self.won_at.lock().unwrap_or_else(PoisonError::into_inner);
        let failed_at = failed_at.filter(|failed_at| failed_at.elapsed() < FAILED_FOR);
        failed_at.is_some_and(|failed_at| won_at.is_some_and(|won_at| won_at > failed_at))
    }

    /// Claims a job whose claims have failed before, by a statement of its own. If that fails, too, while Postgres
    /// answers everybody else, the job goes to the dead letters: no worker can have it.
    async fn claim_or_bury(
        &self,
        named: &JobRef,
        rules: Rules,
    ) -> Result<Result<Option<Claim>, Missed>, StoreError> {
        let request = Self::request(named, rules);
        let alone = async {
            if self.slots.get(&named.queue).is_some_and(Slots::is_limited) {
                return self.store.claim_limited_alone(&request, &self.worker_id, &self.host).await;
            }
            self.store.claim_alone(&request, &self.worker_id, &self.host).await
        };
        let claimed = tokio::select! {
            biased;
            claimed = alone => claimed,
            // Postgres does not answer: that is not the job's fault.
            error = self.until_postgres_is_away() => return Err(error),
        };
        let error = match claimed {
            Ok(mut claim) => {
                if let Some(claim) = &mut claim {
                    self.note_failed(named.job, false);
                    claim.after_reset = named.cleared;
                }
                return Ok(Ok(claim));
            }
            Err(error) if error.may_pass() || error.is_of_the_statement() => return Err(error),
            Err(error) => JobError::from(error).text(),
        };
        self.store.database_time().await?;
        let error = format!("Postgres refuses each claim of the job: {error}");
        if !self.bury(named, None, Category::Refused, error).await? {
            return Ok(Ok(None));
        }
        Ok(Err(Missed::Died))
    }

    /// Asks Postgres for its time again and again; returns the first error.
    async fn until_postgres_is_away(&self) -> StoreError {
        loop {
            if let Err(error) = self.store.database_time().await {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Moves a job that no worker can run to the dead letters, and tells of it. `false`: it is not queued any more, or
    /// may wait longer.
    async fn bury(
        &self,
        named: &JobRef,
        longest: Option<Duration>,
        category: Category,
        error: String,
    ) -> Result<bool, StoreError> {
        if self.store.bury(named.job, longest, &error, category).await?.is_none() {
            return Ok(false);
        }
        metrics::died(category);
        tracing::error!(job = %named.job, kind = named.kind, queue = named.queue, error, worker = %self.worker_id,
            "no worker can run a job; it is a dead letter now");
        self.hooks.died(|worker| JobDied {
            id: named.job,
            queue: named.queue.clone(),
            kind: named.kind.clone(),
            worker,
            category,
            error: Arc::new(JobError::msg(error)),
        });
        Ok(true)
    }

    /// Delays a job whose kind this worker does not know: another worker may know it, as in a rolling deploy.
    async fn put_off(&self, named: &JobRef, deliveries: i64) -> Result<Delivered, StoreError> {
        let (job, kind) = (named.job, &named.kind);
        let hours = self.unknown_kind_after.as_secs_f64() / 3600.0;
        let error = format!(
            "no worker knew the kind {kind:?} within {hours:.1} h; deploy one that does, then redrive the job"
        );
        if self.bury(named, Some(self.unknown_kind_after), Category::UnknownKind, error).await? {
            return Ok(Delivered::Missed(Missed::Died));
        }
        // Logs the first, then every hundredth.
        if self.unknown_kinds.fetch_add(1, Ordering::Relaxed).is_multiple_of(100) {
            tracing::warn!(%job, kind, queue = named.queue, worker = %self.worker_id,
                "this worker has no handler for the kind; the job waits for a worker that has one");
        }
        metrics::claims("unknown_kind", 1);
        // Short at first, for a rolling deploy; then up to ten minutes.
        let doublings = u32::try_from(deliveries.clamp(1, 6) - 1).unwrap_or(0);
        let wait = Duration::from_millis(rand::random_range(15_000..25_000)) * (1 << doublings);
        let most = self.unknown_kind_after / 2;
        // A live worker that knows the kind may get the next delivery: soon at first, in case that it has a free slot;
        // then after up to two minutes, or a backlog that waits for a busy worker would come again and again.
        let doublings = u32::try_from(deliveries.clamp(1, 8) - 1).unwrap_or(0);
        let if_known = Duration::from_millis(rand::random_range(750..1_250)) * (1 << doublings);
        let wait = self.store.put_off(job, wait.min(most), Some(if_known.min(most))).await?;
        Ok(Delivered::Missed(Missed::UnknownKind { again_in: wait }))
    }

    /// Returns the ack of a delivery that this worker does not run.
    ///
    /// A message that names several jobs cannot wait for one of them, because NATS would deliver the others again: the
    /// relay publishes a job of its own message, if that job is queued.
    pub(crate) async fn ack(&self, delivery: &Delivery, missed: &Missed) -> Ack {
        let ack = ack_for(missed, delivery.deliveries);
        match (delivery.part, ack) {
            (Some(part), Ack::Later(wait)) if missed.may_be_queued() => {
                let handed = self.store.unpublished(&[part], wait).await;
                let is_handed = handed.is_ok_and(|handed| !handed.is_empty());
                if is_handed { ack_for(&Missed::HandedOver, delivery.deliveries) } else { ack }
            }
            _ => ack,
        }
    }

    /// Hands the relay those jobs of a message for which this worker has no slot, and answers their parts of it. If
    /// Postgres does not answer, returns them.
    pub(crate) async fn hand_back(&self, parts: Vec<Delivery>) -> Vec<Delivery> {
        let jobs: Vec<_> = parts.iter().filter_map(|delivery| delivery.part).collect();
        let handed = self.store.unpublished(&jobs, Duration::ZERO).await;
        let Ok(handed) = handed else { return parts };
        for delivery in parts {
            let missed = match delivery.part {
                Some((job, _)) if handed.contains(&job) => Missed::HandedOver,
                // The job has another message, or has ended.
                _ if delivery.deliveries == 1 => Missed::Superseded,
                // The job of a redelivered message may have a silent owner, too.
                _ => Missed::Ending,
            };
            delivery.receipt.send(ack_for(&missed, delivery.deliveries)).await;
        }
        Vec::new()
    }

    async fn was_refused(&self, new: &NewJob) -> Result<bool, StoreError> {
        Ok(self.store.missed(new.id, &new.queue, &new.kind, None).await? == Missed::Finished)
    }

    /// Inserts the row of a submission. `None`: another job holds its key.
    async fn make_row(&self, new: NewJob) -> Result<Option<JobId>, StoreError> {
        let job = new.id;
        let unanswered = || StoreError::from(sqlx::Error::WorkerCrashed);
        match self.rows.run(new).await {
            Some(Ok(Created::New)) => Ok(Some(job)),
            Some(Ok(Created::HeldBy(holder))) => Ok((holder == job).then_some(job)),
            Some(Err(EnqueueError::Store(error))) => Err(error),
            // NATS redelivers it: a transaction is about to take the key, or its holder has released it meanwhile, or
            // the runtime shuts down.
            Some(Err(_)) | None => Err(unanswered()),
        }
    }

    /// Writes a message to the dead letters. `Some`: a worker with other limits has made it a job already.
    async fn refuse(
        &self,
        delivery: &Delivery,
        category: Category,
        reason: String,
    ) -> Result<Option<JobRef>, StoreError> {
        let (queue, kind) = names(&delivery.subject, &self.prefix).unwrap_or(("?", "?"));
        let refused = Refused {
            id: delivery.derived_id(),
            queue: queue.into(),
            kind: kind.into(),
            subject: delivery.subject.clone(),
            raw: delivery.body.to_vec(),
            category,
            reason,
            published: delivery.published(),
        };
        if !self.store.refuse(&refused).await? {
            return Ok(Some(JobRef {
                job: refused.id,
                queue: refused.queue,
                kind: refused.kind,
                dispatch: None,
                cleared: false,
            }));
        }
        // A header of a megabyte may stand in it.
        let (job, subject, reason) = (refused.id, &refused.subject, storable(&refused.reason));
        let reason = &*reason;
        tracing::error!(%job, subject, category = category.as_str(), reason, worker = %self.worker_id,
            "a message cannot be a job; the message is a dead letter now");
        metrics::terminated(category.as_str());
        metrics::died(category);
        self.hooks.died(|worker| JobDied {
            id: refused.id,
            queue: refused.queue,
            kind: refused.kind,
            worker,
            category,
            error: Arc::new(JobError::msg(refused.reason)),
        });
        Ok(None)
    }
}

/// Dropped, it records a job whose claim got no answer, for [`Deliver::release_unanswered`].
struct Unanswered<'t> {
    table: &'t Mutex<HashMap<JobId, Instant>>,
    job: JobId,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).insert(self.job, Instant::now());
    }
}

fn label(missed: &Missed) -> &'static str {
    match missed {
        Missed::Finished => "finished",
        Missed::HandedOver => "handed_over",
        Missed::Superseded => "superseded",
        Missed::Owned { .. } => "owned",
        Missed::Stale => "stale",
        Missed::NotDue { .. } => "not_due",
        Missed::Free => "free",
        Missed::Expired => "expired",
        Missed::Paused => "paused",
        Missed::Full => "limited",
        Missed::Foreign => "foreign",
        Missed::NoSuchRow => "no_such_row",
        Missed::Claiming => "claiming",
        Missed::Ending => "ending",
        Missed::UnknownKind { .. } => "unknown_kind",
        Missed::Duplicate => "duplicate",
        Missed::Died => "died",
        Missed::Refused => "refused",
        Missed::Unanswered => "unanswered",
    }
}

#[cfg(test)]
mod tests;
