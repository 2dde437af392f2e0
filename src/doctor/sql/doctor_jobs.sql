-- doctor_jobs: jobs that are overdue for the relay, the age of the last scan, and the dead letters of the last hour.
--
--   $1 seconds after which a due job must have been published
--
-- One row. Counts at most 10,000 overdue jobs.
SELECT relay.jobs AS overdue,
       extract(epoch FROM statement_timestamp() - relay.oldest)::float8 AS overdue_s,
       extract(epoch FROM statement_timestamp() - s.last_scan_at)::float8 AS last_scan_s,
       extract(epoch FROM s.grace_until - statement_timestamp())::float8 AS grace_left_s,
       extract(epoch FROM statement_timestamp() - s.breaker_since)::float8 AS breaker_s,
       dead.died,
       dead.died_of
  FROM tenure.scanner_state s
 CROSS JOIN LATERAL (
       SELECT count(*) AS jobs, min(publish_at) AS oldest
         FROM (SELECT publish_at FROM tenure.jobs
                WHERE publish_at <= statement_timestamp() - $1::float8 * interval '1 second' AND status = 'queued'
                ORDER BY publish_at LIMIT 10000) AS waiting) AS relay
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(jobs), 0)::bigint AS died,
              string_agg(jobs || ' ' || category, ', ' ORDER BY jobs DESC, category) AS died_of
         FROM (SELECT category, count(*) AS jobs FROM tenure.dead_letter_jobs
                WHERE died_at > statement_timestamp() - interval '1 hour' GROUP BY category) AS categories) AS dead
