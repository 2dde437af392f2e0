//! Lanes: their settings, and the release of held jobs. One method, one statement.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query,
    query::Query,
};

use crate::{
    job::{JobId, actor::Actor},
    store::{Change, DueJob, Store, StoreError, rows::due_jobs, statement_list},
};

statement_list! {
    ADMIT = "sql" "admit";
    TEND_LANES = "sql" "tend_lanes";
    PUT_LANES = "sql" "put_lanes";
    ADOPT_JOBS = "sql" "adopt_jobs";
    REMOVE_LANES = "sql" "remove_lanes";
    FORGET_LANES = "sql" "forget_lanes";
    LANE_SETTINGS = "sql" "lane_settings";
    SET_LANE = "sql" "set_lane";
    LIST_LANES = "sql" "list_lanes";
    HELD_FOR = "sql" "held_for";
    LANES_OVERDUE = "sql" "lanes_overdue";
    SWEEP_LANES = "sql" "sweep_lanes";
    DOCTOR_LANES = "sql" "doctor_lanes";
}

/// How long a change of a queue's lanes waits for a lock; others wait behind it meanwhile.
const PATIENCE: &str = "300ms";
/// The most jobs that one statement takes hold of.
const ADOPTED_AT_ONCE: i32 = 5_000;
/// Where the counts of a lane stop.
const COUNTED_TO: i64 = 10_000;

/// The settings of a queue's lanes, as the schema has them: tokens a second, and the most tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NewLanes {
    pub(crate) running: Option<u32>,
    pub(crate) rate: Option<(f64, f64)>,
    pub(crate) queue_rate: Option<(f64, f64)>,
    pub(crate) turns: bool,
    pub(crate) ordered: bool,
    pub(crate) required: bool,
}

/// A queue with lanes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LanesRow {
    /// The queue.
    pub queue: String,
    /// How many jobs of each lane may run.
    pub running: Option<u32>,
    /// The tokens that each lane gets a second.
    pub rate: Option<f64>,
    /// The most tokens of a lane.
    pub burst: Option<f64>,
    /// The tokens that the queue gets a second, for all its lanes.
    pub queue_rate: Option<f64>,
    /// The most tokens of the queue.
    pub queue_burst: Option<f64>,
    /// The tokens of the queue now.
    pub tokens: Option<f64>,
    /// Whether only a window of the queue's jobs has messages, so that a lane with a long backlog
    /// delays no other lane.
    pub turns: bool,
    /// Whether the jobs of a lane run one after another, in order of enqueue.
    pub ordered: bool,
    /// Whether a new job that names no lane is refused.
    pub required: bool,
    /// When these settings were changed.
    pub changed_at: DateTime<Utc>,
    /// How many lanes have jobs, or settings of their own.
    pub lanes: u64,
    /// How many jobs are held.
    pub held: u64,
    /// How many jobs were released, and have not ended.
    pub released: u64,
}

/// A lane.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LaneRow {
    /// Its key; empty for the jobs that named none.
    pub lane: String,
    /// Its share of the turns; `None`: 1.
    pub weight: Option<f64>,
    /// Its own limit, instead of the queue's.
    pub own_limit: Option<u32>,
    /// How many of its jobs may run.
    pub most: Option<u32>,
    /// How many of its jobs are due, and held; counted to 10,000.
    pub waiting: u64,
    /// How many of its jobs run, or have a message.
    pub slots: u64,
    /// How many of its jobs run.
    pub running: u64,
    /// Its tokens now.
    pub tokens: Option<f64>,
    /// The tokens that it gets a second.
    pub rate: Option<f64>,
    /// Its most tokens.
    pub burst: Option<f64>,
    /// Whether it is in the line for a turn.
    pub in_turn: bool,
    /// In how many seconds it is looked at again, if it waits for a time: a token, or a job that is due later.
    pub next_s: Option<f64>,
    /// For how many seconds its first job has been due.
    pub waited_s: Option<f64>,
}

/// For what a held job waits.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HeldFor {
    /// The job.
    pub job: JobId,
    /// Its queue.
    pub queue: String,
    /// Its lane.
    pub lane: String,
    /// When it is due, or was.
    pub due_at: DateTime<Utc>,
    /// Whether it is due later.
    pub is_later: bool,
    /// How many jobs of the lane may run.
    pub most: Option<u32>,
    /// How many run, or have a message.
    pub slots: u64,
    /// The tokens that the lane gets a second, and has.
    pub rate: Option<f64>,
    /// Its tokens now.
    pub tokens: Option<f64>,
    /// The tokens that the queue gets a second.
    pub queue_rate: Option<f64>,
    /// Its tokens now.
    pub queue_tokens: Option<f64>,
    /// Whether lanes take turns.
    pub turns: bool,
    /// Whether the lane is ordered.
    pub ordered: bool,
    /// Whether the queue is paused.
    pub paused: bool,
    /// How many due jobs of the lane come before it; counted to 1,000.
    pub before: u64,
}

/// What a look at all lanes has come to.
#[derive(Debug, Default)]
pub(crate) struct Tended {
    pub(crate) jobs: Vec<DueJob>,
    pub(crate) has_more: bool,
    /// The queues whose lanes could not be looked after, and why.
    pub(crate) troubles: Vec<(String, String)>,
}

/// What `doctor` finds about lanes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LanesSeen {
    /// The queue has lanes.
    Queue(String),
    /// Jobs name lanes, but their queue has none; one of these lanes.
    None { queue: String, lane: String, jobs: i64 },
    /// Nothing looks at lanes that were to be looked at; for how many seconds not at the first.
    /// `pid`: a session whose open transaction has written to lanes.
    Late { queue: String, lanes: i64, age_s: f64, pid: Option<i32> },
    /// All slots of a lane are taken, and its first job has been due for `waited_s`. The job that has had a slot for
    /// longest, whether it runs, and for how many seconds.
    Blocked { queue: String, lane: String, waited_s: f64, holder: Option<(JobId, bool, f64)> },
}

fn seen(row: &PgRow) -> Result<LanesSeen, sqlx::Error> {
    let queue = row.try_get("queue")?;
    let lane = || Ok::<_, sqlx::Error>(row.try_get::<Option<String>, _>("lane")?.unwrap_or_default());
    let age_s = row.try_get::<Option<f64>, _>("age_s")?.unwrap_or_default();
    Ok(match row.try_get("what")? {
        "none" => LanesSeen::None { queue, lane: lane()?, jobs: row.try_get("jobs")? },
        "late" => LanesSeen::Late { queue, lanes: row.try_get("jobs")?, age_s, pid: row.try_get("pid")? },
        "blocked" => {
            let holder = match row.try_get("job_id")? {
                Some(id) => Some((id, row.try_get("is_running")?, row.try_get("held_s")?)),
                None => None,
            };
            LanesSeen::Blocked { queue, lane: lane()?, waited_s: age_s, holder }
        }
        _ => LanesSeen::Queue(queue),
    })
}

fn unsigned(row: &PgRow, name: &str) -> Result<Option<u32>, sqlx::Error> {
    Ok(row.try_get::<Option<i32>, _>(name)?.map(i32::unsigned_abs))
}

fn count(row: &PgRow, name: &str) -> Result<u64, sqlx::Error> {
    Ok(row.try_get::<i64, _>(name)?.unsigned_abs())
}

fn lanes_row(row: &PgRow) -> Result<LanesRow, sqlx::Error> {
    Ok(LanesRow {
        queue: row.try_get("queue")?,
        running: unsigned(row, "running")?,
        rate: row.try_get("rate")?,
        burst: row.try_get("burst")?,
        queue_rate: row.try_get("queue_rate")?,
        queue_burst: row.try_get("queue_burst")?,
        tokens: row.try_get("tokens")?,
        turns: row.try_get("turns")?,
        ordered: row.try_get("ordered")?,
        required: row.try_get("required")?,
        changed_at: row.try_get("changed_at")?,
        lanes: count(row, "lanes")?,
        held: count(row, "held")?,
        released: count(row, "released")?,
    })
}

fn lane_row(row: &PgRow) -> Result<LaneRow, sqlx::Error> {
    Ok(LaneRow {
        lane: row.try_get("lane")?,
        weight: row.try_get("weight")?,
        own_limit: unsigned(row, "own_limit")?,
        most: unsigned(row, "most")?,
        waiting: count(row, "waiting")?,
        slots: count(row, "slots")?,
        running: count(row, "running")?,
        tokens: row.try_get("tokens")?,
        rate: row.try_get("rate")?,
        burst: row.try_get("burst")?,
        in_turn: row.try_get("in_turn")?,
        next_s: row.try_get::<Option<f64>, _>("next_s")?.map(|s| s.max(0.0)),
        // The first job of an ordered lane may be due later.
        waited_s: row.try_get::<Option<f64>, _>("waited_s")?.filter(|s| *s >= 0.0),
    })
}

fn held_for(row: &PgRow) -> Result<HeldFor, sqlx::Error> {
    Ok(HeldFor {
        job: row.try_get("job_id")?,
        queue: row.try_get("queue")?,
        lane: row.try_get("lane")?,
        due_at: row.try_get("due_at")?,
        is_later: row.try_get("is_later")?,
        most: unsigned(row, "most")?,
        slots: count(row, "slots")?,
        rate: row.try_get("rate")?,
        tokens: row.try_get("tokens")?,
        queue_rate: row.try_get("queue_rate")?,
        queue_tokens: row.try_get("queue_tokens")?,
        turns: row.try_get("turns")?,
        ordered: row.try_get("ordered")?,
        paused: row.try_get("paused")?,
        before: count(row, "before")?,
    })
}

impl Store {
    /// Releases at most `most` jobs of a queue with lanes, for the caller to publish. Looks first at `lanes` (sorted),
    /// because `ended` of their jobs have ended; `None`: any of them may have.
    pub(crate) async fn admit(
        &self,
        queue: &str,
        lanes: &[String],
        ended: Option<&[JobId]>,
        most: i32,
    ) -> Result<Vec<DueJob>, StoreError> {
        let rows = self.rows(query(ADMIT).bind(queue).bind(lanes).bind(ended).bind(most)).await?;
        Ok(due_jobs(&rows)?)
    }

    /// Releases at most `most` jobs of each queue with lanes. `judge`: whether to look for slots of jobs that ended
    /// unseen.
    pub(crate) async fn tend_lanes(&self, most: i32, judge: bool) -> Result<Tended, StoreError> {
        let rows = self.rows(query(TEND_LANES).bind(most).bind(judge)).await?;
        let mut tended = Tended::default();
        let mut jobs = Vec::with_capacity(rows.len());
        for row in rows {
            if row.try_get::<Option<JobId>, _>("id")?.is_some() {
                jobs.push(row);
            } else if let Some(queue) = row.try_get("queue")? {
                tended.troubles.push((queue, row.try_get("clear_reason")?));
            } else {
                tended.has_more = true;
            }
        }
        tended.jobs = due_jobs(&jobs)?;
        Ok(tended)
    }

    /// Whether something has waited for a look at the lanes for longer than `margin`.
    pub(crate) async fn lanes_overdue(&self, margin: Duration) -> Result<bool, StoreError> {
        let rows = self.rows(query(LANES_OVERDUE).bind(margin.as_secs_f64())).await?;
        Ok(rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("overdue")?)
    }

    /// Gives a queue lanes, or changes their settings. [`StoreError::is_locked`]: a transaction that has enqueued is
    /// still open; nothing has changed.
    pub(crate) async fn put_lanes(
        &self,
        queue: &str,
        lanes: &NewLanes,
        by: &Actor,
    ) -> Result<(), StoreError> {
        let part = |rate: Option<(f64, f64)>| (rate.map(|rate| rate.0), rate.map(|rate| rate.1));
        let ((rate, burst), (queue_rate, queue_burst)) = (part(lanes.rate), part(lanes.queue_rate));
        let put = query(PUT_LANES)
            .bind(queue.to_owned())
            .bind(lanes.running.map(u32::cast_signed))
            .bind(rate)
            .bind(burst);
        let put = put.bind(queue_rate).bind(queue_burst).bind(lanes.turns).bind(lanes.ordered);
        self.at_read_committed(put.bind(PATIENCE).bind(by.bound()).bind(lanes.required)).await
    }

    /// Takes hold of some jobs that stood in a queue before it had lanes. Returns how many.
    pub(crate) async fn adopt_jobs(&self, queue: &str) -> Result<u64, StoreError> {
        let rows = self.rows(query(ADOPT_JOBS).bind(queue).bind(ADOPTED_AT_ONCE)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(u64::from(row.try_get::<i32, _>("jobs")?.unsigned_abs()))
    }

    /// Takes a queue's lanes away. Returns whether it had any.
    pub(crate) async fn remove_lanes(&self, queue: &str, by: &Actor) -> Result<bool, StoreError> {
        let rows = self.rows(query(REMOVE_LANES).bind(queue).bind(by.bound())).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(row.try_get("removed")?)
    }

    /// Has the new jobs of a queue without lanes held no more.
    pub(crate) async fn forget_lanes(&self, queue: &str) -> Result<(), StoreError> {
        self.at_read_committed(query(FORGET_LANES).bind(queue.to_owned())).await
    }

    /// Runs a statement that changes which queues have lanes: see `migrations/functions/lanes/hold_new_jobs.sql`.
    async fn at_read_committed(
        &self,
        change: Query<'static, Postgres, PgArguments>,
    ) -> Result<(), StoreError> {
        self.rows_within(self.within().mul_f64(0.8), change).await.map(drop)
    }

    /// Returns the queues with lanes, or one of them.
    pub async fn lane_settings(&self, queue: Option<&str>) -> Result<Vec<LanesRow>, StoreError> {
        let rows = self.rows(query(LANE_SETTINGS).bind(queue)).await?;
        Ok(rows.iter().map(lanes_row).collect::<Result<_, _>>()?)
    }

    /// Changes the settings of one lane. Returns its weight and its limit; `None`: the queue has no lanes.
    pub(crate) async fn set_lane(
        &self,
        queue: &str,
        lane: &str,
        weight: Change<f64>,
        running: Change<u32>,
        by: &Actor,
    ) -> Result<Option<(Option<f64>, Option<u32>)>, StoreError> {
        let set = query(SET_LANE).bind(queue).bind(lane).bind(weight.is_set()).bind(weight.value());
        let set = set.bind(running.is_set()).bind(running.value().map(u32::cast_signed)).bind(by.bound());
        let rows = self.rows(set).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some((row.try_get("weight")?, unsigned(row, "running")?)))
    }

    /// Returns at most `limit` lanes of a queue, those first that wait longest.
    pub async fn lanes(
        &self,
        queue: &str,
        lane: Option<&str>,
        limit: i64,
    ) -> Result<Vec<LaneRow>, StoreError> {
        let rows = self.rows(query(LIST_LANES).bind(queue).bind(lane).bind(limit).bind(COUNTED_TO)).await?;
        Ok(rows.iter().map(lane_row).collect::<Result<_, _>>()?)
    }

    /// Returns for what those of the jobs wait that are held.
    pub(crate) async fn held_for(&self, jobs: &[JobId]) -> Result<Vec<HeldFor>, StoreError> {
        let rows = self.rows(query(HELD_FOR).bind(jobs)).await?;
        Ok(rows.iter().map(held_for).collect::<Result<_, _>>()?)
    }

    /// Returns what `doctor` looks for in lanes: looks that are `late` for as many seconds, lanes that wait for their
    /// slots for as many.
    pub(crate) async fn doctor_lanes(
        &self,
        queues: Option<&[String]>,
        late: Duration,
        blocked: Duration,
        limit: i64,
    ) -> Result<Vec<LanesSeen>, StoreError> {
        let look = query(DOCTOR_LANES).bind(queues.map(<[String]>::to_vec)).bind(late.as_secs_f64());
        let rows = self.rows_for_doctor(look.bind(blocked.as_secs_f64()).bind(limit)).await?;
        Ok(rows.iter().map(seen).collect::<Result<_, _>>()?)
    }

    /// Removes at most `limit` lanes that have no job. Returns how many.
    pub(crate) async fn sweep_lanes(&self, limit: i64) -> Result<u64, StoreError> {
        let rows = self.rows(query(SWEEP_LANES).bind(limit)).await?;
        Ok(count(rows.first().ok_or(sqlx::Error::RowNotFound)?, "lanes")?)
    }
}
