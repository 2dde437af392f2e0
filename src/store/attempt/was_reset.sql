-- was_reset: whether recovery, or the worker itself, gave this claim up.
--
--   $1 job id  $2 token
--
-- For a job of a kind that keeps no history, once it is gone and settled_as.sql knows nothing of its claim: if no
-- worker gave the claim up, the job was completed under it. Every other end leaves a row.
SELECT EXISTS (SELECT FROM tenure.recovery_events e
                WHERE e.job_id = $1 AND e.fencing_token = $2 AND e.event IN ('reset', 'release')) AS was_reset
