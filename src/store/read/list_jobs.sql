-- list_jobs: jobs that match, the newest first.
--
--   $1 to $10 which: see job_filter.sql  $11 row limit  $12 whether to read payloads and outputs
--
-- Only a refused message has no payload. A held job is due as its lane has it: the time in its row never comes.
-- Made of parts: `scripts/statement list_jobs` prints it whole.
WITH chosen AS MATERIALIZED (
    SELECT id, queue, kind, CASE WHEN $12 THEN payload::text END AS payload, status, attempt, max_attempts,
           fencing_token, worker_id, created_at, scheduled_at, started_at, last_activity_at, finished_at, stage,
           progress, message, CASE WHEN $12 THEN output::text END AS output, last_error, payload IS NULL AS is_refused
      FROM tenure.all_jobs j
     WHERE
-- include read/parts/job_filter.sql
     ORDER BY id DESC
     LIMIT $11
)
SELECT id, queue, kind, payload, status, attempt, max_attempts, fencing_token, worker_id, created_at,
       CASE WHEN at.is_held THEN coalesce(at.due_at, created_at) ELSE scheduled_at END AS scheduled_at, started_at,
       last_activity_at, finished_at, stage, progress, message, output, last_error, is_refused,
       at.lane, at.priority, at.not_after, coalesce(at.is_held, false) AS is_held
  FROM chosen j
-- include read/parts/in_lane.sql
 ORDER BY id DESC
