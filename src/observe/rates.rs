//! Rates: counts what a worker has done since its last report, by queue. For people: the database adds up the reports
//! of all workers by minute, so that a rate costs no read of the history.

use std::{
    sync::atomic::{AtomicI64, Ordering::Relaxed},
    time::Duration,
};

use serde::Serialize;

use crate::job::attempt::AttemptOutcome;

/// Each bucket is twice as wide as the one before, from a millisecond to more than two hours; the last takes all longer
/// times.
const BUCKETS: usize = 24;

/// The numbers of times up to 1 ms, 2 ms, 4 ms and so on.
#[derive(Debug, Default)]
struct Times([AtomicI64; BUCKETS]);

impl Times {
    fn record(&self, took: Duration) {
        let millis = took.as_micros().div_ceil(1_000).max(1);
        // The least power of two that is not below `millis`.
        let bucket = usize::try_from(u128::BITS - (millis - 1).leading_zeros()).unwrap_or(BUCKETS);
        self.0[bucket.min(BUCKETS - 1)].fetch_add(1, Relaxed);
    }

    fn take(&self) -> Vec<i64> {
        self.0.iter().map(|count| count.swap(0, Relaxed)).collect()
    }
}

/// The running counts of one worker in one queue.
#[derive(Debug, Default)]
pub(crate) struct QueueRates {
    claimed: AtomicI64,
    completed: AtomicI64,
    unkept: AtomicI64,
    retried: AtomicI64,
    snoozed: AtomicI64,
    failed: AtomicI64,
    cancelled: AtomicI64,
    released: AtomicI64,
    waited: Times,
    ran: Times,
}

/// The counts of a span of time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct QueueCounts {
    pub(crate) claimed: i64,
    pub completed: i64,
    /// Those of the completed jobs whose kind keeps no history.
    pub(crate) unkept: i64,
    pub retried: i64,
    pub snoozed: i64,
    pub failed: i64,
    pub cancelled: i64,
    pub released: i64,
    /// The queue latency of the claimed jobs: how many had waited up to 1 ms, 2 ms, 4 ms and so on.
    pub waited: Vec<i64>,
    /// The run times of the attempts that ended, likewise.
    pub ran: Vec<i64>,
}

impl QueueRates {
    /// Counts a claim of a job that had been due for `waited`.
    pub(crate) fn claimed(&self, waited: Duration) {
        self.claimed.fetch_add(1, Relaxed);
        self.waited.record(waited);
    }

    /// Counts an attempt that ended with this outcome.
    pub(crate) fn ended(&self, outcome: AttemptOutcome, ran: Duration) {
        match outcome {
            AttemptOutcome::Completed => &self.completed,
            AttemptOutcome::Retried => &self.retried,
            AttemptOutcome::Snoozed => &self.snoozed,
            AttemptOutcome::Failed => &self.failed,
            AttemptOutcome::Cancelled => &self.cancelled,
            AttemptOutcome::Released | AttemptOutcome::Lost => &self.released,
        }
        .fetch_add(1, Relaxed);
        self.ran.record(ran);
    }

    /// Counts a completed job, which [`QueueRates::ended`] counts, too, as one that keeps no history.
    pub(crate) fn left_nothing(&self) {
        self.unkept.fetch_add(1, Relaxed);
    }

    /// Returns the counts since the last call, and resets them; `None`: all are zero.
    pub(crate) fn take(&self) -> Option<QueueCounts> {
        let done = QueueCounts {
            claimed: self.claimed.swap(0, Relaxed),
            completed: self.completed.swap(0, Relaxed),
            unkept: self.unkept.swap(0, Relaxed),
            retried: self.retried.swap(0, Relaxed),
            snoozed: self.snoozed.swap(0, Relaxed),
            failed: self.failed.swap(0, Relaxed),
            cancelled: self.cancelled.swap(0, Relaxed),
            released: self.released.swap(0, Relaxed),
            waited: self.waited.take(),
            ran: self.ran.take(),
        };
        let is_nothing = done.waited.iter().chain(&done.ran).all(|count| *count == 0);
        (!is_nothing).then_some(done)
    }
}

impl QueueCounts {
    /// Adds other counts to these.
    pub fn add(&mut self, other: &Self) {
        self.claimed += other.claimed;
        self.completed += other.completed;
        self.unkept += other.unkept;
        self.retried += other.retried;
        self.snoozed += other.snoozed;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.released += other.released;
        for (all, some) in [(&mut self.waited, &other.waited), (&mut self.ran, &other.ran)] {
            all.resize(all.len().max(some.len()), 0);
            for (all, some) in all.iter_mut().zip(some) {
                *all += some;
            }
        }
    }
}

/// Returns a time that this share of the counted times did not exceed, interpolated between the bounds of its bucket;
/// `None` if the counts are zero.
#[expect(clippy::cast_precision_loss, reason = "counts of a day are fewer than 2^52")]
pub fn quantile(counts: &[i64], share: f64) -> Option<Duration> {
    let all: i64 = counts.iter().sum();
    let mut below = 0.0;
    let (wanted, mut upper) = (all as f64 * share, 0.001);
    let mut lower = 0.0;
    for count in counts {
        let count = *count as f64;
        if count > 0.0 && below + count >= wanted {
            let part = ((wanted - below) / count).clamp(0.0, 1.0);
            return Some(Duration::from_secs_f64(lower + (upper - lower) * part));
        }
        below += count;
        (lower, upper) = (upper, upper * 2.0);
    }
    None
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn counts_are_taken_once() {
        let rates = QueueRates::default();
        assert_eq!(rates.take(), None);
        rates.claimed(ms(3));
        rates.ended(AttemptOutcome::Completed, ms(100));
        let done = rates.take().unwrap();
        assert_eq!((done.claimed, done.completed, done.failed), (1, 1, 0));
        assert_eq!((done.waited[2], done.ran[7]), (1, 1));
        assert_eq!(rates.take(), None);
        rates.ended(AttemptOutcome::Failed, ms(1));
        let again = rates.take().unwrap();
        assert_eq!((again.claimed, again.completed, again.failed, again.ran[0]), (0, 0, 1, 1));
    }

    #[test]
    fn a_time_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        for (took, bucket) in [
            (Duration::ZERO, 0),
            (ms(1), 0),
            (Duration::from_micros(1_001), 1),
            (ms(2), 1),
            (ms(4), 2),
            (ms(5), 3),
            (Duration::from_hours(10_000), BUCKETS - 1),
            (Duration::MAX, BUCKETS - 1),
        ] {
            let times = Times::default();
            times.record(took);
            assert_eq!(times.take().iter().position(|count| *count == 1), Some(bucket), "{took:?}");
        }
    }

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[0; 24], 0.5), None);
        let times = Times::default();
        for n in 1..=1_000 {
            times.record(ms(n));
        }
        let counts = times.take();
        for (share, least, most) in [(0.5, 256, 512), (0.95, 512, 1_024), (1.0, 512, 1_024)] {
            let is = quantile(&counts, share).unwrap();
            assert!(is >= ms(least) && is <= ms(most), "{share}: {is:?}");
        }
    }
}
