-- Puts into graphile-worker all that waits in a queue of tenure: `-v queue=mail`. Run it while no worker of tenure takes
-- these jobs: after `tenure queues pause`.
BEGIN;
WITH waits AS MATERIALIZED (
    SELECT j.*, (SELECT k.key FROM tenure.job_keys k
                  WHERE k.job_id = j.id AND k.scope = j.queue AND NOT starts_with(k.key, 'graphile-')) AS key
      FROM tenure.jobs j
     WHERE j.queue = :'queue' AND j.status = 'queued'
     ORDER BY j.id
       FOR UPDATE
), back AS MATERIALIZED (
    SELECT w.* FROM waits w WHERE tenure.cancel(w.id) = 'cancelled'
)
SELECT count(graphile_worker.add_job(b.kind, b.payload::json, nullif(b.queue, 'default'), b.scheduled_at,
                                     b.max_attempts - b.attempt, b.key)) AS "put back"
  FROM back b;
COMMIT;
