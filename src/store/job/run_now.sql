-- run_now: waiting jobs become due at once.
--
--   $1 ids
--
-- One row a job that waited. The relay publishes it; a message that is already on its way does no harm.
WITH waiting AS MATERIALIZED (
    SELECT id FROM tenure.jobs
     WHERE id = ANY ($1::uuid[]) AND status = 'queued' AND scheduled_at > statement_timestamp()
     ORDER BY id
       FOR NO KEY UPDATE
)
UPDATE tenure.jobs j
   SET scheduled_at = clock_timestamp(), publish_at = clock_timestamp(), published_at = NULL
  FROM waiting
 WHERE j.id = waiting.id
RETURNING j.id
