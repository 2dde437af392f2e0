-- lose: take a running job back, as if its worker had been silent for too long. For tests.
--
--   $1 job id
--
-- No row: nobody runs it. As take_over.sql, but for the silence: whatever its owner says, it is believed dead.
WITH locked AS MATERIALIZED (
    SELECT 0 AS ord, 'lost' AS verdict,
           format('worker lost: a test has declared %s dead', j.worker_id) AS error,
           'lost' AS category, NULL::float8 AS delay_s,
           'scanner' AS path, 'declared dead by a test' AS reason, 'testing' AS recovered_by,
           statement_timestamp() - j.last_activity_at AS silence,
           j.id, j.queue, j.kind, j.attempt, j.max_attempts, j.fencing_token, j.claim_id, j.worker_id,
           j.started_at, j.cancel_requested_at, j.losses, j.on_crash
      FROM tenure.jobs j
     WHERE j.id = $1
       AND j.status = 'processing'
       FOR UPDATE OF j
)
