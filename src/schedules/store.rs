//! Schedules: the statements about them. One method, one statement.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use sqlx::{
    PgConnection, Postgres, Row,
    postgres::{PgArguments, PgRow},
    query,
    query::Query,
};

use crate::{
    job::{JobId, MissedTicks, Overlap, actor::Actor},
    store::{
        CANCEL, JobRow, NewJob, Store, StoreError,
        rows::{both, u32_of},
        show::LOOKED_AT,
        statement_list,
        views::job_row,
    },
};

statement_list! {
    DUE_SCHEDULES = "sql" "due_schedules";
    TICK = "sql" "tick";
    PUT_SCHEDULE = "sql" "put_schedule";
    LIST_SCHEDULES = "sql" "list_schedules";
    PAUSE_SCHEDULE = "sql" "pause_schedule";
    RESUME_SCHEDULE = "sql" "resume_schedule";
    REMOVE_SCHEDULE = "sql" "remove_schedule";
    SCHEDULE_JOBS = "sql" "schedule_jobs";
    UNSERVED_SCHEDULES = "sql" "unserved_schedules";
}

/// A schedule whose next tick is due.
#[derive(Debug, Clone)]
pub(crate) struct DueSchedule {
    pub name: String,
    pub(crate) cron: String,
    pub(crate) time_zone: String,
    pub(crate) missed: MissedTicks,
    pub(crate) overlap: Overlap,
    /// The job of the last tick, if it is queued or runs.
    pub(crate) live: Option<JobId>,
    pub(crate) next_at: DateTime<Utc>,
    /// The database's time.
    pub(crate) now: DateTime<Utc>,
}

/// A schedule whose next tick moves on.
#[derive(Debug)]
pub(crate) struct TickMove<'s> {
    pub(crate) name: &'s str,
    pub(crate) due: DateTime<Utc>,
    /// `None`: no tick follows, and the schedule pauses.
    pub(crate) next: Option<DateTime<Utc>>,
    /// Its new jobs, each with its tick.
    pub(crate) jobs: Vec<(JobId, DateTime<Utc>)>,
}

/// A schedule to create or change.
#[derive(Debug)]
pub(crate) struct NewSchedule {
    pub(crate) name: String,
    pub(crate) cron: String,
    pub(crate) time_zone: String,
    pub(crate) job: NewJob,
    pub(crate) tick_field: Option<String>,
    pub(crate) missed: MissedTicks,
    pub(crate) overlap: Overlap,
    pub(crate) first: DateTime<Utc>,
    /// JSON text: see [`ScheduleRow::options`].
    pub(crate) options: Option<String>,
}

/// Which version of a schedule a change replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaces {
    /// Any, or none.
    Any,
    /// None: the schedule must be new.
    Nothing,
    /// The one that was changed last at this time.
    Version(DateTime<Utc>),
}

/// A schedule that was put.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Put {
    pub(crate) next_at: DateTime<Utc>,
    pub(crate) paused_at: Option<DateTime<Utc>>,
    pub(crate) is_new: bool,
}

/// A row of `tenure.schedules`.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the fields are the table's columns")]
#[non_exhaustive]
pub struct ScheduleRow {
    pub name: String,
    pub cron: String,
    pub time_zone: String,
    pub queue: String,
    pub kind: String,
    /// The payload with numbers rounded to `f64`; serializing the row writes them with all their digits.
    #[serde(skip)]
    pub payload: Option<Value>,
    #[serde(rename = "payload")]
    pub(crate) payload_json: Option<Box<RawValue>>,
    pub tick_field: Option<String>,
    pub max_attempts: u32,
    pub missed: MissedTicks,
    pub overlap: Overlap,
    /// Of its jobs: `lane`, `priority`, `tags`, `expires_in_s`, `expires_as`, `spread_s`. `None`: they have none.
    pub options: Option<Value>,
    pub paused_at: Option<DateTime<Utc>>,
    pub next_at: DateTime<Utc>,
    pub last_tick_at: Option<DateTime<Utc>>,
    pub last_job_id: Option<JobId>,
    pub created_at: DateTime<Utc>,
    pub changed_at: DateTime<Utc>,
}

impl ScheduleRow {
    /// Returns the payload as JSON text, with all digits of its numbers.
    #[must_use]
    pub fn payload_json(&self) -> Option<&RawValue> {
        self.payload_json.as_deref()
    }
}

fn missed(row: &PgRow) -> Result<MissedTicks, sqlx::Error> {
    row.try_get::<&str, _>("missed")?.parse().map_err(|error: String| sqlx::Error::Decode(error.into()))
}

fn overlap(row: &PgRow) -> Result<Overlap, sqlx::Error> {
    row.try_get::<&str, _>("overlap")?.parse().map_err(|error: String| sqlx::Error::Decode(error.into()))
}

fn put_query<'q>(
    new: &'q NewSchedule,
    replaces: Replaces,
    by: &'q Actor,
) -> Query<'q, Postgres, PgArguments> {
    let version = match replaces {
        Replaces::Version(changed_at) => Some(changed_at),
        Replaces::Any | Replaces::Nothing => None,
    };
    query(PUT_SCHEDULE)
        .bind(&new.name)
        .bind(&new.cron)
        .bind(&new.time_zone)
        .bind(&new.job.queue)
        .bind(&new.job.kind)
        .bind(&new.job.payload)
        .bind(&new.tick_field)
        .bind(i32::try_from(new.job.max_attempts).unwrap_or(i32::MAX))
        .bind(new.missed.as_str())
        .bind(new.first)
        .bind(replaces == Replaces::Nothing)
        .bind(version)
        .bind(new.overlap.as_str())
        .bind(by.bound())
        .bind(&new.options)
}

fn put(rows: &[PgRow]) -> Result<Option<Put>, StoreError> {
    let put = |row: &PgRow| {
        Ok(Put {
            next_at: row.try_get("next_at")?,
            paused_at: row.try_get("paused_at")?,
            is_new: row.try_get("is_new")?,
        })
    };
    Ok(rows.first().map(put).transpose().map_err(|error: sqlx::Error| error)?)
}

/// How long a tick waits for the job of the last one.
const LOCKED_FOR: Duration = Duration::from_millis(250);

impl Store {
    /// Returns schedules whose next tick is due, at most 100 that come after `last`. `is_ahead`: those whose last tick
    /// lies ahead of the clock, instead.
    pub(crate) async fn due_schedules(
        &self,
        last: Option<&DueSchedule>,
        is_ahead: bool,
    ) -> Result<Vec<DueSchedule>, StoreError> {
        let (at, name) = last.map(|last| (last.next_at, &last.name)).unzip();
        let rows = self.rows(query(DUE_SCHEDULES).bind(is_ahead).bind(at).bind(name)).await?;
        let due = |row: &PgRow| {
            let is_live: bool = row.try_get("last_is_live")?;
            Ok(DueSchedule {
                name: row.try_get("name")?,
                cron: row.try_get("cron")?,
                time_zone: row.try_get("time_zone")?,
                missed: missed(row)?,
                overlap: overlap(row)?,
                live: row.try_get::<Option<JobId>, _>("last_job_id")?.filter(|_| is_live),
                next_at: row.try_get("next_at")?,
                now: row.try_get("now")?,
            })
        };
        Ok(rows.iter().map(due).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Moves the next ticks of schedules forward, and enqueues their jobs. Returns the queue of each; `None`: another
    /// worker did. Of several schedules, it passes over those whose rows are locked; for one alone it waits a moment.
    pub(crate) async fn tick(&self, moves: &[TickMove<'_>]) -> Result<Vec<Option<String>>, StoreError> {
        let names: Vec<_> = moves.iter().map(|of| of.name.to_owned()).collect();
        let due: Vec<_> = moves.iter().map(|of| of.due).collect();
        let next: Vec<_> = moves.iter().map(|of| of.next).collect();
        let (mut ids, mut ticks, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (of, place) in moves.iter().zip(1_i64..) {
            for (id, tick) in &of.jobs {
                ids.push(*id);
                ticks.push(*tick);
                places.push(place);
            }
        }
        let query = query(TICK).bind(names).bind(due).bind(next).bind(ids).bind(ticks).bind(places);
        let query = query.bind(moves.len() > 1);
        let mut queues = vec![None; moves.len()];
        for row in self.rows(query).await? {
            let place = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or_default();
            if let Some(queue) = place.checked_sub(1).and_then(|place| queues.get_mut(place)) {
                *queue = Some(row.try_get("queue")?);
            }
        }
        Ok(queues)
    }

    /// Cancels the job of a schedule's last tick, unless its row stays locked.
    pub(crate) async fn cancel_last(&self, job: JobId) -> Result<(), StoreError> {
        let cancel = query(CANCEL).bind(vec![job]).bind(None::<Vec<String>>);
        self.rows_within(LOCKED_FOR, cancel).await.map(drop)
    }

    /// Creates or changes a schedule. `None`: it is another version than the change may replace.
    pub(crate) async fn put_schedule(
        &self,
        new: &NewSchedule,
        replaces: Replaces,
        by: &Actor,
    ) -> Result<Option<Put>, StoreError> {
        put(&self.rows(put_query(new, replaces, by)).await?)
    }

    /// The same inside the user's transaction, of any version.
    pub(crate) async fn put_schedule_in(
        connection: &mut PgConnection,
        new: &NewSchedule,
        by: &Actor,
    ) -> Result<Option<Put>, StoreError> {
        put(&put_query(new, Replaces::Any, by).fetch_all(connection).await?)
    }

    /// Returns all schedules, or the one of this name.
    pub(crate) async fn list_schedules(&self, name: Option<&str>) -> Result<Vec<ScheduleRow>, StoreError> {
        let rows = self.rows(query(LIST_SCHEDULES).bind(name)).await?;
        let schedule = |row: &PgRow| {
            let (payload, payload_json) = both(row.try_get("payload")?);
            Ok(ScheduleRow {
                name: row.try_get("name")?,
                cron: row.try_get("cron")?,
                time_zone: row.try_get("time_zone")?,
                queue: row.try_get("queue")?,
                kind: row.try_get("kind")?,
                payload,
                payload_json,
                tick_field: row.try_get("tick_field")?,
                max_attempts: u32_of(row, "max_attempts")?,
                missed: missed(row)?,
                overlap: overlap(row)?,
                options: row.try_get("options")?,
                paused_at: row.try_get("paused_at")?,
                next_at: row.try_get("next_at")?,
                last_tick_at: row.try_get("last_tick_at")?,
                last_job_id: row.try_get("last_job_id")?,
                created_at: row.try_get("created_at")?,
                changed_at: row.try_get("changed_at")?,
            })
        };
        Ok(rows.iter().map(schedule).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns all schedules, and the database's time.
    pub(crate) async fn schedules_now(&self) -> Result<(Vec<ScheduleRow>, DateTime<Utc>), StoreError> {
        Ok((self.list_schedules(None).await?, self.database_time().await?))
    }

    /// Pauses a schedule. Returns whether it was paused before; `None`: no schedule has this name.
    pub(crate) async fn pause_schedule(&self, name: &str, by: &Actor) -> Result<Option<bool>, StoreError> {
        let rows = self.rows(query(PAUSE_SCHEDULE).bind(name).bind(by.bound())).await?;
        Ok(rows.first().map(|row| row.try_get("was_paused")).transpose()?)
    }

    /// Resumes a schedule; returns its next tick. `None`: it was not paused, or has other ticks by now.
    pub(crate) async fn resume_schedule(
        &self,
        schedule: &ScheduleRow,
        next: DateTime<Utc>,
        by: &Actor,
    ) -> Result<Option<DateTime<Utc>>, StoreError> {
        let ScheduleRow { name, cron, time_zone, .. } = schedule;
        let resume = query(RESUME_SCHEDULE).bind(name).bind(next).bind(cron).bind(time_zone);
        let rows = self.rows(resume.bind(by.bound())).await?;
        Ok(rows.first().map(|row| row.try_get("next_at")).transpose()?)
    }

    /// Removes a schedule. Returns `false` if no schedule has this name.
    pub(crate) async fn remove_schedule(&self, name: &str, by: &Actor) -> Result<bool, StoreError> {
        Ok(!self.rows(query(REMOVE_SCHEDULE).bind(name).bind(by.bound())).await?.is_empty())
    }
}

impl Store {
    /// Returns the latest jobs of a schedule, the newest first, at most `limit`: of those that these ticks have
    /// enqueued, and of the latest jobs.
    pub async fn schedule_jobs(
        &self,
        schedule: &ScheduleRow,
        limit: i64,
        ticks: &[DateTime<Utc>],
    ) -> Result<Vec<JobRow>, StoreError> {
        let payload = schedule.payload_json.as_ref().map(ToString::to_string);
        let query = query(SCHEDULE_JOBS)
            .bind(schedule.queue.clone())
            .bind(schedule.kind.clone())
            .bind(payload)
            .bind(schedule.tick_field.clone())
            .bind(limit)
            .bind(ticks.to_vec())
            .bind(LOOKED_AT);
        let rows = self.rows_for_a_look(query).await?;
        Ok(rows.iter().map(job_row).collect::<Result<_, _>>()?)
    }
}
