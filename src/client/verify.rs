//! Verify: whether what must be true of every job is true, in a database that is in use.

use serde::Serialize;

use crate::{
    client::Tenure,
    job::JobId,
    store::{RuleBroken, StoreError},
};

/// What is looked for, and what it says of a job that breaks it.
const RULES: [(&str, &str); 9] = [
    ("stands_in_one_place", "it is live, finished or dead, and only one of these"),
    ("is_not_lost", "what was tried, had an effect or holds a unique key is still there"),
    (
        "is_owned_while_processing",
        "it has an owner, a claim and a sign of life exactly while it is processing",
    ),
    ("waits_for_its_message_or_the_relay", "queued, it has a message, or the relay will publish one"),
    ("keeps_its_bounds", "attempts within max_attempts, percents within 0 to 100"),
    ("completes_once", "no more than one of its attempts completed"),
    ("has_a_record_of_every_token", "each claim raised the token by one, and is on record"),
    ("ends_each_attempt_before_the_next", "no attempt began before the one before it had ended"),
    ("has_effects_of_its_own_attempts", "each of its effects was written by an attempt of its own"),
];

/// One rule, and the jobs that break it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verified {
    /// Its name.
    pub rule: &'static str,
    /// What is true of every job that keeps it.
    pub meaning: &'static str,
    /// How many jobs break it.
    pub jobs: u64,
    /// The first ten of them.
    pub examples: Vec<JobId>,
}

impl Tenure {
    /// Looks at every job, live, finished and dead, and says for each rule which jobs break it. All of them
    /// are of one moment, so it may be asked while jobs run.
    ///
    /// It reads every table as a whole: for a person, or a test, not for every minute.
    pub async fn verify(&self) -> Result<Vec<Verified>, StoreError> {
        let mut broken = self.store().verify().await?;
        let verified = |(rule, meaning)| {
            let found = broken.remove(rule).unwrap_or(RuleBroken { jobs: 0, examples: Vec::new() });
            Verified { rule, meaning, jobs: found.jobs, examples: found.examples }
        };
        Ok(RULES.into_iter().map(verified).collect())
    }
}
