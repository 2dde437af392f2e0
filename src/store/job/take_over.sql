-- take_over: reset one job whose redelivered message says its owner was silent too long. The backstop
-- that works with every scanner dead.
--
--   $1 job id  $2 worker id of the caller  $3 scan_every in seconds  $4 for how many seconds the caller has had Postgres
--
-- No row: its owner lives, or all owners are being given time to write after an outage: a grace lasts, or nobody has
-- scanned since the outage, and the next scan is about to start one (compare scan_gate.sql). Where no scan comes any
-- more, the owner has had that time once the caller has had Postgres for as long.
-- Waits for the row lock (compare reset_stale.sql): the holder may be the owner's own sign of life.
WITH locked AS MATERIALIZED (
    SELECT 0 AS ord, 'lost' AS verdict,
           format('worker lost: no sign of life from %s for %s s', j.worker_id,
                  round(extract(epoch FROM statement_timestamp() - j.last_activity_at), 1)) AS error,
           'lost' AS category, NULL::float8 AS delay_s,
           'redelivery' AS path, 'silent for longer than stale_after' AS reason, $2::text AS recovered_by,
           statement_timestamp() - j.last_activity_at AS silence,
           j.id, j.queue, j.kind, j.attempt, j.max_attempts, j.fencing_token, j.claim_id, j.worker_id,
           j.started_at, j.cancel_requested_at, j.losses, j.on_crash
      FROM tenure.jobs j
     WHERE j.id = $1
       AND j.status = 'processing'
       AND j.last_activity_at + j.stale_after < statement_timestamp()
       AND NOT EXISTS (
           SELECT FROM tenure.scanner_state s
            WHERE s.grace_until > statement_timestamp()
               OR j.stale_after > $4::float8 * interval '1 second'
                  AND (s.server_started_at <> pg_postmaster_start_time()
                    OR s.last_scan_at < statement_timestamp()
                                        - least(3 * $3::float8 * interval '1 second',
                                                greatest(1.5 * $3::float8 * interval '1 second',
                                                         j.stale_after - $3::float8 * interval '1 second'))))
       FOR UPDATE OF j
)
