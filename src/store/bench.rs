//! Bench: what `tenure bench` asks the database. Nothing else uses it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use sqlx::{AssertSqlSafe, Connection, Row, query};
use uuid::Uuid;

use super::{
    SCAN_GATE,
    call::{Store, StoreError},
};
use crate::job::JobId;

/// What the database holds of one queue. Times are seconds of its own clock; 0 is none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BenchState {
    pub(crate) now: f64,
    pub(crate) queued: i64,
    pub(crate) processing: i64,
    /// Queued, and no message of it is known.
    pub(crate) unpublished: i64,
    pub(crate) completed: i64,
    pub(crate) first_created: f64,
    pub(crate) last_created: f64,
    pub(crate) first_started: f64,
    pub(crate) last_finished: f64,
}

/// What the server has counted since its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BenchCounters {
    pub(crate) updates: i64,
    pub(crate) hot_updates: i64,
    pub(crate) transactions: i64,
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

const OUTPUTS: &str = "
SELECT id, output::bigint AS output
  FROM tenure.job_history
 WHERE id >= $2 AND queue = $1 AND jsonb_typeof(output) = 'number'";

const COUNTERS: &str = "
SELECT t.n_tup_upd AS updates, t.n_tup_hot_upd AS hot_updates, d.xact_commit AS transactions
  FROM pg_stat_user_tables t, pg_stat_database d
 WHERE t.schemaname = 'tenure' AND t.relname = 'jobs' AND d.datname = current_database()";

/// As wide as a job's row with nothing to report.
const RAW_COLUMNS: &str = "(
    id         uuid        PRIMARY KEY,
    queue      text        NOT NULL,
    kind       text        NOT NULL,
    payload    jsonb       NOT NULL,
    status     text        NOT NULL DEFAULT 'queued',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp())";

/// How much history one statement makes.
const HISTORY_STEP: usize = 50_000;

/// Finished jobs, one every 20 ms, the latest a day ago: spread over the partitions that are there.
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

/// The latest of each day.
const LATE: &str = "
UPDATE tenure.job_history SET finished_at = now()
 WHERE id IN (SELECT DISTINCT ON (created_at::date) id FROM tenure.job_history
               WHERE queue = 'bench-age' ORDER BY created_at::date, created_at DESC)";

const LEFT: &str = "SELECT count(*) FROM tenure.job_history WHERE queue = 'bench-age'";

impl Store {
    /// The scanner's pass over the live jobs. It starts no grace.
    pub(crate) async fn bench_scan(&self) -> Result<(), StoreError> {
        let scan = query(SCAN_GATE).bind(0.0_f64).bind(0.0_f64).bind(10_000_i64);
        self.rows(scan).await.map(drop)
    }

    pub(crate) async fn bench_state(&self, queue: &str, first: JobId) -> Result<BenchState, StoreError> {
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

    pub(crate) async fn bench_outputs(
        &self,
        queue: &str,
        first: JobId,
    ) -> Result<BTreeMap<JobId, i64>, StoreError> {
        let rows = self.rows(query(OUTPUTS).bind(queue).bind(first)).await?;
        Ok(rows
            .iter()
            .map(|row| Ok((row.try_get("id")?, row.try_get("output")?)))
            .collect::<Result<_, sqlx::Error>>()?)
    }

    pub(crate) async fn bench_counters(&self) -> Result<BenchCounters, StoreError> {
        let rows = self.rows(query(COUNTERS)).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        Ok(BenchCounters {
            updates: row.try_get("updates")?,
            hot_updates: row.try_get("hot_updates")?,
            transactions: row.try_get("transactions")?,
        })
    }

    /// How many workers serve a queue.
    pub(crate) async fn bench_workers(&self, queue: &str) -> Result<usize, StoreError> {
        let workers = "SELECT count(*) AS n FROM tenure.workers WHERE $1 = ANY (queues)";
        let rows = self.rows(query(workers).bind(queue)).await?;
        let workers: i64 = rows.first().map_or(Ok(0), |row| row.try_get("n"))?;
        Ok(usize::try_from(workers).unwrap_or_default())
    }

    pub(crate) async fn bench_version(&self) -> Result<String, StoreError> {
        let rows = self.rows(query("SELECT current_setting('server_version') AS version")).await?;
        Ok(rows.first().map_or(Ok(String::new()), |row| row.try_get("version"))?)
    }

    /// Makes an empty table of this name for raw INSERTs, or removes it.
    pub(crate) async fn bench_raw_table(&self, table: &str, wanted: bool) -> Result<(), StoreError> {
        let drop = format!("DROP TABLE IF EXISTS tenure.{table}");
        self.rows(query(AssertSqlSafe(drop))).await?;
        if wanted {
            let create = format!("CREATE TABLE tenure.{table} {RAW_COLUMNS}");
            self.rows(query(AssertSqlSafe(create))).await?;
        }
        Ok(())
    }

    /// Inserts rows over a connection of its own, each by a statement of its own. Returns how long each took.
    pub(crate) async fn bench_raw_inserts(
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

    /// From the first raw row to the last.
    pub(crate) async fn bench_raw_seconds(&self, table: &str) -> Result<f64, StoreError> {
        let seconds = format!(
            "SELECT extract(epoch FROM max(created_at) - min(created_at))::float8 AS s FROM tenure.{table}"
        );
        let rows = self.rows(query(AssertSqlSafe(seconds))).await?;
        Ok(rows.first().map_or(Ok(0.0), |row| row.try_get("s"))?)
    }

    /// Makes finished jobs that nobody ran.
    pub(crate) async fn bench_history(&self, jobs: usize, payload: &str) -> Result<(), StoreError> {
        // A connection of its own: a statement may take longer than a worker's may.
        let mut connection = self.migration_connection().await?;
        for from in (0..jobs).step_by(HISTORY_STEP) {
            let to = (from + HISTORY_STEP).min(jobs);
            let bounds = (i64::try_from(from + 1), i64::try_from(to));
            let (Ok(low), Ok(high)) = bounds else { break };
            query(HISTORY).bind(low).bind(high).bind(payload).execute(&mut connection).await?;
        }
        Ok(connection.close().await?)
    }

    /// Has one job of each day of [`Store::bench_history`] end just now; returns how many of its jobs are left.
    pub(crate) async fn bench_finish_late(&self) -> Result<i64, StoreError> {
        let mut connection = self.migration_connection().await?;
        query(LATE).execute(&mut connection).await?;
        let row = query(LEFT).fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(row.try_get(0)?)
    }

    /// Tells the planner what there is, as autovacuum does by and by.
    pub(crate) async fn bench_vacuum(&self) -> Result<(), StoreError> {
        let mut connection = self.migration_connection().await?;
        for table in ["VACUUM ANALYZE tenure.job_history", "VACUUM ANALYZE tenure.jobs"] {
            query(table).execute(&mut connection).await?;
        }
        Ok(connection.close().await?)
    }

    /// Removes a queue's jobs, and the workers that served it alone.
    pub(crate) async fn bench_clear(&self, queue: &str, first: JobId) -> Result<(), StoreError> {
        for table in [
            "DELETE FROM tenure.job_executions WHERE job_id IN
                 (SELECT id FROM tenure.all_jobs WHERE id >= $2 AND queue = $1)",
            "DELETE FROM tenure.recovery_events WHERE job_id IN
                 (SELECT id FROM tenure.all_jobs WHERE id >= $2 AND queue = $1)",
        ] {
            self.rows(query(table).bind(queue).bind(first)).await?;
        }
        self.rows(query("DELETE FROM tenure.jobs WHERE queue = $1").bind(queue)).await?;
        self.rows(
            query("DELETE FROM tenure.job_history WHERE id >= $2 AND queue = $1").bind(queue).bind(first),
        )
        .await?;
        self.rows(query("DELETE FROM tenure.workers WHERE queues = ARRAY[$1]").bind(queue)).await?;
        Ok(())
    }

    /// How long each of these calls takes, in milliseconds; the median.
    pub(crate) async fn bench_time(
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
