//! Survey: tells submissions from tickets that no row accounts for, by reading some messages.
//!
//! The difference of messages and rows also holds tickets of cancelled jobs, and second tickets of reset jobs. They
//! stay in the stream until a worker receives them: in a paused queue, for as long as it is paused. A kind with a few
//! messages is read whole, and its count is exact. Of another kind some messages are read, spread over the stream, and
//! the difference is divided as they are.
//!
//! Invariants, each held by the test of that name:
//!
//! - `a_limit_counts_the_submissions_that_stand_in_the_stream_and_no_ticket_of_a_cancelled_job`
//! - `a_few_messages_are_counted_and_many_are_divided_as_those_that_were_read`

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use futures::{StreamExt, stream};
use tokio::time::timeout_at;

use crate::{
    job::JobId,
    nats::{
        MessageSeen, Nats, Unseen,
        waiting::{Budget, Sample, sample},
    },
    store::{Store, Waiting},
};

/// How many kinds are read at once.
const AT_ONCE: usize = 8;

/// What some messages of one kind are.
#[derive(Debug, Default, Clone, PartialEq)]
struct Told {
    submissions: i64,
    /// Tickets, and messages of ended jobs, that no live row accounts for.
    loose: i64,
    is_whole: bool,
    is_empty: bool,
    oldest_at: Option<DateTime<Utc>>,
}

/// Corrects the number of submissions of each kind. Returns for how many seconds the oldest of each has waited, as far
/// as NATS tells, and why it does not. `at` is the time of the counts by the server's clock: the ages are differences
/// of that clock. `None`: nothing is read.
pub(crate) async fn survey(
    store: &Store,
    nats: &Nats,
    at: Option<DateTime<Utc>>,
    waiting: &mut [Waiting],
    within: Duration,
) -> (Vec<Option<f64>>, Option<Unseen>) {
    let mut ages = vec![None; waiting.len()];
    let Some(at) = at else { return (ages, None) };
    let (samples, why_not) = samples(nats, waiting, within).await;
    let read = samples.iter().flat_map(|(_, sample)| sample.messages.values().chain(&sample.first));
    let jobs: HashSet<JobId> = read.filter_map(|message| message.job).collect();
    let known = match store.known_jobs(&jobs.into_iter().collect::<Vec<_>>()).await {
        Ok(known) => known,
        Err(error) => {
            tracing::debug!(%error, "could not tell submissions from other messages; all count as submissions");
            return (ages, why_not);
        }
    };
    for (n, sample) in samples {
        let told = tell(&sample, |job| known.get(&job).copied());
        let has_several = waiting[n].has_several;
        let Some(submitted) = &mut waiting[n].submitted else { continue };
        *submitted = told.of(*submitted, has_several);
        let oldest = told.oldest_at.filter(|_| *submitted > 0);
        ages[n] = oldest.map(|from| (at - from).to_std().unwrap_or_default().as_secs_f64());
    }
    (ages, why_not)
}

/// Reads samples of all kinds with messages that no row accounts for, each under its place, until the time is over.
async fn samples(
    nats: &Nats,
    waiting: &[Waiting],
    within: Duration,
) -> (Vec<(usize, Sample)>, Option<Unseen>) {
    let (until, budget) = (Instant::now() + within, Budget::default());
    let is_read = |(_, of): &(usize, &Waiting)| of.submitted > Some(0) && !of.kind.is_empty();
    let read = async |(n, of): (usize, &Waiting)| {
        if budget.is_spent() {
            return Ok(None);
        }
        match timeout_at(until.into(), sample(nats, of, &budget)).await {
            Ok(Ok(sample)) => Ok(Some((n, sample))),
            Ok(Err(why)) => Err(why),
            Err(_) => Ok(None),
        }
    };
    let mut kinds = waiting.iter().enumerate().filter(is_read);
    let mut samples = Vec::new();
    // The first alone: where NATS denies it, no other is asked for, because the server logs each.
    let Some(first) = kinds.next() else { return (samples, None) };
    match read(first).await {
        Ok(sample) => samples.extend(sample),
        Err(why) => return (samples, Some(why)),
    }
    let mut why_not = None;
    let mut others = stream::iter(kinds).map(read).buffer_unordered(AT_ONCE);
    while let Some(sample) = others.next().await {
        match sample {
            Ok(sample) => samples.extend(sample),
            Err(why) => {
                why_not = Some(why);
                break;
            }
        }
    }
    drop(others);
    (samples, why_not)
}

/// Tells what these messages are. `known`: whether the job is live; `None`: it has no row.
fn tell(sample: &Sample, known: impl Fn(JobId) -> Option<bool>) -> Told {
    let mut told =
        Told { is_whole: sample.is_whole, is_empty: sample.messages.is_empty(), ..Told::default() };
    let mut accounted = HashSet::new();
    let is_submission =
        |message: &MessageSeen| !message.is_ticket && message.job.is_some_and(|job| known(job).is_none());
    for message in sample.messages.values() {
        if is_submission(message) {
            told.submissions += 1;
        } else if !message.job.is_some_and(|job| known(job) == Some(true) && accounted.insert(job)) {
            told.loose += 1;
        }
    }
    let read = sample.messages.values().chain(&sample.first).filter(|message| is_submission(message));
    told.oldest_at = read.map(|message| message.published_at).min();
    told
}

impl Told {
    /// How many of these messages are submissions.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "messages are fewer than 2^52"
    )]
    fn of(&self, unaccounted: i64, has_several: bool) -> i64 {
        let read = self.submissions + self.loose;
        if self.is_whole {
            self.submissions
        } else if read == 0 {
            // All that were read are of live jobs. What the others lack then is in messages of several, which also name
            // jobs that have ended.
            if has_several && !self.is_empty { 0 } else { unaccounted }
        } else {
            let part = unaccounted as f64 * self.submissions as f64 / read as f64;
            (part.round() as i64).max(self.submissions.min(unaccounted))
        }
    }
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

    fn message(sequence: u64, is_ticket: bool, job: Option<JobId>) -> MessageSeen {
        let published_at = DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(sequence.cast_signed());
        MessageSeen { sequence, is_ticket, job, published_at, bytes: 1 }
    }

    #[test]
    fn a_live_row_accounts_for_one_message_and_a_submission_has_no_row() {
        let (live, ended, new) = (JobId::generate(), JobId::generate(), JobId::generate());
        let known = |job| if job == live { Some(true) } else { (job == ended).then_some(false) };
        let all = [
            message(1, true, Some(live)),
            message(2, true, Some(live)),
            message(3, true, Some(ended)),
            message(4, false, Some(ended)),
            message(5, true, None),
            message(6, true, Some(new)),
            message(7, false, Some(new)),
        ];
        let messages = all.into_iter().map(|message| (message.sequence, message)).collect();
        let told = tell(&Sample { messages, is_whole: false, first: None }, known);
        let seconds = |s| Some(DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(s));
        assert_eq!(
            told,
            Told { submissions: 1, loose: 5, is_whole: false, is_empty: false, oldest_at: seconds(7) }
        );
        let first = Some(message(6, false, Some(new)));
        assert_eq!(tell(&Sample { first, ..Sample::default() }, known).oldest_at, seconds(6));
    }

    #[test]
    fn a_few_messages_are_counted_and_many_are_divided_as_those_that_were_read() {
        let told = |submissions, loose, is_whole| Told {
            submissions,
            loose,
            is_whole,
            is_empty: false,
            oldest_at: None,
        };
        assert_eq!(told(3, 2, true).of(99, false), 3);
        assert_eq!(told(0, 0, false).of(99, false), 99, "nothing speaks against it");
        assert_eq!(told(16, 0, false).of(20_000, false), 20_000);
        assert_eq!(told(0, 16, false).of(500, false), 0);
        assert_eq!(told(4, 12, false).of(1_000, false), 250);
        assert_eq!(told(2, 30, false).of(17, false), 2, "those that were read are there");
        assert_eq!(
            told(0, 0, false).of(150, true),
            0,
            "the tickets of live jobs, beside messages of several"
        );
    }
}
