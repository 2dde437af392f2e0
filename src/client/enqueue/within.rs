//! Within: the jobs of groups and of schedules, whose time and key are not their own.

use chrono::{DateTime, NaiveDate, NaiveTime, Utc};
use uuid::Uuid;

use super::{Accepts, JobRequest};
use crate::{
    enqueue::insert::EnqueueError,
    job::{duration::written, options::JobOptions},
    store::{NewJob, PublishedBy},
};

/// When a held job is due. Postgres's `infinity` is no time to chrono.
const NEVER: DateTime<Utc> = match NaiveDate::from_ymd_opt(9999, 1, 1) {
    Some(day) => day.and_time(NaiveTime::MIN).and_utc(),
    None => DateTime::UNIX_EPOCH,
};

impl JobRequest {
    /// Turns the request into a job of a group. `waits`: it follows others.
    pub(crate) fn in_group(
        mut self,
        accepts: Accepts<'_>,
        group: Option<Uuid>,
        waits: bool,
    ) -> Result<NewJob, EnqueueError> {
        if let Some(value) =
            self.delay.map(written).or(self.run_at.map(|at| at.to_rfc3339())).filter(|_| waits)
        {
            let expected = "left out: the job starts when those before it have ended";
            return Err(EnqueueError::Option { what: "the time of a follower", value, expected });
        }
        if waits && self.expiry_of_type {
            self.options.expires_in_s = None;
        }
        if let Some(within) = self.options.expires_in_s.filter(|_| waits) {
            let expected = "left out: a follower is due when those before it have ended; give it a not_after";
            return Err(EnqueueError::Option { what: "expires_in", value: format!("{within} s"), expected });
        }
        self.options = self.options_without_key_of_type();
        self.options.group_id = group;
        let published_by = if waits { PublishedBy::Relay } else { PublishedBy::Caller };
        let job = self.checked(accepts, published_by)?;
        Ok(NewJob { run_at: if waits { Some(NEVER) } else { job.run_at }, ..job })
    }

    /// Turns the request into the job of a schedule's ticks.
    pub(crate) fn for_schedule(mut self, accepts: Accepts<'_>) -> Result<NewJob, EnqueueError> {
        let own = "left out: each tick of a schedule has its own job, due at the tick";
        let delay = self.delay.map(written);
        let run_at = self.run_at.map(|at| at.to_rfc3339());
        for (what, value) in [
            ("a key", self.options.any_key().filter(|_| !self.key_of_type).map(str::to_owned)),
            ("delay", delay),
            ("run_at", run_at),
            ("trace_context", self.trace_context.clone()),
            ("not_after", self.options.not_after.map(|at| at.to_rfc3339())),
        ] {
            if let Some(value) = value {
                return Err(EnqueueError::Option { what, value, expected: own });
            }
        }
        self.options = JobOptions { longest_s: None, ..self.options_without_key_of_type() };
        self.checked(accepts, PublishedBy::Relay)
    }
}
