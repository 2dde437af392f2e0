-- list_jobs: jobs that match, the newest first.
--
--   $1 to $10 which: see job_filter.sql  $11 row limit  $12 whether to read payloads and outputs
--
-- Only a refused message has no payload.
-- Made of parts: `scripts/statement list_jobs` prints it whole.
SELECT id, queue, kind, CASE WHEN $12 THEN payload::text END AS payload, status, attempt, max_attempts, fencing_token, worker_id, created_at,
       scheduled_at, started_at, last_activity_at, finished_at, stage, progress, message,
       CASE WHEN $12 THEN output::text END AS output, last_error, payload IS NULL AS is_refused
  FROM tenure.all_jobs j
 WHERE
-- include read/parts/job_filter.sql
 ORDER BY id DESC
 LIMIT $11
