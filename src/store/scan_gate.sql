-- scan_gate: may I scan, and may I reset?
--
--   $1 scan_every in seconds  $2 stale_after in seconds
--
-- One row: this worker scans now; the others of this interval get none. Leaderless: if it dies, the
-- next interval has another.
-- in_grace: after a gap between scans, or a restart of the server, every live owner looks stale, and is
-- given stale_after to write. breaker_open: more than half of the running jobs (and more than 20) look
-- stale at once; that is rarely the workers' fault, so nothing is reset for stale_after.
-- The subqueries are evaluated for the one row that is updated: who has no turn does not scan the jobs.
UPDATE tenure.scanner_state s
   SET grace_until = CASE
           WHEN s.last_scan_at < statement_timestamp() - 3 * $1::float8 * interval '1 second'
             OR s.server_started_at <> pg_postmaster_start_time()
           THEN statement_timestamp() + $2::float8 * interval '1 second'
           ELSE s.grace_until END,
       breaker_since = CASE
           WHEN (SELECT count(*) FILTER (WHERE last_activity_at + stale_after < statement_timestamp())
                          > greatest(20, count(*) / 2)
                   FROM tenure.jobs WHERE status = 'processing')
           THEN coalesce(s.breaker_since, statement_timestamp()) END,
       last_scan_at = statement_timestamp(),
       server_started_at = pg_postmaster_start_time()
 WHERE s.last_scan_at IS NULL
    OR s.last_scan_at < statement_timestamp() - 0.8 * $1::float8 * interval '1 second'
RETURNING coalesce(s.grace_until > statement_timestamp(), false) AS in_grace,
          coalesce(s.breaker_since > statement_timestamp() - $2::float8 * interval '1 second', false) AS breaker_open,
          (SELECT count(*) FROM tenure.jobs
            WHERE status = 'processing' AND last_activity_at + stale_after < statement_timestamp()) AS stale
