//! Claim: the gate between a delivery and a handler.
//!
//! JetStream may deliver one job twice, late, or to two workers at once. None of that matters here: a
//! delivery is a hint that a job may be runnable. One conditional UPDATE (`store/job/claim.sql`) decides which
//! worker runs it, and the row it touches is the proof.
//!
//! ```text
//! deliver ──► claim ──► run ──► settle
//!               └─────► Missed ──► ack, put off or drop the delivery; never run it
//! ```
//!
//! Invariants, each held by the test of that name:
//!
//! - `of_a_hundred_claimants_on_one_job_one_wins`
//! - `a_woken_worker_whose_job_was_taken_can_write_nothing`
//! - `completing_again_under_the_same_claim_is_the_same_completion`
//!
//! Not here: what happens after a failure (`settle`), or to a silent owner (`recover`).

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::job::JobId;

/// The number of a claim. Every claim of a job gets a greater one; it is never reset.
///
/// Pass it along with every write outside Postgres, and let that side refuse lower ones
/// (Kleppmann, *How to do distributed locking*, 2016). In JSON it is a number.
///
/// ```
/// use tenure::FencingToken;
///
/// assert!(FencingToken(2) > 1);
/// assert_eq!(serde_json::to_string(&FencingToken(2)).unwrap(), "2");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(pub i64);

impl PartialEq<i64> for FencingToken {
    fn eq(&self, number: &i64) -> bool {
        self.0 == *number
    }
}

impl PartialOrd<i64> for FencingToken {
    fn partial_cmp(&self, number: &i64) -> Option<std::cmp::Ordering> {
        self.0.partial_cmp(number)
    }
}

impl std::fmt::Display for FencingToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one claim in every later write: the job, the token and the claimer's nonce.
///
/// The nonce is there because a token alone can be issued twice, by an old and a new primary after an
/// asynchronous failover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimKey {
    pub(crate) job: JobId,
    pub(crate) token: FencingToken,
    pub(crate) claim: Uuid,
}

/// Ownership of one job: the only ticket to its writes.
#[derive(Debug, Clone)]
pub struct Claim {
    pub key: ClaimKey,
    pub(crate) queue: String,
    pub(crate) kind: String,
    pub(crate) payload: String,
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    /// The queue latency: how long the job was due before it was claimed, by the database's clock.
    pub(crate) waited: Duration,
    /// Whether its last attempt was reset, taken over or released.
    pub(crate) after_reset: bool,
    pub(crate) checkpoint: Option<String>,
    pub(crate) trace_context: Option<String>,
    /// Its lane; `None` in a queue without lanes, if its producer said none.
    pub(crate) lane: Option<Box<str>>,
    /// The group of jobs that wait for each other of which it is one.
    pub(crate) group: Option<Uuid>,
    /// How often its worker was lost.
    pub(crate) losses: u32,
    /// How often the job had been published when it was claimed.
    pub(crate) dispatch: i32,
    /// When the claim was sent: its answer may take long to arrive, and staleness counts from before.
    pub(crate) sent_at: Instant,
}

/// Why a delivery did not become a [`Claim`]. An everyday outcome, not an error.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Missed {
    /// Completed, cancelled or dead: a redelivery of a job that has ended.
    Finished,
    /// A message of a later dispatch is known to be in the stream: this one has nothing to add.
    Superseded,
    /// Owned by a worker. The job becomes stale after `stale_in`, unless the worker writes.
    Owned {
        /// The worker that runs it.
        owner: String,
        /// Its claim.
        claim: Uuid,
        /// Its token.
        token: FencingToken,
        /// The time until its silence makes the job stale.
        stale_in: Duration,
    },
    /// Owned by a worker that was silent for longer than its job allows.
    Stale,
    /// Queued for later.
    NotDue {
        /// The time until it is due.
        due_in: Duration,
        /// Whether the relay knows, and will publish it then.
        relayed: bool,
    },
    /// Runnable again: another worker claimed it and released it in between. Ask again.
    Free,
    /// Queued, but it must not start any more.
    Expired,
    /// Runnable, but its queue is paused.
    Paused,
    /// Runnable, but its queue runs as many jobs as its limit allows.
    Full,
    /// The row is of another queue or kind than the message's subject: not published by tenure.
    Foreign,
    /// No such row: purged, or published without a row, or not committed yet.
    NoSuchRow,
    /// Another delivery of the job is being claimed in this process.
    Claiming,
    /// An attempt that is over, or no longer this process's, still has its handler or its slot here.
    Ending,
    /// No handler here knows its kind.
    UnknownKind {
        /// When another worker may try.
        again_in: Duration,
    },
    /// A submission whose unique key another job holds.
    Duplicate,
    /// The job became a dead letter just now.
    Died,
    /// The submission is malformed; a dead letter has its text.
    Refused,
    /// Postgres did not answer.
    Unanswered,
    /// The part of a message that names several jobs: the relay publishes this one in a message of its own.
    HandedOver,
}

impl Missed {
    /// Whether the job may be queued: then the relay can publish it again.
    pub(crate) const fn may_be_queued(&self) -> bool {
        matches!(
            self,
            Self::Free
                | Self::Expired
                | Self::Paused
                | Self::Full
                | Self::NotDue { .. }
                | Self::UnknownKind { .. }
                | Self::Unanswered
                | Self::Ending
        )
    }
}

/// The answer to NATS about a delivery that was not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ack {
    /// The message has done its work.
    Done,
    /// Deliver it again after this time: it stays as the backstop.
    Later(Duration),
    /// No worker can ever run it.
    Never,
}

/// After this many deliveries a message that names no row is terminated.
const NO_SUCH_ROW_DELIVERIES_MAX: i64 = 10;

/// How long a delivery waits for the end of an attempt that is over, or no longer this process's.
pub(crate) const ENDING: Duration = Duration::from_secs(1);

/// The longest a message is put off. Longer waits belong to the database.
pub(crate) const LATER_MAX: Duration = Duration::from_secs(15 * 60);

/// Turns the reason for a missed claim into an ack. Only messages for which no slot was free, or that a stopping worker
/// still got, are answered elsewhere (`worker/pull.rs`): no claim of their jobs was tried.
///
/// | the database says | the answer to NATS |
/// |---|---|
/// | finished, or a later message exists | done |
/// | owned by a live worker | later: when that owner would be stale. Usually it has settled by then; if the owner and every scanner are dead, this very message is the backstop |
/// | owned by a stale worker | later, soon: the takeover was refused (a grace, or the owner wrote after all) |
/// | not due | done, the relay publishes when due; later, if the relay does not know |
/// | expired | later, soon: the worker was about to end the job, and another one did |
/// | of a paused or full queue | later, soon: the worker fetches no more of that queue, and this message came before it knew |
/// | of another queue or kind | never: the message is a forgery, or a mistake |
/// | no such row | later a few times (its transaction may be about to commit), then never |
/// | no answer | later, spread out: all workers would ask at once |
///
/// | this process says | the answer to NATS |
/// |---|---|
/// | being claimed here | later: that claim may fail, or be an older message's, which has nothing to add once this one exists |
/// | its attempt ends here | later, soon: the message is alive |
/// | of a kind without a handler here | later: another worker may have one |
/// | left to the relay, as the part of a message that names several jobs | done: the message cannot wait for one of them |
/// | a submission whose key another job holds, or a dead letter now | done |
/// | a malformed submission | never |
pub(crate) fn ack_for(missed: &Missed, deliveries: i64) -> Ack {
    match missed {
        Missed::Finished
        | Missed::Superseded
        | Missed::NotDue { relayed: true, .. }
        | Missed::Duplicate
        | Missed::Died
        | Missed::HandedOver => Ack::Done,
        Missed::Claiming | Missed::Ending => Ack::Later(ENDING),
        Missed::UnknownKind { again_in } => Ack::Later(*again_in),
        Missed::Unanswered => Ack::Later(Duration::from_millis(rand::random_range(1_000..5_000))),
        Missed::Owned { stale_in, .. } => Ack::Later((*stale_in + Duration::from_millis(500)).min(LATER_MAX)),
        Missed::Stale => Ack::Later(Duration::from_secs(2)),
        Missed::NotDue { due_in, relayed: false } => Ack::Later((*due_in).min(LATER_MAX)),
        Missed::Free | Missed::Expired => Ack::Later(Duration::from_millis(200)),
        Missed::Paused => Ack::Later(Duration::from_secs(1)),
        Missed::Full => Ack::Later(Duration::from_millis(rand::random_range(300..700))),
        Missed::Foreign | Missed::Refused => Ack::Never,
        Missed::NoSuchRow if deliveries >= NO_SUCH_ROW_DELIVERIES_MAX => Ack::Never,
        Missed::NoSuchRow => Ack::Later(Duration::from_secs(if deliveries < 4 { 1 } else { 5 })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(stale_in: Duration) -> Missed {
        Missed::Owned { owner: "w".into(), claim: Uuid::nil(), token: FencingToken(1), stale_in }
    }

    #[test]
    fn a_message_is_dropped_only_when_the_database_said_that_it_is_done() {
        assert_eq!(ack_for(&Missed::Finished, 1), Ack::Done);
        assert_eq!(ack_for(&Missed::Superseded, 1), Ack::Done);
        let later = Duration::from_secs(60);
        assert_eq!(ack_for(&Missed::NotDue { due_in: later, relayed: true }, 1), Ack::Done);
        assert_eq!(ack_for(&Missed::NotDue { due_in: later, relayed: false }, 1), Ack::Later(later));
        for missed in [owned(later), Missed::Stale, Missed::Free, Missed::Paused, Missed::Full] {
            assert!(matches!(ack_for(&missed, 1_000), Ack::Later(_)), "{missed:?}");
        }
        for missed in [Missed::Claiming, Missed::Ending, Missed::Unanswered] {
            assert!(matches!(ack_for(&missed, 1_000), Ack::Later(_)), "{missed:?}");
        }
        for missed in [Missed::Duplicate, Missed::Died, Missed::HandedOver] {
            assert_eq!(ack_for(&missed, 1), Ack::Done, "{missed:?}");
        }
        assert_eq!(ack_for(&Missed::UnknownKind { again_in: later }, 1), Ack::Later(later));
        assert_eq!(ack_for(&Missed::Refused, 1), Ack::Never);
    }

    #[test]
    fn the_message_of_an_owned_job_comes_back_just_after_its_owner_would_be_stale() {
        let Ack::Later(wait) = ack_for(&owned(Duration::from_secs(300)), 1) else { panic!() };
        assert!(wait > Duration::from_secs(300) && wait < Duration::from_secs(302), "{wait:?}");
        assert_eq!(ack_for(&owned(Duration::from_secs(86_400)), 1), Ack::Later(LATER_MAX));
    }

    #[test]
    fn a_message_that_names_no_row_is_given_time_then_terminated() {
        // The transaction of its row may be about to commit; after ten deliveries that is unlikely.
        for (deliveries, seconds) in [(1, 1), (3, 1), (4, 5), (9, 5)] {
            let later = Ack::Later(Duration::from_secs(seconds));
            assert_eq!(ack_for(&Missed::NoSuchRow, deliveries), later, "{deliveries} deliveries");
        }
        assert_eq!(ack_for(&Missed::NoSuchRow, 10), Ack::Never);
    }
}
