-- visible: the jobs that are committed, and whether each still waits for its first message.
--
--   $1 ids
--
-- No row: the job's transaction is not committed, or was rolled back; or the job has ended already.
SELECT id,
       status = 'queued' AND dispatch = 1 AND fencing_token = 0 AND published_at IS NOT NULL AS waits
  FROM tenure.jobs
 WHERE id = ANY ($1::uuid[])
