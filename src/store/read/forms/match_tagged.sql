-- match_tagged: match_jobs.sql for jobs with certain tags, found by the first of these.
--
--   $1 to $12 as in match_jobs.sql  $13 tags: see tagged_jobs.sql
--
-- Made of parts: `scripts/statement match_tagged` prints it whole.
SELECT id
-- include read/parts/tagged_jobs.sql
   AND status IN ('queued', 'processing', 'failed')
   AND CASE WHEN $12 = 'cancel' THEN
-- include read/parts/can_cancel.sql
            ELSE
-- include read/parts/can_retry.sql
       END
   AND
-- include read/parts/job_filter.sql
 ORDER BY t.job_id DESC
 LIMIT $11
