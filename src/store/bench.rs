//! Bench: the statements of `tenure bench` alone.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, query};
use uuid::Uuid;

use super::{
    SCAN_GATE,
    call::{Store, StoreError},
};
use crate::job::JobId;

/// The state of one queue in the database. Times are seconds by the database's clock; 0 stands for no time.
#[derive(Debug, Clone, Copy)]
pub struct BenchState {
    pub now: f64,
    pub queued: i64,
    pub processing: i64,
    /// Queued jobs without a known message.
    pub unpublished: i64,
    pub completed: i64,
    pub first_created: f64,
    pub last_created: f64,
    pub first_started: f64,
    pub last_finished: f64,
}

/// The start of a bench job by its worker's clock, and its due time by the database's, in microseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub struct BenchStarted {
    pub started_us: i64,
    pub due_us: i64,
}

/// The relay's progress with a queue.
#[derive(Debug, Clone, Copy)]
pub struct BenchRelayed {
    /// The database's time, in seconds.
    pub now: f64,
    /// Whether a queued job waits for its message, or for evidence that its earlier message is gone.
    pub waits: bool,
    /// Whether the relay has been handed a job, or has published one.
    pub has_begun: bool,
}

/// The server's counters since its start.
#[derive(Debug, Clone, Copy)]
pub struct BenchCounters {
    pub updates: i64,
    pub hot_updates: i64,
    pub transactions: i64,
    /// Those that Postgres or a program has given up.
    pub rollbacks: i64,
}

const STATE: &str = "
WITH live AS (
    SELECT count(*) FILTER (WHERE status = 'queued') AS queued,
           count(*) FILTER (WHERE status = 'processing') AS processing,
           count(*) FILTER (WHERE status = 'queued' AND published_at IS NULL) AS unpublished,
           min(created_at) AS first_created, max(created_at) AS last_created
      FROM tenure.jobs WHERE queue = $1
), finished AS (
    SELECT count(*) AS completed, min(created_at) AS first_created, max(created_at) AS last_created,
           min(started_at) AS first_started, max(finished_at) AS last_finished
      FROM tenure.job_history WHERE id >= $2 AND queue = $1 AND status = 'completed'
)
SELECT queued, processing, unpublished, completed,
       extract(epoch FROM clock_timestamp())::float8 AS now,
       coalesce(extract(epoch FROM least(live.first_created, finished.first_created)), 0)::float8 AS first_created,
       coalesce(extract(epoch FROM greatest(live.last_created, finished.last_created)), 0)::float8 AS last_created,
       coalesce(extract(epoch FROM first_started), 0)::float8 AS first_started,
       coalesce(extract(epoch FROM last_finished), 0)::float8 AS last_finished
  FROM live, finished";

/// A schedule's job is due when its row is written, later than the tick; the payload holds the tick.
const STARTED: &str = "
SELECT id, output::bigint AS started_us,
       (extract(epoch FROM coalesce((payload ->> 'tick')::timestamptz, scheduled_at)) * 1000000)::bigint AS due_us
  FROM tenure.job_history
 WHERE id >= $2 AND starts_with(queue, $1) AND jsonb_typeof(output) = 'number'";

/// How many jobs with the same `customer` ran at once, from their rows alone: an end before a start of the same moment.
const MOST_AT_ONCE: &str = "
WITH moments AS (
    SELECT payload ->> 'customer' AS lane, started_at AS at, 1 AS change FROM tenure.job_history WHERE queue = $1
     UNION ALL
    SELECT payload ->> 'customer', finished_at, -1 FROM tenure.job_history WHERE queue = $1
)
SELECT coalesce(max(running), 0)::float8 AS most
  FROM (SELECT sum(change) OVER (PARTITION BY lane ORDER BY at, change) AS running FROM moments) r";

/// The starts of a queue's attempts within a time from the first, and the most of them within any second.
const STARTS: &str = "
WITH starts AS (
    SELECT started_at AS at FROM tenure.job_executions_all e
     WHERE EXISTS (SELECT FROM tenure.all_jobs j WHERE j.id = e.job_id AND j.queue = $1)
), first AS (
    SELECT min(at) AS at FROM starts
)
SELECT (SELECT count(*) FROM starts, first WHERE starts.at < first.at + $2 * interval '1 second')::float8 AS in_time,
       coalesce((SELECT max((SELECT count(*) FROM starts later
                              WHERE later.at >= s.at AND later.at < s.at + interval '1 second'))
                   FROM starts s), 0)::float8
       AS most";

/// Jobs held in a thousand lanes whose two slots are taken, as a fleet that has fallen behind leaves them.
const HOLD: &str = "
INSERT INTO tenure.jobs (id, queue, kind, payload, max_attempts, scheduled_at, publish_at, lane)
SELECT gen_random_uuid(), $1, 'order', '{}', 5, clock_timestamp(), clock_timestamp(), 'blocked-' || n % 1000
  FROM generate_series(1, $2::int) AS n";

/// A job as any client of Postgres enqueues it.
const PLAIN_JOB: &str = "SELECT tenure.enqueue($1, 'order', $2::jsonb) AS id";

/// Each part uses its own index, because the statement runs while the relay works.
const RELAYED: &str = "
SELECT extract(epoch FROM clock_timestamp())::float8 AS now,
       EXISTS (SELECT FROM tenure.jobs WHERE publish_at IS NOT NULL AND queue = $1 AND status = 'queued')
       OR EXISTS (SELECT FROM tenure.jobs
                   WHERE queue = $1 AND published_at < to_timestamp($2::float8) AND status = 'queued') AS waits,
       EXISTS (SELECT FROM tenure.jobs WHERE publish_at IS NOT NULL AND queue = $1)
       OR EXISTS (SELECT FROM tenure.jobs
                   WHERE queue = $1 AND published_at >= to_timestamp($2::float8)) AS has_begun";

const LAST_PUBLISHED: &str = "
SELECT coalesce(extract(epoch FROM max(published_at)), 0)::float8 AS last FROM tenure.jobs WHERE queue = $1";

const FREE_CONNECTIONS: &str = "
SELECT current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
       - (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS free";

const COUNTERS: &str = "
SELECT t.n_tup_upd AS updates, t.n_tup_hot_upd AS hot_updates, d.xact_commit AS transactions,
       d.xact_rollback AS rollbacks
  FROM pg_stat_user_tables t, pg_stat_database d
 WHERE t.schemaname = 'tenure' AND t.relname = 'jobs' AND d.datname = current_database()";

/// Columns as wide as the row of a job without progress.
const RAW_COLUMNS: &str = "(
    id         uuid        PRIMARY KEY,
    queue      text        NOT NULL,
    kind       text        NOT NULL,
    payload    jsonb       NOT NULL,
    status     text        NOT NULL DEFAULT 'queued',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp())";

/// How many finished jobs one statement inserts.
const HISTORY_STEP: usize = 50_000;

/// Finished jobs, one every 20 ms, the latest a day ago: spread over the existing partitions.
const HISTORY: &str = r"
INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
       claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at)
SELECT overlay(overlay(gen_random_uuid()::text
               PLACING lpad(to_hex((extract(epoch FROM at) * 1000)::bigint >> 16), 8, '0') FROM 1)
               PLACING lpad(to_hex((extract(epoch FROM at) * 1000)::bigint & 65535), 4, '0') FROM 10)::uuid,
       'bench-age', 'order', $3::jsonb, 'completed', 1, 5, 1, gen_random_uuid(), 'bench-1-aaaaaaaa',
       at, at, at, at, at
  FROM (SELECT statement_timestamp() - interval '1 day' - n * interval '20 ms' AS at
          FROM generate_series($1::bigint, $2::bigint) AS n) AS times";

/// Makes the latest job of each day end now.
const LATE: &str = "
UPDATE tenure.job_history SET finished_at = now()
 WHERE id IN (SELECT DISTINCT ON (created_at::date) id FROM tenure.job_history
               WHERE queue = 'bench-age' ORDER BY created_at::date, created_at DESC)";

const LEFT: &str = "SELECT count(*) FROM tenure.job_history WHERE queue = 'bench-age'";

impl Store {
    /// Runs the scanner's pass over the live jobs. It starts no grace.
    pub async fn bench_scan(&self) -> Result<(), StoreError> {
        let scan = query(SCAN_GATE).bind(0.0_f64).bind(0.0_f64).bind(10_000_i64);
        self.rows(scan).await.map(drop)
    }

    pub async fn bench_state(&self, queue: &str, first: JobId) -> Result<BenchState, StoreError> {
        let rows = self.rows(query(STATE).bind(queue).bind(first)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(BenchState {
            now: row.try_get("now")?,
            queued: row.try_get("queued")?,
            processing: row.try_get("processing")?,
            unpublished: row.try_get("unpublished")?,
            completed: row.try_get("completed")?,
            first_created: row.try_get("first_created")?,
            last_created: row.try_get("last_created")?,
            first_started: row.try_get("first_started")?,
            last_finished: row.try_get("last_finished")?,
        })
    }

    /// Returns the finished jobs whose output is their start, of queues whose names begin with `queues`, from the id
    /// `first` on.
    pub async fn bench_started(
        &self,
        queues: &str,
        first: JobId,
    ) -> Result<BTreeMap<JobId, BenchStarted>, StoreError> {
        let rows = self.rows(query(STARTED).bind(queues).bind(first)).await?;
        let started = rows.iter().map(|row| {
            let started =
                BenchStarted { started_us: row.try_get("started_us")?, due_us: row.try_get("due_us")? };
            Ok((row.try_get("id")?, started))
        });
        Ok(started.collect::<Result<_, sqlx::Error>>()?)
    }

    /// Returns the most jobs of one customer of a queue that ran at once.
    pub async fn bench_most_at_once(&self, queue: &str) -> Result<f64, StoreError> {
        let rows = self.rows(query(MOST_AT_ONCE).bind(queue)).await?;
        Ok(rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("most")?)
    }

    /// Returns how many attempts of a queue started within `seconds` of the first, and the most within any second.
    pub async fn bench_starts(&self, queue: &str, seconds: u32) -> Result<(f64, f64), StoreError> {
        let rows = self.rows(query(STARTS).bind(queue).bind(f64::from(seconds))).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok((row.try_get("in_time")?, row.try_get("most")?))
    }

    /// Holds jobs in lanes of a queue whose slots are taken.
    pub async fn bench_hold(&self, queue: &str, jobs: i32) -> Result<(), StoreError> {
        let mut connection = self.migration_connection().await?;
        query(HOLD).bind(queue).bind(jobs).execute(&mut connection).await?;
        // Until the lanes' slots are taken.
        loop {
            let taken = query("SELECT count(*) FROM tenure.tend_lanes(1000, false)")
                .fetch_one(&mut connection)
                .await?;
            if taken.try_get::<i64, _>(0)? == 0 {
                break;
            }
        }
        query("VACUUM ANALYZE").execute(&mut connection).await?;
        Ok(())
    }

    /// Opens a connection for the bench's own transactions, as a user has them.
    pub async fn bench_connection(&self) -> Result<PgConnection, StoreError> {
        self.migration_connection().await
    }

    /// Inserts a job's row by plain SQL, over a connection that is not tenure's.
    pub async fn bench_plain_job(
        &self,
        connection: &mut PgConnection,
        queue: &str,
        payload: &str,
    ) -> Result<JobId, StoreError> {
        Ok(query(PLAIN_JOB).bind(queue).bind(payload).fetch_one(connection).await?.try_get("id")?)
    }

    /// Returns the relay's progress with a queue. Jobs published before `before`, in seconds, have lost their messages.
    pub async fn bench_relayed(&self, queue: &str, before: f64) -> Result<BenchRelayed, StoreError> {
        let rows = self.rows(query(RELAYED).bind(queue).bind(before)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(BenchRelayed {
            now: row.try_get("now")?,
            waits: row.try_get("waits")?,
            has_begun: row.try_get("has_begun")?,
        })
    }

    /// Returns when the last message of a queue's live jobs was confirmed, in seconds.
    pub async fn bench_last_published(&self, queue: &str) -> Result<f64, StoreError> {
        let rows = self.rows(query(LAST_PUBLISHED).bind(queue)).await?;
        Ok(rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("last")?)
    }

    /// Returns how many more connections the server takes.
    pub async fn bench_free_connections(&self) -> Result<i64, StoreError> {
        let rows = self.rows(query(FREE_CONNECTIONS)).await?;
        Ok(rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("free")?)
    }

    /// Removes the rows of killed workers whose first queue's name begins with `queues`, so that no worker probes them.
    pub async fn bench_forget_workers(&self, queues: &str) -> Result<(), StoreError> {
        let forget = "DELETE FROM tenure.workers WHERE starts_with(queues[1], $1)";
        self.rows(query(forget).bind(queues)).await.map(drop)
    }

    pub async fn bench_counters(&self) -> Result<BenchCounters, StoreError> {
        let rows = self.rows(query(COUNTERS)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(BenchCounters {
            updates: row.try_get("updates")?,
            hot_updates: row.try_get("hot_updates")?,
            transactions: row.try_get("transactions")?,
            rollbacks: row.try_get("rollbacks")?,
        })
    }

    /// Returns how many workers serve a queue.
    pub async fn bench_workers(&self, queue: &str) -> Result<usize, StoreError> {
        let workers = "SELECT count(*) AS n FROM tenure.workers WHERE $1 = ANY (queues)";
        let rows = self.rows(query(workers).bind(queue)).await?;
        let workers: i64 = rows.first().map_or(Ok(0), |row| row.try_get("n"))?;
        Ok(usize::try_from(workers).unwrap_or_default())
    }

    pub async fn bench_version(&self) -> Result<String, StoreError> {
        let rows = self.rows(query("SELECT current_setting('server_version') AS version")).await?;
        Ok(rows.first().map_or(Ok(String::new()), |row| row.try_get("version"))?)
    }

    /// Creates an empty table of this name for raw INSERTs, or removes it if it is not `wanted`.
    pub async fn bench_raw_table(&self, table: &str, wanted: bool) -> Result<(), StoreError> {
        let drop = format!("DROP TABLE IF EXISTS tenure.{table}");
        self.rows(query(AssertSqlSafe(drop))).await?;
        if wanted {
            let create = format!("CREATE TABLE tenure.{table} {RAW_COLUMNS}");
            self.rows(query(AssertSqlSafe(create))).await?;
        }
        Ok(())
    }

    /// Inserts rows over a separate connection, each by its own statement. Returns how long each took.
    pub async fn bench_raw_inserts(
        &self,
        table: &str,
        payload: &str,
        rows: usize,
        pace: Option<Duration>,
    ) -> Result<Vec<Duration>, StoreError> {
        let mut connection = self.migration_connection().await?;
        let mut taken = Vec::with_capacity(rows);
        let insert = format!(
            "INSERT INTO tenure.{table} (id, queue, kind, payload) VALUES ($1, 'bench', 'order', $2::jsonb)"
        );
        for _ in 0..rows {
            if let Some(pace) = pace {
                tokio::time::sleep(pace).await;
            }
            let since = Instant::now();
            let insert = query(AssertSqlSafe(insert.as_str())).bind(Uuid::now_v7()).bind(payload);
            insert.execute(&mut connection).await?;
            taken.push(since.elapsed());
        }
        connection.close().await?;
        Ok(taken)
    }

    /// Returns the seconds from the first raw row to the last.
    pub async fn bench_raw_seconds(&self, table: &str) -> Result<f64, StoreError> {
        let seconds = format!(
            "SELECT extract(epoch FROM max(created_at) - min(created_at))::float8 AS s FROM tenure.{table}"
        );
        let rows = self.rows(query(AssertSqlSafe(seconds))).await?;
        Ok(rows.first().map_or(Ok(0.0), |row| row.try_get("s"))?)
    }

    /// Inserts finished jobs that no worker ran.
    pub async fn bench_history(&self, jobs: usize, payload: &str) -> Result<(), StoreError> {
        // A separate connection: a statement may take longer here than in a worker.
        let mut connection = self.migration_connection().await?;
        for from in (0..jobs).step_by(HISTORY_STEP) {
            let to = (from + HISTORY_STEP).min(jobs);
            let bounds = (i64::try_from(from + 1), i64::try_from(to));
            let (Ok(low), Ok(high)) = bounds else { break };
            query(HISTORY).bind(low).bind(high).bind(payload).execute(&mut connection).await?;
        }
        Ok(connection.close().await?)
    }

    /// Makes one job of each day of [`Store::bench_history`] end just now; returns how many of its jobs remain.
    pub async fn bench_finish_late(&self) -> Result<i64, StoreError> {
        let mut connection = self.migration_connection().await?;
        query(LATE).execute(&mut connection).await?;
        let row = query(LEFT).fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(row.try_get(0)?)
    }

    /// Updates the planner's statistics, as autovacuum does by and by.
    pub async fn bench_vacuum(&self) -> Result<(), StoreError> {
        let mut connection = self.migration_connection().await?;
        for table in ["VACUUM ANALYZE tenure.job_history", "VACUUM ANALYZE tenure.jobs"] {
            query(table).execute(&mut connection).await?;
        }
        Ok(connection.close().await?)
    }

    /// Removes a queue's jobs and schedules.
    pub async fn bench_clear(&self, queue: &str, first: JobId) -> Result<(), StoreError> {
        for table in [
            "DELETE FROM tenure.job_executions WHERE job_id IN
                 (SELECT id FROM tenure.all_jobs WHERE id >= $2 AND queue = $1)",
            "DELETE FROM tenure.recovery_events WHERE job_id IN
                 (SELECT id FROM tenure.all_jobs WHERE id >= $2 AND queue = $1)",
        ] {
            self.rows(query(table).bind(queue).bind(first)).await?;
        }
        self.rows(query("DELETE FROM tenure.schedules WHERE queue = $1").bind(queue)).await?;
        self.rows(query("DELETE FROM tenure.queues WHERE queue = $1").bind(queue)).await?;
        self.rows(query("DELETE FROM tenure.jobs WHERE queue = $1").bind(queue)).await?;
        self.rows(
            query("DELETE FROM tenure.job_history WHERE id >= $2 AND queue = $1").bind(queue).bind(first),
        )
        .await?;
        Ok(())
    }

    /// Returns the median duration of `times` calls, in milliseconds.
    pub async fn bench_time(
        &self,
        times: usize,
        call: impl AsyncFn() -> Result<(), StoreError>,
    ) -> Result<f64, StoreError> {
        let mut taken = Vec::with_capacity(times);
        for _ in 0..times {
            let since = Instant::now();
            call().await?;
            taken.push(since.elapsed());
        }
        taken.sort_unstable();
        let median: Duration = taken.get(times / 2).copied().unwrap_or_default();
        Ok(median.as_secs_f64() * 1e3)
    }
}
