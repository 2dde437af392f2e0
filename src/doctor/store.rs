//! Doctor: the statements of `doctor`, about the server, this role, the workers and the queues. One method, one
//! statement.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use sqlx::{
    Connection, Postgres, Row,
    postgres::{PgArguments, PgRow},
    query,
    query::Query,
    raw_sql,
};

use crate::{
    job::JobId,
    schedules::store::UNSERVED_SCHEDULES,
    store::{
        KNOWN_JOBS, Store, StoreError, statement_list,
        waiting::{KindMessages, Waiting, bind_messages},
    },
};
use tokio::time::timeout;
use uuid::Uuid;

/// How long `verify` may take. A history of a hundred million jobs takes some minutes.
const VERIFIED_WITHIN: Duration = Duration::from_hours(1);

statement_list! {
    VERIFY = "sql" "verify";
    DOCTOR_SERVER = "sql" "doctor_server";
    DOCTOR_HOLDERS = "sql" "doctor_holders";
    DOCTOR_RIGHTS = "sql" "doctor_rights";
    DOCTOR_JOBS = "sql" "doctor_jobs";
    DOCTOR_WORKERS = "sql" "doctor_workers";
    DOCTOR_QUEUES = "sql" "doctor_queues";
    DOCTOR_KINDS = "sql" "doctor_kinds";
    DOCTOR_WRITE = "sql" "doctor_write";
    DOCTOR_SLOW = "sql" "doctor_slow";
    NOTE_FINDINGS = "sql" "note_findings";
}

/// A kind whose attempts take far longer than its jobs have taken that completed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Slow {
    pub(crate) queue: String,
    pub(crate) kind: String,
    pub(crate) jobs: i64,
    /// The one that has run for longest.
    pub(crate) first: JobId,
    pub(crate) runs: Duration,
    /// Nineteen of twenty have taken no longer.
    pub(crate) usual: Duration,
}

/// The server, as every role may see it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PostgresSeen {
    pub(crate) version: String,
    /// The major version and four digits, as in 150004.
    pub(crate) version_number: i32,
    pub(crate) role: String,
    pub(crate) is_read_only: bool,
    /// Whether this role sees the state of other roles' sessions.
    pub(crate) sees_all_sessions: bool,
    /// Settings under which a crash may lose committed transactions.
    pub(crate) unsafe_settings: Vec<String>,
    /// The isolation of a transaction that names none, as tenure's.
    pub(crate) isolation: String,
    pub(crate) connections: i64,
    /// The most connections that the server takes from roles other than superusers.
    pub(crate) connections_max: i64,
    /// Whether autovacuum covers the table of live jobs.
    pub(crate) is_vacuumed: bool,
    /// Live and dead rows of the table of live jobs; `None`: the table does not exist.
    pub(crate) rows: Option<(i64, i64)>,
    pub(crate) round_trip: Duration,
    /// The server's time when it answered.
    pub(crate) answered_at: DateTime<Utc>,
    /// This host's time when it asked; `took` is how long the answer took.
    pub(crate) asked_at: DateTime<Utc>,
    pub(crate) took: Duration,
}

/// A transaction, replica or slot that keeps dead rows from being removed, or holds locks while idle.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Holder {
    /// `transaction`, `idle`, `replica`, `prepared` or `slot`.
    pub(crate) what: String,
    pub(crate) pid: Option<i32>,
    pub(crate) name: Option<String>,
    pub(crate) role: Option<String>,
    pub(crate) state: Option<String>,
    pub(crate) age: Option<Duration>,
    /// How many transactions ago the oldest transaction that it still sees began.
    pub(crate) transactions: Option<i64>,
}

/// The rights of one role in `postgres/roles.sql` that this role lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RightsSeen {
    pub(crate) role: String,
    pub(crate) is_member: bool,
    pub(crate) lacks: Vec<String>,
}

/// Overdue publications, the scanner's state, and recent dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobsSeen {
    /// Jobs that a relay should have published; `overdue_for` is how long the first of them is overdue.
    pub(crate) overdue: i64,
    pub(crate) overdue_for: Option<Duration>,
    /// The first of them.
    pub(crate) oldest: Option<Uuid>,
    /// How long ago the last scan was; `None`: no worker has ever scanned.
    pub(crate) last_scan: Option<Duration>,
    /// For how long the scanner will not reset any job.
    pub(crate) grace_left: Option<Duration>,
    /// For how long most running jobs have looked stale.
    pub(crate) breaker_for: Option<Duration>,
    /// Jobs that died within the last hour.
    pub(crate) died: i64,
}

/// A registered worker process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkerSeen {
    pub(crate) worker_id: String,
    pub(crate) version: String,
    /// The language of a worker behind a gateway; the version is that of its client.
    pub(crate) language: Option<String>,
    /// Whether it has missed three renewals of its row.
    pub(crate) is_silent: bool,
    /// What kept it from taking jobs at its last renewal.
    pub(crate) not_ready: Option<String>,
    /// Whether it finishes its jobs, and takes no other.
    pub(crate) is_draining: bool,
    pub(crate) silence: Duration,
    pub(crate) started: Duration,
    /// How many jobs a silent process owns; 0 for one that is not silent.
    pub(crate) jobs: i64,
}

/// An active schedule whose next job no live worker would run.
#[derive(Debug, Clone)]
pub struct UnservedSchedule {
    pub name: String,
    pub queue: String,
    pub kind: String,
    /// Whether a live worker serves the queue, and only the kind is unknown to all of them.
    pub is_queue_served: bool,
    /// The seconds until its next tick; negative: it is due.
    pub next_in_s: f64,
}

/// The state of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueSeen {
    pub(crate) queue: String,
    pub(crate) is_served: bool,
    /// How many live workers of it drain.
    pub(crate) draining: i64,
    pub(crate) paused_for: Option<Duration>,
    /// Published jobs that are due, at most 1,000; `waiting_for` is how long the first of them has waited.
    pub(crate) waiting: i64,
    pub(crate) waiting_for: Option<Duration>,
    /// How many of its jobs may run at once; `running` is how many do.
    pub(crate) max_running: Option<i32>,
    pub(crate) running: Option<i64>,
    /// How many of its jobs may wait; `queued` is how many do.
    pub(crate) max_queued: Option<i64>,
    pub(crate) queued: Option<i64>,
    /// Submissions in the stream, and how long the first of them has waited. Another statement counts them.
    /// `None`: NATS did not count them.
    pub(crate) submitted: Option<i64>,
    pub(crate) submitted_for: Option<Duration>,
    /// Those of them that a scan has read there, which count towards `max_queued`.
    pub(crate) standing: i64,
}

/// Reads a duration in seconds; a negative one reads as zero.
fn duration(row: &PgRow, column: &str) -> Result<Option<Duration>, sqlx::Error> {
    let seconds: Option<f64> = row.try_get(column)?;
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()))
}

impl Store {
    /// Describes the server, over a connection of its own: its error says at once why Postgres refuses it, where the
    /// pool would wait.
    pub(crate) async fn doctor_server(&self) -> Result<PostgresSeen, StoreError> {
        let mut connection = self.migration_connection().await?;
        let since = Instant::now();
        self.deadline(connection.ping()).await?;
        let round_trip = since.elapsed();
        let (asked_at, since) = (Utc::now(), Instant::now());
        let rows = self.deadline(query(DOCTOR_SERVER).fetch_all(&mut connection)).await?;
        let took = since.elapsed();
        // Every answer is in; a close that fails changes nothing.
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
            isolation: row.try_get("isolation")?,
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

    /// Writes a row that needs room on the disk, and rolls it back.
    pub(crate) async fn doctor_write(&self) -> Result<(), StoreError> {
        self.rolled_back(query(DOCTOR_WRITE)).await
    }

    /// Returns what has kept dead rows from being removed, or held locks while idle, for `old_after`.
    pub(crate) async fn doctor_holders(&self, old_after: Duration) -> Result<Vec<Holder>, StoreError> {
        let rows = self.rows_for_doctor(query(DOCTOR_HOLDERS).bind(old_after.as_secs_f64())).await?;
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

    /// Returns the rights of each shipped role that this role lacks, the most powerful role first.
    pub(crate) async fn doctor_rights(&self) -> Result<Vec<RightsSeen>, StoreError> {
        let rows = self.rows_for_doctor(query(DOCTOR_RIGHTS)).await?;
        let rights = |row: &PgRow| {
            Ok(RightsSeen {
                role: row.try_get("role")?,
                is_member: row.try_get("is_member")?,
                lacks: row.try_get("lacks")?,
            })
        };
        Ok(rows.iter().map(rights).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns overdue publications, the scanner's state and recent dead letters. The relay must have published a due
    /// job after `overdue_after`.
    pub(crate) async fn doctor_jobs(&self, overdue_after: Duration) -> Result<JobsSeen, StoreError> {
        let rows = self.rows_for_doctor(query(DOCTOR_JOBS).bind(overdue_after.as_secs_f64())).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(JobsSeen {
            overdue: row.try_get("overdue")?,
            overdue_for: duration(row, "overdue_s")?,
            oldest: row.try_get("oldest")?,
            last_scan: duration(row, "last_scan_s")?,
            grace_left: duration(row, "grace_left_s")?.filter(|left| !left.is_zero()),
            breaker_for: duration(row, "breaker_s")?,
            died: row.try_get("died")?,
        })
    }

    /// Returns every registered process, the most silent first.
    pub(crate) async fn doctor_workers(&self) -> Result<Vec<WorkerSeen>, StoreError> {
        let rows = self.rows_for_doctor(query(DOCTOR_WORKERS)).await?;
        let worker = |row: &PgRow| {
            Ok(WorkerSeen {
                worker_id: row.try_get("worker_id")?,
                version: row.try_get("version")?,
                language: row.try_get("language")?,
                is_silent: row.try_get("is_silent")?,
                not_ready: row.try_get("not_ready")?,
                is_draining: row.try_get("is_draining")?,
                silence: duration(row, "silence_s")?.unwrap_or_default(),
                started: duration(row, "started_s")?.unwrap_or_default(),
                jobs: row.try_get("jobs")?,
            })
        };
        Ok(rows.iter().map(worker).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns the active schedules whose next job no live worker would run, at most `limit`.
    pub async fn unserved_schedules(&self, limit: i64) -> Result<Vec<UnservedSchedule>, StoreError> {
        let rows = self.rows(query(UNSERVED_SCHEDULES).bind(limit)).await?;
        let schedule = |row: &PgRow| {
            Ok(UnservedSchedule {
                name: row.try_get("name")?,
                queue: row.try_get("queue")?,
                kind: row.try_get("kind")?,
                is_queue_served: row.try_get("is_queue_served")?,
                next_in_s: row.try_get("next_in_s")?,
            })
        };
        Ok(rows.iter().map(schedule).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns those of these jobs that have a row, and whether it is live.
    pub(crate) async fn known_jobs(&self, jobs: &[JobId]) -> Result<HashMap<JobId, bool>, StoreError> {
        if jobs.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = self.rows(query(KNOWN_JOBS).bind(jobs)).await?;
        let known = |row: &PgRow| Ok((row.try_get("id")?, row.try_get("is_live")?));
        Ok(rows.iter().map(known).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns the kinds that wait in these queues, or in all, and whether a live worker runs them. `messages` are
    /// those that the stream holds; `None`: they are not known.
    pub(crate) async fn doctor_kinds(
        &self,
        messages: Option<&[KindMessages]>,
        queues: Option<&[String]>,
    ) -> Result<Vec<Waiting>, StoreError> {
        let rows = self.rows_for_doctor(bind_messages(query(DOCTOR_KINDS), messages).bind(queues)).await?;
        Ok(rows.iter().map(Waiting::read).collect::<Result<_, _>>()?)
    }

    /// Returns the kinds with attempts that have run for longer than `after`, and `times` as long as is usual.
    pub(crate) async fn doctor_slow(
        &self,
        queues: Option<&[String]>,
        after: Duration,
        times: f64,
        limit: i64,
    ) -> Result<Vec<Slow>, StoreError> {
        let query = query(DOCTOR_SLOW).bind(queues.map(<[String]>::to_vec)).bind(after.as_secs_f64());
        let rows = self.rows_for_doctor(query.bind(times).bind(limit)).await?;
        let slow = |row: &PgRow| {
            Ok(Slow {
                queue: row.try_get("queue")?,
                kind: row.try_get("kind")?,
                jobs: row.try_get("jobs")?,
                first: row.try_get("id")?,
                runs: duration(row, "runs_s")?.unwrap_or_default(),
                usual: duration(row, "usual_s")?.unwrap_or_default(),
            })
        };
        Ok(rows.iter().map(slow).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Keeps what is wrong, for those who watch.
    #[cfg(feature = "worker")]
    pub(crate) async fn note_findings(
        &self,
        findings: serde_json::Value,
        skipped: &[&str],
        holds_for: Duration,
    ) -> Result<(), StoreError> {
        let note = query(NOTE_FINDINGS).bind(findings).bind(holds_for.as_secs_f64()).bind(skipped);
        self.rows(note).await.map(drop)
    }

    /// Returns these queues; `None`: those that a worker serves, in which a job waits, or that have settings, and
    /// `others`.
    pub(crate) async fn doctor_queues(
        &self,
        queues: Option<&[String]>,
        others: &[String],
    ) -> Result<Vec<QueueSeen>, StoreError> {
        let rows = self.rows_for_doctor(query(DOCTOR_QUEUES).bind(queues).bind(others)).await?;
        let queue = |row: &PgRow| {
            Ok(QueueSeen {
                queue: row.try_get("queue")?,
                is_served: row.try_get("is_served")?,
                draining: row.try_get("draining")?,
                paused_for: duration(row, "paused_s")?,
                waiting: row.try_get("waiting")?,
                waiting_for: duration(row, "waiting_s")?,
                max_running: row.try_get("max_running")?,
                running: row.try_get("running")?,
                max_queued: row.try_get("max_queued")?,
                queued: row.try_get("queued")?,
                submitted: None,
                submitted_for: None,
                standing: row.try_get("standing")?,
            })
        };
        Ok(rows.iter().map(queue).collect::<Result<_, sqlx::Error>>()?)
    }
}

/// The number of jobs that break a rule, and the first of them.
#[derive(Debug, Clone)]
pub(crate) struct RuleBroken {
    pub(crate) jobs: u64,
    pub(crate) examples: Vec<JobId>,
}

impl Store {
    /// Returns how many jobs break each rule. The call may take long, and has a connection of its own.
    pub(crate) async fn verify(&self) -> Result<HashMap<String, RuleBroken>, StoreError> {
        let mut connection = self.migration_connection().await?;
        raw_sql("BEGIN; SET LOCAL jit = off").execute(&mut connection).await?;
        // Without a limit, a connection that dies silently would hang the call for ever.
        let read = timeout(VERIFIED_WITHIN, query(VERIFY).fetch_all(&mut connection)).await;
        let rows =
            read.map_err(|_| sqlx::Error::Io(std::io::Error::from(std::io::ErrorKind::TimedOut)))??;
        let rule = |row: &PgRow| {
            let jobs: i64 = row.try_get("jobs")?;
            let examples: Option<Vec<JobId>> = row.try_get("examples")?;
            let broken = RuleBroken { jobs: jobs.unsigned_abs(), examples: examples.unwrap_or_default() };
            Ok((row.try_get("rule")?, broken))
        };
        Ok(rows.iter().map(rule).collect::<Result<_, sqlx::Error>>()?)
    }
}

impl Store {
    /// Runs a statement that may read all live jobs. The server ends it before the call gives up.
    pub(crate) async fn rows_for_doctor(
        &self,
        query: Query<'static, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, StoreError> {
        self.rows_within(self.within().mul_f64(0.8), query).await
    }
}
