//! Redrives: begins, lists and stops calm redrives.
//!
//! Not here: how one goes on (`tenure.tend_redrives` in `migrations/functions/redrives`).

use std::time::Duration;

use uuid::Uuid;

use super::store::{NewRedrive, RedriveRow};
use crate::{
    client::Tenure,
    store::{DeadFilter, StoreError},
};

/// The most jobs of a canary.
const CANARY_MAX: u32 = 100_000;

/// How carefully to redrive dead letters: see [`Tenure::redrive_calmly`].
///
/// ```
/// use std::time::Duration;
/// use tenure::redrives::CalmRedrive;
///
/// let calm = CalmRedrive::new().canary(20).then_rate(5, Duration::from_secs(1)).stop_at(0.1);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "give it to `Tenure::redrive_calmly`"]
pub struct CalmRedrive {
    canary: u32,
    rate: Option<(u32, Duration)>,
    stop_at: f64,
}

impl Default for CalmRedrive {
    fn default() -> Self {
        Self { canary: 20, rate: None, stop_at: 0.1 }
    }
}

impl CalmRedrive {
    /// A canary of 20 jobs, no rate after it, and a stop at 10 % of failures.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many jobs go first, 1 to 100,000. No other follows before all of these have ended, or failed an attempt.
    pub fn canary(mut self, jobs: u32) -> Self {
        self.canary = jobs;
        self
    }

    /// Redrives at most `jobs` in each `per` after the canary. Without a rate, as fast as they end well, and at most
    /// 1,000 a second.
    pub fn then_rate(mut self, jobs: u32, per: Duration) -> Self {
        self.rate = Some((jobs, per));
        self
    }

    /// The share of jobs with a failed attempt, above 0 to 1, at which the redrive stops: of the canary, and then of
    /// the latest hundred jobs (or as many as the canary has, if that is more).
    pub fn stop_at(mut self, share: f64) -> Self {
        self.stop_at = share;
        self
    }

    fn checked(&self) -> Result<NewRedrive, RedriveError> {
        let wrong = |why: String| Err(RedriveError::Invalid(why));
        if self.canary == 0 || self.canary > CANARY_MAX {
            return wrong(format!("a canary has 1 to {CANARY_MAX} jobs, not {}", self.canary));
        }
        if !(self.stop_at > 0.0 && self.stop_at <= 1.0) {
            return wrong(format!(
                "a redrive stops at a share of failures above 0 % and up to 100 %, not at {} %",
                self.stop_at * 100.0
            ));
        }
        let rate = self.rate.map(|(jobs, per)| f64::from(jobs) / per.as_secs_f64());
        if rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
            return wrong("a rate is at least one job in some time".into());
        }
        // Within the bounds of the column.
        let canary = i32::try_from(self.canary).unwrap_or(i32::MAX);
        Ok(NewRedrive { canary, rate, stop_at: self.stop_at })
    }
}

/// Why a calm redrive did not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedriveError {
    /// The canary, the rate or the share is not possible.
    #[error("{0}")]
    Invalid(String),
    /// Postgres did not answer, or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Tenure {
    /// Begins to redrive the dead letters that the filter matches now, the oldest first: a few, and the others only if
    /// few of those fail. Returns at once; `None`: no dead letter matches. Submissions that were refused before they
    /// became jobs stay.
    ///
    /// The workers of the fleet go on with it, once a second, so that it outlives the program that began it. They
    /// redrive the canary, wait until each of its jobs has ended or failed an attempt, and then redrive the others at
    /// the rate. At most as many as the canary, and [`CalmRedrive::stop_at`] of those that have completed, are out at
    /// once. So a dependency that still is broken costs the canary; one that breaks meanwhile, little more than the
    /// share. When too many have failed, the redrive stops, and the rest stays dead.
    ///
    /// Cancel safe: the redrive has begun, or not.
    ///
    /// # Errors
    ///
    /// [`RedriveError`]: what is not possible, or Postgres did not answer. Then the redrive may have begun: look at
    /// [`Tenure::redrives`].
    pub async fn redrive_calmly(
        &self,
        filter: &DeadFilter,
        calm: CalmRedrive,
    ) -> Result<Option<RedriveRow>, RedriveError> {
        let new = calm.checked()?;
        Ok(self.store().start_redrive(filter, &new, self.actor()).await?)
    }

    /// Returns at most `limit` calm redrives, the latest first. Those that ended 30 days ago may be forgotten.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn redrives(&self, limit: u32) -> Result<Vec<RedriveRow>, StoreError> {
        self.store().redrives(None, limit.into()).await
    }

    /// Returns the calm redrive with this id.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn redrive_row(&self, id: Uuid) -> Result<Option<RedriveRow>, StoreError> {
        Ok(self.store().redrives(Some(id), 1).await?.pop())
    }

    /// Stops a calm redrive. The jobs that it has redriven run on; the others stay dead. `false`: it had ended, or
    /// no redrive has this id. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer, or refused. The call is safe to repeat.
    pub async fn stop_redrive(&self, id: Uuid) -> Result<bool, StoreError> {
        self.store().stop_redrive(id, self.actor()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_possible_is_refused_with_a_reason() {
        let second = Duration::from_secs(1);
        for (calm, part) in [
            (CalmRedrive::new().canary(0), "1 to 100000 jobs, not 0"),
            (CalmRedrive::new().canary(100_001), "not 100001"),
            (CalmRedrive::new().stop_at(0.0), "not at 0 %"),
            (CalmRedrive::new().stop_at(1.5), "not at 150 %"),
            (CalmRedrive::new().stop_at(f64::NAN), "not at NaN %"),
            (CalmRedrive::new().then_rate(0, second), "at least one job"),
            (CalmRedrive::new().then_rate(1, Duration::ZERO), "at least one job"),
        ] {
            let error = calm.checked().map(drop).map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|error| error.contains(part)), "{error:?}");
        }
    }
}
