-- Puts back into Oban what `oban.sql` has moved and what still waits in tenure. Run it while no worker of tenure takes
-- these jobs: after `tenure queues pause`.
BEGIN;
WITH waits AS MATERIALIZED (
    SELECT o.id, j.id AS job
      FROM oban_jobs o
      JOIN tenure.jobs j ON j.id = (o.meta ->> 'tenure_job_id')::uuid AND j.status = 'queued'
     WHERE o.state = 'cancelled' AND o.attempt < o.max_attempts
     ORDER BY j.id
       FOR UPDATE
), back AS MATERIALIZED (
    SELECT w.id FROM waits w WHERE tenure.cancel(w.job) = 'cancelled'
)
UPDATE oban_jobs o
   SET state = CASE WHEN o.scheduled_at > now() AT TIME ZONE 'UTC' THEN 'scheduled'
                    ELSE 'available' END::oban_job_state,
       cancelled_at = NULL, meta = o.meta - 'tenure_job_id'
  FROM back
 WHERE o.id = back.id;
COMMIT;
