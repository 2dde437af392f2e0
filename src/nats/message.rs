//! Message: a delivered message, and the receipt that answers it.

use std::time::Duration;

use async_nats::{
    HeaderMap,
    jetstream::{self, AckKind},
};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};

use super::connect::Queue;
use crate::job::{JobId, claim::Ack};

/// One delivery of a message.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) subject: String,
    pub(crate) body: Bytes,
    headers: HeaderMap,
    pub(crate) sequence: u64,
    published_ns: i128,
    /// The number of deliveries of the message, this one included. A hint: the server may lose count.
    pub(crate) deliveries: i64,
    /// The number of undelivered messages of its queue at this delivery.
    pub(crate) pending: u64,
    pub(crate) receipt: Receipt,
}

impl Delivery {
    /// Borrows `context` from the caller: a clone for each message would cost more than the rest.
    pub(super) fn new(
        queue: &Queue,
        context: &mut Option<jetstream::Context>,
        message: async_nats::Message,
    ) -> Result<Self, async_nats::Error> {
        let lent = context.take().unwrap_or_else(|| queue.context.clone());
        let message = jetstream::Message { message, context: lent };
        let numbers = message.info().map(|info| {
            (info.stream_sequence, info.published.unix_timestamp_nanos(), info.delivered, info.pending)
        });
        let jetstream::Message { message, context: lent } = message;
        *context = Some(lent);
        let (sequence, published_ns, deliveries, pending) = numbers?;
        Ok(Self {
            subject: message.subject.into_string(),
            body: message.payload,
            headers: message.headers.unwrap_or_default(),
            sequence,
            published_ns,
            deliveries,
            pending,
            receipt: Receipt {
                reply: message.reply,
                sequence,
                epoch: queue.epoch_now(),
                queue: queue.clone(),
            },
        })
    }

    /// A header's value. The case of its name does not matter.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| AsRef::<str>::as_ref(*key).eq_ignore_ascii_case(name))
            .and_then(|(_, values)| values.first())
            .map(async_nats::HeaderValue::as_str)
    }

    /// When the stream stored the message.
    pub(crate) fn published(&self) -> DateTime<Utc> {
        let micros = i64::try_from(self.published_ns / 1_000).unwrap_or_default();
        DateTime::from_timestamp_micros(micros).unwrap_or_default()
    }

    /// Returns the identity of this message, which is the same for all its deliveries on all workers.
    ///
    /// It consists of the time of storage and the sequence, both from the delivery itself. The stream's creation time
    /// would need a request, and two workers could get different answers: two ids, two runs. A recreated stream
    /// repeats neither.
    pub(crate) fn identity(&self) -> String {
        format!("{}:{}", self.published_ns, self.sequence)
    }

    /// Returns the id of this submission's job: a UUID v7 with the time of the message.
    pub(crate) fn derived_id(&self) -> JobId {
        derive_id(self.published_ns, &self.identity())
    }
}

fn derive_id(published_ns: i128, identity: &str) -> JobId {
    let millis = u64::try_from(published_ns / 1_000_000).unwrap_or_default();
    let hash = Sha256::digest(identity.as_bytes());
    let mut random = [0; 10];
    random.copy_from_slice(&hash[..10]);
    JobId(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
}

/// The right to answer one message. Answers are sent without a confirmation: a lost answer is harmless.
#[derive(Clone)]
pub(crate) struct Receipt {
    reply: Option<async_nats::Subject>,
    pub(crate) sequence: u64,
    epoch: u64,
    queue: Queue,
}

impl std::fmt::Debug for Receipt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receipt").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Receipt {
    /// Answers the message.
    pub(crate) async fn send(&self, ack: Ack) {
        let kind = match ack {
            Ack::Done => AckKind::Ack,
            // Without a delay, NATS would redeliver it within 100 µs, before every new message.
            Ack::Later(wait) => AckKind::Nak(Some(wait.max(Duration::from_millis(50)))),
            Ack::Never => AckKind::Term,
        };
        self.send_kind(kind).await;
    }

    /// Extends the message's `ack_wait`.
    pub(crate) async fn in_progress(&self) {
        self.send_kind(AckKind::Progress).await;
    }

    /// Returns the message at once, for another worker.
    pub(crate) async fn nak(&self) {
        self.send_kind(AckKind::Nak(None)).await;
    }

    async fn send_kind(&self, kind: AckKind) {
        let Some(reply) = self.reply.clone().filter(|_| self.epoch == self.queue.epoch_now()) else { return };
        // An answer that is not sent is harmless: NATS redelivers the message.
        self.queue.tell(reply, kind.into()).await;
    }
}

#[cfg(test)]
impl Delivery {
    /// Makes up a delivery, of a ticket or a submission. Its answers reach no stream.
    pub(crate) fn made_up(
        queue: &Queue,
        (subject, body): (String, String),
        ticket: Option<JobId>,
        sequence: i32,
        deliveries: i64,
    ) -> Self {
        let mut headers = HeaderMap::new();
        if let Some(job) = ticket {
            headers.insert(super::JOB_ID, job.to_string());
        }
        let message = async_nats::Message {
            length: body.len(),
            subject: subject.into(),
            reply: Some(format!("$JS.ACK.S.c.{deliveries}.{sequence}.1.1795000000123456789.0").into()),
            payload: body.into(),
            headers: Some(headers),
            status: None,
            description: None,
        };
        Self::new(queue, &mut None, message).unwrap_or_else(|error| panic!("{error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_id_is_a_v7_of_the_messages_time_and_the_same_for_every_delivery() {
        let at_ns = 1_795_000_000_123_456_789_i128;
        let id = derive_id(at_ns, "1795000000123456789:42");
        assert_eq!(id, derive_id(at_ns, "1795000000123456789:42"));
        assert_ne!(id, derive_id(at_ns, "1795000000123456789:43"));
        assert_eq!(id.0.get_version_num(), 7);
        assert_eq!(id.0.get_timestamp().map(|t| t.to_unix()), Some((1_795_000_000, 123_000_000)));
    }
}
