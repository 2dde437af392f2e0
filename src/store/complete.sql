-- complete: the job is done; its row moves to the history.
--
--   $1 ids (no duplicates)  $2 tokens  $3 claim ids  $4 outputs (JSON text)  $5 ordinals
--
-- Followed by complete_skip.sql, or, as the last statement of the user's transaction in `complete_in`, for
-- one job, by complete_wait.sql: without a row, that transaction must be rolled back. Then complete_move.sql.
-- One row a job completed. A job that is missing: ask settled_as.sql; a repeated completion under the
-- same claim is the same completion, anything else is a stale worker.
-- Rows are locked in order of id, whatever the plan.
WITH mine AS MATERIALIZED (
    SELECT u.id, u.output, u.ord
      FROM unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::text[], $5::int[])
           AS u(id, token, claim_id, output, ord)
      JOIN tenure.jobs j ON j.id = u.id
     WHERE j.fencing_token = u.token
       AND j.claim_id = u.claim_id
       AND j.status = 'processing'
     ORDER BY j.id
