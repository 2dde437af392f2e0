//! Gateway: the requests of workers and producers that speak the worker protocol, and messages pulled for one of them.
//!
//! ```text
//! tenure.<prefix>.w.<queue>.<request>            workers ask; of all gateways, one answers
//! tenure.<prefix>.w.<queue>.<request>@<gateway>  workers ask one gateway
//! tenure.<prefix>.w.<queue>.to.<worker>          probes and events to one worker
//! tenure.<prefix>.p.<queue>.<request>            producers ask, with and without `@<gateway>`
//! ```

use std::{pin::pin, time::Duration};

use async_nats::{
    Request, StatusCode, Subject, Subscriber,
    jetstream::consumer::{PullConsumer, pull::BatchConfig},
};
use bytes::Bytes;
use futures::{StreamExt, stream::SelectAll};
use tokio::time::{Instant, timeout_at};

use crate::{
    config::OWN_SUBJECTS,
    nats::{Delivery, LATE, Nats, NatsError, Receipt, is_job},
    observe::repeats,
};

/// The subscribers of this name share the requests: each goes to one of them.
const GROUP: &str = "tenure-gateway";
/// The most bytes of a request that carries no value of a user, nor a list: many of them may wait at once.
const SMALL_BODY_MAX: usize = 16 * 1_024;
/// How long a worker has to confirm that it got its jobs.
pub(crate) const CONFIRMED_WITHIN: Duration = Duration::from_secs(3);
/// A timer that fires later than this was kept from it: the process was frozen.
const FROZEN_FOR: Duration = Duration::from_millis(500);
/// How long it takes to read what has arrived meanwhile.
const READ_WITHIN: Duration = Duration::from_secs(1);
/// What the subjects for answers begin with, be it with a prefix of a user's own: `_INBOX_embed.`.
const INBOX: &str = "_INBOX";

/// The most bytes of a request; of one with a value or a list, as many as NATS carries.
pub(crate) fn body_max(name: &str) -> usize {
    match name {
        "wait" | "ping" | "goodbye" | "payload" | "recorded" | "sleep" | "event" | "outputs" | "job"
        | "cancel" => SMALL_BODY_MAX,
        _ => usize::MAX - 1,
    }
}

/// A request to the gateways.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) queue: String,
    pub(crate) request: &'static str,
    pub(crate) body: Bytes,
    pub(crate) reply: Subject,
}

/// The names of the requests of workers, and of producers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requests {
    pub(crate) of_workers: &'static [&'static str],
    pub(crate) of_producers: &'static [&'static str],
}

/// The requests to this gateway, and the announcements of cancellations.
pub(crate) struct AskedStream {
    prefix: String,
    known: Requests,
    requests: SelectAll<Subscriber>,
    cancelled: Subscriber,
}

/// What comes next.
#[derive(Debug)]
pub(crate) enum ToGateway {
    Asked(Asked),
    /// The body of an announcement.
    Announced(Bytes),
}

impl AskedStream {
    /// Returns the next one. `None`: the client is closed.
    ///
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<ToGateway> {
        loop {
            let message = tokio::select! {
                message = self.requests.next() => message?,
                announced = self.cancelled.next() => return Some(ToGateway::Announced(announced?.payload)),
            };
            // Without a reply subject, it is no request: there is no one to answer.
            let Some(reply) = message.reply else { continue };
            // The gateway has rights that the sender lacks: it must not publish to the stream, or ask its API, for it.
            if !reply.starts_with(INBOX) {
                if let Some(left_out) = repeats::tell("gateway reply", &INBOX) {
                    tracing::warn!(subject = %message.subject, %reply, left_out,
                        "the gateway ignored a request: its reply subject does not begin with {INBOX}");
                }
                continue;
            }
            let mut parts = message.subject.strip_prefix(self.prefix.as_str()).unwrap_or_default().split('.');
            let (side, queue, request) = (parts.next(), parts.next(), parts.next());
            let (Some(side), Some(queue), Some(request)) = (side, queue, request) else { continue };
            let known = if side == "w" { self.known.of_workers } else { self.known.of_producers };
            let name = request.split('@').next().unwrap_or_default();
            let Some(request) = known.iter().find(|known| **known == name) else { continue };
            // One byte more shows that it is too long.
            let kept = message.payload.len().min(body_max(request) + 1);
            return Some(ToGateway::Asked(Asked {
                queue: queue.into(),
                request,
                // The payload is a part of the connection's read buffer, all of which a `take` that waits would hold.
                body: Bytes::copy_from_slice(&message.payload[..kept]),
                reply,
            }));
        }
    }

    /// Takes no more requests: the other gateways get them. Those that have arrived stay.
    pub(crate) async fn stop(&mut self) {
        for requests in &mut self.requests {
            drop(requests.drain().await);
        }
    }
}

impl Nats {
    fn asked_prefix(&self) -> String {
        format!("{OWN_SUBJECTS}.{}.", self.prefix)
    }

    /// Subscribes to the requests to gateways, and to those to the gateway of this address.
    ///
    /// Each by its name: then a request to a gateway that has gone has no subscriber, and NATS tells its sender.
    pub(crate) async fn asked(&self, known: Requests, address: &str) -> Result<AskedStream, NatsError> {
        let unavailable = |error: async_nats::SubscribeError| NatsError::Unavailable(error.to_string());
        let prefix = self.asked_prefix();
        let subscribe = |subject: String| self.client.queue_subscribe(subject, GROUP.into());
        let mut requests = SelectAll::new();
        for (side, names) in [("w", known.of_workers), ("p", known.of_producers)] {
            for name in names {
                let subject = format!("{prefix}{side}.*.{name}");
                let own = self.client.subscribe(format!("{subject}@{address}"));
                requests.push(own.await.map_err(unavailable)?);
                requests.push(subscribe(subject).await.map_err(unavailable)?);
            }
        }
        let cancelled = subscribe(self.cancel_subject()).await.map_err(unavailable)?;
        Ok(AskedStream { prefix, known, requests, cancelled })
    }

    /// The subject of one worker of a queue.
    pub(crate) fn subject_of_worker(&self, queue: &str, worker: &str) -> String {
        format!("{}w.{queue}.to.{worker}", self.asked_prefix())
    }

    /// Sends an answer, or an event.
    pub(crate) async fn send_plain(&self, to: impl Into<Subject>, body: Bytes) {
        self.tell(to.into(), body).await;
    }

    /// Sends an answer that hands something over, and waits until its receiver confirms it. `false`: the receiver did
    /// not in time, or has gone.
    pub(crate) async fn hand_over(&self, to: Subject, body: Bytes) -> bool {
        let began_at = Instant::now();
        let mut sent = pin!(self.client.send_request(to, Request::new().payload(body).timeout(None)));
        if let Ok(confirmed) = timeout_at(began_at + CONFIRMED_WITHIN, sent.as_mut()).await {
            return confirmed.is_ok();
        }
        // This process was frozen: the confirmation may have arrived meanwhile, and is read now.
        let was_frozen = began_at.elapsed() > CONFIRMED_WITHIN + FROZEN_FOR;
        was_frozen && matches!(timeout_at(Instant::now() + READ_WITHIN, sent).await, Ok(Ok(_)))
    }

    /// The most bytes of one message.
    pub(crate) fn message_bytes_max(&self) -> usize {
        self.client.server_info().max_payload
    }

    /// Restores the receipt of a message that this or another process has pulled.
    pub(crate) fn receipt_of(&self, reply: &str, mark: &str) -> Receipt {
        Receipt::restored(self, reply, mark)
    }

    /// Pulls at most `batch` messages: those that wait, or, with `expires`, the next ones within that time.
    pub(crate) async fn pull_once(
        &self,
        consumer: &PullConsumer,
        batch: usize,
        expires: Option<Duration>,
    ) -> Result<Vec<Delivery>, NatsError> {
        let unavailable = |error: &dyn std::fmt::Display| NatsError::Unavailable(error.to_string());
        let line = self.answers.line().borrow().clone();
        let inbox = self.client.new_inbox();
        let mut answers = self.client.subscribe(inbox.clone()).await.map_err(|error| unavailable(&error))?;
        let request = BatchConfig { batch, expires, no_wait: expires.is_none(), ..Default::default() };
        let requested = consumer.request_batch(request, inbox.into()).await;
        requested.map_err(|error| unavailable(&error))?;
        let over = Instant::now() + expires.unwrap_or_default() + LATE;
        let (mut deliveries, mut context) = (Vec::new(), None);
        let mut next = pin!(async {
            while deliveries.len() < batch {
                let Some(message) = answers.next().await else { break };
                if is_job(&message) {
                    deliveries.push(
                        Delivery::new(self, line.clone(), &mut context, message)
                            .map_err(|error| unavailable(&error))?,
                    );
                    continue;
                }
                let why = message.description.unwrap_or_default();
                match message.status {
                    Some(StatusCode::IDLE_HEARTBEAT) => {}
                    // The request has ended, with fewer messages than it asked for.
                    Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => break,
                    Some(StatusCode::NO_RESPONDERS) => {
                        return Err(unavailable(&"the stream or the queue's consumer is gone"));
                    }
                    _ if why == "Consumer Deleted" || why.starts_with("Exceeded") => {
                        if why == "Consumer Deleted" {
                            self.answers.renew();
                        }
                        return Err(unavailable(&why));
                    }
                    _ => break,
                }
            }
            Ok(())
        });
        let ended = timeout_at(over, next.as_mut()).await;
        match ended {
            // What has arrived is worth more than the error: each message goes to its claim.
            Ok(Err(error)) if deliveries.is_empty() => Err(error),
            Err(_) if deliveries.is_empty() => {
                Err(unavailable(&"NATS does not answer a request for messages"))
            }
            _ => Ok(deliveries),
        }
    }
}
