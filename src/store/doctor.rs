//! Doctor: what Postgres tells of itself, of this role, and of what waits around the jobs. One method, one statement.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::{Connection, Row, postgres::PgRow, query};

use super::{
    DOCTOR_HOLDERS, DOCTOR_JOBS, DOCTOR_QUEUES, DOCTOR_RIGHTS, DOCTOR_SERVER, DOCTOR_WORKERS,
    call::{Store, StoreError},
};

/// The server, as every role may see it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PostgresSeen {
    pub(crate) version: String,
    /// As in 150004: the major version, and four digits.
    pub(crate) version_number: i32,
    pub(crate) role: String,
    pub(crate) is_read_only: bool,
    /// Whether this role sees the state of others' sessions.
    pub(crate) sees_all_sessions: bool,
    /// Settings by which a crash may lose what was committed.
    pub(crate) unsafe_settings: Vec<String>,
    pub(crate) connections: i64,
    /// How many there may be for others than superusers.
    pub(crate) connections_max: i64,
    /// Whether autovacuum looks after the live jobs.
    pub(crate) is_vacuumed: bool,
    /// Live and dead rows of the live jobs' table; `None`: there is no such table.
    pub(crate) rows: Option<(i64, i64)>,
    pub(crate) round_trip: Duration,
    /// The server's time of its answer.
    pub(crate) answered_at: DateTime<Utc>,
    /// This host's time when it was asked, and how long the answer took.
    pub(crate) asked_at: DateTime<Utc>,
    pub(crate) took: Duration,
}

/// What keeps dead rows from being removed, or locks while nothing happens.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Holder {
    /// `transaction`, `idle`, `replica`, `prepared` or `slot`.
    pub(crate) what: String,
    pub(crate) pid: Option<i32>,
    pub(crate) name: Option<String>,
    pub(crate) role: Option<String>,
    pub(crate) state: Option<String>,
    pub(crate) age: Option<Duration>,
    /// How many transactions ago the oldest began that it still sees.
    pub(crate) transactions: Option<i64>,
}

/// What this role lacks of one of the roles in `postgres/roles.sql`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RightsSeen {
    pub(crate) role: String,
    pub(crate) is_member: bool,
    pub(crate) lacks: Vec<String>,
}

/// What waits around the jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobsSeen {
    /// Jobs that a relay should have published, and for how long the first of them.
    pub(crate) overdue: i64,
    pub(crate) overdue_for: Option<Duration>,
    /// How long ago somebody scanned; `None`: nobody ever has.
    pub(crate) last_scan: Option<Duration>,
    /// For how long nothing will be taken back.
    pub(crate) grace_left: Option<Duration>,
    /// Since when most of what runs has looked stale.
    pub(crate) breaker_for: Option<Duration>,
    /// Jobs that died within the last hour, and of what.
    pub(crate) died: i64,
    pub(crate) died_of: Option<String>,
}

/// A process that registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkerSeen {
    pub(crate) worker_id: String,
    pub(crate) version: String,
    /// It has missed three renewals of its row.
    pub(crate) is_silent: bool,
    pub(crate) silence: Duration,
    pub(crate) started: Duration,
    /// How many jobs it owns; of one that is not silent, 0.
    pub(crate) jobs: i64,
}

/// A queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueSeen {
    pub(crate) queue: String,
    pub(crate) is_served: bool,
    pub(crate) paused_for: Option<Duration>,
    /// Jobs that are published and due, at most 1,000, and for how long the first of them.
    pub(crate) waiting: i64,
    pub(crate) waiting_for: Option<Duration>,
    /// How many of its jobs may run at once, and do.
    pub(crate) max_running: Option<i32>,
    pub(crate) running: Option<i64>,
    /// How many of its jobs may wait, and do.
    pub(crate) max_queued: Option<i64>,
    pub(crate) queued: Option<i64>,
}

/// A duration in seconds; less than nothing is nothing.
fn duration(row: &PgRow, column: &str) -> Result<Option<Duration>, sqlx::Error> {
    let seconds: Option<f64> = row.try_get(column)?;
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()))
}

impl Store {
    /// The server, over a connection of its own, which tells at once why there is none. The pool would wait for one.
    pub(crate) async fn doctor_server(&self) -> Result<PostgresSeen, StoreError> {
        let mut connection = self.migration_connection().await?;
        let since = Instant::now();
        self.deadline(connection.ping()).await?;
        let round_trip = since.elapsed();
        let (asked_at, since) = (Utc::now(), Instant::now());
        let rows = self.deadline(query(DOCTOR_SERVER).fetch_all(&mut connection)).await?;
        let took = since.elapsed();
        // All is known; a failing goodbye changes nothing.
        drop(self.deadline(connection.close()).await);
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let (live, dead): (Option<i64>, Option<i64>) = (row.try_get("live")?, row.try_get("dead")?);
        Ok(PostgresSeen {
            version: row.try_get("version")?,
            version_number: row.try_get("version_number")?,
            role: row.try_get("role")?,
            is_read_only: row.try_get("is_read_only")?,
            sees_all_sessions: row.try_get("sees_all_sessions")?,
            unsafe_settings: row.try_get("unsafe_settings")?,
            connections: row.try_get("connections")?,
            connections_max: row.try_get("connections_max")?,
            is_vacuumed: row.try_get("is_vacuumed")?,
            rows: live.zip(dead),
            round_trip,
            answered_at: row.try_get("at")?,
            asked_at,
            took,
        })
    }

    /// Whoever keeps dead rows from being removed, or locks while nothing happens, for so long.
    pub(crate) async fn doctor_holders(&self, old_after: Duration) -> Result<Vec<Holder>, StoreError> {
        let rows = self.rows(query(DOCTOR_HOLDERS).bind(old_after.as_secs_f64())).await?;
        let holder = |row: &PgRow| {
            Ok(Holder {
                what: row.try_get("what")?,
                pid: row.try_get("pid")?,
                name: row.try_get("name")?,
                role: row.try_get("role")?,
                state: row.try_get("state")?,
                age: duration(row, "age_s")?,
                transactions: row.try_get("transactions")?,
            })
        };
        Ok(rows.iter().map(holder).collect::<Result<_, sqlx::Error>>()?)
    }

    /// What this role lacks of each of the shipped roles, the one that may most first.
    pub(crate) async fn doctor_rights(&self) -> Result<Vec<RightsSeen>, StoreError> {
        let rows = self.rows(query(DOCTOR_RIGHTS)).await?;
        let rights = |row: &PgRow| {
            Ok(RightsSeen {
                role: row.try_get("role")?,
                is_member: row.try_get("is_member")?,
                lacks: row.try_get("lacks")?,
            })
        };
        Ok(rows.iter().map(rights).collect::<Result<_, sqlx::Error>>()?)
    }

    /// What waits around the jobs. `overdue_after`: by then a due job must have been published.
    pub(crate) async fn doctor_jobs(&self, overdue_after: Duration) -> Result<JobsSeen, StoreError> {
        let rows = self.rows(query(DOCTOR_JOBS).bind(overdue_after.as_secs_f64())).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(JobsSeen {
            overdue: row.try_get("overdue")?,
            overdue_for: duration(row, "overdue_s")?,
            last_scan: duration(row, "last_scan_s")?,
            grace_left: duration(row, "grace_left_s")?.filter(|left| !left.is_zero()),
            breaker_for: duration(row, "breaker_s")?,
            died: row.try_get("died")?,
            died_of: row.try_get("died_of")?,
        })
    }

    /// Every process that registered, the most silent first.
    pub(crate) async fn doctor_workers(&self) -> Result<Vec<WorkerSeen>, StoreError> {
        let rows = self.rows(query(DOCTOR_WORKERS)).await?;
        let worker = |row: &PgRow| {
            Ok(WorkerSeen {
                worker_id: row.try_get("worker_id")?,
                version: row.try_get("version")?,
                is_silent: row.try_get("is_silent")?,
                silence: duration(row, "silence_s")?.unwrap_or_default(),
                started: duration(row, "started_s")?.unwrap_or_default(),
                jobs: row.try_get("jobs")?,
            })
        };
        Ok(rows.iter().map(worker).collect::<Result<_, sqlx::Error>>()?)
    }

    /// These queues; or those that a worker serves, in which a job waits, or that have settings.
    pub(crate) async fn doctor_queues(
        &self,
        queues: Option<&[String]>,
    ) -> Result<Vec<QueueSeen>, StoreError> {
        let rows = self.rows(query(DOCTOR_QUEUES).bind(queues)).await?;
        let queue = |row: &PgRow| {
            Ok(QueueSeen {
                queue: row.try_get("queue")?,
                is_served: row.try_get("is_served")?,
                paused_for: duration(row, "paused_s")?,
                waiting: row.try_get("waiting")?,
                waiting_for: duration(row, "waiting_s")?,
                max_running: row.try_get("max_running")?,
                running: row.try_get("running")?,
                max_queued: row.try_get("max_queued")?,
                queued: row.try_get("queued")?,
            })
        };
        Ok(rows.iter().map(queue).collect::<Result<_, sqlx::Error>>()?)
    }
}
