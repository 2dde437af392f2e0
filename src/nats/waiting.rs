//! Waiting: asks the stream how many messages wait, and for how long.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use tokio::time::{timeout, timeout_at};

use super::{Queue, StreamCounts, Unseen};
use crate::{
    job::{check_kind, check_queue},
    store::Waiting,
};

/// The most kinds whose oldest submission one scan looks for.
const DATED_MAX: usize = 64;

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

/// The longer of two times, of which each may be unknown.
pub(crate) fn longer(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(f64::max)
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
