//! Pull: exactly as many messages as there are free slots.
//!
//! A loop of our own: async-nats 0.51's `batch()` with a heartbeat loses a wake-up, and its `stream()`
//! fetches beyond the free slots; a dead worker would keep those messages for a whole `ack_wait`.
//!
//! The rules: permits first, then a request for just that many; each message takes one permit of `held`;
//! a request that ended early gives its own back. A new request only when as many slots are free as are
//! asked for, so that at most log2(slots) + 1 wait. Silence for two heartbeats, or a new connection:
//! a new inbox (the server drops the requests of the old one), while the old is drained, not dropped,
//! because messages may be on their way to it.

use std::{sync::Arc, time::Duration};

use async_nats::{
    StatusCode, Subscriber,
    jetstream::{self, consumer::PullConsumer, consumer::pull::BatchConfig},
};
use futures::{StreamExt, stream::SelectAll};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, sleep, sleep_until},
};

use super::{connect::Queue, message::Delivery};

/// How long a request may wait on the server. A dead worker's request takes messages for this long.
const EXPIRES: Duration = Duration::from_secs(30);
/// How often the server says that the request still waits.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// The most messages of one request.
const BATCH_MAX: usize = 256;

/// What a pull brought.
pub(crate) enum Pulled {
    /// A message, and the slot it may run in.
    Delivery(Box<Delivery>, OwnedSemaphorePermit),
    /// Nobody answers, or the consumer is gone: look after the topology.
    Broken(String),
}

/// One queue's pull loop.
pub(crate) struct Pull {
    queue: Queue,
    consumer: PullConsumer,
    slots: Arc<Semaphore>,
    connections: watch::Receiver<u64>,
    inbox: String,
    subscriber: Option<Subscriber>,
    /// Inboxes that are being drained.
    old: SelectAll<Subscriber>,
    /// Permits that were asked for on the server's side.
    held: Vec<OwnedSemaphorePermit>,
    heard_at: Instant,
    unanswered: u32,
}

impl Pull {
    pub(crate) fn new(queue: Queue, consumer: PullConsumer, slots: Arc<Semaphore>) -> Self {
        let connections = queue.connections.clone();
        Self {
            queue,
            consumer,
            slots,
            connections,
            inbox: String::new(),
            subscriber: None,
            old: SelectAll::new(),
            held: Vec::new(),
            heard_at: Instant::now(),
            unanswered: 0,
        }
    }

    /// The next message, or that something is wrong. Asks for as many as there are free slots.
    ///
    /// Cancel safe: what was asked for stays asked for, and is read by the next call.
    pub(crate) async fn next(&mut self) -> Result<Pulled, async_nats::Error> {
        if self.subscriber.is_none() {
            self.reset().await?;
        }
        loop {
            let wanted = BATCH_MAX.saturating_sub(self.held.len());
            let free = self.slots.available_permits().min(wanted);
            if free > 0 && free >= self.held.len() {
                let before = self.held.len();
                self.take_permits(free);
                self.request(self.held.len() - before).await?;
            }
            let idle = self.held.is_empty();
            let silent_at = self.heard_at + HEARTBEAT * 2 + Duration::from_millis(500);
            let Some(subscriber) = self.subscriber.as_mut() else { continue };
            tokio::select! { biased;
                message = subscriber.next() => {
                    let Some(message) = message else {
                        self.subscriber = None;
                        return Ok(Pulled::Broken("the subscription was closed".into()));
                    };
                    self.heard_at = Instant::now();
                    if let Some(pulled) = self.on_message(message).await? {
                        return Ok(pulled);
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
                permit = self.slots.clone().acquire_owned(), if idle => {
                    self.held.push(permit?);
                    self.take_permits(BATCH_MAX - 1);
                    self.request(self.held.len()).await?;
                }
                () = sleep_until(silent_at), if !idle => {
                    self.reset().await?;
                    return Ok(Pulled::Broken("no heartbeat from the server".into()));
                }
            }
        }
    }

    /// Stops asking, and returns every message that was on its way, so that they can be given back.
    pub(crate) async fn stop(mut self) -> Vec<Delivery> {
        let mut left = Vec::new();
        if let Some(mut subscriber) = self.subscriber.take() {
            subscriber.drain().await.ok();
            self.old.push(subscriber);
        }
        let rest = async {
            while let Some(message) = self.old.next().await {
                if is_job(&message)
                    && let Ok(delivery) = self.delivery(message)
                {
                    left.push(delivery);
                }
            }
        };
        drop(tokio::time::timeout(Duration::from_secs(2), rest).await);
        left
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
            Some(StatusCode::IDLE_HEARTBEAT) => self.unanswered = 0,
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
                // The end of one request: it tells how many of its messages never came.
                let unused = message
                    .headers
                    .as_ref()
                    .and_then(|headers| headers.get("Nats-Pending-Messages"))
                    .and_then(|value| value.as_str().parse::<usize>().ok());
                if let Some(unused) = unused {
                    self.held.truncate(self.held.len().saturating_sub(unused));
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
        let permit = self.held.pop().or_else(|| self.slots.clone().try_acquire_owned().ok());
        let Some(permit) = permit else {
            // Asked for before a reset, and no slot is free any more.
            delivery.receipt.give_back().await;
            return Ok(None);
        };
        Ok(Some(Pulled::Delivery(Box::new(delivery), permit)))
    }

    fn delivery(&self, message: async_nats::Message) -> Result<Delivery, async_nats::Error> {
        Delivery::new(&self.queue, jetstream::Message { message, context: self.queue.context.clone() })
    }

    fn take_permits(&mut self, n: usize) {
        self.held.extend((0..n).map_while(|_| self.slots.clone().try_acquire_owned().ok()));
    }

    async fn request(&mut self, batch: usize) -> Result<(), async_nats::Error> {
        if batch == 0 {
            return Ok(());
        }
        let request =
            BatchConfig { batch, expires: Some(EXPIRES), idle_heartbeat: HEARTBEAT, ..Default::default() };
        self.consumer.request_batch(request, self.inbox.clone().into()).await?;
        self.heard_at = Instant::now();
        Ok(())
    }

    async fn reset(&mut self) -> Result<(), async_nats::Error> {
        self.held.clear();
        self.connections.borrow_and_update();
        self.inbox = self.queue.client.new_inbox();
        let subscriber = self.queue.client.subscribe(self.inbox.clone()).await?;
        if let Some(mut old) = self.subscriber.replace(subscriber) {
            old.drain().await?;
            self.old.push(old);
        }
        Ok(())
    }
}

fn is_job(message: &async_nats::Message) -> bool {
    matches!(message.status, None | Some(StatusCode::OK))
}
