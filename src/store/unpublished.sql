-- unpublished: hand jobs to the relay whose first publication failed.
--
--   $1 ids
--
-- Only the first dispatch, and only while nobody claimed the job: a relay may have been faster.
UPDATE tenure.jobs
   SET publish_at = clock_timestamp(), published_at = NULL
 WHERE id = ANY ($1::uuid[]) AND status = 'queued' AND dispatch = 1 AND published_at IS NOT NULL
