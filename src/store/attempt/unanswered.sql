-- unanswered: the claims by which this worker holds some of these jobs. Their answers may have been lost.
--
--   $1 ids  $2 worker id
SELECT j.id, j.fencing_token, j.claim_id
  FROM tenure.jobs j
 WHERE j.id = ANY ($1::uuid[])
   AND j.worker_id = $2
   AND j.status = 'processing'
