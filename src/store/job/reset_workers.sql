-- reset_workers: reconcile resets the jobs of dead processes of one host.
--
--   $1 worker ids proven dead  $2 their host  $3 worker id of the caller
--
-- SKIP LOCKED: the scanner resets a job whose row a dead process's transaction still holds.
-- Exact ids and the exact host: a prefix would reset web-1-2's jobs for web-1, and _ or % those of whole fleets.
-- Made of parts: `scripts/statement reset_workers` prints it whole.
WITH locked AS MATERIALIZED (
    SELECT format('worker lost: %s died', j.worker_id) AS error, 'lost' AS category,
           'reconcile' AS path, 'an earlier process of this host, proven dead' AS reason,
           $3::text AS recovered_by,
-- include job/parts/lost_job.sql
      FROM tenure.jobs j
     WHERE j.worker_id = ANY ($1::text[])
       AND j.worker_host = $2
       AND j.status = 'processing'
     ORDER BY j.id
       FOR UPDATE OF j SKIP LOCKED
)
-- include job/parts/end_attempt.sql
