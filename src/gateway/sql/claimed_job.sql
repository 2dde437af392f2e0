-- claimed_job: the payload and the checkpoint of a job, for the worker that has claimed it.
--
--   $1 job id  $2 token  $3 claim id
--
-- No row: the claim is no longer current.
SELECT payload::text AS payload, checkpoint::text AS checkpoint
  FROM tenure.jobs
 WHERE id = $1 AND fencing_token = $2 AND claim_id = $3 AND status = 'processing'
