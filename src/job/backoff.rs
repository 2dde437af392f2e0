//! Backoff: when a failed attempt is tried again. Pure.

use std::time::Duration;

/// How long to wait between attempts: doubling, bounded, with jitter so that jobs which failed
/// together do not come back together.
///
/// ```
/// use std::time::Duration;
/// use tenure::Backoff;
///
/// // 5 s, 10 s, 20 s, … 300 s, each ±25 %.
/// let usual = Backoff::DEFAULT;
/// let patient = Backoff { first: Duration::from_secs(60), ..usual };
/// # assert!(patient.delay(1) >= Duration::from_secs(45));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// The wait after the first failed attempt. Default 5 s.
    pub first: Duration,
    /// The longest wait, before jitter. Default 300 s.
    pub longest: Duration,
    /// The most by which a wait is stretched or shrunk, as a fraction of it. Default 0.25.
    pub jitter: f64,
}

impl Backoff {
    /// 5 s doubling to 300 s, ±25 %.
    pub const DEFAULT: Self =
        Self { first: Duration::from_secs(5), longest: Duration::from_secs(300), jitter: 0.25 };

    /// Returns the wait after the given failed attempt (1 is the first), jitter included.
    #[must_use]
    pub fn delay(&self, attempt: u32) -> Duration {
        // NaN is no jitter, and no job waits for centuries.
        let jitter = if self.jitter.is_nan() { 0.0 } else { self.jitter.clamp(0.0, 1.0) };
        let base = self.base(attempt).min(Duration::from_hours(24 * 365));
        base.mul_f64(rand::random_range(1.0 - jitter..=1.0 + jitter))
    }

    /// Returns the wait before jitter.
    fn base(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        self.first.checked_mul(1 << doublings).map_or(self.longest, |delay| delay.min(self.longest))
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_five_seconds_to_three_hundred() {
        let waits: Vec<_> = (1..=8).map(|attempt| Backoff::DEFAULT.base(attempt).as_secs()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(Backoff::DEFAULT.base(u32::MAX).as_secs(), 300);
        assert_eq!(Backoff::DEFAULT.base(0).as_secs(), 5);
    }

    #[test]
    fn odd_settings_panic_nowhere() {
        let odd = Backoff { first: Duration::MAX, longest: Duration::MAX, jitter: f64::NAN };
        assert_eq!(odd.delay(u32::MAX), Duration::from_hours(24 * 365));
        assert_eq!(Backoff { jitter: -1.0, ..Backoff::DEFAULT }.delay(1), Duration::from_secs(5));
    }

    #[test]
    fn jitter_stays_within_a_quarter_and_does_spread() {
        let waits: Vec<_> = (0..1_000).map(|_| Backoff::DEFAULT.delay(1).as_secs_f64()).collect();
        assert!(waits.iter().all(|wait| (3.75..=6.25).contains(wait)));
        assert!(waits.iter().any(|wait| *wait < 4.2) && waits.iter().any(|wait| *wait > 5.8));
    }
}
