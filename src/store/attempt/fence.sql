-- fence: the last statement of a user's transaction. Also a sign of life.
--
--   $1 job id  $2 token  $3 claim id
--
-- No row: this worker no longer owns the job, and the transaction must be rolled back. The row lock lasts
-- only from here to the commit, so that it does not hold up the job's own progress writes.
UPDATE tenure.jobs
   SET last_activity_at = clock_timestamp()
 WHERE id = $1 AND fencing_token = $2 AND claim_id = $3 AND status = 'processing'
RETURNING id
