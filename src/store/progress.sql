-- progress: a sign of life, with what the handler reported.
--
--   $1 ids  $2 tokens  $3 claim ids  $4 stages  $5 percents  $6 messages  $7 checkpoints (JSON text)
--   $8 ordinals; NULL leaves a column as it is
--
-- One row a job that still is ours, and whether its cancellation was asked for. A job that is missing
-- may be lost, or be locked by somebody: ask still_mine.sql before stopping its handler.
-- SKIP LOCKED: a transaction of one handler may hold its row for long, and must not hold up the signs of
-- life of all others. All rows are locked before one is written, and in order of id, or a batch and a
-- cancellation would wait for each other.
-- No indexed column changes: the update is HOT.
WITH mine AS MATERIALIZED (
    SELECT u.*
      FROM unnest((SELECT $1::uuid[]), $2::bigint[], $3::uuid[], $4::text[], $5::real[], $6::text[], $7::text[], $8::int[])
           AS u(id, token, claim_id, stage, progress, message, checkpoint, ord)
      JOIN tenure.jobs j ON j.id = u.id
     WHERE j.fencing_token = u.token
       AND j.claim_id = u.claim_id
       AND j.status = 'processing'
     ORDER BY j.id
       FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE tenure.jobs j
   SET last_activity_at = clock_timestamp(),
       stage            = coalesce(mine.stage, j.stage),
       progress         = coalesce(mine.progress, j.progress),
       message          = coalesce(mine.message, j.message),
       checkpoint       = coalesce(mine.checkpoint::jsonb, j.checkpoint)
  FROM mine
 WHERE j.id = mine.id
RETURNING mine.ord, j.cancel_requested_at IS NOT NULL AS cancel_requested
