//! Bench pages: a database as a large fleet leaves it, for the measurement of the dashboard's pages.

use sqlx::{Connection, query};

use super::call::{Store, StoreError};

/// What each statement inserts, in order; `$1` is the number of jobs. A hundred queues, ten kinds, two hundred workers.
const FILLED: [&str; 10] = [
    // Finished jobs, over a week, half of them in the last hour.
    "INSERT INTO tenure.job_history (id, queue, kind, payload, status, attempt, max_attempts, fencing_token,
            claim_id, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at)
     SELECT overlay(tenure.id_of_time(at)::text PLACING lpad(to_hex(n), 12, '0') FROM 25)::uuid,
            'queue-' || n % 100, 'kind.' || n % 10, jsonb_build_object('order', n, 'note', repeat('x', 150)),
            CASE WHEN n % 50 = 0 THEN 'cancelled' ELSE 'completed' END, 1 + (n % 20 = 0)::int, 5, 2, gen_random_uuid(),
            'host-' || n % 200 || '-1-aaaaaaaa', at, at, at, at, at + n % 1000 * interval '1 ms'
       FROM (SELECT n, statement_timestamp() - CASE WHEN n % 2 = 0 THEN interval '1 hour' ELSE interval '7 days' END
                       * n / $1::bigint AS at
               FROM generate_series(1, $1::bigint) AS n) AS jobs",
    // Live jobs: due ones, one of ten scheduled or retrying, one of a hundred running.
    "INSERT INTO tenure.jobs (id, queue, kind, payload, status, attempt, max_attempts, fencing_token, claim_id,
            worker_id, worker_host, stale_after, last_activity_at, started_at, scheduled_at, dispatch,
            publish_at, published_at,
            last_error)
     SELECT overlay(tenure.id_of_time(at)::text PLACING lpad(to_hex(n), 12, '0') FROM 25)::uuid,
            'queue-' || n % 100, 'kind.' || n % 10, jsonb_build_object('order', n, 'note', repeat('x', 150)),
            CASE WHEN runs THEN 'processing' ELSE 'queued' END, (runs OR n % 20 = 0)::int, 5, (runs OR n % 20 = 0)::int,
            CASE WHEN runs THEN gen_random_uuid() END, CASE WHEN runs THEN 'host-' || n % 200 || '-1-aaaaaaaa' END,
            CASE WHEN runs THEN 'host-' || n % 200 END, CASE WHEN runs THEN interval '1 day' END,
            CASE WHEN runs THEN now() END, CASE WHEN runs THEN now() END,
            now() + CASE WHEN waits THEN interval '1 day' ELSE interval '0' END, 1,
            CASE WHEN waits THEN now() + interval '1 day' END, CASE WHEN NOT waits THEN now() END,
            CASE WHEN n % 20 = 0 THEN 'the gateway answered 503' END
       FROM (SELECT n, n % 100 = 1 AS runs, n % 10 = 0 AS waits, now() - n * interval '10 ms' AS at
               FROM generate_series(1, $1::bigint) AS n) AS jobs",
    // One dead letter for every fifth job, with errors of a few groups.
    "INSERT INTO tenure.dead_letter_jobs (id, queue, kind, payload, attempt, max_attempts, fencing_token, created_at,
            scheduled_at, died_at, last_error, category, execution_history)
     SELECT overlay(tenure.id_of_time(at)::text PLACING lpad(to_hex(n), 12, '0') FROM 25)::uuid, 'queue-' || n % 100,
            'kind.' || n % 10, jsonb_build_object('order', n), 5, 5, 5, at, at, at,
            CASE n % 3 WHEN 0 THEN 'customer ' || n || ' is unknown' WHEN 1 THEN 'the gateway answered 503'
                       ELSE E'Traceback (most recent call last):\\n  File \"a.py\", line 3\\nKeyError: ''a''' END,
            'exhausted', '[]'
       FROM (SELECT n, statement_timestamp() - n * interval '20 s' AS at
               FROM generate_series(1, $1::bigint / 5) AS n) AS dead",
    "INSERT INTO tenure.workers (worker_id, hostname, pid, queues, kinds, slots, version, renew_every)
     SELECT 'host-' || n || '-1-aaaaaaaa', 'host-' || n, 1,
            ARRAY(SELECT 'queue-' || (n + of) % 100 FROM generate_series(0, 4) AS of), NULL, 100, '0', interval '1 day'
       FROM generate_series(0, least(199, $1::bigint)) AS n",
    "INSERT INTO tenure.queue_stats (queue, due, scheduled, processing, oldest_due_at, submitted, submitted_until)
     SELECT queue, count(*) FILTER (WHERE status = 'queued' AND publish_at IS NULL),
            count(*) FILTER (WHERE status = 'queued' AND publish_at IS NOT NULL),
            count(*) FILTER (WHERE status = 'processing'), min(scheduled_at), 0, now() + interval '1 day'
       FROM tenure.jobs WHERE $1::bigint > 0 GROUP BY queue",
    "UPDATE tenure.scanner_state
        SET measured_at = now(), dead = $1::bigint / 5, stream_until = now() + interval '1 day'",
    // A week of counts: minutes, then quarters of an hour, then two hours, as workers add them up.
    "INSERT INTO tenure.activity (minute, queue, claimed, completed, retried, snoozed, failed, cancelled, released,
            waited, ran)
     SELECT minute, 'queue-' || queue, 60, 55, 3, 0, 1, 1, 0, array_fill(3::bigint, ARRAY[24]),
            array_fill(3::bigint, ARRAY[24])
       FROM (SELECT date_bin('1 min', now(), 'epoch') - n * interval '1 min' AS minute
               FROM generate_series(0, 74) AS n
              UNION
             SELECT date_bin('15 min', now() - interval '75 min', 'epoch') - n * interval '15 min'
               FROM generate_series(1, 99) AS n
              UNION
             SELECT date_bin('2 hours', now() - interval '26 hours', 'epoch') - n * interval '2 hours'
               FROM generate_series(1, 83) AS n) AS minutes, generate_series(0, least(99, $1::bigint)) AS queue",
    "INSERT INTO tenure.recovery_events (event, path, job_id, fencing_token, owner_before, reason, recovered_by, at)
     SELECT 'reset', 'scanner', gen_random_uuid(), 1, 'host-1-1-aaaaaaaa', 'silent', 'host-2-1-aaaaaaaa',
            now() - n * interval '20 s'
       FROM generate_series(1, $1::bigint / 5) AS n",
    "INSERT INTO tenure.schedules (name, cron, time_zone, queue, kind, payload, max_attempts, missed, next_at,
            last_tick_at)
     SELECT 'schedule-' || n, '0 * * * *', 'UTC', 'queue-' || n, 'kind.1', '{}', 5, 'once', now() + interval '1 hour',
            date_trunc('hour', now())
       FROM generate_series(0, least(99, $1::bigint)) AS n",
    "INSERT INTO tenure.queues (queue, max_running, max_queued)
     SELECT 'queue-' || n, 50, 1000 FROM generate_series(0, least(9, $1::bigint)) AS n",
];

impl Store {
    /// Fills an empty database: `jobs` finished jobs, as many live ones, a fifth as many dead ones, a hundred queues,
    /// two hundred workers.
    pub async fn bench_fill(&self, jobs: usize) -> Result<(), StoreError> {
        // A separate connection: a statement may take longer here than in a worker.
        let mut connection = self.migration_connection().await?;
        for insert in FILLED {
            query(insert).bind(i64::try_from(jobs).unwrap_or(i64::MAX)).execute(&mut connection).await?;
        }
        for table in ["VACUUM ANALYZE tenure.dead_letter_jobs", "VACUUM ANALYZE tenure.activity", "ANALYZE"] {
            query(table).execute(&mut connection).await?;
        }
        connection.close().await?;
        self.bench_vacuum().await
    }
}
