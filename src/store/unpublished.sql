-- unpublished: hand jobs to the relay whose first publication failed.
--
--   $1 ids
--
-- Only the first dispatch, and only while nobody claimed the job: a relay may have been faster.
-- Rows are locked in order of id, as claims lock them.
WITH waiting AS MATERIALIZED (
    SELECT id FROM tenure.jobs
     WHERE id = ANY ($1::uuid[]) AND status = 'queued' AND dispatch = 1 AND publish_at IS NULL
     ORDER BY id
       FOR NO KEY UPDATE
)
UPDATE tenure.jobs j
   SET publish_at = clock_timestamp(), published_at = NULL
  FROM waiting
 WHERE j.id = waiting.id
   AND j.id = ANY (ARRAY(SELECT id FROM waiting))
