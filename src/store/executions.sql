-- executions: every attempt of one job, oldest first.
--
--   $1 id
SELECT fencing_token, attempt, worker_id, started_at, finished_at, outcome, error
  FROM tenure.job_executions_all
 WHERE job_id = $1
 ORDER BY fencing_token
