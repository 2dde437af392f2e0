-- show_job: one job, in any status.
--
--   $1 id
SELECT id, queue, kind, payload::text AS payload, status, attempt, max_attempts, fencing_token, worker_id, created_at,
       scheduled_at, started_at, last_activity_at, finished_at, stage, progress, message,
       output::text AS output, last_error
  FROM tenure.all_jobs
 WHERE id = $1
