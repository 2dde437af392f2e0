-- scan_gate: may this worker scan, may it reset, and which jobs?
--
--   $1 scan_every in seconds  $2 stale_after in seconds  $3 how many silent jobs to name
--
-- One row: this worker scans now, and the row names the quietest of the silent jobs. No row: another worker scans in
-- this interval. No leader: if the worker dies, or the server ends the statement, the turn is not used up.
-- One pass over the live jobs, which may take long where they are many and large: it has a limit of its own, and keeps no
-- other statement waiting: it locks scanner_state only at its end. Meanwhile this transaction's advisory lock spares
-- other workers the same pass; a statement without a turn reads no job.
-- in_grace: after a gap between scans, or a restart of the server, every live owner looks stale, and gets stale_after
-- to write. A gap is longer than three intervals; or, if running jobs go stale sooner, so long that a scan in time
-- would still have found them fresh. (One and a half intervals are no gap: scans are jittered.)
-- breaker_open: more than half of the running jobs (and more than 20) look
-- stale at once; that is rarely the workers' fault, so the scanner resets nothing for stale_after.
-- The time of the scan is that of its end: the next gap begins there.
-- What lies ahead is of a clock that has stepped back since: a scan there is a gap, and so is a sign of life further ahead
-- than stale_after once the grace is over; a grace ends at most stale_after from now, and a breaker opened at the latest
-- now.
WITH turn AS MATERIALIZED (
    -- "tenure sc" in ASCII.
    SELECT FROM tenure.scanner_state
     WHERE coalesce(last_scan_at NOT BETWEEN statement_timestamp() - 0.8 * $1::float8 * interval '1 second'
                                 AND statement_timestamp() + $1::float8 * interval '1 second', true)
       AND pg_try_advisory_xact_lock(x'74656e7572657363'::bigint)
), running AS MATERIALIZED (
    SELECT id, stale_after, last_activity_at, statement_timestamp() NOT BETWEEN last_activity_at - stale_after AND last_activity_at + stale_after AS silent
      FROM tenure.jobs
     WHERE status = 'processing' AND EXISTS (SELECT FROM turn)
), counted AS MATERIALIZED (
    SELECT count(*) AS jobs, count(*) FILTER (WHERE silent) AS silent,
           least(3 * $1::float8 * interval '1 second',
                 greatest(1.5 * $1::float8 * interval '1 second',
                          coalesce(min(stale_after), 4 * $1::float8 * interval '1 second')
                          - $1::float8 * interval '1 second')) AS gap
      FROM running
)
UPDATE tenure.scanner_state s
   SET grace_until = CASE
           WHEN s.last_scan_at NOT BETWEEN statement_timestamp() - counted.gap AND statement_timestamp() + counted.gap
             OR s.server_started_at <> pg_postmaster_start_time()
           THEN clock_timestamp() + $2::float8 * interval '1 second'
           WHEN s.grace_until > clock_timestamp() + $2::float8 * interval '1 second'
           THEN clock_timestamp() + $2::float8 * interval '1 second'
           ELSE s.grace_until END,
       breaker_since = CASE
           WHEN counted.silent > greatest(20, counted.jobs / 2)
           THEN least(s.breaker_since, statement_timestamp()) END,
       last_scan_at = clock_timestamp(),
       server_started_at = pg_postmaster_start_time()
  FROM counted
 WHERE EXISTS (SELECT FROM turn)
   AND coalesce(s.last_scan_at NOT BETWEEN statement_timestamp() - 0.8 * $1::float8 * interval '1 second'
                                       AND statement_timestamp() + $1::float8 * interval '1 second', true)
RETURNING coalesce(s.grace_until > clock_timestamp(), false) AS in_grace,
          coalesce(s.breaker_since > statement_timestamp() - $2::float8 * interval '1 second', false) AS breaker_open,
          counted.silent AS stale,
          ARRAY(SELECT id FROM running WHERE silent ORDER BY last_activity_at LIMIT $3::bigint) AS silent
