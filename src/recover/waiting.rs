//! Waiting: counts what waits, in the database and in the stream, and names what no live worker runs.
//!
//! The worker that scans asks NATS once for the messages by queue and kind. Where NATS does not answer, the numbers of
//! the stream are absent; those of the database are there nevertheless.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_scan_asks_nats_once_for_the_counts`
//! - `without_nats_a_scan_counts_the_rows_and_forgets_the_messages`

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    nats::{
        Queue, Unseen,
        waiting::{ages, counts, longer},
    },
    observe::repeats::Repeats,
    store::{Store, StoreError, Unserved, Waiting},
};

/// For how many intervals between two scans the counts of the stream hold.
const SCANS_HELD: u32 = 5;
/// How long NATS may take for its counts, and again for all ages.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// How long no message is asked for after a denial: NATS logs an error for each request.
const DENIAL_LASTS: Duration = Duration::from_hours(1);
/// The most kinds that are stored and exported.
const UNSERVED_MAX: usize = 100;
/// The most kinds that one scan logs; fewer than the causes that [`Repeats`] keeps.
const LOGGED_MAX: usize = 30;
/// What has waited for a shorter time is not logged: a deploy replaces workers.
const LOGGED_AFTER: Duration = Duration::from_secs(10);
/// The first and the longest pause between two lines about one kind.
const FIRST_PAUSE: Duration = Duration::from_mins(1);
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

/// What a process remembers from one scan to the next.
#[derive(Debug)]
pub(crate) struct Memory {
    logged: Repeats,
    denied_at: Mutex<Option<Instant>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { logged: Repeats::with_pauses(FIRST_PAUSE, LONGEST_PAUSE), denied_at: Mutex::default() }
    }
}

/// Measures the fleet: what waits in each queue, and what no live worker runs.
pub(crate) async fn measure(
    store: &Store,
    queue: &Queue,
    memory: &Memory,
    scan_every: Duration,
) -> Result<(), StoreError> {
    let within = ANSWERED_WITHIN.min(scan_every);
    let holds_for = scan_every.saturating_mul(SCANS_HELD);
    let counts = counts(queue, within).await;
    let waiting = store.measure(counts.as_ref().map(|counts| counts.kinds.as_slice()), holds_for).await?;
    let at = counts.and_then(|counts| counts.at).filter(|_| !memory.is_denied());
    let (ages, why_not) = ages(queue, at, &waiting, within).await;
    match why_not {
        Some(Unseen::Denied(subject)) => {
            tracing::warn!(
                subject,
                "this NATS user may not read how long submissions have waited; their number is shown without their \
                 age. nats/server.conf has the rights of a worker"
            );
            *memory.denied_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        Some(why) => {
            tracing::debug!(?why, "could not ask how long submissions have waited; their age is absent");
        }
        None => {}
    }
    let mut of_queues: BTreeMap<&str, Option<f64>> = BTreeMap::new();
    for (of, age) in waiting.iter().zip(&ages).filter(|(of, _)| of.submitted > Some(0)) {
        let oldest = of_queues.entry(&of.queue).or_default();
        *oldest = longer(*oldest, *age);
    }
    let unserved: Vec<_> = (waiting.iter().zip(&ages))
        .filter(|(of, _)| !of.is_served)
        .take(UNSERVED_MAX)
        .map(|(of, age)| unserved(of, *age))
        .collect();
    store.note_waiting(&of_queues, &unserved, holds_for).await?;
    log(&unserved, memory, LOGGED_AFTER.min(scan_every));
    Ok(())
}

impl Memory {
    fn is_denied(&self) -> bool {
        let denied_at = *self.denied_at.lock().unwrap_or_else(PoisonError::into_inner);
        denied_at.is_some_and(|at| at.elapsed() < DENIAL_LASTS)
    }
}

/// Describes what waits of a kind that no live worker runs.
fn unserved(of: &Waiting, age_s: Option<f64>) -> Unserved {
    Unserved {
        queue: of.queue.clone(),
        kind: of.kind.clone(),
        is_queue_served: of.is_queue_served,
        due: of.due,
        submitted: of.submitted,
        oldest_s: longer(of.oldest_due_s, age_s),
    }
}

/// Logs each kind when it is found, and then less and less often.
fn log(unserved: &[Unserved], memory: &Memory, after: Duration) {
    let is_late = |of: &&Unserved| of.oldest_s.is_none_or(|waited| waited >= after.as_secs_f64());
    for of in unserved.iter().filter(is_late).take(LOGGED_MAX) {
        let Unserved { queue, kind, due, submitted, oldest_s, .. } = of;
        if memory.logged.tell(&format!("{queue} {kind}")).is_none() {
            continue;
        }
        if of.is_queue_served {
            tracing::warn!(
                queue,
                kind,
                due,
                submitted,
                oldest_s,
                "no live worker runs this kind, and its jobs wait; `tenure doctor` says what to do"
            );
        } else {
            tracing::warn!(
                queue,
                kind,
                due,
                submitted,
                oldest_s,
                "no live worker serves this queue, and its jobs wait; `tenure doctor` says what to do"
            );
        }
    }
}
