//! Groups: jobs that wait for other jobs, and events for which jobs wait.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::{
    PgConnection, Postgres, Row,
    postgres::{PgArguments, PgRow},
    query,
    query::Query,
};
use uuid::Uuid;

use crate::{
    job::{JobError, JobId, Status, actor::Actor, claim::ClaimKey},
    observe::repeats,
    store::{
        Store, StoreError,
        rows::{DueJob, due_jobs, status},
        statement_list,
    },
};

statement_list! {
    LINK_JOBS = "sql" "link_jobs";
    ADD_EDGES = "sql" "add_edges";
    ADD_FOLLOWERS = "sql" "add_followers";
    BEHIND_OWN = "sql" "behind_own";
    JOIN_EDGES = "sql" "join_edges";
    KEEP_CANCELLED = "sql" "keep_cancelled";
    RELEASE_FOLLOWERS = "sql" "release_followers";
    REST_GROUP_NOTE = "sql" "rest_group_note";
    RESTING_NOTES = "sql" "resting_notes";
    MEND_GROUPS = "sql" "mend_groups";
    SWEEP_GROUPS = "sql" "sweep_groups";
    OUTPUTS = "sql" "outputs";
    STEP_STATES = "sql" "step_states";
    AWAIT_EVENT = "sql" "await_event";
    SIGNAL = "sql" "signal";
    SIGNAL_BY = "sql" "signal_by";
    WAITS_FOR = "sql" "waits_for";
    GRAPH = "sql" "graph";
    NODES = "sql" "nodes";
}

/// The end of a job before a follower.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EndBefore {
    pub(crate) id: JobId,
    /// Its place among them.
    pub(crate) n: i64,
    pub(crate) is_completed: bool,
    /// JSON text.
    pub(crate) output: Option<String>,
}

/// How the jobs of a step have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepStates {
    pub(crate) jobs: u64,
    pub(crate) open: u64,
    /// How many have failed or were cancelled, and the first of them.
    pub(crate) lacking: u64,
    pub(crate) first_lacking: Option<JobId>,
}

/// What is known of an event for which an attempt waits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EventSeen {
    /// It has not come. How long the job still waits; `None`: for ever.
    Waits(Option<Duration>),
    /// Its payload, as JSON text.
    Came(String),
    /// The job has stopped waiting.
    Late,
    /// Another effect of the job has the name.
    NameTaken,
    /// The job is not this attempt's any more.
    Lost,
}

/// For what a held job waits that no lane holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "for", rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitsFor {
    /// For jobs before it.
    Jobs {
        /// The step of the job that waits; `None`: the job has not started, and follows others of its group.
        step: Option<String>,
        /// How many have ended.
        ended: u64,
        /// How many there are.
        of: u64,
        /// How many of those that have ended have failed, or were cancelled.
        lacking: u64,
    },
    /// For an event.
    Event {
        /// The event's name.
        name: String,
        /// Until when; `None`: for ever.
        until: Option<DateTime<Utc>>,
    },
}

impl std::fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Jobs { step, ended, of, lacking } => {
                match step {
                    Some(step) => write!(f, "waits for the jobs of its step {step:?}")?,
                    None => write!(f, "waits for the jobs before it")?,
                }
                write!(f, ": {ended} of {of} have ended")?;
                if *lacking > 0 { write!(f, ", {lacking} of them without completing") } else { Ok(()) }
            }
            Self::Event { name, until: None } => write!(f, "waits for the event {name:?}"),
            Self::Event { name, until: Some(until) } => {
                write!(f, "waits for the event {name:?} until {}", until.format("%Y-%m-%d %H:%M:%S UTC"))
            }
        }
    }
}

/// Which job of a group waits for which.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GroupEdge {
    /// The job that comes before.
    pub before: JobId,
    /// The job that waits for it.
    pub after: JobId,
    /// The step of the running job that waits, if it is one.
    pub step: Option<String>,
    /// How `before` has ended: `completed`, `failed`, `cancelled`, or `purged` after it failed. `None`: it has not.
    pub state: Option<String>,
}

/// A job of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GroupJob {
    /// Its id.
    pub id: JobId,
    /// Its queue.
    pub queue: String,
    /// Its kind.
    pub kind: String,
    /// Its status. [`None`]: it is gone.
    pub status: Option<Status>,
    /// Its progress, 0 to 100.
    pub progress: Option<f32>,
    /// Whether it is queued, and waits for other jobs, for an event or for its lane.
    pub is_held: bool,
}

impl GroupJob {
    /// Its state in a word: its status, or `held` or `gone`.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self.status {
            None => "gone",
            Some(_) if self.is_held => "held",
            Some(status) => status.as_str(),
        }
    }

    /// Whether it has ended, as far as is known.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.status.is_none_or(Status::is_finished)
    }
}

/// The answer to a signal.
#[must_use = "the event may have reached no job"]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Signalled {
    /// The job has the event, and runs if it waited for it.
    Delivered,
    /// An event of this name had come before. That one counts.
    Known,
    /// The job had stopped waiting for it.
    Late,
    /// A step or an effect of the job has this name.
    NameTaken,
    /// The job has ended.
    Finished,
    /// There is no such job.
    NotFound,
}

impl Signalled {
    fn of(word: &str) -> Self {
        match word {
            "signalled" => Self::Delivered,
            "known" => Self::Known,
            "late" => Self::Late,
            "finished" => Self::Finished,
            "not_found" => Self::NotFound,
            _ => Self::NameTaken,
        }
    }
}

fn seconds(row: &PgRow, name: &str) -> Result<Option<Duration>, sqlx::Error> {
    let seconds: Option<f64> = row.try_get(name)?;
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()))
}

fn unsigned(row: &PgRow, name: &str) -> Result<u64, sqlx::Error> {
    Ok(row.try_get::<i64, _>(name)?.unsigned_abs())
}

/// Lets new jobs of a group wait: each job of `afters` for the job of `befores` at its place.
pub(crate) async fn link_jobs(
    connection: &mut PgConnection,
    group: Uuid,
    befores: &[JobId],
    afters: &[JobId],
) -> Result<(), StoreError> {
    query(LINK_JOBS).bind(befores).bind(afters).bind(group).execute(connection).await?;
    Ok(())
}

/// Lets a step of a running job wait for these jobs.
pub(crate) async fn add_edges(
    connection: &mut PgConnection,
    group: Uuid,
    befores: &[JobId],
    after: JobId,
    step: &str,
) -> Result<(), StoreError> {
    query(ADD_EDGES).bind(befores).bind(after).bind(group).bind(step).execute(connection).await?;
    Ok(())
}

/// Returns one of these new jobs that stands behind `own` in its ordered lane, with the lane's queue and key.
pub(crate) async fn behind_own(
    connection: &mut PgConnection,
    jobs: &[JobId],
    own: JobId,
) -> Result<Option<(JobId, String, String)>, StoreError> {
    let row = query(BEHIND_OWN).bind(jobs).bind(own).fetch_optional(connection).await?;
    let read = |row: PgRow| Ok((row.try_get("id")?, row.try_get("queue")?, row.try_get("lane")?));
    Ok(row.map(read).transpose().map_err(|error: sqlx::Error| error)?)
}

/// Notes jobs that wait for others, each with what it does when one of these fails.
pub(crate) async fn add_followers(
    connection: &mut PgConnection,
    group: Uuid,
    jobs: &[JobId],
    on_failure: &[&str],
) -> Result<(), StoreError> {
    query(ADD_FOLLOWERS).bind(jobs).bind(on_failure).bind(group).execute(connection).await?;
    Ok(())
}

/// Puts new jobs before the jobs that wait for `member`. Returns how many edges that made.
pub(crate) async fn join_edges(
    connection: &mut PgConnection,
    jobs: &[JobId],
    member: JobId,
) -> Result<u64, StoreError> {
    Ok(query(JOIN_EDGES).bind(jobs).bind(member).execute(connection).await?.rows_affected())
}

/// The signal of a person is noted; that of a program is the course of its jobs.
fn signal<'q>(job: JobId, name: &'q str, payload: &'q str, by: &Actor) -> Query<'q, Postgres, PgArguments> {
    if by.is_person() {
        query(SIGNAL_BY).bind(job).bind(name).bind(payload).bind(by.bound())
    } else {
        query(SIGNAL).bind(job).bind(name).bind(payload)
    }
}

/// Says of which job the followers stay for a while.
fn tell_at_rest(note: Option<&PgRow>, error: StoreError) -> Result<(), StoreError> {
    let Some(note) = note else { return Ok(()) };
    let (job, queue): (JobId, Option<String>) = (note.try_get("job_id")?, note.try_get("queue")?);
    let error = JobError::from(error).text();
    if let Some(left_out) = repeats::tell(&format!("followers of {job}"), &error) {
        tracing::warn!(
            %job,
            queue,
            error,
            left_out,
            "Postgres refuses to write a job that follows this one; those that follow others go on, and these are \
             tried again every ten seconds"
        );
    }
    Ok(())
}

impl Store {
    /// Works off at most `most` ends of jobs of groups. Returns the jobs to publish, and whether there is more to do.
    ///
    /// An end whose followers Postgres refuses to write rests for a while, and keeps no other from its followers.
    pub(crate) async fn release_followers(&self, most: i32) -> Result<(Vec<DueJob>, bool), StoreError> {
        let mut now = most;
        let mut rows = loop {
            match self.rows(query(RELEASE_FOLLOWERS).bind(now)).await {
                Err(error) if error.is_of_one_row() && now > 1 => now = (now / 8).max(1),
                Err(error) if error.is_of_one_row() => {
                    let at_rest = self.rows(query(REST_GROUP_NOTE)).await?;
                    tell_at_rest(at_rest.first(), error)?;
                    return Ok((Vec::new(), !at_rest.is_empty()));
                }
                rows => break rows?,
            }
        };
        let is_job = |row: &PgRow| row.try_get::<Option<JobId>, _>("id").is_ok_and(|id| id.is_some());
        let has_more = rows.last().is_some_and(|last| !is_job(last));
        rows.retain(is_job);
        Ok((due_jobs(&rows)?, has_more || now < most))
    }

    /// Returns ended jobs whose followers Postgres has refused to write of late.
    pub(crate) async fn resting_notes(&self, most: i64) -> Result<Vec<JobId>, StoreError> {
        let rows = self.rows_for_doctor(query(RESTING_NOTES).bind(most)).await?;
        Ok(rows.iter().map(|row| row.try_get("job_id")).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Looks for unnoted ends before `most` followers after this one. Returns the last, or `None` after the end.
    pub(crate) async fn mend_groups(&self, after: Uuid, most: i32) -> Result<Option<Uuid>, StoreError> {
        let rows = self.rows(query(MEND_GROUPS).bind(after).bind(most)).await?;
        Ok(rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("last")?)
    }

    /// Removes what is known of followers that are gone, among `most` after this one. Returns the last, or `None` after
    /// the end.
    pub(crate) async fn sweep_groups(&self, after: Uuid, most: i32) -> Result<Option<Uuid>, StoreError> {
        let rows = self.rows(query(SWEEP_GROUPS).bind(after).bind(most)).await?;
        Ok(rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("last")?)
    }

    /// Returns at most `limit` of the jobs before this one, or of its step, in order, after the place `n`.
    pub(crate) async fn outputs(
        &self,
        job: JobId,
        step: Option<&str>,
        n: i64,
        limit: i64,
    ) -> Result<Vec<EndBefore>, StoreError> {
        let rows = self.rows(query(OUTPUTS).bind(job).bind(step).bind(n).bind(limit)).await?;
        let end = |row: &PgRow| {
            Ok(EndBefore {
                id: row.try_get("before")?,
                n: row.try_get("n")?,
                is_completed: row.try_get::<Option<&str>, _>("state")? == Some("completed"),
                output: row.try_get("output")?,
            })
        };
        Ok(rows.iter().map(end).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns how the jobs of a step have ended.
    pub(crate) async fn step_states(&self, job: JobId, step: &str) -> Result<StepStates, StoreError> {
        let rows = self.rows(query(STEP_STATES).bind(job).bind(step)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(StepStates {
            jobs: unsigned(row, "jobs")?,
            open: unsigned(row, "open")?,
            lacking: unsigned(row, "lacking")?,
            first_lacking: row.try_get("first_lacking")?,
        })
    }

    /// Notes that an attempt waits for an event, at most for `patience`, and returns what is known of it.
    pub(crate) async fn await_event(
        &self,
        key: &ClaimKey,
        name: &str,
        patience: Option<Duration>,
    ) -> Result<EventSeen, StoreError> {
        let query = query(AWAIT_EVENT).bind(key.job).bind(key.token).bind(key.claim).bind(name);
        let rows = self.rows(query.bind(patience.map(|patience| patience.as_secs_f64()))).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(match row.try_get("answer")? {
            "waits" => EventSeen::Waits(seconds(row, "left_s")?),
            "came" => EventSeen::Came(row.try_get("payload")?),
            "late" => EventSeen::Late,
            "lost" => EventSeen::Lost,
            _ => EventSeen::NameTaken,
        })
    }

    /// Tells a job of an event. `payload` is JSON text.
    pub(crate) async fn signal(
        &self,
        job: JobId,
        name: &str,
        payload: &str,
        by: &Actor,
    ) -> Result<Signalled, StoreError> {
        let rows = self.rows(signal(job, name, payload, by)).await?;
        Ok(Signalled::of(rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("answer")?))
    }

    /// Tells a job of an event inside the user's transaction.
    pub(crate) async fn signal_in(
        connection: &mut PgConnection,
        job: JobId,
        name: &str,
        payload: &str,
        by: &Actor,
    ) -> Result<Signalled, StoreError> {
        let row = signal(job, name, payload, by).fetch_one(connection).await?;
        Ok(Signalled::of(row.try_get("answer")?))
    }

    /// Returns for what these jobs wait, besides their lanes.
    pub(crate) async fn waits_for(&self, jobs: &[JobId]) -> Result<Vec<(JobId, WaitsFor)>, StoreError> {
        let rows = self.rows(query(WAITS_FOR).bind(jobs)).await?;
        let waits = |row: &PgRow| {
            let step: Option<String> = row.try_get("step")?;
            let waits = match row.try_get::<Option<i64>, _>("jobs")? {
                Some(jobs) => WaitsFor::Jobs {
                    step,
                    ended: unsigned(row, "ended")?,
                    of: jobs.unsigned_abs(),
                    lacking: unsigned(row, "lacking")?,
                },
                None => WaitsFor::Event { name: step.unwrap_or_default(), until: row.try_get("until")? },
            };
            Ok((row.try_get("job_id")?, waits))
        };
        Ok(rows.iter().map(waits).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns at most `limit` edges of the group of this job after the place `after`, the oldest first, and the place
    /// of the last. None: the job is in no group.
    pub async fn graph(
        &self,
        job: JobId,
        after: i64,
        limit: i64,
    ) -> Result<(Vec<GroupEdge>, i64), StoreError> {
        let rows = self.rows(query(GRAPH).bind(job).bind(limit).bind(after)).await?;
        let edge = |row: &PgRow| {
            Ok(GroupEdge {
                before: row.try_get("before")?,
                after: row.try_get("after")?,
                step: row.try_get("step")?,
                state: row.try_get("state")?,
            })
        };
        let last = rows.last().map(|row| row.try_get("n")).transpose()?.unwrap_or(after);
        Ok((rows.iter().map(edge).collect::<Result<_, sqlx::Error>>()?, last))
    }

    /// Returns what is shown of these jobs of a group. One that is gone is left out.
    pub(crate) async fn nodes(&self, jobs: &[JobId]) -> Result<Vec<GroupJob>, StoreError> {
        let rows = self.rows(query(NODES).bind(jobs)).await?;
        let node = |row: &PgRow| {
            Ok(GroupJob {
                id: row.try_get("id")?,
                queue: row.try_get("queue")?,
                kind: row.try_get("kind")?,
                status: Some(status(row)?),
                progress: row.try_get("progress")?,
                is_held: row.try_get("is_held")?,
            })
        };
        Ok(rows.iter().map(node).collect::<Result<_, sqlx::Error>>()?)
    }
}
