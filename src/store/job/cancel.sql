-- cancel: queued jobs are cancelled; of running ones it is asked.
--
--   $1 ids
--
-- One row a live job: route 'cancelled', or 'asked' with its worker. A job that is missing is not live.
-- A running job is ended by its worker, or, if that one is dead, by whoever takes it back: every way
-- back to the queue ends in 'cancelled' once it was asked for.
-- NO KEY UPDATE: a handler's repeatable-read transaction holds its row against a reset, not against this.
WITH picked AS MATERIALIZED (
    SELECT j.id, j.status, j.queue, j.kind, j.attempt, j.max_attempts, j.fencing_token, j.claim_id,
           j.worker_id, j.started_at, j.cancel_requested_at, j.losses, j.on_crash
      FROM tenure.jobs j
     WHERE j.id = ANY ($1::uuid[])
     ORDER BY j.id
       FOR NO KEY UPDATE OF j
), asked AS (
    UPDATE tenure.jobs j
       SET cancel_requested_at = coalesce(j.cancel_requested_at, clock_timestamp())
      FROM picked
     WHERE j.id = picked.id AND picked.status = 'processing'
    RETURNING j.id, j.queue, j.kind, j.fencing_token, j.worker_id
), locked AS MATERIALIZED (
    SELECT 0 AS ord, 'cancelled' AS verdict, NULL::text AS error, NULL::text AS category,
           0::float8 AS delay_s, NULL::text AS path, NULL::text AS reason, NULL::text AS recovered_by,
           NULL::interval AS silence,
           id, queue, kind, attempt, max_attempts, fencing_token, claim_id, worker_id,
           started_at, cancel_requested_at, losses, on_crash
      FROM picked
     WHERE status = 'queued'
)
