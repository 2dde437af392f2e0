//! Quarantines: watches kinds, and ends a quarantine.
//!
//! Not here: when a quarantine begins and ends by itself (`quarantine/sql/tend_quarantines.sql`), and what a worker
//! does meanwhile (`quarantine::run`).

use std::time::Duration;

use super::store::{QuarantineRow, QuarantineRule};
use crate::{
    client::Tenure,
    job::{NameError, check_kind},
    store::StoreError,
};

/// The most attempts that a rule asks for.
const ATTEMPTS_MAX: u32 = 100_000;
/// The shortest and the longest time of a rule.
const WITHIN: (Duration, Duration) = (Duration::from_secs(10), Duration::from_hours(24));
/// The shortest and the longest time between two probes.
const PROBE_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_hours(24));

/// When a kind goes into quarantine, and how often one of its jobs is tried then: see [`Tenure::put_quarantine`].
///
/// ```
/// use std::time::Duration;
/// use tenure::kinds::Quarantine;
///
/// // More than 30 % of at least 50 attempts within five minutes have failed.
/// let rule = Quarantine::when_failed(0.3).of(50).within(Duration::from_mins(5)).probe_every(Duration::from_mins(1));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "give it to `Tenure::put_quarantine`"]
pub struct Quarantine {
    share: f64,
    attempts: u32,
    within: Duration,
    probe_every: Duration,
}

impl Quarantine {
    /// When more than this share of attempts has failed, above 0 and below 1: of at least 50 within five minutes. A
    /// probe a minute.
    pub fn when_failed(share: f64) -> Self {
        Self { share, attempts: 50, within: Duration::from_mins(5), probe_every: Duration::from_mins(1) }
    }

    /// Of at least this many attempts, 1 to 100,000.
    pub fn of(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Within this time: 10 seconds to a day.
    pub fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    /// The time between two probes: a second to a day.
    pub fn probe_every(mut self, time: Duration) -> Self {
        self.probe_every = time;
        self
    }

    fn checked(&self) -> Result<QuarantineRule, QuarantineError> {
        let wrong = |why: String| Err(QuarantineError::Invalid(why));
        if !(self.share > 0.0 && self.share < 1.0) {
            let percent = self.share * 100.0;
            return wrong(format!(
                "a quarantine begins above a share of failures between 0 % and 100 %, not {percent} %"
            ));
        }
        if self.attempts == 0 || self.attempts > ATTEMPTS_MAX {
            return wrong(format!(
                "a quarantine is judged by 1 to {ATTEMPTS_MAX} attempts, not by {}",
                self.attempts
            ));
        }
        if self.within < WITHIN.0 || self.within > WITHIN.1 {
            return wrong(format!("attempts count for 10 s to 24 h, not for {:?}", self.within));
        }
        if self.probe_every < PROBE_EVERY.0 || self.probe_every > PROBE_EVERY.1 {
            return wrong(format!("a job is tried every 1 s to 24 h, not every {:?}", self.probe_every));
        }
        // Within the bounds of the column.
        let attempts = i32::try_from(self.attempts).unwrap_or(i32::MAX);
        Ok(QuarantineRule { share: self.share, attempts, within: self.within, probe_every: self.probe_every })
    }
}

/// Why a kind is not watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuarantineError {
    /// The rule is not possible.
    #[error("{0}")]
    Invalid(String),
    /// The name of the kind breaks a rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Postgres did not answer, or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Tenure {
    /// Watches a kind in all queues, or changes its rule: off by default. Returns whether anything has changed.
    ///
    /// Once too many of its attempts have failed lately, the kind is *in quarantine*: its jobs wait, and one at a time
    /// is tried. When one of those completes, the others run again. An attempt counts when its worker has written how
    /// it ended; one that was lost with its worker does not. A worker learns of the first rule within about as many
    /// seconds as there are workers, a minute at most, and of a quarantine within about two; the attempts that run then
    /// go on.
    ///
    /// A waiting job was snoozed, which charges no attempt: its history says so.
    ///
    /// Cancel safe: the kind is watched, or not.
    ///
    /// # Errors
    ///
    /// [`QuarantineError`]: what is not possible, or Postgres did not answer. The call is safe to repeat.
    pub async fn put_quarantine(&self, kind: &str, rule: Quarantine) -> Result<bool, QuarantineError> {
        check_kind(kind)?;
        Ok(self.store().put_quarantine(kind, rule.checked()?, self.actor()).await?)
    }

    /// Watches a kind no more. If it is in quarantine, its jobs run again, within seconds. `false`: it was not watched.
    ///
    /// Cancel safe: the kind is watched no more, or still is.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer, or refused. The call is safe to repeat.
    pub async fn remove_quarantine(&self, kind: &str) -> Result<bool, StoreError> {
        self.store().remove_quarantine(kind, self.actor()).await
    }

    /// Ends a quarantine by hand: the jobs of the kind run again, within seconds. The rule stays, and counts anew.
    /// `false`: the kind is not in quarantine.
    ///
    /// Cancel safe: the quarantine has ended, or not.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer, or refused. The call is safe to repeat.
    pub async fn end_quarantine(&self, kind: &str) -> Result<bool, StoreError> {
        self.store().end_quarantine(kind, self.actor()).await
    }

    /// Returns the kinds that are watched, in order, and which of them are in quarantine.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn quarantines(&self) -> Result<Vec<QuarantineRow>, StoreError> {
        self.store().quarantines().await
    }
}
