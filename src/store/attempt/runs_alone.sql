-- runs_alone: says that a job of a batch handler runs in a batch of its own now: if its worker is lost, no other job
-- can be the cause, and end_attempt.sql charges the attempt.
--
--   $1 job id  $2 token  $3 claim id
--
-- No row: the claim is no longer current.
UPDATE tenure.jobs
   SET on_crash = CASE on_crash WHEN 'halve' THEN 'retry' ELSE on_crash END
 WHERE id = $1 AND fencing_token = $2 AND claim_id = $3 AND status = 'processing'
RETURNING id
