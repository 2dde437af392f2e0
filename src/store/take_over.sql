-- take_over: reset one job whose redelivered message says its owner was silent too long. The backstop
-- that works with every scanner dead.
--
--   $1 job id  $2 worker id of the caller
--
-- No row: its owner lives, or all owners are being given time to write after an outage.
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
       AND NOT EXISTS (SELECT FROM tenure.scanner_state WHERE grace_until > statement_timestamp())
       FOR UPDATE OF j
)
