//! Tally: what a worker has done since it last reported, by queue. For people: the database adds up what all workers
//! report of each minute, so that a rate costs nobody a look at the history.

use std::{
    sync::atomic::{AtomicI64, Ordering::Relaxed},
    time::Duration,
};

use serde::Serialize;

/// Twice as long each, from a millisecond to more than two hours; the last takes all that is longer.
const BUCKETS: usize = 24;

/// How many took up to 1 ms, 2 ms, 4 ms and so on.
#[derive(Debug, Default)]
struct Times([AtomicI64; BUCKETS]);

impl Times {
    fn record(&self, took: Duration) {
        let millis = took.as_micros().div_ceil(1_000).max(1);
        // The least power of two that is not below it.
        let bucket = usize::try_from(u128::BITS - (millis - 1).leading_zeros()).unwrap_or(BUCKETS);
        self.0[bucket.min(BUCKETS - 1)].fetch_add(1, Relaxed);
    }

    fn take(&self) -> Vec<i64> {
        self.0.iter().map(|count| count.swap(0, Relaxed)).collect()
    }
}

/// What one worker does in one queue.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    claimed: AtomicI64,
    completed: AtomicI64,
    retried: AtomicI64,
    snoozed: AtomicI64,
    failed: AtomicI64,
    cancelled: AtomicI64,
    released: AtomicI64,
    waited: Times,
    ran: Times,
}

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Done {
    pub(crate) claimed: i64,
    pub(crate) completed: i64,
    pub(crate) retried: i64,
    pub(crate) snoozed: i64,
    pub(crate) failed: i64,
    pub(crate) cancelled: i64,
    pub(crate) released: i64,
    /// How long the claimed jobs had been due: how many up to 1 ms, 2 ms, 4 ms and so on.
    pub(crate) waited: Vec<i64>,
    /// How long the attempts that ended ran, likewise.
    pub(crate) ran: Vec<i64>,
}

impl Tally {
    /// A claim of a job that had been due for so long.
    pub(crate) fn claimed(&self, waited: Duration) {
        self.claimed.fetch_add(1, Relaxed);
        self.waited.record(waited);
    }

    /// An attempt that ended so.
    pub(crate) fn ended(&self, outcome: &str, ran: Duration) {
        match outcome {
            "completed" => &self.completed,
            "retried" => &self.retried,
            "snoozed" => &self.snoozed,
            "failed" => &self.failed,
            "cancelled" => &self.cancelled,
            _ => &self.released,
        }
        .fetch_add(1, Relaxed);
        self.ran.record(ran);
    }

    /// What was done since this was last asked; `None`: nothing.
    pub(crate) fn take(&self) -> Option<Done> {
        let done = Done {
            claimed: self.claimed.swap(0, Relaxed),
            completed: self.completed.swap(0, Relaxed),
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

#[cfg(any(feature = "cli", test))]
impl Done {
    /// Both together.
    pub(crate) fn add(&mut self, other: &Self) {
        self.claimed += other.claimed;
        self.completed += other.completed;
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

/// A time that this share of them did not exceed, by halves between the buckets' bounds; `None` of none.
#[cfg(any(feature = "cli", test))]
#[expect(clippy::cast_precision_loss, reason = "counts of a day are fewer than 2^52")]
pub(crate) fn quantile(counts: &[i64], share: f64) -> Option<Duration> {
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
    fn what_was_taken_is_not_taken_again() {
        let tally = Tally::default();
        assert_eq!(tally.take(), None);
        tally.claimed(ms(3));
        tally.ended("completed", ms(100));
        let done = tally.take().unwrap();
        assert_eq!((done.claimed, done.completed, done.failed), (1, 1, 0));
        assert_eq!((done.waited[2], done.ran[7]), (1, 1));
        assert_eq!(tally.take(), None);
        tally.ended("failed", ms(1));
        let again = tally.take().unwrap();
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
