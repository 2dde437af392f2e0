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
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use tokio::time::{timeout, timeout_at};

use crate::{
    job::{check_kind, check_queue},
    nats::{Queue, StreamCounts, Unseen},
    observe::repeats::Repeats,
    store::{Store, StoreError, Unserved, Waiting},
};

/// For how many intervals between two scans the counts of the stream hold.
const SCANS_HELD: u32 = 5;
/// How long NATS may take for its counts, and again for all ages.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// The most kinds whose oldest submission one scan looks for.
const DATED_MAX: usize = 64;
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
            tracing::debug!(?why, "could not ask how long submissions have waited; their age is absent")
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

/// Counts the messages by queue and kind. `None`: NATS gave no answer in time.
pub(crate) async fn counts(queue: &Queue, within: Duration) -> Option<StreamCounts> {
    if !queue.is_connected() {
        return None;
    }
    match timeout(within, queue.messages_by_kind()).await {
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

/// Returns for how many seconds the oldest submission of each kind has waited, as far as NATS says so, and why it does
/// not. `at` is the time of the counts by the server's clock: the ages are differences of that clock.
pub(crate) async fn ages(
    queue: &Queue,
    at: Option<DateTime<Utc>>,
    waiting: &[Waiting],
    within: Duration,
) -> (Vec<Option<f64>>, Option<Unseen>) {
    let (mut ages, mut why_not) = (vec![None; waiting.len()], None);
    let Some(at) = at else { return (ages, why_not) };
    let until = Instant::now() + within;
    let mut undelivered: HashMap<&str, u64> = HashMap::new();
    let of_waiting = waiting.iter().zip(&mut ages);
    for (of, age) in of_waiting.filter(|(of, _)| of.submitted > Some(0) && is_named(of)).take(DATED_MAX) {
        let asked = timeout_at(until.into(), async {
            let from = match undelivered.get(&*of.queue) {
                Some(from) => *from,
                None => queue.undelivered_from(&of.queue).await?,
            };
            undelivered.insert(&of.queue, from);
            queue.first_submission(&of.queue, &of.kind, from).await
        });
        match asked.await {
            Ok(Ok(published_at)) => {
                *age = published_at.map(|from| (at - from).to_std().unwrap_or_default().as_secs_f64());
            }
            Ok(Err(why)) => {
                why_not = Some(why);
                break;
            }
            Err(_) => break,
        }
    }
    (ages, why_not)
}

/// Whether a worker could serve the queue and run the kind: NATS allows more names than tenure.
fn is_named(of: &Waiting) -> bool {
    check_queue(&of.queue).and_then(|()| check_kind(&of.kind)).is_ok()
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

/// The longer of two times, of which each may be unknown.
pub(crate) fn longer(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(f64::max)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_of_two_times_is_the_known_one() {
        assert_eq!(longer(None, None), None);
        assert_eq!(longer(Some(1.0), None), Some(1.0));
        assert_eq!(longer(None, Some(2.0)), Some(2.0));
        assert_eq!(longer(Some(3.0), Some(2.0)), Some(3.0));
    }
}
