-- take_slots: record the running jobs of a limited queue. Last statement of the transaction that claimed them.
--
--   $1 queue  $2 slots  $3 jobs  $4 tokens
UPDATE tenure.queue_slots s
   SET job_id = u.job_id, fencing_token = u.fencing_token
  FROM unnest($2::int[], $3::uuid[], $4::bigint[]) AS u(slot, job_id, fencing_token)
 WHERE s.queue = $1 AND s.slot = u.slot
