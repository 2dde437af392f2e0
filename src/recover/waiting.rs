//! Waiting: counts what waits, in the database and in the stream, and names what no live worker runs.
//!
//! The worker that scans asks NATS once for the messages by queue and kind. Where NATS does not answer, the numbers of
//! the stream are absent; those of the database are there nevertheless. Where no worker scans, `tenure serve` measures.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_scan_asks_nats_once_for_the_counts`
//! - `without_nats_a_scan_counts_the_rows_and_forgets_the_messages`
//! - `without_a_worker_serve_measures`

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::standing::Proofs;
use crate::{
    nats::{
        Nats, Unseen,
        survey::{longer, survey},
        waiting::counts,
    },
    observe::repeats::Repeats,
    store::{Found, Misnamed, QueueSubmitted, Store, StoreError, Unserved, Waiting},
};

/// For how many intervals between two scans the counts of the stream hold.
pub(crate) const SCANS_HELD: u32 = 5;
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

/// After how many intervals without a measurement another process than a worker measures. With a look every quarter of
/// an interval, what waits is counted within two intervals, a minute with the defaults.
const SCANS_MISSED: f64 = 1.5;

/// What a process remembers from one scan to the next.
#[derive(Debug)]
pub struct Memory {
    logged: Repeats,
    denied_at: Mutex<Option<Instant>>,
    proofs: tokio::sync::Mutex<Proofs>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            logged: Repeats::with_pauses(FIRST_PAUSE, LONGEST_PAUSE),
            denied_at: Mutex::default(),
            proofs: tokio::sync::Mutex::default(),
        }
    }
}

/// Measures the fleet, if no process has measured it lately, and no other does so now.
pub async fn measure_alone(
    store: &Store,
    nats: &Nats,
    memory: &Memory,
    scan_every: Duration,
) -> Result<(), StoreError> {
    if store.measure_alone(scan_every.mul_f64(SCANS_MISSED), scan_every).await? {
        measure(store, nats, memory, scan_every, false).await?;
    }
    Ok(())
}

/// Measures the fleet: what waits in each queue, and what no live worker runs.
pub(crate) async fn measure(
    store: &Store,
    nats: &Nats,
    memory: &Memory,
    scan_every: Duration,
    ends_scan: bool,
) -> Result<(), StoreError> {
    let within = ANSWERED_WITHIN.min(scan_every);
    let holds_for = scan_every.saturating_mul(SCANS_HELD);
    let counts = counts(nats, within).await;
    if counts.as_ref().is_some_and(|counts| counts.is_cut) && memory.logged.tell("cut").is_some() {
        tracing::warn!(
            "the stream holds messages of too many kinds to count each: the kinds of the largest queues are counted \
             together"
        );
    }
    let kinds = counts.as_ref().map(|counts| counts.kinds.as_slice());
    let (mut waiting, queues) = store.measure(kinds, holds_for, ends_scan).await?;
    let counted: Vec<_> = waiting.iter().map(|of| of.submitted).collect();
    let at = counts.as_ref().and_then(|counts| counts.at).filter(|_| !memory.is_denied());
    let (ages, why_not) = survey(store, nats, at, &mut waiting, within).await;
    match why_not {
        Some(Unseen::Denied(subject)) => {
            tracing::warn!(
                subject,
                "this NATS user may not read how long submissions have waited; their number is shown without their \
                 age, and tickets of cancelled jobs count as submissions. nats/server.conf has the rights of a worker"
            );
            *memory.denied_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        Some(why) => {
            tracing::debug!(?why, "could not ask how long submissions have waited; their age is absent");
        }
        None => {}
    }
    let mut found = found(queues.as_slice(), &waiting, &counted, &ages);
    if !memory.is_denied() && counts.is_some() {
        let mut standing = memory.proofs.lock().await.of(store, nats, &queues, within).await;
        for of in &mut found {
            of.standing = standing.remove(&of.queue);
        }
    }
    let unserved: Vec<_> = (waiting.iter().zip(&ages))
        .filter(|(of, _)| of.put_off > 0 || !of.is_served && (of.due > 0 || of.submitted != Some(0)))
        .take(UNSERVED_MAX)
        .map(|(of, age)| unserved(of, *age))
        .collect();
    let misnamed = counts.as_ref().map(|counts| &counts.misnamed);
    store.note_waiting(counts.is_some().then_some(found.as_slice()), &unserved, misnamed, holds_for).await?;
    if let Some(Misnamed { messages, subject: Some(subject) }) = misnamed
        && memory.logged.tell("misnamed").is_some()
    {
        tracing::warn!(
            messages,
            subject,
            "the stream holds messages whose subject names no valid queue or kind, and no worker reads them; `tenure \
             doctor` says what to do"
        );
    }
    log(&unserved, memory, LOGGED_AFTER.min(scan_every));
    Ok(())
}

/// Adds up what was found out by queue: the counts, less what the kinds that were read had too many, and the ages.
fn found(
    queues: &[QueueSubmitted],
    waiting: &[Waiting],
    counted: &[Option<i64>],
    ages: &[Option<f64>],
) -> Vec<Found> {
    let mut of_queues: HashMap<&str, (i64, Option<f64>)> = HashMap::new();
    for ((of, counted), age) in waiting.iter().zip(counted).zip(ages) {
        let (too_many, oldest) = of_queues.entry(&of.queue).or_default();
        *too_many += counted.unwrap_or_default() - of.submitted.unwrap_or_default();
        *oldest = longer(*oldest, *age);
    }
    let found = |of: &QueueSubmitted| {
        let (too_many, oldest_s) = of_queues.get(&*of.queue).copied().unwrap_or_default();
        Found {
            queue: of.queue.clone(),
            submitted: (of.submitted - too_many).max(0),
            oldest_s,
            standing: None,
        }
    };
    queues.iter().map(found).collect()
}

impl Memory {
    fn is_denied(&self) -> bool {
        let denied_at = *self.denied_at.lock().unwrap_or_else(PoisonError::into_inner);
        denied_at.is_some_and(|at| at.elapsed() < DENIAL_LASTS)
    }
}

/// Describes what waits of a kind that no live worker runs, or that workers without the kind put off.
fn unserved(of: &Waiting, age_s: Option<f64>) -> Unserved {
    Unserved {
        queue: of.queue.clone(),
        kind: of.kind.clone(),
        is_queue_served: of.is_queue_served,
        due: of.due,
        submitted: of.submitted,
        oldest_s: if of.is_served { of.put_off_s } else { longer(of.oldest_due_s, age_s) },
        put_off: of.is_served.then_some(of.put_off),
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
        if let Some(put_off) = of.put_off {
            tracing::warn!(
                queue,
                kind,
                put_off,
                oldest_s,
                "workers of this queue that do not know this kind put its jobs off; start those that serve the queue \
                 with all of its kinds, or give this kind a queue of its own"
            );
        } else if of.is_queue_served {
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
