-- job_logs: what the last attempts of a job have printed, the latest first.
--
--   $1 id
SELECT fencing_token, text, is_cut, written_at
  FROM tenure.job_logs
 WHERE job_id = $1
 ORDER BY fencing_token DESC
