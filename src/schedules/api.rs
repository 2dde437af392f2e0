//! Schedules: a job at each tick of a cron expression, in a time zone. The database keeps them: any worker enqueues
//! their jobs, and programs add, pause and remove them while workers run.
//!
//! Not here: the times of the ticks, and enqueueing at them (`schedules::recover`).

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    time::Duration,
};

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    job::CronSchedule,
    store::{NewSchedule, Put, Replaces, ScheduleRow},
};
use crate::{
    client::{
        Tenure,
        enqueue::{Enqueued, JobRequest},
    },
    enqueue::insert::EnqueueError,
    job::{MissedTicks, NameError, Overlap, options::JobOptions},
    store::{Store, StoreError},
};

/// The longest spread of a schedule's jobs.
const SPREAD_MAX: Duration = Duration::from_hours(24);
/// Its name among the options of a schedule, in seconds.
const SPREAD: &str = "spread_s";

/// A job at each tick of a cron expression.
///
/// ```no_run
/// # use tenure::{JobRequest, Tenure, schedules::{MissedTicks, Schedule}};
/// # async fn f(tenure: Tenure) -> Result<(), Box<dyn std::error::Error>> {
/// let report = JobRequest::new("reports", "daily", serde_json::json!({ "format": "pdf" }));
/// let schedule = Schedule::new("daily-report", "0 3 * * MON-FRI", report)
///     .time_zone("Europe/Berlin")
///     .missed(MissedTicks::Once)
///     .tick_field("at");
/// tenure.put_schedule(schedule).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "give it to `Tenure::put_schedule`"]
pub struct Schedule {
    name: String,
    cron: String,
    time_zone: String,
    job: JobRequest,
    tick_field: Option<String>,
    missed: MissedTicks,
    overlap: Overlap,
    spread: Option<Duration>,
}

impl Schedule {
    /// Creates a schedule of this name: 1 to 64 of A-Z a-z 0-9 _ -. The cron expression has five fields (minute, hour,
    /// day, month, weekday) or six (with seconds before them), and the usual extensions: names, ranges, steps, `L`,
    /// `W`, `#`, `@daily`. Its time zone is UTC until [`Schedule::time_zone`] sets another.
    pub fn new(name: impl Into<String>, cron: impl Into<String>, job: impl Into<JobRequest>) -> Self {
        Self {
            name: name.into(),
            cron: cron.into(),
            time_zone: "UTC".into(),
            job: job.into(),
            tick_field: None,
            missed: MissedTicks::default(),
            overlap: Overlap::default(),
            spread: None,
        }
    }

    /// Sets the time zone of the cron expression, by its name in the IANA database. When clocks go forward, a tick in
    /// the skipped hour comes right after it; when they go back, a tick at a fixed time comes once.
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.time_zone = name.into();
        self
    }

    /// Sets what happens to ticks that were missed because no worker ran, or Postgres was away, for more than a
    /// minute. Default [`MissedTicks::Once`].
    pub fn missed(mut self, policy: MissedTicks) -> Self {
        self.missed = policy;
        self
    }

    /// Sets what a tick does while the job of the last tick has not ended. Default [`Overlap::Allow`]. A policy other
    /// than that counts one job for several missed ticks, and jobs of [`Tenure::run_schedule`] do not count.
    pub fn overlap(mut self, policy: Overlap) -> Self {
        self.overlap = policy;
        self
    }

    /// Has each job be due within this time of its tick, at a moment that the schedule's name decides: of thousands of
    /// schedules with one tick, each keeps its own. At most a day. A [`Schedule::tick_field`] has the tick's time.
    pub fn spread(mut self, within: Duration) -> Self {
        self.spread = Some(within);
        self
    }

    /// Gives the jobs the options of a stored schedule: a form does not show them.
    #[doc(hidden)]
    pub fn options_of(mut self, stored: &ScheduleRow) -> Self {
        if let Some(options) = &stored.options {
            self.job = self.job.with_options(JobOptions::of_schedule(options));
            let spread_s = options[SPREAD].as_f64();
            self.spread = spread_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        }
        self
    }

    /// Adds a field of this name to the payload, which must be a JSON object: the time of the tick, such as
    /// `2030-01-31T12:00:00Z`, the same in all attempts.
    pub fn tick_field(mut self, name: impl Into<String>) -> Self {
        self.tick_field = Some(name.into());
        self
    }
}

/// The result of [`Tenure::put_schedule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ScheduleOutcome {
    /// The next tick.
    pub next_at: DateTime<Utc>,
    /// Whether the schedule is new; if not, the one of this name was changed.
    pub is_new: bool,
    /// Since when the schedule is paused, and so has no tick; `None`: it is active.
    pub paused_at: Option<DateTime<Utc>>,
}

/// The result of [`Tenure::pause_schedule`] or [`Tenure::resume_schedule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PauseOutcome {
    /// Whether the schedule was paused before.
    pub was_paused: bool,
    /// The next tick; `None` while the schedule is paused.
    pub next_at: Option<DateTime<Utc>>,
}

/// Why a schedule was not put or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The schedule's name is invalid.
    #[error("the schedule's name {name:?} is not valid: it must be 1 to 64 of A-Z a-z 0-9 _ -")]
    Name {
        /// The given name.
        name: String,
    },
    /// The cron expression or the time zone is invalid.
    #[error("{0}")]
    Ticks(String),
    /// The cron expression has no tick in the future.
    #[error("cron expression {cron:?} has no tick in the future; correct it, or remove the schedule")]
    Never {
        /// The expression.
        cron: String,
    },
    /// The job is invalid.
    #[error("the schedule's job cannot be enqueued: {0}")]
    Job(#[source] EnqueueError),
    /// An option that jobs of a schedule cannot have.
    #[error("{0}")]
    Option(&'static str),
    /// There is no schedule of this name.
    #[error("there is no schedule {name:?}; `tenure schedules list` shows them")]
    NotFound {
        /// The name.
        name: String,
    },
    /// Postgres did not answer, or refused. Try again: the call is safe to repeat.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ScheduleOutcome {
    fn of(Put { next_at, paused_at, is_new }: Put) -> Self {
        Self { next_at, is_new, paused_at }
    }
}

/// A schedule to put: `.await` it, or pass it a transaction.
#[derive(Debug)]
#[must_use = "nothing is put until you `.await` this, or pass a transaction to `tx`"]
pub struct PutSchedule<'t> {
    tenure: &'t Tenure,
    schedule: Schedule,
}

impl PutSchedule<'_> {
    /// Puts the schedule inside the user's transaction: it exists, or is changed, if and when that commits. A worker
    /// finds its first tick within a few seconds of it.
    ///
    /// # Errors
    ///
    /// See [`ScheduleError`]. After an error of Postgres the transaction is aborted: roll it back.
    ///
    /// Cancel safe in this sense: if the future is dropped, the schedule may be part of the transaction or not. Roll
    /// the transaction back.
    pub async fn tx(self, tx: &mut sqlx::PgConnection) -> Result<ScheduleOutcome, ScheduleError> {
        let Self { tenure, schedule } = self;
        let new = schedule.checked(tenure).await?;
        let put = Store::put_schedule_in(tx, &new, tenure.actor()).await?;
        // Any version may be replaced.
        put.map(ScheduleOutcome::of).ok_or(ScheduleError::NotFound { name: new.name })
    }
}

impl<'t> IntoFuture for PutSchedule<'t> {
    type Output = Result<ScheduleOutcome, ScheduleError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 't>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { tenure, schedule } = self;
        let name = schedule.name.clone();
        Box::pin(async move {
            let put = tenure.put_schedule_over(schedule, Replaces::Any).await?;
            // Any version may be replaced.
            put.ok_or(ScheduleError::NotFound { name })
        })
    }
}

impl Schedule {
    async fn checked(self, tenure: &Tenure) -> Result<NewSchedule, ScheduleError> {
        let Self { name, cron, time_zone, job, tick_field, missed, overlap, spread } = self;
        check_name(&name)?;
        let ticks = CronSchedule::new(&cron, &time_zone).map_err(ScheduleError::Ticks)?;
        let job = job.for_schedule(tenure.accepts()).map_err(ScheduleError::Job)?;
        if let Some(field) = &tick_field {
            if tenure.codecs().has(&job.kind) {
                return Err(ScheduleError::Option(
                    "tick_field cannot be put into a payload that a codec seals; leave it out for this kind",
                ));
            }
            if !job.payload.trim_start().starts_with('{') {
                return Err(ScheduleError::Option("tick_field needs a payload that is a JSON object"));
            }
            if field.is_empty() || field.contains('\0') {
                return Err(ScheduleError::Option(
                    "tick_field is the name of a field: not empty, without NUL",
                ));
            }
        }
        if job.lane().is_none()
            && tenure.store().lane_settings(Some(&job.queue)).await?.iter().any(|lanes| lanes.required)
        {
            let why = format!("queue {:?} takes no job without a lane", job.queue);
            return Err(ScheduleError::Job(EnqueueError::LaneRequired(why)));
        }
        if spread.is_some_and(|spread| spread > SPREAD_MAX) {
            return Err(ScheduleError::Option("spread is at most a day"));
        }
        let mut options = job.rare.as_ref().and_then(|options| serde_json::to_value(options).ok());
        if let Some(spread) = spread.filter(|spread| !spread.is_zero()) {
            options.get_or_insert_with(|| json!({}))[SPREAD] = json!(spread.as_secs_f64());
        }
        let now = tenure.store().database_time().await?;
        let first = ticks.after(now).ok_or_else(|| ScheduleError::Never { cron: cron.clone() })?;
        let options = options.map(|options| options.to_string());
        Ok(NewSchedule { name, cron, time_zone, job, tick_field, missed, overlap, first, options })
    }
}

/// Adds a field to a JSON object. Works on the text, so that numbers keep their digits; of two fields of one name
/// Postgres takes the last.
fn with_field(object: &str, field: &str, value: &str) -> String {
    let Some(inside) = object.trim_end().strip_suffix('}') else { return object.to_owned() };
    let comma = if inside.trim_end().ends_with('{') { "" } else { "," };
    format!("{inside}{comma}{}:{}}}", Value::from(field), Value::from(value))
}

fn check_name(name: &str) -> Result<(), ScheduleError> {
    crate::job::check_queue(name).map_err(|_: NameError| ScheduleError::Name { name: name.to_owned() })
}

impl Tenure {
    /// Creates a schedule, or changes the one of its name. A program may put its schedules whenever it starts: a
    /// schedule whose ticks stay the same keeps its next tick, and a paused one stays paused.
    ///
    /// Await it, or pass a transaction to [`PutSchedule::tx`].
    ///
    /// Cancel safe: the schedule is put or not.
    ///
    /// # Errors
    ///
    /// The future returns [`ScheduleError`]: the schedule is invalid, and the error says what to write instead.
    pub fn put_schedule(&self, schedule: Schedule) -> PutSchedule<'_> {
        PutSchedule { tenure: self, schedule }
    }

    /// Puts a schedule in the place of one version. `None`: there is another version, or none; nothing was changed.
    #[doc(hidden)]
    pub async fn put_schedule_over(
        &self,
        schedule: Schedule,
        replaces: Replaces,
    ) -> Result<Option<ScheduleOutcome>, ScheduleError> {
        let new = schedule.checked(self).await?;
        let put = self.store().put_schedule(&new, replaces, self.actor()).await?;
        // A program puts its schedules whenever it starts: only a new one is worth an announcement.
        if put.is_some_and(|put| put.is_new) {
            self.nats().announce_schedules().await;
        }
        Ok(put.map(ScheduleOutcome::of))
    }

    /// Returns all schedules, by name.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: Postgres did not answer in time, or refused the read.
    pub async fn schedules(&self) -> Result<Vec<ScheduleRow>, StoreError> {
        self.store().list_schedules(None).await
    }

    /// Pauses a schedule: it has no ticks from now on.
    ///
    /// Cancel safe: the schedule is paused or not.
    ///
    /// # Errors
    ///
    /// [`ScheduleError::Name`] for an invalid name; [`ScheduleError::NotFound`]; [`ScheduleError::Store`] if Postgres
    /// did not answer, or refused.
    pub async fn pause_schedule(&self, name: &str) -> Result<PauseOutcome, ScheduleError> {
        check_name(name)?;
        let paused = self.store().pause_schedule(name, self.actor()).await?;
        let was_paused = paused.ok_or_else(|| ScheduleError::NotFound { name: name.to_owned() })?;
        Ok(PauseOutcome { was_paused, next_at: None })
    }

    /// Resumes a schedule at its next tick in the future: ticks during the pause do not count as missed. A schedule
    /// that was not paused keeps its next tick.
    ///
    /// Cancel safe: the schedule is resumed or not.
    ///
    /// # Errors
    ///
    /// Those of [`Tenure::pause_schedule`]; [`ScheduleError::Never`] if its cron expression has no tick in the future,
    /// and [`ScheduleError::Ticks`] if this version cannot read it.
    pub async fn resume_schedule(&self, name: &str) -> Result<PauseOutcome, ScheduleError> {
        check_name(name)?;
        let not_found = || ScheduleError::NotFound { name: name.to_owned() };
        // If the schedule changes between the two statements, it is read again.
        loop {
            let schedule = self.store().list_schedules(Some(name)).await?.pop().ok_or_else(not_found)?;
            if schedule.paused_at.is_none() {
                return Ok(PauseOutcome { was_paused: false, next_at: Some(schedule.next_at) });
            }
            let ticks =
                CronSchedule::new(&schedule.cron, &schedule.time_zone).map_err(ScheduleError::Ticks)?;
            let now = self.store().database_time().await?;
            let next =
                ticks.after(now).ok_or_else(|| ScheduleError::Never { cron: schedule.cron.clone() })?;
            let next_at = self.store().resume_schedule(&schedule, next, self.actor()).await?;
            if next_at.is_some() {
                self.nats().announce_schedules().await;
                return Ok(PauseOutcome { was_paused: true, next_at });
            }
        }
    }

    /// Enqueues a schedule's job now, outside its ticks: its next tick stays, and a paused schedule stays paused. A
    /// [`Schedule::tick_field`] gets the time of this call.
    ///
    /// Not idempotent: each call enqueues a job.
    ///
    /// Cancel safe, as [`Tenure::enqueue`] is.
    ///
    /// # Errors
    ///
    /// [`ScheduleError::Name`] for an invalid name; [`ScheduleError::NotFound`]; [`ScheduleError::Job`] if the job
    /// cannot be enqueued, such as into a full queue; [`ScheduleError::Store`] if Postgres did not answer, and a job
    /// may have been enqueued, or refused.
    pub async fn run_schedule(&self, name: &str) -> Result<Enqueued, ScheduleError> {
        self.run_schedule_keyed(name, None).await
    }

    /// [`Tenure::run_schedule`] with a unique key for the job.
    #[doc(hidden)]
    pub async fn run_schedule_keyed(
        &self,
        name: &str,
        key: Option<String>,
    ) -> Result<Enqueued, ScheduleError> {
        check_name(name)?;
        let not_found = || ScheduleError::NotFound { name: name.to_owned() };
        let schedule = self.store().list_schedules(Some(name)).await?.pop().ok_or_else(not_found)?;
        let mut payload = schedule.payload_json.map_or("null".into(), |json| json.get().to_owned());
        if let Some(field) = schedule.tick_field {
            let now = self.store().database_time().await?.format("%Y-%m-%dT%H:%M:%SZ").to_string();
            payload = with_field(&payload, &field, &now);
        }
        let options = schedule.options.as_ref().map(JobOptions::of_schedule).unwrap_or_default();
        let mut job = JobRequest::from_row(&schedule.queue, &schedule.kind, payload).with_options(options);
        if let Some(key) = key {
            job = job.unique_key(key);
        }
        self.enqueue(job.max_attempts(schedule.max_attempts)).await.map_err(|error| match error {
            EnqueueError::Store(error) => error.into(),
            error => ScheduleError::Job(error),
        })
    }

    /// Removes a schedule; the jobs of its ticks stay. Returns `false` if there is no schedule of this name.
    ///
    /// Cancel safe: the schedule is removed or not.
    ///
    /// # Errors
    ///
    /// [`ScheduleError::Name`] for an invalid name; [`ScheduleError::Store`] if Postgres did not answer, or refused.
    pub async fn remove_schedule(&self, name: &str) -> Result<bool, ScheduleError> {
        check_name(name)?;
        Ok(self.store().remove_schedule(name, self.actor()).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::with_field;

    #[test]
    fn a_field_is_added_to_an_object_and_every_digit_stays() {
        for (object, with) in [
            ("{}", r#"{"a\"t":"now"}"#),
            (r#"{"n":3.14159265358979323846}"#, r#"{"n":3.14159265358979323846,"a\"t":"now"}"#),
            ("[1]", "[1]"),
        ] {
            assert_eq!(with_field(object, "a\"t", "now"), with);
        }
    }
}
