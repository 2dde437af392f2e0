-- match_tagged: match_jobs.sql for jobs that have all of certain tags.
--
--   $1 to $12 as in match_jobs.sql  $13 tags
--
-- It begins with the live jobs and the dead letters, not with the tags: most jobs of a tag have finished. OFFSET: or
-- the planner could read all tags as a whole.
-- Made of parts: `scripts/statement match_tagged` prints it whole.
SELECT id
  FROM tenure.all_jobs j
 WHERE status IN ('queued', 'processing', 'failed')
   AND CASE WHEN $12 = 'cancel' THEN
-- include read/parts/can_cancel.sql
            ELSE
-- include read/parts/can_retry.sql
       END
   AND
-- include read/parts/job_filter.sql
   AND NOT EXISTS (
       SELECT FROM unnest($13::text[]) AS wanted(tag)
        WHERE NOT EXISTS (SELECT FROM tenure.job_tags o WHERE o.job_id = j.id AND o.tag = wanted.tag OFFSET 0))
 ORDER BY id DESC
 LIMIT $11
