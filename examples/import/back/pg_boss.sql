-- Puts back into pg-boss what `pg_boss.sql` has moved and what still waits in tenure. Run it while no worker of tenure
-- takes these jobs: after `tenure queues pause`.
BEGIN;
WITH waits AS MATERIALIZED (
    SELECT b.name, b.id, j.id AS job
      FROM pgboss.job b
      JOIN tenure.jobs j ON j.id = (b.output ->> 'tenure_job_id')::uuid AND j.status = 'queued'
     WHERE b.state = 'cancelled' AND (b.started_on IS NULL OR b.retry_count < b.retry_limit)
     ORDER BY j.id
       FOR UPDATE
), back AS MATERIALIZED (
    SELECT w.name, w.id FROM waits w WHERE tenure.cancel(w.job) = 'cancelled'
)
UPDATE pgboss.job b
   SET state = CASE WHEN b.started_on IS NULL THEN 'created' ELSE 'retry' END::pgboss.job_state,
       completed_on = NULL, output = NULL
  FROM back
 WHERE b.name = back.name AND b.id = back.id;
COMMIT;
