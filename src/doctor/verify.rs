//! Verify: checks the rules that every job must keep, in a database that is in use.

use std::time::Duration;

use serde::Serialize;
use tokio::time::sleep;

use super::store::RuleBroken;
use crate::{client::Tenure, job::JobId, store::StoreError};

/// Each rule's name, and what holds of every job that keeps it.
const RULES: [(&str, &str); 14] = [
    ("stands_in_one_place", "a job is live, finished or dead, and only one of these"),
    ("is_not_lost", "a job with an attempt, an effect or a unique key still exists"),
    (
        "is_owned_while_processing",
        "a job has an owner, a claim and a heartbeat exactly while it is processing",
    ),
    ("waits_for_its_message_or_the_relay", "a queued job has a message, or the relay will publish one"),
    ("keeps_its_bounds", "attempts stay within max_attempts, percents within 0 to 100"),
    ("completes_once", "at most one attempt of a job completed"),
    ("has_a_record_of_every_token", "each claim raised the token by one, and is on record"),
    ("ends_each_attempt_before_the_next", "no attempt began before the previous one had ended"),
    ("has_effects_of_its_own_attempts", "each effect of a job was written by one of its attempts"),
    ("runs_within_the_limit_of_its_lane", "no lane runs more jobs than its limit"),
    (
        "has_a_place_while_held",
        "a held job stands in its lane, is woken when it is due, or waits for a job or an event",
    ),
    (
        "follows_jobs_that_have_not_ended",
        "a job that has not started is held only for jobs that have not completed",
    ),
    ("waits_only_for_jobs_that_are_live", "a job waits for no job whose end was noted by none"),
    (FREE_LANE, "no lane with a free slot and a token leaves a due job waiting for seconds"),
];

/// A rule that a moment may seem to break.
const FREE_LANE: &str = "leaves_no_lane_free";
/// How long a job must break it. A worker that dies is stood in for within two seconds.
const BROKEN_FOR: Duration = Duration::from_secs(3);

/// One rule, and the jobs that break it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RuleCheck {
    /// The rule's name.
    pub rule: &'static str,
    /// What holds of every job that keeps the rule.
    pub meaning: &'static str,
    /// How many jobs break the rule.
    pub jobs: u64,
    /// The first ten of them.
    pub examples: Vec<JobId>,
}

impl Tenure {
    /// Checks every job, live, finished and dead, and returns for each rule the jobs that break it. All of them
    /// are of one moment, so it may be called while jobs run.
    ///
    /// Where a lane looks free and a job of it waits, it looks again three seconds later.
    ///
    /// It reads every table as a whole: call it by hand or in a test, not every minute.
    ///
    /// Cancel safe: it only reads.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer, or refused a read.
    pub async fn verify(&self) -> Result<Vec<RuleCheck>, StoreError> {
        let mut broken = self.store().verify().await?;
        if broken.get(FREE_LANE).is_some_and(|found| found.jobs > 0) {
            sleep(BROKEN_FOR).await;
            let again = self.store().verify().await?.remove(FREE_LANE);
            let again = again.map(|found| found.examples).unwrap_or_default();
            if let Some(found) = broken.get_mut(FREE_LANE) {
                found.examples.retain(|job| again.contains(job));
                found.jobs = found.examples.len() as u64;
            }
        }
        let verified = |(rule, meaning)| {
            let found = broken.remove(rule).unwrap_or(RuleBroken { jobs: 0, examples: Vec::new() });
            RuleCheck { rule, meaning, jobs: found.jobs, examples: found.examples }
        };
        Ok(RULES.into_iter().map(verified).collect())
    }
}
