//! Views: the statements for people. One method, one statement.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query,
    query::Query,
};

use super::{
    CAN_ENQUEUE, CHECKPOINT_SIZE, DATABASE_TIME, EXECUTIONS, LIST_JOBS, LIST_TAGGED, LIST_WORKERS,
    MATCH_JOBS, MATCH_TAGGED, RECOVERIES, SCHEMA_VERSION, SHOW_JOB,
    call::{Store, StoreError},
    rows::{AGE_MAX, ExecutionRow, JobRow, RecoveryRow, both, bytes_of, status, u32_of, u64_of},
    schema::{CALLED_FUNCTIONS, NEEDS},
};
use crate::job::{JobId, Status};

/// How long the selection of jobs to cancel may take.
const SELECTED_WITHIN: Duration = Duration::from_mins(5);

/// Selects jobs. The default selects all.
///
/// ```
/// use std::time::Duration;
/// use tenure::{Status, rows::JobFilter};
///
/// let today = Duration::from_secs(24 * 3600);
/// let filter = JobFilter::new().status(Status::Failed).queue("mail").newer_than(today).error("550");
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct JobFilter {
    status: Option<Status>,
    queue: Option<String>,
    kind: Option<String>,
    worker: Option<String>,
    older_than: Option<Duration>,
    newer_than: Option<Duration>,
    error: Option<String>,
    before: Option<JobId>,
    text: Option<String>,
    /// What it waits for: `retrying`, `scheduled` or `held`.
    waits: Option<&'static str>,
    tags: Vec<String>,
}

impl JobFilter {
    /// Creates a filter that selects all jobs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects only jobs in this status.
    #[must_use]
    pub fn status(mut self, status: Status) -> Self {
        self.status = Some(status);
        self
    }

    /// Selects only jobs of this queue.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Selects only jobs of this kind.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Selects only jobs that this worker runs, or was the last to run. Takes the worker's whole id.
    #[must_use]
    pub fn worker(mut self, worker_id: impl Into<String>) -> Self {
        self.worker = Some(worker_id.into());
        self
    }

    /// Selects only jobs that were created at least this long ago, by the database's clock.
    ///
    /// This filter and [`JobFilter::newer_than`] miss a job whose id is more than a day off: its producer's clock was
    /// wrong, or its message waited that long in the stream.
    #[must_use]
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = Some(age);
        self
    }

    /// Selects only jobs that were created at most this long ago.
    #[must_use]
    pub fn newer_than(mut self, age: Duration) -> Self {
        self.newer_than = Some(age);
        self
    }

    /// Selects only jobs whose last error contains this text literally: `%` and `_` stand for themselves.
    #[must_use]
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.error = Some(text.into());
        self
    }

    /// Selects only jobs with this text in their kind, last error, message or payload, ignoring case. Reads payloads:
    /// in a large history, use it with [`JobFilter::newer_than`].
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into());
        self
    }

    /// Selects only jobs with this tag; called several times, only jobs with all of these tags. An index serves it. See
    /// [`JobRequest::tag`](crate::JobRequest::tag).
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        let tag = tag.into();
        if !self.tags.contains(&tag) {
            self.tags.push(tag);
        }
        self
    }

    /// Selects only queued jobs that wait for another attempt: their last one failed, and its backoff has not ended.
    #[must_use]
    pub fn retrying(mut self) -> Self {
        (self.status, self.waits) = (Some(Status::Queued), Some("retrying"));
        self
    }

    /// Selects only queued jobs that wait for the time of their first attempt. An attempt that was snoozed or released
    /// does not count.
    #[must_use]
    pub fn scheduled(mut self) -> Self {
        (self.status, self.waits) = (Some(Status::Queued), Some("scheduled"));
        self
    }

    /// Selects only queued jobs that their lanes hold. None of them is selected by [`JobFilter::scheduled`] or
    /// [`JobFilter::retrying`].
    #[must_use]
    pub fn held(mut self) -> Self {
        (self.status, self.waits) = (Some(Status::Queued), Some("held"));
        self
    }

    /// A statement with this filter as its first parameters.
    fn bind(&self, query: Query<'static, Postgres, PgArguments>) -> Query<'static, Postgres, PgArguments> {
        let age = |age: Option<Duration>| age.map(|age| age.min(AGE_MAX).as_secs_f64());
        query
            .bind(self.status.map(Status::as_str))
            .bind(self.queue.clone())
            .bind(self.kind.clone())
            .bind(self.worker.clone())
            .bind(age(self.older_than))
            .bind(age(self.newer_than))
            .bind(self.error.clone())
            .bind(self.before)
            .bind(self.text.clone())
            .bind(self.waits)
    }

    /// The statement that lists at most `limit` jobs.
    pub(crate) fn list(&self, limit: i64, with_payloads: bool) -> Query<'static, Postgres, PgArguments> {
        self.of_tags(LIST_JOBS, LIST_TAGGED, |query| query.bind(limit).bind(with_payloads))
    }

    /// The statement that selects at most `limit` jobs that an action can touch.
    pub(crate) fn matching(&self, limit: i64, action: &'static str) -> Query<'static, Postgres, PgArguments> {
        self.of_tags(MATCH_JOBS, MATCH_TAGGED, |query| query.bind(limit).bind(action))
    }

    /// Binds this filter to a statement, or to its form for tags.
    fn of_tags(
        &self,
        plain: &'static str,
        tagged: &'static str,
        rest: impl Fn(Query<'static, Postgres, PgArguments>) -> Query<'static, Postgres, PgArguments>,
    ) -> Query<'static, Postgres, PgArguments> {
        if self.tags.is_empty() {
            return rest(self.bind(query(plain)));
        }
        rest(self.bind(query(tagged))).bind(self.tags.clone())
    }

    /// Selects only jobs with lower ids: the ones that a list shows after this job.
    #[must_use]
    pub fn before(mut self, id: JobId) -> Self {
        self.before = Some(id);
        self
    }
}

/// Whether a worker process is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WorkerState {
    /// It has renewed its row lately.
    Alive,
    /// It has renewed its row lately, finishes its jobs, and takes no other.
    Draining,
    /// It has missed three renewals of its row, and no probe over NATS has found it gone.
    Silent,
    /// It has missed renewals and does not answer over NATS: the prober is about to reset its jobs.
    Vanishing,
}

impl WorkerState {
    /// Returns the word that the database and the command line use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Draining => "draining",
            Self::Silent => "silent",
            Self::Vanishing => "vanishing",
        }
    }
}

/// A worker process, as the person on call sees it.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WorkerRow {
    /// Its id: host, pid and random letters.
    pub worker_id: String,
    /// The host it runs on.
    pub hostname: String,
    /// Its process id on that host.
    pub pid: i32,
    /// The language of its client, if it runs behind a gateway. `None`: it is tenure itself.
    pub language: Option<String>,
    /// Its version of tenure, or that of its client.
    pub version: String,
    /// The queues it serves.
    pub queues: Vec<String>,
    /// The kinds it knows; `None`: every kind.
    pub kinds: Option<Vec<String>>,
    /// Those that keep no history; `*`: the kinds without a handler of their own.
    pub unkept: Vec<String>,
    /// How many jobs it may run at once.
    pub slots: u32,
    /// How many it runs now.
    pub running: u64,
    /// When it started.
    pub started_at: DateTime<Utc>,
    /// When it last renewed its row.
    pub last_seen_at: DateTime<Utc>,
    /// How many seconds ago that was, by the database's clock.
    pub last_seen_s: f64,
    /// Whether it is alive.
    pub state: WorkerState,
    /// What kept it from taking jobs at its last renewal, each with the reason. `None`: nothing.
    pub not_ready: Option<String>,
    /// Since when it drains: it finishes its jobs, and takes no other. `None`: it does not.
    pub draining_at: Option<DateTime<Utc>>,
    /// Where it answers over NATS; `None`: it did not reach itself there.
    #[serde(skip)]
    pub(crate) probe_subject: Option<String>,
}

impl WorkerRow {
    /// The version of the worker, with its language if that is not tenure's own.
    #[doc(hidden)]
    #[must_use]
    pub fn program(&self) -> String {
        match &self.language {
            Some(language) => format!("{language} {}", self.version),
            None => self.version.clone(),
        }
    }
}

/// The version of the schema.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    /// The newest migration applied.
    pub version: i64,
    /// The oldest migration that a program must know to work with it.
    pub breaks_before: i64,
    /// The functions that this program calls and the schema lacks.
    pub lacks: Vec<String>,
}

impl Schema {
    /// Returns what this program needs and the schema lacks, if anything.
    pub fn lack(&self) -> Option<String> {
        if self.version < NEEDS {
            Some(format!(
                "it is at version {}, but this program needs {NEEDS}; run `tenure migrate`",
                self.version
            ))
        } else if !self.lacks.is_empty() {
            let of = self.lacks.join(", ");
            Some(format!("it lacks functions that this program calls, {of}; run `tenure migrate`"))
        } else {
            None
        }
    }
}

impl Store {
    /// Returns the version of the schema.
    pub async fn schema(&self) -> Result<Schema, StoreError> {
        let rows = self.rows(query(SCHEMA_VERSION).bind(CALLED_FUNCTIONS)).await?;
        let Some(row) = rows.first() else { return Ok(Schema::default()) };
        let (version, breaks_before) = (row.try_get("version")?, row.try_get("breaks_before")?);
        Ok(Schema { version, breaks_before, lacks: row.try_get("lacks")? })
    }

    /// Returns the database's time, the only clock.
    pub async fn database_time(&self) -> Result<DateTime<Utc>, StoreError> {
        let rows = self.rows(query(DATABASE_TIME)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(row.try_get("at")?)
    }

    /// Checks that jobs can be added.
    pub(crate) async fn can_enqueue(&self) -> Result<(), StoreError> {
        let rows = self.rows(query(CAN_ENQUEUE)).await?;
        if rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("can_enqueue")? {
            return Ok(());
        }
        let why = "this server is a standby or read-only, or the role may not add jobs (postgres/roles.sql)";
        Err(StoreError::Unavailable(Arc::new(sqlx::Error::Protocol(why.to_owned()))))
    }

    /// Returns at most `limit` jobs, newest first; with their payloads and outputs, or without.
    pub async fn list_jobs(
        &self,
        filter: &JobFilter,
        limit: i64,
        with_payloads: bool,
    ) -> Result<Vec<JobRow>, StoreError> {
        let list = filter.list(limit, with_payloads);
        if !with_payloads {
            let rows = self.rows_for_a_look(list).await?;
            return Ok(rows.iter().map(job_row).collect::<Result<_, _>>()?);
        }
        let rows = self.rows(list).await?;
        Ok(rows.iter().map(job_row).collect::<Result<_, _>>()?)
    }

    /// Returns at most `limit` jobs that match and that a cancellation touches, the newest first.
    pub(crate) async fn cancellable(&self, filter: &JobFilter, limit: i64) -> Result<Vec<JobId>, StoreError> {
        let rows = self.rows_aside(SELECTED_WITHIN, filter.matching(limit, "cancel")).await?;
        Ok(rows.iter().map(|row| row.try_get("id")).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns the size of a job's checkpoint in bytes.
    pub(crate) async fn checkpoint_size(&self, job: JobId) -> Result<Option<usize>, StoreError> {
        let rows = self.rows(query(CHECKPOINT_SIZE).bind(job)).await?;
        Ok(rows.first().map(|row| bytes_of(row, "bytes")).transpose()?.flatten())
    }

    /// Returns every registered worker process.
    pub(crate) async fn list_workers(&self) -> Result<Vec<WorkerRow>, StoreError> {
        let rows = self.rows(query(LIST_WORKERS)).await?;
        let worker = |row: &PgRow| {
            Ok(WorkerRow {
                worker_id: row.try_get("worker_id")?,
                hostname: row.try_get("hostname")?,
                pid: row.try_get("pid")?,
                language: row.try_get("language")?,
                version: row.try_get("version")?,
                queues: row.try_get("queues")?,
                kinds: row.try_get("kinds")?,
                unkept: row.try_get::<Option<_>, _>("unkept")?.unwrap_or_default(),
                slots: u32_of(row, "slots")?,
                running: u64_of(row, "running")?,
                started_at: row.try_get("started_at")?,
                last_seen_at: row.try_get("last_seen_at")?,
                last_seen_s: row.try_get("last_seen_s")?,
                state: match row.try_get::<&str, _>("state")? {
                    "vanishing" => WorkerState::Vanishing,
                    "silent" => WorkerState::Silent,
                    "draining" => WorkerState::Draining,
                    _ => WorkerState::Alive,
                },
                not_ready: row.try_get("not_ready")?,
                draining_at: row.try_get("draining_at")?,
                probe_subject: row.try_get("probe_subject")?,
            })
        };
        Ok(rows.iter().map(worker).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns one job, in any status.
    pub async fn show_job(&self, job: JobId) -> Result<Option<JobRow>, StoreError> {
        let rows = self.rows(query(SHOW_JOB).bind(job)).await?;
        Ok(rows.first().map(job_row).transpose()?)
    }

    /// Returns the latest `most` attempts of one job, oldest first.
    pub async fn executions(&self, job: JobId, most: i64) -> Result<Vec<ExecutionRow>, StoreError> {
        let rows = self.rows(query(EXECUTIONS).bind(job).bind(most)).await?;
        let execution = |row: &PgRow| {
            Ok(ExecutionRow {
                fencing_token: row.try_get("fencing_token")?,
                attempt: u32_of(row, "attempt")?,
                worker_id: row.try_get("worker_id")?,
                started_at: row.try_get("started_at")?,
                finished_at: row.try_get("finished_at")?,
                outcome: row.try_get("outcome")?,
                error: row.try_get("error")?,
            })
        };
        Ok(rows.iter().map(execution).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns the latest `most` recovery events of one job, oldest first.
    pub async fn recoveries(&self, job: JobId, most: i64) -> Result<Vec<RecoveryRow>, StoreError> {
        let rows = self.rows(query(RECOVERIES).bind(job).bind(most)).await?;
        let event = |row: &PgRow| {
            Ok(RecoveryRow {
                at: row.try_get("at")?,
                event: row.try_get("event")?,
                path: row.try_get("path")?,
                fencing_token: row.try_get("fencing_token")?,
                owner_before: row.try_get("owner_before")?,
                // The owner may write during the statement that judges it.
                silence_s: row.try_get::<Option<f64>, _>("silence_s")?.map(|s| s.max(0.0)),
                reason: row.try_get("reason")?,
                recovered_by: row.try_get("recovered_by")?,
            })
        };
        Ok(rows.iter().map(event).collect::<Result<_, sqlx::Error>>()?)
    }
}

pub(crate) fn job_row(row: &PgRow) -> Result<JobRow, sqlx::Error> {
    let (payload, payload_json) = both(row.try_get("payload")?);
    let (output, output_json) = both(row.try_get("output")?);
    Ok(JobRow {
        id: row.try_get("id")?,
        queue: row.try_get("queue")?,
        kind: row.try_get("kind")?,
        payload,
        payload_json,
        status: status(row)?,
        attempt: u32_of(row, "attempt")?,
        max_attempts: u32_of(row, "max_attempts")?,
        fencing_token: row.try_get("fencing_token")?,
        worker_id: row.try_get("worker_id")?,
        created_at: row.try_get("created_at")?,
        scheduled_at: row.try_get("scheduled_at")?,
        started_at: row.try_get("started_at")?,
        last_activity_at: row.try_get("last_activity_at")?,
        finished_at: row.try_get("finished_at")?,
        stage: row.try_get("stage")?,
        progress: row.try_get("progress")?,
        message: row.try_get("message")?,
        output,
        output_json,
        last_error: row.try_get("last_error")?,
        lane: row.try_get("lane")?,
        priority: row.try_get("priority")?,
        not_after: row.try_get("not_after")?,
        is_held: row.try_get("is_held")?,
        tags: row.try_get("tags")?,
    })
}
