//! Deliver: from a message to a claim, or to the ack that says why not.
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
//! - `a_kind_nobody_knows_waits_for_a_worker_that_does`

pub(crate) mod message;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    batch::{Batcher, ITEMS_MAX, in_order},
    deliver::message::{JobRef, Message, names, read},
    enqueue::insert::{self, Created, EnqueueError},
    fault,
    job::{
        JobError, JobId,
        claim::{Ack, Claim, ClaimKey, ENDING, Missed, ack_for},
    },
    nats::{Delivery, slots::Slots},
    observe::metrics,
    run::{
        heartbeat::Heartbeat,
        running::{LocalJob, Message as Held, Reservation, Rules, Running, RunningJob},
    },
    store::{AttemptEnd, ClaimRequest, LockPolicy, NewJob, Refused, Route, Store, StoreError},
};

/// How often a claim is tried again that was refused for no lasting reason.
const CLAIMS_MAX: usize = 3;

/// How many bytes of payloads and checkpoints one answer should carry.
const CLAIMED_BYTES_MAX: usize = 16 << 20;

/// What became of a delivery.
pub(crate) enum Delivered {
    /// It is ours to run; the dispatch of its ticket.
    Ours(Box<Claim>, Reservation, Option<i32>),
    /// It is not, and why. [`ack_for`] says what the queue is told.
    Missed(Missed),
    /// It runs here already: the receipt is kept for its end.
    Kept,
}

/// What turning deliveries into claims takes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Deliver {
    store: Store,
    running: Running,
    heartbeat: Heartbeat,
    rows: Batcher<NewJob, Result<Created, EnqueueError>>,
    claims: Batcher<ClaimRequest, Result<Option<Claim>, StoreError>>,
    worker_id: Arc<str>,
    prefix: Arc<str>,
    payload_bytes_max: usize,
    unknown_kind_after: Duration,
    /// A worker takes nothing over until it has had Postgres for this long.
    scan_every: Duration,
    unknown_kinds: Arc<AtomicU64>,
    /// Of each queue that is served.
    slots: Arc<HashMap<String, Slots>>,
    /// Jobs whose claim was sent and not answered, and when.
    unanswered: Arc<Mutex<HashMap<JobId, Instant>>>,
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
}

impl Deliver {
    pub(crate) fn new(
        store: Store,
        running: Running,
        heartbeat: Heartbeat,
        settings: DeliverSettings,
    ) -> Self {
        let claims = {
            let (store, worker_id, host) =
                (store.clone(), settings.worker_id.clone(), settings.worker_host.clone());
            let fitting = Arc::new(AtomicUsize::new(ITEMS_MAX));
            let slots = settings.slots.clone();
            Batcher::spawn(
                |_| 0,
                move |batch: Vec<ClaimRequest>| {
                    let (store, worker_id, host) = (store.clone(), worker_id.clone(), host.clone());
                    let (fitting, slots) = (fitting.clone(), slots.clone());
                    async move { claim_batch(Claimant { store, worker_id, host, slots }, batch, &fitting).await }
                },
            )
        };
        Self {
            rows: insert::batcher(store.clone(), None),
            store,
            running,
            heartbeat,
            claims,
            worker_id: settings.worker_id,
            prefix: settings.prefix,
            payload_bytes_max: settings.payload_bytes_max,
            unknown_kind_after: settings.unknown_kind_after,
            scan_every: settings.scan_every,
            unknown_kinds: Arc::default(),
            slots: settings.slots,
            unanswered: Arc::default(),
        }
    }

    /// Decides what a delivery is and whose. `rules` gives a kind's own, or `None` for a kind that this
    /// worker does not know.
    pub(crate) async fn decide(
        &self,
        delivery: &Delivery,
        rules: impl Fn(&str) -> Option<Rules>,
    ) -> Delivered {
        match self.try_decide(delivery, rules).await {
            Ok(delivered) => delivered,
            Err(error) => {
                tracing::warn!(%error, subject = delivery.subject, worker = %self.worker_id, "a message was put off");
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
                // A worker with other limits may have refused it, and its answer have been lost.
                if delivery.deliveries > 1 && Box::pin(self.was_refused(&new)).await? {
                    return Ok(Delivered::Missed(Missed::Finished));
                }
                match Box::pin(self.make_row(*new)).await {
                    Ok(Some(job)) => JobRef { job, queue, kind, dispatch: None, cleared: false },
                    // Its key is another job's: a submission like this one was accepted before.
                    Ok(None) => return Ok(Delivered::Missed(Missed::Duplicate)),
                    // A missing right, say, is not the producer's fault, and may be mended.
                    Err(error) if error.is_the_datas_fault() => {
                        let reason = format!("the database refused it: {}", JobError::from(error).text());
                        match Box::pin(self.refuse(delivery, "malformed", reason)).await? {
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
                // It may take long, where a handler that was given up keeps its thread: the message is alive.
                self.store.put_off(job, ENDING).await?;
                return Ok(Delivered::Missed(Missed::Ending));
            }
            LocalJob::Running(running) => return Box::pin(self.keep(delivery, &named, &running)).await,
        };
        let Some(rules) = rules(&named.kind) else {
            return match self.missed(&named).await? {
                // Whether its queue has room does not matter: here it never runs.
                Missed::Free | Missed::Full => Box::pin(self.put_off(&named, delivery.deliveries)).await,
                missed => Ok(self.answer(&named, missed, delivery.deliveries)),
            };
        };
        if let Some(claim) = self.claim(&named, rules).await? {
            return Ok(Delivered::Ours(Box::new(claim), reservation, named.dispatch));
        }
        // In boxes, here and above: rare, and large. Every job's task would have room for them.
        Box::pin(self.try_again(&named, delivery.deliveries, rules, reservation)).await
    }

    /// Asks why a claim was refused, and claims again where that may help.
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
                Missed::Stale if self.may_take_over() => match self.take_over(job).await? {
                    Some(Route::Queued) => taken_over = true,
                    Some(Route::Failed | Route::Cancelled) => return Ok(Delivered::Missed(Missed::Finished)),
                    None => return Ok(self.answer(named, Missed::Stale, deliveries)),
                },
                // A claim of ours whose answer was lost: nobody runs it. We hold the reservation, so no
                // other delivery of this process can be about to.
                Missed::Held { owner, claim, token, .. } if *owner == *self.worker_id => {
                    self.release_orphan(ClaimKey { job, token, claim }).await?;
                }
                // Lost before, so it waits. Its message stays the backstop: no relay may be alive either.
                Missed::NotDue { due_in, .. } if taken_over => {
                    let missed = Missed::NotDue { due_in, relayed: false };
                    return Ok(self.answer(named, missed, deliveries));
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

    /// A delivery of a job that runs here: kept for the ack, unless the job is ours no longer.
    async fn keep(
        &self,
        delivery: &Delivery,
        named: &JobRef,
        running: &Arc<RunningJob>,
    ) -> Result<Delivered, StoreError> {
        // Published since our claim: by a relay in doubt, or because the job was taken back.
        let newer = named.dispatch.is_some_and(|dispatch| dispatch > running.claim.dispatch);
        if newer && !self.heartbeat.is_ours(running).await? {
            return Ok(Delivered::Missed(Missed::Ending));
        }
        let message = Held { receipt: delivery.receipt.clone(), dispatch: named.dispatch };
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
                // News; else the claim has told how much room there is.
                Missed::Full if !slots.is_limited() => slots.has_room(0),
                _ => {}
            }
        }
        if ack_for(&missed, deliveries) == Ack::Never {
            metrics::terminated(label(&missed));
            let worker = &self.worker_id;
            tracing::error!(job = %named.job, queue = named.queue, kind = named.kind, ?missed, %worker,
                "a message was given up: it names no job of its queue and kind");
        }
        Delivered::Missed(missed)
    }

    async fn claim(&self, named: &JobRef, rules: Rules) -> Result<Option<Claim>, StoreError> {
        let request = ClaimRequest {
            job: named.job,
            queue: named.queue.clone(),
            kind: named.kind.clone(),
            stale_after: rules.stale_after,
            on_crash: rules.on_crash.as_str(),
        };
        // Dropped before the answer is there, it counts as not answered, too.
        let unanswered = Unanswered { table: &self.unanswered, job: named.job };
        let answer = self.claims.run(request).await;
        let mut answer = answer.unwrap_or_else(|| Err(StoreError::from(sqlx::Error::WorkerCrashed)));
        if let Ok(Some(claim)) = &mut answer {
            claim.after_reset = named.cleared;
        }
        if answer.as_ref().map_or_else(StoreError::is_locked, |_| true) {
            std::mem::forget(unanswered);
        }
        answer
    }

    /// Gives back what a claim of ours has won although its answer was lost: its message may come to another
    /// worker next, which would take us for a live owner.
    pub(crate) async fn give_back_unanswered(&self) -> Result<(), StoreError> {
        let unanswered = || self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        let jobs: Vec<_> = unanswered().keys().copied().collect();
        if jobs.is_empty() {
            return Ok(());
        }
        let asked_at = Instant::now();
        for key in self.store.unanswered(&jobs, &self.worker_id).await? {
            // Whoever has the reservation knows of the claim, or is about to.
            if let LocalJob::Unknown(_reservation) = self.running.reserve(key.job) {
                tracing::warn!(job = %key.job, token = key.token.0, worker = %self.worker_id,
                    "given back: the answer to its claim was lost");
                self.release_orphan(key).await?;
            }
        }
        // A statement that was cut off may still be carried out for a while.
        let late = self.store.within() * 3;
        unanswered().retain(|_, sent_at| asked_at.duration_since(*sent_at) < late);
        Ok(())
    }

    /// After an outage every job looks stale. Give live owners time to write before any is taken.
    fn may_take_over(&self) -> bool {
        self.store.up_for() >= self.scan_every * 2
    }

    async fn take_over(&self, job: JobId) -> Result<Option<Route>, StoreError> {
        let taken = self.store.take_over(job, &self.worker_id, self.scan_every).await?;
        if let Some(taken) = &taken {
            metrics::recovered("redelivery", "silent", 1);
            metrics::lost(&taken.kind);
            if taken.route == Route::Failed {
                metrics::died("lost");
            }
            tracing::warn!(
                %job, token = taken.token.0, owner = taken.owner, silence = ?taken.silence, route = ?taken.route,
                queue = taken.queue, kind = taken.kind, worker = %self.worker_id,
                "took a silent job over on redelivery"
            );
        }
        Ok(taken.map(|taken| taken.route))
    }

    async fn release_orphan(&self, key: ClaimKey) -> Result<(), StoreError> {
        let end = AttemptEnd {
            key,
            verdict: "released",
            error: None,
            category: None,
            delay: Duration::ZERO,
            reason: Some("the answer to its claim was lost"),
        };
        self.store.settle(&[end], &self.worker_id).await?;
        metrics::recovered("worker", "answer_lost", 1);
        Ok(())
    }

    /// Another worker may know the kind: a rolling deploy is under way, or a typo is.
    async fn put_off(&self, named: &JobRef, deliveries: i64) -> Result<Delivered, StoreError> {
        let (job, kind) = (named.job, &named.kind);
        let hours = self.unknown_kind_after.as_secs_f64() / 3600.0;
        let error = format!(
            "no worker knew the kind {kind:?} within {hours:.1} h; deploy one that does, then redrive"
        );
        if self.store.bury_unknown(job, self.unknown_kind_after, &error).await?.is_some() {
            metrics::died("unknown_kind");
            tracing::error!(%job, kind, queue = named.queue, worker = %self.worker_id,
                "dead letter: no worker knows its kind");
            return Ok(Delivered::Missed(Missed::Died));
        }
        // The first, and then now and then.
        if self.unknown_kinds.fetch_add(1, Ordering::Relaxed).is_multiple_of(100) {
            tracing::warn!(%job, kind, queue = named.queue, worker = %self.worker_id,
                "no handler for this kind here; put off for a worker that has one");
        }
        metrics::claims("unknown_kind", 1);
        // Soon at first, for a deploy that is under way; later less often, up to ten minutes.
        let doublings = u32::try_from(deliveries.clamp(1, 6) - 1).unwrap_or(0);
        let wait = Duration::from_millis(rand::random_range(15_000..25_000)) * (1 << doublings);
        let wait = wait.min(self.unknown_kind_after / 2);
        self.store.put_off(job, wait).await?;
        Ok(Delivered::Missed(Missed::UnknownKind { again_in: wait }))
    }

    async fn was_refused(&self, new: &NewJob) -> Result<bool, StoreError> {
        Ok(self.store.missed(new.id, &new.queue, &new.kind, None).await? == Missed::Finished)
    }

    /// Makes the row of a submission. `None`: its key belongs to another job.
    async fn make_row(&self, new: NewJob) -> Result<Option<JobId>, StoreError> {
        let job = new.id;
        let unanswered = || StoreError::from(sqlx::Error::WorkerCrashed);
        match self.rows.run(new).await {
            Some(Ok(Created::New)) => Ok(Some(job)),
            Some(Ok(Created::HeldBy(holder))) => Ok((holder == job).then_some(job)),
            Some(Err(EnqueueError::Store(error))) => Err(error),
            // Put off: a transaction is about to take the key, or the key's holder has let go of it meanwhile, or the
            // runtime shuts down.
            Some(Err(_)) | None => Err(unanswered()),
        }
    }

    /// Writes it to the dead letters. `Some`: a worker with other limits has made a job of it already.
    async fn refuse(
        &self,
        delivery: &Delivery,
        category: &'static str,
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
        let (job, subject, reason) = (refused.id, &refused.subject, &refused.reason);
        tracing::error!(%job, subject, category, reason, worker = %self.worker_id,
            "dead letter: a message cannot be a job");
        metrics::terminated(category);
        metrics::died(category);
        Ok(None)
    }
}

/// Dropped, it has a job looked after whose claim was not answered.
struct Unanswered<'t> {
    table: &'t Mutex<HashMap<JobId, Instant>>,
    job: JobId,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).insert(self.job, Instant::now());
    }
}

/// Who claims, and what it knows of the queues.
struct Claimant {
    store: Store,
    worker_id: Arc<str>,
    host: Arc<str>,
    slots: Arc<HashMap<String, Slots>>,
}

/// Claims a batch, a statement for each kind, of which it has few. `fitting` is how many claims an answer carries.
async fn claim_batch(
    claimant: Claimant,
    mut batch: Vec<ClaimRequest>,
    fitting: &AtomicUsize,
) -> Vec<Result<Option<Claim>, StoreError>> {
    // In order of id, or two batches could wait for each other. There are no duplicates: whoever claims holds the
    // job's reservation in this process.
    let mut places: Vec<usize> = (0..batch.len()).collect();
    places.sort_unstable_by_key(|&at| batch[at].job);
    batch.sort_unstable_by_key(|request| request.job);
    let mut answers: Vec<_> = batch.iter().map(|_| Ok(None)).collect();
    let mut rest: Vec<usize> = (0..batch.len()).collect();
    while let Some(&first) = rest.first() {
        let (mut alike, mut others): (Vec<usize>, Vec<usize>) =
            rest.iter().partition(|&&at| batch[at].is_like(&batch[first]));
        let fit = alike.len().min(fitting.load(Ordering::Relaxed));
        others.extend(alike.split_off(fit));
        others.sort_unstable();
        let part: Vec<_> = alike.iter().map(|&at| batch[at].clone()).collect();
        let limited = part.first().and_then(|first| claimant.slots.get(&first.queue));
        let claims = match limited.filter(|slots| slots.is_limited()) {
            Some(slots) => claim_limited(&claimant, slots, &part).await,
            None => claim_all(&claimant, &part).await,
        };
        fitting.store(claims_that_fit(&claims), Ordering::Relaxed);
        for (at, claim) in alike.into_iter().zip(claims) {
            answers[at] = claim;
        }
        rest = others;
    }
    in_order(places, answers)
}

/// Claims jobs of one kind. Where somebody has locked a row, the others are claimed all the same.
async fn claim_all(claimant: &Claimant, part: &[ClaimRequest]) -> Vec<Result<Option<Claim>, StoreError>> {
    let Claimant { store, worker_id, host, .. } = claimant;
    let waited = store.claim(LockPolicy::Wait, part, worker_id, host).await;
    let answers: Vec<Result<Option<Claim>, StoreError>> = match waited {
        Ok(claims) => claims.into_iter().map(Ok).collect(),
        Err(locked) if part.len() > 1 && locked.is_locked() => {
            match store.claim(LockPolicy::Skip, part, worker_id, host).await {
                // Locked or not ours: to be asked again when the lock may be gone.
                Ok(claims) => claims
                    .into_iter()
                    .map(|claim| claim.map_or_else(|| Err(locked.clone()), |claim| Ok(Some(claim))))
                    .collect(),
                Err(error) => vec![Err(error); part.len()],
            }
        }
        Err(error) => vec![Err(error); part.len()],
    };
    let won = answers.iter().filter(|answer| matches!(answer, Ok(Some(_)))).count();
    metrics::claims("won", won);
    metrics::batch("claim", part.len());
    if won > 1 {
        fault::point("batch_claimed");
    }
    answers
}

/// Claims jobs of a queue of which only so many may run at once.
async fn claim_limited(
    claimant: &Claimant,
    slots: &Slots,
    part: &[ClaimRequest],
) -> Vec<Result<Option<Claim>, StoreError>> {
    match claimant.store.claim_limited(part, &claimant.worker_id, &claimant.host).await {
        Ok(limited) => {
            match limited.room {
                Some(room) => slots.has_room(room),
                None => slots.settings(false, None),
            }
            metrics::batch("claim", part.len());
            metrics::claims("won", limited.claims.iter().flatten().count());
            limited.claims.into_iter().map(Ok).collect()
        }
        // Others claim of this queue: they are asked for again in a moment, as if it were full.
        Err(error) if error.is_locked() => vec![Ok(None); part.len()],
        Err(error) => vec![Err(error); part.len()],
    }
}

/// How many claims of jobs as large as these one answer should carry. One that was not answered in time may have
/// been too large.
fn claims_that_fit(claims: &[Result<Option<Claim>, StoreError>]) -> usize {
    if claims.iter().any(|claim| claim.as_ref().is_err_and(StoreError::is_outage)) {
        return (claims.len() / 2).max(1);
    }
    let bytes = |claim: &Claim| claim.payload.len() + claim.checkpoint.as_ref().map_or(0, String::len);
    let won = claims.iter().filter_map(|claim| claim.as_ref().ok()?.as_ref());
    let (n, bytes) = won.fold((0, 0), |(n, total), claim| (n + 1, total + bytes(claim)));
    let each = bytes.checked_div(n).unwrap_or_default().max(1);
    (CLAIMED_BYTES_MAX / each).clamp(1, ITEMS_MAX)
}

fn label(missed: &Missed) -> &'static str {
    match missed {
        Missed::Finished => "finished",
        Missed::Superseded => "superseded",
        Missed::Held { .. } => "held",
        Missed::Stale => "stale",
        Missed::NotDue { .. } => "not_due",
        Missed::Free => "free",
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

#[cfg(all(test, feature = "dev"))]
mod tests;
