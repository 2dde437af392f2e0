-- progress: a sign of life, with what the handler reported.
--
--   $1 ids (sorted, no duplicates)  $2 tokens  $3 claim ids  $4 stages  $5 percents  $6 messages
--   $7 checkpoints (JSON text)  $8 ordinals; NULL leaves a column as it is
--
-- One row a job that still is ours, and whether its cancellation was asked for. A job that is missing
-- may be lost: ask still_mine.sql before stopping its handler.
-- No indexed column changes: the update is HOT.
UPDATE tenure.jobs j
   SET last_activity_at = clock_timestamp(),
       stage            = coalesce(u.stage, j.stage),
       progress         = coalesce(u.progress, j.progress),
       message          = coalesce(u.message, j.message),
       checkpoint       = coalesce(u.checkpoint::jsonb, j.checkpoint)
  FROM unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::text[], $5::real[], $6::text[], $7::text[], $8::int[])
       AS u(id, token, claim_id, stage, progress, message, checkpoint, ord)
 WHERE j.id = u.id
   AND j.fencing_token = u.token
   AND j.claim_id = u.claim_id
   AND j.status = 'processing'
RETURNING u.ord, j.cancel_requested_at IS NOT NULL AS cancel_requested
