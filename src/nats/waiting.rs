//! Waiting: asks the stream how many messages wait, and reads some of them.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::time::timeout;

use super::{Delivered, MessageSeen, Nats, StreamCounts, Unseen};
use crate::store::{Standing, Waiting};

/// A kind with at most this many messages is read whole.
const WHOLE_MAX: i64 = 16;
/// Reading a kind whole ends here, if more messages have arrived meanwhile.
const READ_MAX: usize = 32;
/// Of another kind, this many messages are read, spread over the stream.
const SPREAD: u64 = 16;
/// The most tickets to pass over in the search for the first undelivered submission.
const TICKETS_MAX: usize = 8;
/// The most bytes of payloads that one reader reads; NATS has no way to read the headers alone.
const BYTES_MAX: usize = 8 << 20;

/// How many bytes may still be read.
#[derive(Debug)]
pub(crate) struct Budget(AtomicUsize);

impl Default for Budget {
    fn default() -> Self {
        Self(AtomicUsize::new(BYTES_MAX))
    }
}

impl Budget {
    pub(crate) fn take(&self, bytes: usize) {
        // What exceeds the rest was read already, and ends it.
        let rest = |left: usize| Some(left.saturating_sub(bytes));
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, rest).ok();
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

/// Some messages of one kind.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    /// All of them, or some that are spread over the stream; each with its sequence.
    pub(crate) messages: BTreeMap<u64, MessageSeen>,
    pub(crate) is_whole: bool,
    /// The first that has not been delivered and is no ticket, if few tickets stand before it.
    pub(crate) first: Option<MessageSeen>,
}

/// Counts the messages by queue and kind. `None`: NATS gave no answer in time.
pub(crate) async fn counts(nats: &Nats, within: Duration) -> Option<StreamCounts> {
    if !nats.is_connected() {
        return None;
    }
    match timeout(within, nats.messages_by_kind()).await {
        Ok(Ok(counts)) => Some(counts),
        Ok(Err(why)) => {
            tracing::debug!(?why, "could not count the messages; the counts of the stream are absent");
            None
        }
        Err(_) => {
            tracing::debug!(
                ?within,
                "NATS did not count the messages in time; the counts of the stream are absent"
            );
            None
        }
    }
}

/// Reads some messages of a kind: all of a few, or a fixed number of many.
pub(crate) async fn sample(nats: &Nats, of: &Waiting, budget: &Budget) -> Result<Sample, Unseen> {
    let subject = nats.subject_of(&of.queue, Some(&of.kind));
    let mut sample = Sample::default();
    let next = async |from| {
        let read = nats.message_from(&subject, from).await?;
        budget.take(read.as_ref().map_or(0, |message| message.bytes));
        Ok::<_, Unseen>(read)
    };
    if of.messages <= WHOLE_MAX {
        let mut from = 1;
        // Messages may arrive meanwhile.
        while sample.messages.len() < READ_MAX && !budget.is_spent() {
            let Some(read) = next(from).await? else {
                sample.is_whole = true;
                return Ok(sample);
            };
            from = read.sequence + 1;
            sample.messages.insert(read.sequence, read);
        }
        return Ok(sample);
    }
    let mut from = nats.delivered(&of.queue).await?.sequence + 1;
    for _ in 0..TICKETS_MAX {
        let Some(read) = next(from).await? else { break };
        from = read.sequence + 1;
        if !read.is_ticket {
            sample.first = Some(read);
            break;
        }
    }
    let Some(first) = next(1).await? else { return Ok(sample) };
    let last = nats.last_message(&subject).await?.map_or(first.sequence, |last| last.sequence);
    let step = (last - first.sequence.min(last)) / SPREAD;
    for nth in 1..SPREAD {
        if budget.is_spent() {
            break;
        }
        if let Some(read) = next(first.sequence + nth * step).await? {
            sample.messages.insert(read.sequence, read);
        }
    }
    sample.messages.insert(first.sequence, first);
    Ok(sample)
}

/// Returns how many of the submissions still stand in the stream, at least.
pub(crate) fn left(of: &Standing, now: &Delivered) -> u64 {
    // The first consumer of a queue begins with its first message.
    if of.of != now.created && !of.of.is_empty() {
        return 0;
    }
    let left = of.messages - (now.deliveries - of.deliveries).max(0);
    left.min(now.pending.unwrap_or(left)).try_into().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(deliveries: i64, pending: i64, created: &str) -> Delivered {
        Delivered { sequence: 0, deliveries, pending: Some(pending), created: created.into() }
    }

    #[test]
    fn each_delivery_since_the_count_may_have_taken_a_submission() {
        let standing = |of: &str| Standing { messages: 10, deliveries: 7, of: of.into() };
        let left = |of: &str, now: &Delivered| left(&standing(of), now);
        assert_eq!(left("a", &delivered(7, 99, "a")), 10);
        assert_eq!(left("a", &delivered(11, 99, "a")), 6);
        assert_eq!(left("a", &delivered(99, 99, "a")), 0);
        assert_eq!(left("a", &delivered(7, 3, "a")), 3, "the queue was purged");
        assert_eq!(left("a", &delivered(7, 99, "b")), 0, "another consumer counts from its own start");
        let first = Standing { deliveries: 0, ..standing("") };
        assert_eq!(super::left(&first, &delivered(4, 99, "b")), 6);
        let none = Delivered { pending: None, ..delivered(0, 0, "") };
        assert_eq!(super::left(&first, &none), 10);
    }
}
