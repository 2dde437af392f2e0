-- reset_stale: take silent jobs away from their owners. The scanner's statement.
--
--   $1 ids: the jobs that scan_gate.sql found silent  $2 worker id of the scanner
--
-- Tested once more and reset in one statement: a job that has reported or ended since is not touched.
-- Locked in order of id.
-- SKIP LOCKED is right here (compare claim.sql): a locked row has a live writer, or another scanner.
WITH locked AS MATERIALIZED (
    SELECT 0 AS ord, 'lost' AS verdict,
           format('worker lost: no sign of life from %s for %s s', j.worker_id,
                  round(extract(epoch FROM statement_timestamp() - j.last_activity_at), 1)) AS error,
           'lost' AS category, NULL::float8 AS delay_s,
           'scanner' AS path, 'silent for longer than stale_after' AS reason, $2::text AS recovered_by,
           statement_timestamp() - j.last_activity_at AS silence,
           j.id, j.queue, j.kind, j.attempt, j.max_attempts, j.fencing_token, j.claim_id, j.worker_id,
           j.started_at, j.cancel_requested_at, j.losses, j.on_crash
      FROM tenure.jobs j
     WHERE j.id = ANY ($1::uuid[])
       AND j.status = 'processing'
       AND j.last_activity_at + j.stale_after < statement_timestamp()
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
)
