//! Standing: proves that submissions stand in the stream, so that a full queue may refuse an enqueue because of them.
//!
//! A difference of two counts proves nothing: it also holds tickets. So a scan reads the messages of a queue one by
//! one, where the queue has a `max_queued` and may be full, and remembers those that are submissions and that no worker
//! has received. The next scan reads on from there. What a scan stores is right for the number of deliveries that NATS
//! had made before it read; a producer takes off the deliveries since then (`nats/waiting.rs`), and never counts too
//! many.
//!
//! Invariants, each held by the test of that name:
//!
//! - `what_was_delivered_and_what_another_consumer_delivers_is_forgotten`
//! - `a_limit_counts_the_submissions_that_stand_in_the_stream_and_no_ticket_of_a_cancelled_job`

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use crate::{
    job::JobId,
    nats::{Delivered, MessageSeen, Nats, Unseen, waiting::Budget},
    store::{QueueSubmitted, Standing, Store},
};

/// The most messages that one scan reads.
const READS_MAX: usize = 2_000;
/// The most sequences that are remembered of one queue; 800 KB.
const REMEMBERED_MAX: usize = 100_000;

/// The submissions that have been read, by queue.
#[derive(Debug, Default)]
pub(crate) struct Proofs(HashMap<String, Proof>);

#[derive(Debug, Default)]
struct Proof {
    of: String,
    /// Undelivered submissions, in order.
    sequences: VecDeque<u64>,
    read_to: u64,
}

impl Proofs {
    /// Reads the messages of those queues that may be full. Returns what stands in each.
    pub(crate) async fn of(
        &mut self,
        store: &Store,
        nats: &Nats,
        queues: &[QueueSubmitted],
        within: Duration,
    ) -> HashMap<String, Standing> {
        let may_be_full =
            |of: &&QueueSubmitted| of.max_queued.is_some_and(|most| of.queued + of.submitted >= most);
        let (until, budget) = (Instant::now() + within, Budget::default());
        let (mut standing, mut kept, mut reads) = (HashMap::new(), HashMap::new(), 0);
        for of in queues.iter().filter(may_be_full) {
            let mut proof = self.0.remove(&of.queue).unwrap_or_default();
            let needed = usize::try_from(of.max_queued.unwrap_or_default() - of.queued).unwrap_or(0);
            let read =
                proof.read(store, nats, &of.queue, needed.min(REMEMBERED_MAX), (until, &budget, &mut reads));
            match tokio::time::timeout_at(until.into(), read).await {
                Ok(Some(found)) => {
                    if found.messages > 0 {
                        standing.insert(of.queue.clone(), found);
                    }
                    // Also where all were tickets: they need not be read again.
                    kept.insert(of.queue.clone(), proof);
                }
                Ok(None) => {}
                Err(_) => break,
            }
        }
        self.0 = kept;
        standing
    }
}

impl Proof {
    async fn read(
        &mut self,
        store: &Store,
        nats: &Nats,
        queue: &str,
        needed: usize,
        (until, budget, reads): (Instant, &Budget, &mut usize),
    ) -> Option<Standing> {
        // Before the messages: those that are delivered meanwhile are taken off later.
        let delivered = nats.delivered(queue).await.ok()?;
        let subject = nats.subject_of(queue, None);
        self.forget(&delivered);
        if !self.still_stands(nats, &subject).await.ok()? {
            *self = Self { of: self.of.clone(), ..Self::default() };
        }
        let mut read = Vec::new();
        let mut from = self.read_to.max(delivered.sequence) + 1;
        let mut left = needed.saturating_sub(self.sequences.len());
        // Half of the time at most: the database must answer, too.
        let until = Instant::now() + until.saturating_duration_since(Instant::now()) / 2;
        while left > 0 && *reads < READS_MAX && !budget.is_spent() && Instant::now() < until {
            *reads += 1;
            let Some(message) = nats.message_from(&subject, from).await.ok()? else { break };
            budget.take(message.bytes);
            from = message.sequence + 1;
            left -= usize::from(!message.is_ticket);
            read.push(message);
        }
        let submissions = |message: &&MessageSeen| !message.is_ticket;
        let jobs: Vec<JobId> = read.iter().filter(submissions).filter_map(|message| message.job).collect();
        // A consumer that was created again delivers messages whose jobs exist.
        let known = store.known_jobs(&jobs).await.ok()?;
        let is_new = |message: &&MessageSeen| message.job.is_some_and(|job| !known.contains_key(&job));
        self.sequences.extend(read.iter().filter(submissions).filter(is_new).map(|message| message.sequence));
        self.read_to = from - 1;
        Some(Standing {
            messages: i64::try_from(self.sequences.len()).unwrap_or(i64::MAX),
            deliveries: delivered.deliveries,
            of: delivered.created,
        })
    }

    /// Forgets what has been delivered, or all of it if another consumer delivers.
    fn forget(&mut self, delivered: &Delivered) {
        if self.of != delivered.created && !self.of.is_empty() {
            *self = Self::default();
        }
        self.of.clone_from(&delivered.created);
        while self.sequences.front().is_some_and(|first| *first <= delivered.sequence) {
            self.sequences.pop_front();
        }
    }

    /// Whether the stream still holds the first and the last submission. A purge removes them, and so does a new
    /// stream.
    async fn still_stands(&self, nats: &Nats, subject: &str) -> Result<bool, Unseen> {
        for sequence in self.sequences.front().into_iter().chain(self.sequences.back()) {
            let found = nats.message_from(subject, *sequence).await?;
            if found.is_none_or(|found| found.sequence != *sequence || found.is_ticket) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(sequence: u64, deliveries: i64, pending: i64, created: &str) -> Delivered {
        Delivered { sequence, deliveries, pending: Some(pending), created: created.into() }
    }

    #[test]
    fn what_was_delivered_and_what_another_consumer_delivers_is_forgotten() {
        let proof = |of: &str| Proof { of: of.into(), sequences: [2, 5, 9].into(), read_to: 9 };
        let after = |of: &str, now: &Delivered| {
            let mut proof = proof(of);
            proof.forget(now);
            (proof.sequences.len(), proof.read_to)
        };
        assert_eq!(after("a", &delivered(1, 0, 0, "a")), (3, 9));
        assert_eq!(after("a", &delivered(5, 0, 0, "a")), (1, 9));
        assert_eq!(after("a", &delivered(0, 0, 0, "b")), (0, 0));
        assert_eq!(after("", &delivered(2, 0, 0, "b")), (2, 9));
    }
}
