-- published: the stream confirmed these messages.
--
--   $1 ids  $2 dispatches  $3 tokens
--
-- Only while the job waits as it did when the message was built: a claim since then raised the token,
-- and a retry after it waits for a publication of its own.
-- Rows are locked in order of id, as the claims that these messages set off lock them.
WITH waiting AS MATERIALIZED (
    SELECT j.id
      FROM unnest((SELECT $1::uuid[]), $2::int[], $3::bigint[]) AS u(id, dispatch, token)
      JOIN tenure.jobs j ON j.id = u.id
     WHERE j.id = ANY ((SELECT $1::uuid[])::uuid[])
       AND j.dispatch = u.dispatch AND j.fencing_token = u.token AND j.status = 'queued'
     ORDER BY j.id
       FOR NO KEY UPDATE OF j
)
UPDATE tenure.jobs j
   SET publish_at = NULL, published_at = clock_timestamp()
  FROM waiting
 WHERE j.id = waiting.id
   AND j.id = ANY (ARRAY(SELECT id FROM waiting))
