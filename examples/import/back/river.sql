-- Puts back into River what `river.sql` has moved and what still waits in tenure. Run it while no worker of tenure
-- takes these jobs: after `tenure queues pause`.
BEGIN;
WITH waits AS MATERIALIZED (
    SELECT r.id, j.id AS job
      FROM river_job r
      JOIN tenure.jobs j ON j.id = (r.metadata ->> 'tenure_job_id')::uuid AND j.status = 'queued'
     WHERE r.state = 'cancelled' AND r.attempt < r.max_attempts
     ORDER BY j.id
       FOR UPDATE
), back AS MATERIALIZED (
    SELECT w.id FROM waits w WHERE tenure.cancel(w.job) = 'cancelled'
)
UPDATE river_job r
   SET state = CASE WHEN r.scheduled_at > now() THEN 'scheduled' ELSE 'available' END::river_job_state,
       finalized_at = NULL, metadata = r.metadata - 'tenure_job_id'
  FROM back
 WHERE r.id = back.id;
COMMIT;
