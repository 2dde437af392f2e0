-- progress: a heartbeat, with the handler's report.
--
--   $1 ids (sorted)  $2 the tokens among them  $3 claim ids
--   $4 reports (JSON text: stage, progress, message, checkpoint); a missing or NULL field stays as it is
--
-- One row a job that is still ours, and whether its cancellation was asked for. A job without a row may be
-- lost, or locked by another transaction: ask still_mine.sql before stopping its handler.
-- SKIP LOCKED: a handler's transaction may hold its row for long, and must not hold up the heartbeats of all
-- other jobs. The statement locks all rows, in order of id, before it writes one: otherwise a batch and a
-- cancellation could wait for each other.
-- A claim id belongs to one claim of one job: a row whose claim is among these is owned by that very claim. No join, as in claim.sql; and one array of reports, in
-- which width_bucket finds a job's by halves. OFFSET 0 makes Postgres find it once, not four times. Of two reports of
-- one job, the last is that of the higher token.
-- No indexed column changes: the update is HOT.
WITH mine AS MATERIALIZED (
    SELECT j.id
      FROM tenure.jobs j
     WHERE j.id = ANY ($1::uuid[])
       AND j.fencing_token = ANY ($2::bigint[])
       AND j.claim_id = ANY ($3::uuid[])
       AND j.status = 'processing'
     ORDER BY j.id
       FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE tenure.jobs j
   SET last_activity_at = clock_timestamp(),
       (stage, progress, message, checkpoint) = (
           SELECT coalesce(said.report ->> 'stage', j.stage),
                  coalesce((said.report ->> 'progress')::real, j.progress),
                  coalesce(said.report ->> 'message', j.message),
                  coalesce(said.report -> 'checkpoint', j.checkpoint)
             FROM (SELECT ($4::text[])[width_bucket(j.id, $1::uuid[])]::jsonb AS report OFFSET 0) said)
 WHERE j.id = ANY (ARRAY(SELECT id FROM mine))
RETURNING j.claim_id, j.cancel_requested_at IS NOT NULL AS cancel_requested
