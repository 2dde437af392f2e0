-- doctor_slow: kinds with attempts that have run for far longer than their jobs do that have completed.
--
--   $1 queues, or NULL for all  $2 for how many seconds any attempt may run  $3 how many times as long as nineteen of
--   twenty have run is far longer  $4 row limit
--
-- `usual_s` is that of a sample of the jobs that were created within the last day and have completed: a thousand of each
-- hour. They are read only if an attempt has run for longer than $2. A kind of which a few jobs take long is not slow:
-- one of the sample took as long.
WITH running AS MATERIALIZED (
    SELECT id, queue, kind, started_at
      FROM tenure.jobs
     WHERE status = 'processing' AND started_at < statement_timestamp() - $2::float8 * interval '1 second'
       AND ($1::text[] IS NULL OR queue = ANY ($1))
), latest AS MATERIALIZED (
    SELECT h.queue, h.kind, extract(epoch FROM h.finished_at - h.started_at)::float8 AS ran_s
      FROM generate_series(1, 24) AS hours (ago)
     CROSS JOIN LATERAL (
           SELECT queue, kind, started_at, finished_at
             FROM tenure.job_history
            WHERE id >= tenure.id_of_time(statement_timestamp() - ago * interval '1 hour')
              AND id < tenure.id_of_time(statement_timestamp() - (ago - 1) * interval '1 hour')
              AND status = 'completed'
            ORDER BY id LIMIT 1000) h
     WHERE EXISTS (SELECT FROM running)
), usual AS (
    SELECT queue, kind, percentile_disc(0.95) WITHIN GROUP (ORDER BY ran_s) AS ran_s, max(ran_s) AS longest_s
      FROM latest GROUP BY queue, kind HAVING count(*) >= 20
)
SELECT r.queue, r.kind, count(*) AS jobs, (array_agg(r.id ORDER BY r.started_at))[1] AS id,
       extract(epoch FROM statement_timestamp() - min(r.started_at))::float8 AS runs_s, u.ran_s AS usual_s
  FROM running r
  JOIN usual u USING (queue, kind)
 WHERE r.started_at < statement_timestamp() - greatest($3::float8 * u.ran_s, u.longest_s) * interval '1 second'
 GROUP BY r.queue, r.kind, u.ran_s
 ORDER BY runs_s DESC
 LIMIT $4
