//! Take: pulls exactly as many messages as a worker has free slots, and claims their jobs for it.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use futures::future::join_all;
use tokio::{
    sync::{Mutex, Semaphore},
    time::{sleep, timeout, timeout_at},
};

use super::{
    ENTRIES_MAX, Gateway, KnownWorker, WAIT_MAX,
    protocol::{Code, Fields, Refusal, is_plain},
    receipt::{Receipt, Signer},
};
use crate::{
    config::Timing,
    deliver::{Deliver, Delivered},
    job::{
        JobId,
        attempt::{AttemptOutcome, Reason, RecoveryPath},
        claim::{Ack, Claim, ClaimKey, Missed, ack_for},
    },
    nats::{Delivery, PullConsumer, slots::Slots},
    observe::{
        metrics::{self, QueueMeasures},
        repeats,
    },
    proof::fault,
    run::running::{OnCrash, OnWriteLoss, Rules},
    store::{AttemptEnd, StoreError},
};

/// How long the settings of a queue are believed.
const SETTINGS_FOR: Duration = Duration::from_millis(600);
/// The pause after which a queue that is paused or full is looked at again.
const HELD_FOR: Duration = Duration::from_millis(200);
/// The slots of a queue in one gateway: its workers limit themselves.
const ANY_NUMBER: usize = 1_000_000;
/// A worker waits for 5 s longer than it asked to. An answer that is ready later than this after the end of the wait is
/// not sent.
const ANSWERED_WITHIN: Duration = Duration::from_secs(3);
/// The most takes of one queue that wait in one gateway: the queue's consumer lets 8,192 requests wait, of all gateways
/// and workers.
const QUEUE_TAKES_MAX: usize = 2_000;
/// How long a job of a kind in quarantine is snoozed for: its row may be locked.
const SNOOZED_WITHIN: Duration = Duration::from_secs(2);
/// How often a give-back is tried that Postgres does not answer, and the pause between.
const GIVEN_BACK_TRIES: usize = 4;
const GIVEN_BACK_AGAIN: Duration = Duration::from_secs(1);
/// The bytes of an answer that are not payloads.
const OVERHEAD: usize = 4_096;
/// The bytes of a job in an answer that are not its entry, payload or checkpoint.
const ENDING: usize = 40;
/// The most kinds that a worker names.
const KINDS_MAX: usize = 1_000;

/// A queue's consumer, with the number of the connection on which it was found; or why it was not, and when.
type Asked = Result<(u64, PullConsumer), (Instant, Refusal)>;

/// A queue that workers of this gateway serve.
pub(super) struct Queue {
    name: String,
    /// Its limit and its pause.
    pub(super) slots: Slots,
    pub(super) measures: QueueMeasures,
    consumer: Mutex<Option<Asked>>,
    taking: Semaphore,
    /// When they were read, and why they could not be.
    settings_read: Mutex<Option<(Instant, Option<Refusal>)>>,
    pub(super) used_at: std::sync::Mutex<Instant>,
}

impl Queue {
    fn new(name: &str) -> Self {
        let slots = Slots::shared(ANY_NUMBER, &[(name.to_owned(), 1)]).remove(name);
        Self {
            name: name.to_owned(),
            slots: slots.unwrap_or_else(|| unreachable!("the group has this queue")),
            measures: QueueMeasures::new(name),
            consumer: Mutex::default(),
            taking: Semaphore::new(QUEUE_TAKES_MAX),
            settings_read: Mutex::default(),
            used_at: std::sync::Mutex::new(Instant::now()),
        }
    }
}

/// The kinds that a worker has handlers for, each with its rules.
#[derive(Debug)]
pub(super) struct Kinds(HashMap<String, Rules>);

impl Kinds {
    pub(super) fn read(request: &Fields<'_>, timing: &Timing) -> Result<Self, Refusal> {
        let expected = "an object of 1 to 1000 kinds";
        let object = request.object("kinds")?.ok_or_else(|| request.wrong("kinds", expected))?;
        let mut kinds = HashMap::new();
        for name in object.names() {
            if name != "*"
                && let Err(error) = crate::job::check_kind(name)
            {
                return Err(Refusal::new(Code::BadRequest, error.to_string()));
            }
            let rules = object.object(name)?.ok_or_else(|| object.wrong(name, "an object"))?;
            rules.only("the rules of a kind", &["stale_after_ms", "on_crash", "history"])?;
            let stale_after = rules.duration("stale_after_ms")?.unwrap_or(timing.stale_after);
            if let Err(error) = timing.validate_kind(stale_after, None) {
                return Err(Refusal::new(
                    Code::BadRequest,
                    format!("\"kinds.{name}.stale_after_ms\": {error}"),
                ));
            }
            let expected = "\"retry\", \"halve\" or \"dead_letter\"";
            let (on_crash, halves) = match rules.optional::<String>("on_crash", expected)?.as_deref() {
                None | Some("retry") => (OnCrash::Retry, false),
                Some("halve") => (OnCrash::Retry, true),
                Some("dead_letter") => (OnCrash::DeadLetter, false),
                Some(_) => return Err(rules.wrong("on_crash", expected)),
            };
            let no_history = !rules.flag("history", true)?;
            let rules = Rules {
                stale_after,
                keepalive: None,
                on_crash,
                on_write_loss: OnWriteLoss::Cancel,
                no_history,
                halves,
            };
            kinds.insert(name.to_owned(), rules);
        }
        if kinds.is_empty() || kinds.len() > KINDS_MAX {
            return Err(request.wrong("kinds", expected));
        }
        Ok(Self(kinds))
    }

    fn get(&self, kind: &str) -> Option<Rules> {
        self.0.get(kind).or_else(|| self.0.get("*")).copied()
    }

    /// The names; `None`: every kind.
    pub(super) fn names(&self) -> Option<Vec<String>> {
        (!self.0.contains_key("*")).then(|| self.0.keys().cloned().collect())
    }

    /// The kinds that keep no history.
    pub(super) fn unkept(&self) -> Option<Vec<String>> {
        let unkept = self.0.iter().filter(|(_, rules)| rules.no_history).map(|(name, _)| name.clone());
        Some(unkept.collect::<Vec<_>>()).filter(|unkept| !unkept.is_empty())
    }
}

/// Jobs that are claimed for a worker.
#[derive(Default)]
pub(super) struct Taken {
    jobs: Vec<(Claim, Receipt)>,
    /// Whether a claim had no answer: the jobs may be this worker's.
    uncertain: bool,
}

/// Reads the id of a worker, and returns the one under which the database knows it.
pub(super) fn worker_of(queue: &str, request: &Fields<'_>) -> Result<(String, String), Refusal> {
    let expected = "1 to 100 letters, digits, _ and -";
    let worker: String = request.value("worker", expected)?;
    let is_name = (1..=100).contains(&worker.len())
        && worker.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    // A `/` occurs in no id of another process, so that a worker behind a gateway can take the place of none.
    if is_name { Ok((format!("{queue}/{worker}"), worker)) } else { Err(request.wrong("worker", expected)) }
}

impl Gateway {
    /// Returns this gateway's view of a queue.
    pub(super) fn queue(&self, name: &str) -> Arc<Queue> {
        let mut queues = self.0.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.entry(name.to_owned()).or_insert_with(|| Arc::new(Queue::new(name))).clone();
        *queue.used_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        queue
    }

    /// Returns the worker's queue, what claims for the worker, and how long it is to wait first. The worker must have
    /// its row: others find its jobs by it. Before that nothing is kept of the queue, whose name may be made up.
    async fn deliver_for(&self, name: &str, id: &str) -> Result<(Arc<Queue>, Deliver, Duration), Refusal> {
        let known = || self.0.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = known().get_mut(id) {
            worker.used_at = Instant::now();
            return Ok((self.queue(name), worker.deliver.clone(), worker.pause()));
        }
        let Some(host) = self.0.store.host_of_worker(id).await? else {
            return Err(Refusal::new(Code::HelloFirst, format!("the worker {id} has no row")));
        };
        self.forget();
        let queue = self.queue(name);
        let slots = HashMap::from([(queue.name.clone(), queue.slots.clone())]);
        let deliver = self.0.deliver.claiming_for(id, &host, slots);
        let worker = KnownWorker { deliver: deliver.clone(), used_at: Instant::now(), unconfirmed: 0 };
        known().insert(id.to_owned(), worker);
        Ok((queue, deliver, Duration::ZERO))
    }

    /// Notes whether a worker has confirmed the jobs of an answer.
    pub(super) fn note_confirmed(&self, id: &str, is_confirmed: bool) {
        let mut workers = self.0.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = workers.get_mut(id) {
            worker.unconfirmed = if is_confirmed { 0 } else { worker.unconfirmed.saturating_add(1) };
        }
    }

    /// Forgets a worker whose row is gone.
    pub(super) fn forget_worker(&self, id: &str) {
        self.0.workers.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    pub(super) async fn take(
        &self,
        name: &str,
        request: &Fields<'_>,
    ) -> Result<(String, Option<Vec<Receipt>>), Refusal> {
        let asked_at = Instant::now();
        let (id, _) = worker_of(name, request)?;
        let slots = request.number("slots", 1, ENTRIES_MAX as u64)?;
        let wait = request.duration("wait_ms")?.unwrap_or_default();
        if wait > WAIT_MAX {
            return Err(request.wrong("wait_ms", "0 to 30000"));
        }
        let kinds = Kinds::read(request, &self.0.timing)?;
        let signer = self.signer().await?;
        let (queue, deliver, pause) = self.deliver_for(name, &id).await?;
        let Ok(_waits) = queue.taking.try_acquire() else {
            let why = format!("{QUEUE_TAKES_MAX} takes of the queue wait in this gateway already");
            return Err(Refusal::new(Code::Unavailable, why));
        };
        let slots = usize::try_from(slots).unwrap_or(ENTRIES_MAX);
        let until = asked_at + wait;
        if !pause.is_zero() {
            sleep(pause.min(wait)).await;
        }
        loop {
            // Its worker waits no longer: an outage, or a freeze of this process.
            if until.elapsed() > ANSWERED_WITHIN {
                return Err(Refusal::new(Code::Unavailable, "the gateway was too slow"));
            }
            let left = until.saturating_duration_since(Instant::now());
            let is_over = left.is_zero() || self.0.stop.is_cancelled();
            let room = self.room(&queue).await?;
            if room == 0 {
                if is_over {
                    return Box::pin(self.answer(&signer, Taken::default(), asked_at)).await;
                }
                // Ends early on a change of the settings, and when the gateway stops.
                drop(timeout(left.min(HELD_FOR), self.0.changed.notified()).await);
                continue;
            }
            let mut deliveries = self.pull(&queue, slots.min(room), None).await?;
            if deliveries.is_empty() && !is_over {
                // One message: the next request brings the others that have come by then.
                deliveries = self.pull(&queue, 1, Some(left.min(self.0.timing.pull_for))).await?;
            }
            let came = !deliveries.is_empty();
            fault::point("gateway_pulled");
            let turn = timeout_at((until + ANSWERED_WITHIN).into(), self.0.claiming.acquire()).await;
            let Ok(turn) = turn else {
                // Nothing is claimed: other requests bring these messages.
                for delivery in deliveries {
                    delivery.receipt.send(ack_for(&Missed::Unanswered, delivery.deliveries)).await;
                }
                return Err(Refusal::new(Code::Unavailable, "the gateway claims too many jobs"));
            };
            let taken = Box::pin(self.claim(&queue, (&id, &deliver), deliveries, &kinds)).await;
            drop(turn);
            fault::point("gateway_claimed");
            if taken.jobs.is_empty() && !taken.uncertain && !is_over {
                if came {
                    // Messages of jobs that may not start now: no need to hurry after the next.
                    sleep(Duration::from_millis(20).min(left)).await;
                }
                continue;
            }
            // This process may have been frozen.
            if until.elapsed() > ANSWERED_WITHIN {
                let receipts: Vec<_> = taken.jobs.into_iter().map(|(_, receipt)| receipt).collect();
                Box::pin(self.give_back_taken(&receipts)).await;
                return Err(Refusal::new(
                    Code::Unavailable,
                    "the gateway was too slow; it gave the jobs back",
                ));
            }
            return Box::pin(self.answer(&signer, taken, asked_at)).await;
        }
    }

    /// Returns how many jobs of a queue may start, as far as its settings say.
    async fn room(&self, queue: &Queue) -> Result<usize, Refusal> {
        // One look at a time: many workers ask, also while Postgres does not answer.
        let mut read = queue.settings_read.lock().await;
        match &*read {
            Some((at, failed)) if at.elapsed() < SETTINGS_FOR => {
                if let Some(refusal) = failed {
                    return Err(refusal.clone());
                }
            }
            _ => {
                let since = queue.slots.asks();
                let said = self.0.store.queue_settings(std::slice::from_ref(&queue.name)).await;
                let said = said.map_err(Refusal::from);
                *read = Some((Instant::now(), said.as_ref().err().cloned()));
                let (paused, room, events) =
                    said?.pop().map_or_else(Default::default, |of| (of.paused, of.room, of.events));
                queue.slots.settings(paused, room, since);
                self.0.hints.set_events(&queue.name, events);
            }
        }
        Ok(queue.slots.available(0))
    }

    /// Returns the queue's consumer, which is created if it is missing.
    pub(super) async fn consumer(&self, queue: &Queue) -> Result<PullConsumer, Refusal> {
        // One asks. Its answer is that of those who wait meanwhile, also while NATS does not answer.
        let mut consumer = queue.consumer.lock().await;
        let connection = *self.0.nats.connections().borrow();
        match &*consumer {
            // Another connection may lead to a server that went back.
            Some(Ok((on, found))) if *on == connection => return Ok(found.clone()),
            Some(Err((at, refusal))) if at.elapsed() < SETTINGS_FOR => return Err(refusal.clone()),
            _ => {}
        }
        let ensured = async {
            self.0.nats.ensure_stream().await?;
            self.0.nats.ensure_consumer(&queue.name).await
        };
        let unavailable =
            |error: crate::errors::NatsError| Refusal::new(Code::Unavailable, error.to_string());
        let found = ensured.await.map(|(found, _)| found).map_err(unavailable);
        if found.is_ok() {
            let (nats, names) = (self.0.nats.clone(), [queue.name.clone()]);
            // If it is made anew, the pulls of the old one break.
            self.0.store.spawn(async move { nats.look_at_consumers(&names).await });
        }
        let kept = found.clone().map(|found| (connection, found));
        *consumer = Some(kept.map_err(|refusal| (Instant::now(), refusal)));
        found
    }

    async fn pull(
        &self,
        queue: &Queue,
        messages: usize,
        expires: Option<Duration>,
    ) -> Result<Vec<Delivery>, Refusal> {
        let consumer = self.consumer(queue).await?;
        let pulled = self.0.nats.pull_once(&consumer, messages, expires).await;
        match pulled {
            Ok(deliveries) => Ok(deliveries),
            Err(error) => {
                *queue.consumer.lock().await = None;
                Err(Refusal::new(Code::Unavailable, error.to_string()))
            }
        }
    }

    /// Claims the jobs of these messages, and answers the messages of the others.
    async fn claim(
        &self,
        queue: &Queue,
        (id, deliver): (&str, &Deliver),
        deliveries: Vec<Delivery>,
        kinds: &Kinds,
    ) -> Taken {
        let (several, deliveries): (Vec<_>, Vec<_>) = deliveries.into_iter().partition(|of| of.jobs() > 1);
        // The answer to such a message waits for all of its jobs, in one process: the relay publishes each alone.
        let parts: Vec<_> = several.into_iter().flat_map(Delivery::split).collect();
        if !parts.is_empty() {
            for left in deliver.hand_back(parts).await {
                left.receipt.send(ack_for(&Missed::Unanswered, left.deliveries)).await;
            }
        }
        let decided = join_all(deliveries.into_iter().map(|delivery| async move {
            queue.measures.deliveries.increment(1);
            if delivery.deliveries > 1 {
                queue.measures.redeliveries.increment(1);
            }
            let delivered = deliver.decide(&delivery, |kind| kinds.get(kind)).await;
            let waits = match &delivered {
                Delivered::Ours(claim, ..) => self.waits(queue, claim, kinds).await,
                _ => None,
            };
            (delivery, delivered, waits)
        }));
        let mut taken = Taken::default();
        for (delivery, delivered, waits) in decided.await {
            match delivered {
                Delivered::Ours(..) if let Some(is_written) = waits => {
                    // Otherwise its worker returns it, as any job that it does not know of.
                    if is_written {
                        delivery.receipt.send(Ack::Done).await;
                    }
                }
                Delivered::Ours(claim, _reservation, dispatch) => {
                    queue.measures.wait.record(claim.waited);
                    queue.measures.rates.claimed(claim.waited);
                    if claim.after_reset {
                        queue.measures.reset_to_running.record(claim.waited);
                    }
                    self.0.hints.began(&claim);
                    let receipt = self.receipt(id, &claim, &delivery, dispatch, kinds);
                    taken.jobs.push((*claim, receipt));
                }
                Delivered::Missed(missed) => {
                    taken.uncertain |= missed == Missed::Unanswered;
                    let ack = deliver.ack(&delivery, &missed).await;
                    delivery.receipt.send(ack).await;
                }
                Delivered::Kept => {}
            }
        }
        taken
    }

    /// Whether the job waits for the end of a quarantine, and if so, whether that is written.
    async fn waits(&self, queue: &Queue, claim: &Claim, kinds: &Kinds) -> Option<bool> {
        let settle = &self.0.settle;
        let no_history = kinds.get(&claim.kind).is_some_and(|rules| rules.no_history);
        let waits = settle.quarantine().holds(&claim.kind, claim.key, no_history).await?;
        let is_written = timeout(SNOOZED_WITHIN, settle.snooze(claim, waits)).await.unwrap_or_default();
        queue.slots.ended();
        Some(is_written)
    }

    fn receipt(
        &self,
        id: &str,
        claim: &Claim,
        delivery: &Delivery,
        dispatch: Option<i32>,
        kinds: &Kinds,
    ) -> Receipt {
        let rules = kinds.get(&claim.kind);
        let stale_after = rules.map_or(self.0.timing.stale_after, |rules| rules.stale_after);
        Receipt {
            queue: claim.queue.clone(),
            kind: claim.kind.clone(),
            worker: id.to_owned(),
            job: claim.key.job,
            token: claim.key.token,
            claim: claim.key.claim,
            attempt: claim.attempt,
            max_attempts: claim.max_attempts,
            dispatch: claim.dispatch,
            lane: claim.lane.clone(),
            group: claim.group,
            stale_after: u64::try_from(stale_after.as_millis()).unwrap_or(u64::MAX),
            dies_on_crash: rules.is_some_and(|rules| rules.on_crash == OnCrash::DeadLetter),
            no_history: rules.is_some_and(|rules| rules.no_history),
            message_dispatch: dispatch,
            reply: delivery.receipt.reply().unwrap_or_default().to_owned(),
            sequence: delivery.receipt.sequence,
            mark: delivery.receipt.mark(),
        }
    }

    /// Writes the answer, and gives back the jobs that do not fit into it. A payload that does not fit is left for
    /// `payload`.
    async fn answer(
        &self,
        signer: &Signer,
        mut taken: Taken,
        asked_at: Instant,
    ) -> Result<(String, Option<Vec<Receipt>>), Refusal> {
        let mut room = self.0.nats.message_bytes_max().saturating_sub(OVERHEAD);
        let mut entries = Vec::with_capacity(taken.jobs.len());
        // The bytes of all jobs without their payloads: they must fit.
        let mut least = 0;
        for (claim, receipt) in &taken.jobs {
            let entry = entry(claim, receipt, signer)?;
            if least + entry.len() + ENDING > room {
                break;
            }
            least += entry.len() + ENDING;
            entries.push(entry);
        }
        let left: Vec<_> = taken.jobs.drain(entries.len()..).map(|(_, receipt)| receipt).collect();
        if !left.is_empty() {
            self.give_back_taken(&left).await;
        }
        let mut jobs = Vec::with_capacity(entries.len());
        for ((claim, _), entry) in taken.jobs.iter().zip(entries) {
            least -= entry.len() + ENDING;
            let checkpoint = claim.checkpoint.as_deref();
            let whole = entry.len() + claim.payload.len() + checkpoint.map_or(4, str::len) + ENDING;
            let text = if whole + least <= room && is_plain(&claim.payload) && checkpoint.is_none_or(is_plain)
            {
                let (checkpoint, payload) = (checkpoint.unwrap_or("null"), &claim.payload);
                format!(r#"{entry},"checkpoint":{checkpoint},"payload":{payload}}}"#)
            } else {
                let parts = self.parts(&whole_text(&claim.payload, checkpoint)).len();
                format!(r#"{entry},"parts":{parts}}}"#)
            };
            room = room.saturating_sub(text.len() + 1);
            jobs.push(text);
        }
        // What the worker measures beyond this, the answer was on its way, or lay unread.
        let waited = asked_at.elapsed().as_millis();
        let (jobs, uncertain) = (jobs.join(","), taken.uncertain);
        let receipts: Vec<_> = taken.jobs.into_iter().map(|(_, receipt)| receipt).collect();
        let answer = format!(r#"{{"jobs":[{jobs}],"uncertain":{uncertain},"waited_ms":{waited}}}"#);
        Ok((answer, (!receipts.is_empty()).then_some(receipts)))
    }

    /// Divides a text into parts that fit into a message each, with their escapes.
    fn parts<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let most = (self.0.nats.message_bytes_max().saturating_sub(OVERHEAD) / 3).max(4);
        let (mut parts, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.floor_char_boundary(most));
            parts.push(part);
            rest = after;
        }
        parts
    }

    /// Answers with a part of a large job.
    pub(super) async fn payload(&self, queue: &str, request: &Fields<'_>) -> Result<String, Refusal> {
        let (id, _) = worker_of(queue, request)?;
        let receipt = self.signer().await?.of_worker(&id, request)?;
        let part = request.number("part", 0, 100_000)?;
        let Some((payload, checkpoint)) = self.0.store.claimed_job(&receipt.key()).await? else {
            return Ok(r#"{"lost":true}"#.to_owned());
        };
        let whole = whole_text(&payload, checkpoint.as_deref());
        let parts = self.parts(&whole);
        let part = usize::try_from(part).ok().and_then(|part| parts.get(part));
        let text = part.ok_or_else(|| request.wrong("part", "the number of a part, from 0 on"))?;
        Ok(format!(r#"{{"text":{}}}"#, super::protocol::json(text)?))
    }

    /// Gives back what a take has claimed, and answers the messages: the relay publishes the jobs anew. Returns those
    /// that were given back.
    pub(super) async fn give_back_taken(&self, taken: &[Receipt]) -> Vec<JobId> {
        let claims: Vec<_> = taken.iter().map(Receipt::key).collect();
        let given_back = self.give_back(&claims).await;
        for receipt in taken.iter().filter(|receipt| given_back.contains(&receipt.job)) {
            self.message_of(receipt).receipt.send(Ack::Done).await;
        }
        given_back
    }

    /// Gives jobs back whose worker does not know of them: the attempts do not count. Returns those that were its.
    pub(super) async fn give_back(&self, claims: &[ClaimKey]) -> Vec<JobId> {
        let mut given_back = self.try_give_back(claims).await;
        for _ in 1..GIVEN_BACK_TRIES {
            if given_back.is_ok() {
                break;
            }
            sleep(GIVEN_BACK_AGAIN).await;
            given_back = self.try_give_back(claims).await;
        }
        match given_back {
            Ok(jobs) => jobs,
            Err(error) => {
                tracing::warn!(%error, jobs = claims.len(),
                    "could not give jobs back whose worker does not know of them; their worker asks again, or a scan \
                     resets them");
                Vec::new()
            }
        }
    }

    async fn try_give_back(&self, claims: &[ClaimKey]) -> Result<Vec<JobId>, StoreError> {
        let mut given_back = Vec::new();
        let reason = Some(Reason::AnswerLost);
        let mut claims = claims.to_vec();
        claims.sort_unstable();
        for some in claims.chunks(ENTRIES_MAX) {
            let end =
                |key: &ClaimKey| AttemptEnd { reason, ..AttemptEnd::new(*key, AttemptOutcome::Released) };
            let ends: Vec<_> = some.iter().map(end).collect();
            let ended = self.0.store.settle(&ends, &self.0.worker_id).await?;
            given_back.extend(ended.iter().map(|end| end.job));
            metrics::recovered(RecoveryPath::Worker, Reason::AnswerLost, ended.len());
            for end in ended {
                if let Some(left_out) = repeats::tell("given back", &end.owner.as_deref().unwrap_or_default())
                {
                    tracing::warn!(job = %end.job, token = end.token.0, owner = end.owner, left_out,
                        "the answer to a claim was lost; the gateway released the job, and the attempt does not count");
                }
            }
        }
        Ok(given_back)
    }
}

/// A job in an answer, without its payload, checkpoint and end.
fn entry(claim: &Claim, receipt: &Receipt, signer: &Signer) -> Result<String, Refusal> {
    let ClaimKey { job, token, claim: claim_id } = claim.key;
    let (kind, receipt_text) = (&claim.kind, signer.write(receipt));
    let head = format!(
        r#"{{"job":"{job}","kind":"{kind}","token":{token},"claim":"{claim_id}","receipt":"{receipt_text}""#
    );
    let losses = if claim.losses > 0 { format!(r#","losses":{}"#, claim.losses) } else { String::new() };
    Ok(format!(
        r#"{head},"attempt":{},"max_attempts":{},"stale_after_ms":{},"after_reset":{}{losses},"traceparent":{}"#,
        claim.attempt,
        claim.max_attempts,
        receipt.stale_after,
        claim.after_reset,
        super::protocol::json(&claim.trace_context)?,
    ))
}

fn whole_text(payload: &str, checkpoint: Option<&str>) -> String {
    format!(r#"{{"payload":{payload},"checkpoint":{}}}"#, checkpoint.unwrap_or("null"))
}
