-- executions: the latest attempts of one job, oldest first.
--
--   $1 id  $2 row limit
SELECT * FROM (
    SELECT fencing_token, attempt, worker_id, started_at, finished_at, outcome, error
      FROM tenure.job_executions_all
     WHERE job_id = $1
     ORDER BY fencing_token DESC
     LIMIT $2) e
 ORDER BY fencing_token
