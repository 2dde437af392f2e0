-- list_jobs: newest first.
--
--   $1 status or NULL  $2 queue or NULL  $3 kind or NULL  $4 row limit
SELECT id, queue, kind, payload::text AS payload, status, attempt, max_attempts, fencing_token, worker_id, created_at,
       scheduled_at, started_at, last_activity_at, finished_at, stage, progress, message,
       output::text AS output, last_error
  FROM tenure.all_jobs
 WHERE ($1::text IS NULL OR status = $1)
   AND ($2::text IS NULL OR queue = $2)
   AND ($3::text IS NULL OR kind = $3)
 ORDER BY id DESC
 LIMIT $4
