-- doctor_slow: kinds with attempts that have run for far longer than their jobs do that have completed.
--
--   $1 queues, or NULL for all  $2 for how many seconds any attempt may run  $3 how many times as long as nineteen of
--   twenty have run is far longer  $4 row limit
--
-- `usual_s` is that of the jobs that completed within the last day, of the latest 20,000. They are read only if an
-- attempt has run for longer than $2. A kind of which a few jobs take long is not slow: none of those took as long.
WITH running AS MATERIALIZED (
    SELECT id, queue, kind, started_at
      FROM tenure.jobs
     WHERE status = 'processing' AND started_at < statement_timestamp() - $2::float8 * interval '1 second'
       AND ($1::text[] IS NULL OR queue = ANY ($1))
), latest AS MATERIALIZED (
    SELECT queue, kind, extract(epoch FROM finished_at - started_at)::float8 AS ran_s
      FROM tenure.job_history
     WHERE EXISTS (SELECT FROM running)
       AND id >= tenure.id_of_time(statement_timestamp() - interval '1 day') AND status = 'completed'
     ORDER BY id DESC LIMIT 20000
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
