-- show_job: one job, in any status.
--
--   $1 id
--
-- A held job is due as its lane has it: the time in its row never comes.
-- Made of parts: `scripts/statement show_job` prints it whole.
SELECT id, queue, kind, payload::text AS payload, status, attempt, max_attempts, fencing_token, worker_id, created_at,
       CASE WHEN at.is_held THEN coalesce(at.due_at, created_at) ELSE scheduled_at END AS scheduled_at, started_at, last_activity_at, finished_at, stage, progress, message,
       output::text AS output, last_error, at.lane, at.priority, at.not_after, coalesce(at.is_held, false) AS is_held,
       ARRAY(SELECT t.tag FROM tenure.job_tags t WHERE t.job_id = j.id ORDER BY t.tag) AS tags
  FROM tenure.all_jobs j
-- include read/parts/in_lane.sql
 WHERE id = $1
