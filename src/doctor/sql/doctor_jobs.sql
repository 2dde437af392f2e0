-- doctor_jobs: jobs that are overdue for the relay, the age of the last scan, and how many jobs died within the last hour.
--
--   $1 seconds after which a due job must have been published
--
-- One row. Counts at most 10,000 overdue jobs. A job is late since it was due: each publication that NATS refuses moves
-- publish_at, by a second. A worker without a slot for a job of a shared message hands it to the relay, too: that one is
-- published a moment later, and `oldest` is another job in the next look.
SELECT relay.jobs AS overdue,
       relay.oldest,
       extract(epoch FROM statement_timestamp() - relay.since)::float8 AS overdue_s,
       extract(epoch FROM statement_timestamp() - s.last_scan_at)::float8 AS last_scan_s,
       extract(epoch FROM s.grace_until - statement_timestamp())::float8 AS grace_left_s,
       extract(epoch FROM statement_timestamp() - s.breaker_since)::float8 AS breaker_s,
       dead.died
  FROM tenure.scanner_state s
 CROSS JOIN LATERAL (
       SELECT count(*) AS jobs, min(scheduled_at) AS since, (array_agg(id ORDER BY scheduled_at, id))[1] AS oldest
         FROM (SELECT id, scheduled_at FROM tenure.jobs
                WHERE publish_at <= statement_timestamp() + interval '5 s' AND status = 'queued'
                ORDER BY publish_at LIMIT 10000) AS unpublished
        WHERE scheduled_at <= statement_timestamp() - $1::float8 * interval '1 second') AS relay
 CROSS JOIN LATERAL (
       SELECT count(*) AS died FROM tenure.dead_letter_jobs
        WHERE died_at > statement_timestamp() - interval '1 hour') AS dead
