-- skip_sleeps: end the sleeps of a job now. For tests.
--
--   $1 job id
UPDATE tenure.effects SET wakes_at = statement_timestamp()
 WHERE job_id = $1 AND step_kind = 'sleep' AND wakes_at > statement_timestamp()
