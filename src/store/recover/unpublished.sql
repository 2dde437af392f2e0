-- unpublished: hand the relay jobs whose publication failed, or whose message no worker keeps; returns their ids.
--
--   $1 ids  $2 the dispatch of each message that was not published  $3 seconds until the relay tries
--
-- Only while the job waits for that very message: a relay may have been faster, or the message arrived after all
-- and a worker has claimed the job.
-- Rows are locked in order of id, as claims lock them.
WITH waiting AS MATERIALIZED (
    SELECT j.id
      FROM unnest((SELECT $1::uuid[]), $2::int[]) AS u(id, dispatch)
      JOIN tenure.jobs j ON j.id = u.id
     WHERE j.id = ANY ((SELECT $1::uuid[])::uuid[])
       AND j.dispatch = u.dispatch AND j.status = 'queued' AND j.publish_at IS NULL
     ORDER BY j.id
       FOR NO KEY UPDATE OF j
)
UPDATE tenure.jobs j
   SET publish_at = clock_timestamp() + $3::float8 * interval '1 second', published_at = NULL
  FROM waiting
 WHERE j.id = waiting.id
   AND j.id = ANY (ARRAY(SELECT id FROM waiting))
RETURNING j.id
