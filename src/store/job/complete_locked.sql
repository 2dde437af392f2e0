-- complete_locked: the job is done, where its row may be locked for long. Parameters: ids, tokens,
-- claim ids and outputs, one of each for each job.
--
-- Followed by complete_skip.sql, for completions whose fast path met a lock; or, as the last statement of
-- the user's transaction in `complete_in`, for one job, by complete_wait.sql: without a row, that
-- transaction must be rolled back. Then complete_taken.sql and complete_move.sql.
-- Rows are locked in order of id, whatever the plan.
WITH mine AS MATERIALIZED (
    SELECT u.id, u.output
      FROM unnest((SELECT $1::uuid[]), $2::bigint[], $3::uuid[], $4::text[])
           AS u(id, token, claim_id, output)
      JOIN tenure.jobs j ON j.id = u.id
     WHERE j.id = ANY ((SELECT $1::uuid[])::uuid[])
       AND j.fencing_token = u.token
       AND j.claim_id = u.claim_id
       AND j.status = 'processing'
     ORDER BY j.id
