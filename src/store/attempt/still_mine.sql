-- still_mine: the claims that are current, and whether a cancellation of their jobs was requested.
--
--   $1 ids  $2 the tokens among them  $3 claim ids
--
-- A claim id belongs to one claim of one job: see progress.sql.
-- A row without a claim id: this server is a standby, which may not know the claims yet.
SELECT j.claim_id, j.cancel_requested_at IS NOT NULL AS cancel_requested
  FROM tenure.jobs j
 WHERE j.id = ANY ($1::uuid[])
   AND j.fencing_token = ANY ($2::bigint[])
   AND j.claim_id = ANY ($3::uuid[])
   AND j.status = 'processing'
 UNION ALL
SELECT NULL, false WHERE pg_is_in_recovery()
