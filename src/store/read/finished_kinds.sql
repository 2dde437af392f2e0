-- finished_kinds: how the jobs that were created in a span of time, and have finished, have run: by queue and kind.
--
--   $1 slices of the span  $2 seconds in a slice  $3 how many jobs to read, at most  $4 row limit
--
-- If workers have counted no more jobs (`activity`), all are read (`is_whole`), and `jobs` is exact. Otherwise as many
-- are read of each slice, a sample of the whole span, and `jobs` is the number of the queue's jobs that workers have
-- counted and kept, by the kind's share of the sample. An id is time: a slice is read by primary key, from its
-- beginning, so that slices must be short: a burst of one kind hides what came in the rest of its slice.
-- All attempts of a finished job but the last one have failed.
WITH counted AS MATERIALIZED (
    SELECT queue, sum(completed - unkept + cancelled) AS jobs
      FROM tenure.activity
     WHERE minute >= statement_timestamp() - $1::bigint * $2::bigint * interval '1 second'
     GROUP BY queue
), slices AS (
    SELECT statement_timestamp() - n * $2::bigint * interval '1 second' AS since, most
      FROM generate_series(1, $1::bigint) AS n
     CROSS JOIN (SELECT CASE WHEN sum(jobs) > $3::bigint THEN $3::bigint / $1::bigint ELSE $3::bigint END AS most
                   FROM counted) AS of_a_slice
), found AS MATERIALIZED (
    SELECT h.queue, h.kind, h.status, h.attempt, slices.since, most,
           extract(epoch FROM h.finished_at - h.started_at)::float8 AS ran_s
      FROM slices
     CROSS JOIN LATERAL (
           SELECT queue, kind, status, attempt, started_at, finished_at
             FROM tenure.job_history
            WHERE id >= tenure.id_of_time(slices.since)
              AND id < tenure.id_of_time(slices.since + $2::bigint * interval '1 second')
            ORDER BY id
            LIMIT most) h
     LIMIT $3::bigint
), whole AS (
    SELECT coalesce(bool_and(jobs < most), true) AND coalesce(sum(jobs), 0) < $3::bigint AS is_whole
      FROM (SELECT most, count(*) AS jobs FROM found GROUP BY since, most) s
), of_kind AS (
    SELECT queue, kind, count(*) AS jobs, count(*) FILTER (WHERE status = 'completed') AS completed,
           coalesce(sum(attempt), 0)::bigint AS attempts,
           coalesce(sum(greatest(attempt - 1, 0)), 0)::bigint AS failed,
           percentile_disc(0.5) WITHIN GROUP (ORDER BY ran_s) FILTER (WHERE status = 'completed') AS median_s,
           percentile_disc(0.95) WITHIN GROUP (ORDER BY ran_s) FILTER (WHERE status = 'completed') AS p95_s
      FROM found
     GROUP BY queue, kind
)
SELECT queue, kind, is_whole, k.jobs AS read, completed, attempts, failed, median_s, p95_s,
       CASE WHEN is_whole THEN k.jobs
            ELSE coalesce(round(c.jobs * k.jobs / sum(k.jobs) OVER (PARTITION BY queue)), k.jobs)::bigint
       END AS jobs
  FROM of_kind k
 CROSS JOIN whole
  LEFT JOIN counted c USING (queue)
 ORDER BY k.jobs DESC, queue, kind
 LIMIT $4::bigint
