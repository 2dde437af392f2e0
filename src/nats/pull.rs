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
//! The loop abandons an inbox only when every request made on it must have ended. async-nats's `drain()` does not wait
//! for the server: it would drop messages on their way, and no worker would get them for a whole `ack_wait` (seen: one
//! or two of 2,000 when a worker stopped under load).

use std::time::Duration;

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

use super::{connect::Queue, message::Delivery};
use crate::{
    job::claim::Ack,
    nats::slots::{Slot, Slots},
};

/// The time for which the loop watches an idle consumer before it leaves its requests.
const QUIET_FOR: Duration = Duration::from_millis(100);
/// The longest delay of a request's last message after the request's end.
const LATE: Duration = Duration::from_millis(1_500);
/// The lifetime on the server of a request for more than one message, if queues share slots.
const SHARED_LASTS: Duration = Duration::from_millis(250);
/// The most messages of one request.
const BATCH_MAX: usize = 1_024;

/// The most messages that one call returns.
const TOGETHER_MAX: usize = 64;

/// The result of a pull.
pub(crate) enum Pulled {
    /// Messages, each with the slot it may run in.
    Deliveries(Vec<(Delivery, Slot)>),
    /// NATS does not answer, or the consumer is gone: check the topology.
    Broken(String),
}

/// One queue's pull loop.
pub(crate) struct Pull {
    queue: Queue,
    /// Lent to each message while it is read.
    context: Option<jetstream::Context>,
    consumer: PullConsumer,
    slots: Slots,
    /// The lifetime of a request on the server. A dead worker's request receives messages for this long.
    requests_last: Duration,
    connections: watch::Receiver<u64>,
    inbox: String,
    subscriber: Option<Subscriber>,
    /// Old inboxes, each until no message can arrive any more.
    old: SelectAll<BoxStream<'static, async_nats::Message>>,
    /// Slots for which requests wait on the server.
    held: Vec<Slot>,
    requested_at: Instant,
    unanswered: u32,
    /// A message that was read from the subscriber and not handled yet.
    next_message: Option<async_nats::Message>,
}

impl Pull {
    pub(crate) fn new(queue: Queue, consumer: PullConsumer, slots: Slots, requests_last: Duration) -> Self {
        let connections = queue.connections.clone();
        Self {
            queue,
            context: None,
            consumer,
            slots,
            requests_last,
            connections,
            inbox: String::new(),
            subscriber: None,
            old: SelectAll::new(),
            held: Vec::new(),
            requested_at: Instant::now(),
            unanswered: 0,
            next_message: None,
        }
    }

    /// Requests as many messages as there are free slots, and returns the next ones, or what is broken.
    ///
    /// Cancel safe: requests stay, and the next call, or `stop`, reads their messages.
    pub(crate) async fn next(&mut self) -> Result<Pulled, async_nats::Error> {
        if self.subscriber.is_none() {
            self.reset().await?;
        }
        loop {
            let wanted = BATCH_MAX.saturating_sub(self.held.len());
            let slots = self.slots.clone();
            // Enabled before the look, or a change between the look and the wait would be missed.
            let mut changed = std::pin::pin!(slots.changed());
            changed.as_mut().enable();
            let free = slots.available(self.held.len()).min(wanted);
            if free > 0 && free >= self.held.len() {
                let before = self.held.len();
                self.held.extend(slots.take(free, before));
                self.request(self.held.len() - before).await?;
            }
            let idle = self.held.is_empty();
            let silent_at = self.requested_at + self.requests_last + LATE;
            let Some(subscriber) = self.subscriber.as_mut() else { continue };
            let next_message = self.next_message.take();
            tokio::select! { biased;
                message = async { if next_message.is_some() { next_message } else { subscriber.next().await } } => {
                    let Some(message) = message else {
                        self.subscriber = None;
                        return Ok(Pulled::Broken("the subscription was closed".into()));
                    };
                    if let Some(pulled) = self.on_message(message).await? {
                        return Ok(self.with_more(pulled));
                    }
                }
                Some(message) = self.old.next(), if !self.old.is_empty() => {
                    if is_job(&message) && let Some(pulled) = self.on_job(message).await? {
                        return Ok(pulled);
                    }
                }
                changed = self.connections.changed() => {
                    changed?;
                    self.reset().await?;
                }
                () = changed, if idle => {}
                () = sleep_until(silent_at), if !idle => {
                    self.reset().await?;
                    return Ok(Pulled::Broken("NATS does not answer".into()));
                }
            }
        }
    }

    /// Stops requesting, waits until every request has ended, and returns the messages that arrived, for the caller to
    /// return to NATS. Returned earlier, they would come right back here. If the consumer delivers nothing, leaves its
    /// requests at once.
    pub(crate) async fn stop(mut self) -> Vec<Delivery> {
        let mut left = Vec::new();
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
        while !self.held.is_empty() || !self.old.is_empty() {
            let Some(subscriber) = self.subscriber.as_mut() else { break };
            let next_message = self.next_message.take();
            let message = tokio::select! { biased;
                message = async { if next_message.is_some() { next_message } else { subscriber.next().await } },
                    if !self.held.is_empty() => message,
                message = self.old.next(), if !self.old.is_empty() => {
                    // The requests of an old inbox hold no slots any more.
                    left.extend(message.filter(is_job).and_then(|message| self.delivery(message).ok()));
                    continue;
                }
                () = sleep_until(ended_at) => break,
            };
            let Some(message) = message else { break };
            if is_job(&message) {
                self.held.pop();
                left.extend(self.delivery(message).ok());
            } else if message.status == Some(StatusCode::NO_RESPONDERS) {
                break;
            } else {
                match unused(&message) {
                    Some(unused) => self.held.truncate(self.held.len().saturating_sub(unused)),
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
        if !self.old.is_empty() || self.next_message.is_some() || self.held.is_empty() {
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
        match message.status {
            None | Some(StatusCode::OK) => {
                self.unanswered = 0;
                return self.on_job(message).await;
            }
            Some(StatusCode::IDLE_HEARTBEAT) => {}
            Some(StatusCode::NO_RESPONDERS) => {
                self.held.clear();
                self.unanswered += 1;
                if self.unanswered.is_multiple_of(4) {
                    return Ok(Some(Pulled::Broken(
                        "no responders: the stream or its consumer is gone".into(),
                    )));
                }
                sleep(Duration::from_millis(250)).await;
            }
            Some(_) => {
                // The end of one request, with the number of its messages that never came.
                self.unanswered = 0;
                if let Some(unused) = unused(&message) {
                    self.held.truncate(self.held.len().saturating_sub(unused));
                    if unused > 0 {
                        self.slots.has_more(false);
                    }
                } else {
                    let why = message.description.unwrap_or_default();
                    self.reset().await?;
                    if why == "Consumer Deleted" || why.starts_with("Exceeded") {
                        return Ok(Some(Pulled::Broken(why)));
                    }
                }
            }
        }
        Ok(None)
    }

    async fn on_job(&mut self, message: async_nats::Message) -> Result<Option<Pulled>, async_nats::Error> {
        let delivery = self.delivery(message)?;
        self.slots.has_more(delivery.pending > 0);
        let Some(slot) = self.held.pop().or_else(|| self.slots.take_for_message()) else {
            // Requested before a reset; no slot is free any more.
            delivery.receipt.send(Ack::Later(Duration::ZERO)).await;
            return Ok(None);
        };
        Ok(Some(Pulled::Deliveries(vec![(delivery, slot)])))
    }

    /// Adds the messages that have arrived already and have a slot.
    fn with_more(&mut self, mut pulled: Pulled) -> Pulled {
        if let Pulled::Deliveries(deliveries) = &mut pulled {
            while deliveries.len() < TOGETHER_MAX && !self.held.is_empty() {
                let Some(subscriber) = self.subscriber.as_mut() else { break };
                let Some(Some(message)) = subscriber.next().now_or_never() else { break };
                if !is_job(&message) {
                    self.next_message = Some(message);
                    break;
                }
                let Some(slot) = self.held.pop() else { break };
                match self.delivery(message) {
                    Ok(delivery) => deliveries.push((delivery, slot)),
                    // JetStream did not send it: there is no job to run and no message to answer.
                    Err(error) => tracing::warn!(%error, "ignored a message that JetStream did not send"),
                }
            }
        }
        pulled
    }

    fn delivery(&mut self, message: async_nats::Message) -> Result<Delivery, async_nats::Error> {
        Delivery::new(&self.queue, &mut self.context, message)
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
        self.held.clear();
        self.connections.borrow_and_update();
        self.inbox = self.queue.client.new_inbox();
        let subscriber = self.queue.client.subscribe(self.inbox.clone()).await?;
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

fn is_job(message: &async_nats::Message) -> bool {
    matches!(message.status, None | Some(StatusCode::OK))
}
