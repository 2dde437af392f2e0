-- reset_workers: take the jobs of dead processes of one host. The statement of reconcile.
--
--   $1 worker ids proven dead  $2 their host  $3 worker id of the caller
--
-- SKIP LOCKED: what the dead left locked for a while is the scanner's.
-- Exact ids and the exact host: a prefix would rob web-1-2 for web-1, and _ or % whole fleets.
WITH locked AS MATERIALIZED (
    SELECT 0 AS ord, 'lost' AS verdict, format('worker lost: %s died', j.worker_id) AS error,
           'lost' AS category, NULL::float8 AS delay_s,
           'reconcile' AS path, 'an earlier process of this host, proven dead' AS reason,
           $3::text AS recovered_by, statement_timestamp() - j.last_activity_at AS silence,
           j.id, j.queue, j.kind, j.attempt, j.max_attempts, j.fencing_token, j.claim_id, j.worker_id,
           j.started_at, j.cancel_requested_at, j.losses, j.on_crash
      FROM tenure.jobs j
     WHERE j.worker_id = ANY ($1::text[])
       AND j.worker_host = $2
       AND j.status = 'processing'
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
)
