//! Pull: requests exactly as many messages as there are free slots.
//!
//! The loop is tenure's own: async-nats 0.51's `batch()` with a heartbeat loses a wake-up, and its `stream()` fetches
//! beyond the free slots; a dead worker would keep those messages for a whole `ack_wait`.
//!
//! The rules: the loop takes slots first, then requests just that many messages. Each message uses one slot of `held`,
//! and a request that ends early frees the rest of its slots. The loop sends a new request only when at least as many
//! slots are free as are requested, so at most log2(slots) + 1 requests wait. Every request ends by itself after
//! `pull_for`. If the server is silent for longer, or the connection is new, the loop starts on a new inbox.
//!
//! A message may name several jobs: the loop requests fewer messages where the last ones did, and for some time none
//! while fewer slots are free than such a message needs. Jobs for which no slot is free wait for [`ROOM_WITHIN`], in
//! order, and the loop requests nothing meanwhile; then they go back. Of a message that has waited without room for all
//! of its jobs none starts: whole, it comes to another worker, and its rest would go to the end of the queue.
//!
//! The loop abandons an inbox only when every request made on it must have ended. async-nats's `drain()` does not wait
//! for the server: it would drop messages on their way, and no worker would get them for a whole `ack_wait` (seen: one
//! or two of 2,000 when a worker stopped under load).

use std::{collections::VecDeque, future::poll_fn, sync::Arc, time::Duration};

use async_nats::{
    StatusCode, Subscriber,
    jetstream::{self, consumer::pull::BatchConfig},
};
use futures::{
    FutureExt, StreamExt,
    stream::{BoxStream, SelectAll},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

pub(crate) use async_nats::jetstream::consumer::PullConsumer;

use super::{answers::Line, connect::Nats, message::Delivery};
use crate::nats::slots::{Slot, Slots};

/// The longest delay of a request's last message after the request's end.
pub(crate) const LATE: Duration = Duration::from_millis(1_500);
/// The time for which the loop watches an idle consumer before it leaves its requests.
const QUIET_FOR: Duration = Duration::from_millis(100);
/// The lifetime on the server of a request for more than one message, if queues share slots.
const SHARED_LASTS: Duration = Duration::from_millis(250);
/// How long a new inbox waits for the connection for answers. Without that one, each answer takes a look at the stream.
const LINE_WITHIN: Duration = Duration::from_secs(1);
/// The most messages of one request.
const BATCH_MAX: usize = 1_024;

/// The most messages that one call returns.
const TOGETHER_MAX: usize = 64;
/// How long jobs wait here for a slot: about as long as it takes them to come to another worker.
const ROOM_WITHIN: Duration = Duration::from_millis(100);
/// How long slots may stay free that are not enough for a message of several jobs, if they are at most this part of
/// all: the rest of such a message would go to the end of the queue.
const FEW: usize = 32;
const FEW_FOR: Duration = Duration::from_secs(5);
/// How often a message may be delivered before it is taken in part: workers that are short of slots would return it for
/// ever.
const RETURNED_MAX: i64 = 8;

/// The result of a pull.
pub(crate) enum Pulled {
    /// Messages, each with the slot it may run in.
    Deliveries(Vec<(Delivery, Slot)>),
    /// Messages, and parts of one, for whose jobs no slot was free.
    NoRoom(Vec<Delivery>),
    /// NATS does not answer, or the consumer is gone: check the topology.
    Broken(String),
}

/// Returns how many messages of `each` jobs may be requested for this number of slots. `takes_part`: one message also
/// for fewer slots than it has jobs.
fn messages_for(slots: usize, each: usize, takes_part: bool) -> usize {
    (slots / each).max(usize::from(takes_part && slots > 0))
}

/// One queue's pull loop.
pub(crate) struct Pull {
    nats: Nats,
    /// Lent to each message while it is read.
    context: Option<jetstream::Context>,
    consumer: PullConsumer,
    slots: Slots,
    /// The lifetime of a request on the server. A dead worker's request receives messages for this long.
    requests_last: Duration,
    connections: watch::Receiver<u64>,
    lines: watch::Receiver<Option<Arc<Line>>>,
    /// The connection for answers that was there before the first request on this inbox.
    line: Option<Arc<Line>>,
    inbox: String,
    subscriber: Option<Subscriber>,
    /// Old inboxes, each until no message can arrive any more.
    old: SelectAll<BoxStream<'static, async_nats::Message>>,
    /// Slots for the jobs of the messages that are requested.
    held: Vec<Slot>,
    /// The messages that are requested.
    requested: usize,
    /// About how many jobs a message names.
    each: usize,
    /// Since when slots are free, but not enough for a message.
    few_since: Option<Instant>,
    /// Whether the last request was for a part of a message.
    takes_part: bool,
    /// Whether nothing waited in the stream, as the server said last: the next message need not be of a burst.
    is_drained: bool,
    /// Jobs that wait for a slot: the rest of a message of which others run, and whole messages with their arrival.
    rest: VecDeque<Delivery>,
    rest_since: Instant,
    waiting: VecDeque<(Instant, Delivery)>,
    requested_at: Instant,
    unanswered: u32,
    /// A message that was read from the subscriber and not handled yet.
    next_message: Option<async_nats::Message>,
    /// When the subscriber last had no message: those that it has now have arrived since.
    empty_at: Instant,
}

impl Pull {
    pub(crate) fn new(nats: Nats, consumer: PullConsumer, slots: Slots, requests_last: Duration) -> Self {
        let (connections, lines) = (nats.connections.clone(), nats.answers.line());
        Self {
            nats,
            context: None,
            consumer,
            slots,
            requests_last,
            connections,
            lines,
            line: None,
            inbox: String::new(),
            subscriber: None,
            old: SelectAll::new(),
            held: Vec::new(),
            requested: 0,
            each: 1,
            few_since: None,
            takes_part: false,
            is_drained: true,
            rest: VecDeque::new(),
            rest_since: Instant::now(),
            waiting: VecDeque::new(),
            requested_at: Instant::now(),
            unanswered: 0,
            next_message: None,
            empty_at: Instant::now(),
        }
    }

    /// Requests as many messages as there are free slots, and returns the next ones, or the error that stopped the
    /// pull.
    ///
    /// Cancel safe: requests stay, and the next call, or `stop`, reads their messages.
    pub(crate) async fn next(&mut self) -> Result<Pulled, async_nats::Error> {
        if self.subscriber.is_none() {
            self.reset().await?;
        }
        loop {
            let slots = self.slots.clone();
            // Enabled before the look, or a change between the look and the wait would be missed.
            let mut changed = std::pin::pin!(slots.changed());
            changed.as_mut().enable();
            let waits = self.waits();
            if waits {
                let mut deliveries = Vec::new();
                self.assign(&mut deliveries);
                if !deliveries.is_empty() {
                    return Ok(Pulled::Deliveries(deliveries));
                }
            } else {
                self.request_for_free_slots().await?;
            }
            let idle = self.requested == 0;
            let few_until = self.few_since.map(|since| since + self.few_for());
            let silent_at = self.requested_at + self.requests_last + LATE;
            let give_up_at = self.waits_since().unwrap_or(silent_at) + ROOM_WITHIN;
            let Some(subscriber) = self.subscriber.as_mut() else { continue };
            let next_message = self.next_message.take();
            let (empty_at, mut has_waited) = (&mut self.empty_at, false);
            let next = poll_fn(|context| {
                let next = subscriber.poll_next_unpin(context);
                if next.is_pending() || has_waited {
                    // It woke this task: its message has arrived just now.
                    (*empty_at, has_waited) = (Instant::now(), true);
                }
                next
            });
            tokio::select! { biased;
                message = async { if next_message.is_some() { next_message } else { next.await } } => {
                    let Some(message) = message else {
                        self.subscriber = None;
                        return Ok(Pulled::Broken("the subscription was closed".into()));
                    };
                    if let Some(pulled) = self.on_message(message).await? {
                        return Ok(self.with_more(pulled));
                    }
                }
                Some(message) = self.old.next(), if !self.old.is_empty() => {
                    if is_job(&message) {
                        // The request for it is not counted any more.
                        self.requested += 1;
                        let delivery = self.old_delivery(message)?;
                        if let Some(pulled) = self.on_delivery(delivery) {
                            return Ok(pulled);
                        }
                    }
                }
                changed = self.connections.changed() => {
                    changed?;
                    self.reset().await?;
                }
                changed = self.lines.changed() => {
                    changed?;
                    // Once there is the next one.
                    if self.lines.borrow().is_some() {
                        self.reset().await?;
                    }
                }
                () = changed, if idle || waits => {}
                () = sleep_until(few_until.unwrap_or(silent_at)), if few_until.is_some() && !waits => {}
                () = sleep_until(give_up_at), if waits => return Ok(Pulled::NoRoom(self.give_up(ROOM_WITHIN))),
                () = sleep_until(silent_at), if !idle => {
                    self.reset().await?;
                    return Ok(Pulled::Broken("NATS does not answer".into()));
                }
            }
        }
    }

    /// Requests messages for the free slots, if these are at least as many as the requested ones.
    async fn request_for_free_slots(&mut self) -> Result<(), async_nats::Error> {
        let before = self.held.len();
        let free = self.slots.available(before).min(BATCH_MAX.saturating_sub(before));
        // One that comes alone takes a free slot at once.
        let asks_for_one = self.is_drained && self.requested == 0;
        let few = free > 0 && self.requested == 0 && free < self.each && !asks_for_one;
        let few_since = *self.few_since.get_or_insert_with(Instant::now);
        if !few {
            self.few_since = None;
        }
        let takes_part = few && (self.slots.runs_nothing() || few_since.elapsed() >= self.few_for());
        let messages = messages_for(before + free, self.each, takes_part || asks_for_one);
        let messages = messages.saturating_sub(self.requested);
        if free == 0 || free < before || messages == 0 {
            return Ok(());
        }
        (self.few_since, self.takes_part) = (None, takes_part);
        self.requested += messages;
        let wanted = (self.requested * self.each).saturating_sub(before);
        self.held.extend(self.slots.take(free.min(wanted), before));
        self.request(messages).await
    }

    /// How long slots stay free that are not enough for a message.
    fn few_for(&self) -> Duration {
        if self.each * FEW <= self.slots.slots() { FEW_FOR } else { ROOM_WITHIN }
    }

    fn waits(&self) -> bool {
        !self.rest.is_empty() || !self.waiting.is_empty()
    }

    /// When the first of those that wait arrived.
    fn waits_since(&self) -> Option<Instant> {
        let first = self.waiting.front().map(|(since, _)| *since);
        if self.rest.is_empty() { first } else { Some(self.rest_since) }
    }

    /// Whether the first jobs of this message may start before there is a slot for each.
    fn splits(&self, message: &Delivery) -> bool {
        self.takes_part || message.jobs() > self.slots.slots() || message.deliveries > RETURNED_MAX
    }

    /// Gives free slots to the jobs that wait, in order.
    fn assign(&mut self, deliveries: &mut Vec<(Delivery, Slot)>) {
        let held = self.held.len();
        let room = held + self.slots.room();
        let mut jobs = self.rest.len();
        for (_, message) in &self.waiting {
            if jobs + message.jobs() > room && !self.splits(message) {
                break;
            }
            jobs += message.jobs();
        }
        let mut slots = self.held.split_off(held - held.min(jobs));
        if jobs > held {
            slots.extend(self.slots.take_room(jobs - held));
        }
        // The claim says why a job that came without room may not start. A message of several waits, and goes back.
        if slots.is_empty()
            && self.rest.is_empty()
            && self.waiting.front().is_some_and(|(_, first)| first.jobs() == 1)
        {
            slots.extend(self.slots.take_for_message());
        }
        for slot in slots {
            if self.rest.is_empty()
                && let Some((since, message)) = self.waiting.pop_front()
            {
                (self.rest_since, self.rest) = (since, message.split());
            }
            let Some(delivery) = self.rest.pop_front() else { break };
            deliveries.push((delivery, slot));
        }
        self.held.truncate(self.requested * self.each);
    }

    /// Returns what has waited for this long.
    fn give_up(&mut self, after: Duration) -> Vec<Delivery> {
        let mut left = Vec::new();
        if !self.rest.is_empty() && self.rest_since.elapsed() >= after {
            if !after.is_zero() {
                self.slots.handed_back();
            }
            left.extend(self.rest.drain(..));
        }
        while self.rest.is_empty() && self.waiting.front().is_some_and(|(since, _)| since.elapsed() >= after)
        {
            // It comes again, and the server does not count it among those that wait.
            self.is_drained = false;
            left.extend(self.waiting.pop_front().map(|(_, message)| message));
        }
        left
    }

    /// Stops requesting, waits until every request has ended, and returns the messages that arrived, for the caller to
    /// return to NATS. Returned earlier, they would come right back here. If the consumer delivers nothing, leaves its
    /// requests at once.
    pub(crate) async fn stop(mut self) -> Vec<Delivery> {
        let mut left = self.give_up(Duration::ZERO);
        if self.leave_if_quiet().await {
            // Messages that arrived before the subscription ended.
            while let Some(subscriber) = self.subscriber.as_mut() {
                let Ok(Some(message)) = timeout(QUIET_FOR * 5, subscriber.next()).await else { break };
                if is_job(&message) {
                    left.extend(self.delivery(message).ok());
                }
            }
            return left;
        }
        let ended_at = self.requested_at + self.requests_last + LATE;
        while self.requested > 0 || !self.old.is_empty() {
            let Some(subscriber) = self.subscriber.as_mut() else { break };
            let next_message = self.next_message.take();
            let message = tokio::select! { biased;
                message = async { if next_message.is_some() { next_message } else { subscriber.next().await } },
                    if self.requested > 0 => message,
                message = self.old.next(), if !self.old.is_empty() => {
                    // The requests of an old inbox are not counted any more.
                    left.extend(message.filter(is_job).and_then(|message| self.old_delivery(message).ok()));
                    continue;
                }
                () = sleep_until(ended_at) => break,
            };
            let Some(message) = message else { break };
            if is_job(&message) {
                self.requested -= 1;
                left.extend(self.delivery(message).ok());
            } else if message.status == Some(StatusCode::NO_RESPONDERS) {
                break;
            } else {
                match unused(&message) {
                    Some(unused) => self.not_coming(unused),
                    // The consumer is gone, and with it every request.
                    None => break,
                }
            }
        }
        left
    }

    /// Ends the requests by ending the subscription, if the consumer delivers nothing just now: the server drops a
    /// request without a subscriber.
    ///
    /// `stop` reads the messages that arrive until the server has ended the subscription. A message that the consumer
    /// hands over in that very moment may be missed: NATS redelivers it after `ack_wait`, and if the job's row exists,
    /// the relay republishes it within seconds. To avoid that, this checks twice, a round trip apart, that the consumer
    /// has delivered nothing for [`QUIET_FOR`].
    async fn leave_if_quiet(&mut self) -> bool {
        if !self.old.is_empty() || self.next_message.is_some() || self.requested == 0 {
            return false;
        }
        let Some(before) = self.delivered().await else { return false };
        let Some(subscriber) = self.subscriber.as_mut() else { return true };
        tokio::select! { biased;
            message = subscriber.next() => {
                self.next_message = message;
                return false;
            }
            () = sleep(QUIET_FOR) => {}
        }
        if self.delivered().await != Some(before) {
            return false;
        }
        let Some(subscriber) = self.subscriber.as_mut() else { return true };
        if let Some(message) = subscriber.next().now_or_never() {
            self.next_message = message;
            return false;
        }
        subscriber.drain().await.is_ok()
    }

    /// Returns how many messages the consumer has delivered to all workers.
    async fn delivered(&mut self) -> Option<u64> {
        let info = timeout(QUIET_FOR * 5, self.consumer.get_info()).await.ok()?.ok()?;
        Some(info.delivered.consumer_sequence)
    }

    async fn on_message(
        &mut self,
        message: async_nats::Message,
    ) -> Result<Option<Pulled>, async_nats::Error> {
        if is_job(&message) {
            self.unanswered = 0;
            return self.on_job(message);
        }
        match message.status {
            Some(StatusCode::IDLE_HEARTBEAT) => {}
            Some(StatusCode::NO_RESPONDERS) => {
                self.not_coming(self.requested);
                self.unanswered += 1;
                if self.unanswered.is_multiple_of(4) {
                    return Ok(Some(Pulled::Broken(
                        "no responders: the stream or its consumer is gone".into(),
                    )));
                }
                sleep(Duration::from_millis(250)).await;
            }
            _ => {
                // The end of one request, with the number of its messages that never came.
                self.unanswered = 0;
                if let Some(unused) = unused(&message) {
                    self.not_coming(unused);
                    if unused > 0 {
                        self.slots.has_more(false);
                        self.is_drained = true;
                    }
                } else {
                    let why = message.description.unwrap_or_default();
                    if why == "Consumer Deleted" {
                        // Its stream may follow, and another one come that has the same sequences.
                        self.nats.answers.renew();
                    }
                    self.reset().await?;
                    if why == "Consumer Deleted" || why.starts_with("Exceeded") {
                        return Ok(Some(Pulled::Broken(why)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Frees the slots of requested messages that will not come.
    fn not_coming(&mut self, messages: usize) {
        self.requested = self.requested.saturating_sub(messages);
        self.held.truncate(self.requested * self.each);
    }

    fn on_job(&mut self, message: async_nats::Message) -> Result<Option<Pulled>, async_nats::Error> {
        let delivery = self.delivery(message)?;
        Ok(self.on_delivery(delivery))
    }

    fn on_delivery(&mut self, delivery: Delivery) -> Option<Pulled> {
        self.slots.has_more(delivery.pending > 0);
        let mut deliveries = Vec::new();
        self.arrived(delivery, &mut deliveries);
        (!deliveries.is_empty()).then_some(Pulled::Deliveries(deliveries))
    }

    /// Takes a message that has arrived. Adds the jobs that have a slot to `deliveries`.
    fn arrived(&mut self, delivery: Delivery, deliveries: &mut Vec<(Delivery, Slot)>) {
        self.requested = self.requested.saturating_sub(1);
        self.each = match delivery.jobs() {
            more if more > self.each => more,
            fewer => self.each - (self.each - fewer).div_ceil(4),
        };
        self.is_drained = delivery.pending == 0;
        if delivery.jobs() == 1
            && !self.waits()
            && let Some(slot) = self.held.pop()
        {
            deliveries.push((delivery, slot));
        } else {
            self.waiting.push_back((Instant::now(), delivery));
            self.assign(deliveries);
        }
        self.held.truncate(self.requested * self.each);
    }

    /// Adds the messages that have arrived already and have a slot.
    fn with_more(&mut self, mut pulled: Pulled) -> Pulled {
        if let Pulled::Deliveries(deliveries) = &mut pulled {
            while deliveries.len() < TOGETHER_MAX && !self.waits() {
                let Some(subscriber) = self.subscriber.as_mut() else { break };
                let next = if self.requested > 0 { subscriber.next().now_or_never() } else { None };
                let Some(message) = next else {
                    self.empty_at = Instant::now();
                    break;
                };
                let Some(message) = message else { break };
                if !is_job(&message) {
                    self.next_message = Some(message);
                    break;
                }
                match self.delivery(message) {
                    Ok(delivery) => self.arrived(delivery, deliveries),
                    // JetStream did not send it: there is no job to run and no message to answer.
                    Err(error) => tracing::warn!(%error, "ignored a message that JetStream did not send"),
                }
            }
        }
        pulled
    }

    fn delivery(&mut self, message: async_nats::Message) -> Result<Delivery, async_nats::Error> {
        let delivery = Delivery::new(&self.nats, self.line.clone(), &mut self.context, message)?;
        Ok(delivery.arrived_after(self.empty_at.into_std()))
    }

    /// Of an old inbox, whose requests may be older than the connection for answers.
    fn old_delivery(&mut self, message: async_nats::Message) -> Result<Delivery, async_nats::Error> {
        Delivery::new(&self.nats, None, &mut self.context, message)
    }

    async fn request(&mut self, batch: usize) -> Result<(), async_nats::Error> {
        if batch == 0 {
            return Ok(());
        }
        // A request must not hold shared slots in vain for long: messages that wait arrive at once.
        let expires = if batch > 1 && self.slots.is_shared() { SHARED_LASTS } else { self.requests_last };
        let expires = expires.min(self.requests_last);
        let request = BatchConfig { batch, expires: Some(expires), ..Default::default() };
        self.consumer.request_batch(request, self.inbox.clone().into()).await?;
        self.requested_at = Instant::now();
        Ok(())
    }

    async fn reset(&mut self) -> Result<(), async_nats::Error> {
        self.not_coming(self.requested);
        self.connections.borrow_and_update();
        // Both connections are made at about the same time; each new line is another inbox.
        let is_up = |line: &Option<Arc<Line>>| line.as_ref().is_some_and(|line| line.is_up());
        drop(timeout(LINE_WITHIN, self.lines.wait_for(is_up)).await);
        self.line.clone_from(&self.lines.borrow_and_update());
        self.inbox = self.nats.client.new_inbox();
        let subscriber = self.nats.client.subscribe(self.inbox.clone()).await?;
        if let Some(old) = self.subscriber.replace(subscriber) {
            let over = sleep_until(self.requested_at + self.requests_last + LATE);
            self.old.push(old.take_until(over).boxed());
        }
        Ok(())
    }
}

/// Returns how many of a request's messages never came. `None`: the message is not the end of a request.
fn unused(message: &async_nats::Message) -> Option<usize> {
    message.headers.as_ref()?.get("Nats-Pending-Messages")?.as_str().parse().ok()
}

/// Whether it is a message of the stream, and none of the server's about a request. Its sender may have written a
/// status, too.
pub(crate) fn is_job(message: &async_nats::Message) -> bool {
    message.reply.as_ref().is_some_and(|reply| reply.starts_with("$JS.ACK."))
        || matches!(message.status, None | Some(StatusCode::OK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_requested_for_as_many_slots_as_it_has_jobs_and_for_fewer_only_after_a_while() {
        for slots in 0..40 {
            assert_eq!(messages_for(slots, 1, false), slots);
        }
        assert_eq!([0, 1, 15, 16, 31, 32].map(|slots| messages_for(slots, 16, false)), [0, 0, 0, 1, 1, 2]);
        assert_eq!([0, 1, 15, 16, 31, 32].map(|slots| messages_for(slots, 16, true)), [0, 1, 1, 1, 1, 2]);
    }
}
