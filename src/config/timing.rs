//! Timing: when a worker is believed dead, and which timers contradict each other.

use std::time::Duration;

use crate::job::duration::written;

/// The longest timer but a grace: a longer one is a mistake in its unit. Twice this still fits into a time.
pub(super) const LONGEST: Duration = Duration::from_hours(24 * 366);

/// When a worker is believed dead, and how soon recovery notices.
///
/// ```text
/// flush_every ×3 ≤ stale_after        stale_after + scan_every < ack_wait
///     1 s            5 min                5 min       30 s        10 min
/// ```
///
/// Recovery by the database comes first; redelivery by NATS is the backstop. Turn the second
/// inequality round, and NATS delivers every slow job again before a scan can tell whether its owner
/// is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// The silence after which a running job is stale, and is reset. Default 5 min.
    pub stale_after: Duration,
    /// How often some worker looks for silent jobs. Default 30 s.
    pub scan_every: Duration,
    /// After this time JetStream delivers an unacknowledged message again. Default 10 min.
    pub ack_wait: Duration,
    /// The shortest time between two progress writes of one job. Default 1 s; at most a third of `stale_after`.
    pub flush_every: Duration,
    /// How often tenure sends a heartbeat for a job of a kind with `keepalive`. Default 30 s; at most a third of
    /// `stale_after`.
    pub keepalive_every: Duration,
    /// How often a worker renews its own row. Default 5 s. A worker that misses two renewals, and does not
    /// answer over NATS, is gone: recovery resets its jobs.
    pub renew_every: Duration,
    /// How often the fleet's relay looks for jobs to publish. A worker that freezes during its turn holds the
    /// relay up for at most thirty times this long, and until another worker asks for the turn. Default 100 ms.
    pub relay_every: Duration,
    /// The longest a publication may take before its message counts as not sent. Default 10 s.
    pub publish_within: Duration,
    /// How long one request for jobs waits on the NATS server. A dead worker's request takes messages
    /// for this long. Default 5 s.
    pub pull_for: Duration,
    /// How long running jobs may go on after the worker was asked to stop. Default 25 s.
    pub shutdown_grace: Duration,
    /// How long a cancelled handler may tidy up before it is dropped. Default 3 s.
    pub cancel_grace: Duration,
    /// How long a job of a kind that no worker knows waits before it becomes a dead letter. Default 24 h.
    pub unknown_kind_after: Duration,
    /// The longest one database call may take. Default 10 s.
    pub database_within: Duration,
}

impl Timing {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        stale_after: Duration::from_mins(5),
        scan_every: Duration::from_secs(30),
        ack_wait: Duration::from_mins(10),
        flush_every: Duration::from_secs(1),
        keepalive_every: Duration::from_secs(30),
        renew_every: Duration::from_secs(5),
        relay_every: Duration::from_millis(100),
        publish_within: Duration::from_secs(10),
        pull_for: Duration::from_secs(5),
        shutdown_grace: Duration::from_secs(25),
        cancel_grace: Duration::from_secs(3),
        unknown_kind_after: Duration::from_hours(24),
        database_within: Duration::from_secs(10),
    };

    /// Every timer with the name that its environment variable has after `TENURE_`, in lower case.
    pub(super) fn all_mut(&mut self) -> [(&'static str, &mut Duration); 13] {
        [
            ("stale_after", &mut self.stale_after),
            ("scan_every", &mut self.scan_every),
            ("ack_wait", &mut self.ack_wait),
            ("flush_every", &mut self.flush_every),
            ("keepalive_every", &mut self.keepalive_every),
            ("renew_every", &mut self.renew_every),
            ("relay_every", &mut self.relay_every),
            ("publish_within", &mut self.publish_within),
            ("pull_for", &mut self.pull_for),
            ("shutdown_grace", &mut self.shutdown_grace),
            ("cancel_grace", &mut self.cancel_grace),
            ("unknown_kind_after", &mut self.unknown_kind_after),
            ("database_within", &mut self.database_within),
        ]
    }

    /// Checks that the timers do not contradict each other.
    ///
    /// # Errors
    ///
    /// The error names both values and the rule. Change one of the two.
    pub fn validate(&self) -> Result<(), TimingError> {
        for (name, value) in self.clone().all_mut() {
            // The two graces may be zero (stop at once), or endless.
            if name.ends_with("_grace") {
                continue;
            }
            if value.is_zero() {
                return Err(TimingError::Zero { name });
            }
            if *value > LONGEST {
                return Err(TimingError::TooLong { name, value: *value });
            }
        }
        self.validate_stale_after(self.stale_after)
    }

    fn validate_stale_after(&self, stale_after: Duration) -> Result<(), TimingError> {
        self.validate_kind(stale_after, Some(self.keepalive_every))
    }

    /// Checks a kind's own timers against those that hold for all kinds.
    pub(crate) fn validate_kind(
        &self,
        stale_after: Duration,
        keepalive_every: Option<Duration>,
    ) -> Result<(), TimingError> {
        if stale_after.is_zero() {
            return Err(TimingError::Zero { name: "stale_after" });
        }
        if self.ack_wait <= stale_after.saturating_add(self.scan_every) {
            return Err(TimingError::AckWait {
                ack_wait: self.ack_wait,
                stale_after,
                scan_every: self.scan_every,
            });
        }
        let keepalive = keepalive_every.map(|every| ("keepalive_every", every));
        for (name, value) in [("flush_every", self.flush_every)].into_iter().chain(keepalive) {
            if value > stale_after / 3 {
                return Err(TimingError::Interval { name, value, stale_after });
            }
        }
        Ok(())
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Timers that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the timers of these names")]
#[non_exhaustive]
pub enum TimingError {
    #[error("{name} is 0 s, but must be longer; set TENURE_{} to a duration such as 30s", .name.to_uppercase())]
    Zero { name: &'static str },
    #[error("{name} is {}, but must be at most a year; lower TENURE_{}", written(*.value), .name.to_uppercase())]
    TooLong { name: &'static str, value: Duration },
    #[error(
        "ack_wait ({}) must be longer than stale_after ({}) + scan_every ({}), \
         or NATS delivers a slow job again before a scan can tell whether its owner is alive; \
         raise TENURE_ACK_WAIT (and run `tenure migrate --queue NAME`) or lower TENURE_STALE_AFTER",
        written(*.ack_wait), written(*.stale_after), written(*.scan_every)
    )]
    AckWait { ack_wait: Duration, stale_after: Duration, scan_every: Duration },
    #[error(
        "{name} ({}) must be at most a third of stale_after ({}), \
         or one late write makes a healthy job look dead; lower TENURE_{} or raise TENURE_STALE_AFTER",
        written(*.value), written(*.stale_after), .name.to_uppercase()
    )]
    Interval { name: &'static str, value: Duration, stale_after: Duration },
}
