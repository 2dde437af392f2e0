-- chosen_jobs: the jobs of `chosen` with their tags, and where they are in their lanes.
--
-- Only a refused message has no payload. A held job is due as its lane has it: the time in its row never comes.
SELECT id, queue, kind, payload, status, attempt, max_attempts, fencing_token, worker_id, created_at,
       CASE WHEN at.is_held THEN coalesce(at.due_at, created_at) ELSE scheduled_at END AS scheduled_at, started_at,
       last_activity_at, finished_at, stage, progress, message, output, last_error, is_refused,
       at.lane, at.priority, at.not_after, coalesce(at.is_held, false) AS is_held,
       ARRAY(SELECT t.tag FROM tenure.job_tags t WHERE t.job_id = j.id ORDER BY t.tag) AS tags
  FROM chosen j
-- include read/parts/in_lane.sql
 ORDER BY id DESC
